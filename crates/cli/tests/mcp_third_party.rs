//! Third-party clients: the Python SDK, the inspector, and the conformance suite for servers.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use support::{TestWorkspace, peers};

fn client(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/clients")
        .join(name)
        .display()
        .to_string()
}

/// Runs a program and returns its output.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{command:?}:\n{out}\n{err}");
    out.into_owned()
}

/// A server on a free port of the loopback address.
struct ThirdPartyHttp {
    child: Child,
    url: String,
}

impl ThirdPartyHttp {
    fn start(workspace: &TestWorkspace, args: &[&str]) -> Self {
        let all: Vec<&str> = ["mcp", "serve", "--http", "127.0.0.1:0", "--no-token"]
            .iter()
            .chain(args)
            .copied()
            .collect();
        let mut child = workspace
            .command(&all)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = lines
            .find_map(|line| Some(line.ok()?.strip_prefix("serving at ")?.to_owned()))
            .unwrap();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| eprintln!("{line}"))
        });
        Self { child, url }
    }
}

impl Drop for ThirdPartyHttp {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_python_sdk_works_in_every_mode() {
    let Some(peers) = peers() else { return };
    for (mode, over_http) in [
        ("legacy", false),
        ("auto", false),
        ("legacy", true),
        ("auto", true),
    ] {
        let workspace = TestWorkspace::new();
        let args = ["--approval", "untrusted", "--client-approves"];
        let http = over_http.then(|| ThirdPartyHttp::start(&workspace, &args));
        let mut command = Command::new(peers.join("venv/bin/python"));
        command
            .arg(client("sdk.py"))
            .arg(mode)
            .env("SELVEDGE_HOME", workspace.home())
            .current_dir(workspace.work());
        match &http {
            Some(http) => command.arg(&http.url),
            None => command.args([
                env!("CARGO_BIN_EXE_selvedge"),
                "mcp",
                "serve",
                "--approval",
                "untrusted",
            ]),
        };
        let got: Value = serde_json::from_str(&printed(&mut command)).unwrap();
        let name = format!("{mode}, over HTTP: {over_http}");
        assert_eq!(got["tools"], json!(["script", "script_wait"]), "{name}");
        assert_eq!(
            (&got["value"], &got["failed"]),
            (&json!("[2,4,6]"), &json!(true)),
            "{name}"
        );
        assert_eq!(
            (&got["handle"], &got["late"]),
            (&json!("running"), &json!("\"late\"")),
            "{name}"
        );
        assert_eq!(
            (&got["files"], &got["written"]),
            (&json!("true"), &json!("\"written\"")),
            "{name}: {got}"
        );
        assert!(
            got["progress"].to_string().contains("list_dir done"),
            "{name}: {got}"
        );
        assert_eq!(got["asked"].as_array().unwrap().len(), 1, "{name}: {got}");
        assert!(workspace.work().join("by-sdk.txt").exists(), "{name}");
    }
}

#[test]
fn the_inspector_lists_and_calls_tools() {
    let Some(peers) = peers() else { return };
    let workspace = TestWorkspace::new();
    let inspect = |args: &[&str]| {
        let mut command = Command::new(peers.join("node_modules/.bin/node"));
        command
            .arg(peers.join("node_modules/.bin/mcp-inspector"))
            .arg("--cli");
        command.args([
            "-e",
            &format!("SELVEDGE_HOME={}", workspace.home().display()),
        ]);
        command
            .args([env!("CARGO_BIN_EXE_selvedge"), "mcp", "serve"])
            .args(args)
            .current_dir(workspace.work());
        serde_json::from_str::<Value>(&printed(&mut command)).unwrap()
    };
    let tools = inspect(&["--method", "tools/list"]);
    assert_eq!(tools["tools"][0]["name"], "script", "{tools}");
    let called = inspect(&[
        "--method",
        "tools/call",
        "--tool-name",
        "script",
        "--tool-arg",
        "code=return 6 * 7",
    ]);
    assert_eq!(called["structuredContent"]["output_json"], "42", "{called}");
}

/// Scenarios of the conformance suite that apply to every server. docs/mcp.md describes the others.
const SERVER_SCENARIOS: [&str; 5] = [
    "server-initialize",
    "ping",
    "tools-list",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
];

#[test]
fn the_conformance_suite_passes() {
    let Some(peers) = peers() else { return };
    let workspace = TestWorkspace::new();
    let http = ThirdPartyHttp::start(&workspace, &[]);
    for scenario in SERVER_SCENARIOS {
        let mut command = Command::new(peers.join("node_modules/.bin/node"));
        command.arg(peers.join("node_modules/.bin/conformance"));
        command
            .args(["server", "--url", &http.url, "--scenario", scenario])
            .current_dir(workspace.dir.path());
        printed(&mut command);
    }
}

/// Uses a client timeout of 6 s and a script of 24 s; `SELVEDGE_PROOF_SCALE=10` multiplies them by
/// ten.
#[test]
fn a_script_four_times_longer_than_the_client_timeout_completes_once() {
    let Some(peers) = peers() else { return };
    let scale: f64 = std::env::var("SELVEDGE_PROOF_SCALE")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1.0);
    let (timeout, length, thinking) = (6.0 * scale, 24.0 * scale, 5.0 * scale);
    let workspace = TestWorkspace::new();
    workspace.config(&TestWorkspace::odd("odd", "annotated"));
    let mut command = Command::new(peers.join("venv/bin/python"));
    command.arg(client("long_wait.py"));
    command.args([timeout, length, thinking].map(|seconds| seconds.to_string()));
    command.args([
        env!("CARGO_BIN_EXE_selvedge"),
        "mcp",
        "serve",
        "--yield-after",
        &format!("{}s", timeout * 0.75),
    ]);
    command
        .env("SELVEDGE_HOME", workspace.home())
        .current_dir(workspace.work());
    let got: Value = serde_json::from_str(&printed(&mut command)).unwrap();
    eprintln!("{got}");
    assert_eq!(
        (&got["status"], &got["value"], &got["questions"]),
        (&json!("completed"), &json!("\"all steps\""), &json!(1))
    );
    assert!(got["waits"].as_u64().unwrap() >= 3, "{got}");
    let steps = std::fs::read_to_string(workspace.work().join("steps.log")).unwrap();
    let wanted: String = (0..8).map(|step| format!("step {step}\n")).collect();
    assert_eq!(steps, wanted);
    let calls = got["calls"].as_array().unwrap();
    assert!(
        calls.len() == 9 && calls.iter().all(|call| call[1] == "done"),
        "{got}"
    );
}
