//! Summarises a recorded answer independently of the decoder, from its complete JSON.

use std::collections::BTreeMap;

use selvedge_models::{ModelEvent, ReasoningView};
use selvedge_protocol::{ConversationItem, FinishReason, OutputPart, Usage, WireApi};
use serde_json::Value;

/// Content of an answer that is compared.
#[derive(Debug, Default, PartialEq, Clone)]
pub struct AnswerSummary {
    pub text: String,
    /// Reasoning and its summaries, in order.
    pub reasoning: String,
    /// Name and arguments of each call.
    pub calls: Vec<(String, Value)>,
    /// Ids of the calls; empty if the server sent none.
    pub ids: Vec<String>,
    pub usage: Option<Usage>,
    pub finish: Option<FinishReason>,
}

/// Summarises the items of decoded events, and checks that the deltas are equal to the items.
pub fn summarise(events: &[ModelEvent]) -> AnswerSummary {
    let start = events
        .iter()
        .rposition(|event| *event == ModelEvent::Restarted)
        .map_or(0, |index| index + 1);
    let events = &events[start..];
    let mut summary = AnswerSummary::default();
    let (mut texts, mut reasoning_texts, mut arguments) =
        (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut started = BTreeMap::new();
    for event in events {
        match event {
            ModelEvent::Text {
                item_index: item,
                text,
            } => texts
                .entry(*item)
                .or_insert_with(String::new)
                .push_str(text),
            ModelEvent::Reasoning {
                item_index: item,
                view,
                text,
            } => {
                assert!(matches!(view, ReasoningView::Summary | ReasoningView::Raw));
                reasoning_texts
                    .entry(*item)
                    .or_insert_with(String::new)
                    .push_str(text);
            }
            ModelEvent::CallStarted {
                item_index: item,
                call_id,
                name,
                ..
            } => {
                assert!(
                    started
                        .insert(*item, (call_id.clone(), name.clone()))
                        .is_none(),
                    "started twice"
                );
            }
            ModelEvent::CallDelta {
                item_index: item,
                text,
            } => {
                assert!(
                    started.contains_key(item),
                    "arguments of a call that was not started"
                );
                arguments
                    .entry(*item)
                    .or_insert_with(String::new)
                    .push_str(text);
            }
            ModelEvent::ItemDone {
                item_index: item,
                item: ConversationItem::Message(message),
            } => {
                assert_eq!(
                    texts.get(item),
                    Some(&message.text()),
                    "deltas and message differ"
                );
                summary.text.push_str(&message.text());
                assert!(
                    message
                        .content
                        .iter()
                        .all(|part| matches!(part, OutputPart::Text { .. }))
                );
            }
            ModelEvent::ItemDone {
                item_index: item,
                item: ConversationItem::Reasoning(reasoning),
            } => {
                let text: String = reasoning
                    .summary
                    .iter()
                    .chain(&reasoning.content)
                    .map(String::as_str)
                    .collect();
                let deltas = reasoning_texts.get(item).cloned().unwrap_or_default();
                assert_eq!(
                    deltas.replace('\n', ""),
                    text.replace('\n', ""),
                    "deltas and reasoning differ"
                );
                summary.reasoning.push_str(&text);
            }
            ModelEvent::ItemDone {
                item_index: item,
                item: ConversationItem::FunctionCall(call),
            } => {
                assert_eq!(
                    started.get(item),
                    Some(&(call.call_id.clone(), call.name.clone()))
                );
                let deltas = arguments
                    .get(item)
                    .cloned()
                    .unwrap_or_else(|| "{}".to_owned());
                let same = deltas == call.arguments
                    || (deltas.trim().is_empty() && call.arguments == "{}");
                assert!(
                    same,
                    "deltas and arguments differ: {deltas} {}",
                    call.arguments
                );
                let value = serde_json::from_str(&call.arguments)
                    .unwrap_or_else(|_| call.arguments.clone().into());
                summary.calls.push((call.name.clone(), value));
                summary.ids.push(call.call_id.clone());
            }
            ModelEvent::Usage(usage) => {
                assert!(
                    summary.usage.replace(*usage).is_none(),
                    "usage is reported twice"
                )
            }
            ModelEvent::Finished { reason, .. } => {
                assert!(summary.finish.replace(reason.clone()).is_none())
            }
            _ => {}
        }
    }
    assert!(
        matches!(events.last(), Some(ModelEvent::Finished { .. })),
        "finished is last"
    );
    summary
}

/// Summarises the recorded bytes.
pub fn summarise_recording(wire: WireApi, bytes: &[u8]) -> AnswerSummary {
    let text = std::str::from_utf8(bytes).unwrap();
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .map(str::trim);
    let mut chunks: Vec<Value> = lines
        .filter(|line| !line.is_empty() && *line != "[DONE]")
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    if chunks.is_empty() {
        chunks.push(serde_json::from_str(text).unwrap());
    }
    match wire {
        WireApi::Responses => responses(&chunks),
        WireApi::Chat => chat(&chunks),
        WireApi::Messages => messages(&chunks),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn arguments(text: &str) -> Value {
    if text.trim().is_empty() {
        serde_json::json!({})
    } else {
        serde_json::from_str(text).unwrap_or(text.into())
    }
}

/// Uses the final response, and the events of the stream only if it has no output.
fn responses(events: &[Value]) -> AnswerSummary {
    let ends = ["response.completed", "response.incomplete"];
    let end = events
        .iter()
        .find(|event| ends.contains(&text(&event["type"])));
    let response = end.map_or(&events[0], |event| &event["response"]);
    let mut output = list(&response["output"]).to_vec();
    if output.is_empty() {
        let done = events
            .iter()
            .filter(|event| event["type"] == "response.output_item.done");
        output = done.map(|event| event["item"].clone()).collect();
    }
    let mut summary = AnswerSummary::default();
    let mut refused = false;
    for item in &output {
        match text(&item["type"]) {
            "message" => {
                for part in list(&item["content"]) {
                    refused |= part["refusal"].is_string();
                    summary.text.push_str(text(&part["text"]));
                    summary.text.push_str(text(&part["refusal"]));
                }
            }
            "reasoning" => {
                for part in list(&item["summary"]).iter().chain(list(&item["content"])) {
                    summary.reasoning.push_str(text(&part["text"]));
                }
            }
            "function_call" if item["status"] != "incomplete" => {
                summary.calls.push((
                    text(&item["name"]).to_owned(),
                    arguments(text(&item["arguments"])),
                ));
                summary.ids.push(text(&item["call_id"]).to_owned());
            }
            "custom_tool_call" => {
                summary
                    .calls
                    .push((text(&item["name"]).to_owned(), item["input"].clone()));
                summary.ids.push(text(&item["call_id"]).to_owned());
            }
            _ => {}
        }
    }
    summary.finish = Some(match text(&response["incomplete_details"]["reason"]) {
        "max_output_tokens" => FinishReason::Length,
        _ if refused => FinishReason::Refused,
        _ if !summary.calls.is_empty() => FinishReason::ToolCalls,
        _ => FinishReason::Stop,
    });
    let usage = &response["usage"];
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    summary.usage = usage.is_object().then(|| Usage {
        input_tokens: number(&usage["input_tokens"]),
        cached_input_tokens: number(&usage["input_tokens_details"]["cached_tokens"]),
        cache_write_input_tokens: number(&usage["input_tokens_details"]["cache_write_tokens"]),
        output_tokens: number(&usage["output_tokens"]),
        reasoning_output_tokens: number(&usage["output_tokens_details"]["reasoning_tokens"]),
    });
    summary
}

fn messages(events: &[Value]) -> AnswerSummary {
    let mut summary = AnswerSummary::default();
    let body;
    let mut events = events;
    if events[0]["type"] == "message" {
        // Converts a body to the events of a stream.
        let message = &events[0];
        let mut converted = vec![
            serde_json::json!({"type": "message_start", "message": {"usage": message["usage"]}}),
        ];
        for (index, block) in list(&message["content"]).iter().enumerate() {
            converted.push(serde_json::json!({
                "type": "content_block_start",
                "index": index,
                "content_block": block,
            }));
        }
        converted.push(serde_json::json!({
            "type": "message_delta",
            "delta": {"stop_reason": message["stop_reason"]},
            "usage": message["usage"],
        }));
        body = converted;
        events = &body;
    }
    let last_start = events
        .iter()
        .rposition(|event| event["type"] == "message_start")
        .unwrap();
    let events = &events[last_start..];
    let mut usage = BTreeMap::new();
    let mut blocks: BTreeMap<u64, (Value, String)> = BTreeMap::new();
    let mut stop = String::new();
    for event in events {
        let index = event["index"].as_u64().unwrap_or(0);
        match text(&event["type"]) {
            "content_block_start" => {
                let block = event["content_block"].clone();
                let start = format!("{}{}", text(&block["text"]), text(&block["thinking"]));
                blocks.insert(index, (block, start));
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let text = [&delta["text"], &delta["thinking"], &delta["partial_json"]]
                    .map(text)
                    .concat();
                blocks.get_mut(&index).unwrap().1.push_str(&text);
            }
            "message_delta" => stop = text(&event["delta"]["stop_reason"]).to_owned(),
            _ => {}
        }
        for counted in [&event["usage"], &event["message"]["usage"]] {
            for (key, value) in counted.as_object().into_iter().flatten() {
                if let Some(number) = value.as_u64() {
                    usage.insert(key.clone(), number);
                }
            }
            if let Some(number) = counted["output_tokens_details"]["thinking_tokens"].as_u64() {
                usage.insert("thinking".to_owned(), number);
            }
        }
    }
    let count = blocks.len();
    for (index, (block, content)) in blocks.into_values().enumerate() {
        match text(&block["type"]) {
            "text" => summary.text.push_str(&content),
            "thinking" => summary.reasoning.push_str(&content),
            "tool_use" if stop == "max_tokens" && index + 1 == count => {}
            "tool_use" => {
                let input = if content.is_empty() {
                    block["input"].clone()
                } else {
                    arguments(&content)
                };
                summary.calls.push((text(&block["name"]).to_owned(), input));
                summary.ids.push(text(&block["id"]).to_owned());
            }
            _ => {}
        }
    }
    let number = |key: &str| usage.get(key).copied().unwrap_or(0);
    let (cache_read, cache_write) = (
        number("cache_read_input_tokens"),
        number("cache_creation_input_tokens"),
    );
    summary.usage = Some(Usage {
        input_tokens: number("input_tokens") + cache_read + cache_write,
        cached_input_tokens: cache_read,
        cache_write_input_tokens: cache_write,
        output_tokens: number("output_tokens"),
        reasoning_output_tokens: number("thinking"),
    });
    summary.finish = Some(match stop.as_str() {
        "tool_use" => FinishReason::ToolCalls,
        "max_tokens" => FinishReason::Length,
        "refusal" => FinishReason::Refused,
        "end_turn" | "stop_sequence" | "" => FinishReason::Stop,
        other => FinishReason::Other(other.to_owned()),
    });
    summary
}

fn chat(chunks: &[Value]) -> AnswerSummary {
    let mut summary = AnswerSummary::default();
    let mut calls: Vec<(Option<u64>, String, String, String)> = Vec::new();
    let (mut finish, mut refusal) = (String::new(), String::new());
    for chunk in chunks {
        for choice in list(&chunk["choices"])
            .iter()
            .filter(|choice| choice["index"].as_u64().unwrap_or(0) == 0)
        {
            let delta = if choice["delta"].is_object() {
                &choice["delta"]
            } else {
                &choice["message"]
            };
            summary.text.push_str(text(&delta["content"]));
            refusal.push_str(text(&delta["refusal"]));
            let details = list(&delta["reasoning_details"]).iter();
            let details: String = details
                .map(|detail| [&detail["text"], &detail["summary"]].map(text).concat())
                .collect();
            let fields = [
                text(&delta["reasoning_content"]),
                text(&delta["reasoning"]),
                &details,
            ];
            summary.reasoning.push_str(
                fields
                    .into_iter()
                    .find(|text| !text.is_empty())
                    .unwrap_or_default(),
            );
            for delta in list(&delta["tool_calls"]) {
                let (index, id) = (delta["index"].as_u64(), text(&delta["id"]));
                let function = &delta["function"];
                let known = calls.iter_mut().rev().find(|call| {
                    call.0 == index
                        && (id.is_empty() || call.1 == id)
                        && (index.is_some() || text(&function["name"]).is_empty())
                });
                match known {
                    Some(call) => call.3.push_str(text(&function["arguments"])),
                    None => calls.push((
                        index,
                        id.to_owned(),
                        text(&function["name"]).to_owned(),
                        text(&function["arguments"]).to_owned(),
                    )),
                }
            }
            if !text(&delta["function_call"]["name"]).is_empty() {
                let function = &delta["function_call"];
                calls.push((
                    None,
                    String::new(),
                    text(&function["name"]).to_owned(),
                    text(&function["arguments"]).to_owned(),
                ));
            }
            if let Some(reason) = choice["finish_reason"].as_str() {
                finish = reason.to_owned();
            }
        }
        for usage in [&chunk["usage"], &chunk["x_groq"]["usage"]] {
            // A gateway repeats the usage with zeros.
            if usage["total_tokens"].as_u64() > Some(0) {
                let number = |value: &Value| value.as_u64().unwrap_or(0);
                let input = number(&usage["prompt_tokens"]);
                let details = &usage["prompt_tokens_details"];
                summary.usage = Some(Usage {
                    input_tokens: input,
                    cached_input_tokens: number(&details["cached_tokens"]),
                    cache_write_input_tokens: number(&details["cache_write_tokens"]),
                    output_tokens: number(&usage["completion_tokens"])
                        .max(number(&usage["total_tokens"]).saturating_sub(input)),
                    reasoning_output_tokens: number(
                        &usage["completion_tokens_details"]["reasoning_tokens"],
                    ),
                });
            }
        }
    }
    if finish == "length" {
        calls.pop();
    }
    for (_, id, name, text) in calls {
        summary.calls.push((name, arguments(&text)));
        summary.ids.push(id);
    }
    summary.text.push_str(&refusal);
    summary.finish = Some(match finish.as_str() {
        "length" => FinishReason::Length,
        _ if !refusal.is_empty() => FinishReason::Refused,
        _ if !summary.calls.is_empty() => FinishReason::ToolCalls,
        "stop" | "" => FinishReason::Stop,
        other => FinishReason::Other(other.to_owned()),
    });
    summary
}
