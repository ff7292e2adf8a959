//! Replays recorded conversations and compares the later requests, in which results, reasoning,
//! signatures and ids are sent back.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "recorded/folder.rs"]
#[allow(dead_code)]
mod folder;
#[path = "conversations/form.rs"]
mod form;
#[path = "loopback/server.rs"]
#[allow(dead_code)]
mod server;

use std::path::Path;

use selvedge_models::{Model, ModelClient, ModelEvent, Prompt, Provider, ReasoningStyle};
use selvedge_protocol::{ConversationItem, MessageRole, WireApi};
use serde_json::{Value, json};
use server::{ProviderReply, ProviderServer};

#[tokio::test]
async fn requests_match_those_of_recorded_clients() {
    let Some(folder) = folder::folder() else {
        eprintln!("skipped: no recorded conversations found");
        return;
    };
    let (mut turns, mut differences) = (0, Vec::new());
    for (name, wire) in [
        ("openai_responses", WireApi::Responses),
        ("openai_chat", WireApi::Chat),
        ("anthropic_messages", WireApi::Messages),
    ] {
        for entry in std::fs::read_dir(folder.join(name).join("conversations")).unwrap() {
            turns += replay(&entry.unwrap().path(), wire, &mut differences).await;
        }
    }
    assert!(
        differences.is_empty(),
        "{} differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
    assert!(turns >= 25, "only {turns} requests were compared");
}

/// Replays one conversation, and returns how many requests were compared.
async fn replay(folder: &Path, wire: WireApi, differences: &mut Vec<String>) -> usize {
    let file = |number: usize, kind: &str| folder.join(format!("{number:02}.{kind}"));
    let count = (1..)
        .take_while(|number| file(*number, "sse").is_file())
        .count();
    let requests: Vec<Value> = (1..=count)
        .map(|number| {
            serde_json::from_slice(&std::fs::read(file(number, "request.json")).unwrap()).unwrap()
        })
        .collect();
    let replies = (1..=count)
        .map(|number| ProviderReply::events(std::fs::read(file(number, "sse")).unwrap()).split(97));
    let server = ProviderServer::start(replies).await;
    let client = ModelClient::new(Provider::new("recorded", &server.url, wire)).unwrap();
    let name = requests[0]["model"].as_str().unwrap();
    let reasoning = if requests[0]["include"].is_array() {
        ReasoningStyle::Effort
    } else {
        ReasoningStyle::Omitted
    };
    let model = Model {
        reasoning,
        ..Model::from_table(name)
    };

    let mut prompt = Prompt::default();
    let mut compared = 0;
    for (index, request) in requests.iter().enumerate() {
        let mut expected = form::of(wire, request);
        correct_known_errors(&mut expected);
        if index == 0 || expected.len() <= form::of(wire, &requests[index - 1]).len() {
            prompt = form::prompt(wire, request);
        } else {
            // Adds the results and user messages that the recorded client added.
            form::add_results(&mut prompt.history, &expected);
            compared += 1;
        }
        prompt.max_output_tokens = ["max_output_tokens", "max_tokens"]
            .iter()
            .find_map(|key| request[key].as_u64());
        let answer = ask(&client, &prompt, &model).await;
        let sent = server.requests().last().unwrap().json();
        let actual = form::of(wire, &sent);
        if actual != expected {
            differences.push(format!(
                "{} request {}:\n{actual:#?}\n{expected:#?}",
                folder.display(),
                index + 1
            ));
        }
        form::compare_settings(wire, &sent, request);
        prompt.history.extend(answer);
        // Serialising the history loses nothing.
        let json = serde_json::to_string(&prompt.history).unwrap();
        prompt.history = serde_json::from_str(&json).unwrap();
    }
    assert_eq!(server.requests().len(), count);
    compared
}

/// Corrects two recorded clients: one sent other arguments than the model wrote, one lost a text.
fn correct_known_errors(expected: &mut [Value]) {
    for item in expected {
        if item["calls"][0]["call"] == "functions.add:0" && item["assistant"] == "" {
            item["assistant"] = "I'll add and multiply 2 and 3 for you at the same time.".into();
        }
        if item["arguments"] == json!({"city": {}}) {
            item["arguments"] = json!({"city": "Paris"});
        }
    }
}

async fn ask(client: &ModelClient, prompt: &Prompt, model: &Model) -> Vec<ConversationItem> {
    let mut stream = client.stream(prompt, model);
    let mut items = Vec::new();
    while let Some(event) = stream.next().await {
        match event.unwrap() {
            ModelEvent::ItemDone { item: done, .. } => items.push(done),
            ModelEvent::Retrying { error, .. } => panic!("{error}"),
            _ => {}
        }
    }
    items
}

/// Native content is not sent to another model; calls and results are.
#[tokio::test]
async fn a_conversation_can_move_to_another_provider() {
    let Some(folder) = folder::folder() else {
        eprintln!("skipped: no recorded conversations found");
        return;
    };
    let stream =
        folder.join("openai_responses/conversations/opencode-session-native-zen-tool-loop/01.sse");
    let server =
        ProviderServer::start([ProviderReply::events(std::fs::read(stream).unwrap())]).await;
    let client = ModelClient::new(Provider::new("zen", &server.url, WireApi::Responses)).unwrap();
    let user = ConversationItem::message(MessageRole::User, "What is the weather in Paris?");
    let mut prompt = Prompt {
        history: vec![user],
        ..Prompt::default()
    };
    let answer = ask(&client, &prompt, &Model::from_table("gpt-5.2-codex")).await;
    assert!(
        matches!(
            answer[..],
            [
                ConversationItem::Reasoning(_),
                ConversationItem::FunctionCall(_)
            ]
        ),
        "{answer:?}"
    );
    prompt.history.extend(answer);
    prompt.history.push(ConversationItem::function_call_output(
        "call_hwPdXfzZmrdySXU2ZmrL51Ln",
        "sunny",
    ));
    for wire in [WireApi::Responses, WireApi::Chat, WireApi::Messages] {
        let body = selvedge_models::request_body(
            &prompt,
            &Model::from_table("other"),
            &Provider::new("other", "http://x/v1", wire),
        );
        let text = body.to_string();
        assert!(
            !text.contains("encrypted_content") && !text.contains("gAAAA"),
            "{text}"
        );
        assert!(
            text.contains("call_hwPdXfzZmrdySXU2ZmrL51Ln") && text.contains("get_weather"),
            "{text}"
        );
    }
}
