//! A client of HTTP APIs with event streams. Hand-written, because it runs on the cores of the
//! server that it measures, and so should cost as little as possible.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Address of a server, and the tokens that authorise requests.
#[derive(Debug, Clone)]
pub(super) struct ApiAddress {
    address: String,
    /// Used in turn, one for each connection. Empty if the server needs no token.
    tokens: Arc<[String]>,
    opened: Arc<AtomicUsize>,
}

impl ApiAddress {
    pub(super) fn new(address: String, tokens: Vec<String>) -> Self {
        Self {
            address,
            tokens: tokens.into(),
            opened: Arc::default(),
        }
    }

    /// Returns the token of the next connection.
    fn next_token(&self) -> Option<String> {
        let at = self.opened.fetch_add(1, Ordering::Relaxed);
        let at = at.checked_rem(self.tokens.len())?;
        Some(self.tokens[at].clone())
    }

    fn request(&self, token: Option<&str>, method: &str, path: &str, body: &str) -> String {
        let token = match token {
            Some(token) => format!("authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\n{token}content-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
    }

    async fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(&self.address).await;
        let stream = stream.with_context(|| format!("cannot connect to {}", self.address))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// A connection for many requests, one after another.
pub(super) struct ApiConnection {
    server: ApiAddress,
    token: Option<String>,
    stream: TcpStream,
}

impl ApiConnection {
    pub(super) async fn open(server: &ApiAddress) -> Result<Self> {
        Ok(Self {
            server: server.clone(),
            token: server.next_token(),
            stream: server.connect().await?,
        })
    }

    /// Sends a request, and returns the body of its response; `null` if it is not JSON.
    pub(super) async fn request(&mut self, method: &str, path: &str, body: &str) -> Result<Value> {
        let token = self.token.as_deref();
        let request = self.server.request(token, method, path, body);
        let response = async {
            self.stream.write_all(request.as_bytes()).await?;
            let mut response = ResponseReader::read_head(&mut self.stream).await?;
            let mut body = Vec::new();
            while let Some(part) = response.next_part(&mut self.stream).await? {
                body.extend(part);
            }
            let text = String::from_utf8_lossy(&body).into_owned();
            ensure!(
                (200..300).contains(&response.status),
                "{method} {path}: status {}: {text}",
                response.status
            );
            Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
        };
        let response = tokio::time::timeout(REQUEST_TIMEOUT, response).await;
        response.with_context(|| format!("{method} {path}: no response"))?
    }
}

/// A stream of events.
pub(super) struct EventConnection {
    stream: TcpStream,
    response: ResponseReader,
    /// Received bytes, from the beginning of an event that is not complete.
    received: Vec<u8>,
}

impl EventConnection {
    pub(super) async fn open(server: &ApiAddress, path: &str) -> Result<Self> {
        let mut stream = server.connect().await?;
        let token = server.next_token();
        let request = server.request(token.as_deref(), "GET", path, "");
        stream.write_all(request.as_bytes()).await?;
        let response = ResponseReader::read_head(&mut stream);
        let response = tokio::time::timeout(REQUEST_TIMEOUT, response).await??;
        ensure!(response.status == 200, "{path}: status {}", response.status);
        Ok(Self {
            stream,
            response,
            received: Vec::new(),
        })
    }

    /// Waits for further events, and gives each of them to `take`. Returns `None` at the end of the
    /// stream.
    pub(super) async fn next_events(&mut self, mut take: impl FnMut(&str)) -> Option<()> {
        let part = self.response.next_part(&mut self.stream).await.ok()??;
        self.received.extend(part);
        let mut rest = &self.received[..];
        while let Some(end) = rest.windows(2).position(|bytes| bytes == b"\n\n") {
            take(&String::from_utf8_lossy(&rest[..end]));
            rest = &rest[end + 2..];
        }
        let done = self.received.len() - rest.len();
        self.received.drain(..done);
        Some(())
    }
}

/// Reads the response to one request.
struct ResponseReader {
    status: u16,
    /// Bytes that were read and not returned yet.
    unread: Vec<u8>,
    rest: BodyRest,
}

/// What follows of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyRest {
    Bytes(usize),
    Chunks,
    Nothing,
}

impl ResponseReader {
    async fn read_head(stream: &mut TcpStream) -> Result<Self> {
        let mut unread = Vec::new();
        let end = loop {
            match head_length(&unread) {
                Some(end) => break end,
                None => read_more(stream, &mut unread).await?,
            }
        };
        let head: Vec<u8> = unread.drain(..end).collect();
        let text = String::from_utf8_lossy(&head).to_lowercase();
        let status = text
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let rest = match text.contains("transfer-encoding: chunked") {
            true => BodyRest::Chunks,
            false => BodyRest::Bytes(content_length(&head).unwrap_or(0)),
        };
        Ok(Self {
            status: status.context("the response has no status")?,
            unread,
            rest,
        })
    }

    /// Returns the next part of the body, a chunk or all of it; `None` at its end.
    async fn next_part(&mut self, stream: &mut TcpStream) -> Result<Option<Vec<u8>>> {
        match self.rest {
            BodyRest::Nothing => Ok(None),
            BodyRest::Bytes(length) => {
                while self.unread.len() < length {
                    read_more(stream, &mut self.unread).await?;
                }
                self.rest = BodyRest::Nothing;
                Ok(Some(self.unread.drain(..length).collect()))
            }
            BodyRest::Chunks => loop {
                let line = self.unread.windows(2).position(|bytes| bytes == b"\r\n");
                if let Some(line) = line {
                    let size = std::str::from_utf8(&self.unread[..line])?;
                    let size = usize::from_str_radix(size.trim(), 16)?;
                    let end = line + 2 + size;
                    if self.unread.len() >= end + 2 {
                        let chunk = self.unread[line + 2..end].to_vec();
                        self.unread.drain(..end + 2);
                        if size == 0 {
                            self.rest = BodyRest::Nothing;
                            return Ok(None);
                        }
                        return Ok(Some(chunk));
                    }
                }
                read_more(stream, &mut self.unread).await?;
            },
        }
    }
}

async fn read_more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<()> {
    bytes.reserve(4 << 10);
    ensure!(
        stream.read_buf(bytes).await? > 0,
        "the connection was closed"
    );
    Ok(())
}

/// Returns the length of the head of a message, with the empty line; `None` if it is incomplete.
pub(super) fn head_length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some(end + 4)
}

/// Returns the length of the body that the head of a message states.
pub(super) fn content_length(head: &[u8]) -> Option<usize> {
    let head = String::from_utf8_lossy(head).to_lowercase();
    let line = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:").map(str::to_owned));
    line?.trim().parse().ok()
}
