//! Sampling by MCP servers: requests to the model, with approval.

use super::answer_encoding::{block, text};
use super::driver::ChatFixture;
use super::forms::fixture;
use super::server::{Asked, Reply};
use super::{READY, last};
use serde_json::{Value, json};

const SAMPLING: &str = "const all = await everything.triggerSamplingRequest.raw({ \
    prompt: 'six times seven?', maxTokens: 50 });\nreturn all.content[0].text";

/// Answers every message with the script, the server's request with "Forty-two.", and the result
/// of the script with "Done."
fn script_and_sampling(code: &'static str) -> impl Fn(&Asked) -> Reply + Send + Sync + 'static {
    move |request| match last(request) {
        last if last.contains("trigger-sampling-request context: six") => {
            vec![text("Forty-two.")].into()
        }
        last if last.contains("Result of the script") => vec![text("Done.")].into(),
        _ => vec![text(&block(code))].into(),
    }
}

/// Returns the requests that the model received for the server.
fn sampling_requests(fixture: &ChatFixture) -> Vec<Asked> {
    let all = fixture.server.asked().into_iter();
    all.filter(|request| last(request).contains("trigger-sampling-request context: six"))
        .collect()
}

#[test]
fn sampling_needs_approval() {
    let Some(fixture) = fixture("", script_and_sampling(SAMPLING)) else {
        return;
    };
    let mut terminal = fixture.open(&[], 100, 40, &[]);
    terminal.send("Go");
    terminal.wait_for("1. Approve this call, once");
    let shown = "mcp.everything: the server everything asks your model: 89 characters, \
                 for an answer of at most 50\n  tokens\n    \
                 │ system: You are a helpful test server.\n    \
                 │ user: Resource trigger-sampling-request context: six times seven?";
    assert!(terminal.screen().contains(shown), "{}", terminal.screen());
    assert!(
        !terminal.screen().contains("waiting for approval"),
        "a sampling request has no line of its own"
    );
    assert!(
        sampling_requests(&fixture).is_empty(),
        "the model is not asked before the approval"
    );
    terminal.choose(1);
    terminal.wait_for("» approved once");
    terminal.wait_for("Done.");
    let [request] = &sampling_requests(&fixture)[..] else {
        panic!()
    };
    // The request has the server's text only: no tools, nothing of the conversation.
    let prompt = "Resource trigger-sampling-request context: six times seven?";
    assert_eq!(
        request.body["messages"],
        json!([
            {"role": "system", "content": "You are a helpful test server."},
            {"role": "user", "content": prompt},
        ])
    );
    assert!(request.body.get("tools").is_none(), "{}", request.body);
    let max_tokens = request
        .body
        .get("max_tokens")
        .or(request.body.get("max_completion_tokens"));
    assert_eq!(max_tokens, Some(&json!(50)), "{}", request.body);
    assert!(
        last(&fixture.server.asked()[2]).contains("Forty-two."),
        "the server received the answer"
    );
    // The usage of all three requests.
    terminal.wait_for("300 in, 60 out");

    terminal.send("Once more");
    terminal.wait_until("the question", |screen| {
        screen.matches("1. Approve this call, once").count() == 1
    });
    terminal.choose(4);
    terminal.wait_for("\nreason ›");
    terminal.type_text("not now\r");
    terminal.wait_until("the end", |screen| screen.matches("Done.").count() == 2);
    assert_eq!(sampling_requests(&fixture).len(), 1);
    assert!(last(fixture.server.asked().last().unwrap()).contains("declined: not now"));
}

#[test]
fn stopping_the_turn_stops_sampling() {
    let Some(fixture) = fixture("sampling = \"approve\"\n", |request| match last(request) {
        last if last.contains("trigger-sampling-request context: six") => {
            Reply::Hang(vec![text("For"), text("ty")])
        }
        _ => vec![text(&block(SAMPLING))].into(),
    }) else {
        return;
    };
    let mut terminal = fixture.open(&[], 100, 40, &[]);
    terminal.send("Go");
    fixture.wait_for_requests(2);
    terminal.type_text("\x03");
    terminal.wait_for("– stopped");
    terminal.wait_for(READY);
}

#[test]
fn sampling_counts_towards_the_usage_and_the_budget_of_the_turn() {
    let Some(fixture) = fixture("sampling = \"approve\"\n", script_and_sampling(SAMPLING)) else {
        return;
    };
    let events = |args: &[&str]| -> Vec<Value> {
        let output = fixture.run(args);
        let lines = String::from_utf8(output.stdout).unwrap();
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let end = |events: &[Value]| {
        events
            .iter()
            .find(|event| event["type"] == "turn.completed")
            .unwrap()
            .clone()
    };
    let all = events(&["exec", "--json", "Go"]);
    assert_eq!(end(&all)["usage"]["input_tokens"], 300, "{}", end(&all));
    let thread = all[0]["thread_id"].as_str().unwrap().to_owned();
    let shown = fixture.run(&["sessions", "show", &thread, "--json"]);
    assert!(
        String::from_utf8_lossy(&shown.stdout).contains("Forty-two"),
        "the script's result is stored"
    );
    assert_eq!(sampling_requests(&fixture).len(), 1);
    // The first answer uses up the budget: its script still runs, but sampling is rejected.
    let all = events(&["exec", "--json", "--max-tokens", "110", "Go"]);
    assert_eq!(
        (
            &end(&all)["finish_reason"],
            &end(&all)["usage"]["input_tokens"]
        ),
        (&json!("max_tokens"), &json!(100))
    );
    assert!(
        all.iter()
            .any(|event| event.to_string().contains("the budget is used up")),
        "{all:?}"
    );
    assert_eq!(sampling_requests(&fixture).len(), 1);
}

#[test]
fn sampling_uses_the_current_model_of_the_session() {
    let Some(fixture) = fixture("sampling = \"approve\"\n", script_and_sampling(SAMPLING)) else {
        return;
    };
    let mut terminal = fixture.open(&[], 100, 40, &[]);
    terminal.send("Go");
    terminal.wait_for("Done.");
    terminal.send("/model other");
    terminal.wait_for("\n  other · ");
    terminal.send("Go again");
    terminal.wait_until("the end", |screen| screen.matches("Done.").count() == 2);
    let models: Vec<Value> = sampling_requests(&fixture)
        .iter()
        .map(|request| request.body["model"].clone())
        .collect();
    assert_eq!(models, [json!("mock"), json!("other")]);
}
