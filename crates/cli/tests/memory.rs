//! `selvedge memory` as people and programs use it, and killed while it works.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(unix)]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name).display().to_string()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
        command
            .arg("memory")
            .args(args)
            .env("SELVEDGE_HOME", self.path("home"))
            .current_dir(self.dir.path());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> (i32, String, String) {
        let output = self.command(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    }

    fn out(&self, args: &[&str]) -> String {
        let (status, out, err) = self.run(args);
        assert_eq!(status, 0, "{args:?}: {err}");
        out
    }

    fn store(&self) -> Connection {
        let store = Connection::open(self.path("home/journal.sqlite")).unwrap();
        store
            .busy_timeout(std::time::Duration::from_secs(20))
            .unwrap();
        store
    }

    /// A number the store tells, 0 where it cannot yet.
    fn number(&self, sql: &str) -> i64 {
        if !self.path("home/journal.sqlite").exists() {
            return 0;
        }
        self.store()
            .query_row(sql, [], |row| row.get(0))
            .unwrap_or(0)
    }

    /// Kills a process when the store has come so far. From then on it writes nothing: it is in the midst of its work,
    /// or waits to write, when it is killed.
    fn kill_when(&self, mut child: Child, sql: &str, enough: i64) {
        loop {
            let ended = child.try_wait().unwrap();
            if self.number(sql) >= enough {
                break;
            }
            assert!(ended.is_none(), "it ended by itself");
            std::thread::sleep(BETWEEN_LOOKS);
        }
        let held = self
            .path("home/journal.sqlite")
            .exists()
            .then(|| self.store());
        if let Some(store) = &held {
            store.execute_batch("BEGIN IMMEDIATE").unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

fn line(session: &str, turn: usize, text: &str) -> String {
    let speaker = ["Ann", "Bob"][turn % 2];
    let line = json!({"session": session, "part": turn / 20, "turn": format!("D{}:{}", turn / 20, turn % 20), "role": "user",
        "speaker": speaker, "ts": format!("2024-01-{:02}T10:00:00Z", turn / 20 % 28 + 1), "text": text});
    format!("{line}\n")
}

/// Conversations of so many lines, two at a time.
fn lines(count: usize) -> Vec<String> {
    let words = [
        "harbour", "violin", "concrete", "orchard", "lantern", "passport", "granite", "saffron",
        "glacier", "tunnel",
    ];
    let text = |n: usize| {
        let word = |at: usize| words[(n * 7 + at * at * 3 + n / 11) % words.len()];
        format!(
            "I always keep the {} near the {} because {} number {n} said so, {} and all.",
            word(0),
            word(1),
            word(2),
            word(3)
        )
    };
    (0..count)
        .map(|n| line(["left", "right"][n % 2], n / 2, &text(n)))
        .collect()
}

#[test]
fn what_was_imported_is_found_shown_and_exact() {
    let place = Place::new();
    let file = place.file("chat.jsonl", &lines(400).concat());
    let imported: Value = serde_json::from_str(&place.out(&["import", &file, "--json"])).unwrap();
    assert_eq!(
        imported,
        json!({"turns": 400, "before": 0, "sessions": ["left", "right"]})
    );
    let again: Value = serde_json::from_str(&place.out(&["import", &file, "--json"])).unwrap();
    assert_eq!(
        (&again["turns"], &again["before"]),
        (&json!(0), &json!(400))
    );

    let found: Value = serde_json::from_str(&place.out(&[
        "search",
        "--session",
        "left",
        "-k",
        "3",
        "--json",
        "number 84 said so",
    ]))
    .unwrap();
    let hits = found["hits"].as_array().unwrap();
    assert_eq!(
        (hits.len(), &hits[0]["turn"], &hits[0]["id"]),
        (3, &json!("D2:2"), &json!("T-43"))
    );
    assert!(
        hits[0]["score"].as_f64() > hits[1]["score"].as_f64()
            && hits[0]["tokens"].as_u64() > Some(20)
    );
    assert!(found["elapsed_ms"].as_f64().is_some());

    let queries = place.file("queries", "{\"id\":\"q1\",\"query\":\"violin and granite\"}\n\n{\"id\":7,\"query\":\"saffron\",\"session\":\"right\"}\nglacier tunnel\n");
    let answers = place.out(&[
        "search",
        "--session",
        "left",
        "--budget",
        "500",
        "--queries",
        &queries,
        "--json",
    ]);
    let answers: Vec<Value> = answers
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        answers
            .iter()
            .map(|answer| answer["id"].clone())
            .collect::<Vec<_>>(),
        [json!("q1"), json!(7), json!(4)]
    );
    for answer in &answers {
        let hits = answer["hits"].as_array().unwrap();
        let tokens: u64 = hits.iter().map(|hit| hit["tokens"].as_u64().unwrap()).sum();
        assert!(
            tokens <= 500 && tokens > 400 && hits.len() > 10,
            "{tokens} tokens of {} hits",
            hits.len()
        );
    }
    assert_eq!(answers[1]["hits"][0]["session"], "right");

    let text = "exactly  this\n\twith é and <T-1-R>, no line break at the end";
    let file = place.file("one.jsonl", &line("one", 0, text));
    place.out(&["import", &file]);
    assert_eq!(
        place.out(&["turn", "T-1", "--session", "one", "--level", "R"]),
        text
    );
    assert_eq!(
        place.out(&["show", "--session", "one", "--budget", "500"]),
        format!("<T-1-R>\n{}\n</T-1-R>\n", text.replace("<T", "&lt;T"))
    );
    for level in ["R", "S", "C", "T"] {
        assert!(
            !place
                .out(&["turn", "T-100", "--session", "left", "--level", level])
                .is_empty()
        );
    }
    let shown = place.out(&["show", "--session", "left", "--budget", "3000"]);
    assert!(shown.contains("<T-200-R>\n") && shown.contains("-T>\n") && shown.lines().count() > 20);
    let stats: Value = serde_json::from_str(&place.out(&["stats", "--json"])).unwrap();
    assert_eq!(
        (
            &stats["sessions"][0]["turns"],
            &stats["sessions"][2]["turns"]
        ),
        (&json!(200), &json!(1))
    );
}

#[test]
fn what_goes_wrong_is_told_in_a_line_with_a_hint() {
    let place = Place::new();
    let bad = place.file(
        "bad.jsonl",
        "{\"session\":\"a\",\"turn\":1,\"role\":\"user\",\"text\":\"x\"}\n{\"session\":\n",
    );
    let chat = place.file("chat.jsonl", &lines(6).concat());
    place.out(&["import", &chat]);
    for (args, error) in [
        (
            &["import", "nowhere.jsonl"][..],
            "error: cannot read nowhere.jsonl",
        ),
        (&["import", &bad], "bad.jsonl:2: not valid JSON"),
        (
            &["search", "--session", "nobody", "x"],
            "error: there is no session `nobody`",
        ),
        (
            &["show", "--session", "nobody"],
            "error: there is no session `nobody`",
        ),
        (
            &["turn", "T-99", "--session", "left"],
            "error: there is no turn `T-99` in session `left`",
        ),
        (&["turn", "T-1"], "error: there are 3 sessions"),
        (&["forget"], "error: nothing is named"),
        (
            &["forget", "--session", "left", "--turn", "T-99"],
            "error: there is no turn",
        ),
        (
            &["review", "--accept", "les_1"],
            "error: there is no lesson `les_1`",
        ),
    ] {
        let (status, out, err) = place.run(args);
        assert!(
            status == 2 && out.is_empty() && err.contains(error) && err.contains("hint: "),
            "{args:?}: {status} {out} {err}"
        );
    }
    let (status, _, err) = place.run(&["turn", "T-1", "--session", "left", "--level", "X"]);
    assert!(status == 2 && err.contains("`X` is not a level"), "{err}");
}

/// Everything the store has, table by table.
fn everything(place: &Place) -> Vec<String> {
    let store = place.store();
    let mut all = Vec::new();
    for (sql, columns) in [
        (
            "SELECT name, turns, words, written, distilled FROM memory_sessions ORDER BY name",
            5,
        ),
        (
            "SELECT name, hex(t.id & 4294967295), key, role, speaker, ts, hex(raw) FROM memory_turns t JOIN memory_sessions s ON s.id = session ORDER BY 1, t.id",
            7,
        ),
        (
            "SELECT name, hex(l.id & 4294967295), smoothed, compressed, tiny FROM memory_levels l JOIN memory_sessions s ON s.id = l.id >> 32 ORDER BY 1, l.id",
            5,
        ),
        (
            "SELECT term, name, sum(docs) FROM memory_postings JOIN memory_sessions s ON s.id = session GROUP BY 1, 2 ORDER BY 1, 2",
            3,
        ),
        (
            "SELECT name, first, label, p.words FROM memory_parts p JOIN memory_sessions s ON s.id = session ORDER BY 1, 2",
            4,
        ),
        (
            "SELECT id, status, content, round(weight, 6) FROM memory_lessons ORDER BY id",
            4,
        ),
        (
            "SELECT lesson, name, turn FROM memory_sources JOIN memory_sessions s ON s.id = session ORDER BY 1, 2, 3",
            3,
        ),
    ] {
        let mut read = store.prepare(sql).unwrap();
        let rows = read.query_map([], |row| {
            let cell = |at| {
                row.get::<_, rusqlite::types::Value>(at)
                    .map(|cell| format!("{cell:?}"))
            };
            (0..columns).map(cell).collect::<Result<Vec<_>, _>>()
        });
        all.extend(rows.unwrap().map(|row| row.unwrap().join("|")));
    }
    all
}

/// So that looking whether it has come so far does not take the processor from what is looked at.
const BETWEEN_LOOKS: std::time::Duration = std::time::Duration::from_millis(3);

#[test]
fn killed_while_importing_and_distilling_nothing_is_lost_or_doubled() {
    let all = lines(2600);
    let calm = Place::new();
    let file = calm.file("all.jsonl", &all.concat());
    calm.out(&["import", &file]);
    calm.out(&["distill"]);

    let place = Place::new();
    let file = place.file("all.jsonl", &all.concat());
    // While it stores: so many lines come, then the process is gone, sometimes in the midst of a batch.
    for (written, stored) in [(120, 0), (700, 500), (1100, 0), (1700, 1500), (2400, 0)] {
        let mut child = place
            .command(&["import", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(all[..written].concat().as_bytes()).unwrap();
        input.flush().unwrap();
        place.kill_when(child, "SELECT count(*) FROM memory_turns", stored);
        drop(input);
        let turns = place.number("SELECT count(*) FROM memory_turns");
        assert!(
            turns >= stored && turns as usize <= written && turns % 500 == 0,
            "{turns} turns of {written} lines"
        );
        assert_eq!(
            place.number("SELECT sum(turns) FROM memory_sessions"),
            turns
        );
    }
    // While it writes the levels.
    for levels in [1, 600, 1500] {
        let child = place.command(&["import", &file]).spawn().unwrap();
        place.kill_when(child, "SELECT count(*) FROM memory_levels", levels);
        assert_eq!(place.number("SELECT count(*) FROM memory_turns"), 2600);
    }
    place.out(&["import", &file]);
    // While it distils.
    for read in [1, 400, 1000, 1800] {
        let child = place.command(&["distill"]).spawn().unwrap();
        place.kill_when(child, "SELECT sum(distilled) FROM memory_sessions", read);
    }
    place.out(&["distill"]);
    assert_eq!(
        place
            .store()
            .query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0))
            .unwrap(),
        "ok"
    );
    let (there, expected) = (everything(&place), everything(&calm));
    assert_eq!(there.len(), expected.len());
    for (there, expected) in there.iter().zip(&expected) {
        assert_eq!(there, expected);
    }
}

#[test]
fn two_processes_never_distil_the_same_turns() {
    let place = Place::new();
    let file = place.file("all.jsonl", &lines(1200).concat());
    place.out(&["import", &file]);
    let children: Vec<_> = (0..3)
        .map(|_| place.command(&["distill", "--json"]).spawn().unwrap())
        .collect();
    let mut read = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let done: Value = serde_json::from_slice(&output.stdout).unwrap();
        read += done["turns"].as_u64().unwrap();
    }
    // Whoever found a session taken left it to the other.
    let left: Value = serde_json::from_str(&place.out(&["distill", "--json"])).unwrap();
    assert_eq!(read + left["turns"].as_u64().unwrap(), 1200);
}
