//! The context window of a model, as servers on loopback report it.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use selvedge_models::{Model, ModelClient, Provider, WindowSource};
use selvedge_protocol::WireApi;
use serde_json::{Value, json};

/// Longer than any query takes, so that only a test that hangs fails.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A server that answers some paths with JSON, and all others with 404.
struct WindowServer {
    url: String,
    paths: Arc<Mutex<Vec<String>>>,
}

impl WindowServer {
    fn start(answers: Vec<(&'static str, String)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let paths = Arc::new(Mutex::new(Vec::new()));
        let seen = paths.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut first, mut length) = (String::new(), 0);
                reader.read_line(&mut first).unwrap();
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    if line.trim().is_empty() {
                        break;
                    }
                }
                let mut body = String::new();
                reader.take(length).read_to_string(&mut body).unwrap();
                let path = first.split(' ').nth(1).unwrap().to_owned();
                seen.lock().unwrap().push(format!("{path} {body}"));
                let answer = answers.iter().find(|(known, _)| *known == path);
                let (status, text) = match answer {
                    Some((_, text)) => (200, text.as_str()),
                    None => (404, "{}"),
                };
                let length = text.len();
                // A client that does not read all of it is not an error.
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n\
                     content-length: {length}\r\nconnection: close\r\n\r\n{text}"
                );
            }
        });
        Self { url, paths }
    }

    fn client(&self) -> ModelClient {
        ModelClient::new(Provider::new("own", &self.url, WireApi::Chat)).unwrap()
    }
}

async fn reported(server: &WindowServer, model: &Model) -> u64 {
    let client = server.client();
    client.start_window_query(model);
    client.wait_for_window(model, TEST_TIMEOUT).await;
    client.context_window(model)
}

#[tokio::test]
async fn servers_report_the_window_of_a_model() {
    let list = |entry: Value| json!({"object": "list", "data": [{"id": "other"}, entry]});
    let show = |parameters: &str| {
        json!({"parameters": parameters, "model_info": {"general.architecture": "qwen3",
               "qwen3.block_count": 28, "qwen3.context_length": 40_960}})
    };
    for (server, path, answer, expected) in [
        (
            "llama.cpp",
            "/props",
            json!({"default_generation_settings": {"n_ctx": 8_192}, "total_slots": 1}),
            8_192,
        ),
        (
            "Ollama",
            "/api/show",
            show("temperature 1\nnum_ctx                        16384"),
            16_384,
        ),
        (
            "Ollama without a parameter",
            "/api/show",
            show("temperature 1"),
            40_960,
        ),
        (
            "vLLM",
            "/v1/models",
            list(json!({"id": "qwen3", "max_model_len": 24_576})),
            24_576,
        ),
        (
            "OpenRouter",
            "/v1/models",
            list(json!({"id": "qwen3", "context_length": 262_144,
                        "top_provider": {"context_length": 65_536}})),
            65_536,
        ),
        (
            "a list without sizes",
            "/v1/models",
            list(json!({"id": "qwen3"})),
            131_072,
        ),
        (
            "a wrong size",
            "/props",
            json!({"default_generation_settings": {"n_ctx": 3}}),
            131_072,
        ),
        ("another document", "/props", json!([1, 2]), 131_072),
    ] {
        let mut answers = vec![(path, answer.to_string())];
        if path == "/api/show" {
            answers.push(("/api/version", json!({"version": "0.12.0"}).to_string()));
        }
        let running = WindowServer::start(answers);
        let window = reported(&running, &Model::from_table("qwen3")).await;
        assert_eq!(window, expected, "{server}");
    }
}

#[tokio::test]
async fn a_server_is_asked_once_for_a_model_and_not_if_the_size_is_configured() {
    let props = json!({"default_generation_settings": {"n_ctx": 8_192}}).to_string();
    let server = WindowServer::start(vec![("/props", props)]);
    let configured = Model {
        window_source: WindowSource::Configured,
        ..Model::from_table("tiny")
    };
    assert_eq!(reported(&server, &configured).await, 32_768);
    assert!(server.paths.lock().unwrap().is_empty());
    for _ in 0..3 {
        assert_eq!(reported(&server, &Model::from_table("tiny")).await, 8_192);
    }
    let mut paths = server.paths.lock().unwrap().clone();
    paths.sort();
    assert_eq!(
        paths,
        ["/api/version ", "/props ", "/v1/models "],
        "only Ollama gets a POST request"
    );
}

#[tokio::test]
async fn an_endless_answer_is_not_read() {
    let props = format!(
        "{{\"default_generation_settings\": {{\"n_ctx\": 8192}}, \"x\": \"{}\"}}",
        "x".repeat(5 << 20)
    );
    let server = WindowServer::start(vec![("/props", props)]);
    assert_eq!(reported(&server, &Model::from_table("large")).await, 32_768);
}

#[tokio::test]
async fn a_server_that_does_not_answer_delays_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let client = ModelClient::new(Provider::new("own", url, WireApi::Chat)).unwrap();
    let model = Model::from_table("slow");
    client.start_window_query(&model);
    assert_eq!(client.context_window(&model), 32_768);
    // The query gives up by itself.
    client.wait_for_window(&model, TEST_TIMEOUT).await;
    assert_eq!(client.context_window(&model), 32_768);
}

#[test]
fn an_unknown_model_of_a_remote_provider_has_more_than_a_local_one() {
    let window = |url: &str, name: &str| {
        Model::at_provider(&Provider::new("own", url, WireApi::Chat), name).context_window
    };
    assert_eq!(window("http://127.0.0.1:1/v1", "new-model"), 32_768);
    assert_eq!(window("https://api.example.com/v1", "new-model"), 128_000);
    assert_eq!(window("https://api.example.com/v1", "gpt-4o"), 128_000);
    assert_eq!(
        window("https://api.example.com/v1", "claude-sonnet-5"),
        1_000_000
    );
}
