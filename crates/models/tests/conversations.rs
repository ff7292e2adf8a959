//! Whole conversations that were recorded, played back: what counts is the second request, in which results, reasoning,
//! signatures and ids go back in the form each API wants.
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

use selvedge_models::{Client, Model, ModelEvent, Prompt, Provider, Thinking};
use selvedge_protocol::{Item, Role, WireApi};
use serde_json::{Value, json};
use server::{Reply, Server};

#[tokio::test]
async fn what_was_said_goes_back_in_each_apis_form() {
    let Some(folder) = folder::folder() else {
        eprintln!("skipped: no recorded conversations here");
        return;
    };
    let (mut turns, mut differences) = (0, Vec::new());
    for (name, wire) in [
        ("openai_responses", WireApi::Responses),
        ("openai_chat", WireApi::Chat),
        ("anthropic_messages", WireApi::Messages),
    ] {
        for entry in std::fs::read_dir(folder.join(name).join("conversations")).unwrap() {
            turns += play(&entry.unwrap().path(), wire, &mut differences).await;
        }
    }
    assert!(
        differences.is_empty(),
        "{} differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
    assert!(turns >= 25, "only {turns} turns went back");
}

/// Plays one conversation; gives how many requests were compared.
async fn play(folder: &Path, wire: WireApi, differences: &mut Vec<String>) -> usize {
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
        .map(|number| Reply::events(std::fs::read(file(number, "sse")).unwrap()).cut(97));
    let server = Server::start(replies).await;
    let client = Client::new(Provider::new("recorded", &server.url, wire)).unwrap();
    let name = requests[0]["model"].as_str().unwrap();
    let thinking = if requests[0]["include"].is_array() {
        Thinking::Effort
    } else {
        Thinking::Unsaid
    };
    let model = Model {
        thinking,
        ..Model::known(name)
    };

    let mut prompt = Prompt::default();
    let mut compared = 0;
    for (at, request) in requests.iter().enumerate() {
        let mut theirs = form::of(wire, request);
        mend(&mut theirs);
        if at == 0 || theirs.len() <= form::of(wire, &requests[at - 1]).len() {
            prompt = form::prompt(wire, request);
        } else {
            // What the recorded client added besides what the model had said.
            form::add_results(&mut prompt.history, &theirs);
            compared += 1;
        }
        prompt.max_output_tokens = ["max_output_tokens", "max_tokens"]
            .iter()
            .find_map(|key| request[key].as_u64());
        let answer = ask(&client, &prompt, &model).await;
        let asked = server.asked().last().unwrap().json();
        let ours = form::of(wire, &asked);
        if ours != theirs {
            differences.push(format!(
                "{} request {}:\n{ours:#?}\n{theirs:#?}",
                folder.display(),
                at + 1
            ));
        }
        form::compare_settings(wire, &asked, request);
        prompt.history.extend(answer);
        // Kept and read again, it is the same.
        let kept = serde_json::to_string(&prompt.history).unwrap();
        prompt.history = serde_json::from_str(&kept).unwrap();
    }
    assert_eq!(server.asked().len(), count);
    compared
}

/// One recorded client sent back other arguments than the model had written, another left out what it had said.
fn mend(theirs: &mut [Value]) {
    for item in theirs {
        if item["calls"][0]["call"] == "functions.add:0" && item["assistant"] == "" {
            item["assistant"] = "I'll add and multiply 2 and 3 for you at the same time.".into();
        }
        if item["arguments"] == json!({"city": {}}) {
            item["arguments"] = json!({"city": "Paris"});
        }
    }
}

async fn ask(client: &Client, prompt: &Prompt, model: &Model) -> Vec<Item> {
    let mut stream = client.stream(prompt, model);
    let mut items = Vec::new();
    while let Some(event) = stream.next().await {
        match event.unwrap() {
            ModelEvent::ItemDone { done, .. } => items.push(done),
            ModelEvent::Retrying { error, .. } => panic!("{error}"),
            _ => {}
        }
    }
    items
}

/// What another model made for itself does not go to this one; what everybody understands does.
#[tokio::test]
async fn a_conversation_can_move_to_another_provider() {
    let Some(folder) = folder::folder() else {
        eprintln!("skipped: no recorded conversations here");
        return;
    };
    let stream =
        folder.join("openai_responses/conversations/opencode-session-native-zen-tool-loop/01.sse");
    let server = Server::start([Reply::events(std::fs::read(stream).unwrap())]).await;
    let client = Client::new(Provider::new("zen", &server.url, WireApi::Responses)).unwrap();
    let user = Item::message(Role::User, "What is the weather in Paris?");
    let mut prompt = Prompt {
        history: vec![user],
        ..Prompt::default()
    };
    let answer = ask(&client, &prompt, &Model::known("gpt-5.2-codex")).await;
    assert!(
        matches!(answer[..], [Item::Reasoning(_), Item::FunctionCall(_)]),
        "{answer:?}"
    );
    prompt.history.extend(answer);
    prompt
        .history
        .push(Item::output("call_hwPdXfzZmrdySXU2ZmrL51Ln", "sunny"));
    for wire in [WireApi::Responses, WireApi::Chat, WireApi::Messages] {
        let body = selvedge_models::request(
            &prompt,
            &Model::known("other"),
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
