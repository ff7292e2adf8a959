//! Memory of a project through the binary, with a model server on loopback: sessions of one folder
//! share it, those of others do not see it, and a small model that misbehaves never delays a turn.
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
use serde_json::Value;
use server::{Asked, Reply, Server};
use tempfile::TempDir;

/// A home with a provider on loopback, and folders beside it.
struct ProjectFixture {
    dir: TempDir,
    server: Server,
    _runtime: tokio::runtime::Runtime,
}

impl ProjectFixture {
    /// `memory` is the table `[memory]` of the configuration.
    fn new(memory: &str, script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(Server::start(script));
        let dir = tempfile::tempdir().unwrap();
        let fixture = Self {
            dir,
            server,
            _runtime: runtime,
        };
        fixture.folder("home");
        fixture.configure(memory);
        fixture
    }

    fn configure(&self, memory: &str) {
        let url = &self.server.url;
        let config = format!(
            "model = \"mock\"\nmodel_provider = \"mock\"\n\
             [model_providers.mock]\nbase_url = \"{url}\"\nwire_api = \"chat\"\n\
             [model_providers.other]\nbase_url = \"{url}/other\"\nwire_api = \"chat\"\n\
             [memory]\n{memory}\n"
        );
        std::fs::write(self.dir.path().join("home/config.toml"), config).unwrap();
    }

    fn folder(&self, name: &str) -> PathBuf {
        let folder = self.dir.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn run(&self, folder: &str, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_selvedge"))
            .args(args)
            .current_dir(self.folder(folder))
            .env("SELVEDGE_HOME", self.dir.path().join("home"))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs a command that succeeds, and returns its standard output.
    fn out(&self, folder: &str, args: &[&str]) -> String {
        let output = self.run(folder, args);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (out, err) = (text(output.stdout), text(output.stderr));
        assert!(output.status.success(), "{args:?}: {err}");
        out
    }

    /// Takes a turn, and returns its events.
    fn turn(&self, folder: &str, args: &[&str]) -> Vec<Value> {
        let out = self.out(folder, &[&["exec", "--json"], args].concat());
        out.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn git(&self, folder: &str, args: &[&str]) {
        let done = Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@example.com"])
            .args(args)
            .current_dir(self.folder(folder))
            .output()
            .unwrap();
        assert!(done.status.success(), "{args:?}: {done:?}");
    }

    /// The last request to the main model.
    fn last_request(&self) -> Asked {
        let asked = self.server.asked();
        let mut main = asked.into_iter().filter(|asked| !is_small(asked));
        main.next_back().unwrap()
    }
}

fn session_of(events: &[Value]) -> String {
    let started = events
        .iter()
        .find(|event| event["type"] == "thread.started");
    started.unwrap()["thread_id"].as_str().unwrap().to_owned()
}

fn is_small(asked: &Asked) -> bool {
    asked.body["model"] == "small"
}

/// Returns the system prompt of a request.
fn system_of(asked: &Asked) -> String {
    asked.body["messages"][0]["content"]
        .as_str()
        .map(str::to_owned)
        .unwrap_or_else(|| asked.body["messages"][0].to_string())
}

/// Limits that a busy machine can meet.
const PATIENT: &str = "recall_timeout_ms = 30000";
/// The beginning of a brief in a system prompt.
const BRIEF: &str = "<project_brief>\nFrom earlier sessions of this project";
const DECISION: &str = "We decided to keep the queue in heron, a database in Oslo.";
const QUESTION: &str = "Where is the queue kept, in which database?";

#[test]
fn what_a_session_decided_is_known_in_the_next_one_of_the_folder_only() {
    let fixture = ProjectFixture::new(PATIENT, |_| vec![text("Noted.")].into());
    let first = session_of(&fixture.turn("a", &[DECISION]));
    assert!(!system_of(&fixture.last_request()).contains(BRIEF));

    let events = fixture.turn("a", &[QUESTION]);
    let second = session_of(&events);
    assert_ne!(first, second);
    let asked = fixture.last_request();
    let system = system_of(&asked);
    assert!(
        system.contains(BRIEF) && system.contains(DECISION),
        "{system}"
    );
    let newest = asked.body["messages"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .to_string();
    assert!(
        newest.contains("<recalled>")
            && newest.contains(&format!("{first}/T-1-"))
            && newest.contains(DECISION),
        "{newest}"
    );
    let recalled = events
        .iter()
        .find(|event| event["type"] == "memory.recalled");
    let recalled = recalled.expect("the turn says what was recalled");
    assert_eq!(recalled["turns"], 1, "{recalled}");

    // The brief is the same in later turns, whatever is said meanwhile in other sessions.
    fixture.turn("a", &["From now on the queue is called kestrel."]);
    fixture.turn("a", &["--continue", &second, "And now?"]);
    assert_eq!(system_of(&fixture.last_request()), system);
    let shown = fixture.out("a", &["memory", "brief", "--session", &second]);
    assert!(system.contains(shown.trim_end()), "{shown}");
    assert!(fixture.out("a", &["memory", "brief"]).contains("kestrel"));

    // Another folder sees none of it.
    let events = fixture.turn("b", &[QUESTION]);
    let asked = fixture.last_request();
    assert!(
        !asked.raw.contains("heron") && !system_of(&asked).contains(BRIEF),
        "{}",
        asked.raw
    );
    assert!(
        !events
            .iter()
            .any(|event| event["type"] == "memory.recalled")
    );
    let brief = fixture.out("b", &["memory", "brief"]);
    assert!(!brief.contains("heron"), "{brief}");
}

#[test]
fn worktrees_share_a_project_and_a_forged_one_does_not() {
    let fixture = ProjectFixture::new(PATIENT, |_| vec![text("Noted.")].into());
    fixture.git("main", &["init", "-q"]);
    fixture.git("main", &["commit", "-q", "--allow-empty", "-m", "x"]);
    fixture.git("main", &["worktree", "add", "-q", "../tree"]);
    fixture.turn("main", &[DECISION]);
    fixture.turn("tree", &[QUESTION]);
    assert!(fixture.last_request().raw.contains("heron"));
    // A folder whose `.git` file names the repository of another project.
    let forged = fixture.folder("forged");
    let main = fixture.folder("main").canonicalize().unwrap();
    let pointer = format!("gitdir: {}\n", main.join(".git/worktrees/tree").display());
    std::fs::write(forged.join(".git"), pointer).unwrap();
    fixture.turn("forged", &[QUESTION]);
    assert!(!fixture.last_request().raw.contains("heron"));
    // A folder whose `.git` is a link to it.
    let linked = fixture.folder("linked");
    std::os::unix::fs::symlink(main.join(".git"), linked.join(".git")).unwrap();
    fixture.turn("linked", &[QUESTION]);
    assert!(!fixture.last_request().raw.contains("heron"));
    // A folder whose `.git` is a link to that of a worktree.
    let linked = fixture.folder("linked-tree");
    let tree = fixture.folder("tree").join(".git");
    std::os::unix::fs::symlink(tree, linked.join(".git")).unwrap();
    fixture.turn("linked-tree", &[QUESTION]);
    assert!(!fixture.last_request().raw.contains("heron"));
}

#[test]
fn scripts_search_memory_and_read_turns_of_other_sessions() {
    let script = "const found = await tools.memory.search({ query: 'queue database', limit: 3 });\n\
                  const turn = await tools.history.getTurn(found.turns[0].turn, 'R');\n\
                  return [found.turns[0].turn, turn.text];";
    let fixture = ProjectFixture::new(PATIENT, move |asked| {
        let raw = &asked.raw;
        match raw.contains("look it up") && !raw.contains("Result of the script") {
            true => vec![text(&block(script))].into(),
            false => vec![text("Noted.")].into(),
        }
    });
    let first = session_of(&fixture.turn("a", &[DECISION]));
    fixture.turn("a", &["look it up"]);
    let asked = fixture.last_request();
    let newest = asked.body["messages"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .to_string();
    assert!(
        newest.contains(&format!("{first}/T-1")) && newest.contains("heron"),
        "{newest}"
    );
    // The call is in the journal, as every call.
    let runs = fixture.out("a", &["runs", "list", "--json"]);
    let runs: Value = serde_json::from_str(&runs).unwrap();
    let id = runs[0]["id"].as_str().unwrap();
    let run = fixture.out("a", &["runs", "show", id, "--json"]);
    assert!(run.contains("memory.search"), "{run}");

    // Another project has no such turn, and a wider scope needs approval, which `exec` denies.
    let other = "try { await tools.memory.search({ query: 'queue', scope: 'all' }) } \
                 catch (error) { return String(error) }";
    let denied = ProjectFixture::new(PATIENT, move |asked| {
        match asked.raw.contains("Result of the script") {
            false => vec![text(&block(other))].into(),
            true => vec![text("Noted.")].into(),
        }
    });
    denied.turn("b", &["look it up"]);
    let raw = denied.last_request().raw;
    assert!(raw.contains("memory of other projects"), "{raw}");
}

#[test]
fn a_project_is_moved_with_its_folder_and_merged() {
    let fixture = ProjectFixture::new(PATIENT, |_| vec![text("Noted.")].into());
    fixture.turn("a", &[DECISION]);
    std::fs::rename(fixture.folder("a"), fixture.dir.path().join("moved")).unwrap();
    assert_eq!(fixture.out("moved", &["memory", "brief"]), "");
    fixture.out(".", &["memory", "project", "move", "a", "moved"]);
    assert!(fixture.out("moved", &["memory", "brief"]).contains("heron"));
    let missing = fixture.run(".", &["memory", "project", "move", "unknown", "moved"]);
    let error = String::from_utf8(missing.stderr).unwrap();
    assert!(
        !missing.status.success()
            && error.starts_with("error: there is no project in the folder ")
            && error.contains("hint: run `selvedge memory project list`"),
        "{error}"
    );
    fixture.turn("c", &["Hello there."]);
    fixture.out(".", &["memory", "project", "merge", "moved", "c"]);
    assert!(fixture.out("c", &["memory", "brief"]).contains("heron"));
    let projects = fixture.out(".", &["memory", "project", "list", "--json"]);
    let projects: Value = serde_json::from_str(&projects).unwrap();
    assert_eq!(projects.as_array().unwrap().len(), 1, "{projects}");
    assert_eq!(projects[0]["roots"].as_array().unwrap().len(), 2);
}

/// Answers of a small model, by the question it is asked.
fn small_answer(asked: &Asked, behaviour: &str) -> Reply {
    let judges = asked.raw.contains("mention");
    match (behaviour, judges) {
        ("good", false) => vec![text("[1]")].into(),
        ("good", true) => vec![text("{\"quote\": [1]}")].into(),
        ("wrong", _) => vec![text("There are several answers.")].into(),
        ("silent", _) => Reply::Hang(Vec::new()),
        ("slow", _) => Reply::Hang(vec![text("[")]),
        _ => Reply::Fail(500, "{\"error\":{\"message\":\"overloaded\"}}".to_owned()),
    }
}

#[test]
fn explain_shows_every_stage_also_if_the_small_model_misbehaves() {
    for behaviour in ["good", "wrong", "silent", "slow", "failing"] {
        let fixture = ProjectFixture::new(PATIENT, move |asked| match is_small(asked) {
            true => small_answer(asked, behaviour),
            false => vec![text("Noted.")].into(),
        });
        fixture.turn("a", &[DECISION]);
        // Long enough for a busy machine; what never answers takes all of it.
        let limit = match behaviour {
            "silent" | "slow" => 6_000,
            _ => 30_000,
        };
        let memory = format!("model = \"other/small\"\nrecall_timeout_ms = {limit}");
        fixture.configure(&memory);
        let explained = fixture.out("a", &["memory", "explain", "--json", QUESTION]);
        let explained: Value = serde_json::from_str(&explained).unwrap();
        let used = &explained["requests"];
        assert!(used.as_u64().unwrap() > 0, "{behaviour}: {explained}");
        let stages = explained["stages"].as_array().unwrap();
        let names: Vec<&str> = stages
            .iter()
            .map(|stage| stage["stage"].as_str().unwrap())
            .collect();
        assert_eq!(
            names,
            ["keywords", "vectors", "model filter", "judgement", "text"],
            "{behaviour}"
        );
        let small = fixture.server.asked().into_iter().filter(is_small).count();
        assert!(small > 0, "{behaviour}: the small model was not asked");
        assert_eq!(
            explained["candidates"][0]["decision"], "quoted",
            "{explained}"
        );
        assert!(
            explained["text"].as_str().unwrap().contains("heron"),
            "{behaviour}: {explained}"
        );
        let elapsed = explained["elapsed_ms"].as_f64().unwrap();
        assert!(
            elapsed < f64::from(limit) + 600.0,
            "{behaviour}: {elapsed} ms"
        );
        let filter = stages[2]["outcome"].as_str().unwrap();
        match behaviour {
            "good" => assert_eq!(filter, "done"),
            "wrong" => assert_eq!(filter, "failed: invalid answer"),
            "failing" => assert!(filter.starts_with("failed: "), "{filter}"),
            _ => assert_eq!(filter, "failed: deadline exceeded"),
        }
        // A turn is never worse off, and says what failed.
        let events = fixture.turn("a", &[QUESTION]);
        let recalled = events
            .iter()
            .find(|event| event["type"] == "memory.recalled");
        let recalled = recalled.unwrap();
        assert_eq!(recalled["turns"], 1, "{behaviour}: {recalled}");
        let failed = recalled["details"].to_string().contains("model filter: ");
        assert_eq!(failed, behaviour != "good", "{behaviour}: {recalled}");
        assert_eq!(events.last().unwrap()["type"], "turn.completed");
    }
}

#[test]
fn the_small_model_is_one_of_the_provider_of_the_turn_or_of_the_named_one() {
    let fixture = ProjectFixture::new(PATIENT, |asked| match is_small(asked) {
        true => small_answer(asked, "good"),
        false => vec![text("Noted.")].into(),
    });
    fixture.turn("a", &[DECISION]);
    let small_path = |memory: &str, args: &[&str]| {
        fixture.configure(&format!("{PATIENT}\n{memory}"));
        let before = fixture.server.asked().len();
        fixture.turn("a", &[args, &[QUESTION]].concat());
        let asked = fixture.server.asked();
        let mut small = asked[before..].iter().filter(|asked| is_small(asked));
        small.next().map(|asked| asked.path.clone())
    };
    let path = small_path(
        "model = \"small\"",
        &["--provider", "other", "--model", "mock"],
    );
    assert!(path.unwrap().contains("/other/"));
    let path = small_path(
        "model = \"mock/small\"",
        &["--provider", "other", "--model", "mock"],
    );
    assert!(!path.unwrap().contains("/other/"));
    // A model that cannot be used is a warning, not the end of the turn.
    fixture.configure("model = \"openai/small\"");
    let output = Command::new(env!("CARGO_BIN_EXE_selvedge"))
        .args(["exec", QUESTION])
        .current_dir(fixture.folder("a"))
        .env("SELVEDGE_HOME", fixture.dir.path().join("home"))
        .env_remove("OPENAI_API_KEY")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && error.contains("warning: memory works without its model: "),
        "{error}"
    );
}
