//! Hand-written answers for every kind of event and every known deviation of a server.
#![allow(clippy::unwrap_used, missing_docs)]

use selvedge_models::{Decoder, ModelError, ModelEvent, ReasoningView};
use selvedge_protocol::{
    ConversationItem, FinishReason, FunctionCall, FunctionCallKind, MessageRole, ModelErrorKind,
    ModelOrigin, Usage, WireApi,
};
use serde_json::{Value, json};

fn origin(wire: WireApi) -> ModelOrigin {
    ModelOrigin {
        wire,
        provider: "p".into(),
        model: "m".into(),
    }
}

fn decode<'a>(
    wire: WireApi,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<ModelEvent>, ModelError> {
    let mut decoder = Decoder::new(origin(wire));
    let mut events = Vec::new();
    for chunk in chunks {
        decoder.feed(chunk, &mut events)?;
    }
    decoder.finish(&mut events)?;
    Ok(events)
}

/// Decodes a stream, and checks that it is decoded the same if it is split at any byte.
fn events(wire: WireApi, stream: &str) -> Vec<ModelEvent> {
    let whole = decode(wire, [stream.as_bytes()]).unwrap();
    for end in 0..stream.len() {
        let (a, b) = stream.as_bytes().split_at(end);
        assert_eq!(decode(wire, [a, b]).unwrap(), whole, "split at {end}");
    }
    whole
}

fn stream(chunks: &[Value]) -> String {
    chunks
        .iter()
        .map(|chunk| format!("data: {chunk}\n\n"))
        .collect()
}

fn text(item: u32, text: &str) -> ModelEvent {
    ModelEvent::Text {
        item_index: item,
        text: text.into(),
    }
}

fn reasoning(item: u32, view: ReasoningView, text: &str) -> ModelEvent {
    ModelEvent::Reasoning {
        item_index: item,
        view,
        text: text.into(),
    }
}

fn started(item: u32, call_id: &str, name: &str, kind: FunctionCallKind) -> ModelEvent {
    ModelEvent::CallStarted {
        item_index: item,
        call_id: call_id.into(),
        name: name.into(),
        kind,
    }
}

fn delta(item: u32, text: &str) -> ModelEvent {
    ModelEvent::CallDelta {
        item_index: item,
        text: text.into(),
    }
}

fn call(call_id: &str, name: &str, arguments: &str, kind: FunctionCallKind) -> FunctionCall {
    FunctionCall {
        call_id: call_id.into(),
        name: name.into(),
        arguments: arguments.into(),
        kind,
        native: None,
    }
}

fn call_done(item: u32, call_id: &str, name: &str, arguments: &str) -> ModelEvent {
    let done =
        ConversationItem::FunctionCall(call(call_id, name, arguments, FunctionCallKind::Function));
    ModelEvent::ItemDone {
        item_index: item,
        item: done,
    }
}

fn message_done(item: u32, text: &str) -> ModelEvent {
    ModelEvent::ItemDone {
        item_index: item,
        item: ConversationItem::message(MessageRole::Assistant, text),
    }
}

fn finished(reason: FinishReason) -> ModelEvent {
    ModelEvent::Finished {
        reason,
        detail: None,
    }
}

fn answer_started(id: &str, model: &str) -> ModelEvent {
    ModelEvent::Started {
        id: Some(id.into()),
        model: Some(model.into()),
    }
}

mod chat {
    use super::*;
    use WireApi::Chat;

    fn chunk(delta: Value, finish: Option<&str>) -> Value {
        json!({
            "id": "c1",
            "model": "m1",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        })
    }

    #[test]
    fn text_reasoning_calls_and_usage_are_decoded() {
        let whole = stream(&[
            chunk(json!({"role": "assistant", "content": ""}), None),
            chunk(json!({"reasoning_content": "Hm"}), None),
            chunk(json!({"reasoning_content": "m."}), None),
            chunk(json!({"content": "Let me "}), None),
            chunk(json!({"content": "see ü\u{1f600}\n"}), None),
            chunk(
                json!({
                    "tool_calls": [
                        {
                            "index": 0,
                            "id": "a",
                            "type": "function",
                            "function": {"name": "f", "arguments": ""},
                        },
                    ],
                }),
                None,
            ),
            chunk(
                json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"x\":"}}]}),
                None,
            ),
            chunk(
                json!({
                    "tool_calls": [
                        {"index": 1, "id": "b", "function": {"name": "g", "arguments": "{}"}},
                        {"index": 0, "function": {"arguments": "1}"}},
                    ],
                }),
                None,
            ),
            chunk(json!({}), Some("tool_calls")),
            json!({
                "choices": [],
                "usage": {
                    "prompt_tokens": 10,
                    "completion_tokens": 5,
                    "total_tokens": 15,
                    "prompt_tokens_details": {"cached_tokens": 4},
                    "completion_tokens_details": {"reasoning_tokens": 2},
                },
            }),
        ]) + ": a comment\n\ndata: [DONE]\n\n";
        let found = events(Chat, &whole);
        let usage = Usage {
            input_tokens: 10,
            cached_input_tokens: 4,
            output_tokens: 5,
            reasoning_output_tokens: 2,
            ..Usage::default()
        };
        let thought = found
            .iter()
            .position(|event| {
                matches!(
                    event,
                    ModelEvent::ItemDone {
                        item: ConversationItem::Reasoning(_),
                        ..
                    }
                )
            })
            .unwrap();
        let ModelEvent::ItemDone {
            item: ConversationItem::Reasoning(thought_item),
            ..
        } = &found[thought]
        else {
            unreachable!()
        };
        assert_eq!(
            thought_item.native.as_ref().unwrap().json,
            json!({"reasoning_content": "Hmm."})
        );
        let mut others = found.clone();
        others.remove(thought);
        assert_eq!(
            others,
            [
                answer_started("c1", "m1"),
                reasoning(0, ReasoningView::Raw, "Hm"),
                reasoning(0, ReasoningView::Raw, "m."),
                text(1, "Let me "),
                text(1, "see ü\u{1f600}\n"),
                started(2, "a", "f", FunctionCallKind::Function),
                delta(2, "{\"x\":"),
                started(3, "b", "g", FunctionCallKind::Function),
                delta(3, "{}"),
                delta(2, "1}"),
                message_done(1, "Let me see ü\u{1f600}\n"),
                call_done(2, "a", "f", "{\"x\":1}"),
                call_done(3, "b", "g", "{}"),
                ModelEvent::Usage(usage),
                finished(FinishReason::ToolCalls),
            ]
        );
    }

    #[test]
    fn reasoning_in_any_field_is_emitted_once() {
        let detail = |text: &str| {
            json!([{
                "type": "reasoning.text",
                "text": text,
                "index": 0,
                "format": "x",
                "signature": null,
            }])
        };
        let whole = stream(&[
            chunk(
                json!({"reasoning": "a", "reasoning_details": detail("a")}),
                None,
            ),
            chunk(
                json!({"reasoning": "b", "reasoning_details": detail("b")}),
                None,
            ),
            chunk(
                json!({
                    "reasoning_details": [
                        {"type": "reasoning.text", "index": 0, "signature": "sig"},
                    ],
                }),
                None,
            ),
            chunk(
                json!({
                    "reasoning_details": [
                        {"type": "reasoning.encrypted", "data": "xyz", "index": 1},
                    ],
                }),
                None,
            ),
            chunk(
                json!({
                    "content": [
                        {"type": "thinking", "thinking": [{"type": "text", "text": "c"}]},
                        {"type": "text", "text": "said"},
                    ],
                }),
                Some("stop"),
            ),
        ]);
        let found = events(Chat, &whole);
        let shown: String = found
            .iter()
            .filter_map(|event| match event {
                ModelEvent::Reasoning { text, .. } => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(shown, "abc");
        let native = found.iter().find_map(|event| match event {
            ModelEvent::ItemDone {
                item: ConversationItem::Reasoning(reasoning),
                ..
            } => reasoning.native.clone(),
            _ => None,
        });
        assert_eq!(
            native.unwrap().json,
            json!({"reasoning": "ab", "reasoning_details": [
                {
                    "type": "reasoning.text",
                    "text": "ab",
                    "index": 0,
                    "format": "x",
                    "signature": "sig",
                },
                {"type": "reasoning.encrypted", "data": "xyz", "index": 1},
            ]})
        );
        assert!(found.contains(&message_done(1, "said")));
    }

    /// Ids are generated and unique; calls are distinguished by id, index or name.
    #[test]
    fn calls_without_ids_or_indexes_are_distinguished() {
        let delta = |delta: Value| chunk(json!({"tool_calls": [delta]}), None);
        type Case = (
            &'static str,
            Vec<Value>,
            &'static [(&'static str, &'static str)],
        );
        let cases: [Case; 6] = [
            (
                "no ids, one number for all",
                vec![
                    delta(json!({"index": 0, "function": {"name": "f", "arguments": "{\"a\":1}"}})),
                    delta(json!({"index": 0, "function": {"name": "f", "arguments": "{\"a\":2}"}})),
                ],
                &[("f", "{\"a\":1}"), ("f", "{\"a\":2}")],
            ),
            (
                "two ids, one number",
                vec![
                    delta(json!({
                        "index": 0,
                        "id": "x",
                        "function": {"name": "f", "arguments": "{}"},
                    })),
                    delta(json!({
                        "index": 0,
                        "id": "y",
                        "function": {"name": "g", "arguments": "{}"},
                    })),
                ],
                &[("f", "{}"), ("g", "{}")],
            ),
            (
                "no numbers",
                vec![
                    delta(json!({"id": "", "function": {"name": "f", "arguments": "{\"a\""}})),
                    delta(json!({"function": {"arguments": ":1}"}})),
                    delta(json!({"function": {"name": "g", "arguments": "{}"}})),
                ],
                &[("f", "{\"a\":1}"), ("g", "{}")],
            ),
            (
                "the same id twice",
                vec![
                    delta(json!({
                        "index": 0,
                        "id": "x",
                        "function": {"name": "f", "arguments": "{}"},
                    })),
                    delta(json!({
                        "index": 1,
                        "id": "x",
                        "function": {"name": "g", "arguments": "{}"},
                    })),
                ],
                &[("f", "{}"), ("g", "{}")],
            ),
            (
                "the object itself, and no arguments at all",
                vec![
                    delta(json!({"index": 0, "function": {"name": "f", "arguments": {"a": [1]}}})),
                    delta(json!({"index": 1, "function": {"name": "g"}})),
                ],
                &[("f", "{\"a\":[1]}"), ("g", "{}")],
            ),
            (
                "id and name in every delta",
                vec![
                    delta(json!({
                        "index": 0,
                        "id": "x",
                        "function": {"name": "f", "arguments": "{\"a\":"},
                    })),
                    delta(json!({
                        "index": 0,
                        "id": "x",
                        "function": {"name": "f", "arguments": "1}"},
                    })),
                ],
                &[("f", "{\"a\":1}")],
            ),
        ];
        for (what, mut chunks, expected) in cases {
            chunks.push(chunk(json!({}), Some("stop")));
            let found = decode(Chat, [stream(&chunks).as_bytes()]).unwrap();
            let calls: Vec<&FunctionCall> = found
                .iter()
                .filter_map(|event| match event {
                    ModelEvent::ItemDone {
                        item: ConversationItem::FunctionCall(call),
                        ..
                    } => Some(call),
                    _ => None,
                })
                .collect();
            let shape: Vec<(&str, &str)> = calls
                .iter()
                .map(|call| (call.name.as_str(), call.arguments.as_str()))
                .collect();
            assert_eq!(shape, expected, "{what}");
            let mut ids: Vec<&str> = calls.iter().map(|call| call.call_id.as_str()).collect();
            ids.sort_unstable();
            ids.dedup();
            assert!(
                ids.len() == calls.len() && ids.iter().all(|id| !id.is_empty()),
                "{what}: {ids:?}"
            );
            // The server sends "stop" although it waits for results.
            assert_eq!(
                found.last(),
                Some(&finished(FinishReason::ToolCalls)),
                "{what}"
            );
        }
    }

    #[test]
    fn a_truncated_call_is_not_complete() {
        let whole = stream(&[
            chunk(json!({"content": "so"}), None),
            chunk(
                json!({
                    "tool_calls": [
                        {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}},
                    ],
                }),
                None,
            ),
            chunk(
                json!({
                    "tool_calls": [
                        {"index": 1, "id": "b", "function": {"name": "g", "arguments": "{\"x\""}},
                    ],
                }),
                Some("length"),
            ),
        ]);
        let found = events(Chat, &whole);
        assert!(
            found.contains(&message_done(0, "so")) && found.contains(&call_done(1, "a", "f", "{}"))
        );
        assert!(found.contains(&ModelEvent::CallTruncated {
            item_index: 2,
            call: call("b", "g", "{\"x\"", FunctionCallKind::Function)
        }));
        assert_eq!(found.last(), Some(&finished(FinishReason::Length)));
    }

    #[test]
    fn signatures_of_calls_are_kept() {
        let signature = json!({"google": {"thought_signature": "s"}});
        let whole = stream(&[chunk(
            json!({
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "a",
                        "extra_content": signature,
                        "function": {"name": "f", "arguments": "{}"},
                    },
                ],
            }),
            Some("tool_calls"),
        )]);
        let native = events(Chat, &whole)
            .into_iter()
            .find_map(|event| match event {
                ModelEvent::ItemDone {
                    item: ConversationItem::FunctionCall(call),
                    ..
                } => call.native,
                _ => None,
            });
        assert_eq!(native.unwrap().json, json!({"extra_content": signature}));
    }

    #[test]
    fn finish_reasons_are_mapped() {
        let finish = |reason: &str| {
            events(
                Chat,
                &stream(&[chunk(json!({"content": "x"}), Some(reason))]),
            )
            .pop()
            .unwrap()
        };
        assert_eq!(finish("stop"), finished(FinishReason::Stop));
        assert_eq!(finish("content_filter"), finished(FinishReason::Refused));
        assert_eq!(finish("model_length"), finished(FinishReason::Length));
        assert_eq!(finish("whim"), finished(FinishReason::Other("whim".into())));
        let refusal = stream(&[
            chunk(json!({"refusal": "I will not"}), None),
            chunk(json!({}), Some("stop")),
        ]);
        let last = events(Chat, &refusal).pop().unwrap();
        assert_eq!(
            last,
            ModelEvent::Finished {
                reason: FinishReason::Refused,
                detail: Some("I will not".into())
            }
        );
        // An answer with `[DONE]` but no reason is complete; one with neither is not.
        let open = stream(&[chunk(json!({"content": "x"}), None)]);
        assert_eq!(
            events(Chat, &format!("{open}data: [DONE]")).pop().unwrap(),
            finished(FinishReason::Stop)
        );
        assert_eq!(
            decode(Chat, [open.as_bytes()]).unwrap_err().kind,
            ModelErrorKind::Protocol
        );
        assert_eq!(
            decode(Chat, [&b""[..]]).unwrap_err().kind,
            ModelErrorKind::Protocol
        );
        assert_eq!(
            decode(Chat, [&b"<html>"[..]]).unwrap_err().kind,
            ModelErrorKind::Protocol
        );
    }

    #[test]
    fn errors_in_successful_responses_are_classified() {
        for (body, kind) in [
            (
                stream(&[json!({"error": {"message": "Provider returned error", "code": 429}})]),
                ModelErrorKind::RateLimit,
            ),
            (
                format!(
                    "event: error\ndata: {}\n\n",
                    json!({"message": "the model crashed"})
                ),
                ModelErrorKind::Server,
            ),
            (
                json!({"error": {"code": "context_length_exceeded", "message": "x"}}).to_string(),
                ModelErrorKind::ContextTooLong,
            ),
            (
                stream(&[chunk(json!({"content": "x"}), Some("error"))]),
                ModelErrorKind::Server,
            ),
            ("data: {nonsense\n\n".to_owned(), ModelErrorKind::Protocol),
        ] {
            assert_eq!(
                decode(Chat, [body.as_bytes()]).unwrap_err().kind,
                kind,
                "{body}"
            );
        }
    }

    #[test]
    fn a_body_is_decoded_like_a_stream() {
        let message = json!({
            "role": "assistant",
            "content": "hi",
            "reasoning": "hm",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ],
        });
        let body = json!({
            "id": "c1",
            "model": "m1",
            "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        });
        let found = events(
            Chat,
            &format!("\n {}", serde_json::to_string_pretty(&body).unwrap()),
        );
        assert!(
            found.contains(&text(1, "hi")) && found.contains(&call_done(2, "a", "f", "{}")),
            "{found:?}"
        );
        assert!(found.contains(&ModelEvent::Usage(Usage {
            input_tokens: 3,
            output_tokens: 4,
            ..Usage::default()
        })));
    }
}

mod messages {
    use super::*;
    use WireApi::Messages;

    fn answer(blocks: &[Value], stop: &str) -> String {
        let mut all = vec![
            json!({"type": "message_start", "message": {"id": "m_1", "model": "m1", "content": [],
            "usage": {
                "input_tokens": 5,
                "cache_read_input_tokens": 3,
                "cache_creation_input_tokens": 2,
                "output_tokens": 1,
            }}}),
        ];
        all.extend_from_slice(blocks);
        all.push(json!({
            "type": "message_delta",
            "delta": {"stop_reason": stop},
            "usage": {"output_tokens": 9},
        }));
        all.push(json!({"type": "message_stop"}));
        all.push(json!({"type": "ping"}));
        all.iter()
            .map(|event| {
                format!(
                    "event: {}\ndata: {event}\n\n",
                    event["type"].as_str().unwrap()
                )
            })
            .collect()
    }

    fn block(index: u32, start: Value, deltas: &[Value]) -> Vec<Value> {
        let mut all =
            vec![json!({"type": "content_block_start", "index": index, "content_block": start})];
        all.extend(
            deltas.iter().map(
                |delta| json!({"type": "content_block_delta", "index": index, "delta": delta}),
            ),
        );
        all.push(json!({"type": "content_block_stop", "index": index}));
        all
    }

    #[test]
    fn all_block_types_are_decoded() {
        let found = events(
            Messages,
            &answer(
                &[
                    block(
                        0,
                        json!({"type": "thinking", "thinking": "", "signature": ""}),
                        &[
                            json!({"type": "thinking_delta", "thinking": "Hm"}),
                            json!({"type": "signature_delta", "signature": "sig"}),
                        ],
                    ),
                    block(
                        1,
                        json!({"type": "redacted_thinking", "data": "secret"}),
                        &[],
                    ),
                    vec![json!({"type": "ping"})],
                    block(
                        2,
                        json!({"type": "text", "text": ""}),
                        &[
                            json!({"type": "text_delta", "text": "Hello "}),
                            json!({"type": "text_delta", "text": "there"}),
                            json!({"type": "citations_delta", "citation": {"url": "x"}}),
                        ],
                    ),
                    block(
                        3,
                        json!({
                            "type": "server_tool_use",
                            "id": "s",
                            "name": "web_search",
                            "input": {},
                        }),
                        &[
                            json!({"type": "input_json_delta", "partial_json": "{\"query\":"}),
                            json!({"type": "input_json_delta", "partial_json": "\"q\"}"}),
                        ],
                    ),
                    block(
                        4,
                        json!({"type": "tool_use", "id": "t1", "name": "f", "input": {}}),
                        &[
                            json!({"type": "input_json_delta", "partial_json": ""}),
                            json!({"type": "input_json_delta", "partial_json": "{\"x\":1}"}),
                        ],
                    ),
                    block(
                        5,
                        json!({
                            "type": "tool_use",
                            "id": "t2",
                            "name": "g",
                            "input": {},
                        }),
                        &[],
                    ),
                ]
                .concat(),
                "tool_use",
            ),
        );
        let natives: Vec<Value> = found
            .iter()
            .filter_map(|event| match event {
                ModelEvent::ItemDone {
                    item: ConversationItem::Reasoning(reasoning),
                    ..
                } => reasoning.native.clone(),
                ModelEvent::ItemDone {
                    item: ConversationItem::Message(message),
                    ..
                } => message.native.clone(),
                ModelEvent::ItemDone {
                    item: ConversationItem::Native(native),
                    ..
                } => Some(native.clone()),
                _ => None,
            })
            .map(|native| native.json)
            .collect();
        assert_eq!(
            natives,
            [
                json!({"type": "thinking", "thinking": "Hm", "signature": "sig"}),
                json!({"type": "redacted_thinking", "data": "secret"}),
                json!({"citations": [{"url": "x"}]}),
                json!({
                    "type": "server_tool_use",
                    "id": "s",
                    "name": "web_search",
                    "input": {"query": "q"},
                }),
            ]
        );
        for expected in [
            answer_started("m_1", "m1"),
            reasoning(0, ReasoningView::Raw, "Hm"),
            text(2, "there"),
            started(4, "t1", "f", FunctionCallKind::Function),
            delta(4, "{\"x\":1}"),
            call_done(4, "t1", "f", "{\"x\":1}"),
            call_done(5, "t2", "g", "{}"),
            ModelEvent::Usage(Usage {
                input_tokens: 10,
                cached_input_tokens: 3,
                cache_write_input_tokens: 2,
                output_tokens: 9,
                reasoning_output_tokens: 0,
            }),
        ] {
            assert!(found.contains(&expected), "{expected:?} in {found:#?}");
        }
        assert_eq!(found.last(), Some(&finished(FinishReason::ToolCalls)));
    }

    #[test]
    fn a_truncated_call_is_not_complete() {
        let blocks = block(
            0,
            json!({"type": "tool_use", "id": "t", "name": "f", "input": {}}),
            &[json!({"type": "input_json_delta", "partial_json": "{\"x\":"})],
        );
        let found = events(Messages, &answer(&blocks, "max_tokens"));
        assert!(found.contains(&ModelEvent::CallTruncated {
            item_index: 0,
            call: call("t", "f", "{\"x\":", FunctionCallKind::Function)
        }));
        assert!(
            !found
                .iter()
                .any(|event| matches!(event, ModelEvent::ItemDone { .. }))
        );
        assert_eq!(found.last(), Some(&finished(FinishReason::Length)));
    }

    #[test]
    fn finish_reasons_are_mapped() {
        let block = block(0, json!({"type": "text", "text": "x"}), &[]);
        for (stop, reason) in [
            ("end_turn", FinishReason::Stop),
            ("stop_sequence", FinishReason::Stop),
            ("pause_turn", FinishReason::Paused),
            ("refusal", FinishReason::Refused),
            ("model_context_window_exceeded", FinishReason::Length),
            ("whim", FinishReason::Other("whim".into())),
        ] {
            assert_eq!(
                events(Messages, &answer(&block, stop)).pop(),
                Some(finished(reason)),
                "{stop}"
            );
        }
        // Only the last event may be missing.
        let whole = answer(&block, "end_turn");
        let (without_stop, _) = whole.split_once("event: message_stop").unwrap();
        assert_eq!(
            events(Messages, without_stop).pop(),
            Some(finished(FinishReason::Stop))
        );
        let (broken, _) = whole.split_once("event: message_delta").unwrap();
        assert_eq!(
            decode(Messages, [broken.as_bytes()]).unwrap_err().kind,
            ModelErrorKind::Protocol
        );
    }

    #[test]
    fn errors_in_successful_responses_are_classified() {
        let error = format!(
            "event: error\ndata: {}\n\n",
            json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
        );
        let stream = answer(&[], "end_turn").replace(
            "event: message_delta",
            &format!("{error}event: message_delta"),
        );
        assert_eq!(
            decode(Messages, [stream.as_bytes()]).unwrap_err().kind,
            ModelErrorKind::Overloaded
        );
    }

    #[test]
    fn a_restarted_answer_is_reported() {
        let first = answer(
            &block(0, json!({"type": "text", "text": "old"}), &[]),
            "end_turn",
        );
        let (first, _) = first.split_once("event: message_delta").unwrap();
        let second = answer(
            &block(0, json!({"type": "text", "text": "new"}), &[]),
            "end_turn",
        );
        let found = events(Messages, &format!("{first}{second}"));
        let restart = found
            .iter()
            .position(|event| *event == ModelEvent::Restarted)
            .unwrap();
        assert!(
            found[..restart].contains(&message_done(0, "old"))
                && found[restart..].contains(&message_done(0, "new"))
        );
        // A restart after a complete call is an error, because the call may have run.
        let calls = [
            block(
                0,
                json!({"type": "tool_use", "id": "t", "name": "f", "input": {}}),
                &[],
            ),
            block(1, json!({"type": "text", "text": ""}), &[]),
        ];
        let first = answer(&calls.concat(), "tool_use");
        let (first, _) = first.split_once("event: message_delta").unwrap();
        assert_eq!(
            decode(Messages, [format!("{first}{second}").as_bytes()])
                .unwrap_err()
                .kind,
            ModelErrorKind::Protocol
        );
    }
}

mod responses {
    use super::*;
    use WireApi::Responses;

    fn end(status: &str, more: Value) -> Value {
        let mut response = json!({
            "id": "r_1",
            "model": "m1",
            "status": status,
            "output": [],
            "usage": {
                "input_tokens": 7,
                "input_tokens_details": {"cached_tokens": 6},
                "output_tokens": 5,
                "output_tokens_details": {"reasoning_tokens": 4},
                "total_tokens": 12,
            },
        });
        for (key, value) in more.as_object().unwrap() {
            response[key] = value.clone();
        }
        json!({"type": format!("response.{status}"), "response": response})
    }

    #[test]
    fn all_item_types_are_decoded() {
        let thought = json!({
            "type": "reasoning",
            "id": "rs_2",
            "summary": [{"type": "summary_text", "text": "Sum"}],
            "encrypted_content": "enc",
        });
        let message = json!({
            "type": "message",
            "id": "msg_9",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
        });
        let whole = stream(&[
            json!({"type": "response.created", "response": {"id": "r_1", "model": "m1"}}),
            json!({
                "type": "response.output_item.added",
                "output_index": 0,
                "item": {"type": "reasoning", "id": "rs_1", "summary": []},
            }),
            json!({
                "type": "response.reasoning_summary_part.added",
                "output_index": 0,
                "summary_index": 0,
            }),
            json!({
                "type": "response.reasoning_summary_text.delta",
                "output_index": 0,
                "summary_index": 0,
                "item_id": "rs_other",
                "delta": "Sum",
            }),
            json!({"type": "response.output_item.done", "output_index": 0, "item": thought}),
            json!({
                "type": "response.output_item.added",
                "output_index": 1,
                "item": {"type": "message", "id": "msg_1", "content": []},
            }),
            json!({
                "type": "response.output_text.delta",
                "output_index": 1,
                "item_id": "msg_2",
                "delta": "Hel",
            }),
            json!({
                "type": "response.output_text.delta",
                "output_index": 1,
                "item_id": "msg_3",
                "delta": "lo",
            }),
            json!({"type": "response.output_item.done", "output_index": 1, "item": message}),
            json!({
                "type": "response.output_item.added",
                "output_index": 2,
                "item": {
                    "type": "function_call",
                    "id": "fc",
                    "call_id": "c1",
                    "name": "f",
                    "arguments": "",
                },
            }),
            json!({
                "type": "response.output_item.added",
                "output_index": 3,
                "item": {
                    "type": "custom_tool_call",
                    "id": "ct",
                    "call_id": "c2",
                    "name": "script",
                    "input": "",
                },
            }),
            json!({
                "type": "response.function_call_arguments.delta",
                "output_index": 2,
                "delta": "{\"x\":1}",
            }),
            json!({
                "type": "response.custom_tool_call_input.delta",
                "output_index": 3,
                "delta": "return 1",
            }),
            json!({
                "type": "response.function_call_arguments.done",
                "output_index": 2,
                "arguments": "{\"x\":1}",
            }),
            json!({
                "type": "response.output_item.done",
                "output_index": 2,
                "item": {
                    "type": "function_call",
                    "id": "fc",
                    "call_id": "c1",
                    "name": "f",
                    "arguments": "{\"x\":1}",
                    "status": "completed",
                },
            }),
            json!({
                "type": "response.output_item.done",
                "output_index": 3,
                "item": {
                    "type": "custom_tool_call",
                    "id": "ct",
                    "call_id": "c2",
                    "name": "script",
                    "input": "return 1",
                    "status": "completed",
                },
            }),
            json!({
                "type": "response.output_item.done",
                "output_index": 4,
                "item": {"type": "web_search_call", "id": "ws", "status": "completed"},
            }),
            end("completed", json!({})),
            json!({"type": "ping"}),
        ]) + "data: [DONE]\n\n";
        let found = events(Responses, &whole);
        let native = |json: Value| {
            Some(selvedge_protocol::NativePayload {
                origin: origin(Responses),
                json,
            })
        };
        let done = |item: u32, done: ConversationItem| ModelEvent::ItemDone {
            item_index: item,
            item: done,
        };
        assert_eq!(
            found,
            [
                answer_started("r_1", "m1"),
                reasoning(0, ReasoningView::Summary, "Sum"),
                done(
                    0,
                    ConversationItem::Reasoning(selvedge_protocol::Reasoning {
                        summary: vec!["Sum".into()],
                        content: vec![],
                        native: native(thought)
                    })
                ),
                text(1, "Hel"),
                text(1, "lo"),
                done(
                    1,
                    ConversationItem::Message(selvedge_protocol::Message {
                        role: MessageRole::Assistant,
                        content: vec![selvedge_protocol::OutputPart::Text {
                            text: "Hello".into()
                        }],
                        native: native(json!({"phase": "commentary"})),
                    })
                ),
                started(2, "c1", "f", FunctionCallKind::Function),
                started(3, "c2", "script", FunctionCallKind::Freeform),
                delta(2, "{\"x\":1}"),
                delta(3, "return 1"),
                call_done(2, "c1", "f", "{\"x\":1}"),
                done(
                    3,
                    ConversationItem::FunctionCall(call(
                        "c2",
                        "script",
                        "return 1",
                        FunctionCallKind::Freeform
                    ))
                ),
                done(
                    4,
                    ConversationItem::Native(
                        native(
                            json!({"type": "web_search_call", "id": "ws", "status": "completed"})
                        )
                        .unwrap()
                    )
                ),
                ModelEvent::Usage(Usage {
                    input_tokens: 7,
                    cached_input_tokens: 6,
                    output_tokens: 5,
                    reasoning_output_tokens: 4,
                    ..Usage::default()
                }),
                finished(FinishReason::ToolCalls),
            ]
        );
    }

    /// Servers omit indexes, `output_item.added`, or all events but the last.
    #[test]
    fn missing_events_are_compensated() {
        let message =
            json!({"type": "message", "content": [{"type": "output_text", "text": "Hello"}]});
        let function =
            json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"});
        for chunks in [
            // No indexes.
            vec![
                json!({
                    "type": "response.output_item.added",
                    "item": {"type": "message", "id": "a"},
                }),
                json!({"type": "response.output_text.delta", "item_id": "a", "delta": "Hello"}),
                json!({
                    "type": "response.output_item.done",
                    "item": {
                        "type": "message",
                        "id": "a",
                        "content": [{"type": "output_text", "text": "Hello"}],
                    },
                }),
                json!({
                    "type": "response.output_item.added",
                    "item": {"type": "function_call", "id": "b", "call_id": "c", "name": "f"},
                }),
                json!({
                    "type": "response.function_call_arguments.delta",
                    "item_id": "b2",
                    "delta": "{}",
                }),
                json!({
                    "type": "response.output_item.done",
                    "item": {
                        "type": "function_call",
                        "id": "b3",
                        "call_id": "c",
                        "name": "f",
                        "arguments": "{}",
                    },
                }),
                end("completed", json!({})),
            ],
            // No `output_item.added`.
            vec![
                json!({"type": "response.output_text.delta", "output_index": 0, "delta": "Hello"}),
                json!({"type": "response.output_item.done", "output_index": 1, "item": function}),
                end("completed", json!({})),
            ],
            // Nothing is streamed.
            vec![end("completed", json!({"output": [message, function]}))],
            // Only the message is streamed.
            vec![
                json!({
                    "type": "response.output_item.added",
                    "item": {"type": "message", "id": "a"},
                }),
                json!({"type": "response.output_text.delta", "item_id": "a", "delta": "Hello"}),
                json!({
                    "type": "response.output_item.done",
                    "item": {
                        "type": "message",
                        "id": "a",
                        "content": [{"type": "output_text", "text": "Hello"}],
                    },
                }),
                end("completed", json!({"output": [message, function]})),
            ],
            // The last event completes the items of the stream.
            vec![
                json!({
                    "type": "response.output_item.added",
                    "output_index": 0,
                    "item": {"type": "message", "id": "a"},
                }),
                json!({"type": "response.output_text.delta", "output_index": 0, "delta": "Hello"}),
                json!({
                    "type": "response.output_item.added",
                    "output_index": 1,
                    "item": {"type": "function_call", "call_id": "c", "name": "f"},
                }),
                end("completed", json!({"output": [message, function]})),
            ],
        ] {
            let found = events(Responses, &stream(&chunks));
            let text: String = found
                .iter()
                .filter_map(|event| match event {
                    ModelEvent::Text { text, .. } => Some(text.as_str()),
                    _ => None,
                })
                .collect();
            let messages: Vec<String> = found
                .iter()
                .filter_map(|event| match event {
                    ModelEvent::ItemDone {
                        item: ConversationItem::Message(message),
                        ..
                    } => Some(message.text()),
                    _ => None,
                })
                .collect();
            let calls: Vec<&FunctionCall> = found
                .iter()
                .filter_map(|event| match event {
                    ModelEvent::ItemDone {
                        item: ConversationItem::FunctionCall(call),
                        ..
                    } => Some(call),
                    _ => None,
                })
                .collect();
            assert_eq!(
                (text.as_str(), messages),
                ("Hello", vec!["Hello".to_owned()]),
                "{chunks:?}"
            );
            assert_eq!(
                calls,
                [&call("c", "f", "{}", FunctionCallKind::Function)],
                "{chunks:?}"
            );
        }
    }

    #[test]
    fn finish_reasons_are_mapped() {
        let last = |chunks: &[Value]| events(Responses, &stream(chunks)).pop().unwrap();
        assert_eq!(
            last(&[end("completed", json!({}))]),
            finished(FinishReason::Stop)
        );
        let incomplete = |reason: &str| {
            end(
                "incomplete",
                json!({"incomplete_details": {"reason": reason}}),
            )
        };
        assert_eq!(
            last(&[incomplete("max_output_tokens")]),
            finished(FinishReason::Length)
        );
        assert_eq!(
            last(&[incomplete("content_filter")]),
            finished(FinishReason::Refused)
        );
        let refusal = [
            json!({"type": "response.refusal.delta", "output_index": 0, "delta": "I will not"}),
            end("completed", json!({})),
        ];
        assert_eq!(
            last(&refusal),
            ModelEvent::Finished {
                reason: FinishReason::Refused,
                detail: Some("I will not".into())
            }
        );
        let open = stream(&[
            json!({"type": "response.output_text.delta", "output_index": 0, "delta": "x"}),
        ]);
        assert_eq!(
            decode(Responses, [format!("{open}data: [DONE]\n\n").as_bytes()])
                .unwrap_err()
                .kind,
            ModelErrorKind::Protocol
        );
    }

    /// Without indexes, and with a new id in every event, `call_id` identifies the call.
    #[test]
    fn calls_without_indexes_are_distinguished() {
        let function = |id: &str, call_id: &str, arguments: &str| {
            json!({
                "type": "function_call",
                "id": id,
                "call_id": call_id,
                "name": "f",
                "arguments": arguments,
            })
        };
        let whole = stream(&[
            json!({"type": "response.output_item.added", "item": function("1", "a", "")}),
            json!({"type": "response.output_item.added", "item": function("2", "b", "")}),
            json!({"type": "response.output_item.done", "item": function("3", "a", "{\"n\":1}")}),
            json!({"type": "response.output_item.done", "item": function("4", "b", "{\"n\":2}")}),
            end("completed", json!({})),
        ]);
        let found = events(Responses, &whole);
        assert!(
            found.contains(&call_done(0, "a", "f", "{\"n\":1}"))
                && found.contains(&call_done(1, "b", "f", "{\"n\":2}")),
            "{found:?}"
        );
    }

    #[test]
    fn a_truncated_call_is_not_complete() {
        let chunks = [
            json!({
                "type": "response.output_item.added",
                "output_index": 0,
                "item": {"type": "function_call", "call_id": "c", "name": "f"},
            }),
            json!({
                "type": "response.function_call_arguments.delta",
                "output_index": 0,
                "delta": "{\"x\"",
            }),
            end(
                "incomplete",
                json!({"incomplete_details": {"reason": "max_output_tokens"}}),
            ),
        ];
        let found = events(Responses, &stream(&chunks));
        assert!(
            found.contains(&ModelEvent::CallTruncated {
                item_index: 0,
                call: call("c", "f", "{\"x\"", FunctionCallKind::Function)
            }),
            "{found:?}"
        );
        assert!(
            !found
                .iter()
                .any(|event| matches!(event, ModelEvent::ItemDone { .. }))
        );
    }

    #[test]
    fn errors_in_successful_responses_are_classified() {
        for (chunk, kind) in [
            (
                json!({
                    "type": "error",
                    "code": "rate_limit_exceeded",
                    "message": "Please try again in 2s.",
                }),
                ModelErrorKind::RateLimit,
            ),
            (
                json!({"type": "error", "error": {"type": "insufficient_quota", "message": "x"}}),
                ModelErrorKind::Quota,
            ),
            (
                end(
                    "failed",
                    json!({"error": {"code": "server_error", "message": "x"}}),
                ),
                ModelErrorKind::Server,
            ),
            (
                end(
                    "failed",
                    json!({"error": {"code": "context_length_exceeded", "message": "x"}}),
                ),
                ModelErrorKind::ContextTooLong,
            ),
            (end("cancelled", json!({})), ModelErrorKind::Server),
            (
                json!({"error": {"message": "no such thing", "type": "invalid_request_error"}}),
                ModelErrorKind::InvalidRequest,
            ),
        ] {
            let error =
                decode(Responses, [stream(std::slice::from_ref(&chunk)).as_bytes()]).unwrap_err();
            assert_eq!(error.kind, kind, "{chunk}");
        }
    }
}

/// Endless text, endless items and an endless event reach a limit.
#[test]
fn endless_answers_are_errors() {
    let text = json!({"choices": [{"delta": {"content": "x".repeat(1 << 20)}}]});
    let calls: Vec<Value> = (0..200)
        .map(|index| json!({"index": index, "id": format!("~{index}"), "function": {"name": "f"}}))
        .collect();
    for (endless, wire) in [
        (stream(&[text]), WireApi::Chat),
        (
            stream(&[
                json!({"type": "response.output_item.done", "item": {"type": "web_search_call"}}),
            ])
            .repeat(100),
            WireApi::Responses,
        ),
        (
            stream(&[json!({
                "type": "content_block_start",
                "content_block": {"type": "text", "text": "x"},
            })])
            .repeat(100),
            WireApi::Messages,
        ),
        (
            stream(&[json!({"choices": [{"delta": {"tool_calls": calls}}]})]),
            WireApi::Chat,
        ),
        (format!("{{\"x\": \"{}", "y".repeat(1 << 20)), WireApi::Chat),
    ] {
        let mut decoder = Decoder::new(origin(wire));
        let mut fed = 0;
        let mut round = 0;
        let failed = loop {
            let mut events = Vec::new();
            round += 1;
            // Every round has its own ids.
            let chunk = endless.replace('~', &format!("{round}-"));
            match decoder.feed(chunk.as_bytes(), &mut events) {
                Ok(()) => fed += chunk.len(),
                Err(error) => break error.kind == ModelErrorKind::Protocol,
            }
            assert!(fed < 200 << 20, "{fed} bytes of {}", &endless[..60]);
        };
        assert!(failed);
    }
}
