//! Attacks by an MCP server over HTTP: responses without end, and reconnections without a delay.
//! Every command has to end soon, with little memory and few requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::attempt::{Attempt, Verdict};
use crate::lab::{Lab, observe};

/// A command that takes longer than this is stopped by the attack, in effect.
const MAX_TIME: Duration = Duration::from_secs(30);

/// A command that uses more memory than this harms the machine.
const MAX_MEMORY_KB: u64 = 450_000;

/// Most requests that a command may send in the five seconds of a call.
const MAX_REQUESTS: usize = 40;

/// Number of bytes after which a response without end stops.
const FLOOD_BYTES: usize = 3 << 30;

/// What the server does instead of a proper response.
#[derive(Clone, Copy)]
struct HostileResponse {
    name: &'static str,
    /// The MCP method whose response is hostile.
    method: &'static str,
    /// Status and media type.
    head: (&'static str, &'static str),
    /// How the body begins, and what follows until the client leaves.
    body: (&'static str, &'static str),
}

const JSON: (&str, &str) = ("200 OK", "application/json");
const EVENTS: (&str, &str) = ("200 OK", "text/event-stream");

const RESPONSES: [HostileResponse; 13] = [
    response("a result without end", "tools/call", JSON, ("\"", "x")),
    response("blanks without end", "tools/call", JSON, ("", " ")),
    response("a greeting without end", "initialize", JSON, ("\"", "x")),
    response("a list without end", "tools/list", JSON, ("\"", "x")),
    response(
        "an error without end",
        "tools/call",
        ("500 Internal Server Error", "application/json"),
        ("\"", "x"),
    ),
    response(
        "an error text without end",
        "tools/call",
        ("400 Bad Request", "text/plain"),
        ("", "x"),
    ),
    response(
        "an error page in the handshake",
        "initialize",
        ("404 Not Found", "text/html"),
        ("", "x"),
    ),
    response(
        "an event without end",
        "tools/call",
        EVENTS,
        ("data: ", "x"),
    ),
    response("lines without end", "tools/call", EVENTS, ("", "data: x\n")),
    response("comments without end", "tools/call", EVENTS, ("", ": x\n")),
    response(
        "an event id without end",
        "tools/call",
        EVENTS,
        ("id: ", "x"),
    ),
    response(
        "notifications without end",
        "tools/call",
        EVENTS,
        (
            "",
            "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":\
             {\"level\":\"info\",\"data\":1}}\n\n",
        ),
    ),
    response(
        "an accepted body",
        "tools/call",
        ("202 Accepted", "text/plain"),
        ("", "x"),
    ),
];

const fn response(
    name: &'static str,
    method: &'static str,
    head: (&'static str, &'static str),
    body: (&'static str, &'static str),
) -> HostileResponse {
    HostileResponse {
        name,
        method,
        head,
        body,
    }
}

pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    let mut all = Vec::new();
    for hostile in RESPONSES {
        all.push(Attempt::new(hostile.name, move |lab| {
            run_script(lab, move |stream, request| {
                match request.method == hostile.method {
                    true => flood(stream, hostile),
                    false => respond(stream, request),
                }
            })
        }));
    }
    for (name, media_type) in [
        ("a result of many values", "application/json"),
        ("an event of many values", "text/event-stream"),
    ] {
        all.push(Attempt::new(name, move |lab| {
            run_script(lab, move |stream, request| match request.method.as_str() {
                "tools/call" => send_many_values(stream, request, media_type),
                _ => respond(stream, request),
            })
        }));
    }
    // An event with an id asks the client to reconnect when the response ends without a result.
    const RECONNECT: &[u8] = b"id: 1\nretry: 0\n\n";
    all.push(Attempt::new(
        "reconnections of a call without a delay",
        |lab| {
            run_script(lab, |stream, request| match request.method.as_str() {
                "tools/call" | "" => send(stream, "200 OK", "text/event-stream", RECONNECT),
                _ => respond(stream, request),
            })
        },
    ));
    all.push(Attempt::new(
        "reconnections of a session without a delay",
        |lab| {
            run_script(lab, |stream, request| match request.method.as_str() {
                // No answer before the time limit of the call.
                "tools/call" => {
                    std::thread::sleep(MAX_TIME);
                    Ok(())
                }
                "" => send(stream, "200 OK", "text/event-stream", RECONNECT),
                _ => respond(stream, request),
            })
        },
    ));
    all.push(Attempt::new("reconnections after a broken stream", |lab| {
        run_script(lab, |stream, request| match request.method.as_str() {
            "tools/call" | "" => break_off(stream, b"id: 1\n\n"),
            _ => respond(stream, request),
        })
    }));
    all.push(Attempt::new("a compressed body is not asked for", |lab| {
        run_script(lab, |stream, request| {
            anyhow::ensure!(!request.accepts_encoding);
            respond(stream, request)
        })
    }));
    Ok(all)
}

/// A request of the client.
struct Request {
    /// The MCP method; empty for a request without a body.
    method: String,
    id: Value,
    accepts_encoding: bool,
}

/// Answers one request.
type HostileReply = dyn Fn(&mut TcpStream, &Request) -> Result<()> + Send + Sync;

/// Runs a script that calls a tool of a server that answers like this.
fn run_script(
    lab: &Lab,
    reply: impl Fn(&mut TcpStream, &Request) -> Result<()> + Send + Sync + 'static,
) -> Result<Verdict> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let config = format!(
        "[mcp_servers.hostile]\nurl = \"http://{}/mcp\"\ntool_timeout_sec = 5\n\
         startup_timeout_sec = 5\n",
        listener.local_addr()?
    );
    std::fs::write(lab.home().join("config.toml"), config)?;
    let (requests, encodings) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (requests.clone(), encodings.clone());
    let reply: Arc<HostileReply> = Arc::new(reply);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (reply, counts) = (reply.clone(), counts.clone());
            std::thread::spawn(move || -> Result<()> {
                let request = read_request(&stream)?;
                counts.0.fetch_add(1, Ordering::Relaxed);
                counts
                    .1
                    .fetch_add(usize::from(request.accepts_encoding), Ordering::Relaxed);
                reply(&mut stream, &request)
            });
        }
    });
    let source = "return await hostile.act({}).then(() => 1, e => e.message)";
    let command = lab.selvedge(&["run", "--json", "--timeout", "20s", "-"]);
    let seen = observe(command, source)?;
    let (requests, encodings) = (
        requests.load(Ordering::Relaxed),
        encodings.load(Ordering::Relaxed),
    );
    anyhow::ensure!(requests > 0, "no request was sent: {}", seen.output());
    let kept = seen.ended_cleanly()
        && seen.elapsed < MAX_TIME
        && seen.peak_memory_kb < MAX_MEMORY_KB
        && requests <= MAX_REQUESTS
        && encodings == 0;
    let output: String = seen.output().chars().take(1000).collect();
    Ok(Verdict::held_if(
        kept,
        format!(
            "{:?}, {} KB, {requests} requests, {encodings} with encodings: {output}",
            seen.elapsed, seen.peak_memory_kb
        ),
    ))
}

fn read_request(stream: &TcpStream) -> Result<Request> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut length, mut accepts_encoding) = (0, false);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        let line = line.to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        accepts_encoding |= line.starts_with("accept-encoding:");
    }
    let mut body = Vec::new();
    reader.take(length).read_to_end(&mut body)?;
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Ok(Request {
        method: body["method"].as_str().unwrap_or_default().to_owned(),
        id: body["id"].clone(),
        accepts_encoding,
    })
}

/// Responds as a proper server does.
fn respond(stream: &mut TcpStream, request: &Request) -> Result<()> {
    let result = match request.method.as_str() {
        "initialize" => json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                               "serverInfo": {"name": "hostile", "version": "1"}}),
        "tools/list" => json!({"tools": [{"name": "act", "inputSchema": {"type": "object"}}]}),
        "tools/call" => json!({"content": [{"type": "text", "text": "ok"}]}),
        "" => return send(stream, "405 Method Not Allowed", "text/plain", b""),
        _ if request.id.is_null() => return send(stream, "202 Accepted", "text/plain", b""),
        _ => json!({}),
    };
    let body = json!({"jsonrpc": "2.0", "id": request.id, "result": result});
    send(stream, JSON.0, JSON.1, body.to_string().as_bytes())
}

fn send(stream: &mut TcpStream, status: &str, media_type: &str, body: &[u8]) -> Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: {media_type}\r\nmcp-session-id: s1\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(body).context("the client left")
}

/// Sends the beginning of a stream that is longer.
fn break_off(stream: &mut TcpStream, body: &[u8]) -> Result<()> {
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nmcp-session-id: s1\r\n\
         content-length: 1000\r\nconnection: close\r\n\r\n"
    )?;
    stream.write_all(body).context("the client left")
}

/// Sends a body until the client leaves.
fn flood(stream: &mut TcpStream, hostile: HostileResponse) -> Result<()> {
    let ((status, media_type), (start, unit)) = (hostile.head, hostile.body);
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: {media_type}\r\nmcp-session-id: s1\r\n\
         connection: close\r\n\r\n{start}"
    )?;
    let chunk = unit.repeat((1 << 20) / unit.len());
    for _ in 0..FLOOD_BYTES / chunk.len() {
        stream.write_all(chunk.as_bytes())?;
    }
    Ok(())
}

/// Sends a result within the limit of size whose values take much memory.
fn send_many_values(stream: &mut TcpStream, request: &Request, media_type: &str) -> Result<()> {
    let values = format!("[{}1]", "[],".repeat(5_000_000));
    let body = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{{\"content\":[],\"structuredContent\":\
         {{\"a\":{values}}}}}}}",
        request.id
    );
    let body = match media_type == EVENTS.1 {
        true => format!("data: {body}\n\n"),
        false => body,
    };
    send(stream, "200 OK", media_type, body.as_bytes())
}
