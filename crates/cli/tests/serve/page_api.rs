//! What the API has for the web page: lessons, topics, the state of the server, resumed runs.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::isolation::wait_for_approval;
use crate::page::PageTest;
use crate::support::TEST_TIMEOUT;
use crate::support::api::{ALL_SCOPES, ApiClient, create_token};

#[test]
fn lessons_are_edited_and_topics_are_counted_over_time() {
    let test = PageTest::start();
    test.memory_session();
    let client = &test.client;
    let lessons = client.get("/api/v1/memory/lessons").body["lessons"].clone();
    let of_kind = |kind: &str| {
        let mut all = lessons.as_array().unwrap().iter();
        let found = all.find(|lesson| lesson["kind"] == kind);
        found
            .unwrap_or_else(|| panic!("no {kind}: {lessons}"))
            .clone()
    };
    assert_eq!(of_kind("layer")["status"], "proposed");
    let preference = of_kind("preference");
    let path = format!(
        "/api/v1/memory/lessons/{}",
        preference["id"].as_str().unwrap()
    );
    let patch = |body: Value| client.request(&format!("PATCH {path}"), &[], &body.to_string());
    let edit = json!({"title": "Language", "content": "Answer in Swedish.", "topics": ["chat"]});
    assert_eq!(patch(edit).status, 204);
    let edited = || {
        let lessons = client.get("/api/v1/memory/lessons").body["lessons"].clone();
        let mut lessons = lessons.as_array().unwrap().clone().into_iter();
        lessons
            .find(|lesson| lesson["title"] == "Language")
            .unwrap()
    };
    assert_eq!(
        (
            &edited()["content"],
            &edited()["topics"],
            &edited()["scope"]
        ),
        (
            &json!("Answer in Swedish."),
            &json!(["chat"]),
            &json!("project")
        )
    );
    let empty = patch(json!({"content": " "}));
    assert_eq!(empty.status, 400, "{empty:?}");
    for unknown in [json!({"weight": 1}), json!({"scope": "user"})] {
        assert_eq!(patch(unknown).status, 400);
    }
    // A lesson that is used in all projects is part of prompts that the token does not reach.
    let id = preference["id"].as_str().unwrap();
    let review = |scope: &str| {
        let done = test
            .fixture
            .workspace
            .command(&["memory", "review", scope, id]);
        let done = { done }.output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    review("--user");
    assert_eq!(edited()["scope"], "user");
    let decision = json!({"decision": "decline"}).to_string();
    for (method, body) in [
        ("PATCH", "{\"title\":\"x\"}"),
        ("POST", &decision),
        ("DELETE", ""),
    ] {
        let refused = client.request(&format!("{method} {path}"), &[], body);
        assert_eq!(refused.status, 403, "{refused:?}");
    }
    review("--project");
    assert_eq!(patch(json!({"topics": ["talk"]})).status, 204);
    let scope = ["plain", "--scope", "memory"];
    let plain = create_token(&test.fixture.workspace, &scope);
    let plain = test.server.as_ref().unwrap().client(&plain);
    let refused = plain.request(&format!("PATCH {path}"), &[], "{\"title\":\"x\"}");
    assert_eq!(refused.status, 403, "{refused:?}");
    let topics = client.get("/api/v1/memory/topics").body;
    let mut all = topics["topics"].as_array().unwrap().iter();
    let migration = all.find(|topic| topic["name"] == "migration");
    let migration = migration.unwrap_or_else(|| panic!("{topics}"));
    let by_week = migration["turns_by_week"].as_array().unwrap();
    assert_eq!(by_week.len(), topics["weeks"].as_array().unwrap().len());
    let by_week = by_week.iter().filter_map(Value::as_u64);
    assert_eq!(
        (&migration["turns"], by_week.sum::<u64>()),
        (&json!(12), 12),
        "{topics}"
    );
    // The command shows the same numbers.
    let args = ["memory", "topics", "--all", "--json"];
    let shown = test.fixture.workspace.command(&args).output().unwrap();
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let mut shown = shown["topics"].as_array().unwrap().iter();
    let shown = shown.find(|topic| topic["name"] == "migration").unwrap();
    assert_eq!(shown["turns"], migration["turns"], "{shown}");
    let weeks = shown["weeks"].as_array().unwrap().iter();
    let weeks: Vec<&Value> = weeks.map(|week| &week[0]).collect();
    assert_eq!(json!(weeks), topics["weeks"], "{shown}");
    let (_, secret) = test.fixture.other_workspace("far");
    let far = test.server.as_ref().unwrap().client(&secret);
    assert_eq!(far.get("/api/v1/memory/topics").body["topics"], json!([]));
    let hidden = far.request(&format!("PATCH {path}"), &[], "{\"title\":\"x\"}");
    assert_eq!(hidden.status, 404, "{hidden:?}");
}

/// Waits until a run is stored and has ended.
fn ended_run(client: &ApiClient, id: &str) -> Value {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let run = client.get(&format!("/api/v1/runs/{id}"));
        if run.status == 200 && !run.body["run"]["ended_ms"].is_null() {
            return run.body;
        }
        assert!(Instant::now() < deadline, "the run does not end: {run:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_run_is_resumed_with_an_edited_script() {
    let test = PageTest::start();
    let client = &test.client;
    let session = client.session(json!({"prompt": "fail"}));
    client.answer(&session, 1);
    let runs = client.get("/api/v1/runs").body;
    let run = runs["runs"][0]["id"].as_str().unwrap();
    let path = format!("/api/v1/runs/{run}/resume");
    let source = "await tools.writeFile({ path: 'a.txt', content: 'a' });\n\
        await tools.writeFile({ path: 'b.txt', content: 'b' });\nreturn 'resumed';";
    let (_, secret) = test.fixture.other_workspace("far");
    let far = test.server.as_ref().unwrap().client(&secret);
    let hidden = far.post(&path, json!({"source": source}));
    assert_eq!(hidden.status, 404, "{hidden:?}");
    let resumed = client.post(&path, json!({"source": source}));
    assert_eq!(resumed.status, 202, "{resumed:?}");
    let ended = ended_run(client, resumed.body["id"].as_str().unwrap());
    assert_eq!(ended["run"]["state"], "completed", "{ended}");
    assert_eq!(ended["run"]["resumes"], run);
    let reused = |at: usize| ended["calls"][at]["reused"].as_bool();
    assert_eq!([reused(0), reused(1)], [Some(true), Some(false)], "{ended}");
    let written = std::fs::read_to_string(test.fixture.workspace.work().join("b.txt"));
    assert_eq!(written.unwrap(), "b");
    // The script cannot start turns, which a token would have to pay for.
    let source = "return await sessions.create({ prompt: 'hello' })";
    let resumed = client.post(&path, json!({"source": source}));
    assert_eq!(resumed.status, 202, "{resumed:?}");
    let ended = ended_run(client, resumed.body["id"].as_str().unwrap());
    assert_eq!(ended["run"]["state"], "failed", "{ended}");
    let sessions = client.get("/api/v1/sessions").body;
    assert_eq!(sessions["sessions"].as_array().unwrap().len(), 1);
    let document = json!({"path": "issues/2.md", "content": "text\n"});
    let body = document.to_string();
    assert_eq!(
        client.request("PUT /api/v1/documents", &[], &body).status,
        200
    );
    let runs = client.get("/api/v1/runs").body;
    let other = runs["runs"].as_array().unwrap().iter().find(|run| {
        let id = run["id"].as_str().unwrap();
        id.starts_with("trn_")
    });
    let path = format!(
        "/api/v1/runs/{}/resume",
        other.unwrap()["id"].as_str().unwrap()
    );
    let refused = client.post(&path, json!({"source": "return 1"}));
    assert_eq!(refused.status, 400, "{refused:?}");
}

/// Makes a folder a git repository with its files.
fn make_repository(folder: &Path) {
    let commit = "-c user.name=a -c user.email=a@b commit -q -m a";
    for line in ["init -q", "add .", commit] {
        let mut git = Command::new("git");
        let done = git.args(line.split(' ')).current_dir(folder).status();
        assert!(done.unwrap().success(), "git {line}");
    }
}

#[test]
fn a_run_in_the_worktree_of_a_session_is_listed_and_resumed_there() {
    let test = PageTest::start();
    let work = test.fixture.workspace.work();
    make_repository(&work);
    let client = &test.client;
    let session = client.session(json!({"prompt": "fail", "worktree": true}));
    client.answer(&session, 1);
    let runs = client.get("/api/v1/runs").body;
    let run = runs["runs"][0]["id"].as_str();
    let run = run.unwrap_or_else(|| panic!("the run is not listed: {runs}"));
    let (_, secret) = test.fixture.other_workspace("far");
    let far = test.server.as_ref().unwrap().client(&secret);
    assert_eq!(far.get("/api/v1/runs").body["runs"], json!([]));
    let path = format!("/api/v1/runs/{run}");
    let source = "await tools.writeFile({ path: 'a.txt', content: 'a' });\n\
        await tools.writeFile({ path: 'b.txt', content: 'b' });\nreturn 'resumed';";
    let resume = format!("{path}/resume");
    let replay = format!("{path}/replay");
    assert_eq!(far.get(&path).status, 404);
    assert_eq!(far.post(&replay, json!({})).status, 404);
    let hidden = far.post(&resume, json!({"source": source}));
    assert_eq!(hidden.status, 404, "{hidden:?}");
    assert_eq!(client.get(&path).status, 200);
    let replayed = client.post(&replay, json!({}));
    assert_eq!(replayed.body["matches"], true, "{replayed:?}");
    let resumed = client.post(&resume, json!({"source": source}));
    assert_eq!(resumed.status, 202, "{resumed:?}");
    let ended = ended_run(client, resumed.body["id"].as_str().unwrap());
    assert_eq!(ended["run"]["state"], "completed", "{ended}");
    let reused = |at: usize| ended["calls"][at]["reused"].as_bool();
    assert_eq!([reused(0), reused(1)], [Some(true), Some(false)], "{ended}");
    // The files are in the worktree, which the changes of the session show.
    assert!(!work.join("a.txt").exists() && !work.join("b.txt").exists());
    let changes = client.get(&format!("/api/v1/sessions/{session}/diff")).body;
    let diff = changes["diff"].as_str().unwrap();
    assert!(diff.contains("a.txt") && diff.contains("b.txt"), "{diff}");
}

#[test]
fn tools_are_listed_with_the_fields_of_their_arguments() {
    let test = PageTest::start();
    let tools = test.client.get("/api/v1/tools").body["tools"].clone();
    let tools = tools.as_array().unwrap();
    let write = tools.iter().find(|tool| tool["name"] == "tools.writeFile");
    let write = write.unwrap_or_else(|| panic!("{tools:?}"));
    let signature = write["signature"].as_str().unwrap();
    assert!(signature.starts_with("writeFile("), "{signature}");
    let fields = write["fields"].as_array().unwrap().iter();
    let required = fields.filter(|field| field["required"] == true);
    let required: Vec<&Value> = required.map(|field| &field["name"]).collect();
    assert_eq!(required, ["path"], "{write}");
    assert!(
        !tools
            .iter()
            .any(|tool| tool["name"].as_str().unwrap().starts_with("sessions."))
    );
}

#[test]
fn the_status_has_servers_the_queue_and_errors_of_the_token_only() {
    let test = PageTest::start();
    let client = &test.client;
    let failed = client.session(json!({"title": "Broken", "prompt": "break"}));
    client.answer(&failed, 1);
    let waiting = client.session(json!({"title": "Busy", "prompt": "half"}));
    client.message(&waiting, "and then");
    let deadline = Instant::now() + TEST_TIMEOUT;
    let status = loop {
        let status = client.get("/api/v1/status").body;
        if status["queue"][0]["state"] == "running" {
            break status;
        }
        assert!(Instant::now() < deadline, "no turn runs: {status}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let queue: Vec<_> = status["queue"].as_array().unwrap().iter().collect();
    assert_eq!(queue.len(), 2, "{status}");
    assert_eq!(
        (&queue[1]["title"], &queue[1]["state"], &queue[1]["text"]),
        (
            &json!("Busy"),
            &json!("waiting_for_turn"),
            &json!("and then")
        )
    );
    // What a person removes or stops is no error.
    let stopped = client.session(json!({"title": "Stopped", "prompt": "half"}));
    let removed = client.message(&stopped, "and then");
    let path = format!("/api/v1/sessions/{stopped}");
    let remove = format!("DELETE {path}/messages/{removed}");
    assert_eq!(client.request(&remove, &[], "").status, 204);
    client.post(&format!("{path}/stop"), json!({}));
    assert_eq!(client.answer(&stopped, 1)["state"], "stopped");
    assert_eq!(client.answer(&stopped, removed)["state"], "stopped");
    let status = client.get("/api/v1/status").body;
    assert_eq!(status["errors"].as_array().unwrap().len(), 1, "{status}");
    assert_eq!(status["errors"][0]["session"], json!(failed), "{status}");
    assert_eq!(status["errors"][0]["turn"], 1);
    let error = status["errors"][0]["message"].as_str().unwrap();
    assert!(error.contains("a broken request"), "{error}");
    let states = |status: &Value| -> Vec<String> {
        let servers = status["mcp_servers"].as_array().unwrap().iter();
        let text = |server: &Value| format!("{} {}", server["name"], server["state"]);
        servers.map(text).collect()
    };
    let unused = r#""unused" "disabled""#;
    let expected = [r#""broken" "failed""#, unused];
    assert_eq!(states(&status), expected, "{status}");
    let error = status["mcp_servers"][0]["error"].as_str().unwrap();
    assert!(error.contains("was not found"), "{status}");
    let (_, secret) = test.fixture.other_workspace("far");
    let far = test.server.as_ref().unwrap().client(&secret);
    let other = far.get("/api/v1/status").body;
    assert_eq!(
        (&other["queue"], &other["errors"]),
        (&json!([]), &json!([]))
    );
    let expected = [r#""broken" "not started""#, unused];
    assert_eq!(states(&other), expected, "{other}");
}

/// Resumes the run of a new session with a script that does not end. Returns the session, and the
/// new run.
fn endless_script(test: &PageTest, client: &ApiClient, file: &str) -> (String, String) {
    let session = client.session(json!({"prompt": "fail"}));
    client.answer(&session, 1);
    let runs = client.get("/api/v1/runs").body;
    let run = runs["runs"][0]["id"].as_str().unwrap();
    let path = format!("/api/v1/runs/{run}/resume");
    let command = format!("while true; do echo tick >> {file}; sleep 0.05; done");
    let source = format!("await tools.exec({{ command: ['sh', '-c', '{command}'] }});");
    let resumed = client.post(&path, json!({"source": source}));
    assert_eq!(resumed.status, 202, "{resumed:?}");
    let ticks = test.fixture.workspace.work().join(file);
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !ticks.exists() {
        assert!(Instant::now() < deadline, "the script does not run");
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = resumed.body["id"].as_str().unwrap().to_owned();
    (session, id)
}

#[test]
fn a_resumed_script_stops_with_its_session_or_its_token() {
    let test = PageTest::start();
    let client = &test.client;
    let (session, run) = endless_script(&test, client, "stopped");
    // No turn begins beside the script.
    let number = client.message(&session, "hello");
    let view = client.get(&format!("/api/v1/sessions/{session}")).body;
    assert_eq!(
        (&view["state"], &view["queued"]),
        (&json!("busy"), &json!(1))
    );
    let stop = format!("/api/v1/sessions/{session}/stop");
    let stopped = client.post(&stop, json!({}));
    assert_eq!(stopped.body["stopped"], true, "{stopped:?}");
    assert_ne!(ended_run(client, &run)["run"]["state"], "completed");
    assert_eq!(client.answer(&session, number)["state"], "answered");
    // The answer is stored a moment before the turn has ended. Stopping it then changes nothing.
    let deadline = Instant::now() + TEST_TIMEOUT;
    while client.post(&stop, json!({})).body["stopped"] == true {
        assert!(Instant::now() < deadline, "the turn does not end");
    }
    assert_eq!(client.answer(&session, number)["state"], "answered");

    let (session, run) = endless_script(&test, client, "deleted");
    let path = format!("/api/v1/sessions/{session}");
    let deleted = client.request(&format!("DELETE {path}"), &[], "");
    assert_eq!(deleted.status, 204, "{deleted:?}");
    assert_eq!(client.get(&format!("/api/v1/runs/{run}")).status, 404);

    let workspace = &test.fixture.workspace;
    let secret = create_token(workspace, &[&["brief"], &ALL_SCOPES[..]].concat());
    let brief = test.server.as_ref().unwrap().client(&secret);
    let (_, run) = endless_script(&test, &brief, "revoked");
    let revoked = workspace
        .command(&["serve", "token", "revoke", "brief"])
        .output()
        .unwrap();
    assert!(revoked.status.success(), "{revoked:?}");
    assert_ne!(ended_run(client, &run)["run"]["state"], "completed");
}

#[test]
fn no_script_is_resumed_while_a_turn_of_its_session_runs() {
    let test = PageTest::start();
    let client = &test.client;
    let session = client.session(json!({"prompt": "fail"}));
    client.answer(&session, 1);
    let runs = client.get("/api/v1/runs").body;
    let run = runs["runs"][0]["id"].as_str().unwrap();
    client.message(&session, "half");
    let deadline = Instant::now() + TEST_TIMEOUT;
    while client.get("/api/v1/status").body["queue"][0]["state"] != "running" {
        assert!(Instant::now() < deadline, "no turn runs");
        std::thread::sleep(Duration::from_millis(20));
    }
    let path = format!("/api/v1/runs/{run}/resume");
    let refused = client.post(&path, json!({"source": "return 1"}));
    assert_eq!(refused.status, 409, "{refused:?}");
    client.post(&format!("/api/v1/sessions/{session}/stop"), json!({}));
    client.answer(&session, 2);
    let resumed = client.post(&path, json!({"source": "return 1"}));
    assert_eq!(resumed.status, 202, "{resumed:?}");
}

#[test]
fn a_session_without_a_title_has_the_first_line_of_its_first_message() {
    let test = PageTest::start();
    let client = &test.client;
    let title = |id: &str| client.get(&format!("/api/v1/sessions/{id}")).body["title"].clone();
    let empty = client.session(json!({}));
    assert_eq!(title(&empty), Value::Null);
    client.message(&empty, "\n  hello\t you\nsecond line");
    assert_eq!(title(&empty), "hello you");
    let long = format!("{} ghp_{}", "word ".repeat(8), "0aB1".repeat(9));
    let long = client.session(json!({"prompt": long}));
    let shown = title(&long);
    let shown = shown.as_str().unwrap();
    assert!(
        shown.starts_with("word word") && !shown.contains("ghp_0aB1"),
        "{shown}"
    );
    assert!(shown.chars().count() <= 61, "{shown}");
    let named = client.session(json!({"title": "Named", "prompt": "hello"}));
    assert_eq!(title(&named), "Named");
    // The title is searched, and a fork says that it is one.
    let found = client.get("/api/v1/sessions?title=hello%20you").body;
    assert_eq!(found["sessions"][0]["id"], json!(empty), "{found}");
    client.answer(&empty, 1);
    let fork = client.post(&format!("/api/v1/sessions/{empty}/fork"), json!({}));
    assert_eq!(fork.body["title"], "hello you (fork)", "{fork:?}");
    client.answer(&named, 1);
    let fork = client.post(&format!("/api/v1/sessions/{named}/fork"), json!({}));
    assert_eq!(fork.body["title"], "Named (fork)", "{fork:?}");
    // What a channel delivers names the channel, and is no title.
    let silent = client.session(json!({}));
    let follow = format!("PUT /api/v1/channels/eng/followers/{silent}");
    assert_eq!(client.request(&follow, &[], "").status, 204);
    let mention = json!({"text": format!("@{silent} look here")});
    let posted = client.post("/api/v1/channels/eng/messages", mention);
    assert_eq!(posted.body["queued"], json!([silent]), "{posted:?}");
    assert_eq!(title(&silent), Value::Null);
    client.message(&silent, "Sort the mail");
    assert_eq!(title(&silent), "Sort the mail");
    // A mention of the title reaches a session that follows the channel.
    let follow = format!("PUT /api/v1/channels/eng/followers/{long}");
    assert_eq!(client.request(&follow, &[], "").status, 204);
    let mention = json!({"text": format!("@{}", shown.replace(' ', "-").replace(['[', ']'], ""))});
    let posted = client.post("/api/v1/channels/eng/messages", mention);
    assert_eq!(posted.body["queued"], json!([long]), "{posted:?}");
}

#[test]
fn turns_that_changed_files_and_places_of_documents_are_listed() {
    let test = PageTest::start();
    let client = &test.client;
    let session = client.session(json!({"prompt": "keep notes"}));
    client.answer(&session, 1);
    client.message(&session, "hello");
    client.answer(&session, 2);
    let changed = client.get(&format!("/api/v1/sessions/{session}/changed-turns"));
    assert_eq!(
        changed.body["turns"],
        json!([{"turn": 1, "files": 1}]),
        "{changed:?}"
    );
    let diff = client.get(&format!("/api/v1/sessions/{session}/diff")).body;
    assert_eq!(diff["turn"], 1, "{diff}");
    assert!(
        diff["diff"].as_str().unwrap().contains("notes.txt"),
        "{diff}"
    );
    let patterns = client.get("/api/v1/documents/patterns").body;
    assert_eq!(patterns["patterns"], json!(["issues/**/*.md"]));
    let document = json!({"path": "ideas.md", "content": ""}).to_string();
    let refused = client.request("PUT /api/v1/documents", &[], &document);
    let hint = refused.body["error"]["hint"].as_str().unwrap();
    assert!(hint.contains("issues/**/*.md"), "{refused:?}");
    let (_, secret) = test.fixture.other_workspace("far");
    let far = test.server.as_ref().unwrap().client(&secret);
    let hidden = far.get(&format!("/api/v1/sessions/{session}/changed-turns"));
    assert_eq!(hidden.status, 404, "{hidden:?}");
    let runs = client.get("/api/v1/runs").body["runs"].clone();
    let script = "await tools.writeFile({ path: 'notes.txt…";
    assert_eq!(
        (&runs[0]["title"], &runs[0]["script"]),
        (&json!("keep notes"), &json!(script))
    );
}

#[test]
fn a_person_adds_lessons_to_the_project_of_a_workspace() {
    let test = PageTest::start();
    let client = &test.client;
    let path = "/api/v1/memory/lessons";
    let text = "Deploy with make ship.\nNever on Fridays.";
    let added = client.post(path, json!({"kind": "convention", "content": text}));
    assert_eq!(added.status, 201, "{added:?}");
    let listed = client.get(path).body["lessons"].clone();
    let lesson = &listed[0];
    assert_eq!(lesson["id"], added.body["id"], "{listed}");
    assert_eq!(lesson["title"], "Deploy with make ship.", "{listed}");
    assert_eq!(
        [&lesson["kind"], &lesson["status"], &lesson["scope"]],
        ["convention", "used", "project"],
        "{listed}"
    );
    let cases = [
        (json!({"kind": "convention", "content": " "}), 400),
        (json!({"kind": "layer", "content": "short"}), 400),
        (json!({"kind": "gap", "content": "x"}), 400),
        (
            json!({"kind": "lesson", "content": "x", "workspace": "/none"}),
            404,
        ),
    ];
    for (body, status) in cases {
        let refused = client.post(path, body);
        assert_eq!(refused.status, status, "{refused:?}");
    }
    // Another workspace neither lists nor writes it, and the scope `memory` is not enough.
    let server = test.server.as_ref().unwrap();
    let (_, other) = test.fixture.other_workspace("other");
    let hidden = server.client(&other).get(path);
    assert_eq!(hidden.body["lessons"], json!([]), "{hidden:?}");
    let scope = ["plain", "--scope", "memory"];
    let plain = server.client(&create_token(&test.fixture.workspace, &scope));
    let refused = plain.post(path, json!({"kind": "lesson", "content": "x"}));
    assert_eq!(refused.status, 403, "{refused:?}");
}

#[test]
fn lessons_of_all_projects_need_a_scope_of_their_own() {
    let test = PageTest::start();
    let path = "/api/v1/memory/lessons";
    let lesson = json!({"kind": "preference", "content": "Answer in Swedish."});
    let added = test.client.post(path, lesson);
    let id = added.body["id"].as_str().unwrap();
    let args = ["memory", "review", "--user", id];
    let done = test.fixture.workspace.command(&args).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let one = format!("{path}/{id}");
    let decline = |client: &ApiClient| client.post(&one, json!({"decision": "decline"})).status;
    // All other scopes are not enough, and neither is this one without `approvals`.
    assert_eq!(test.client.get(path).body["lessons"], json!([]));
    assert_eq!(decline(&test.client), 404);
    let server = test.server.as_ref().unwrap();
    let client = |name: &str, more: &[&str]| {
        let memory = [name, "--scope", "memory", "--scope", "user-memory"];
        server.client(&create_token(
            &test.fixture.workspace,
            &[&memory, more].concat(),
        ))
    };
    let reader = client("reader", &[]);
    let listed = reader.get(path).body["lessons"].clone();
    assert_eq!(
        [&listed[0]["id"], &listed[0]["scope"]],
        [id, "user"],
        "{listed}"
    );
    assert_eq!(decline(&reader), 403);
    let editor = client("editor", &["--scope", "approvals"]);
    assert_eq!(decline(&editor), 204);
    assert_eq!(editor.get(path).body["lessons"][0]["status"], "declined");
    // It is granted by name only.
    let plain = create_token(&test.fixture.workspace, &["plain"]);
    let listed = server.client(&plain).get(path);
    assert_eq!(listed.body["lessons"], json!([]), "{listed:?}");
}

#[test]
fn a_request_says_when_it_expires_and_a_run_who_decided() {
    let test = PageTest::start();
    let client = &test.client;
    let session = client.session(json!({"prompt": "strictly"}));
    let approval = wait_for_approval(client);
    let (asked, expires) = (&approval["asked_ms"], &approval["expires_ms"]);
    let wait = expires.as_i64().unwrap() - asked.as_i64().unwrap();
    assert!((55_000..=60_000).contains(&wait), "{approval}");
    let run = approval["run"].as_str().unwrap().to_owned();
    let decide = format!("/api/v1/approvals/{}", approval["id"].as_str().unwrap());
    client.post(&decide, json!({"decision": "deny", "reason": "not today"}));
    client.answer(&session, 1);
    let shown = client.get(&format!("/api/v1/runs/{run}")).body;
    let call = &shown["calls"][0];
    assert_eq!(call["args"]["command"][0], "rm", "{shown}");
    assert_eq!(call["waits"][0]["answer"], "no: not today", "{shown}");
    assert!(call["waits"][0]["decided_by"].is_string(), "{shown}");
    let listed = client.get("/api/v1/runs").body;
    assert_eq!(listed["runs"][0]["first_call"], "exec rm -rf doomed");
    assert_eq!(listed["runs"][0]["failed_commands"], 0);
}
