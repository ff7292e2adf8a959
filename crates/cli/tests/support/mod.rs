//! Test workspaces, and a client of `selvedge mcp serve` that sends exact messages.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

pub mod api;
pub mod http;
pub mod issue_example;
#[path = "../../../journal/tests/support/store.rs"]
pub mod store;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

/// Time limit for waiting in tests: far longer than needed, so that only a test that hangs fails.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(90);

/// Returns the variable that names the store of a home folder, if it is not a file.
pub fn store_variable(home: &Path) -> Option<(&'static str, String)> {
    store::store_address(home).map(|address| ("SELVEDGE_STORE", address))
}

/// Creates a folder that confined commands cannot write, also if this repository lies in `/tmp`.
pub fn folder_without_commands() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

/// A client of `selvedge mcp serve`, and the server process.
pub struct Client {
    pub child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    /// Received messages that no call has returned yet.
    waiting: VecDeque<Value>,
    next: u64,
}

/// A temporary folder with a work folder and a home.
pub struct TestWorkspace {
    pub dir: tempfile::TempDir,
}

impl TestWorkspace {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("work")).unwrap();
        std::fs::create_dir_all(dir.path().join("home")).unwrap();
        Self { dir }
    }

    pub fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    pub fn config(&self, text: &str) {
        std::fs::write(self.home().join("config.toml"), text).unwrap();
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
        command
            .args(args)
            .env("SELVEDGE_HOME", self.home())
            .envs(store_variable(&self.home()))
            .current_dir(self.work());
        command
    }

    /// Returns the configuration of a server that runs `crates/mcp/tests/servers/odd.py`.
    pub fn odd(name: &str, mode: &str) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mcp/tests/servers/odd.py");
        format!(
            "[mcp_servers.{name}]\ncommand = \"python3\"\nargs = [{:?}, \"{mode}\"]\n",
            script.canonicalize().unwrap()
        )
    }
}

impl Client {
    /// Starts `selvedge mcp serve` and completes the handshake.
    pub fn start(workspace: &TestWorkspace, args: &[&str], capabilities: Value) -> Self {
        let mut client = Self::bare(workspace, args);
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": capabilities, "clientInfo": {"name": "test", "version": "1"}});
        let answer = client.request("initialize", hello);
        assert_eq!(
            answer["result"]["serverInfo"]["name"], "selvedge",
            "{answer}"
        );
        client.notify("notifications/initialized", json!({}));
        client
    }

    /// Starts `selvedge mcp serve` without the handshake.
    pub fn bare(workspace: &TestWorkspace, args: &[&str]) -> Self {
        let all: Vec<&str> = ["mcp", "serve"].iter().chain(args).copied().collect();
        let mut child = workspace
            .command(&all)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let (send, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let message =
                    serde_json::from_str(&line).unwrap_or_else(|_| panic!("not a message: {line}"));
                if send.send(message).is_err() {
                    return;
                }
            }
        });
        Self {
            stdin: child.stdin.take(),
            child,
            lines,
            waiting: VecDeque::new(),
            next: 0,
        }
    }

    pub fn send(&mut self, message: &Value) {
        let stdin = self.stdin.as_mut().unwrap();
        writeln!(stdin, "{message}").unwrap();
        stdin.flush().unwrap();
    }

    pub fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Sends a request without waiting for its response. Returns its id.
    pub fn ask(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params}));
        self.next
    }

    /// Waits for the first message that matches, and keeps the others.
    pub fn wait_for(&mut self, matches: impl Fn(&Value) -> bool) -> Value {
        if let Some(index) = self.waiting.iter().position(&matches) {
            return self.waiting.remove(index).unwrap();
        }
        loop {
            let message = self.lines.recv_timeout(TEST_TIMEOUT).unwrap();
            if matches(&message) {
                return message;
            }
            self.waiting.push_back(message);
        }
    }

    pub fn answer_to(&mut self, id: u64) -> Value {
        self.wait_for(|message| message["id"] == id && message.get("method").is_none())
    }

    pub fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params);
        self.answer_to(id)
    }

    /// Calls a tool, and returns its result.
    pub fn call(&mut self, tool: &str, args: Value) -> Value {
        let answer = self.request("tools/call", json!({"name": tool, "arguments": args}));
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].clone()
    }

    /// Runs a script, and returns its item.
    pub fn script(&mut self, code: &str) -> Value {
        self.call("script", json!({"code": code}))["structuredContent"].clone()
    }

    /// Runs a script that must succeed, and returns its value.
    pub fn value(&mut self, code: &str) -> Value {
        value(&self.script(code))
    }

    /// Responds to a request of the server.
    pub fn reply(&mut self, question: &Value, result: Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result}));
    }

    /// Waits for an elicitation request.
    pub fn question(&mut self) -> Value {
        self.wait_for(|message| message["method"] == "elicitation/create")
    }

    /// Closes the input of the server, and waits for its exit.
    pub fn close(mut self) -> std::process::ExitStatus {
        drop(self.stdin.take());
        self.child.wait().unwrap()
    }

    /// Returns the received messages that no call has returned.
    pub fn others(&mut self) -> Vec<Value> {
        self.waiting.extend(self.lines.try_iter());
        self.waiting.iter().cloned().collect()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn value(item: &Value) -> Value {
    assert_eq!(item["status"], "completed", "{item}");
    serde_json::from_str(item["output_json"].as_str().unwrap_or("null")).unwrap()
}

/// Returns the folder that `scripts/setup-mcp-peers` filled, or `None` with a note if it was not
/// run. In CI that is a failure.
pub fn peers() -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mcp-peers");
    let folder = std::env::var_os("SELVEDGE_MCP_PEERS").map_or_else(default, PathBuf::from);
    if folder.join("node_modules/@modelcontextprotocol").exists()
        && folder.join("venv/bin/mcp-server-git").exists()
    {
        return folder.canonicalize().ok();
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "scripts/setup-mcp-peers was not run"
    );
    eprintln!("skipped: scripts/setup-mcp-peers was not run");
    None
}
