//! The fixture of the tests, and the tests by subject.

mod broken_answers;
mod configuration;
mod kills;
mod layers;
mod levels;
mod runs;
mod schedule;
mod turn_delay;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::answer_encoding::text;
use super::server::{Asked, Reply, Server};

/// The context of the small model: 500 turns need several requests.
const SMALL_CONTEXT_TOKENS: u32 = 6_000;
/// The folder of the project.
pub const WORK: &str = "work";

/// A home with a provider on loopback, and folders beside it.
pub struct OfflineFixture {
    pub dir: TempDir,
    pub server: Server,
    _runtime: tokio::runtime::Runtime,
}

impl OfflineFixture {
    /// `memory` is the table `[memory]` of the configuration.
    pub fn new(memory: &str, model: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(Server::start(model));
        // Not below a repository, which would be the project.
        let dir = tempfile::tempdir().unwrap();
        let fixture = Self {
            dir,
            server,
            _runtime: runtime,
        };
        fixture.folder("home");
        let config = format!(
            "model = \"mock\"\nmodel_provider = \"mock\"\n\
             [model_providers.mock]\nbase_url = \"{}\"\nwire_api = \"chat\"\n\
             [models.small]\ncontext_window = {SMALL_CONTEXT_TOKENS}\n\
             prices = {{ input = 1.0, output = 2.0 }}\n\
             [memory]\n{memory}\n",
            fixture.server.url
        );
        std::fs::write(fixture.folder("home").join("config.toml"), config).unwrap();
        fixture
    }

    /// A fixture without a model of its memory.
    pub fn by_rules() -> Self {
        Self::new("", |_| vec![text("Hello.")].into())
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        let folder = self.dir.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    pub fn command(&self, folder: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
        command
            .args(args)
            .current_dir(self.folder(folder))
            .env("SELVEDGE_HOME", self.folder("home"))
            .env_remove("ANTHROPIC_API_KEY")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Whether a process of this home runs.
    pub fn has_process(&self) -> bool {
        let home = format!("SELVEDGE_HOME={}", self.folder("home").display());
        let processes = std::fs::read_dir("/proc").unwrap();
        let mut processes = processes.filter_map(|entry| Some(entry.ok()?.path()));
        processes.any(|process| {
            // A process that has ended meanwhile, or that is not ours, has no readable variables.
            let environment = std::fs::read(process.join("environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|variable| variable == home.as_bytes())
        })
    }

    /// Runs a command, and returns its exit code, standard output and standard error.
    pub fn run(&self, folder: &str, args: &[&str]) -> (i32, String, String) {
        let output = self.command(folder, args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (out, err) = (text(output.stdout), text(output.stderr));
        (output.status.code().unwrap(), out, err)
    }

    /// Runs a command that succeeds, and returns its standard output.
    pub fn out(&self, folder: &str, args: &[&str]) -> String {
        let (status, out, err) = self.run(folder, args);
        assert_eq!(status, 0, "{args:?}: {err}");
        out
    }

    /// Runs a command that prints JSON.
    pub fn json(&self, folder: &str, args: &[&str]) -> Value {
        serde_json::from_str(&self.out(folder, args)).unwrap()
    }

    pub fn store(&self) -> Connection {
        let store = Connection::open(self.folder("home").join("journal.sqlite")).unwrap();
        store
            .busy_timeout(std::time::Duration::from_secs(20))
            .unwrap();
        store
    }

    /// Runs a query that returns a number; 0 if there is none.
    pub fn number(&self, sql: &str) -> i64 {
        let number = self.store().query_row(sql, [], |row| row.get(0));
        number.unwrap_or(0)
    }

    /// Imports `count` turns of two sessions, which belong to the project of the folder `work`.
    pub fn import_project(&self, count: usize) {
        let lines: String = (0..count).map(line).collect();
        let file = self.folder(WORK).join("chat.jsonl");
        std::fs::write(&file, lines).unwrap();
        self.out(WORK, &["memory", "import", &file.display().to_string()]);
        let root = self.folder(WORK).canonicalize().unwrap();
        let root = root.display().to_string();
        let store = self.store();
        let add = "INSERT INTO memory_projects (root, project) VALUES (?1, 'prj_work')";
        store.execute(add, [&root]).unwrap();
        let assign = "UPDATE memory_sessions SET project = 'prj_work', directory = ?1";
        store.execute(assign, [&root]).unwrap();
    }
}

/// The sessions of the project.
pub const SESSIONS: [&str; 2] = ["left", "right"];

/// Returns a turn of the project, as a line for `import`.
fn line(n: usize) -> String {
    let subjects = [
        "the oauth token of the login expires too early",
        "the migration of the billing database is slow",
        "the sidebar of the settings page flickers",
        "the release pipeline skips the changelog",
        "lunch was late",
    ];
    let subject = subjects[n * 7 / 3 % subjects.len()];
    let text = match n {
        40 => "Always indent with tabs.".to_owned(),
        41 => "We decided to keep sessions in Redis.".to_owned(),
        300 => "From now on indent with spaces instead of tabs.".to_owned(),
        _ => format!(
            "Number {n}: {subject}. It took {} minutes, and {} files changed since ticket {}.",
            n % 50 + 3,
            n % 7,
            n * 31 % 997
        ),
    };
    let (week, day) = (n / 70, n % 70 / 10 + 1);
    let line = json!({
        "session": SESSIONS[n % 2], "turn": n, "role": "user", "text": text,
        "ts": format!("2026-{:02}-{:02}T10:00:00Z", week % 12 + 1, day),
    });
    format!("{line}\n")
}

/// Returns whether a request is one to the small model.
pub fn is_small(asked: &Asked) -> bool {
    asked.body["model"] == "small"
}

/// Returns the text of a request to the small model.
pub fn prompt_of(asked: &Asked) -> String {
    let messages = asked.body["messages"].as_array().unwrap();
    let content = &messages.last().unwrap()["content"];
    match content.as_str() {
        Some(text) => text.to_owned(),
        None => content[0]["text"].as_str().unwrap().to_owned(),
    }
}

/// Returns the new turns of a request about turns, by session and number. Empty for any other.
pub fn new_turns(asked: &Asked) -> Vec<(String, u32)> {
    let prompt = prompt_of(asked);
    let Some((_, new)) = prompt.split_once("# New turns\n") else {
        return Vec::new();
    };
    let (mut session, mut turns) = (String::new(), Vec::new());
    for line in new.lines() {
        if let Some(name) = line.strip_prefix("## session ") {
            session = name.to_owned();
        } else if let Some((number, _)) = line
            .strip_prefix("T-")
            .and_then(|rest| rest.split_once(':'))
        {
            turns.push((session.clone(), number.parse().unwrap()));
        }
    }
    turns
}
