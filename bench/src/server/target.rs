//! The servers that get the same load: `selvedge serve`, and `opencode serve` as its peer.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::api_client::{ApiAddress, ApiConnection};
use super::scripted_model::CallStyle;
use crate::measure::{ResidentMemory, resident_mb_of};

/// Clock ticks per second in `/proc/PID/stat`, the same on all Linux systems.
const CLOCK_TICKS_PER_SECOND: f64 = 100.0;

/// Tokens of the clients. The connections of one token are at most as many as are still free.
const TOKENS: usize = 8;

/// The program of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerKind {
    Selvedge,
    Opencode,
}

impl ServerKind {
    /// How the model of its agent calls a tool.
    pub(super) fn call_style(self) -> CallStyle {
        match self {
            Self::Selvedge => CallStyle::Script,
            Self::Opencode => CallStyle::Structured,
        }
    }
}

/// A running server with a workspace of its own. It is killed when this is dropped.
pub(super) struct MeasuredServer {
    pub(super) kind: ServerKind,
    pub(super) api: ApiAddress,
    child: Child,
    _folder: tempfile::TempDir,
}

impl Drop for MeasuredServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the program of the peer; `None` if it is not installed.
pub(super) fn opencode_program() -> Option<PathBuf> {
    let program = crate::peers::bench_folder().join("node_modules/.bin/opencode");
    program.exists().then_some(program)
}

impl MeasuredServer {
    /// Starts a server whose agents use the model at a URL.
    pub(super) fn start(kind: ServerKind, model_url: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (home, work) = (folder.path().join("home"), folder.path().join("work"));
        std::fs::create_dir_all(&home)?;
        std::fs::create_dir_all(&work)?;
        std::fs::write(work.join("a.txt"), "one\n")?;
        let (child, api) = match kind {
            ServerKind::Selvedge => start_selvedge(&home, &work, model_url)?,
            ServerKind::Opencode => start_opencode(&home, &work, model_url)?,
        };
        Ok(Self {
            kind,
            api,
            child,
            _folder: folder,
        })
    }

    /// Starts `selvedge serve` in a folder, for requests that need no model.
    pub(super) fn start_in(work: &Path) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let no_model = "http://127.0.0.1:9/v1";
        let (child, api) = start_selvedge(folder.path(), work, no_model)?;
        Ok(Self {
            kind: ServerKind::Selvedge,
            api,
            child,
            _folder: folder,
        })
    }

    /// Creates a session, and returns its id.
    pub(super) async fn create_session(&self, connection: &mut ApiConnection) -> Result<String> {
        let path = match self.kind {
            ServerKind::Selvedge => "/api/v1/sessions",
            ServerKind::Opencode => "/session",
        };
        let title = json!({"title": "bench"}).to_string();
        let session = connection.request("POST", path, &title).await?;
        Ok(session["id"].as_str().context("no id")?.to_owned())
    }

    /// Returns the path and the body of the request that sends a message.
    pub(super) fn message(&self, session: &str, text: &str) -> (String, Value) {
        match self.kind {
            ServerKind::Selvedge => (
                format!("/api/v1/sessions/{session}/messages"),
                json!({"text": text}),
            ),
            ServerKind::Opencode => (
                format!("/session/{session}/prompt_async"),
                json!({
                    "model": {"providerID": "mock", "modelID": "mock"},
                    "parts": [{"type": "text", "text": text}],
                }),
            ),
        }
    }

    pub(super) fn memory(&self) -> ResidentMemory {
        resident_mb_of(&self.child.id().to_string())
    }

    /// Returns the processor time that the server has used, in seconds.
    pub(super) fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let stat = stat.unwrap_or_default();
        // The name in parentheses may contain spaces; the third field follows it.
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks = ticks.filter_map(|ticks| ticks.parse::<f64>().ok());
        ticks.sum::<f64>() / CLOCK_TICKS_PER_SECOND
    }
}

fn start_selvedge(home: &Path, work: &Path, model_url: &str) -> Result<(Child, ApiAddress)> {
    let config = format!(
        "model = \"mock\"\nmodel_context_window = 128000\nmodel_provider = \"mock\"\n\
         [model_providers.mock]\nbase_url = \"{model_url}\"\nwire_api = \"chat\"\n\
         [serve]\nmax_concurrent_turns = 1000\nmax_queued_turns = 10000\n\
         max_connections = 16384\n"
    );
    std::fs::write(home.join("config.toml"), config)?;
    let program = crate::selvedge_binary()?;
    let command = |args: &[&str]| {
        let mut command = Command::new(&program);
        command
            .args(args)
            .current_dir(work)
            .env("SELVEDGE_HOME", home);
        command
    };
    let mut tokens = Vec::new();
    for number in 1..=TOKENS {
        let name = format!("bench-{number}");
        let token = command(&["serve", "token", "create", &name]).output()?;
        ensure!(
            token.status.success(),
            "{}",
            String::from_utf8_lossy(&token.stderr)
        );
        tokens.push(String::from_utf8(token.stdout)?.trim().to_owned());
    }
    let mut child = command(&["serve", "--addr", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let output = child.stderr.take().context("no pipe")?;
    let address = wait_for_address(output, "serving at http://")?;
    Ok((child, ApiAddress::new(address, tokens)))
}

fn start_opencode(home: &Path, work: &Path, model_url: &str) -> Result<(Child, ApiAddress)> {
    let program = opencode_program().context("opencode-ai is not installed")?;
    let config = json!({
        "model": "mock/mock",
        "small_model": "mock/mock",
        "autoupdate": false,
        "share": "disabled",
        "provider": {"mock": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "mock",
            "options": {"baseURL": model_url, "apiKey": "none"},
            "models": {"mock": {"name": "mock"}},
        }},
    });
    std::fs::write(work.join("opencode.json"), config.to_string())?;
    let mut command = Command::new(program);
    command
        .args(["serve", "--hostname", "127.0.0.1", "--port", "0"])
        .current_dir(work)
        .env("HOME", home)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    for variable in [
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
        "XDG_CACHE_HOME",
    ] {
        command.env_remove(variable);
    }
    let mut child = command.spawn()?;
    let output = child.stdout.take().context("no pipe")?;
    let address = wait_for_address(output, "listening on http://")?;
    Ok((child, ApiAddress::new(address, Vec::new())))
}

/// Waits for the line of a server's output that has its address. Later lines are discarded.
fn wait_for_address(output: impl std::io::Read + Send + 'static, before: &str) -> Result<String> {
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let address = lines.find_map(|line| Some(line.split_once(before)?.1.trim().to_owned()));
    std::thread::spawn(move || lines.for_each(drop));
    address.context("the server did not start")
}
