//! Servers of several machines with one PostgreSQL database: each has a home folder of its own.
//! Without `SELVEDGE_TEST_STORE` there is nothing to share, and the tests do nothing.

use std::io::BufReader;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::answer_encoding::{block, text};
use crate::fixture::ServeFixture;
use crate::isolation::{run_script, runs_scripts};
use crate::server::{Asked, Reply};
use crate::support::api::{ApiClient, ApiServer, EventReader};
use crate::support::{TEST_TIMEOUT, store};

/// Starts a server of another machine with further lines of configuration.
pub(crate) fn start_elsewhere(
    fixture: &ServeFixture,
    name: &str,
    more: &str,
) -> (ApiServer, ApiClient) {
    let home = fixture.workspace.home().with_file_name(name);
    std::fs::create_dir_all(&home).unwrap();
    let config = std::fs::read_to_string(fixture.workspace.home().join("config.toml")).unwrap();
    std::fs::write(home.join("config.toml"), format!("{more}\n{config}")).unwrap();
    let mut command = fixture
        .workspace
        .command(&["serve", "--addr", "127.0.0.1:0"]);
    command.env("SELVEDGE_HOME", home);
    let server = ApiServer::listen(command);
    let client = server.client(&fixture.secret);
    (server, client)
}

pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn last_text(asked: &Asked) -> String {
    let messages = asked.body["messages"].as_array().unwrap();
    messages.last().unwrap()["content"].to_string()
}

/// A model that deletes a folder by force, which needs approval, or waits in a command.
pub(crate) fn model(asked: &Asked) -> Reply {
    let last = last_text(asked);
    if last.contains("delete it") {
        let code = "try { await tools.exec({ command: ['rm', '-rf', 'doomed'] }); \
            return 'was allowed' } catch (error) { return 'was denied: ' + error.message }";
        return vec![text(&block(code))].into();
    }
    if last.contains("wait for it") {
        let code = "await tools.exec({ command: ['sh', '-c', \
            'echo x >> started; while [ ! -e go ]; do sleep 0.02; done'] }); return 'went'";
        return vec![text(&block(code))].into();
    }
    for end in ["was allowed", "was denied", "went", "unknown"] {
        if last.contains(end) {
            return vec![text(end)].into();
        }
    }
    vec![text("done")].into()
}

#[test]
fn an_approval_that_is_decided_at_one_server_releases_the_script_of_another() {
    if store::uses_files() {
        return;
    }
    let fixture = ServeFixture::new(model);
    let (_one, first) = fixture.start();
    let (_two, second) = start_elsewhere(&fixture, "second", "");
    let stream = second.send("GET /api/v1/approvals/events", &[], "");
    let mut followed = EventReader(BufReader::new(stream));
    for (decision, end) in [("once", "was allowed"), ("deny", "was denied")] {
        let session = first.session(json!({"prompt": "delete it"}));
        let asked = followed.next_event().unwrap().1;
        assert_eq!(asked["type"], "approval.requested");
        let approvals = || second.get("/api/v1/approvals").body["approvals"].clone();
        assert_eq!(approvals(), json!([asked["approval"]]));
        assert_eq!(asked["approval"]["session"], json!(session));
        let path = format!(
            "/api/v1/approvals/{}",
            asked["approval"]["id"].as_str().unwrap()
        );
        let decided = second.post(&path, json!({"decision": decision, "reason": "because"}));
        assert_eq!(decided.status, 200, "{decided:?}");
        let again = second.post(&path, json!({"decision": decision}));
        assert_eq!(again.status, 409, "{again:?}");
        let closed = followed.next_event().unwrap().1;
        assert_eq!(closed["type"], "approval.closed");
        assert_eq!(second.answer(&session, 1)["answer"], end);
        assert_eq!(approvals(), json!([]));
    }
}

#[test]
fn a_stream_of_one_server_has_the_events_of_a_turn_of_another() {
    if store::uses_files() {
        return;
    }
    let fixture = ServeFixture::new(model);
    let (_one, first) = fixture.start();
    let (_two, second) = start_elsewhere(&fixture, "second", "");
    let session = first.session(json!({}));
    let mut reader = second.follow(&session, None);
    first.message(&session, "go");
    let events = reader.until("turn.completed").into_iter();
    let seen: Vec<u64> = events.filter_map(|(number, _)| number).collect();
    let stored = first.stored_events(&session, 0).len() as u64;
    assert_eq!(seen, (1..=stored).collect::<Vec<_>>());
    // Another server continues after the last event that was seen.
    second.message(&session, "go on");
    let mut reader = first.follow(&session, Some(stored));
    assert_eq!(reader.next_event().unwrap().0, Some(stored + 1));
}

#[test]
fn the_session_of_a_killed_server_waits_for_a_server_of_its_workspace() {
    if store::uses_files() {
        return;
    }
    let fixture = ServeFixture::new(model);
    let other = fixture.workspace.work().with_file_name("other");
    std::fs::create_dir_all(&other).unwrap();
    let declares = |folder: &std::path::Path| format!("serve.workspaces = [{folder:?}]");
    let (mut one, first) = fixture.start();
    let (_two, second) = start_elsewhere(&fixture, "second", &declares(&other));
    let session = first.session(json!({"prompt": "wait for it"}));
    wait_until("the command starts", || {
        fixture.workspace.work().join("started").exists()
    });
    one.kill();
    let state = || second.get(&format!("/api/v1/sessions/{session}")).body["state"].clone();
    wait_until("the session waits for a server", || {
        state() == json!("unserved")
    });
    let status = second.get("/api/v1/status").body;
    assert_eq!(
        status["queue"][0]["state"], "waiting_for_server",
        "{status}"
    );
    let list = fixture.workspace.command(&["sessions", "list"]).output();
    let list = String::from_utf8(list.unwrap().stdout).unwrap();
    assert!(
        list.contains("no running server serves its folder"),
        "{list}"
    );
    let message = || -> Value {
        second
            .get(&format!("/api/v1/sessions/{session}/messages/1"))
            .body
    };
    assert_eq!(message()["state"], "claimed");
    let work = fixture.workspace.work().canonicalize().unwrap();
    let (_three, third) = start_elsewhere(&fixture, "third", &declares(&work));
    let answered = third.answer(&session, 1);
    // The command may have had an effect, so it did not run again.
    assert_eq!(answered["answer"], "unknown", "{answered}");
    let runs = std::fs::read_to_string(fixture.workspace.work().join("started")).unwrap();
    assert_eq!(runs, "x\n");
}

/// Other machines may have other folders with the same path.
#[test]
fn a_server_uses_no_folder_that_it_does_not_declare() {
    if store::uses_files() {
        return;
    }
    let fixture = ServeFixture::new(runs_scripts);
    let work = fixture.workspace.work();
    let other = work.with_file_name("declared");
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(work.join("note.md"), "# zebra\n").unwrap();
    let (_one, first) = fixture.start();
    let declares = format!("serve.workspaces = [{other:?}]");
    let (_two, second) = start_elsewhere(&fixture, "second", &declares);
    let session = first.session(json!({}));
    run_script(&first, &session, "return 1");
    let run = first.get("/api/v1/runs").body["runs"][0]["id"].clone();
    let run = run.as_str().unwrap();
    let write = "await tools.writeFile({ path: 'ran', content: 'x' }); return 1";
    for (start, body) in [
        ("GET /api/v1/documents?path=note.md".to_owned(), Value::Null),
        (
            "GET /api/v1/documents?path=note.md&source=true".to_owned(),
            Value::Null,
        ),
        ("POST /api/v1/documents/query".to_owned(), json!({})),
        (
            "PUT /api/v1/documents".to_owned(),
            json!({"path": "new.md", "content": "# x\n"}),
        ),
        ("GET /api/v1/tools".to_owned(), Value::Null),
        ("GET /api/v1/health".to_owned(), Value::Null),
        (
            format!("POST /api/v1/runs/{run}/resume"),
            json!({"source": write}),
        ),
        (format!("POST /api/v1/sessions/{session}/revert"), json!({})),
        (format!("POST /api/v1/sessions/{session}/apply"), json!({})),
    ] {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let refused = second.request(&start, &[], &body);
        assert_eq!(refused.status, 421, "{start}: {refused:?}");
        assert!(!refused.text.contains("zebra"), "{start}: {refused:?}");
    }
    assert!(!work.join("new.md").exists() && !work.join("ran").exists());
    // What only the database has is shown by every server, and a session can be created at each.
    for path in [
        format!("/api/v1/sessions/{session}"),
        format!("/api/v1/runs/{run}"),
        "/api/v1/status".to_owned(),
    ] {
        assert_eq!(second.get(&path).status, 200, "{path}");
    }
    let created = second.session(json!({"prompt": "RUN:return 'ran elsewhere'"}));
    let answer = second.answer(&created, 1);
    assert!(answer["answer"].to_string().contains("ran elsewhere"));
}

#[test]
fn a_decision_that_a_dead_server_did_not_get_does_not_count() {
    if store::uses_files() {
        return;
    }
    let fixture = ServeFixture::new(model);
    let (mut one, first) = fixture.start();
    let session = first.session(json!({"prompt": "delete it"}));
    let request = |client: &ApiClient| client.get("/api/v1/approvals").body["approvals"][0].clone();
    wait_until("the server shows the request", || {
        request(&first)["session"] == json!(session)
    });
    // Only now, so that it does not run the turn itself.
    let (_two, second) = start_elsewhere(&fixture, "second", "");
    let waiting = || request(&second);
    wait_until("the other server shows the request", || {
        waiting()["session"] == json!(session)
    });
    let path = format!("/api/v1/approvals/{}", waiting()["id"].as_str().unwrap());
    one.kill();
    let decided = second.post(&path, json!({"decision": "once"}));
    assert_ne!(decided.status, 200, "{decided:?}");
    // The turn continues here, and asks again.
    wait_until("the request is asked again", || {
        let path = format!(
            "/api/v1/approvals/{}",
            waiting()["id"].as_str().unwrap_or("none")
        );
        second.post(&path, json!({"decision": "deny"})).status == 200
    });
    assert_eq!(second.answer(&session, 1)["answer"], "was denied");
}
