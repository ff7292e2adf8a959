//! Turns that another process stops.

use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::answer_encoding::{block, text};
use super::server::Reply;
use super::{MessageFixture, last_text};

/// A session whose turn waits for the turn of a session that it created. The model of that one
/// answers when `answers` is set.
struct Parent {
    fixture: MessageFixture,
    process: Child,
    parent: String,
    child: String,
    answers: Arc<AtomicBool>,
}

fn start() -> Parent {
    let answers = Arc::new(AtomicBool::new(false));
    let may_answer = answers.clone();
    let fixture = MessageFixture::new(move |asked| {
        let last = last_text(asked);
        if last.contains("begin") {
            let code = "const child = await sessions.create({ title: 'child' });
                return (await child.send('work', { wait: true })).answer";
            return vec![text(&block(code))].into();
        }
        while last.contains("work") && !may_answer.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        match last.contains("hang") {
            true => Reply::Hang(vec![text("thinking")]),
            false => vec![text("The child is done.")].into(),
        }
    });
    let mut command = fixture.workspace.command(&["exec", "-q", "begin"]);
    let process = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while fixture.server.asked().len() < 2 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let sessions = fixture.sessions();
    let child = sessions.iter().find(|session| session["title"] == "child");
    let child = child.unwrap();
    Parent {
        parent: child["creator"].as_str().unwrap().to_owned(),
        child: child["id"].as_str().unwrap().to_owned(),
        fixture,
        process,
        answers,
    }
}

#[test]
fn a_stopped_session_leaves_the_sessions_that_it_created_running() {
    let started = start();
    let (fixture, id) = (&started.fixture, &started.parent);
    let (status, out, err) = fixture.run(&["sessions", "stop", id]);
    assert_eq!((status, out), (0, format!("stopped {id}\n")), "{err}");
    started.answers.store(true, Ordering::Relaxed);
    let output = started.process.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("interrupted"), "{err}");
    let (_, shown, _) = fixture.run(&["sessions", "show", &started.child]);
    assert!(shown.contains("The child is done."), "{shown}");
    let (status, _, err) = fixture.run(&["sessions", "stop", id]);
    assert_eq!(status, 2);
    assert!(err.starts_with("error: no turn of session"), "{err}");
}

#[test]
fn the_sessions_that_a_session_created_are_stopped_on_request() {
    let started = start();
    let (fixture, id) = (&started.fixture, &started.parent);
    let (status, out, err) = fixture.run(&["sessions", "stop", id, "--children"]);
    assert_eq!(status, 0, "{err}");
    assert_eq!(out, format!("stopped {id}\nstopped {}\n", started.child));
    started.answers.store(true, Ordering::Relaxed);
    let output = started.process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let (_, shown, _) = fixture.run(&["sessions", "show", &started.child]);
    assert!(!shown.contains("The child is done."), "{shown}");
}

#[test]
fn a_request_to_stop_ends_only_the_turn_that_runs() {
    let fixture = MessageFixture::new(|asked| match last_text(asked).contains("hang") {
        true => Reply::Hang(vec![text("thinking")]),
        false => vec![text("an answer")].into(),
    });
    let created = fixture.script("return await sessions.create({ prompt: 'hang' })");
    let id = created["id"].as_str().unwrap();
    fixture.run(&["sessions", "send", id, "second"]);
    let mut waiting = fixture
        .workspace
        .command(&["sessions", "send", id, "--wait"]);
    let waiting = waiting
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while fixture.server.asked().is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let (status, out, err) = fixture.run(&["sessions", "stop", id]);
    assert_eq!((status, out), (0, format!("stopped {id}\n")), "{err}");
    let output = waiting.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(
        err.contains("was stopped; the message is still queued\nhint: run"),
        "{err}"
    );
    let (status, out, err) = fixture.run(&["sessions", "send", id, "--wait"]);
    assert_eq!((status, out.as_str()), (0, "an answer\n"), "{err}");
}
