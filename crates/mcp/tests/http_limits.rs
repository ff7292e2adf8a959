//! HTTP servers whose responses have no end, or that ask for reconnections without a delay.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use selvedge_mcp::{McpTransport, ServerSettings};
use serde_json::{Value, json};
use support::{run, servers, value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Number of bytes after which a response without end stops.
const FLOOD_BYTES: usize = 1 << 30;

/// What the server does when the tool of this name is called.
#[derive(Clone, Copy)]
enum Response {
    /// A body that begins and goes on like this, with status and media type.
    Flood(&'static str, &'static str, &'static str, &'static str),
    /// A complete body, with its media type.
    Complete(&'static str, &'static str),
}

/// A server with the tools `good` and `bad`.
struct LimitTestServer {
    settings: ServerSettings,
    /// Number of requests for a stream.
    streams: Arc<AtomicUsize>,
    /// Number of bytes of the last response that were accepted.
    sent: Arc<AtomicUsize>,
}

async fn http_server(bad: Response) -> LimitTestServer {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let transport = McpTransport::Http {
        url: format!("http://{}/mcp", listener.local_addr().unwrap()),
        bearer_token_env_var: None,
        headers: Default::default(),
    };
    let mut settings = ServerSettings::new("web", transport);
    settings.options.tool_timeout_sec = match bad {
        Response::Flood(..) => 60.0,
        Response::Complete(..) => 3.0,
    };
    let server = LimitTestServer {
        settings,
        streams: Arc::new(AtomicUsize::new(0)),
        sent: Arc::new(AtomicUsize::new(0)),
    };
    let (streams, sent) = (server.streams.clone(), server.sent.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(respond(stream, bad, streams.clone(), sent.clone()));
        }
    });
    server
}

async fn respond(
    mut stream: TcpStream,
    bad: Response,
    streams: Arc<AtomicUsize>,
    sent: Arc<AtomicUsize>,
) {
    let (head, body) = read_request(&mut stream).await;
    assert!(!head.contains("accept-encoding"), "{head}");
    let is_stream = head.starts_with("get");
    streams.fetch_add(usize::from(is_stream), Ordering::Relaxed);
    let is_bad = is_stream || body["params"]["name"] == "bad";
    let result = match body["method"].as_str().unwrap_or_default() {
        "initialize" => json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                               "serverInfo": {"name": "web", "version": "1"}}),
        "tools/list" => {
            let tool = |name| json!({"name": name, "inputSchema": {"type": "object"}});
            json!({"tools": [tool("good"), tool("bad")]})
        }
        _ => json!({"content": [{"type": "text", "text": "ok"}]}),
    };
    let result = json!({"jsonrpc": "2.0", "id": body["id"], "result": result}).to_string();
    let (status, media_type, body) = match bad {
        Response::Complete(media_type, body) if is_bad => ("200 OK", media_type, body),
        Response::Flood(status, media_type, start, unit) if is_bad && !is_stream => {
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-type: {media_type}\r\nconnection: close\r\n\r\n"
            );
            let _ = stream.write_all(format!("{head}{start}").as_bytes()).await;
            let chunk = unit.repeat(100_000);
            sent.store(0, Ordering::Relaxed);
            while sent.load(Ordering::Relaxed) < FLOOD_BYTES
                && stream.write_all(chunk.as_bytes()).await.is_ok()
            {
                sent.fetch_add(chunk.len(), Ordering::Relaxed);
            }
            return;
        }
        _ if is_stream => ("405 Method Not Allowed", "text/plain", ""),
        _ => ("200 OK", "application/json", result.as_str()),
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {media_type}\r\nmcp-session-id: s1\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(answer.as_bytes()).await;
}

/// Returns the head of a request in lower case, and its body.
async fn read_request(stream: &mut TcpStream) -> (String, Value) {
    let mut text = Vec::new();
    loop {
        let mut part = [0; 4096];
        let len = stream.read(&mut part).await.unwrap_or(0);
        text.extend_from_slice(&part[..len]);
        let all = String::from_utf8_lossy(&text);
        if let Some((head, body)) = all.split_once("\r\n\r\n") {
            let body = serde_json::from_str(body);
            if len == 0 || head.starts_with("GET") || body.is_ok() {
                return (head.to_lowercase(), body.unwrap_or(Value::Null));
            }
        } else if len == 0 {
            return (String::new(), Value::Null);
        }
    }
}

#[tokio::test]
async fn a_response_without_end_is_an_error_and_the_next_call_works() {
    for (status, media_type, start, unit) in [
        ("200 OK", "application/json", "\"", "x"),
        ("200 OK", "application/json", "", " "),
        ("500 Internal Server Error", "application/json", "\"", "x"),
        ("400 Bad Request", "text/plain", "", "x"),
        ("200 OK", "text/event-stream", "data: ", "x"),
        ("200 OK", "text/event-stream", "", "data: x\n"),
        ("200 OK", "text/event-stream", "id: ", "x"),
    ] {
        let server = http_server(Response::Flood(status, media_type, start, unit)).await;
        let web = servers(vec![server.settings.clone()]);
        let started = Instant::now();
        let script = "const failed = await web.bad({}).then(() => '', e => e.message);
            return [failed, (await web.good.raw({})).content[0].text]";
        let got = value(&web, script).await;
        let message = got[0].as_str().unwrap();
        assert!(
            message.ends_with("it is larger than 16 MB") || message.contains("400"),
            "{status} {media_type} {start}: {message}"
        );
        assert_eq!(got[1], "ok");
        let sent = server.sent.load(Ordering::Relaxed);
        assert!(sent < 64 << 20, "{sent} bytes were read");
        assert!(started.elapsed() < Duration::from_secs(50));
    }
}

#[tokio::test]
async fn reconnections_have_a_minimum_delay() {
    let event = "id: 1\nretry: 0\n\n";
    let server = http_server(Response::Complete("text/event-stream", event)).await;
    let web = servers(vec![server.settings.clone()]);
    run(
        &web,
        "return await web.bad({}).then(() => '', e => e.message)",
    )
    .await;
    // Two streams, of the session and of the call, for three seconds.
    let streams = server.streams.load(Ordering::Relaxed);
    assert!((1..=16).contains(&streams), "{streams} requests");
}
