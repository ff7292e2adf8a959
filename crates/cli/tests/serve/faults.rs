//! Clients that misbehave: they read slowly, disconnect and reconnect, or send slowly.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::answer_encoding::{block, text};
use crate::fixture::ServeFixture;
use crate::support::TestWorkspace;
use crate::support::api::EventReader;

/// Returns the memory of a process that is in RAM, in kilobytes.
fn resident_kilobytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_reader_that_is_slow_gets_every_stored_event() {
    // More events than wait for one client, and more bytes than the system buffers.
    let code = "for (let i = 0; i < 200; i++) { await tools.listDir({ path: '.' }) }\n\
        return 'x'.repeat(900000)";
    let fixture = ServeFixture::new(move |asked| match asked.number % 2 {
        0 => vec![text(&block(code))].into(),
        _ => vec![text("done")].into(),
    });
    let (_server, client) = fixture.start();
    let session = client.session(json!({}));
    let stream = client.send(&format!("GET /api/v1/sessions/{session}/events"), &[], "");
    // Other clients do not wait for the slow one.
    for _ in 0..8 {
        let number = client.message(&session, "go");
        assert_eq!(client.answer(&session, number)["answer"], "done");
    }
    let stored = client.stored_events(&session, 0).len() as u64;
    assert!(stored > 8 * 400, "{stored} events");
    let mut slow = EventReader(BufReader::new(stream));
    let mut numbers = Vec::new();
    while numbers.last() != Some(&stored) {
        numbers.extend(slow.next_event().unwrap().0);
    }
    assert_eq!(numbers, (1..=stored).collect::<Vec<_>>());
}

#[test]
fn turns_leave_no_open_files_behind() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    // A turn also starts MCP servers, which have files of their own.
    fixture.add_config(&TestWorkspace::odd("odd", "plain"));
    let (server, client) = fixture.start();
    let session = client.session(json!({}));
    let open_files = |turns: u32| {
        for _ in 0..turns {
            let number = client.message(&session, "hi");
            assert_eq!(client.answer(&session, number)["answer"], "hello");
        }
        let folder = format!("/proc/{}/fd", server.child.id());
        let files = std::fs::read_dir(folder).unwrap().flatten();
        let files = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        files.collect::<Vec<_>>()
    };
    let before = open_files(5).len();
    let after = open_files(20);
    // The last turn may still be closing its own.
    assert!(
        after.len() < before + 20,
        "{before} open files, then {after:#?}"
    );
}

#[test]
fn ten_thousand_reconnects_leave_nothing_behind() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let (server, client) = fixture.start();
    let session = client.session(json!({"prompt": "go"}));
    client.answer(&session, 1);
    let last = client.stored_events(&session, 0).len() as u64;
    // The first rounds load code and fill caches.
    let memory = [0; 4].map(|_| {
        std::thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    for _ in 0..250 {
                        let mut events = client.follow(&session, Some(last - 1));
                        assert_eq!(events.next_event().unwrap().0, Some(last));
                    }
                });
            }
        });
        resident_kilobytes(server.child.id())
    });
    assert!(memory[3] < memory[2] + 8000, "{memory:?} kB");
    // Streams end when their client is gone.
    let deadline = Instant::now() + Duration::from_secs(60);
    let no_streams = "selvedge_open_streams 0\n";
    while !client.get("/metrics").text.contains(no_streams) {
        assert!(Instant::now() < deadline, "streams stay open");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn requests_that_arrive_slowly_do_not_stop_others() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let (server, client) = fixture.start();
    let mut slow: Vec<TcpStream> = Vec::new();
    for number in 0..300 {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        if number % 2 == 0 {
            let _ = stream.write_all(b"POST /api/v1/sessions HTTP/1.1\r\nHost: local");
        }
        slow.push(stream);
    }
    let session = client.session(json!({"prompt": "go"}));
    assert_eq!(client.answer(&session, 1)["answer"], "hello");
    // A body that never arrives.
    let start = "POST /api/v1/sessions HTTP/1.1\r\nContent-Length: 100\r\n";
    let mut unfinished = TcpStream::connect(&server.address).unwrap();
    let token = &client.secret;
    let head = format!("{start}Host: localhost\r\nAuthorization: Bearer {token}\r\n\r\n{{");
    unfinished.write_all(head.as_bytes()).unwrap();
    assert_eq!(client.get("/readyz").status, 200);
    unfinished
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut answer = String::new();
    unfinished.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}
