//! Spans and metrics reach an OTLP collector. Run with
//! `cargo test -p selvedge --features otlp --test otlp`.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[allow(dead_code)]
#[path = "../../agent/tests/support/answer_encoding.rs"]
mod answer_encoding;

#[allow(dead_code)]
#[path = "../../agent/tests/support/server.rs"]
mod server;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use answer_encoding::{block, text};
use serde_json::Value;
use server::Server;

/// Path and body of each request that the collector received.
type Collected = Arc<Mutex<Vec<(String, Value)>>>;

/// Starts a collector. Returns its address and the requests it receives.
fn start_collector() -> (String, Collected) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let collected = Collected::default();
    let requests = collected.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, requests) = (stream.unwrap(), requests.clone());
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                loop {
                    let (mut path, mut length) = (String::new(), 0);
                    loop {
                        let mut line = String::new();
                        if reader.read_line(&mut line).unwrap_or(0) == 0 {
                            return;
                        }
                        let lower = line.to_ascii_lowercase();
                        if let Some(number) = lower.strip_prefix("content-length:") {
                            length = number.trim().parse().unwrap();
                        } else if path.is_empty() {
                            path = line
                                .split_whitespace()
                                .nth(1)
                                .unwrap_or_default()
                                .to_owned();
                        } else if line.trim().is_empty() {
                            break;
                        }
                    }
                    let mut body = vec![0; length];
                    reader.read_exact(&mut body).unwrap();
                    let body = serde_json::from_slice(&body).unwrap();
                    requests.lock().unwrap().push((path, body));
                    let response = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
                                    content-length: 2\r\n\r\n{}";
                    stream.write_all(response.as_bytes()).unwrap();
                }
            });
        }
    });
    (address, collected)
}

#[test]
fn a_turn_exports_spans_and_metrics_without_content() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let script = block("return (await tools.readFile({ path: 'a.txt' })).text");
    let server = runtime.block_on(Server::saying(vec![
        vec![text(&script)],
        vec![text("done")],
    ]));
    let dir = tempfile::tempdir().unwrap();
    let (home, work) = (dir.path().join("home"), dir.path().join("work"));
    std::fs::create_dir_all(&home).unwrap();
    std::fs::create_dir_all(&work).unwrap();
    std::fs::write(work.join("a.txt"), "one\n").unwrap();
    let config = format!(
        "model = \"mock\"\nmodel_provider = \"mock\"\n\
         [model_providers.mock]\nbase_url = \"{}\"\nwire_api = \"chat\"\n",
        server.url
    );
    std::fs::write(home.join("config.toml"), config).unwrap();
    let (address, collected) = start_collector();
    let output = Command::new(env!("CARGO_BIN_EXE_selvedge"))
        .args(["exec", "-q", "read it"])
        .env("SELVEDGE_HOME", &home)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        .current_dir(&work)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let collected = collected.lock().unwrap();
    let spans: Vec<&Value> = collected
        .iter()
        .filter(|(path, _)| path == "/v1/traces")
        .flat_map(|(_, body)| body["resourceSpans"].as_array().unwrap())
        .flat_map(|resource| resource["scopeSpans"].as_array().unwrap())
        .flat_map(|scope| scope["spans"].as_array().unwrap())
        .collect();
    let span = |name: &str| {
        spans
            .iter()
            .find(|span| span["name"] == name)
            .unwrap_or_else(|| panic!("{spans:#?}"))
    };
    let (turn, call) = (span("turn"), span("tool_call"));
    assert_eq!(turn["traceId"], call["traceId"]);
    // The turn is an ancestor of the call.
    let mut ancestor = call["parentSpanId"].clone();
    while ancestor != turn["spanId"] {
        let parent = spans
            .iter()
            .find(|span| span["spanId"] == ancestor)
            .unwrap_or_else(|| panic!("{ancestor} {spans:#?}"));
        ancestor = parent["parentSpanId"].clone();
    }
    let metrics: String = collected
        .iter()
        .filter(|(path, _)| path == "/v1/metrics")
        .map(|(_, body)| body.to_string())
        .collect();
    for name in [
        "selvedge.turns",
        "selvedge.runs",
        "selvedge.calls",
        "selvedge.call_ms",
        "selvedge.tokens",
    ] {
        assert!(metrics.contains(&format!("\"{name}\"")), "{name} {metrics}");
    }
    let all = format!("{spans:?}{metrics}");
    assert!(
        !all.contains("read it") && !all.contains("a.txt"),
        "messages and arguments are not exported: {all}"
    );
}
