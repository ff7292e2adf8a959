//! Killed and stopped servers: no message is lost, no event is missing or doubled.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::answer_encoding::{block, text};
use crate::fixture::{ServeFixture, config_text};
use crate::server::{Asked, Reply};
use crate::support::TEST_TIMEOUT;
use crate::support::api::ApiClient;

/// Configuration of a server that does not wait for turns when it stops.
const NO_DRAIN: &str = "serve.drain_timeout_ms = 0";

/// How a server ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ServerEnd {
    Kill,
    Terminate,
}

/// Returns the items that a session has, without those of the user.
pub fn stored_items(client: &ApiClient, session: &str) -> Vec<Value> {
    let items = client.get(&format!("/api/v1/sessions/{session}/items"));
    let items = items.body["items"].as_array().unwrap().iter();
    items
        .map(|entry| entry["item"].clone())
        .filter(|item| item["role"] != "user")
        .collect()
}

/// Waits until a condition holds.
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Checks that the numbers have no gap, and returns the items that remain of the completed ones
/// after the dropped ones are removed.
pub fn remaining_items(client: &ApiClient, session: &str) -> Vec<Value> {
    let events = client.stored_events(session, 0);
    let numbers: Vec<u64> = events.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=events.len() as u64).collect::<Vec<_>>());
    let mut items: Vec<(String, Value)> = Vec::new();
    for (_, event) in events {
        let id = event["item_id"].as_str().unwrap_or_default().to_owned();
        match event["type"].as_str().unwrap() {
            "item.completed" => items.push((id, event["item"].clone())),
            "item.dropped" => items.retain(|(other, _)| *other != id),
            _ => {}
        }
    }
    items.into_iter().map(|(_, item)| item).collect()
}

fn a_turn_continues_after(end: ServerEnd) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let script = move |_: &Asked| match count.fetch_add(1, Ordering::SeqCst) {
        0 => vec![text(&block(
            "await tools.exec({ command: ['sh', '-c', 'echo x >> ran.txt'] }); return 'ran'",
        ))]
        .into(),
        // The server ends while the model answers.
        1 => Reply::Hang(vec![text("lost answer")]),
        number => vec![text(&format!("answer {number}"))].into(),
    };
    let fixture = ServeFixture::with_config(NO_DRAIN, script);
    let (mut server, client) = fixture.start();
    let session = client.session(json!({"prompt": "go"}));
    let queued = client.message(&session, "and then");
    client.follow(&session, None).until("item.updated");
    match end {
        ServerEnd::Kill => server.kill(),
        ServerEnd::Terminate => server.terminate(),
    }
    let (_server, client) = fixture.start();
    let first = client.answer(&session, 1);
    assert_eq!(
        (&first["answer"], &first["turn"]),
        (&json!("answer 2"), &json!(1)),
        "{end:?}"
    );
    assert_eq!(client.answer(&session, queued)["answer"], "answer 3");
    // The completed call was not repeated.
    let ran = std::fs::read_to_string(fixture.workspace.work().join("ran.txt")).unwrap();
    assert_eq!(ran, "x\n", "{end:?}");
    let stored = stored_items(&client, &session);
    assert_eq!(remaining_items(&client, &session), stored, "{end:?}");
}

#[test]
fn a_turn_continues_after_a_kill() {
    a_turn_continues_after(ServerEnd::Kill);
}

#[test]
fn a_turn_continues_after_a_graceful_stop() {
    a_turn_continues_after(ServerEnd::Terminate);
}

#[test]
fn a_script_that_ran_when_the_server_was_killed_is_resumed() {
    for end in [ServerEnd::Kill, ServerEnd::Terminate] {
        let fixture = ServeFixture::with_config(NO_DRAIN, |asked| match asked.number {
            0 => vec![text(&block(
                "await tools.exec({ command: ['sh', '-c', 'echo 1 >> ran.txt'] }); \
                 await tools.exec({ command: ['sh', '-c', \
                    'echo 2 >> ran.txt; while [ ! -e go ]; do sleep 0.02; done'] }); \
                 return 'both'",
            ))]
            .into(),
            _ => vec![text("done")].into(),
        });
        let (mut server, client) = fixture.start();
        let session = client.session(json!({"prompt": "go"}));
        let ran = fixture.workspace.work().join("ran.txt");
        let lines = || {
            std::fs::read_to_string(&ran)
                .unwrap_or_default()
                .lines()
                .count()
        };
        wait_until("the second command starts", || lines() == 2);
        match end {
            ServerEnd::Kill => server.kill(),
            ServerEnd::Terminate => server.terminate(),
        }
        std::fs::write(fixture.workspace.work().join("go"), "").unwrap();
        let (_server, client) = fixture.start();
        assert_eq!(client.answer(&session, 1)["answer"], "done", "{end:?}");
        let text = std::fs::read_to_string(&ran).unwrap();
        assert_eq!(text.matches('1').count(), 1, "{end:?}: {text}");
        remaining_items(&client, &session);
    }
}

#[test]
fn an_output_before_the_kill_of_a_later_script_has_one_event() {
    let fixture = ServeFixture::new(|asked| match asked.number {
        0 => {
            let second = "await tools.exec({ command: ['sh', '-c', \
                'touch begun; while [ ! -e go ]; do sleep 0.02; done'] }); return 'second'";
            let answer = format!("{}\nThen:\n{}", block("return 'first'"), block(second));
            vec![text(&answer)].into()
        }
        _ => vec![text("done")].into(),
    });
    let (mut server, client) = fixture.start();
    let session = client.session(json!({"prompt": "go"}));
    let work = fixture.workspace.work();
    wait_until("the second script runs", || work.join("begun").exists());
    server.kill();
    std::fs::write(work.join("go"), "").unwrap();
    let (_server, client) = fixture.start();
    assert_eq!(client.answer(&session, 1)["answer"], "done");
    // The events have the outputs between the scripts, the session after them.
    let sorted = |items: Vec<Value>| {
        let mut items: Vec<String> = items.iter().map(Value::to_string).collect();
        items.sort();
        items
    };
    assert_eq!(
        sorted(remaining_items(&client, &session)),
        sorted(stored_items(&client, &session))
    );
}

#[test]
fn acknowledged_messages_survive_repeated_kills() {
    let fixture = ServeFixture::new(|_| vec![text("ok")].into());
    let (mut server, mut client) = fixture.start();
    let session = client.session(json!({}));
    let mut sent = Vec::new();
    for round in 0..6 {
        sent.push(client.message(&session, &format!("message {round}")));
        std::thread::sleep(Duration::from_millis(40 * round));
        server.kill();
        (server, client) = fixture.start();
    }
    for number in &sent {
        assert_eq!(client.answer(&session, *number)["state"], "answered");
    }
    let items = client.get(&format!("/api/v1/sessions/{session}/items"));
    let items = items.body["items"].as_array().unwrap();
    let users = items.iter().filter(|entry| entry["item"]["role"] == "user");
    assert_eq!(users.count(), sent.len(), "{items:#?}");
    remaining_items(&client, &session);
    let mut events = client.follow(&session, None);
    let mut turns = 0;
    while turns < sent.len() {
        turns += usize::from(events.next_event().unwrap().1["type"] == "turn.completed");
    }
}

#[test]
fn messages_from_other_processes_are_answered() {
    let fixture = ServeFixture::new(|_| vec![text("from the server")].into());
    let (_server, client) = fixture.start();
    let session = client.session(json!({"title": "Fix login"}));
    let send = |args: &[&str]| {
        let output = fixture.workspace.command(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    send(&["sessions", "send", &session, "hello"]);
    assert_eq!(client.answer(&session, 1)["answer"], "from the server");
    send(&["channels", "follow", "eng", &session]);
    send(&["channels", "post", "eng", "@fix-login look"]);
    assert_eq!(client.answer(&session, 2)["answer"], "from the server");
}

#[test]
fn a_hangup_reloads_the_configuration() {
    let fixture =
        ServeFixture::new(|asked| vec![text(asked.body["model"].as_str().unwrap())].into());
    let (server, client) = fixture.start();
    let session = client.session(json!({"prompt": "go"}));
    assert_eq!(client.answer(&session, 1)["answer"], "mock");
    let config = config_text(&fixture.model.url, "").replacen("\"mock\"", "\"newer\"", 1);
    fixture.workspace.config(&config);
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let number = client.message(&session, "again");
        if client.answer(&session, number)["answer"] == "newer" {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "the configuration was not reloaded"
        );
    }
}

#[test]
fn item_ids_are_unique_in_a_session_also_after_a_kill() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let (mut server, mut client) = fixture.start();
    let session = client.session(json!({"prompt": "one"}));
    client.answer(&session, 1);
    for text in ["two", "three"] {
        let number = client.message(&session, text);
        client.answer(&session, number);
        server.kill();
        (server, client) = fixture.start();
    }
    let events = client.stored_events(&session, 0);
    let completed = events
        .iter()
        .filter(|(_, event)| event["type"] == "item.completed");
    let ids: Vec<&str> = completed
        .map(|(_, event)| event["item_id"].as_str().unwrap())
        .collect();
    let unique: HashSet<&str> = ids.iter().copied().collect();
    assert_eq!((ids.len(), unique.len()), (3, 3), "{ids:?}");
}

#[test]
fn events_are_followed_from_any_server() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let (_one, first) = fixture.start();
    let (_two, second) = fixture.start();
    let session = first.session(json!({}));
    let mut readers = [first.follow(&session, None), second.follow(&session, None)];
    let numbers = [&first, &second].map(|client| client.message(&session, "go"));
    for number in numbers {
        assert_eq!(first.answer(&session, number)["state"], "answered");
    }
    let stored = second.stored_events(&session, 0);
    let ends = stored
        .iter()
        .filter(|(_, event)| event["type"] == "turn.completed");
    assert_eq!(ends.count(), 2);
    for reader in &mut readers {
        let mut seen = Vec::new();
        while seen.len() < stored.len() {
            seen.extend(reader.next_event().unwrap().0);
        }
        assert_eq!(seen, (1..=stored.len() as u64).collect::<Vec<_>>());
    }
}
