//! A `selvedge mcp serve --http` process and a client that sends exact bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::lab::Lab;

/// How long a client waits for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(40);

/// A server, which ends when this is dropped.
pub(crate) struct HttpServer {
    child: Child,
    pub(crate) address: String,
    /// The token that the server printed; `none` if it printed none.
    pub(crate) token: String,
}

/// A response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    /// Status line, headers and body.
    pub(crate) text: String,
}

impl HttpServer {
    /// Starts a server with a random token on a free port.
    pub(crate) fn start(lab: &Lab, args: &[&str]) -> Result<Self> {
        let all = [&["mcp", "serve", "--http", "127.0.0.1:0"], args].concat();
        Self::listen(lab.selvedge(&all))
    }

    /// Starts a server that may open few files, as is usual on some systems.
    pub(crate) fn start_with_few_files(lab: &Lab) -> Result<Self> {
        let server = lab.selvedge(&["mcp", "serve", "--http", "127.0.0.1:0"]);
        let mut command = Command::new("sh");
        command
            .args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""])
            .arg(server.get_program())
            .args(server.get_args())
            .envs(
                server
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .current_dir(lab.work());
        Self::listen(command)
    }

    fn listen(mut command: Command) -> Result<Self> {
        command.env_remove("SELVEDGE_MCP_TOKEN");
        let mut child = command
            .stderr(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()?;
        let stderr = child.stderr.take().context("standard error")?;
        let (mut address, mut token) = (None, "none".to_owned());
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        for line in lines.by_ref() {
            if let Some(printed) = line.strip_prefix("Authorization: Bearer ") {
                token = printed.to_owned();
            }
            if let Some(url) = line.strip_prefix("serving at http://") {
                address = url.strip_suffix("/mcp").map(str::to_owned);
                break;
            }
        }
        // Read on, so that the server can write.
        std::thread::spawn(move || lines.for_each(drop));
        let server = Self {
            child,
            address: address.unwrap_or_default(),
            token,
        };
        anyhow::ensure!(!server.address.is_empty(), "the server did not start");
        Ok(server)
    }

    pub(crate) fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        Ok(stream)
    }

    /// Sends a head as it is, with the length of the body added, and reads the response.
    pub(crate) fn exchange(&self, head: &str, body: &str) -> Result<HttpResponse> {
        let mut stream = self.connect()?;
        let length = body.len();
        // A server that rejects the head may close the connection before the body is sent.
        let _ = write!(stream, "{head}Content-Length: {length}\r\n\r\n{body}");
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let status = text.split(' ').nth(1).and_then(|word| word.parse().ok());
        Ok(HttpResponse {
            // A connection that is closed without a response is a rejection, too.
            status: status.unwrap_or(400),
            text,
        })
    }

    /// Posts a message with the token.
    pub(crate) fn post(&self, session: Option<&str>, message: &Value) -> Result<HttpResponse> {
        let session = session.map(|id| format!("Mcp-Session-Id: {id}\r\n"));
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n{STANDARD_HEADERS}{}",
            self.address,
            self.token,
            session.unwrap_or_default()
        );
        self.exchange(&head, &message.to_string())
    }

    /// Starts a session, and returns its id.
    pub(crate) fn session(&self) -> Result<String> {
        let response = self.post(None, &initialize())?;
        let id = response
            .session_id()
            .with_context(|| response.text.clone())?;
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        self.post(Some(&id), &ready)?;
        Ok(id)
    }

    /// Calls a tool, and returns its item.
    pub(crate) fn call(&self, session: &str, tool: &str, args: Value) -> Result<Value> {
        let params = json!({"name": tool, "arguments": args});
        let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params});
        let response = self.post(Some(session), &call)?;
        let messages = response.text.lines().filter_map(|line| {
            let line = line.strip_prefix("data:").unwrap_or(line).trim();
            serde_json::from_str::<Value>(line).ok()
        });
        let mut results = messages.filter(|message| message["id"] == 2);
        let result = results.next().with_context(|| response.text.clone())?;
        Ok(result["result"]["structuredContent"].clone())
    }

    /// Whether a client with the token can run a script.
    pub(crate) fn works(&self) -> Result<bool> {
        let item = self.call(&self.session()?, "script", json!({"code": "return 42"}))?;
        Ok(item["output_json"] == "42")
    }

    /// Returns the resident memory of the server, in megabytes.
    pub(crate) fn memory_mb(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next());
        Ok(kilobytes.context("VmRSS")?.parse::<u64>()? >> 10)
    }
}

/// Headers of every request.
pub(crate) const STANDARD_HEADERS: &str = "Accept: application/json, text/event-stream\r\n\
    Content-Type: application/json\r\nConnection: close\r\n";

/// The first message of a client that can answer approvals.
pub(crate) fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "attack", "version": "1"},
    }})
}

impl HttpResponse {
    pub(crate) fn session_id(&self) -> Option<String> {
        let head = self.text.split("\r\n\r\n").next()?;
        let mut lines = head.lines().filter_map(|line| line.split_once(':'));
        let (_, id) = lines.find(|(name, _)| name.eq_ignore_ascii_case("mcp-session-id"))?;
        Some(id.trim().to_owned())
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
