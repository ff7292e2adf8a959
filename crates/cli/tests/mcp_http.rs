//! `selvedge mcp serve --http`: authorization, and separate sessions per client.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use support::{TestWorkspace, value};

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(workspace: &TestWorkspace, args: &[&str], token: Option<&str>) -> Self {
        let all: Vec<&str> = ["mcp", "serve", "--http", "127.0.0.1:0"]
            .iter()
            .chain(args)
            .copied()
            .collect();
        let mut command = workspace.command(&all);
        let named = args.iter().skip_while(|arg| **arg != "--token-env").nth(1);
        command.envs(token.map(|token| (*named.unwrap_or(&"SELVEDGE_MCP_TOKEN"), token)));
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = lines
            .find_map(|line| Some(line.ok()?.strip_prefix("serving at ")?.to_owned()))
            .unwrap();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| eprintln!("{line}"))
        });
        let address = url
            .strip_prefix("http://")
            .unwrap()
            .strip_suffix("/mcp")
            .unwrap()
            .to_owned();
        Self { child, address }
    }

    /// Posts a message. Returns the status, the headers and the response message.
    fn post(&self, headers: &[(&str, &str)], message: &Value) -> (u16, String, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let body = message.to_string();
        let mut all = vec![
            ("Accept", "application/json, text/event-stream"),
            ("Content-Type", "application/json"),
            ("Connection", "close"),
        ];
        if !headers.iter().any(|(name, _)| *name == "Host") {
            all.push(("Host", &self.address));
        }
        all.extend(headers);
        let lines: String = all
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        write!(
            stream,
            "POST /mcp HTTP/1.1\r\n{lines}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, rest) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut found = rest.lines().filter_map(|line| {
            let line = line.strip_prefix("data:").unwrap_or(line).trim();
            serde_json::from_str::<Value>(line)
                .ok()
                .filter(Value::is_object)
        });
        let answer = found
            .rfind(|message| message.get("id").is_some())
            .unwrap_or_default();
        (status, head.to_owned(), answer)
    }

    fn hello(&self, headers: &[(&str, &str)]) -> (u16, String) {
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}});
        let (status, head, _) = self.post(headers, &hello);
        (status, head)
    }

    /// Starts a session, and returns its id.
    fn session(&self) -> String {
        let (status, head) = self.hello(&[]);
        assert_eq!(status, 200);
        let line = head
            .lines()
            .find(|line| line.to_lowercase().starts_with("mcp-session-id:"))
            .unwrap();
        let session = line.split_once(':').unwrap().1.trim().to_owned();
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let (status, ..) = self.post(&[("Mcp-Session-Id", &session)], &ready);
        assert_eq!(status, 202);
        session
    }

    fn script(&self, session: &str, code: &str) -> Value {
        let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "script", "arguments": {"code": code}}});
        let (status, _, answer) = self.post(&[("Mcp-Session-Id", session)], &call);
        assert_eq!(status, 200, "{answer}");
        value(&answer["result"]["structuredContent"])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn each_client_has_its_own_session() {
    let workspace = TestWorkspace::new();
    let server = Server::start(&workspace, &[], None);
    let (a, b) = (server.session(), server.session());
    assert_ne!(a, b);
    let first = server.script(&a, "store('k', 'mine'); return context.sessionId");
    let second = server.script(&b, "return [load('k') ?? 'nothing', context.sessionId]");
    assert_eq!(
        (&second[0], server.script(&a, "return load('k')")),
        (&json!("nothing"), json!("mine"))
    );
    assert_ne!(first, second[1]);
    // Concurrent sessions.
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..8)
            .map(|number| {
                let server = &server;
                scope.spawn(move || {
                    let session = server.session();
                    server.script(
                        &session,
                        &format!("store('n', {number}); await new Promise(r => setTimeout(r, 200)); return load('n')"),
                    )
                })
            })
            .collect();
        for (number, run) in runs.into_iter().enumerate() {
            assert_eq!(run.join().unwrap(), number);
        }
    });
    let listed = workspace
        .command(&["runs", "list", "--json"])
        .output()
        .unwrap();
    let runs: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(runs.as_array().unwrap().len(), 11);
}

#[test]
fn foreign_origins_and_hosts_are_rejected() {
    let workspace = TestWorkspace::new();
    let server = Server::start(&workspace, &[], None);
    assert_eq!(server.hello(&[("Origin", "https://evil.example")]).0, 403);
    assert_eq!(server.hello(&[("Origin", "null")]).0, 403);
    assert_eq!(server.hello(&[("Host", "evil.example")]).0, 403);
    let port = server.address.rsplit(':').next().unwrap();
    assert_eq!(
        server
            .hello(&[("Host", &format!("rebound.example:{port}"))])
            .0,
        403
    );
    assert_eq!(server.hello(&[("Origin", "http://localhost:3000")]).0, 200);
    assert_eq!(
        server.hello(&[("Host", &format!("localhost:{port}"))]).0,
        200
    );
}

#[test]
fn a_configured_token_is_required() {
    let workspace = TestWorkspace::new();
    let server = Server::start(&workspace, &[], Some("s3cret"));
    assert_eq!(server.hello(&[]).0, 401);
    assert_eq!(server.hello(&[("Authorization", "Bearer wrong")]).0, 401);
    assert_eq!(server.hello(&[("Authorization", "Basic s3cret")]).0, 401);
    assert_eq!(server.hello(&[("Authorization", "Bearer s3cret")]).0, 200);

    // The variable is not passed to commands, whatever its name.
    let server = Server::start(
        &workspace,
        &["--token-env", "OTHER_TOKEN_NAME"],
        Some("s3cret"),
    );
    let token = ("Authorization", "Bearer s3cret");
    let (_, head) = server.hello(&[token]);
    let line = head
        .lines()
        .find(|line| line.to_lowercase().starts_with("mcp-session-id:"))
        .unwrap();
    let session = ("Mcp-Session-Id", line.split_once(':').unwrap().1.trim());
    server.post(
        &[token, session],
        &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
    );
    let code = "return (await tools.exec({ command: ['sh', '-c', 'env; echo all'] })).stdout";
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "script", "arguments": {"code": code}}});
    let shown =
        value(&server.post(&[token, session], &call).2["result"]["structuredContent"]).to_string();
    assert!(
        shown.contains("all") && !shown.contains("s3cret"),
        "{shown}"
    );
}

#[test]
fn a_public_address_requires_a_token() {
    let workspace = TestWorkspace::new();
    let refused = workspace
        .command(&["mcp", "serve", "--http", "0.0.0.0:0"])
        .output()
        .unwrap();
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr.contains("can be reached from other machines") && stderr.contains("hint:"),
        "{stderr}"
    );
    let nowhere = workspace
        .command(&["mcp", "serve", "--http", "nowhere"])
        .output()
        .unwrap();
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(
        String::from_utf8(nowhere.stderr)
            .unwrap()
            .contains("cannot listen on nowhere")
    );
}
