//! What a request says, whichever of the API's spellings says it: a text or a list of one text, null or nothing.

use selvedge_models::{Prompt, Tool};
use selvedge_protocol::{Item, Role, WireApi};
use serde_json::{Value, json};

/// The conversation in a request, in one spelling.
pub fn of(wire: WireApi, request: &Value) -> Vec<Value> {
    match wire {
        WireApi::Responses => list(&request["input"])
            .iter()
            .filter_map(response_item)
            .collect(),
        WireApi::Chat => list(&request["messages"])
            .iter()
            .filter_map(chat_message)
            .collect(),
        WireApi::Messages => list(&request["messages"]).iter().flat_map(blocks).collect(),
    }
}

/// The prompt a first request makes.
pub fn prompt(wire: WireApi, request: &Value) -> Prompt {
    let users = of(wire, request).into_iter().map(|item| {
        assert!(
            item["user"].is_string(),
            "a first request holds only what the user said: {item}"
        );
        Item::message(Role::User, item["user"].as_str().unwrap())
    });
    let tools = list(&request["tools"]).iter().map(|tool| {
        let tool = if tool["function"].is_object() {
            &tool["function"]
        } else {
            tool
        };
        let schema = [&tool["parameters"], &tool["input_schema"]]
            .into_iter()
            .find(|schema| schema.is_object())
            .unwrap();
        Tool::function(
            text(&tool["name"]),
            text(&tool["description"]),
            schema.clone(),
        )
    });
    Prompt {
        system: system(request),
        history: users.collect(),
        tools: tools.collect(),
        ..Prompt::default()
    }
}

/// Adds what a client has to add to the history: the results of the calls, and what the user says next.
pub fn add_results(history: &mut Vec<Item>, theirs: &[Value]) {
    let known = history
        .iter()
        .filter(|item| matches!(item, Item::FunctionCallOutput(_)))
        .count();
    let outputs: Vec<&Value> = theirs
        .iter()
        .filter(|item| item["output"].is_string())
        .collect();
    for output in &outputs[known..] {
        history.push(Item::output(text(&output["for"]), text(&output["output"])));
    }
    let said = history
        .iter()
        .filter(|item| matches!(item, Item::Message(message) if message.role == Role::User))
        .count();
    for user in theirs
        .iter()
        .filter(|item| item["user"].is_string())
        .skip(said)
    {
        history.push(Item::message(Role::User, text(&user["user"])));
    }
}

/// Fields around the conversation, where the recorded client set them.
pub fn compare_settings(wire: WireApi, ours: &Value, theirs: &Value) {
    assert_eq!(ours["model"], theirs["model"]);
    assert_eq!(ours["stream"], json!(true));
    assert_eq!(
        system(ours),
        if system(theirs).is_empty() {
            system(ours)
        } else {
            system(theirs)
        }
    );
    for key in [
        "max_output_tokens",
        "max_tokens",
        "stream_options",
        "include",
    ] {
        if !theirs[key].is_null() {
            assert_eq!(ours[key], theirs[key], "{key}");
        }
    }
    let tools = |request: &Value| -> Vec<(String, String, Value)> {
        list(&request["tools"])
            .iter()
            .map(|tool| {
                assert_eq!(wire == WireApi::Chat, tool["function"].is_object());
                let tool = if wire == WireApi::Chat {
                    &tool["function"]
                } else {
                    tool
                };
                let schema = if wire == WireApi::Messages {
                    "input_schema"
                } else {
                    "parameters"
                };
                (
                    text(&tool["name"]),
                    text(&tool["description"]),
                    tool[schema].clone(),
                )
            })
            .collect()
    };
    assert_eq!(tools(ours), tools(theirs));
}

fn system(request: &Value) -> String {
    let first = [&request["input"], &request["messages"]]
        .into_iter()
        .find_map(|list| list.get(0))
        .unwrap();
    let own = match first["role"].as_str() {
        Some("system" | "developer") => words(&first["content"]),
        _ => String::new(),
    };
    [
        words(&request["instructions"]),
        words(&request["system"]),
        own,
    ]
    .concat()
}

fn response_item(item: &Value) -> Option<Value> {
    Some(match item["type"].as_str().unwrap_or("message") {
        "message" => match text(&item["role"]).as_str() {
            "system" | "developer" => return None,
            role => json!({ role: words(&item["content"]) }),
        },
        "reasoning" => {
            let encrypted = &item["encrypted_content"];
            // A name counts only where there is no content to tell the thought by.
            let id = if encrypted.is_string() {
                &Value::Null
            } else {
                &item["id"]
            };
            json!({"thought": words(&item["summary"]), "content": words(&item["content"]), "encrypted": encrypted, "id": id})
        }
        "function_call" => {
            json!({"call": item["call_id"], "name": item["name"], "arguments": read(&item["arguments"])})
        }
        "function_call_output" => json!({"for": item["call_id"], "output": words(&item["output"])}),
        other => panic!("{other}"),
    })
}

fn chat_message(message: &Value) -> Option<Value> {
    let content = words(&message["content"]);
    Some(match text(&message["role"]).as_str() {
        "system" => return None,
        "tool" => json!({"for": message["tool_call_id"], "output": content}),
        "assistant" => {
            let calls: Vec<Value> = list(&message["tool_calls"])
                .iter()
                .map(|call| {
                    let function = &call["function"];
                    json!({"call": call["id"], "type": call["type"], "name": function["name"], "arguments": read(&function["arguments"])})
                })
                .collect();
            json!({"assistant": content.trim(), "calls": calls, "thought": message["reasoning_content"]})
        }
        role => json!({ role: content }),
    })
}

fn blocks(message: &Value) -> Vec<Value> {
    let role = text(&message["role"]);
    let blocks = match &message["content"] {
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        content => list(content).to_vec(),
    };
    let known = blocks.iter().filter_map(|block| {
        Some(match text(&block["type"]).as_str() {
            // Some clients fill an empty place with a blank.
            "text" if text(&block["text"]).trim().is_empty() => return None,
            "text" => json!({ &role: block["text"] }),
            "tool_use" => {
                json!({"call": block["id"], "name": block["name"], "arguments": block["input"]})
            }
            "tool_result" => {
                json!({"for": block["tool_use_id"], "output": words(&block["content"])})
            }
            _ => block.clone(),
        })
    });
    known.collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Arguments are JSON in a text; the spaces in it do not matter.
fn read(arguments: &Value) -> Value {
    serde_json::from_str(arguments.as_str().unwrap()).unwrap()
}

/// A text, or a list of parts with texts.
fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        list => self::list(list)
            .iter()
            .map(|part| text(&part["text"]))
            .collect(),
    }
}
