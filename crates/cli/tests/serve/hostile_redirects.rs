//! A page that a person allowed redirects to other servers of the machine, as a table.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::json;

use crate::fixture::ServeFixture;
use crate::isolation::runs_scripts;
use crate::support::TEST_TIMEOUT;
use crate::support::api::ApiClient;

/// A server that redirects every request to a target that can be changed, and its number of
/// requests.
struct RedirectingServer {
    port: u16,
    answer: Arc<Mutex<(u16, String)>>,
    requests: Arc<AtomicU32>,
}

impl RedirectingServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            answer: Arc::default(),
            requests: Arc::default(),
        };
        let (answer, requests) = (server.answer.clone(), server.requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                lines.map_while(Result::ok).find(String::is_empty);
                requests.fetch_add(1, Ordering::SeqCst);
                let (status, target) = answer.lock().unwrap().clone();
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status} Moved\r\nLocation: {target}\r\nContent-Length: 0\r\n\
                     Connection: close\r\n\r\n"
                );
            }
        });
        server
    }
}

/// Runs a script, approves the first call that asks, and denies the others.
fn run_and_approve_once(client: &ApiClient, code: &str) -> String {
    let session = client.session(json!({}));
    let number = client.message(&session, &format!("RUN:{code}"));
    let (mut decision, deadline) = ("once", Instant::now() + TEST_TIMEOUT);
    loop {
        let path = format!("/api/v1/sessions/{session}/messages/{number}?wait_ms=100");
        let message = client.get(&path).body;
        if ["answered", "failed"].contains(&message["state"].as_str().unwrap()) {
            return message["answer"].as_str().unwrap_or_default().to_owned();
        }
        let asked = client.get(&format!("/api/v1/approvals?session={session}"));
        for approval in asked.body["approvals"].as_array().unwrap() {
            let path = format!("/api/v1/approvals/{}", approval["id"].as_str().unwrap());
            client.post(&path, json!({"decision": decision}));
            decision = "deny";
        }
        assert!(Instant::now() < deadline, "not answered: {message}");
    }
}

#[test]
fn an_allowed_page_leads_to_no_other_server_of_the_machine() {
    let fixture = ServeFixture::new(runs_scripts);
    let (_server, client) = fixture.start();
    let (page, inner) = (RedirectingServer::start(), RedirectingServer::start());
    let code = format!(
        "return await tools.fetchUrl({{ urls: ['http://127.0.0.1:{}/a'] }}) \
         .then(r => 'RESULT ' + JSON.stringify(r), e => 'REFUSED ' + e)",
        page.port
    );
    let mut expected = 0;
    for (status, target) in [
        (302, "http://127.0.0.1:INNER/x"),
        (301, "http://localhost:INNER/x"),
        (303, "http://localhost:INNER/x"),
        (307, "http://localhost:INNER/x"),
        (308, "http://localhost:INNER/x"),
        (302, "//127.0.0.1:INNER/x"),
        (302, "http://[::ffff:127.0.0.1]:INNER/x"),
        (302, "http://0:INNER/x"),
        (302, "http://2130706433:INNER/x"),
        (302, "http://127.0.0.1:0INNER/x"),
        (302, "http://127.0.0.1:PAGE@127.0.0.1:INNER/x"),
        (302, "http:\\\\127.0.0.1:INNER\\x"),
        (302, "/\\127.0.0.1:INNER/x"),
        (302, "http://localhost:PAGE/x"),
        (302, "http://169.254.169.254/latest"),
        (302, "file:///etc/passwd"),
        (302, "gopher://127.0.0.1:INNER/_x"),
        (302, "ftp://127.0.0.1:INNER/"),
        (302, "data:text/plain,hello"),
    ] {
        let target = target.replace("INNER", &inner.port.to_string());
        let target = target.replace("PAGE", &page.port.to_string());
        *page.answer.lock().unwrap() = (status, target.clone());
        let answer = run_and_approve_once(&client, &code);
        expected += 1;
        assert!(answer.contains("REFUSED "), "{target}: {answer}");
        assert!(!answer.contains("root:x"), "{target}: {answer}");
        assert_eq!(page.requests.load(Ordering::SeqCst), expected, "{target}");
        assert_eq!(
            inner.requests.load(Ordering::SeqCst),
            0,
            "{target}: {answer}"
        );
    }
    // A page that leads to itself is given up.
    *page.answer.lock().unwrap() = (302, format!("http://127.0.0.1:{}/loop", page.port));
    let answer = run_and_approve_once(&client, &code);
    assert!(answer.contains("more than 10 redirects"), "{answer}");
}
