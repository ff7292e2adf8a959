//! A model on loopback that speaks streaming chat completions. What it answers depends on the last
//! message of the user.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::api_client::{content_length, head_length};
use crate::mock_agent::answer_encoding::block;

/// A message that is answered with a stream of deltas, until [`ScriptedModel::end_streams`].
pub(super) const STREAM_MESSAGE: &str = "bench: answer slowly";
/// A message that is answered with one call of a tool, then with a word.
pub(super) const CALL_MESSAGE: &str = "bench: read the file";
/// Time between two deltas of a stream.
const DELTA_INTERVAL: Duration = Duration::from_millis(100);

/// Returns the microseconds since the first call, the clock of all measurements.
pub(super) fn now_us() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_micros() as u64
}

/// How an agent calls the tool that reads a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallStyle {
    /// A script block with one call.
    Script,
    /// A structured call of the tool `read`.
    Structured,
}

/// A scripted model that runs on the current runtime.
pub(super) struct ScriptedModel {
    pub(super) url: String,
    /// Changed to end all streams.
    ended: watch::Sender<()>,
}

impl ScriptedModel {
    pub(super) async fn start(style: CallStyle) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/v1", listener.local_addr()?);
        let (ended, receiver) = watch::channel(());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, style, receiver.clone()));
            }
        });
        Ok(Self { url, ended })
    }

    /// Completes all answers that are being streamed.
    pub(super) fn end_streams(&self) {
        self.ended.send_replace(());
    }
}

/// Answers the requests of one connection. Returns `None` when it is closed.
async fn serve(mut stream: TcpStream, style: CallStyle, ended: watch::Receiver<()>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 << 10];
    loop {
        let request_length =
            head_length(&bytes).map(|head| head + content_length(&bytes[..head]).unwrap_or(0));
        let Some(length) = request_length.filter(|length| bytes.len() >= *length) else {
            let read = stream.read(&mut buffer).await.ok()?;
            bytes.extend_from_slice(buffer.get(..read).filter(|read| !read.is_empty())?);
            continue;
        };
        let request = String::from_utf8_lossy(&bytes[..length]).into_owned();
        bytes.drain(..length);
        if !request.starts_with("POST") {
            let body = r#"{"object":"list","data":[]}"#;
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
            let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await.ok()?;
            continue;
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                    transfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.ok()?;
        answer(&mut stream, &request, style, ended.clone()).await?;
    }
}

/// Streams the answer to one request.
async fn answer(
    stream: &mut TcpStream,
    request: &str,
    style: CallStyle,
    mut ended: watch::Receiver<()>,
) -> Option<()> {
    let request = without_recalled(request);
    let asked = |message: &str| request.rfind(message);
    let result = ["Result of the script", "\"role\":\"tool\""];
    let result = result.into_iter().filter_map(asked).max();
    match (asked(STREAM_MESSAGE), asked(CALL_MESSAGE)) {
        (stream_asked, call_asked) if stream_asked > call_asked => {
            ended.mark_unchanged();
            let mut ticks = tokio::time::interval(DELTA_INTERVAL);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    _ = ended.changed() => break,
                }
                let delta = json!({"role": "assistant", "content": format!("d{} ", now_us())});
                write_chunk(stream, &delta, None).await?;
            }
        }
        (_, call_asked) if call_asked > result => {
            let delta = match style {
                CallStyle::Script => {
                    let script = "return (await tools.readFile({ path: 'a.txt' })).totalLines";
                    json!({"role": "assistant", "content": block(script)})
                }
                CallStyle::Structured => {
                    let function = json!({"name": "read", "arguments": r#"{"filePath":"a.txt"}"#});
                    let call =
                        json!({"index": 0, "id": "c1", "type": "function", "function": function});
                    json!({"role": "assistant", "tool_calls": [call]})
                }
            };
            write_chunk(stream, &delta, None).await?;
            let reason = match style {
                CallStyle::Script => "stop",
                CallStyle::Structured => "tool_calls",
            };
            return end_answer(stream, reason).await;
        }
        _ => {
            let delta = json!({"role": "assistant", "content": "Done."});
            write_chunk(stream, &delta, None).await?;
        }
    }
    end_answer(stream, "stop").await
}

/// Returns a request without what the memory added to its messages, which quotes earlier ones.
fn without_recalled(request: &str) -> String {
    let (start, end) = ("<recalled>", "</recalled>");
    let mut parts = request.split(start);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once(end).map_or(part, |(_, after)| after));
    }
    text
}

async fn end_answer(stream: &mut TcpStream, reason: &str) -> Option<()> {
    write_chunk(stream, &json!({}), Some(reason)).await?;
    let end = "data: [DONE]\n\n";
    let end = format!("{:x}\r\n{end}\r\n0\r\n\r\n", end.len());
    stream.write_all(end.as_bytes()).await.ok()
}

/// Writes one event of an answer as a chunk of HTTP.
async fn write_chunk(stream: &mut TcpStream, delta: &Value, reason: Option<&str>) -> Option<()> {
    let mut event = json!({
        "id": "answer", "object": "chat.completion.chunk", "created": 1, "model": "mock",
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
    });
    if reason.is_some() {
        event["usage"] =
            json!({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120});
    }
    let event = format!("data: {event}\n\n");
    let chunk = format!("{:x}\r\n{event}\r\n", event.len());
    stream.write_all(chunk.as_bytes()).await.ok()
}
