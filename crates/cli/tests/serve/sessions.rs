//! Sessions, messages and events.

use std::io::Read;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::answer_encoding::{block, text};
use crate::fixture::ServeFixture;
use crate::recovery::wait_until;
use crate::server::{Asked, Reply};
use crate::support::{TEST_TIMEOUT, store};

fn types(events: &[(u64, Value)]) -> Vec<&str> {
    events
        .iter()
        .map(|(_, body)| body["type"].as_str().unwrap())
        .collect()
}

#[test]
fn a_message_starts_a_turn_whose_events_are_numbered() {
    let fixture = ServeFixture::new(|asked| match asked.number {
        0 => vec![text(&block("return 6 * 7"))].into(),
        _ => vec![text("forty-two")].into(),
    });
    let (_server, client) = fixture.start();
    let session = client.session(json!({"title": "Compute"}));
    let number = client.message(&session, "How much is 6 * 7?");
    let answer = client.answer(&session, number);
    assert_eq!(
        (&answer["state"], &answer["answer"], &answer["turn"]),
        (&json!("answered"), &json!("forty-two"), &json!(1)),
    );
    let events = client.stored_events(&session, 0);
    let numbers: Vec<u64> = events.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=events.len() as u64).collect::<Vec<_>>());
    let kinds = types(&events);
    assert_eq!(kinds.first(), Some(&"thread.started"));
    assert_eq!(kinds.last(), Some(&"turn.completed"));
    for kind in ["turn.started", "script.finished", "item.completed"] {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
    for kind in ["item.started", "item.updated"] {
        assert!(!kinds.contains(&kind), "{kind}: {kinds:?}");
    }
    // The events after a number.
    assert_eq!(client.stored_events(&session, 2), events[2..]);
    let shown = client.get(&format!("/api/v1/sessions/{session}"));
    assert_eq!(shown.body["title"], "Compute");
    assert_eq!(shown.body["queued"], 0);
    let items = client.get(&format!("/api/v1/sessions/{session}/items"));
    let items = items.body["items"].as_array().unwrap();
    assert_eq!(items[0]["item"]["role"], "user", "{items:?}");
    let listed = client.get("/api/v1/sessions?title=comp");
    assert_eq!(listed.body["sessions"][0]["id"], json!(session));
    let runs = client.get("/api/v1/runs");
    let run = runs.body["runs"][0]["id"].as_str().unwrap();
    let run = client.get(&format!("/api/v1/runs/{run}"));
    assert!(run.body["source"].as_str().unwrap().contains("6 * 7"));
    let fork = client.post(&format!("/api/v1/sessions/{session}/fork"), json!({}));
    assert_eq!(fork.status, 201, "{fork:?}");
    assert_ne!(fork.body["id"], json!(session));
}

#[test]
fn a_client_that_reconnects_gets_missed_events_and_the_open_text() {
    let go_on = Arc::new(AtomicBool::new(false));
    let may_end = go_on.clone();
    let fixture = ServeFixture::new(move |asked| match asked.number {
        0 => vec![text(&block("return 1"))].into(),
        1 => Reply::Hang(vec![text("half an answer that never ends")]),
        _ if may_end.load(Ordering::Relaxed) => vec![text("second")].into(),
        _ => Reply::Fail(500, String::new()),
    });
    let (_server, client) = fixture.start();
    let session = client.session(json!({"prompt": "go"}));
    let mut first = client.follow(&session, None);
    let seen = first.until("item.updated");
    let last = seen.iter().filter_map(|(number, _)| *number).next_back();
    let delta = seen.last().unwrap().1["delta"].as_str().unwrap().to_owned();
    drop(first);
    // Nothing is missed after the last number, and the text so far comes again.
    let mut again = client.follow(&session, last);
    let mut open_text = String::new();
    while !open_text.contains(&delta) || open_text.len() < "half an answer".len() {
        let (number, event) = again.next_event().unwrap();
        assert!(number.is_none_or(|number| Some(number) > last), "{event}");
        if event["type"] == "item.updated" {
            open_text += event["delta"].as_str().unwrap();
        }
    }
    assert!(
        "half an answer that never ends".starts_with(&open_text),
        "{open_text}"
    );
    // From the beginning, all stored events come first.
    let mut whole = client.follow(&session, None);
    let events = whole.until("item.updated");
    let numbers: Vec<u64> = events.iter().filter_map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    assert!(numbers.contains(&last.unwrap()));
    // A stopped turn ends as interrupted, and the next message is answered.
    go_on.store(true, Ordering::Relaxed);
    let stopped = client.post(&format!("/api/v1/sessions/{session}/stop"), json!({}));
    let expected = json!({"stopped": true, "children": []});
    assert_eq!(stopped.body, expected, "{stopped:?}");
    let ended = again.until("turn.completed");
    assert_eq!(ended.last().unwrap().1["finish_reason"], "interrupted");
    let number = client.message(&session, "again");
    assert_eq!(client.answer(&session, number)["answer"], "second");
}

/// Whether the model has answered before in this session.
fn has_answered(asked: &Asked) -> bool {
    let messages = asked.body["messages"].as_array().unwrap();
    messages
        .iter()
        .any(|message| message["role"] == "assistant")
}

/// A script that says that it runs, and ends when the file `go` exists.
fn waiting_script() -> String {
    block(
        "await tools.exec({ command: ['sh', '-c', \
            'echo x >> started; while [ ! -e go ]; do sleep 0.02; done'] })",
    )
}

/// Waits until this many scripts wait.
fn wait_for_scripts(fixture: &ServeFixture, count: usize) {
    let file = fixture.workspace.work().join("started");
    let deadline = Instant::now() + TEST_TIMEOUT;
    while std::fs::read_to_string(&file)
        .unwrap_or_default()
        .lines()
        .count()
        < count
    {
        assert!(Instant::now() < deadline, "fewer than {count} scripts run");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn messages_of_a_session_are_answered_in_order_and_can_be_removed() {
    let fixture = ServeFixture::new(|asked| match asked.number {
        0 => vec![text(&waiting_script())].into(),
        number => vec![text(&format!("answer {number}"))].into(),
    });
    let (_server, client) = fixture.start();
    let session = client.session(json!({}));
    let numbers = ["first", "second", "third"].map(|text| client.message(&session, text));
    assert_eq!(numbers, [1, 2, 3]);
    wait_for_scripts(&fixture, 1);
    // Reading a session does not release it: another process cannot use it.
    let items = client.get(&format!("/api/v1/sessions/{session}/items"));
    assert_eq!(items.status, 200, "{items:?}");
    let shown = client.get(&format!("/api/v1/sessions/{session}"));
    assert_eq!(shown.body["state"], "busy");
    let queue = client.get(&format!("/api/v1/sessions/{session}/messages"));
    let queue = queue.body["messages"].as_array().unwrap().clone();
    let states: Vec<_> = queue.iter().map(|message| &message["state"]).collect();
    assert_eq!(states, ["claimed", "queued", "queued"]);
    let path = format!("/api/v1/sessions/{session}/messages/2");
    let removed = client.request(&format!("DELETE {path}"), &[], "");
    assert_eq!(removed.status, 204, "{removed:?}");
    std::fs::write(fixture.workspace.work().join("go"), "").unwrap();
    assert_eq!(client.answer(&session, 1)["answer"], "answer 1");
    assert_eq!(client.answer(&session, 3)["answer"], "answer 2");
    let removed = client.request(&format!("DELETE {path}"), &[], "");
    assert_eq!(removed.status, 409, "{removed:?}");
    let missing = client.request(&format!("DELETE {path}9"), &[], "");
    assert_eq!(missing.status, 404, "{missing:?}");
}

#[test]
fn many_sessions_run_at_once_up_to_the_limit_of_the_token() {
    let limit = "serve.max_concurrent_turns = 5";
    let fixture = ServeFixture::with_config(limit, |asked| match has_answered(asked) {
        true => vec![text("done")].into(),
        false => vec![text(&waiting_script())].into(),
    });
    let (_server, client) = fixture.start();
    let sessions: Vec<String> = (0..6)
        .map(|_| client.session(json!({"prompt": "go"})))
        .collect();
    wait_for_scripts(&fixture, 5);
    let metrics = client.get("/metrics");
    let running = "selvedge_running_turns 5\n";
    assert!(metrics.text.contains(running), "{}", metrics.text);
    std::fs::write(fixture.workspace.work().join("go"), "").unwrap();
    for session in &sessions {
        assert_eq!(client.answer(session, 1)["answer"], "done");
    }
    let metrics = client.get("/metrics");
    assert!(
        metrics.text.contains("selvedge_turns_total "),
        "{}",
        metrics.text
    );
}

#[test]
fn a_failed_setup_fails_the_message_and_not_the_server() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let no_provider = "model = \"x\"\nmodel_provider = \"nowhere\"\n";
    fixture.workspace.config(no_provider);
    let (_server, client) = fixture.start();
    let refused = client.post("/api/v1/sessions", json!({"environment": "none"}));
    assert_eq!(refused.status, 400, "{refused:?}");
    let error = &refused.body["error"];
    assert_eq!(error["message"], "there is no environment `none`");
    let session = client.session(json!({"prompt": "go"}));
    let failed = client.answer(&session, 1);
    assert_eq!(failed["state"], "failed", "{failed}");
    let why = failed["answer"].as_str().unwrap();
    // The name of the provider is a text of the user's configuration.
    assert!(why.contains("its log has turn 1"), "{why}");
    assert!(!failed.to_string().contains("nowhere"), "{failed}");
    assert_eq!(client.get("/readyz").status, 200);
}

/// The example of the specification: one script finds issues, creates a session for each, and
/// posts to a channel.
#[test]
fn one_script_queries_documents_creates_a_session_and_posts() {
    let fixture = ServeFixture::new(|asked| {
        let said = asked.body["messages"].to_string();
        if said.contains("Message from session") {
            return vec![text("Fixed the login.")].into();
        }
        match has_answered(asked) {
            true => vec![text("all done")].into(),
            false => vec![text(&block(
                "const issues = await workspace.query({ kind: 'issue', status: 'open' });\n\
                 for (const issue of issues) {\n\
                   const session = await sessions.create({ title: issue.title });\n\
                   const sent = await session.send(`Work on ${issue.path}`, { wait: true });\n\
                   await channels.post('engineering', `${issue.title}: ${sent.answer}`);\n\
                 }\n\
                 return 'posted';",
            ))]
            .into(),
        }
    });
    let issues = fixture.workspace.work().join("issues");
    std::fs::create_dir_all(&issues).unwrap();
    let issue = "---\nkind: issue\nstatus: open\ntitle: Login fails\n---\nDetails.\n";
    std::fs::write(issues.join("login.md"), issue).unwrap();
    let (_server, client) = fixture.start();
    let session = client.session(json!({"prompt": "handle the issues"}));
    assert_eq!(client.answer(&session, 1)["answer"], "all done");
    let posted = client.get("/api/v1/channels/engineering/messages");
    let post = &posted.body["messages"][0];
    assert_eq!(post["text"], "Login fails: Fixed the login.");
    assert_eq!(post["author"], json!(session));
    let children = client.get(&format!("/api/v1/sessions/{session}/children"));
    let child = &children.body["sessions"][0];
    assert_eq!(
        (&child["title"], &child["creator"]),
        (&json!("Login fails"), &json!(session))
    );
    // The server ran the turn of the child, so that its clients can see it.
    let events = client.stored_events(child["id"].as_str().unwrap(), 0);
    assert_eq!(types(&events).last(), Some(&"turn.completed"));
    let empty = client.get(&format!("/api/v1/sessions/{session}/plan"));
    assert_eq!(empty.body["plan"], json!([]));
}

#[test]
fn changes_of_a_session_are_shown_applied_discarded_and_reverted() {
    let fixture = ServeFixture::new(|asked| {
        let messages = asked.body["messages"].as_array().unwrap();
        let last = messages.last().unwrap()["content"].to_string();
        let script = "await tools.writeFile({ path: 'a.txt', content: 'new' })";
        match last.contains("write it") {
            true => vec![text(&block(script))].into(),
            false => vec![text("done")].into(),
        }
    });
    let work = fixture.workspace.work();
    let commit = "-c user.name=a -c user.email=a@b commit -q --allow-empty -m a";
    for line in ["init -q", commit] {
        let mut git = Command::new("git");
        let done = git.args(line.split(' ')).current_dir(&work).status();
        assert!(done.unwrap().success(), "git {line}");
    }
    let (_server, client) = fixture.start();
    let session = client.session(json!({"worktree": true}));
    let of = |session: &str, path: &str| format!("/api/v1/sessions/{session}/{path}");
    let number = client.message(&session, "write it");
    assert_eq!(client.answer(&session, number)["state"], "answered");
    let diff = client.get(&of(&session, "diff")).body["diff"].to_string();
    assert!(diff.contains("a.txt") && diff.contains("+new"), "{diff}");
    assert!(!work.join("a.txt").exists());
    let applied = client.post(&of(&session, "apply"), json!({}));
    assert_eq!(applied.body, json!({"changed": ["a.txt"]}));
    assert!(work.join("a.txt").exists());
    let discarded = client.post(&of(&session, "discard"), json!({}));
    assert_eq!(discarded.body, json!({"session": session}));
    // A session in the folder itself.
    std::fs::remove_file(work.join("a.txt")).unwrap();
    let shared = client.session(json!({"prompt": "write it"}));
    assert_eq!(client.answer(&shared, 1)["state"], "answered");
    let diff = client.get(&of(&shared, "diff?turn=1")).body["diff"].to_string();
    assert!(diff.contains("+new"), "{diff}");
    let refused = client.post(&of(&shared, "apply"), json!({}));
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(refused.body["error"]["hint"].is_string(), "{refused:?}");
    let reverted = client.post(&of(&shared, "revert"), json!({}));
    assert_eq!(reverted.body, json!({"turn": 1, "reverted": ["a.txt"]}));
    assert!(!work.join("a.txt").exists());
    let again = client.post(&of(&shared, "revert"), json!({"turn": 1}));
    assert_eq!(again.body["reverted"], json!([]));
}

#[test]
fn a_session_is_deleted_while_another_process_reads_the_file() {
    if !store::uses_files() {
        return;
    }
    let fixture = ServeFixture::new(|_| vec![text("The zebra sleeps.")].into());
    let (_server, client) = fixture.start();
    let session = client.session(json!({"prompt": "Where is the zebra?"}));
    client.answer(&session, 1);
    wait_until("the turn is remembered", || {
        let found = client.get("/api/v1/memory/search?query=zebra");
        found.body["turns"] != json!([])
    });
    let file = fixture.workspace.home().join("journal.sqlite");
    let reader = rusqlite::Connection::open(file).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    let read = "SELECT count(*) FROM memory_turns";
    let turns: i64 = reader.query_row(read, [], |row| row.get(0)).unwrap();
    assert_eq!(turns, 1);
    let path = format!("/api/v1/sessions/{session}");
    let deleted = client.request(&format!("DELETE {path}"), &[], "");
    assert_eq!(deleted.status, 204, "{deleted:?}");
    assert_eq!(client.get(&path).status, 404);
    reader.execute_batch("COMMIT").unwrap();
    let turns: i64 = reader.query_row(read, [], |row| row.get(0)).unwrap();
    assert_eq!(turns, 0);
}

/// The turn of the message has not begun.
#[test]
fn the_stream_of_a_deleted_session_ends_with_an_error() {
    let limit = "serve.max_concurrent_turns = 1";
    let fixture = ServeFixture::with_config(limit, |_| Reply::Hang(vec![text("thinking")]));
    let (_server, client) = fixture.start();
    let busy = client.session(json!({"prompt": "go"}));
    wait_until("the turn runs", || {
        let message = client.get(&format!("/api/v1/sessions/{busy}/messages/1"));
        message.body["state"] == "claimed"
    });
    for key in ["", "k1"] {
        let body = json!({
            "model": "default",
            "stream": true,
            "messages": [{"role": "user", "content": "hello"}],
        });
        let headers = [("Idempotency-Key", key)];
        let body = body.to_string();
        let mut stream = client.send("POST /v1/chat/completions", &headers, &body);
        let sessions = || client.get("/api/v1/sessions").body["sessions"].clone();
        let queued = || {
            let sessions = sessions();
            let mut sessions = sessions.as_array().unwrap().iter();
            let queued = sessions.find(|session| session["id"] != json!(busy))?;
            (queued["queued"] == 1).then(|| queued["id"].as_str().unwrap().to_owned())
        };
        wait_until("the message is queued", || queued().is_some());
        let path = format!("DELETE /api/v1/sessions/{}", queued().unwrap());
        let deleted = client.request(&path, &[], "");
        assert_eq!(deleted.status, 204, "{deleted:?}");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("the session was deleted"), "{answer}");
    }
}

#[test]
fn a_session_is_deleted_between_turns() {
    let fixture = ServeFixture::new(|asked| {
        let text_of_last = asked.body["messages"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()
            .to_string();
        match text_of_last.contains("hang") {
            true => Reply::Hang(vec![text("thinking")]),
            false => vec![text("The zebra sleeps.")].into(),
        }
    });
    let (_server, client) = fixture.start();
    let session = client.session(json!({"prompt": "Where is the zebra?"}));
    client.answer(&session, 1);
    let other = client.session(json!({"prompt": "And the zebra now?"}));
    client.answer(&other, 1);
    let path = format!("/api/v1/sessions/{session}");
    let delete = || client.request(&format!("DELETE {path}"), &[], "");
    // Not while a turn runs.
    let number = client.message(&session, "hang");
    wait_until("the turn runs", || {
        let message = client.get(&format!("{path}/messages/{number}"));
        message.body["state"] == "claimed"
    });
    let refused = delete();
    assert_eq!(refused.status, 409, "{refused:?}");
    client.post(&format!("{path}/stop"), json!({}));
    client.answer(&session, number);
    let deadline = std::time::Instant::now() + crate::support::TEST_TIMEOUT;
    let deleted = loop {
        let deleted = delete();
        if deleted.status != 409 || std::time::Instant::now() > deadline {
            break deleted;
        }
    };
    assert_eq!(deleted.status, 204, "{deleted:?}");
    for (start, status) in [
        (format!("GET {path}"), 404),
        (format!("GET {path}/items"), 404),
        (format!("GET {path}/messages/1"), 404),
        (format!("DELETE {path}"), 404),
        (format!("GET /api/v1/sessions/{other}"), 200),
    ] {
        let response = client.request(&start, &[], "");
        assert_eq!(response.status, status, "{start}: {response:?}");
    }
    let found = client.get("/api/v1/memory/search?query=zebra");
    assert!(!found.text.contains(&session), "{found:?}");
    assert!(found.text.contains(&other), "{found:?}");
    // It does not count as a session of the token any more.
    let listed = client.get("/api/v1/sessions").body["sessions"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(listed, 1);
}

#[test]
fn the_end_of_a_turn_wakes_the_request_that_waits_for_its_answer() {
    const ROUNDS: usize = 10;
    let begun = Arc::new(AtomicBool::new(false));
    let (asked, answer) = (begun.clone(), Arc::new(AtomicBool::new(false)));
    let ready = answer.clone();
    let fixture = ServeFixture::new(move |_| {
        asked.store(true, Ordering::SeqCst);
        wait_until("the answer is asked for", || {
            ready.swap(false, Ordering::SeqCst)
        });
        vec![text("hello")].into()
    });
    let (_server, client) = fixture.start();
    let session = client.session(json!({}));
    let mut fastest = Duration::MAX;
    for _ in 0..ROUNDS {
        begun.store(false, Ordering::SeqCst);
        let number = client.message(&session, "hi");
        wait_until("the model is asked", || begun.load(Ordering::SeqCst));
        let path = format!("/api/v1/sessions/{session}/messages/{number}");
        let start = Instant::now();
        let mut waiting = client.send(&format!("GET {path}?wait_ms=60000"), &[], "");
        // The request that waits has read the message before the model answers.
        for _ in 0..3 {
            assert_eq!(client.get(&path).body["state"], "claimed");
        }
        answer.store(true, Ordering::SeqCst);
        let mut message = String::new();
        waiting.read_to_string(&mut message).unwrap();
        fastest = fastest.min(start.elapsed());
        assert!(message.contains("answered"), "{message}");
    }
    // A request that is not woken reads the message again after one second, in no round earlier.
    assert!(fastest < Duration::from_secs(1), "{fastest:?}");
}
