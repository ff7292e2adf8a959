//! Tasks on real packages with the recorded answers of a model. Each task runs again through
//! `selvedge exec`, and its check must pass.
//!
//! A task is a file in `first_try/`: lines `key: value`, then the answers of the model, each after
//! a line `=====`. An answer whose first line starts with `CALL ` consists of structured calls, one
//! per line: `CALL name {arguments}`. The keys:
//!
//! - `package`: the folder in `target/packages`, which `scripts/setup-packages` downloads
//! - `prepare`: a shell command that changes the workspace before the task (optional)
//! - `prompt`: the message of the user
//! - `check`: a shell command that succeeds in the workspace if the task was done (optional)
//! - `answer`: a word that the final answer contains (optional, repeatable)
//! - `missed`: why the first script did not do what was meant (optional)
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[allow(dead_code)]
#[path = "../../agent/tests/support/answer_encoding.rs"]
mod answer_encoding;

#[allow(dead_code)]
#[path = "../../agent/tests/support/server.rs"]
mod server;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use answer_encoding::{AnswerPart, call, text};
use serde_json::Value;
use server::{Reply, Server};

/// The share of first scripts that must do what was meant, in percent.
const MIN_FIRST_TRY_PERCENT: usize = 95;

/// A recorded task.
struct FirstTryTask {
    name: String,
    package: String,
    prepare: Option<String>,
    prompt: String,
    check: Option<String>,
    /// Words that the final answer contains.
    answer: Vec<String>,
    missed: Option<String>,
    answers: Vec<Vec<AnswerPart>>,
}

/// What a replayed task took.
struct FirstTryResult {
    rounds: usize,
    /// The status of every script, in order.
    scripts: Vec<String>,
    /// Bytes of all requests.
    request_bytes: usize,
}

impl FirstTryTask {
    fn load(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let mut parts = text.split("\n=====\n");
        let header = parts.next().unwrap();
        let values = |key: &str| -> Vec<String> {
            let prefix = format!("{key}: ");
            let lines = header.lines().filter_map(|line| line.strip_prefix(&prefix));
            lines.map(str::to_owned).collect()
        };
        let value = |key: &str| values(key).into_iter().next();
        Self {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            package: value("package").unwrap(),
            prepare: value("prepare"),
            prompt: value("prompt").unwrap(),
            check: value("check"),
            answer: values("answer"),
            missed: value("missed"),
            answers: parts.enumerate().map(parse_answer).collect(),
        }
    }

    /// Runs the task in a fresh copy of its package.
    fn replay(&self) -> FirstTryResult {
        let dir = tempfile::tempdir().unwrap();
        let (work, home) = (dir.path().join("work"), dir.path().join("home"));
        std::fs::create_dir_all(&home).unwrap();
        let package = packages().join(&self.package);
        shell(dir.path(), &format!("cp -r {} work", package.display()));
        if let Some(prepare) = &self.prepare {
            shell(&work, prepare);
        }
        shell(
            &work,
            "git init -q -b main && git add -A \
             && git -c user.name=test -c user.email=test@localhost commit -q -m 'Import the package'",
        );
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let answers = self.answers.clone();
        let server = runtime.block_on(Server::start(move |asked| {
            match answers.get(asked.number) {
                Some(parts) => with_current_runs(parts, &asked.raw).into(),
                None => Reply::Fail(400, format!("request {} was not expected", asked.number)),
            }
        }));
        let config = format!(
            "model = \"mock\"\nmodel_provider = \"mock\"\napproval_policy = \"never\"\n\
             sandbox_mode = \"workspace-write\"\nmodel_context_window = 128000\n\
             [model_providers.mock]\nbase_url = \"{}\"\nwire_api = \"chat\"\n",
            server.url
        );
        std::fs::write(home.join("config.toml"), config).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_selvedge"))
            .args(["exec", "--json", &self.prompt])
            .current_dir(&work)
            .env("SELVEDGE_HOME", &home)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let events: Vec<Value> = String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert!(output.status.success(), "{}: {output:?}", self.name);
        let asked: Vec<_> = server
            .asked()
            .into_iter()
            .filter(|asked| asked.path.ends_with("/chat/completions"))
            .collect();
        assert_eq!(asked.len(), self.answers.len(), "{}: rounds", self.name);
        self.check_result(&work, &events);
        FirstTryResult {
            rounds: asked.len(),
            scripts: script_statuses(&events),
            request_bytes: asked.iter().map(|asked| asked.raw.len()).sum(),
        }
    }

    /// Fails unless the task was done.
    fn check_result(&self, work: &Path, events: &[Value]) {
        let message = events
            .iter()
            .rev()
            .find(|event| event["type"] == "item.completed" && event["item"]["type"] == "message");
        let answer = message.map_or(String::new(), |event| event["item"].to_string());
        for word in &self.answer {
            assert!(answer.contains(word.as_str()), "{}: {answer}", self.name);
        }
        if let Some(check) = &self.check {
            shell(work, check);
        }
        assert!(
            self.check.is_some() || !self.answer.is_empty(),
            "{} has no check",
            self.name
        );
    }

    /// Returns whether the first script did what was meant: no script failed, and the author of
    /// the recording did not say otherwise.
    fn first_try(&self, result: &FirstTryResult) -> bool {
        self.missed.is_none() && result.scripts.iter().all(|status| status == "completed")
    }
}

/// Runs a shell command that must succeed.
fn shell(folder: &Path, command: &str) {
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", command])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{command}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Replaces the ids of runs in a recorded answer by the newest one in the request.
fn with_current_runs(parts: &[AnswerPart], request: &str) -> Vec<AnswerPart> {
    let id_at = |text: &str, start: usize| {
        let is_id = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = text[start..].find(|c| !is_id(c));
        end.map_or(text.len(), |end| start + end)
    };
    let newest = request.rfind("scr_").map(|start| {
        let end = id_at(request, start);
        request[start..end].to_owned()
    });
    let replaced = |text: &str| -> String {
        let Some(newest) = &newest else {
            return text.to_owned();
        };
        let (mut out, mut from) = (String::new(), 0);
        while let Some(found) = text[from..].find("scr_") {
            out.push_str(&text[from..from + found]);
            out.push_str(newest);
            from = id_at(text, from + found);
        }
        out + &text[from..]
    };
    let part = |part: &AnswerPart| match part {
        AnswerPart::Call { id, name, args } => {
            let args = serde_json::from_str(&replaced(&args.to_string())).unwrap();
            call(id, name, args)
        }
        other => other.clone(),
    };
    parts.iter().map(part).collect()
}

fn parse_answer((number, answer): (usize, &str)) -> Vec<AnswerPart> {
    if !answer.starts_with("CALL ") {
        return vec![text(answer.trim_end_matches('\n'))];
    }
    let calls = answer
        .lines()
        .filter_map(|line| line.strip_prefix("CALL "))
        .enumerate();
    calls
        .map(|(index, line)| {
            let (name, arguments) = line.split_once(' ').unwrap();
            let id = format!("call_{number}_{index}");
            call(&id, name, serde_json::from_str(arguments).unwrap())
        })
        .collect()
}

/// Returns the status of every script of a turn, in order.
fn script_statuses(events: &[Value]) -> Vec<String> {
    events
        .iter()
        .filter(|event| {
            event["type"] == "item.completed" && event["item"]["type"] == "script_tool_call_output"
        })
        .map(|event| event["item"]["status"].as_str().unwrap().to_owned())
        .collect()
}

fn packages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/packages")
}

/// Whether `scripts/setup-packages` has downloaded the packages of these tasks. In CI a missing one
/// is a failure.
fn has_packages(tasks: &[FirstTryTask]) -> bool {
    let mut names = tasks.iter().map(|task| &task.package);
    let Some(missing) = names.find(|name| !packages().join(name).is_dir()) else {
        return true;
    };
    assert!(
        std::env::var_os("CI").is_none(),
        "{missing} is missing: run scripts/setup-packages"
    );
    eprintln!("skipped: {missing} is missing: run scripts/setup-packages");
    false
}

fn tasks() -> Vec<FirstTryTask> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/first_try");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    files.sort();
    files.iter().map(|path| FirstTryTask::load(path)).collect()
}

#[test]
fn recorded_tasks_succeed_at_the_first_try() {
    let mut table = String::from(
        "| task | rounds | scripts | first try | request bytes |\n|---|---|---|---|---|\n",
    );
    let tasks = tasks();
    if !has_packages(&tasks) {
        return;
    }
    let mut first_tries = 0;
    for task in &tasks {
        let result = task.replay();
        let first_try = task.first_try(&result);
        first_tries += usize::from(first_try);
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} |",
            task.name,
            result.rounds,
            result.scripts.len(),
            match &task.missed {
                Some(reason) => format!("no: {reason}"),
                None => (if first_try { "yes" } else { "no" }).to_owned(),
            },
            result.request_bytes
        );
    }
    println!("{table}");
    assert!(tasks.len() >= 20, "only {} tasks are recorded", tasks.len());
    assert!(
        first_tries * 100 >= tasks.len() * MIN_FIRST_TRY_PERCENT,
        "{first_tries} of {} tasks succeeded at the first try",
        tasks.len()
    );
}
