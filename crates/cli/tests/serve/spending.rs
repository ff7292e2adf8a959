//! What a token pays for: turns that its messages lead to, in whatever session and however many.

use serde_json::json;

use crate::answer_encoding::{block, text};
use crate::fixture::ServeFixture;
use crate::isolation::{run_script, runs_scripts};
use crate::recovery::wait_until;
use crate::server::{Asked, Reply};
use crate::support::api::{ApiClient, create_token};

/// Each request has a hundred input tokens, so it costs 1.
const PRICES: &str =
    "models.mock.prices = { input = 10000.0, output = 0.0, cached_input = 10000.0 }";

/// Returns what the token `poor` has spent.
fn spent(fixture: &ServeFixture) -> f64 {
    let args = ["serve", "token", "list", "--json"];
    let listed = fixture.workspace.command(&args).output().unwrap();
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let mut tokens = listed.as_array().unwrap().iter();
    let poor = tokens.find(|token| token["name"] == "poor").unwrap();
    poor["spent"].as_f64().unwrap()
}

/// Waits until no message of these sessions is open.
fn wait_until_idle(client: &ApiClient) {
    wait_until("no turn is open", || {
        let listed = client.get("/api/v1/sessions?limit=500");
        let sessions = listed.body["sessions"].as_array().unwrap().clone();
        sessions.iter().all(|session| session["queued"] == 0)
    });
}

#[test]
fn a_token_pays_for_every_turn_that_its_messages_lead_to() {
    let fixture = ServeFixture::with_config(PRICES, runs_scripts);
    let (server, _) = fixture.start();
    let args = ["poor", "--max-cost", "20"];
    let poor = server.client(&create_token(&fixture.workspace, &args));
    let session = poor.session(json!({}));
    // Turns of messages that the parent does not wait for run while it waits for the last one.
    let code = "const c = await sessions.create({ title: 'x' }); \
        for (let i = 0; i < 8; i++) await c.send('hi ' + i); \
        const last = await c.send('last', { wait: true }); return last.state";
    run_script(&poor, &session, code);
    wait_until_idle(&poor);
    let requests = fixture.model.asked().len();
    assert_eq!(requests, 11, "two of the parent and nine of the child");
    assert!((spent(&fixture) - 11.0).abs() < 1e-6, "{}", spent(&fixture));
    // At the limit, all of them end.
    let code = code.replace("i < 8", "i < 30");
    run_script(&poor, &session, &code);
    wait_until_idle(&poor);
    let requests = fixture.model.asked().len();
    assert!((20..=22).contains(&requests), "{requests} requests");
    let paid = spent(&fixture);
    assert!(
        (paid - requests as f64).abs() < 1e-6,
        "{paid} for {requests}"
    );
}

#[test]
fn turns_at_the_same_time_do_not_each_spend_the_rest() {
    // Without a limit, each turn would send a hundred requests.
    let endless = |_: &_| -> Reply { vec![text(&block("return 1"))].into() };
    let fixture = ServeFixture::with_config(PRICES, endless);
    let (server, _) = fixture.start();
    let args = ["poor", "--max-cost", "5"];
    let poor = server.client(&create_token(&fixture.workspace, &args));
    let sessions: Vec<String> = (0..6).map(|_| poor.session(json!({}))).collect();
    for session in &sessions {
        poor.message(session, "go");
    }
    for session in &sessions {
        assert_eq!(poor.answer(session, 1)["state"], "failed");
    }
    // At most one further request of each of the other turns.
    let requests = fixture.model.asked().len();
    assert!((5..=10).contains(&requests), "{requests} requests");
    assert!((spent(&fixture) - requests as f64).abs() < 1e-6);
    let refused = poor.post(
        &format!("/api/v1/sessions/{}/messages", sessions[0]),
        json!({"text": "more"}),
    );
    assert_eq!(refused.status, 429, "{refused:?}");
}

/// Whether the last message of a request is one that is never answered.
fn is_slow(asked: &Asked) -> bool {
    let messages = asked.body["messages"].as_array().unwrap();
    messages.last().unwrap().to_string().contains("slow")
}

#[test]
fn turns_and_messages_of_scripts_count_for_the_token() {
    let more = "serve.max_concurrent_turns = 2\nserve.max_queued_turns = 10";
    let fixture = ServeFixture::with_config(more, |asked| match is_slow(asked) {
        true => Reply::Hang(vec![text("thinking")]),
        false => runs_scripts(asked),
    });
    let (_server, client) = fixture.start();
    let session = client.session(json!({}));
    let code = "let sent = 0; const why = []; for (let i = 0; i < 6; i++) { \
        const c = await sessions.create({ title: 'kid' + i }); for (let j = 0; j < 3; j++) { \
        try { await c.send('s' + 'low'); sent += 1 } catch (e) { why.push(e.message) } } } \
        return `SENT ${sent} ${why[0]}`";
    let answer = run_script(&client, &session, code);
    // The message of the client is open as well.
    assert!(
        answer.contains("SENT 9 10 messages of this token"),
        "{answer}"
    );
    let running = || {
        let metrics = client.get("/metrics").text;
        let line = metrics
            .lines()
            .find(|line| line.starts_with("selvedge_running_turns "));
        line.unwrap().rsplit(' ').next().unwrap().to_owned()
    };
    wait_until("two turns run", || running() == "2");
    let path = format!("/api/v1/sessions/{session}/messages");
    let sent = client.post(&path, json!({"text": "hello"}));
    assert_eq!(sent.status, 202, "{sent:?}");
    let refused = client.post(&path, json!({"text": "hello"}));
    assert_eq!(refused.status, 429, "{refused:?}");
    // A third turn begins only when one of the two ends.
    let slow_requests = || {
        fixture
            .model
            .asked()
            .iter()
            .filter(|asked| is_slow(asked))
            .count()
    };
    wait_until("two turns ask the model", || slow_requests() >= 2);
    assert_eq!((slow_requests(), running().as_str()), (2, "2"));
    let status = client.get("/api/v1/status").body;
    let queue = status["queue"].as_array().unwrap().iter();
    let mut runs = queue.filter(|message| message["state"] == "running");
    let stopped = runs.next().unwrap()["session"].as_str().unwrap();
    let before = fixture.model.asked().len();
    client.post(&format!("/api/v1/sessions/{stopped}/stop"), json!({}));
    wait_until("the next turn asks the model", || {
        fixture.model.asked().len() > before && running() == "2"
    });
    assert!(slow_requests() <= 3, "{} turns began", slow_requests());
}
