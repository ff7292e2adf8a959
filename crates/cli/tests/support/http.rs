//! A `selvedge mcp serve --http` process, and a client of it that sends exact requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::{TEST_TIMEOUT, TestWorkspace, value};

/// A server on a free port, and a client of it. It ends when this is dropped.
pub struct ServeProcess {
    child: Child,
    pub address: String,
    /// The random token that the server printed.
    pub token: Option<String>,
}

impl ServeProcess {
    pub fn start(workspace: &TestWorkspace, args: &[&str]) -> Self {
        Self::start_with(workspace, args, |_| {})
    }

    /// Starts a server that prints its random token, or has the token `s3cret-0123456789`.
    pub fn start_with(
        workspace: &TestWorkspace,
        args: &[&str],
        adapt: impl Fn(&mut Command),
    ) -> Self {
        let all = [&["mcp", "serve", "--http", "127.0.0.1:0"], args].concat();
        let mut command = workspace.command(&all);
        command.env_remove("SELVEDGE_MCP_TOKEN");
        adapt(&mut command);
        Self::listen(command)
    }

    pub fn listen(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut token = None;
        let url = lines
            .find_map(|line| {
                let line = line.ok()?;
                if let Some(printed) = line.strip_prefix("Authorization: Bearer ") {
                    token = Some(printed.to_owned());
                }
                Some(line.strip_prefix("serving at ")?.to_owned())
            })
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
        Self {
            child,
            address,
            token,
        }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream
    }

    /// Sends a request with the token and these headers, and returns the open connection. A header
    /// with an empty value is omitted.
    pub fn send(&self, start: &str, headers: &[(&str, &str)], message: &Value) -> TcpStream {
        let mut stream = self.connect();
        let body = message.to_string();
        let token = self.token.as_deref().unwrap_or("s3cret-0123456789");
        let token = format!("Bearer {token}");
        let mut all = vec![
            ("Accept", "application/json, text/event-stream"),
            ("Content-Type", "application/json"),
            ("Connection", "close"),
            ("Host", &self.address),
            ("Authorization", &token),
        ];
        all.retain(|(name, _)| !headers.iter().any(|(other, _)| other == name));
        all.extend(headers.iter().filter(|(_, value)| !value.is_empty()));
        let lines: String = all
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        // A server that rejects the headers may close the connection before the body is sent.
        let _ = write!(
            stream,
            "{start} HTTP/1.1\r\n{lines}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream
    }

    /// Posts a message. Returns the status, the headers and the response message.
    pub fn post(&self, headers: &[(&str, &str)], message: &Value) -> (u16, String, Value) {
        let mut bytes = Vec::new();
        let _ = self
            .send("POST /mcp", headers, message)
            .read_to_end(&mut bytes);
        parse_response(&String::from_utf8(bytes).unwrap())
    }

    pub fn hello(&self, headers: &[(&str, &str)]) -> (u16, String) {
        let (status, head, _) = self.post(headers, &initialize());
        (status, head)
    }

    /// Starts a session, and returns its id.
    pub fn session(&self) -> String {
        let (status, head) = self.hello(&[]);
        assert_eq!(status, 200, "{head}");
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

    /// Calls a tool, and returns its item.
    pub fn call(&self, session: &str, tool: &str, args: Value) -> Value {
        let (status, _, answer) = self.post(&[("Mcp-Session-Id", session)], &tool_call(tool, args));
        assert_eq!(status, 200, "{answer}");
        answer["result"]["structuredContent"].clone()
    }

    pub fn script(&self, session: &str, code: &str) -> Value {
        value(&self.call(session, "script", json!({"code": code})))
    }

    /// Starts a script that runs until it is terminated, and returns its id.
    pub fn endless(&self, session: &str) -> String {
        let code = "yield_control(); await new Promise(r => setTimeout(r, 60000))";
        let item = self.call(session, "script", json!({"code": code, "timeoutMs": 60000}));
        assert_eq!(item["status"], "running", "{item}");
        item["id"].as_str().unwrap().to_owned()
    }
}

pub fn parse_response(text: &str) -> (u16, String, Value) {
    let (head, rest) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut found = rest.lines().filter_map(message_in_line);
    let answer = found
        .rfind(|message| message.get("id").is_some())
        .unwrap_or_default();
    (status, head.to_owned(), answer)
}

pub fn message_in_line(line: &str) -> Option<Value> {
    let line = line.strip_prefix("data:").unwrap_or(line).trim();
    serde_json::from_str::<Value>(line)
        .ok()
        .filter(Value::is_object)
}

pub fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {"elicitation": {}}, "clientInfo": {"name": "test", "version": "1"}}})
}

pub fn tool_call(tool: &str, args: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool, "arguments": args}})
}

impl Drop for ServeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
