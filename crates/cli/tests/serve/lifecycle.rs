//! Servers that share a journal with other processes, that stop, and that run for long.

use std::process::Stdio;
use std::time::{Duration, Instant};

use selvedge_journal::Journal;
use selvedge_protocol::SessionStore;
use serde_json::{Value, json};

use crate::answer_encoding::{block, text};
use crate::fixture::ServeFixture;
use crate::server::{Asked, Reply};
use crate::support::api::ApiClient;
use crate::support::{TEST_TIMEOUT, store};

/// Waits until a condition holds.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Opens the database of the journal.
fn database(fixture: &ServeFixture) -> selvedge_database::Connection {
    store::database(&fixture.workspace.home())
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.build().unwrap().block_on(future)
}

/// The last message of a request to the model.
fn last_text(asked: &Asked) -> String {
    let messages = asked.body["messages"].as_array().unwrap();
    messages.last().unwrap()["content"].to_string()
}

/// A script that says that it runs, and ends when the file `go` exists.
fn waiting_script() -> String {
    block(
        "await tools.exec({ command: ['sh', '-c', \
            'echo x >> started; while [ ! -e go ]; do sleep 0.02; done'] }); return 'went'",
    )
}

/// A model that waits in a script if it is asked to.
fn waits_if_asked(asked: &Asked) -> Reply {
    match last_text(asked).contains("please wait") {
        true => vec![text(&waiting_script())].into(),
        false => vec![text("done")].into(),
    }
}

fn post(client: &ApiClient, session: &str, action: &str, body: Value) -> (u16, Value) {
    let response = client.post(&format!("/api/v1/sessions/{session}/{action}"), body);
    (response.status, response.body)
}

#[test]
fn a_stream_has_the_events_that_another_server_stored_between() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let (_one, first) = fixture.start();
    let (_two, second) = fixture.start();
    let session = first.session(json!({}));
    let mut reader = first.follow(&session, None);
    let mut seen: Vec<u64> = Vec::new();
    // The turn of the second server is shorter than the time after which the first one looks for
    // events of other servers.
    for client in [&first, &second, &first] {
        let number = client.message(&session, "go");
        assert_eq!(client.answer(&session, number)["state"], "answered");
    }
    let stored = first.stored_events(&session, 0).len() as u64;
    while seen.last() != Some(&stored) {
        seen.extend(reader.next_event().unwrap().0);
    }
    assert_eq!(seen, (1..=stored).collect::<Vec<_>>());
}

#[test]
fn files_are_not_changed_while_a_turn_begins() {
    let fixture = ServeFixture::new(|asked| match last_text(asked).contains("write it") {
        true => vec![text(&block(
            "await tools.writeFile({ path: 'a.txt', content: 'new' })",
        ))]
        .into(),
        false => vec![text("done")].into(),
    });
    let (_server, client) = fixture.start();
    let session = client.session(json!({"prompt": "write it"}));
    assert_eq!(client.answer(&session, 1)["state"], "answered");
    // Another process has claimed the session and its next message, and has not begun the turn.
    let other = Journal::open(store::store(&fixture.workspace.home())).unwrap();
    wait_until("the session is free", || {
        other.claim_session(&session).is_ok()
    });
    client.message(&session, "and then");
    let claimed = block_on(other.claim_next(&session)).unwrap();
    assert!(claimed.is_some());
    let (status, body) = post(&client, &session, "revert", json!({}));
    assert_eq!(status, 409, "{body}");
    assert!(fixture.workspace.work().join("a.txt").exists());
    drop(other);
    assert_eq!(client.answer(&session, 2)["state"], "answered");
    let (status, body) = post(&client, &session, "revert", json!({}));
    assert_eq!((status, &body["reverted"]), (200, &json!(["a.txt"])));
}

#[test]
fn the_server_removes_old_runs_once_a_day() {
    let fixture = ServeFixture::new(|asked| match asked.number {
        0 => vec![text(&block("return 1"))].into(),
        _ => vec![text("done")].into(),
    });
    let runs = |client: &ApiClient| {
        let runs = client.get("/api/v1/runs").body["runs"].clone();
        runs.as_array().unwrap().len()
    };
    {
        let (_server, client) = fixture.start();
        let session = client.session(json!({"prompt": "go"}));
        assert_eq!(client.answer(&session, 1)["answer"], "done");
        assert!(runs(&client) > 0);
    }
    let old = "UPDATE runs SET started_ms = 1, ended_ms = 2";
    database(&fixture).execute_batch(old).unwrap();
    let marker = fixture.workspace.home().join("last-retention");
    {
        let (_server, client) = fixture.start();
        assert!(marker.exists());
        assert!(runs(&client) > 0, "a day has not passed");
    }
    std::fs::remove_file(&marker).unwrap();
    let (_server, client) = fixture.start();
    wait_until("old runs are removed", || runs(&client) == 0);
}

#[test]
fn a_decision_of_a_client_that_disconnects_reaches_the_turn() {
    let fixture = ServeFixture::new(|asked| {
        let last = last_text(asked);
        match last.contains("please") {
            true => vec![text(&block(
                "await tools.exec({ command: ['rm', '-rf', 'doomed'] }); return 'was allowed'",
            ))]
            .into(),
            false if last.contains("was allowed") => vec![text("allowed")].into(),
            false => vec![text("denied")].into(),
        }
    });
    let (_server, client) = fixture.start();
    let session = client.session(json!({"prompt": "please"}));
    let waiting = || client.get("/api/v1/approvals").body["approvals"][0].clone();
    wait_until("an approval is requested", || !waiting().is_null());
    let approval = waiting()["id"].as_str().unwrap().to_owned();
    client.follow(&session, None).until("approval.requested");
    std::thread::sleep(Duration::from_millis(500));
    // Another process writes, so that the decision cannot be stored at once.
    let database = database(&fixture);
    let lock = match store::uses_files() {
        true => "BEGIN IMMEDIATE",
        false => "BEGIN; LOCK TABLE approval_deciders",
    };
    database.execute_batch(lock).unwrap();
    let body = json!({"decision": "once"}).to_string();
    let start = format!("POST /api/v1/approvals/{approval}");
    let stream = client.send(&start, &[("Content-Type", "application/json")], &body);
    std::thread::sleep(Duration::from_millis(500));
    drop(stream);
    std::thread::sleep(Duration::from_millis(500));
    database.execute_batch("ROLLBACK").unwrap();
    assert_eq!(client.answer(&session, 1)["answer"], "allowed");
}

#[test]
fn a_stop_reaches_the_turn_of_another_process() {
    let fixture = ServeFixture::new(waits_if_asked);
    let (_server, client) = fixture.start();
    let mut command = fixture.workspace.command(&["exec", "-q", "please wait"]);
    let process = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let started = fixture.workspace.work().join("started");
    wait_until("the script runs", || started.exists());
    let sessions = client.get("/api/v1/sessions").body["sessions"].clone();
    let session = sessions[0]["id"].as_str().unwrap();
    let (status, body) = post(&client, session, "stop", json!({}));
    assert_eq!((status, &body["stopped"]), (200, &json!(true)), "{body}");
    let output = process.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("interrupted"), "{err}");
    // The request was for that turn only.
    let number = client.message(session, "again");
    assert_eq!(client.answer(session, number)["answer"], "done");
    let (_, body) = post(&client, session, "stop", json!({}));
    assert_eq!(body, json!({"stopped": false, "children": []}));
}

#[test]
fn a_stop_includes_created_sessions_on_request() {
    let fixture = ServeFixture::new(|asked| {
        let last = last_text(asked);
        if last.contains("begin") {
            let code = "const child = await sessions.create({ title: 'child' });
                return (await child.send('please wait', { wait: true })).answer";
            return vec![text(&block(code))].into();
        }
        waits_if_asked(asked)
    });
    let (_server, client) = fixture.start();
    let session = client.session(json!({"prompt": "begin"}));
    let started = fixture.workspace.work().join("started");
    wait_until("the script of the child runs", || started.exists());
    let children = client.get(&format!("/api/v1/sessions/{session}/children"));
    let child = children.body["sessions"][0]["id"].clone();
    let (_, body) = post(&client, &session, "stop", json!({"children": true}));
    assert_eq!(body, json!({"stopped": true, "children": [child]}));
    for id in [session.as_str(), child.as_str().unwrap()] {
        assert_eq!(client.answer(id, 1)["state"], "stopped");
    }
}

#[test]
fn turns_that_run_may_end_before_the_server_stops() {
    let fixture = ServeFixture::new(waits_if_asked);
    let (mut server, client) = fixture.start();
    let session = client.session(json!({"prompt": "please wait"}));
    let queued = client.message(&session, "and then");
    let started = fixture.workspace.work().join("started");
    wait_until("the script runs", || started.exists());
    let mut events = client.follow(&session, None);
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    wait_until("the server drains", || client.get("/readyz").status == 503);
    std::fs::write(fixture.workspace.work().join("go"), "").unwrap();
    // Clients see the end of the turn. The next message waits for the next server.
    events.until("turn.completed");
    assert!(events.next_event().is_none());
    wait_until("the server stops", || {
        std::net::TcpStream::connect(&server.address).is_err()
    });
    server.child.wait().unwrap();
    let asked = fixture.model.asked().len();
    let (_server, client) = fixture.start();
    assert_eq!(client.answer(&session, 1)["answer"], "done");
    assert_eq!(client.answer(&session, queued)["answer"], "done");
    // The first turn is not continued: the model answers the second message only.
    assert_eq!(fixture.model.asked().len(), asked + 1);
}

#[test]
fn a_second_signal_stops_the_server_at_once() {
    let fixture = ServeFixture::with_config("serve.drain_timeout_ms = 600000", waits_if_asked);
    let (mut server, client) = fixture.start();
    client.session(json!({"prompt": "please wait"}));
    let started = fixture.workspace.work().join("started");
    wait_until("the script runs", || started.exists());
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    wait_until("the server drains", || client.get("/readyz").status == 503);
    server.terminate();
}

#[test]
fn a_turn_that_cannot_be_set_up_fails_with_its_number() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let (server, client) = fixture.start();
    let session = client.session(json!({"prompt": "go"}));
    assert_eq!(client.answer(&session, 1)["answer"], "hello");
    drop(server);
    let config = std::fs::read_to_string(fixture.workspace.home().join("config.toml")).unwrap();
    let no_provider = "model = \"x\"\nmodel_provider = \"nowhere\"\n";
    fixture.workspace.config(no_provider);
    let (server, client) = fixture.start();
    let number = client.message(&session, "again");
    let mut events = client.follow(&session, None);
    let failed = events.until("turn.failed").pop().unwrap().1;
    assert_eq!(failed["turn"], 2, "{failed}");
    assert_eq!(failed["error"]["kind"], "setup", "{failed}");
    let answer = client.answer(&session, number);
    assert_eq!(
        (&answer["state"], &answer["turn"]),
        (&json!("failed"), &json!(2))
    );
    drop(server);
    fixture.workspace.config(&config);
    let (_server, client) = fixture.start();
    // The failed turn is part of the session, so the next one has another number.
    let number = client.message(&session, "and now");
    let answer = client.answer(&session, number);
    assert_eq!(
        (&answer["answer"], &answer["turn"]),
        (&json!("hello"), &json!(3))
    );
}

#[test]
fn a_script_learns_that_the_server_runs_its_message() {
    let fixture = ServeFixture::new(|asked| {
        let last = last_text(asked);
        match last.contains("begin") {
            true => vec![text(&block(
                "const child = await sessions.create({ title: 'child' });
                return (await child.send('work')).note",
            ))]
            .into(),
            false if last.contains("this server runs it") => vec![text("learned")].into(),
            false => vec![text("done")].into(),
        }
    });
    let (_server, client) = fixture.start();
    let session = client.session(json!({"prompt": "begin"}));
    assert_eq!(client.answer(&session, 1)["answer"], "learned");
    let children = client.get(&format!("/api/v1/sessions/{session}/children"));
    let child = children.body["sessions"][0]["id"].as_str().unwrap();
    assert_eq!(client.answer(child, 1)["answer"], "done");
}

#[test]
fn changes_of_commands_are_not_reverted_if_another_session_worked_in_the_folder() {
    let fixture = ServeFixture::new(|asked| {
        let last = last_text(asked);
        let write = "await tools.writeFile({ path: 'b.txt', content: 'b' })";
        match last.contains("write it") {
            true => vec![text(&block(write))].into(),
            false => waits_if_asked(asked),
        }
    });
    let (_server, client) = fixture.start();
    let commands = client.session(json!({"prompt": "please wait"}));
    let work = fixture.workspace.work();
    wait_until("the script runs", || work.join("started").exists());
    let tools = client.session(json!({"prompt": "write it"}));
    assert_eq!(client.answer(&tools, 1)["state"], "answered");
    std::fs::write(work.join("go"), "").unwrap();
    assert_eq!(client.answer(&commands, 1)["state"], "answered");
    // The turn with the command found the file of the other session.
    let (status, body) = post(&client, &commands, "revert", json!({}));
    let message = body["error"]["message"].as_str().unwrap();
    assert_eq!(status, 400, "{body}");
    assert!(message.contains("another session worked"), "{message}");
    assert!(work.join("b.txt").exists());
    // What a tool wrote belongs to its turn.
    let (status, body) = post(&client, &tools, "revert", json!({}));
    assert_eq!(
        (status, &body["reverted"]),
        (200, &json!(["b.txt"])),
        "{body}"
    );
    // A turn that ran alone can be reverted.
    std::fs::remove_file(work.join("go")).unwrap();
    std::fs::remove_file(work.join("started")).unwrap();
    let alone = client.message(&commands, "please wait");
    wait_until("the script runs", || work.join("started").exists());
    std::fs::write(work.join("go"), "").unwrap();
    assert_eq!(client.answer(&commands, alone)["state"], "answered");
    let (status, body) = post(&client, &commands, "revert", json!({}));
    assert_eq!(status, 200, "{body}");
    assert!(!work.join("started").exists());
}
