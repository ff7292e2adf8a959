//! What the page reads from the server: its files, rendered texts, events, replays and memory.

use serde_json::{Value, json};

use crate::fixture::ServeFixture;
use crate::page::obeys;
use crate::support::api::{ApiClient, create_token};

#[test]
fn the_page_needs_no_token_and_has_a_strict_policy() {
    let fixture = ServeFixture::new(obeys);
    let (_server, client) = fixture.start();
    let none = ("Authorization", "");
    let page = client.request("GET /", &[none], "");
    assert_eq!(page.status, 200, "{page:?}");
    let head = page.head.to_lowercase();
    for part in [
        "default-src 'none'",
        "require-trusted-types-for 'script'",
        "frame-ancestors 'none'",
        "nosniff",
        "etag:",
    ] {
        assert!(head.contains(part), "{part}: {head}");
    }
    assert_eq!(client.request("GET /page/main.js", &[none], "").status, 200);
    assert_eq!(client.request("GET /page/none.js", &[none], "").status, 401);
    assert_eq!(client.get("/page/none.js").status, 404);
    assert_eq!(client.request("POST /", &[none], "{}").status, 405);
    for path in ["/api/v1/render", "/api/v1/health", "/api/v1/environments"] {
        let refused = client.request(&format!("GET {path}"), &[none], "");
        assert_eq!(refused.status, 401, "{refused:?}");
    }
}

#[test]
fn only_tokens_with_the_scope_see_the_state_of_the_memory() {
    let fixture = ServeFixture::new(obeys);
    let (server, client) = fixture.start();
    let narrow = ["narrow", "--scope", "sessions"];
    let narrow = server.client(&create_token(&fixture.workspace, &narrow));
    let checks = |client: &ApiClient| {
        let health = client.get("/api/v1/health");
        assert_eq!(health.status, 200, "{health:?}");
        let checks = health.body["checks"].as_array().unwrap().clone();
        let names = checks.into_iter().map(|check| check["what"].clone());
        names.collect::<Vec<Value>>()
    };
    let mut all = checks(&client);
    assert_eq!(all.pop(), Some(json!("project memory")));
    assert_eq!(checks(&narrow), all);
}

#[test]
fn texts_are_rendered_without_markup_of_their_own() {
    let fixture = ServeFixture::new(obeys);
    let (_server, client) = fixture.start();
    let texts = json!([
        {"kind": "markdown", "text": "**a** <script>b</script>"},
        {"kind": "code", "language": "ts", "text": "const a = '<b>'"},
        {"kind": "diff", "text": "@@ -1 +1 @@\n-<b>\n+c\n"},
        {"kind": "plain", "text": "<b>\u{1b}"},
    ]);
    let rendered = client.post("/api/v1/render", json!({"texts": texts}));
    assert_eq!(rendered.status, 200, "{rendered:?}");
    let html = rendered.body["html"].to_string();
    assert!(html.contains("<strong>a</strong>") && html.contains("class=\\\"keyword\\\""));
    assert!(!html.contains("<script") && !html.contains("<b>"), "{html}");
    let many = vec![json!({"kind": "plain", "text": ""}); 201];
    let refused = client.post("/api/v1/render", json!({"texts": many}));
    assert_eq!(refused.status, 400, "{refused:?}");
}

#[test]
fn the_events_of_the_latest_turn_begin_after_a_number() {
    let fixture = ServeFixture::new(obeys);
    let (_server, client) = fixture.start();
    let session = client.session(json!({}));
    let path = format!("/api/v1/sessions/{session}/latest-turn");
    let none = client.get(&path);
    assert_eq!(
        (&none.body["turn"], &none.body["after"]),
        (&Value::Null, &json!(0))
    );
    for number in 1..=2 {
        let messages = format!("/api/v1/sessions/{session}/messages");
        client.post(&messages, json!({"text": "hello"}));
        client.answer(&session, number);
    }
    let latest = client.get(&path);
    assert_eq!(latest.body["turn"], 2, "{latest:?}");
    assert!(latest.body["usage"]["usage"]["input_tokens"].as_u64() > Some(0));
    let events = client.stored_events(&session, latest.body["after"].as_u64().unwrap());
    assert_eq!(events[0].1, json!({"type": "turn.started", "turn": 2}));
}

#[test]
fn notes_about_turns_say_how_they_ended() {
    let fixture = ServeFixture::with_config("memory.recall = false", obeys);
    let (server, client) = fixture.start();
    let session = client.session(json!({}));
    for (number, text) in (1..).zip(["hello", "break", "hello"]) {
        client.message(&session, text);
        client.answer(&session, number);
    }
    let path = format!("/api/v1/sessions/{session}/turn-notes");
    let notes = client.get(&path).body;
    assert_eq!(notes["turns"].as_array().map(Vec::len), Some(1), "{notes}");
    let failed = &notes["turns"][0];
    assert_eq!(failed["turn"], 2, "{notes}");
    let message = failed["error"]["message"].as_str().unwrap();
    assert!(message.contains("a broken request"), "{notes}");
    let end = client.get(&format!("{path}?after={}", notes["next"]));
    assert_eq!(end.body, json!({"turns": []}));
    let (_, other) = fixture.other_workspace("other");
    let hidden = server.client(&other).get(&path);
    assert_eq!(hidden.status, 404, "{hidden:?}");
}

#[test]
fn a_run_is_replayed_also_with_a_failed_call() {
    let fixture = ServeFixture::new(obeys);
    let (server, client) = fixture.start();
    let session = client.session(json!({"prompt": "fail"}));
    client.answer(&session, 1);
    let runs = client.get("/api/v1/runs");
    let path = format!(
        "/api/v1/runs/{}/replay",
        runs.body["runs"][0]["id"].as_str().unwrap()
    );
    let same = client.post(&path, json!({}));
    assert_eq!(same.body["matches"], true, "{same:?}");
    assert_eq!(same.body["output"]["error"]["line"], 2, "{same:?}");
    let failed = client.post(&path, json!({"fail": "tool_1"}));
    assert_eq!(failed.body["output"]["error"]["line"], 1, "{failed:?}");
    let unknown = client.post(&path, json!({"fail": "tool_9"}));
    assert_eq!(unknown.status, 400, "{unknown:?}");
    let (_, other) = fixture.other_workspace("other");
    let hidden = server.client(&other).post(&path, json!({}));
    assert_eq!(hidden.status, 404, "{hidden:?}");
}

#[test]
fn the_memory_of_a_session_has_bands_and_levels() {
    let fixture = ServeFixture::new(obeys);
    let (server, client) = fixture.start();
    let session = client.session(json!({"prompt": "hello"}));
    client.answer(&session, 1);
    let path = format!("/api/v1/sessions/{session}/memory");
    let gradient = client.get(&path);
    let band = &gradient.body["bands"][0];
    assert_eq!(
        (&band["first"], &band["level"]),
        (&json!(1), &json!("raw")),
        "{gradient:?}"
    );
    let turn = client.get(&format!("{path}/1"));
    let levels = &turn.body["levels"];
    assert!(levels[3].is_object() && levels[4].is_null(), "{turn:?}");
    assert!(levels[0]["text"].as_str().unwrap().contains("hello"));
    assert_eq!(client.get(&format!("{path}/99")).status, 404);
    assert!(client.get("/api/v1/memory/lessons").body["lessons"] == json!([]));
    let (path, accept) = (
        "/api/v1/memory/lessons/les_1",
        json!({"decision": "accept"}),
    );
    let unknown = client.post(path, accept.clone());
    assert_eq!(unknown.status, 404, "{unknown:?}");
    let scope = ["plain", "--scope", "memory"];
    let plain = server.client(&create_token(&fixture.workspace, &scope));
    let refused = plain.post(path, accept);
    assert_eq!(refused.status, 403, "{refused:?}");
}
