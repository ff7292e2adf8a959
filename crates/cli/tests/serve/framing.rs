//! Requests with unusual framing, headers and values: each gets one answer, and the bytes of its
//! body are never read as a second request.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;

use crate::fixture::ServeFixture;
use crate::isolation::runs_scripts;
use crate::support::TEST_TIMEOUT;
use crate::support::api::ApiClient;

/// Sends these bytes, and returns the status codes of the answers until the connection is closed.
fn statuses(client: &ApiClient, request: &str) -> Vec<u16> {
    let mut stream = TcpStream::connect(&client.address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    // A server that rejects the headers may close the connection before all bytes are sent.
    let _ = stream.write_all(request.as_bytes());
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let answers = text
        .split("HTTP/1.1 ")
        .flat_map(|part| part.split("HTTP/1.0 "));
    answers
        .skip(1)
        .map(|answer| answer[..3].parse().unwrap())
        .collect()
}

#[test]
fn a_request_with_unusual_framing_gets_one_answer() {
    let fixture = ServeFixture::new(runs_scripts);
    let (_server, client) = fixture.start();
    let host = format!("Host: {}\r\n", client.address);
    let token = format!("Authorization: Bearer {}\r\n", client.secret);
    let other = "Authorization: Bearer other\r\n";
    let hidden = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let post = format!("POST /api/v1/sessions HTTP/1.1\r\n{host}{token}");
    let get = format!("GET /api/v1/sessions HTTP/1.1\r\n{host}{token}");
    let length = hidden.len();
    let many: String = (0..200).map(|n| format!("X-{n}: 1\r\n")).collect();
    let long = "x".repeat(1 << 20);
    for (name, request, expected) in [
        (
            "two lengths",
            format!("{post}Content-Length: 2\r\nContent-Length: {length}\r\n\r\n{{}}{hidden}"),
            400,
        ),
        (
            "a list of lengths",
            format!("{post}Content-Length: 2, {length}\r\n\r\n{{}}{hidden}"),
            400,
        ),
        (
            "a negative length",
            format!("{post}Content-Length: -1\r\n\r\n{hidden}"),
            400,
        ),
        (
            "a length with a sign",
            format!("{post}Content-Length: +2\r\n\r\n{{}}{hidden}"),
            400,
        ),
        (
            "an unknown transfer encoding",
            format!("{post}Transfer-Encoding: xchunked\r\n\r\n{hidden}"),
            400,
        ),
        (
            "a folded header",
            format!("{get}X-Folded: a\r\n b\r\n\r\n{hidden}"),
            400,
        ),
        (
            "a carriage return in a value",
            format!("{get}X-Return: a\rb\r\n\r\n{hidden}"),
            400,
        ),
        (
            "a space before the colon",
            format!("{get}Content-Length : {length}\r\n\r\n{hidden}"),
            400,
        ),
        (
            "two tokens",
            format!("{get}{other}Connection: close\r\n\r\n{hidden}"),
            401,
        ),
        (
            "two tokens, the valid one last",
            format!(
                "GET /api/v1/sessions HTTP/1.1\r\n{host}{other}{token}Connection: close\r\n\r\n"
            ),
            401,
        ),
        (
            "no host",
            format!("GET /api/v1/sessions HTTP/1.0\r\n{token}\r\n"),
            400,
        ),
        (
            "two hosts",
            format!("{get}Host: localhost\r\nConnection: close\r\n\r\n"),
            400,
        ),
        ("many headers", format!("{get}{many}\r\n{hidden}"), 431),
        (
            "a long header",
            format!("{get}X-Long: {long}\r\n\r\n{hidden}"),
            431,
        ),
    ] {
        assert_eq!(statuses(&client, &request), [expected], "{name}");
    }
    // The encoding decides about the end of the body, not the length; the rest is not a request.
    let both = format!(
        "{post}Connection: close\r\nContent-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n\
         2\r\n{{}}\r\n0\r\n\r\n{hidden}"
    );
    assert_eq!(statuses(&client, &both).len(), 1, "a length and chunks");
    assert_eq!(client.get("/readyz").status, 200);
}

#[test]
fn unusual_values_are_refused_or_have_no_effect() {
    let fixture = ServeFixture::new(runs_scripts);
    let (_server, client) = fixture.start();
    let (other, _) = fixture.other_workspace("other");
    std::fs::write(other.join("secret.md"), "---\nkind: secret\n---\n").unwrap();
    let other = other.display();
    let session = client.session(json!({}));
    for (path, expected) in [
        ("sessions?after=%27".into(), 400),
        ("sessions?limit=-1".into(), 400),
        ("sessions?limit=99999999999999999999".into(), 400),
        ("runs?after=%00".into(), 200),
        ("memory/search?query=%22".into(), 200),
        ("memory/search?query=a%20NEAR/".into(), 200),
        ("memory/search?query=a*%20OR%20b:c".into(), 200),
        ("memory/search?query=%7Bsession%7D:x".into(), 200),
        ("memory/search?q=x".into(), 400),
        ("channels/%2e%2e/messages".into(), 400),
        ("channels/a%2fb/messages".into(), 400),
        ("channels/%E2%80%AEx/messages".into(), 400),
        (format!("channels/{}/messages", "x".repeat(65)), 400),
        (format!("health?workspace={other}"), 404),
        (format!("environments?workspace={other}"), 404),
        ("documents?path=../other/secret.md".into(), 403),
        (format!("documents?path={other}/secret.md"), 403),
        ("documents?path=.git/config".into(), 403),
        ("sessions/%00".into(), 404),
        ("sessions/%ff".into(), 400),
    ] {
        let response = client.get(&format!("/api/v1/{path}"));
        assert_eq!(response.status, expected, "{path}: {response:?}");
        assert!(!response.text.contains("kind: secret"), "{path}");
    }
    let events = format!("GET /api/v1/sessions/{session}/events");
    for value in ["-1", "1e3", "%00", "0x1", "18446744073709551616"] {
        let response = client.request(&events, &[("Last-Event-ID", value)], "");
        assert_eq!(response.status, 400, "{value}: {response:?}");
    }
}
