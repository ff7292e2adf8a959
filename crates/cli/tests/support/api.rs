//! A `selvedge serve` process, a client of its API, and a workspace with a model on loopback.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{TEST_TIMEOUT, TestWorkspace};

/// A server on a free port. It is killed when this is dropped.
pub struct ApiServer {
    pub child: Child,
    pub address: String,
    /// The lines that the server has printed since it listens.
    messages: Arc<Mutex<Vec<String>>>,
}

/// A client of the API with a token.
#[derive(Clone)]
pub struct ApiClient {
    pub address: String,
    pub secret: String,
}

/// A response: status, head and body.
#[derive(Debug)]
pub struct ApiResponse {
    pub status: u16,
    pub head: String,
    pub body: Value,
    pub text: String,
}

/// Creates a token with these arguments, and returns its secret.
pub fn create_token(workspace: &TestWorkspace, args: &[&str]) -> String {
    let all = [&["serve", "token", "create"], args].concat();
    let output = workspace.command(&all).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

/// Scopes for a token that may do everything.
pub const ALL_SCOPES: [&str; 10] = [
    "--scope",
    "sessions",
    "--scope",
    "documents",
    "--scope",
    "channels",
    "--scope",
    "memory",
    "--scope",
    "approvals",
];

impl ApiServer {
    /// Starts a server on a free port of the loopback address.
    pub fn start(workspace: &TestWorkspace) -> Self {
        Self::listen(workspace.command(&["serve", "--addr", "127.0.0.1:0"]))
    }

    pub fn listen(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut seen = String::new();
        let url = lines.find_map(|line| {
            let line = line.ok()?;
            seen += &format!("{line}\n");
            Some(line.strip_prefix("serving at ")?.to_owned())
        });
        let url = url.unwrap_or_else(|| panic!("the server did not start: {seen}"));
        let messages = Arc::<Mutex<Vec<String>>>::default();
        let seen = messages.clone();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| {
                eprintln!("{line}");
                seen.lock().unwrap().push(line);
            })
        });
        let address = url.split_once("://").unwrap().1.to_owned();
        Self {
            child,
            address,
            messages,
        }
    }

    /// Waits until the server has printed a line that begins with a text.
    pub fn wait_for_message(&self, start: &str) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        let is_printed = || {
            let messages = self.messages.lock().unwrap();
            messages.iter().any(|line| line.starts_with(start))
        };
        while !is_printed() {
            assert!(Instant::now() < deadline, "{start:?} was not printed");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn client(&self, secret: &str) -> ApiClient {
        ApiClient {
            address: self.address.clone(),
            secret: secret.to_owned(),
        }
    }

    /// Ends the process at once, as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM and waits for the exit.
    pub fn terminate(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let deadline = Instant::now() + TEST_TIMEOUT;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the server does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ApiClient {
    /// Sends a request with further headers, and returns the open connection. A header with an
    /// empty value is omitted.
    pub fn send(&self, start: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        self.try_send(start, headers, body).unwrap()
    }

    /// Like [`Self::send`], for a server that may be gone.
    pub fn try_send(
        &self,
        start: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(TEST_TIMEOUT))?;
        let token = format!("Bearer {}", self.secret);
        let mut all = vec![
            ("Connection", "close"),
            ("Host", self.address.as_str()),
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
        Ok(stream)
    }

    pub fn request(&self, start: &str, headers: &[(&str, &str)], body: &str) -> ApiResponse {
        self.try_request(start, headers, body)
            .unwrap_or_else(|| panic!("no response to {start}"))
    }

    /// Like [`Self::request`], for a server that may be gone. Returns `None` without a status.
    pub fn try_request(
        &self,
        start: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Option<ApiResponse> {
        let mut bytes = Vec::new();
        let mut stream = self.try_send(start, headers, body).ok()?;
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, rest) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        let text = if chunked {
            dechunk(rest)
        } else {
            rest.to_owned()
        };
        Some(ApiResponse {
            status: status?,
            head: head.to_owned(),
            body: serde_json::from_str(&text).unwrap_or_default(),
            text,
        })
    }

    pub fn get(&self, path: &str) -> ApiResponse {
        self.request(&format!("GET {path}"), &[], "")
    }

    pub fn post(&self, path: &str, body: Value) -> ApiResponse {
        self.request(&format!("POST {path}"), &[], &body.to_string())
    }

    /// Creates a session, and returns its id.
    pub fn session(&self, body: Value) -> String {
        let created = self.post("/api/v1/sessions", body);
        assert_eq!(created.status, 201, "{created:?}");
        created.body["id"].as_str().unwrap().to_owned()
    }

    /// Sends a message, and returns its number.
    pub fn message(&self, session: &str, text: &str) -> u64 {
        let path = format!("/api/v1/sessions/{session}/messages");
        let sent = self.post(&path, json!({"text": text}));
        assert_eq!(sent.status, 202, "{sent:?}");
        sent.body["number"].as_u64().unwrap()
    }

    /// Waits until a message is answered, and returns it.
    pub fn answer(&self, session: &str, number: u64) -> Value {
        let path = format!("/api/v1/sessions/{session}/messages/{number}?wait_ms=30000");
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let message = self.get(&path);
            assert_eq!(message.status, 200, "{message:?}");
            let state = message.body["state"].as_str().unwrap();
            if ["answered", "failed", "stopped"].contains(&state) {
                return message.body;
            }
            assert!(Instant::now() < deadline, "not answered: {message:?}");
        }
    }

    /// Returns the stored events of a session after a number, with their numbers.
    pub fn stored_events(&self, session: &str, after: u64) -> Vec<(u64, Value)> {
        let path = format!("/api/v1/sessions/{session}/events?follow=false&after={after}");
        let events = self.get(&path);
        assert_eq!(events.status, 200, "{events:?}");
        let events = events.text.split("\n\n").filter_map(parse_event);
        events.map(|(id, body)| (id.unwrap(), body)).collect()
    }

    /// Follows the events of a session.
    pub fn follow(&self, session: &str, last_event_id: Option<u64>) -> EventReader {
        let start = format!("GET /api/v1/sessions/{session}/events");
        let id = last_event_id.map(|id| id.to_string()).unwrap_or_default();
        let stream = self.send(&start, &[("Last-Event-ID", &id)], "");
        EventReader(BufReader::new(stream))
    }
}

/// Reads Server-Sent Events.
pub struct EventReader(pub BufReader<TcpStream>);

impl EventReader {
    /// Returns the next event with its number, if it is stored. `None` at the end of the stream.
    pub fn next_event(&mut self) -> Option<(Option<u64>, Value)> {
        let (mut id, mut line) = (None, String::new());
        loop {
            line.clear();
            if self.0.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(number) = line.strip_prefix("id:") {
                id = number.trim().parse().ok();
            } else if let Some(data) = line.strip_prefix("data:") {
                let body = serde_json::from_str(data.trim()).unwrap();
                return Some((id, body));
            }
        }
    }

    /// Returns the events up to the first one of a type.
    pub fn until(&mut self, kind: &str) -> Vec<(Option<u64>, Value)> {
        let mut events = Vec::new();
        while let Some(event) = self.next_event() {
            let is_last = event.1["type"] == kind;
            events.push(event);
            if is_last {
                return events;
            }
        }
        panic!("the stream ended before {kind}: {events:#?}");
    }
}

fn parse_event(block: &str) -> Option<(Option<u64>, Value)> {
    let line = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
    let body = serde_json::from_str(line("data:")?.trim()).unwrap();
    Some((line("id:").and_then(|id| id.trim().parse().ok()), body))
}

/// Joins the chunks of a body.
fn dechunk(text: &str) -> String {
    let (mut rest, mut body) = (text, String::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 || after.len() < size {
            break;
        }
        body += &after[..size];
        rest = after[size..].trim_start_matches("\r\n");
    }
    body
}
