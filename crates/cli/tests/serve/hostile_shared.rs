//! Attempts across tokens at servers that share a PostgreSQL database: approvals of another token
//! that wait at another server, and revocation. Without `SELVEDGE_TEST_STORE` the tests do nothing.

use std::io::{BufReader, Read};

use serde_json::{Value, json};

use crate::fixture::ServeFixture;
use crate::shared::{model, start_elsewhere, wait_until};
use crate::support::api::{ApiClient, EventReader, create_token};
use crate::support::store;

/// Returns the approval request of a session at a server.
fn waiting(client: &ApiClient, session: &str) -> Option<Value> {
    let asked = client.get(&format!("/api/v1/approvals?session={session}"));
    asked.body["approvals"].get(0).cloned()
}

#[test]
fn approvals_at_another_server_belong_to_the_tokens_of_their_workspace() {
    if store::uses_files() {
        return;
    }
    let fixture = ServeFixture::new(model);
    let (_folder, secret) = fixture.other_workspace("foreign");
    let narrow = create_token(&fixture.workspace, &["narrow", "--scope", "sessions"]);
    let (_one, first) = fixture.start();
    let (two, second) = start_elsewhere(&fixture, "second", "");
    let (foreign, narrow) = (two.client(&secret), two.client(&narrow));
    let stream = foreign.send("GET /api/v1/approvals/events", &[], "");
    let mut followed = EventReader(BufReader::new(stream));

    let session = first.session(json!({"prompt": "delete it"}));
    wait_until("the other server shows the request", || {
        waiting(&second, &session).is_some()
    });
    let id = waiting(&second, &session).unwrap()["id"].clone();
    let path = format!("/api/v1/approvals/{}", id.as_str().unwrap());
    let missing = "/api/v1/approvals/apr_0000000000000000";
    assert_eq!(
        foreign.get("/api/v1/approvals").body["approvals"],
        json!([])
    );
    assert_eq!(waiting(&foreign, &session), None);
    for decision in ["once", "similar_calls", "all_later_calls", "deny"] {
        let refused = foreign.post(&path, json!({"decision": decision}));
        let unknown = foreign.post(missing, json!({"decision": decision}));
        assert_eq!((refused.status, unknown.status), (404, 404), "{refused:?}");
        let (refused, unknown) = (refused.text, unknown.text);
        let same = refused.replace(id.as_str().unwrap(), "apr_0000000000000000");
        assert_eq!(same, unknown, "{decision}");
        assert_eq!(
            narrow.post(&path, json!({"decision": decision})).status,
            403
        );
    }
    assert!(waiting(&first, &session).is_some(), "it still waits");
    assert_eq!(second.post(&path, json!({"decision": "deny"})).status, 200);
    assert_eq!(second.answer(&session, 1)["answer"], "was denied");
    // After the decision, the request still does not exist for the other token.
    assert_eq!(foreign.post(&path, json!({"decision": "once"})).status, 404);
    assert_eq!(second.post(&path, json!({"decision": "once"})).status, 409);

    // The stream of the other token has only its own requests.
    let own = foreign.session(json!({"prompt": "delete it"}));
    let event = followed.next_event().unwrap().1;
    assert_eq!(event["approval"]["session"], json!(own), "{event}");
}

#[test]
fn one_of_many_decisions_at_several_servers_counts() {
    if store::uses_files() {
        return;
    }
    let fixture = ServeFixture::new(model);
    let (_one, first) = fixture.start();
    let (_two, second) = start_elsewhere(&fixture, "second", "");
    let session = first.session(json!({"prompt": "delete it"}));
    wait_until("the other server shows the request", || {
        waiting(&second, &session).is_some()
    });
    let id = waiting(&second, &session).unwrap()["id"].clone();
    let path = format!("/api/v1/approvals/{}", id.as_str().unwrap());
    let attempts: Vec<_> = (0..8)
        .map(|number| {
            let client = if number % 2 == 0 { &first } else { &second };
            let decision = if number % 3 == 0 { "once" } else { "deny" };
            let (client, path) = (client.clone(), path.clone());
            let decide = move || (decision, client.post(&path, json!({"decision": decision})));
            std::thread::spawn(decide)
        })
        .collect();
    let decided = attempts.into_iter().map(|attempt| attempt.join().unwrap());
    let (won, lost): (Vec<_>, Vec<_>) = decided.partition(|(_, response)| response.status == 200);
    assert_eq!(won.len(), 1, "{won:?}");
    assert!(
        lost.iter().all(|(_, response)| response.status == 409),
        "{lost:?}"
    );
    let end = match won[0].0 {
        "once" => "was allowed",
        _ => "was denied",
    };
    assert_eq!(first.answer(&session, 1)["answer"], end);
}

#[test]
fn a_token_that_is_revoked_ends_at_every_server() {
    if store::uses_files() {
        return;
    }
    let fixture = ServeFixture::new(model);
    let (one, keeper) = fixture.start();
    let (two, _) = start_elsewhere(&fixture, "second", "");
    let secret = create_token(&fixture.workspace, &["brief"]);
    let (first, second) = (one.client(&secret), two.client(&secret));
    let session = first.session(json!({"prompt": "wait for it"}));
    wait_until("the command starts", || {
        fixture.workspace.work().join("started").exists()
    });
    let start = format!("GET /api/v1/sessions/{session}/events");
    let streams = [first.send(&start, &[], ""), second.send(&start, &[], "")];
    let revoke = ["serve", "token", "revoke", "brief"];
    assert!(
        fixture
            .workspace
            .command(&revoke)
            .status()
            .unwrap()
            .success()
    );
    for client in [&first, &second] {
        assert_eq!(client.get("/api/v1/sessions").status, 401);
    }
    for mut stream in streams {
        stream.read_to_end(&mut Vec::new()).unwrap();
    }
    assert_eq!(keeper.answer(&session, 1)["state"], "stopped");
}
