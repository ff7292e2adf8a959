//! What the API has for the web page: lessons, topics, the state of the server, resumed runs.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::page::PageTest;
use crate::support::TEST_TIMEOUT;
use crate::support::api::{ApiClient, create_token};

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
    for scope in ["user", "project"] {
        assert_eq!(patch(json!({"scope": scope})).status, 204);
        let lessons = client.get("/api/v1/memory/lessons").body["lessons"].clone();
        let lessons = lessons.as_array().unwrap();
        let edited = lessons.iter().find(|lesson| lesson["title"] == "Language");
        let edited = edited.unwrap_or_else(|| panic!("{lessons:?}"));
        assert_eq!(
            (&edited["content"], &edited["topics"], &edited["scope"]),
            (
                &json!("Answer in Swedish."),
                &json!(["chat"]),
                &json!(scope)
            )
        );
    }
    let empty = patch(json!({"content": " "}));
    assert_eq!(empty.status, 400, "{empty:?}");
    assert_eq!(patch(json!({"weight": 1})).status, 400);
    let scope = ["plain", "--scope", "memory"];
    let plain = create_token(&test.fixture.workspace, &scope);
    let plain = test.server.as_ref().unwrap().client(&plain);
    let refused = plain.request(&format!("PATCH {path}"), &[], "{\"title\":\"x\"}");
    assert_eq!(refused.status, 403, "{refused:?}");
    let topics = client.get("/api/v1/memory/topics").body;
    let mut all = topics["topics"].as_array().unwrap().iter();
    let migration = all.find(|topic| topic["name"] == "migration");
    let counts = migration.unwrap_or_else(|| panic!("{topics}"))["turns"].clone();
    let counts = counts.as_array().unwrap().iter().filter_map(Value::as_u64);
    assert_eq!(counts.sum::<u64>(), 12, "{topics}");
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
