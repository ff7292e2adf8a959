//! A model server on loopback: real HTTP, with answers computed from the request, for all three
//! APIs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::answer_encoding::{AnswerPart, encode, encode_counted};

/// A request that the server received.
#[derive(Debug, Clone)]
pub struct Asked {
    pub path: String,
    pub body: Value,
    /// The body, byte for byte.
    pub raw: String,
    /// The index of the request, counted from 0.
    pub number: usize,
}

/// The response of the server.
#[derive(Debug, Clone)]
pub enum Reply {
    Answer(Vec<AnswerPart>),
    /// Like `Answer`, with the number of input tokens to report.
    Counted(Vec<AnswerPart>, u64),
    /// An HTTP error with this status and body.
    Fail(u16, String),
    /// The beginning of an answer. The connection then stays open without data.
    Hang(Vec<AnswerPart>),
    /// The connection is closed after this part of a response.
    CloseAfter(ReplyPart),
}

/// The part of a response that is sent before the connection is closed.
#[derive(Debug, Clone, Copy)]
pub enum ReplyPart {
    Nothing,
    Headers,
    /// The headers, and the first byte of the body.
    FirstByte,
}

impl From<Vec<AnswerPart>> for Reply {
    fn from(parts: Vec<AnswerPart>) -> Self {
        Self::Answer(parts)
    }
}

type Script = dyn Fn(&Asked) -> Reply + Send + Sync;

/// The server. It stops when this value is dropped.
pub struct Server {
    pub url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    /// Number of requests for the size of the context.
    window_queries: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Starts a server that answers with the results of `script`.
    pub async fn start(script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with_window(None, script).await
    }

    /// Starts a server that also tells the size of its context, as llama.cpp does.
    pub async fn start_with_window(
        window: Option<u64>,
        script: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (seen, script) = (asked.clone(), Arc::new(script) as Arc<Script>);
        let window_queries = Arc::<AtomicUsize>::default();
        let count = window_queries.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let queries = count.clone();
                tokio::spawn(serve(stream, seen.clone(), script.clone(), window, queries));
            }
        });
        Self {
            url,
            asked,
            window_queries,
            task,
        }
    }

    /// Starts a server that gives these answers in order.
    pub async fn saying(answers: Vec<Vec<AnswerPart>>) -> Self {
        Self::start(move |asked| match answers.get(asked.number) {
            Some(parts) => parts.clone().into(),
            None => Reply::Fail(400, format!("request {} was not expected", asked.number)),
        })
        .await
    }

    /// Returns how often the server was asked for the size of its context.
    pub fn window_queries(&self) -> usize {
        self.window_queries.load(Ordering::SeqCst)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    seen: Arc<Mutex<Vec<Asked>>>,
    script: Arc<Script>,
    window: Option<u64>,
    window_queries: Arc<AtomicUsize>,
) {
    let _ = stream.set_nodelay(true);
    let mut bytes = Vec::new();
    while let Some((path, raw)) = request(&mut stream, &mut bytes).await {
        // Requests about the server are not part of the conversation.
        if !["/responses", "/completions", "/messages"]
            .iter()
            .any(|resource| path.ends_with(resource))
        {
            window_queries.fetch_add(usize::from(path == "/props"), Ordering::SeqCst);
            let reply = match window.filter(|_| path == "/props") {
                Some(window) => {
                    let props = serde_json::json!({
                        "default_generation_settings": {"n_ctx": window},
                    });
                    let (props, length) = (props.to_string(), props.to_string().len());
                    format!("HTTP/1.1 200 X\r\ncontent-length: {length}\r\n\r\n{props}")
                }
                None => "HTTP/1.1 404 X\r\ncontent-length: 2\r\n\r\n{}".to_owned(),
            };
            if stream.write_all(reply.as_bytes()).await.is_err() {
                return;
            }
            continue;
        }
        let asked = {
            let mut seen = seen.lock().unwrap();
            let body = serde_json::from_str(&raw).unwrap_or_default();
            let asked = Asked {
                path,
                body,
                raw,
                number: seen.len(),
            };
            seen.push(asked.clone());
            asked
        };
        // A script may block, which must not stop the agent on the same runtime.
        let (script, of_script) = (script.clone(), asked.clone());
        let reply = tokio::task::spawn_blocking(move || script(&of_script));
        let (status, kind, text, hang) = match reply.await.unwrap() {
            Reply::Answer(parts) => (200, "text/event-stream", encode(&asked.path, &parts), false),
            Reply::Counted(parts, input) => (
                200,
                "text/event-stream",
                encode_counted(&asked.path, &parts, input),
                false,
            ),
            Reply::Fail(status, words) => (status, "application/json", words, false),
            Reply::Hang(parts) => (200, "text/event-stream", encode(&asked.path, &parts), true),
            Reply::CloseAfter(part) => {
                let headers = "HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n\
                     transfer-encoding: chunked\r\n\r\n";
                let sent = match part {
                    ReplyPart::Nothing => String::new(),
                    ReplyPart::Headers => headers.to_owned(),
                    ReplyPart::FirstByte => format!("{headers}1\r\nd\r\n"),
                };
                let _ = stream.write_all(sent.as_bytes()).await;
                return;
            }
        };
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        let end = if hang {
            text.rfind("event: ").or(text.rfind("data: ")).unwrap_or(0) * 3 / 4
        } else {
            text.len()
        };
        let mut out = head.into_bytes();
        // Chunks that do not end at event boundaries.
        for piece in text.as_bytes()[..end].chunks(997) {
            out.extend(format!("{:x}\r\n", piece.len()).bytes());
            out.extend(piece);
            out.extend(b"\r\n");
        }
        if !hang {
            out.extend(b"0\r\n\r\n");
        }
        if stream.write_all(&out).await.is_err() {
            return;
        }
        if hang {
            // Waits until the client disconnects.
            let mut rest = [0; 64];
            while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
            return;
        }
    }
}

async fn request(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<(String, String)> {
    let mut buffer = [0; 16 * 1024];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length = head.lines().find_map(|line| {
                line.to_lowercase()
                    .strip_prefix("content-length:")
                    .map(|n| n.trim().parse::<usize>().unwrap())
            });
            let whole = end + 4 + length.unwrap_or(0);
            if bytes.len() >= whole {
                let body = String::from_utf8_lossy(&bytes[end + 4..whole]).into_owned();
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                bytes.drain(..whole);
                return Some((path, body));
            }
        }
        let read = stream.read(&mut buffer).await.ok()?;
        if read == 0 {
            return None;
        }
        bytes.extend_from_slice(&buffer[..read]);
    }
}
