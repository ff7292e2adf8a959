//! `selvedge memory`: its commands, its errors, and recovery after it is killed.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A temporary folder with a home of its own.
struct MemoryHome {
    dir: TempDir,
}

impl MemoryHome {
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

    /// Runs a query that returns a number. Returns 0 while the file or its tables do not exist.
    fn number(&self, sql: &str) -> i64 {
        if !self.path("home/journal.sqlite").exists() {
            return 0;
        }
        self.store()
            .query_row(sql, [], |row| row.get(0))
            .unwrap_or(0)
    }

    /// Kills the process once the query returns at least `minimum`. A write lock is taken first, so
    /// that the process is killed while it works or waits for the lock.
    fn kill_when(&self, mut child: Child, sql: &str, minimum: i64) {
        loop {
            let ended = child.try_wait().unwrap();
            if self.number(sql) >= minimum {
                break;
            }
            assert!(ended.is_none(), "the process ended before it was killed");
            std::thread::sleep(POLL_INTERVAL);
        }
        let locked = self
            .path("home/journal.sqlite")
            .exists()
            .then(|| self.store());
        if let Some(store) = &locked {
            store.execute_batch("BEGIN IMMEDIATE").unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

fn line(session: &str, turn: usize, text: &str) -> String {
    let speaker = ["Ann", "Bob"][turn % 2];
    let (part, day) = (turn / 20, turn / 20 % 28 + 1);
    let line = json!({
        "session": session, "part": part, "turn": format!("D{part}:{}", turn % 20),
        "role": "user", "speaker": speaker, "ts": format!("2024-01-{day:02}T10:00:00Z"),
        "text": text,
    });
    format!("{line}\n")
}

/// Returns `count` lines of two sessions, in turns.
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
fn imported_turns_are_found_shown_and_printed_exactly() {
    let home = MemoryHome::new();
    let file = home.file("chat.jsonl", &lines(400).concat());
    let imported: Value = serde_json::from_str(&home.out(&["import", &file, "--json"])).unwrap();
    assert_eq!(
        imported,
        json!({"turns": 400, "before": 0, "sessions": ["left", "right"]})
    );
    let again: Value = serde_json::from_str(&home.out(&["import", &file, "--json"])).unwrap();
    assert_eq!(
        (&again["turns"], &again["before"]),
        (&json!(0), &json!(400))
    );

    let found: Value = serde_json::from_str(&home.out(&[
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

    let queries = home.file(
        "queries",
        "{\"id\":\"q1\",\"query\":\"violin and granite\"}\n\n\
         {\"id\":7,\"query\":\"saffron\",\"session\":\"right\"}\nglacier tunnel\n",
    );
    let answers = home.out(&[
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
    let file = home.file("one.jsonl", &line("one", 0, text));
    home.out(&["import", &file]);
    assert_eq!(
        home.out(&["turn", "T-1", "--session", "one", "--level", "R"]),
        text
    );
    assert_eq!(
        home.out(&["show", "--session", "one", "--budget", "500"]),
        format!("<T-1-R>\n{}\n</T-1-R>\n", text.replace("<T", "&lt;T"))
    );
    for level in ["R", "S", "C", "T"] {
        assert!(
            !home
                .out(&["turn", "T-100", "--session", "left", "--level", level])
                .is_empty()
        );
    }
    let shown = home.out(&["show", "--session", "left", "--budget", "3000"]);
    assert!(shown.contains("<T-200-R>\n") && shown.contains("-T>\n") && shown.lines().count() > 20);
    let stats: Value = serde_json::from_str(&home.out(&["stats", "--json"])).unwrap();
    assert_eq!(
        (
            &stats["sessions"][0]["turns"],
            &stats["sessions"][2]["turns"]
        ),
        (&json!(200), &json!(1))
    );
}

#[test]
fn errors_are_one_line_with_a_hint() {
    let home = MemoryHome::new();
    let bad = home.file(
        "bad.jsonl",
        "{\"session\":\"a\",\"turn\":1,\"role\":\"user\",\"text\":\"x\"}\n{\"session\":\n",
    );
    let chat = home.file("chat.jsonl", &lines(6).concat());
    home.out(&["import", &chat]);
    for (args, error) in [
        (
            &["import", "nowhere.jsonl"][..],
            "error: cannot read nowhere.jsonl",
        ),
        (&["import", &bad], "bad.jsonl:2: not valid JSON"),
        (
            &["search", "--session", "missing", "x"],
            "error: there is no session `missing`",
        ),
        (
            &["show", "--session", "missing"],
            "error: there is no session `missing`",
        ),
        (
            &["turn", "T-99", "--session", "left"],
            "error: there is no turn `T-99` in session `left`",
        ),
        (
            &["turn", "T-1"],
            "error: the memory has 3 sessions; name one",
        ),
        (
            &["forget"],
            "error: forget needs a session, a turn of it, or a lesson",
        ),
        (
            &["forget", "--session", "left", "--turn", "T-99"],
            "error: there is no turn",
        ),
        (
            &["review", "--accept", "les_1"],
            "error: there is no lesson `les_1`",
        ),
    ] {
        let (status, out, err) = home.run(args);
        assert!(
            status == 2 && out.is_empty() && err.contains(error) && err.contains("hint: "),
            "{args:?}: {status} {out} {err}"
        );
    }
    let (status, _, err) = home.run(&["turn", "T-1", "--session", "left", "--level", "X"]);
    assert!(status == 2 && err.contains("`X` is not a level"), "{err}");
}

/// Returns all rows of the memory's tables.
fn all_rows(home: &MemoryHome) -> Vec<String> {
    let store = home.store();
    let mut all = Vec::new();
    for (sql, columns) in [
        (
            "SELECT name, turns, words, written, distilled FROM memory_sessions ORDER BY name",
            5,
        ),
        (
            "SELECT name, hex(t.id & 4294967295), key, role, speaker, ts, hex(raw) \
             FROM memory_turns t JOIN memory_sessions s ON s.id = session ORDER BY 1, t.id",
            7,
        ),
        (
            "SELECT name, hex(l.id & 4294967295), smoothed, compressed, tiny \
             FROM memory_levels l JOIN memory_sessions s ON s.id = l.id >> 32 ORDER BY 1, l.id",
            5,
        ),
        (
            "SELECT term, name, sum(docs) \
             FROM memory_postings JOIN memory_sessions s ON s.id = session \
             GROUP BY 1, 2 ORDER BY 1, 2",
            3,
        ),
        (
            "SELECT name, first, label, p.words \
             FROM memory_parts p JOIN memory_sessions s ON s.id = session ORDER BY 1, 2",
            4,
        ),
        (
            "SELECT id, status, content, round(weight, 6) FROM memory_lessons ORDER BY id",
            4,
        ),
        (
            "SELECT lesson, name, turn \
             FROM memory_sources JOIN memory_sessions s ON s.id = session ORDER BY 1, 2, 3",
            3,
        ),
    ] {
        let mut read = store.prepare(sql).unwrap();
        let rows = read.query_map([], |row| {
            let cell = |column| {
                row.get::<_, rusqlite::types::Value>(column)
                    .map(|cell| format!("{cell:?}"))
            };
            (0..columns).map(cell).collect::<Result<Vec<_>, _>>()
        });
        all.extend(rows.unwrap().map(|row| row.unwrap().join("|")));
    }
    all
}

/// Pause between two queries, which leaves the processor to the watched process.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(3);

#[test]
fn killing_import_and_distill_loses_and_duplicates_nothing() {
    let all = lines(2600);
    let uninterrupted = MemoryHome::new();
    let file = uninterrupted.file("all.jsonl", &all.concat());
    uninterrupted.out(&["import", &file]);
    uninterrupted.out(&["distill"]);

    let home = MemoryHome::new();
    let file = home.file("all.jsonl", &all.concat());
    // Kill it while it stores turns, after `written` lines of input and `stored` turns.
    for (written, stored) in [(120, 0), (700, 500), (1100, 0), (1700, 1500), (2400, 0)] {
        let mut child = home
            .command(&["import", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(all[..written].concat().as_bytes()).unwrap();
        input.flush().unwrap();
        home.kill_when(child, "SELECT count(*) FROM memory_turns", stored);
        drop(input);
        let turns = home.number("SELECT count(*) FROM memory_turns");
        assert!(
            turns >= stored && turns as usize <= written && turns % 500 == 0,
            "{turns} turns of {written} lines"
        );
        assert_eq!(home.number("SELECT sum(turns) FROM memory_sessions"), turns);
    }
    // Kill it while it writes levels.
    for levels in [1, 600, 1500] {
        let child = home.command(&["import", &file]).spawn().unwrap();
        home.kill_when(child, "SELECT count(*) FROM memory_levels", levels);
        assert_eq!(home.number("SELECT count(*) FROM memory_turns"), 2600);
    }
    home.out(&["import", &file]);
    // Kill it while it distills.
    for read in [1, 400, 1000, 1800] {
        let child = home.command(&["distill"]).spawn().unwrap();
        home.kill_when(child, "SELECT sum(distilled) FROM memory_sessions", read);
    }
    home.out(&["distill"]);
    assert_eq!(
        home.store()
            .query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0))
            .unwrap(),
        "ok"
    );
    let (actual, expected) = (all_rows(&home), all_rows(&uninterrupted));
    assert_eq!(actual.len(), expected.len());
    for (actual, expected) in actual.iter().zip(&expected) {
        assert_eq!(actual, expected);
    }
}

#[test]
fn concurrent_processes_never_distill_the_same_turns() {
    let home = MemoryHome::new();
    let file = home.file("all.jsonl", &lines(1200).concat());
    home.out(&["import", &file]);
    let children: Vec<_> = (0..3)
        .map(|_| home.command(&["distill", "--json"]).spawn().unwrap())
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
    // A process skips a session that another one distills, so some turns may remain.
    let rest: Value = serde_json::from_str(&home.out(&["distill", "--json"])).unwrap();
    assert_eq!(read + rest["turns"].as_u64().unwrap(), 1200);
}

/// Serves `/v1/embeddings` for a number of requests: texts about vehicles have one vector, all
/// others another. Returns the address.
fn embedding_server(requests: usize) -> String {
    embedding_server_with_status(requests, 200)
}

/// A server of embeddings whose responses have this status.
fn embedding_server_with_status(requests: usize, status: u16) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(requests) {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut length, mut head) = (0, String::new());
            while stream.read_line(&mut head).unwrap() > 2 {
                let line = head.to_lowercase();
                if let Some(bytes) = line.strip_prefix("content-length: ") {
                    length = bytes.trim().parse().unwrap();
                }
                head.clear();
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let asked: Value = serde_json::from_slice(&body).unwrap();
            let vectors: Vec<Value> = (0..)
                .zip(asked["input"].as_array().unwrap())
                .map(|(index, text)| {
                    let text = text.as_str().unwrap();
                    let is_vehicle = text.contains("car ") || text.contains("automobile");
                    let vector = if is_vehicle { [0.9, 0.1] } else { [0.0, 1.0] };
                    json!({"index": index, "embedding": vector})
                })
                .collect();
            let answer = json!({"data": vectors}).to_string();
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n"
            );
            let response = format!("{head}content-length: {}\r\n\r\n{answer}", answer.len());
            stream.get_mut().write_all(response.as_bytes()).unwrap();
        }
    });
    address
}

#[test]
fn an_embedding_model_of_a_provider_finds_other_words_for_the_same() {
    let home = MemoryHome::new();
    let config = |encoder: &str, address: &str| {
        std::fs::create_dir_all(home.path("home")).unwrap();
        let config = format!(
            "[memory]\nencoder = \"{encoder}\"\n[model_providers.mine]\n\
             base_url = \"http://{address}/v1\"\nwire_api = \"chat\"\n"
        );
        std::fs::write(home.path("home/config.toml"), config).unwrap();
    };
    let texts = [
        "We sold the car last week.",
        "The soup needs more salt.",
        "Rain is expected on Sunday.",
    ];
    let lines = texts.iter().enumerate();
    let lines: Vec<String> = lines.map(|(at, text)| line("s", at, text)).collect();
    let chat = home.file("chat.jsonl", &lines.join("\n"));
    config("mine/embed-1", &embedding_server(2));
    home.out(&["import", &chat]);
    let found = home.out(&["search", "automobile", "--json"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["hits"][0]["id"], "T-1", "{found}");
    // The server is gone: the search uses keywords alone.
    let found = home.out(&["search", "soup", "--json"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["hits"][0]["id"], "T-2", "{found}");
    // A name without a provider is refused.
    config("embed-1", "127.0.0.1:9");
    let (status, _, err) = home.run(&["search", "soup"]);
    assert_ne!(status, 0);
    assert!(
        err.contains("memory.encoder `embed-1` names no provider"),
        "{err}"
    );
    assert!(err.contains("hint: "), "{err}");
}

/// Writes a configuration with an encoder, and imports three turns without it.
fn home_with_encoder(address: &str) -> MemoryHome {
    let home = MemoryHome::new();
    let texts = [
        "We sold the car last week.",
        "The soup needs more salt.",
        "Rain is expected on Sunday.",
    ];
    let lines = texts.iter().enumerate();
    let lines: Vec<String> = lines.map(|(at, text)| line("s", at, text)).collect();
    let chat = home.file("chat.jsonl", &lines.join("\n"));
    home.out(&["import", &chat]);
    let config = format!(
        "[memory]\nencoder = \"mine/embed-1\"\nscope = \"all\"\n\
         recall_timeout_ms = 30000\n[model_providers.mine]\nbase_url = \"http://{address}/v1\"\nwire_api = \"chat\"\n\
         request_max_retries = 0\n"
    );
    std::fs::create_dir_all(home.path("home")).unwrap();
    std::fs::write(home.path("home/config.toml"), config).unwrap();
    home
}

#[test]
fn reindex_computes_the_vectors_of_all_turns() {
    let home = home_with_encoder(&embedding_server(3));
    let found = |args: &[&str]| -> Value { serde_json::from_str(&home.out(args)).unwrap() };
    let search = ["search", "automobile", "--json"];
    assert_eq!(
        found(&search)["hits"],
        json!([]),
        "there are no vectors yet"
    );
    home.out(&["reindex"]);
    assert_eq!(found(&search)["hits"][0]["id"], "T-1");
}

#[test]
fn explain_says_that_the_encoder_failed() {
    let home = home_with_encoder(&embedding_server_with_status(8, 500));
    let explained = home.out(&["explain", "--json", "How much salt needs the soup?"]);
    let explained: Value = serde_json::from_str(&explained).unwrap();
    let stages = explained["stages"].as_array().unwrap();
    let outcome = |name: &str| {
        let stage = stages.iter().find(|stage| stage["stage"] == name);
        stage.unwrap()["outcome"].as_str().unwrap().to_owned()
    };
    let vectors = outcome("vectors");
    assert!(
        vectors.starts_with("failed: ") && vectors.contains("mine/embed-1"),
        "{explained}"
    );
    assert_eq!(outcome("keywords"), "done", "{explained}");
    let text = explained["text"].as_str().unwrap();
    assert!(text.contains("The soup needs more salt."), "{explained}");
}
