//! `selvedge memory forget` on an agent's session: removes it from every file, and fails while
//! another process uses the session.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]
#![cfg(unix)]

#[allow(dead_code)]
#[path = "../../agent/tests/support/answer_encoding.rs"]
mod answer_encoding;

#[allow(dead_code)]
#[path = "../../agent/tests/support/server.rs"]
mod server;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use answer_encoding::{block, text};
use serde_json::{Value, json};
use server::{Asked, Reply, Server};
use tempfile::TempDir;

const WORD: &str = "zyzzyvaplex";

/// A home with a provider on loopback, and a project folder.
struct ForgetFixture {
    dir: TempDir,
    server: Server,
    _runtime: tokio::runtime::Runtime,
}

impl ForgetFixture {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(Server::start(answer));
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for folder in ["home", "work"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let config = format!(
            "model = \"mock\"\nmodel_provider = \"mock\"\n\
             [model_providers.mock]\nbase_url = \"{}\"\nwire_api = \"chat\"\n",
            server.url
        );
        std::fs::write(dir.path().join("home/config.toml"), config).unwrap();
        Self {
            dir,
            server,
            _runtime: runtime,
        }
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
        command
            .args(args)
            .current_dir(self.dir.path().join("work"))
            .env("SELVEDGE_HOME", self.home());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn out(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the files of the home that contain the word.
    fn files_with_word(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.home())
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let has = |path: &PathBuf| {
            let bytes = std::fs::read(path).unwrap_or_default();
            bytes
                .windows(WORD.len())
                .any(|window| window.eq_ignore_ascii_case(WORD.as_bytes()))
        };
        files
            .filter(has)
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect()
    }
}

fn answer(request: &Asked) -> Reply {
    let last = request.body["messages"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .to_string();
    if last.contains("and stay") {
        Reply::Hang(vec![text("I am still here, and will be for long")])
    } else if last.contains(WORD) && !last.contains("Result of the script") {
        vec![text(&block(&format!(
            "console.log('{WORD}'); \
             return (await tools.listDir({{ path: '.' }})).content + '{WORD}'"
        )))]
        .into()
    } else {
        vec![text(if last.contains(WORD) {
            "A zyzzyvaplex it is."
        } else {
            "Fine."
        })]
        .into()
    }
}

#[test]
fn a_forgotten_turn_is_removed_from_every_file() {
    let fixture = ForgetFixture::new();
    let message = format!("What is a {WORD}? Always call it by its name.");
    fixture.out(&["exec", "Good morning"]);
    let sessions: Value =
        serde_json::from_str(&fixture.out(&["sessions", "list", "--json"])).unwrap();
    let id = sessions[0]["id"].as_str().unwrap();
    fixture.out(&["exec", "resume", id, &message]);
    fixture.out(&["exec", "resume", id, "Good evening"]);
    fixture.out(&["memory", "distill"]);
    let history = format!("{}\n{}\n", json!(message), json!("something else"));
    std::fs::write(fixture.home().join("chat_history.jsonl"), history).unwrap();
    let before = fixture.files_with_word();
    assert!(
        before.iter().any(|file| file.starts_with("journal.sqlite")) && before.len() >= 2,
        "{before:?}"
    );

    let done: Value = serde_json::from_str(&fixture.out(&[
        "memory",
        "forget",
        "-y",
        "--session",
        id,
        "--turn",
        "T-2",
        "--json",
    ]))
    .unwrap();
    assert_eq!(
        done,
        json!({"turns": 1, "lessons": 1, "runs": 1, "documents": 0})
    );
    assert_eq!(fixture.files_with_word(), [] as [&str; 0]);
    assert!(
        std::fs::read_to_string(fixture.home().join("chat_history.jsonl"))
            .unwrap()
            .contains("something else")
    );
    assert_eq!(fixture.out(&["runs", "list"]), "");
    let shown = fixture.out(&["sessions", "show", id]);
    assert!(
        shown.contains("Good morning")
            && shown.contains("removed")
            && shown.contains("Good evening"),
        "{shown}"
    );

    // The session can be continued, and requests no longer contain the word.
    let before = fixture.server.asked().len();
    fixture.out(&["exec", "resume", id, "And now?"]);
    let sent = &fixture.server.asked()[before].raw;
    assert!(
        !sent.contains(WORD) && sent.contains("Good morning") && sent.contains("Good evening"),
        "{sent}"
    );

    let done: Value =
        serde_json::from_str(&fixture.out(&["memory", "forget", "-y", "--session", id, "--json"]))
            .unwrap();
    assert_eq!(done["turns"], 4);
    let output = fixture.run(&["exec", "resume", id, "Hello?"]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("there is no session"),
        "{output:?}"
    );
    let output = fixture.run(&["memory", "forget", "-y", "--session", id]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2)
            && error.contains("there is no session")
            && error.contains("hint: ")
    );
}

#[test]
fn a_session_in_use_is_not_forgotten() {
    let fixture = ForgetFixture::new();
    fixture.out(&["exec", &format!("The {WORD} again")]);
    let sessions: Value =
        serde_json::from_str(&fixture.out(&["sessions", "list", "--json"])).unwrap();
    let id = sessions[0]["id"].as_str().unwrap();
    let before = fixture.server.asked().len();
    let mut working = fixture
        .command(&["exec", "resume", id, "Go on, and stay"])
        .spawn()
        .unwrap();
    while fixture.server.asked().len() == before {
        assert!(
            working.try_wait().unwrap().is_none(),
            "the process ended early"
        );
        std::thread::yield_now();
    }
    for args in [
        &["memory", "forget", "-y", "--session", id, "--turn", "T-1"][..],
        &["memory", "forget", "-y", "--session", id],
    ] {
        let output = fixture.run(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && error.contains("is in use by another process"),
            "{error}"
        );
        assert!(
            error.contains("hint: stop that process first: it would write the session again"),
            "{error}"
        );
    }
    assert!(
        fixture
            .out(&["memory", "turn", "T-1", "--session", id])
            .contains(WORD)
    );
    working.kill().unwrap();
    working.wait().unwrap();
    fixture.out(&["memory", "forget", "-y", "--session", id]);
    assert_eq!(fixture.files_with_word(), [] as [&str; 0]);
}

#[test]
fn an_interrupted_forget_can_be_repeated() {
    let fixture = ForgetFixture::new();
    fixture.out(&["exec", &format!("The {WORD} again")]);
    let sessions: Value =
        serde_json::from_str(&fixture.out(&["sessions", "list", "--json"])).unwrap();
    let id = sessions[0]["id"].as_str().unwrap();
    let turns = |store: &rusqlite::Connection| -> i64 {
        store
            .query_row("SELECT count(*) FROM memory_turns", [], |row| row.get(0))
            .unwrap()
    };
    let open = || rusqlite::Connection::open(fixture.home().join("journal.sqlite")).unwrap();
    // An open read transaction keeps the log from being truncated, so the command blocks after it
    // has removed the turn from memory and before it removes it from the journal.
    let reader = open();
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(turns(&reader), 1);
    let mut child = fixture
        .command(&["memory", "forget", "-y", "--session", id, "--turn", "T-1"])
        .spawn()
        .unwrap();
    let watcher = open();
    while turns(&watcher) > 0 {
        assert!(
            child.try_wait().unwrap().is_none(),
            "the process ended early"
        );
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    drop((reader, watcher));
    assert!(!fixture.files_with_word().is_empty());
    fixture.out(&["memory", "forget", "-y", "--session", id, "--turn", "T-1"]);
    assert_eq!(fixture.files_with_word(), [] as [&str; 0]);
}
