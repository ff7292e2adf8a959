//! The pieces of a model's answer, and their encoding in each API.

use serde_json::{Value, json};

/// A piece of an answer.
#[derive(Debug, Clone)]
pub enum AnswerPart {
    Think(String),
    Text(String),
    Call {
        id: String,
        name: String,
        args: Value,
    },
    /// A call whose input is plain text.
    Freeform {
        id: String,
        name: String,
        input: String,
    },
    /// The answer is truncated here by its token limit.
    Cut,
    /// The model refuses to answer.
    Refuse,
}

pub fn think(text: &str) -> AnswerPart {
    AnswerPart::Think(text.to_owned())
}

pub fn text(text: &str) -> AnswerPart {
    AnswerPart::Text(text.to_owned())
}

pub fn call(id: &str, name: &str, args: Value) -> AnswerPart {
    AnswerPart::Call {
        id: id.to_owned(),
        name: name.to_owned(),
        args,
    }
}

/// Returns a script block.
pub fn block(code: &str) -> String {
    format!("<tool-calls>\n{code}\n</tool-calls>")
}

/// The usage that every answer reports.
pub const INPUT: u64 = 100;
pub const CACHED: u64 = 40;
pub const OUTPUT: u64 = 20;
pub const REASONING: u64 = 5;

/// Encodes an answer for the API of this path.
pub fn encode(path: &str, parts: &[AnswerPart]) -> String {
    encode_counted(path, parts, INPUT)
}

/// Like [`encode`], with the number of input tokens to report.
pub fn encode_counted(path: &str, parts: &[AnswerPart], input: u64) -> String {
    match path.rsplit('/').next() {
        Some("responses") => responses(parts, input),
        Some("completions") => chat(parts, input),
        _ => messages(parts, input),
    }
}

fn pieces(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    chars
        .chunks(7)
        .map(|piece| piece.iter().collect())
        .collect()
}

fn event(out: &mut String, value: &Value) {
    if let Some(kind) = value["type"].as_str() {
        out.push_str(&format!("event: {kind}\n"));
    }
    out.push_str(&format!("data: {value}\n\n"));
}

fn responses(parts: &[AnswerPart], input: u64) -> String {
    let mut out = String::new();
    event(
        &mut out,
        &json!({"type": "response.created", "response": {"id": "resp_1", "model": "mock"}}),
    );
    let mut output = Vec::new();
    let mut incomplete = Value::Null;
    for (at, part) in parts.iter().enumerate() {
        let mut item = |added: Value, deltas: Vec<Value>, done: Value| {
            event(
                &mut out,
                &json!({"type": "response.output_item.added", "output_index": at, "item": added}),
            );
            deltas.iter().for_each(|delta| event(&mut out, delta));
            event(
                &mut out,
                &json!({"type": "response.output_item.done", "output_index": at, "item": done}),
            );
            output.push(done);
        };
        match part {
            AnswerPart::Think(text) => {
                let id = format!("rs_{at}");
                let deltas = pieces(text).into_iter().map(|delta| {
                    json!({"type": "response.reasoning_summary_text.delta", "item_id": id, "output_index": at, "summary_index": 0, "delta": delta})
                });
                item(
                    json!({"type": "reasoning", "id": id, "summary": []}),
                    deltas.collect(),
                    json!({"type": "reasoning", "id": id, "summary": [{"type": "summary_text", "text": text}], "encrypted_content": "gAAA"}),
                );
            }
            AnswerPart::Text(text) => {
                let id = format!("msg_{at}");
                let deltas = pieces(text).into_iter().map(|delta| {
                    json!({"type": "response.output_text.delta", "item_id": id, "output_index": at, "content_index": 0, "delta": delta})
                });
                item(
                    json!({"type": "message", "id": id, "role": "assistant", "content": []}),
                    deltas.collect(),
                    json!({"type": "message", "id": id, "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": text, "annotations": []}]}),
                );
            }
            AnswerPart::Call { id, name, args } => {
                let arguments = args.to_string();
                let deltas = pieces(&arguments).into_iter().map(|delta| {
                    json!({"type": "response.function_call_arguments.delta", "item_id": format!("fc_{at}"), "output_index": at, "delta": delta})
                });
                item(
                    json!({"type": "function_call", "id": format!("fc_{at}"), "call_id": id, "name": name, "arguments": ""}),
                    deltas.collect(),
                    json!({"type": "function_call", "id": format!("fc_{at}"), "call_id": id, "name": name, "arguments": arguments, "status": "completed"}),
                );
            }
            AnswerPart::Freeform { id, name, input } => item(
                json!({"type": "custom_tool_call", "id": format!("ctc_{at}"), "call_id": id, "name": name, "input": ""}),
                Vec::new(),
                json!({"type": "custom_tool_call", "id": format!("ctc_{at}"), "call_id": id, "name": name, "input": input, "status": "completed"}),
            ),
            AnswerPart::Cut => incomplete = json!({"reason": "max_output_tokens"}),
            AnswerPart::Refuse => item(
                json!({"type": "message", "id": format!("msg_{at}"), "role": "assistant", "content": []}),
                Vec::new(),
                json!({"type": "message", "id": format!("msg_{at}"), "role": "assistant", "status": "completed", "content": [{"type": "refusal", "refusal": "I would rather not."}]}),
            ),
        }
    }
    let usage = json!({
        "input_tokens": input, "input_tokens_details": {"cached_tokens": CACHED},
        "output_tokens": OUTPUT, "output_tokens_details": {"reasoning_tokens": REASONING},
    });
    let kind = if incomplete.is_null() {
        "response.completed"
    } else {
        "response.incomplete"
    };
    event(
        &mut out,
        &json!({"type": kind, "response": {"id": "resp_1", "status": &kind[9..], "incomplete_details": incomplete, "output": output, "usage": usage}}),
    );
    out
}

fn chat(parts: &[AnswerPart], input: u64) -> String {
    let mut out = String::new();
    let mut chunk = |delta: Value, finish: Value| {
        let value = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "mock", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
        out.push_str(&format!("data: {value}\n\n"));
    };
    let mut calls = 0;
    let mut finish = "stop";
    chunk(json!({"role": "assistant", "content": ""}), Value::Null);
    for part in parts {
        match part {
            AnswerPart::Think(text) => {
                pieces(text)
                    .iter()
                    .for_each(|piece| chunk(json!({"reasoning_content": piece}), Value::Null));
            }
            AnswerPart::Text(text) => pieces(text)
                .iter()
                .for_each(|piece| chunk(json!({"content": piece}), Value::Null)),
            AnswerPart::Call { id, name, args } => {
                chunk(
                    json!({"tool_calls": [{"index": calls, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}]}),
                    Value::Null,
                );
                for piece in pieces(&args.to_string()) {
                    chunk(
                        json!({"tool_calls": [{"index": calls, "function": {"arguments": piece}}]}),
                        Value::Null,
                    );
                }
                calls += 1;
                finish = "tool_calls";
            }
            AnswerPart::Freeform { .. } => panic!("Chat has no freeform tools"),
            AnswerPart::Cut => finish = "length",
            AnswerPart::Refuse => finish = "content_filter",
        }
    }
    chunk(json!({}), json!(finish));
    let usage = json!({
        "prompt_tokens": input, "prompt_tokens_details": {"cached_tokens": CACHED},
        "completion_tokens": OUTPUT, "completion_tokens_details": {"reasoning_tokens": REASONING},
    });
    out.push_str(&format!(
        "data: {}\n\ndata: [DONE]\n\n",
        json!({"id": "chatcmpl-1", "choices": [], "usage": usage})
    ));
    out
}

fn messages(parts: &[AnswerPart], input: u64) -> String {
    let mut out = String::new();
    let usage = json!({"input_tokens": input - CACHED, "cache_read_input_tokens": CACHED, "cache_creation_input_tokens": 0, "output_tokens": 1});
    event(
        &mut out,
        &json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "mock", "content": [], "usage": usage}}),
    );
    let mut stop = "end_turn";
    for (at, part) in parts.iter().enumerate() {
        let (start, deltas) = match part {
            AnswerPart::Think(text) => {
                let mut deltas: Vec<Value> = pieces(text)
                    .iter()
                    .map(|piece| json!({"type": "thinking_delta", "thinking": piece}))
                    .collect();
                deltas.push(json!({"type": "signature_delta", "signature": "c2ln"}));
                (
                    json!({"type": "thinking", "thinking": "", "signature": ""}),
                    deltas,
                )
            }
            AnswerPart::Text(text) => {
                let deltas = pieces(text)
                    .iter()
                    .map(|piece| json!({"type": "text_delta", "text": piece}))
                    .collect();
                (json!({"type": "text", "text": ""}), deltas)
            }
            AnswerPart::Call { id, name, args } => {
                stop = "tool_use";
                let deltas = pieces(&args.to_string());
                let deltas = deltas
                    .iter()
                    .map(|piece| json!({"type": "input_json_delta", "partial_json": piece}))
                    .collect();
                (
                    json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
                    deltas,
                )
            }
            AnswerPart::Freeform { .. } => panic!("Messages has no freeform tools"),
            AnswerPart::Cut => {
                stop = "max_tokens";
                continue;
            }
            AnswerPart::Refuse => {
                stop = "refusal";
                continue;
            }
        };
        event(
            &mut out,
            &json!({"type": "content_block_start", "index": at, "content_block": start}),
        );
        for delta in deltas {
            event(
                &mut out,
                &json!({"type": "content_block_delta", "index": at, "delta": delta}),
            );
        }
        event(
            &mut out,
            &json!({"type": "content_block_stop", "index": at}),
        );
    }
    event(
        &mut out,
        &json!({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": OUTPUT}}),
    );
    event(&mut out, &json!({"type": "message_stop"}));
    out
}
