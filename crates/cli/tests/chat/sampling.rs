//! What MCP servers ask the model, once a person agreed.

use super::forms::desk;
use super::person::Desk;
use super::server::{Asked, Reply};
use super::speech::{block, text};
use super::{READY, last};
use serde_json::{Value, json};

const SAMPLING: &str = "const all = await everything.triggerSamplingRequest.raw({ prompt: 'six times seven?', maxTokens: 50 });\nreturn all.content[0].text";

/// Runs the script, answers the server, and says that it is done.
fn thinking(code: &'static str) -> impl Fn(&Asked) -> Reply + Send + Sync + 'static {
    move |asked| match last(asked) {
        last if last.contains("trigger-sampling-request context: six") => {
            vec![text("Forty-two.")].into()
        }
        last if last.contains("Result of the script") => vec![text("Done.")].into(),
        _ => vec![text(&block(code))].into(),
    }
}

/// What the model was asked on a server's behalf.
fn on_behalf(desk: &Desk) -> Vec<Asked> {
    let all = desk.server.asked().into_iter();
    all.filter(|asked| last(asked).contains("trigger-sampling-request context: six"))
        .collect()
}

#[test]
fn a_server_asks_the_model_where_the_person_agrees() {
    let Some(desk) = desk("", thinking(SAMPLING)) else {
        return;
    };
    let mut person = desk.sit_down(&[], 100, 40, &[]);
    person.asks("Go");
    person.wait_for("y once · s for this script · n no");
    let shown = "mcp.everything: the server everything asks your model: 89 characters, for an answer of at most 50\n  tokens\n      system: You are a helpful test server.\n      user: Resource trigger-sampling-request context: six times seven?";
    assert!(person.screen().contains(shown), "{}", person.screen());
    assert!(
        !person.screen().contains("waits for an answer"),
        "it is no call of its own"
    );
    assert!(on_behalf(&desk).is_empty(), "nothing is asked before that");
    person.types("y");
    person.wait_for("» yes, once");
    person.wait_for("Done.");
    let [asked] = &on_behalf(&desk)[..] else {
        panic!()
    };
    // Its text alone: no tools, nothing of the conversation.
    assert_eq!(
        asked.body["messages"],
        json!([
            {"role": "system", "content": "You are a helpful test server."},
            {"role": "user", "content": "Resource trigger-sampling-request context: six times seven?"},
        ])
    );
    assert!(asked.body.get("tools").is_none(), "{}", asked.body);
    let most = asked
        .body
        .get("max_tokens")
        .or(asked.body.get("max_completion_tokens"));
    assert_eq!(most, Some(&json!(50)), "{}", asked.body);
    assert!(
        last(&desk.server.asked()[2]).contains("Forty-two."),
        "the server was told"
    );
    // Three requests in all.
    person.wait_for("300 in, 60 out");

    person.asks("Once more");
    person.wait("the question", |screen| {
        screen.matches("y once · s for this script").count() == 1
    });
    person.types("n");
    person.wait_for("\nwhy ›");
    person.types("not now\r");
    person.wait("the end", |screen| screen.matches("Done.").count() == 2);
    assert_eq!(on_behalf(&desk).len(), 1);
    assert!(last(desk.server.asked().last().unwrap()).contains("declined: not now"));
}

#[test]
fn what_a_server_asks_ends_with_the_turn() {
    let Some(desk) = desk("sampling = \"approve\"\n", |asked| match last(asked) {
        last if last.contains("trigger-sampling-request context: six") => {
            Reply::Hang(vec![text("For"), text("ty")])
        }
        _ => vec![text(&block(SAMPLING))].into(),
    }) else {
        return;
    };
    let mut person = desk.sit_down(&[], 100, 40, &[]);
    person.asks("Go");
    desk.wait_for_requests(2);
    person.types("\x03");
    person.wait_for("– stopped");
    person.wait_for(READY);
}

#[test]
fn what_a_server_asks_counts_in_the_turn_and_keeps_to_its_budget() {
    let Some(desk) = desk("sampling = \"approve\"\n", thinking(SAMPLING)) else {
        return;
    };
    let events = |args: &[&str]| -> Vec<Value> {
        let output = desk.selvedge(args);
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
    let shown = desk.selvedge(&["sessions", "show", &thread, "--json"]);
    assert!(
        String::from_utf8_lossy(&shown.stdout).contains("Forty-two"),
        "the script's result is kept"
    );
    assert_eq!(on_behalf(&desk).len(), 1);
    // The first answer alone spends all: what it wrote still runs, and asks in vain.
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
    assert_eq!(on_behalf(&desk).len(), 1);
}

#[test]
fn the_model_that_is_asked_is_the_one_of_the_session() {
    let Some(desk) = desk("sampling = \"approve\"\n", thinking(SAMPLING)) else {
        return;
    };
    let mut person = desk.sit_down(&[], 100, 40, &[]);
    person.asks("Go");
    person.wait_for("Done.");
    person.asks("/model other");
    person.wait_for("\n  other · ");
    person.asks("Go again");
    person.wait("the end", |screen| screen.matches("Done.").count() == 2);
    let models: Vec<Value> = on_behalf(&desk)
        .iter()
        .map(|asked| asked.body["model"].clone())
        .collect();
    assert_eq!(models, [json!("mock"), json!("other")]);
}
