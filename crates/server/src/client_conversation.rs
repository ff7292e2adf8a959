//! [`ClientConversation`]: the history and the prompt in the messages of an OpenAI client.

use selvedge_protocol::{ConversationItem, FunctionCall, FunctionCallKind, MessageRole};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::api_error::ApiError;
use crate::client_tools::is_tool_name;
use crate::openai::MESSAGE_SEPARATOR;

/// A message of a request.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub(crate) struct ClientMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    role: String,
    /// Text, or a list of parts with text.
    #[serde(default)]
    #[schema(value_type = Object)]
    content: Value,
    /// With the role `assistant`, the calls of the client's tools.
    #[serde(default)]
    #[schema(value_type = Vec<Object>)]
    tool_calls: Value,
    /// With the role `tool`, the call whose result the message is.
    #[serde(default)]
    tool_call_id: Option<String>,
}

/// Returns the results of tools at the end of a conversation, with the ids of their calls.
pub(crate) fn tool_results(messages: &[ClientMessage]) -> Result<Vec<(String, String)>, ApiError> {
    let results = messages.iter().rev();
    let results = results.take_while(|message| message.role == "tool");
    results
        .map(|message| {
            let id = message.tool_call_id.clone().unwrap_or_default();
            Ok((id, text_of(&message.content)?))
        })
        .collect()
}

/// Reads the input of a response: a text, or a list of messages, calls and results.
pub(crate) fn messages_of_input(input: &Value) -> Result<Vec<ClientMessage>, ApiError> {
    let items = match input {
        Value::String(_) => return Ok(vec![message("user", input.clone())]),
        Value::Array(items) => items,
        _ => return Err(ApiError::invalid("`input` is neither a text nor a list")),
    };
    let messages = items.iter().map(|item| {
        let text_in = |field: &str| item[field].as_str().unwrap_or_default().to_owned();
        Ok(match item["type"].as_str() {
            None | Some("message") => Some(ClientMessage {
                role: text_in("role"),
                content: item["content"].clone(),
                ..ClientMessage::default()
            }),
            Some("function_call") => Some(ClientMessage {
                tool_calls: json!([{
                    "id": item["call_id"],
                    "function": {"name": item["name"], "arguments": item["arguments"]},
                }]),
                ..message("assistant", Value::Null)
            }),
            Some("function_call_output") => Some(ClientMessage {
                tool_call_id: Some(text_in("call_id")),
                ..message("tool", json!(function_output(item)))
            }),
            // What a model thought is of use for that model only.
            Some("reasoning") => None,
            Some(kind) => {
                let message = format!("items of the type `{kind}` are not supported");
                return Err(ApiError::invalid(message));
            }
        })
    });
    messages.filter_map(Result::transpose).collect()
}

fn message(role: &str, content: Value) -> ClientMessage {
    ClientMessage {
        role: role.to_owned(),
        content,
        ..ClientMessage::default()
    }
}

/// Returns the text of a `function_call_output`.
pub(crate) fn function_output(item: &Value) -> String {
    match &item["output"] {
        Value::String(text) => text.clone(),
        other => text_of(other).unwrap_or_else(|_| other.to_string()),
    }
}

/// A conversation of a request: earlier turns, and the message to answer.
#[derive(Debug, PartialEq)]
pub(crate) struct ClientConversation {
    /// Turns that begin with a message of the user. Answers, calls and their results follow it.
    pub(crate) history: Vec<ConversationItem>,
    pub(crate) prompt: String,
}

impl ClientConversation {
    /// Reads the messages of a request. Instructions precede the first message of the user.
    pub(crate) fn parse(
        instructions: Option<String>,
        messages: &[ClientMessage],
    ) -> Result<Self, ApiError> {
        let mut history = Vec::new();
        // The messages of the user since the last answer; `None` after an answer.
        let mut open = Some(instructions.into_iter().collect::<Vec<String>>());
        for message in messages {
            let text = text_of(&message.content)?;
            match message.role.as_str() {
                "system" | "developer" | "user" => open.get_or_insert_default().push(text),
                "assistant" => {
                    if let Some(said) = open.take() {
                        let said = said.join(MESSAGE_SEPARATOR);
                        history.push(ConversationItem::message(MessageRole::User, said));
                    }
                    let calls = calls_of(message)?;
                    if !text.is_empty() || calls.is_empty() {
                        history.push(ConversationItem::message(MessageRole::Assistant, text));
                    }
                    history.extend(calls);
                }
                "tool" if open.is_none() => {
                    let id = message.tool_call_id.clone().unwrap_or_default();
                    history.push(ConversationItem::function_call_output(id, text));
                }
                "tool" => {
                    let message = "a message with the role `tool` follows no call";
                    return Err(ApiError::invalid(message));
                }
                role => {
                    let message = format!("messages with the role `{role}` are not supported");
                    return Err(ApiError::invalid(message)
                        .hint("use the roles system, developer, user, assistant and tool"));
                }
            }
        }
        match open.unwrap_or_default().join(MESSAGE_SEPARATOR) {
            prompt if prompt.trim().is_empty() => Err(ApiError::invalid(
                "the last message must be one of the user, with a text",
            )),
            prompt => Ok(Self { history, prompt }),
        }
    }
}

/// Returns the calls of a message of the model.
fn calls_of(message: &ClientMessage) -> Result<Vec<ConversationItem>, ApiError> {
    let calls = message.tool_calls.as_array().into_iter().flatten();
    let calls = calls.map(|call| {
        let function = &call["function"];
        let texts = (
            call["id"].as_str(),
            function["name"].as_str().filter(|name| is_tool_name(name)),
            function["arguments"].as_str(),
        );
        let (Some(id), Some(name), Some(arguments)) = texts else {
            return Err(ApiError::invalid(
                "a call of a function needs an id, the name of a tool, and arguments as a string",
            ));
        };
        Ok(ConversationItem::FunctionCall(FunctionCall {
            call_id: id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
            kind: FunctionCallKind::Function,
            native: None,
        }))
    });
    calls.collect()
}

/// Returns the text of a message: a string, or the parts with text.
pub(crate) fn text_of(content: &Value) -> Result<String, ApiError> {
    let unsupported = || {
        ApiError::invalid("only text is supported in messages")
            .hint("send content as a string, or as parts with `text`")
    };
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Null => Ok(String::new()),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| part["text"].as_str());
            let texts: Option<Vec<&str>> = texts.collect();
            Ok(texts.ok_or_else(unsupported)?.join("\n"))
        }
        _ => Err(unsupported()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn user(text: &str) -> ConversationItem {
        ConversationItem::message(MessageRole::User, text)
    }

    fn assistant(text: &str) -> ConversationItem {
        ConversationItem::message(MessageRole::Assistant, text)
    }

    fn call(id: &str) -> ConversationItem {
        ConversationItem::FunctionCall(FunctionCall {
            call_id: id.to_owned(),
            name: "get_weather".to_owned(),
            arguments: "{}".to_owned(),
            kind: FunctionCallKind::Function,
            native: None,
        })
    }

    fn parse(messages: Value) -> Result<ClientConversation, ApiError> {
        let messages: Vec<ClientMessage> = serde_json::from_value(messages).unwrap();
        ClientConversation::parse(Some("Be brief.".to_owned()), &messages)
    }

    #[test]
    fn messages_are_turns_and_a_prompt() {
        let parsed = parse(json!([
            {"role": "system", "content": "You fix bugs."},
            {"role": "user", "content": [{"type": "text", "text": "one"}]},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": "three"},
        ]));
        let expected = ClientConversation {
            history: vec![user("Be brief.\n\nYou fix bugs.\n\none"), assistant("two")],
            prompt: "three".to_owned(),
        };
        assert_eq!(parsed.unwrap(), expected);
        for wrong in [
            json!([{"role": "assistant", "content": "x"}]),
            json!([{"role": "tool", "content": "x"}]),
            json!([{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}]),
            json!([{"role": "user", "content": [{"type": "image_url"}]}]),
        ] {
            assert!(parse(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn calls_and_results_are_a_part_of_their_turn() {
        let function = json!({"name": "get_weather", "arguments": "{}"});
        let of_chat = parse(json!([
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "Let me ask.", "tool_calls": [
                {"id": "a", "type": "function", "function": function},
                {"id": "b", "type": "function", "function": function},
            ]},
            {"role": "tool", "tool_call_id": "a", "content": "warm"},
            {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "cold"}]},
            {"role": "assistant", "content": "It depends."},
            {"role": "user", "content": "two"},
        ]));
        let input = messages_of_input(&json!([
            {"role": "user", "content": "one"},
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": [
                {"type": "output_text", "text": "Let me ask.", "annotations": []},
            ]},
            {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "get_weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "warm"},
            {"type": "function_call_output", "call_id": "b", "output": [
                {"type": "input_text", "text": "cold"},
            ]},
            {"role": "assistant", "content": "It depends."},
            {"role": "user", "content": "two"},
        ]));
        let of_responses = ClientConversation::parse(Some("Be brief.".into()), &input.unwrap());
        let expected = ClientConversation {
            history: vec![
                user("Be brief.\n\none"),
                assistant("Let me ask."),
                call("a"),
                call("b"),
                ConversationItem::function_call_output("a", "warm"),
                ConversationItem::function_call_output("b", "cold"),
                assistant("It depends."),
            ],
            prompt: "two".to_owned(),
        };
        assert_eq!(of_chat.unwrap(), expected);
        assert_eq!(of_responses.unwrap(), expected);
        assert!(messages_of_input(&json!([{"type": "item_reference", "id": "x"}])).is_err());
    }
}
