//! Normal form of a request, in which equivalent JSON of an API is equal: a string or a list of one
//! text, null or an absent field.

use selvedge_models::{ModelTool, Prompt};
use selvedge_protocol::{ConversationItem, MessageRole, WireApi};
use serde_json::{Value, json};

/// Returns the conversation of a request in normal form.
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

/// Returns the prompt of a conversation's first request.
pub fn prompt(wire: WireApi, request: &Value) -> Prompt {
    let users = of(wire, request).into_iter().map(|item| {
        assert!(
            item["user"].is_string(),
            "the first request contains only user messages: {item}"
        );
        ConversationItem::message(MessageRole::User, item["user"].as_str().unwrap())
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
        ModelTool::function(
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

/// Adds the results and user messages of the recorded request that the history does not have.
pub fn add_results(history: &mut Vec<ConversationItem>, recorded: &[Value]) {
    let known = history
        .iter()
        .filter(|item| matches!(item, ConversationItem::FunctionCallOutput(_)))
        .count();
    let outputs: Vec<&Value> = recorded
        .iter()
        .filter(|item| item["output"].is_string())
        .collect();
    for output in &outputs[known..] {
        history.push(ConversationItem::function_call_output(
            text(&output["for"]),
            text(&output["output"]),
        ));
    }
    let users = history
        .iter()
        .filter(|item| matches!(item, ConversationItem::Message(message) if message.role == MessageRole::User))
        .count();
    for user in recorded
        .iter()
        .filter(|item| item["user"].is_string())
        .skip(users)
    {
        history.push(ConversationItem::message(
            MessageRole::User,
            text(&user["user"]),
        ));
    }
}

/// Compares the other fields that the recorded client set.
pub fn compare_settings(wire: WireApi, actual: &Value, expected: &Value) {
    assert_eq!(actual["model"], expected["model"]);
    assert_eq!(actual["stream"], json!(true));
    assert_eq!(
        system(actual),
        if system(expected).is_empty() {
            system(actual)
        } else {
            system(expected)
        }
    );
    for key in [
        "max_output_tokens",
        "max_tokens",
        "stream_options",
        "include",
    ] {
        if !expected[key].is_null() {
            assert_eq!(actual[key], expected[key], "{key}");
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
    assert_eq!(tools(actual), tools(expected));
}

fn system(request: &Value) -> String {
    let first = [&request["input"], &request["messages"]]
        .into_iter()
        .find_map(|list| list.get(0))
        .unwrap();
    let inline = match first["role"].as_str() {
        Some("system" | "developer") => joined_text(&first["content"]),
        _ => String::new(),
    };
    [
        joined_text(&request["instructions"]),
        joined_text(&request["system"]),
        inline,
    ]
    .concat()
}

fn response_item(item: &Value) -> Option<Value> {
    Some(match item["type"].as_str().unwrap_or("message") {
        "message" => match text(&item["role"]).as_str() {
            "system" | "developer" => return None,
            role => json!({ role: joined_text(&item["content"]) }),
        },
        "reasoning" => {
            let encrypted = &item["encrypted_content"];
            // The id counts only if there is no encrypted content.
            let id = if encrypted.is_string() {
                &Value::Null
            } else {
                &item["id"]
            };
            json!({
                "reasoning": joined_text(&item["summary"]),
                "content": joined_text(&item["content"]),
                "encrypted": encrypted,
                "id": id,
            })
        }
        "function_call" => {
            let arguments = parse(&item["arguments"]);
            json!({"call": item["call_id"], "name": item["name"], "arguments": arguments})
        }
        "function_call_output" => {
            json!({"for": item["call_id"], "output": joined_text(&item["output"])})
        }
        other => panic!("{other}"),
    })
}

fn chat_message(message: &Value) -> Option<Value> {
    let content = joined_text(&message["content"]);
    Some(match text(&message["role"]).as_str() {
        "system" => return None,
        "tool" => json!({"for": message["tool_call_id"], "output": content}),
        "assistant" => {
            let calls: Vec<Value> = list(&message["tool_calls"])
                .iter()
                .map(|call| {
                    let function = &call["function"];
                    json!({
                        "call": call["id"],
                        "type": call["type"],
                        "name": function["name"],
                        "arguments": parse(&function["arguments"]),
                    })
                })
                .collect();
            json!({
                "assistant": content.trim(),
                "calls": calls,
                "reasoning": message["reasoning_content"],
            })
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
            // Some clients send a blank instead of an empty text.
            "text" if text(&block["text"]).trim().is_empty() => return None,
            "text" => json!({ &role: block["text"] }),
            "tool_use" => {
                json!({"call": block["id"], "name": block["name"], "arguments": block["input"]})
            }
            "tool_result" => {
                json!({"for": block["tool_use_id"], "output": joined_text(&block["content"])})
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

/// Parses arguments, so that whitespace does not matter.
fn parse(arguments: &Value) -> Value {
    serde_json::from_str(arguments.as_str().unwrap()).unwrap()
}

/// Joins the texts of a string or a list of parts.
fn joined_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        list => self::list(list)
            .iter()
            .map(|part| text(&part["text"]))
            .collect(),
    }
}
