//! Clients that misbehave: they read slowly, disconnect and reconnect, or send slowly.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::answer_encoding::{block, text};
use crate::fixture::ServeFixture;
use crate::isolation::runs_scripts;
use crate::recovery::wait_until;
use crate::support::TestWorkspace;
use crate::support::api::{EventReader, create_token};

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

#[test]
fn oversized_and_malformed_requests_leave_nothing_behind() {
    const ROUNDS: usize = 60;
    let fixture = ServeFixture::with_config("serve.max_request_bytes = 65536", |_| {
        vec![text("hello")].into()
    });
    let (server, client) = fixture.start();
    let session = client.session(json!({"prompt": "go"}));
    client.answer(&session, 1);
    let path = format!("POST /api/v1/sessions/{session}/messages");
    let large = json!({"text": "x".repeat(100_000)}).to_string();
    let nested = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let long = "x".repeat(64 << 10);
    type RequestCase<'a> = (&'a [(&'a str, &'a str)], &'a str, u16);
    let requests: [RequestCase<'_>; 5] = [
        (&[], large.as_str(), 413),
        (&[], "{\"text\": \"x\"", 400),
        (&[], nested.as_str(), 400),
        (&[], "{\"text\": [1]}", 400),
        (&[("X-Long", long.as_str())], "{\"text\": \"x\"}", 431),
    ];
    let mut refusals = [0; 5];
    // The first rounds load code and fill caches.
    let memory = [0; 4].map(|_| {
        for _ in 0..ROUNDS {
            for ((headers, body, status), refusals) in requests.iter().zip(&mut refusals) {
                // A connection may be closed before its request is sent.
                if let Some(refused) = client.try_request(&path, headers, body) {
                    assert_eq!(refused.status, *status, "{refused:?}");
                    *refusals += 1;
                }
            }
        }
        resident_kilobytes(server.child.id())
    });
    assert!(memory[3] < memory[2] + 8000, "{memory:?} kB");
    assert!(refusals.iter().all(|count| *count > 0), "{refusals:?}");
    // None of them was stored, and the session takes the next message.
    assert_eq!(client.message(&session, "hi"), 2);
    assert_eq!(client.answer(&session, 2)["answer"], "hello");
}

#[test]
fn a_token_that_expires_ends_its_streams_and_turns() {
    const STREAMS: usize = 10;
    let fixture = ServeFixture::new(runs_scripts);
    let (server, keeper) = fixture.start();
    // Long enough for the streams and the start of the turn.
    let args = ["brief", "--expires", "20s"];
    let client = server.client(&create_token(&fixture.workspace, &args));
    let session = client.session(json!({}));
    let endless = "RUN:await tools.exec({ command: ['sh', '-c', 'touch ran; sleep 80'] })";
    let running = client.message(&session, endless);
    let ran = fixture.workspace.work().join("ran");
    wait_until("the command runs", || ran.exists());
    let queued = client.message(&session, "later");
    let streams = [0; STREAMS].map(|_| client.follow(&session, None));
    let path = format!("GET /api/v1/sessions/{session}/messages/{running}?wait_ms=60000");
    let mut waiting = client.send(&path, &[], "");
    let other = keeper.session(json!({}));
    let mut events = keeper.follow(&other, None);
    // The clients get nothing more.
    for mut stream in streams {
        let mut rest = Vec::new();
        stream.0.read_to_end(&mut rest).unwrap();
    }
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    assert_eq!(client.get("/api/v1/sessions").status, 401);
    // The turn has stopped, and what was queued does not run.
    assert_eq!(keeper.answer(&session, running)["state"], "stopped");
    assert_eq!(keeper.answer(&session, queued)["state"], "failed");
    // Others are not affected.
    let number = keeper.message(&other, "hello");
    events.until("turn.completed");
    assert_eq!(keeper.answer(&other, number)["answer"], "hello");
}

#[test]
fn clients_that_disconnect_during_a_turn_change_nothing() {
    const CLIENTS: usize = 200;
    let code = "await tools.exec({ command: ['sh', '-c', \
            'echo x >> ran; while [ ! -e go ]; do sleep 0.02; done'] }); \
        for (let i = 0; i < 50; i++) { await tools.listDir({ path: '.' }) } return 'ran'";
    let fixture = ServeFixture::new(move |asked| match asked.number {
        0 => vec![text(&block(code))].into(),
        _ => vec![text("done")].into(),
    });
    let (_server, client) = fixture.start();
    let work = fixture.workspace.work();
    let session = client.session(json!({"prompt": "go"}));
    let mut stays = client.follow(&session, None);
    wait_until("the command runs", || work.join("ran").exists());
    for number in 0..CLIENTS {
        let gone = match number % 2 {
            0 => format!("GET /api/v1/sessions/{session}/messages/1?wait_ms=60000"),
            _ => format!("GET /api/v1/sessions/{session}/events"),
        };
        drop(client.send(&gone, &[], ""));
    }
    std::fs::write(work.join("go"), "").unwrap();
    assert_eq!(client.answer(&session, 1)["answer"], "done");
    let ran = std::fs::read_to_string(work.join("ran")).unwrap();
    assert_eq!(ran, "x\n");
    let seen = stays.until("turn.completed");
    let numbers: Vec<u64> = seen.into_iter().filter_map(|event| event.0).collect();
    let stored = client.stored_events(&session, 0);
    assert!(stored.len() > 100, "{} events", stored.len());
    assert_eq!(numbers, (1..=stored.len() as u64).collect::<Vec<_>>());
    drop(stays);
    wait_until("the streams end", || {
        client
            .get("/metrics")
            .text
            .contains("selvedge_open_streams 0\n")
    });
}
