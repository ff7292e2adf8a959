//! MCP servers for tests, and functions to run scripts with them.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use selvedge_mcp::{McpTransport, ServerRequestHandlers, ServerSettings, Servers};
use selvedge_protocol::ScriptToolCallOutput;
use selvedge_script::{Harness, RunOptions};
use selvedge_tools::{Orchestrator, Registry};
use serde_json::Value;

/// Returns the folder that `scripts/setup-mcp-peers` fills. If it was not run, prints that the test
/// is skipped and returns `None`; in CI it panics.
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

/// Settings of a server that is a local program.
pub fn program(name: &str, command: impl AsRef<Path>, args: &[&str]) -> ServerSettings {
    let reach = McpTransport::Stdio {
        command: command.as_ref().display().to_string(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        env: Default::default(),
        env_vars: Vec::new(),
        cwd: None,
    };
    ServerSettings::new(name, reach)
}

/// Settings of the server `servers/odd.py` in one of its modes.
pub fn odd(name: &str, mode: &str) -> ServerSettings {
    odd_with(name, mode, &unused_state())
}

/// Returns the path of a state that no test reads, always the same one.
pub fn unused_state() -> std::path::PathBuf {
    static NAME: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| selvedge_protocol::new_id("state"));
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(&*NAME)
}

/// Settings of the server `servers/odd.py` with a file for its state.
pub fn odd_with(name: &str, mode: &str, state: &Path) -> ServerSettings {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/odd.py");
    let mut settings = program(
        name,
        "python3",
        &[script, mode, &state.display().to_string()],
    );
    settings.options.startup_timeout_sec = 20.0;
    settings
}

/// Creates servers without handlers and without a cache.
pub fn servers(settings: Vec<ServerSettings>) -> Servers {
    Servers::new(settings, ServerRequestHandlers::default(), None)
}

/// Runs a script with the tools of these servers.
pub async fn run(servers: &Servers, script: &str) -> ScriptToolCallOutput {
    run_with(servers, script, RunOptions::default()).await
}

/// Runs a script with the tools of these servers and with options.
pub async fn run_with(
    servers: &Servers,
    script: &str,
    options: RunOptions,
) -> ScriptToolCallOutput {
    let harness = Harness::new(Orchestrator::new(Registry::new())).unwrap();
    servers
        .ensure_catalogues_for_script(&harness, script.as_bytes())
        .await;
    let harness = harness.with_tools(servers.script_registry(&Registry::new()));
    let options = RunOptions {
        timeout: options.timeout.or(Some(Duration::from_secs(60))),
        ..options
    };
    harness.run_with(script.as_bytes(), options).await
}

/// Runs a script that must succeed, and returns its value.
pub async fn value(servers: &Servers, script: &str) -> Value {
    let output = run(servers, script).await;
    assert!(output.error.is_none(), "{:?}", output.error);
    output.value().unwrap_or(Value::Null)
}
