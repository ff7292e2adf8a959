//! `selvedge memory distill` with a provider's batches, killed between submitting and fetching one.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(unix)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A provider with the batch APIs of OpenAI and Anthropic.
#[derive(Default)]
struct BatchProvider {
    /// Requests, such as `POST /v1/batches`.
    asked: Vec<String>,
    ended: bool,
    /// Whether the response to an accepted batch is lost.
    loses_acceptance: bool,
}

fn start() -> (String, Arc<Mutex<BatchProvider>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let provider = Arc::new(Mutex::new(BatchProvider::default()));
    let shared = provider.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let provider = shared.clone();
            std::thread::spawn(move || serve(stream, &provider));
        }
    });
    (url, provider)
}

fn serve(mut stream: TcpStream, provider: &Mutex<BatchProvider>) -> Option<()> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 16 * 1024]);
    let (line, length) = loop {
        let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        break (
            String::from_utf8_lossy(&bytes[..end])
                .lines()
                .next()?
                .to_owned(),
            end + 4 + length.unwrap_or(0_usize),
        );
    };
    while bytes.len() < length {
        let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
    }
    let asked = line.trim_end_matches(" HTTP/1.1").to_owned();
    let (ended, is_lost) = {
        let mut provider = provider.lock().unwrap();
        provider.asked.push(asked.clone());
        let is_lost = provider.loses_acceptance && is_batch(&asked);
        (provider.ended, is_lost)
    };
    if is_lost {
        // Until the client is gone.
        while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
        return None;
    }
    let body = answer(&asked, ended);
    let status = if body.is_empty() { 404 } else { 200 };
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).ok()
}

/// Returns whether a request submits a batch, which costs money.
fn is_batch(asked: &str) -> bool {
    asked.starts_with("POST") && asked.ends_with("batches")
}

fn answer(asked: &str, ended: bool) -> String {
    let lesson =
        json!({"lessons": [{"title": "Gates", "content": "The gate is locked at night.", "turns": [1]}]}).to_string();
    let message = json!({"type": "message", "role": "assistant", "content": [{"type": "text", "text": lesson}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1}});
    let response = json!({"id": "r", "status": "completed", "output": [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": lesson}]}]});
    match asked {
        "POST /v1/files" => json!({"id": "file-1"}),
        "POST /v1/batches" => json!({"id": "batch_1", "status": "validating"}),
        "GET /v1/batches/batch_1" if ended => {
            json!({"status": "completed", "output_file_id": "file-2"})
        }
        "GET /v1/batches/batch_1" => json!({"status": "in_progress"}),
        "GET /v1/files/file-2/content" => {
            json!({"custom_id": "prompt-0", "response": {"status_code": 200, "body": response}})
        }
        "POST /v1/messages/batches" => {
            json!({"id": "msgbatch_1", "processing_status": "in_progress"})
        }
        "GET /v1/messages/batches/msgbatch_1" if ended => json!({"processing_status": "ended"}),
        "GET /v1/messages/batches/msgbatch_1" => json!({"processing_status": "in_progress"}),
        "GET /v1/messages/batches/msgbatch_1/results" => {
            json!({"custom_id": "prompt-0", "result": {"type": "succeeded", "message": message}})
        }
        _ => return String::new(),
    }
    .to_string()
}

struct BatchWorkspace {
    dir: TempDir,
}

impl BatchWorkspace {
    fn new(url: &str, name: &str, keys: &str) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let wire = if name == "anthropic" {
            "messages"
        } else {
            "responses"
        };
        let config = format!(
            "model_provider = \"{name}\"\n[memory]\nmodel = \"small\"\n{keys}\n[model_providers.{name}]\nbase_url = \"{url}\"\nwire_api = \"{wire}\"\n"
        );
        std::fs::create_dir_all(dir.path().join("home")).unwrap();
        std::fs::write(dir.path().join("home/config.toml"), config).unwrap();
        let line = json!({"session": "s", "turn": 1, "role": "user", "text": "We always lock the gate at night."});
        std::fs::write(dir.path().join("chat.jsonl"), format!("{line}\n")).unwrap();
        let workspace = Self { dir };
        assert!(workspace.run(&["import", "chat.jsonl"]).status.success());
        workspace
    }

    fn command(&self, args: &[&str]) -> Command {
        let home: PathBuf = self.dir.path().join("home");
        let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
        command
            .arg("memory")
            .args(args)
            .env("SELVEDGE_HOME", home)
            .current_dir(self.dir.path());
        command
            .env("OPENAI_API_KEY", "sk-test")
            .env("ANTHROPIC_API_KEY", "sk-test");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.run(args);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

#[test]
fn the_next_process_fetches_the_batch_of_a_killed_one() {
    for name in ["openai", "anthropic"] {
        let (url, provider) = start();
        let workspace = BatchWorkspace::new(&url, name, "");
        let mut waiting = workspace.command(&["distill", "--wait"]).spawn().unwrap();
        // Wait until it has submitted the batch and polled its state.
        while !provider
            .lock()
            .unwrap()
            .asked
            .last()
            .is_some_and(|asked| asked.starts_with("GET"))
        {
            assert!(
                waiting.try_wait().unwrap().is_none(),
                "the process ended: {:?}",
                provider.lock().unwrap().asked
            );
            std::thread::sleep(std::time::Duration::from_millis(3));
        }
        waiting.kill().unwrap();
        waiting.wait().unwrap();
        let output = workspace.run(&["distill"]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success()
                && stderr.contains("note: submitted 1 turn in a provider's batch"),
            "{stderr}"
        );
        provider.lock().unwrap().ended = true;
        let done = workspace.json(&["distill", "--wait", "--json"]);
        assert_eq!(
            done,
            json!({"turns": 1, "learned": 1, "dropped": 0, "submitted_turns": 0}),
            "{name}"
        );
        let lessons = workspace.json(&["lessons", "--json"]);
        assert_eq!(
            (&lessons[0]["title"], &lessons[0]["sourceTurns"]),
            (&json!("Gates"), &json!(["s/T-1"]))
        );
        let asked = provider.lock().unwrap().asked.clone();
        let paid = asked.iter().filter(|asked| is_batch(asked)).count();
        assert_eq!(paid, 1, "{name}: {asked:?}");
    }
}

#[test]
fn a_batch_that_may_have_been_accepted_is_not_submitted_again() {
    for name in ["openai", "anthropic"] {
        let (url, provider) = start();
        provider.lock().unwrap().loses_acceptance = true;
        let workspace = BatchWorkspace::new(&url, name, "");
        let mut submitting = workspace.command(&["distill"]).spawn().unwrap();
        let submitted = || {
            let provider = provider.lock().unwrap();
            provider
                .asked
                .iter()
                .filter(|asked| is_batch(asked))
                .count()
        };
        while submitted() == 0 {
            assert!(
                submitting.try_wait().unwrap().is_none(),
                "the process ended"
            );
            std::thread::sleep(std::time::Duration::from_millis(3));
        }
        submitting.kill().unwrap();
        submitting.wait().unwrap();
        provider.lock().unwrap().loses_acceptance = false;
        let done = workspace.json(&["distill", "--json"]);
        assert_eq!((&done["turns"], submitted()), (&json!(1), 1), "{name}");
        let status = workspace.json(&["distill", "--status", "--json"]);
        assert_eq!(status[0]["unanswered_requests"], 1, "{status}");
        assert_eq!(status[0]["new_turns"], 0, "{status}");
    }
}

#[test]
fn without_batches_the_model_is_requested_directly() {
    let (url, provider) = start();
    // The server supports only batches, so the turns wait for a model that answers.
    let workspace = BatchWorkspace::new(&url, "anthropic", "batch = \"never\"");
    let output = workspace.run(&["distill"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2)
            && stderr.contains("error: memory.model is not available: ")
            && stderr.contains("hint: run it again later"),
        "{stderr}"
    );
    let status = workspace.json(&["distill", "--status", "--json"]);
    assert_eq!(status[0]["new_turns"], 1, "{status}");
    assert_eq!(workspace.json(&["lessons", "--json"]), json!([]));
    assert!(
        provider
            .lock()
            .unwrap()
            .asked
            .iter()
            .all(|asked| asked == "POST /v1/messages")
    );
    let workspace = BatchWorkspace::new("http://127.0.0.1:9/v1", "anthropic", "");
    let output = workspace.run(&["distill"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2)
            && stderr.contains("error: provider batch failed: ")
            && stderr.contains("hint: "),
        "{stderr}"
    );
    let workspace = BatchWorkspace::new(&url, "another", "batch = \"always\"");
    assert_eq!(workspace.json(&["distill", "--json"])["submitted_turns"], 1);
}
