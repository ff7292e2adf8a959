//! Approvals over the API: list, decide, race and time-out.

use std::io::BufReader;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::answer_encoding::{block, text};
use crate::fixture::ServeFixture;
use crate::server::{Asked, Reply};
use crate::support::TEST_TIMEOUT;
use crate::support::api::{ApiClient, EventReader, create_token};

/// A model that deletes a folder by force, which needs approval, and then says what happened.
pub fn deletes_by_force(asked: &Asked) -> Reply {
    let messages = asked.body["messages"].as_array().unwrap();
    let last = messages.last().unwrap()["content"].to_string();
    if last.contains("please") {
        let code = "try { await tools.exec({ command: ['rm', '-rf', 'doomed'] }); \
            return 'was allowed' } catch (error) { return 'was denied: ' + error.message }";
        return vec![text(&block(code))].into();
    }
    let end = match last {
        last if last.contains("was allowed") => "allowed",
        last if last.contains("timed out") => "timed out",
        last if last.contains("was denied") => "denied",
        _ => "unclear",
    };
    vec![text(end)].into()
}

/// Waits for an approval request, and returns it.
fn wait_for_approval(client: &ApiClient) -> Value {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let approvals = client.get("/api/v1/approvals");
        assert_eq!(approvals.status, 200, "{approvals:?}");
        if let Some(approval) = approvals.body["approvals"].get(0) {
            return approval.clone();
        }
        assert!(Instant::now() < deadline, "no approval was requested");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn one_of_two_decisions_counts() {
    let fixture = ServeFixture::new(deletes_by_force);
    let (server, client) = fixture.start();
    let other = create_token(&fixture.workspace, &["other", "--scope", "approvals"]);
    let other = server.client(&other);
    let no_scope = server.client(&create_token(&fixture.workspace, &["plain"]));
    let stream = other.send("GET /api/v1/approvals/events", &[], "");
    let mut followed = EventReader(BufReader::new(stream));
    for (first, end) in [("once", "allowed"), ("deny", "denied")] {
        let session = client.session(json!({"prompt": "please"}));
        let approval = wait_for_approval(&other);
        let asked = followed.next_event().unwrap().1;
        assert_eq!(
            (&asked["type"], &asked["approval"]),
            (&json!("approval.requested"), &approval)
        );
        assert_eq!(approval["session"], json!(session));
        assert_eq!(approval["calls"][0]["tool"], "exec", "{approval}");
        let path = format!("/api/v1/approvals/{}", approval["id"].as_str().unwrap());
        // A rule for every folder is not for a client.
        let always = client.post(&path, json!({"decision": "always"}));
        assert_eq!(always.status, 400, "{always:?}");
        let refused = no_scope.post(&path, json!({"decision": "once"}));
        assert_eq!(refused.status, 403, "{refused:?}");
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let deciders = [&client, &other, &client, &other];
            let decisions = deciders.map(|client| {
                let path = &path;
                scope.spawn(move || client.post(path, json!({"decision": first})).status)
            });
            decisions.map(|decision| decision.join().unwrap()).into()
        });
        let won = statuses.iter().filter(|status| **status == 200).count();
        let lost = statuses.iter().filter(|status| **status == 409).count();
        assert_eq!((won, lost), (1, 3), "{statuses:?}");
        let closed = followed.next_event().unwrap().1;
        assert_eq!(
            closed,
            json!({"type": "approval.closed", "id": approval["id"]})
        );
        assert_eq!(client.answer(&session, 1)["answer"], end);
        let events = client.stored_events(&session, 0);
        let kinds = events
            .iter()
            .map(|(_, event)| event["type"].as_str().unwrap());
        let kinds: Vec<&str> = kinds.filter(|kind| kind.starts_with("approval.")).collect();
        assert_eq!(kinds, ["approval.requested", "approval.answered"]);
    }
    let unknown = client.post("/api/v1/approvals/apr_none", json!({"decision": "once"}));
    assert_eq!(unknown.status, 404, "{unknown:?}");
}

#[test]
fn a_decision_that_does_not_come_is_a_denial() {
    let limits = "[script_harness.limits]\napproval_timeout_ms = 300";
    let fixture = ServeFixture::with_config(limits, deletes_by_force);
    let (_server, client) = fixture.start();
    let session = client.session(json!({"prompt": "please"}));
    assert_eq!(client.answer(&session, 1)["answer"], "timed out");
    let approvals = client.get("/api/v1/approvals");
    assert_eq!(approvals.body, json!({"approvals": []}));
}

/// Asks for the deletion as clients of OpenAI do, and returns the answer of the agent.
fn chat_answer(client: &ApiClient) -> String {
    let messages = json!([{"role": "user", "content": "please"}]);
    let request = json!({"model": "default", "messages": messages});
    let done = client.post("/v1/chat/completions", request);
    let content = done.body["choices"][0]["message"]["content"].as_str();
    content
        .unwrap_or_else(|| panic!("{done:?}"))
        .trim()
        .to_owned()
}

fn response_answer(client: &ApiClient) -> String {
    let request = json!({"model": "default", "input": "please"});
    let done = client.post("/v1/responses", request);
    let content = done.body["output"][0]["content"][0]["text"].as_str();
    content
        .unwrap_or_else(|| panic!("{done:?}"))
        .trim()
        .to_owned()
}

#[test]
fn openai_clients_get_the_answer_after_the_decision_or_its_time_limit() {
    let limits = "[script_harness.limits]\napproval_timeout_ms = 300";
    let hasty = ServeFixture::with_config(limits, deletes_by_force);
    let (_server, client) = hasty.start();
    assert_eq!(chat_answer(&client), "timed out");
    assert_eq!(response_answer(&client), "timed out");
    let patient = ServeFixture::new(deletes_by_force);
    let (_server, client) = patient.start();
    let asks: [fn(&ApiClient) -> String; 2] = [chat_answer, response_answer];
    for ask in asks {
        for (decision, end) in [("once", "allowed"), ("deny", "denied")] {
            let answer = std::thread::scope(|scope| {
                let asked = scope.spawn(|| ask(&client));
                let approval = wait_for_approval(&client);
                let path = format!("/api/v1/approvals/{}", approval["id"].as_str().unwrap());
                let decided = client.post(&path, json!({"decision": decision}));
                assert_eq!(decided.status, 200, "{decided:?}");
                asked.join().unwrap()
            });
            assert_eq!(answer, end);
        }
    }
}

#[test]
fn approvals_of_other_workspaces_are_not_visible() {
    let fixture = ServeFixture::new(deletes_by_force);
    let (server, client) = fixture.start();
    let (_, secret) = fixture.other_workspace("far");
    let far = server.client(&secret);
    let session = client.session(json!({"prompt": "please"}));
    let approval = wait_for_approval(&client);
    assert_eq!(far.get("/api/v1/approvals").body, json!({"approvals": []}));
    let path = format!("/api/v1/approvals/{}", approval["id"].as_str().unwrap());
    assert_eq!(far.post(&path, json!({"decision": "once"})).status, 404);
    assert_eq!(client.post(&path, json!({"decision": "deny"})).status, 200);
    assert_eq!(far.post(&path, json!({"decision": "once"})).status, 404);
    assert_eq!(client.answer(&session, 1)["answer"], "denied");
}
