//! Request bodies of each API, for all kinds of items and settings.
#![allow(clippy::unwrap_used, missing_docs)]

use selvedge_models::{
    Effort, Model, ModelTool, ModelToolInput, Prompt, Provider, ReasoningStyle, ToolCallMode,
    request_body,
};
use selvedge_protocol::{
    ConversationItem, FunctionCall, FunctionCallKind, FunctionCallOutput, Message, MessageRole,
    NativePayload, OutputPart, Reasoning, WireApi,
};
use serde_json::{Value, json};

const WIRES: [WireApi; 3] = [WireApi::Responses, WireApi::Chat, WireApi::Messages];

fn provider(wire: WireApi) -> Provider {
    Provider::new("p", "http://localhost/v1", wire)
}

fn model() -> Model {
    Model {
        freeform_tools: true,
        images: true,
        ..Model::from_table("m")
    }
}

fn body(prompt: &Prompt, wire: WireApi) -> Value {
    request_body(prompt, &model(), &provider(wire))
}

fn call(id: &str, name: &str, arguments: &str, kind: FunctionCallKind) -> ConversationItem {
    ConversationItem::FunctionCall(FunctionCall {
        call_id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
        kind,
        native: None,
    })
}

fn native(wire: WireApi, json: Value) -> NativePayload {
    NativePayload {
        origin: provider(wire).origin("m"),
        json,
    }
}

fn reasoning(wire: WireApi, json: Value) -> ConversationItem {
    ConversationItem::Reasoning(Reasoning {
        native: Some(native(wire, json)),
        ..Reasoning::default()
    })
}

fn user(text: &str) -> ConversationItem {
    ConversationItem::message(MessageRole::User, text)
}

fn assistant(text: &str) -> ConversationItem {
    ConversationItem::message(MessageRole::Assistant, text)
}

fn conversation(wire: WireApi, items: impl IntoIterator<Item = ConversationItem>) -> Value {
    let prompt = Prompt {
        history: items.into_iter().collect(),
        ..Prompt::default()
    };
    let body = body(&prompt, wire);
    if wire == WireApi::Responses {
        body["input"].clone()
    } else {
        without_breakpoints(body["messages"].clone())
    }
}

/// Removes cache breakpoints, which have their own test.
fn without_breakpoints(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            fields.remove("cache_control");
            fields
                .values_mut()
                .for_each(|field| *field = without_breakpoints(field.take()));
        }
        Value::Array(list) => list
            .iter_mut()
            .for_each(|item| *item = without_breakpoints(item.take())),
        _ => {}
    }
    value
}

#[test]
fn a_freeform_tool_is_a_function_where_freeform_is_unsupported() {
    let script = ModelTool {
        name: "script".into(),
        description: "Runs a script.".into(),
        strict: false,
        input: ModelToolInput::Freeform {
            argument: "code".into(),
            description: "TypeScript.".into(),
        },
    };
    let history = vec![
        user("go"),
        call("c", "script", "return 1", FunctionCallKind::Freeform),
        ConversationItem::function_call_output("c", "1"),
    ];
    let prompt = Prompt {
        history,
        tools: vec![script.clone()],
        ..Prompt::default()
    };

    let responses = body(&prompt, WireApi::Responses);
    assert_eq!(
        responses["tools"],
        json!([{"type": "custom", "name": "script", "description": "Runs a script."}])
    );
    assert_eq!(
        responses["input"][1],
        json!({"type": "custom_tool_call", "call_id": "c", "name": "script", "input": "return 1"})
    );
    assert_eq!(
        responses["input"][2],
        json!({"type": "custom_tool_call_output", "call_id": "c", "output": "1"})
    );

    let schema = json!({
        "type": "object",
        "properties": {"code": {"type": "string", "description": "TypeScript."}},
        "required": ["code"],
        "additionalProperties": false,
    });
    let chat = body(&prompt, WireApi::Chat);
    assert_eq!(chat["tools"][0]["function"]["parameters"], schema);
    assert_eq!(
        chat["messages"][1]["tool_calls"][0]["function"]["arguments"],
        json!({"code": "return 1"}).to_string()
    );
    let messages = body(&prompt, WireApi::Messages);
    assert_eq!(messages["tools"][0]["input_schema"], schema);
    assert_eq!(
        messages["messages"][1]["content"][0]["input"],
        json!({"code": "return 1"})
    );

    // On Responses it depends on the model.
    let plain = request_body(
        &prompt,
        &Model::from_table("m"),
        &provider(WireApi::Responses),
    );
    assert_eq!(plain["tools"][0]["parameters"], schema);
    assert_eq!(plain["input"][1]["type"], "function_call");
    assert_eq!(plain["input"][2]["type"], "function_call_output");

    // The text is found in both forms of the call.
    for (arguments, kind) in [
        ("return 1", FunctionCallKind::Freeform),
        (r#"{"code": "return 1"}"#, FunctionCallKind::Function),
    ] {
        let ConversationItem::FunctionCall(call) = call("c", "script", arguments, kind) else {
            unreachable!()
        };
        assert_eq!(script.freeform_text(&call).as_deref(), Some("return 1"));
    }
}

#[test]
fn reasoning_is_sent_back_only_to_its_origin() {
    let signed = json!({"type": "thinking", "thinking": "Hm", "signature": "s"});
    let redacted = json!({"type": "redacted_thinking", "data": "x"});
    let items = || {
        [
            user("go"),
            reasoning(WireApi::Messages, signed.clone()),
            reasoning(WireApi::Messages, redacted.clone()),
            assistant("I look"),
            call("c", "f", "{}", FunctionCallKind::Function),
            ConversationItem::function_call_output("c", "1"),
        ]
    };
    let messages = conversation(WireApi::Messages, items());
    assert_eq!(messages[1]["content"][0], signed);
    assert_eq!(messages[1]["content"][1], redacted);
    for wire in [WireApi::Responses, WireApi::Chat] {
        assert!(!conversation(wire, items()).to_string().contains("Hm"));
    }
    // Another model of the same provider is another origin.
    let prompt = Prompt {
        history: items().to_vec(),
        ..Prompt::default()
    };
    assert!(
        !request_body(
            &prompt,
            &Model::from_table("n"),
            &provider(WireApi::Messages)
        )
        .to_string()
        .contains("Hm")
    );

    // Responses: without an id that the server did not store, and only with a following item.
    let encrypted =
        json!({"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "e"});
    let open = json!({
        "type": "reasoning",
        "id": "rs",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm"}],
    });
    let input = |json: &Value, next: ConversationItem| {
        conversation(
            WireApi::Responses,
            [
                user("go"),
                reasoning(WireApi::Responses, json.clone()),
                next,
            ],
        )
    };
    assert_eq!(
        input(&encrypted, assistant("x"))[1],
        json!({"type": "reasoning", "summary": [], "encrypted_content": "e"})
    );
    assert_eq!(input(&open, assistant("x"))[1], open);
    assert_eq!(input(&encrypted, user("x"))[1]["type"], "message");

    // Chat: only with the calls that follow it.
    let fields = json!({
        "reasoning_content": "Hm",
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}],
    });
    let with = conversation(
        WireApi::Chat,
        [
            reasoning(WireApi::Chat, fields.clone()),
            call("c", "f", "", FunctionCallKind::Function),
            ConversationItem::function_call_output("c", "1"),
        ],
    );
    assert_eq!(with[0]["reasoning_content"], "Hm");
    assert_eq!(with[0]["reasoning_details"], fields["reasoning_details"]);
    assert_eq!(with[0]["tool_calls"][0]["function"]["arguments"], "{}");
    let without = conversation(
        WireApi::Chat,
        [reasoning(WireApi::Chat, fields), assistant("x"), user("y")],
    );
    assert!(!without.to_string().contains("Hm"));
}

#[test]
fn native_fields_of_calls_and_messages_are_sent_back() {
    let with_native = |wire, json: Value| {
        let ConversationItem::FunctionCall(call) = call("c", "f", "{}", FunctionCallKind::Function)
        else {
            unreachable!()
        };
        [
            ConversationItem::FunctionCall(FunctionCall {
                native: Some(native(wire, json)),
                ..call
            }),
            ConversationItem::function_call_output("c", "1"),
        ]
    };
    let signature = json!({"google": {"thought_signature": "s"}});
    let chat = conversation(
        WireApi::Chat,
        with_native(WireApi::Chat, json!({"extra_content": signature})),
    );
    assert_eq!(chat[0]["tool_calls"][0]["extra_content"], signature);
    let responses = conversation(
        WireApi::Responses,
        with_native(WireApi::Responses, json!({"namespace": "n"})),
    );
    assert_eq!(responses[0]["namespace"], "n");
    let message = |wire, json: Value| {
        let content = vec![OutputPart::Text { text: "x".into() }];
        [ConversationItem::Message(Message {
            role: MessageRole::Assistant,
            content,
            native: Some(native(wire, json)),
        })]
    };
    let responses = conversation(
        WireApi::Responses,
        message(WireApi::Responses, json!({"phase": "commentary"})),
    );
    assert_eq!(responses[0]["phase"], "commentary");
    let messages = conversation(
        WireApi::Messages,
        message(WireApi::Messages, json!({"citations": [{"url": "u"}]})),
    );
    assert_eq!(
        messages[0]["content"][0],
        json!({"type": "text", "text": "x", "citations": [{"url": "u"}]})
    );
}

/// Native items of a paused turn are sent back unchanged.
#[test]
fn a_paused_turn_is_sent_back_unchanged() {
    let used = json!({
        "type": "server_tool_use",
        "id": "s",
        "name": "web_search",
        "input": {"query": "q"},
    });
    let found = json!({"type": "web_search_tool_result", "tool_use_id": "s", "content": []});
    let items = [used.clone(), found.clone()]
        .map(|json| ConversationItem::Native(native(WireApi::Messages, json)));
    let messages = conversation(
        WireApi::Messages,
        [user("go"), assistant("I search")].into_iter().chain(items),
    );
    assert_eq!(
        messages[1],
        json!({"role": "assistant", "content": [{"type": "text", "text": "I search"}, used, found]})
    );
}

#[test]
fn images_are_sent_in_the_form_of_each_api() {
    let image = OutputPart::Image {
        data: "QUJD".into(),
        mime_type: "image/png".into(),
    };
    let audio = OutputPart::Audio {
        data: "QUJD".into(),
        mime_type: "audio/wav".into(),
    };
    let text = OutputPart::Text {
        text: "look".into(),
    };
    let output = FunctionCallOutput {
        call_id: "c".into(),
        output: vec![text.clone(), image.clone()],
        failed: true,
    };
    let items = || {
        let content = vec![text.clone(), image.clone(), audio.clone()];
        [
            ConversationItem::Message(Message {
                role: MessageRole::User,
                content,
                native: None,
            }),
            call("c", "f", "{}", FunctionCallKind::Function),
            ConversationItem::FunctionCallOutput(output.clone()),
            assistant("nice"),
        ]
    };
    let url = "data:image/png;base64,QUJD";
    let note = "[audio/wav omitted: not supported by this API]";
    let responses = conversation(WireApi::Responses, items());
    let parts =
        json!([{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": url}]);
    assert_eq!(
        responses[0]["content"].as_array().unwrap()[..2],
        parts.as_array().unwrap()[..]
    );
    assert_eq!(responses[0]["content"][2]["text"], note);
    assert_eq!(responses[2]["output"], parts);

    // Results of Chat are text: the image follows in a user message.
    let chat = conversation(WireApi::Chat, items());
    let part = json!({"type": "image_url", "image_url": {"url": url}});
    assert_eq!(chat[0]["content"][1], part);
    assert_eq!(
        chat[2],
        json!({"role": "tool", "tool_call_id": "c", "content": "look"})
    );
    assert_eq!(chat[3], json!({"role": "user", "content": [part]}));
    assert_eq!(chat[4]["content"], "nice");

    let messages = conversation(WireApi::Messages, items());
    let block = json!({
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"},
    });
    assert_eq!(messages[0]["content"][1], block);
    assert_eq!(
        messages[2]["content"][0],
        json!({"type": "tool_result", "tool_use_id": "c",
        "content": [{"type": "text", "text": "look"}, block], "is_error": true})
    );
}

#[test]
fn a_model_without_images_gets_a_note_for_each_image() {
    let image = || OutputPart::Image {
        data: "QUJD".into(),
        mime_type: "image/png".into(),
    };
    let text = |text: &str| OutputPart::Text { text: text.into() };
    let message = |content: Vec<OutputPart>| {
        ConversationItem::Message(Message {
            role: MessageRole::User,
            content,
            native: None,
        })
    };
    let blind = Model {
        images: false,
        ..model()
    };
    for (wire, call_mode) in WIRES.into_iter().flat_map(|wire| {
        [ToolCallMode::Parallel, ToolCallMode::Off].map(|call_mode| (wire, call_mode))
    }) {
        let prompt = Prompt {
            history: vec![
                message(vec![text("look"), image(), image()]),
                message(vec![image()]),
                call("c", "f", "{}", FunctionCallKind::Function),
                ConversationItem::FunctionCallOutput(FunctionCallOutput {
                    call_id: "c".into(),
                    output: vec![text("shown"), image()],
                    failed: false,
                }),
                assistant("nice"),
            ],
            call_mode,
            ..Prompt::default()
        };
        let seeing = request_body(&prompt, &model(), &provider(wire)).to_string();
        assert_eq!(seeing.matches("QUJD").count(), 4, "{wire:?}: {seeing}");
        assert!(!seeing.contains("omitted"), "{wire:?}: {seeing}");
        let sent = request_body(&prompt, &blind, &provider(wire)).to_string();
        let note = "[image/png omitted: the model accepts no images]";
        assert_eq!(sent.matches(note).count(), 4, "{wire:?}: {sent}");
        assert!(!sent.contains("QUJD"), "{wire:?}: {sent}");
        assert!(sent.contains("look") && sent.contains("shown"), "{sent}");
    }
}

/// A history that the API would reject is corrected.
#[test]
fn invalid_histories_are_corrected() {
    for wire in WIRES {
        // A call without a result, and a result without a call.
        let text = conversation(
            wire,
            [
                user("a"),
                call("c", "f", "{}", FunctionCallKind::Function),
                ConversationItem::function_call_output("x", "lost"),
                user("b"),
            ],
        )
        .to_string();
        assert!(
            text.contains("no result was recorded") && !text.contains("lost"),
            "{text}"
        );
    }
    // Arguments that are not an object.
    let messages = conversation(
        WireApi::Messages,
        [
            call("a:b/c", "f", "{\"x\"", FunctionCallKind::Function),
            ConversationItem::function_call_output("a:b/c", " "),
        ],
    );
    assert_eq!(
        messages[0]["content"][0]["input"],
        json!({"invalid_json": "{\"x\""})
    );
    // Ids of other providers, and empty results.
    assert_eq!(messages[0]["content"][0]["id"], "a_b_c");
    assert_eq!(
        messages[1]["content"][0],
        json!({"type": "tool_result", "tool_use_id": "a_b_c"})
    );
    // The roles alternate, and empty messages are dropped.
    let messages = conversation(
        WireApi::Messages,
        [
            user("a"),
            user("b"),
            assistant(""),
            assistant("c"),
            assistant("d"),
            user(""),
        ],
    );
    assert_eq!(
        messages,
        json!([
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}],
            },
        ])
    );
}

/// For a server without tools, calls and results are sent as text.
#[test]
fn calls_are_text_if_tools_are_off() {
    let history = vec![
        user("go"),
        call("c", "f", "{\"x\":1}", FunctionCallKind::Function),
        ConversationItem::function_call_output("c", "42"),
    ];
    let tools = vec![ModelTool::function("f", "F.", json!({"type": "object"}))];
    let prompt = Prompt {
        history,
        tools,
        call_mode: ToolCallMode::Off,
        ..Prompt::default()
    };
    for wire in WIRES {
        let body = body(&prompt, wire);
        assert!(body.get("tools").is_none() && body.get("tool_choice").is_none());
        let text = body.to_string();
        assert!(
            text.contains("[called f with") && text.contains("[f returned]\\n42"),
            "{text}"
        );
        for field in ["tool_calls", "tool_use", "\"function_call", "tool_result"] {
            assert!(!text.contains(field), "{text}");
        }
    }
}

/// Forbidding calls changes only `tool_choice`, so that the cached prefix stays valid.
#[test]
fn forbidding_calls_changes_only_the_tool_choice() {
    let history = vec![
        user("go"),
        call("c", "f", "{\"x\":1}", FunctionCallKind::Function),
        ConversationItem::function_call_output("c", "42"),
    ];
    let tools = vec![ModelTool::function("f", "F.", json!({"type": "object"}))];
    let free = Prompt {
        history,
        tools,
        ..Prompt::default()
    };
    let forbidden = Prompt {
        call_mode: ToolCallMode::Forbidden,
        ..free.clone()
    };
    for (wire, choice) in
        WIRES
            .into_iter()
            .zip([json!("none"), json!("none"), json!({"type": "none"})])
    {
        let (mut free, mut forbidden) = (body(&free, wire), body(&forbidden, wire));
        assert_eq!(forbidden["tool_choice"], choice, "{wire:?}");
        for body in [&mut free, &mut forbidden] {
            body.as_object_mut().unwrap().remove("tool_choice");
        }
        assert_eq!(free, forbidden, "{wire:?}");
    }
}

/// The API rejects it: "The final block in an assistant message cannot be `thinking`."
#[test]
fn no_message_ends_with_thinking() {
    let think = |text: &str| {
        reasoning(
            WireApi::Messages,
            json!({"type": "thinking", "thinking": text, "signature": "c2ln"}),
        )
    };
    let redacted = || {
        reasoning(
            WireApi::Messages,
            json!({"type": "redacted_thinking", "data": "x"}),
        )
    };
    // An answer that was interrupted while the model was thinking, with and without text.
    let messages = conversation(
        WireApi::Messages,
        [
            user("a"),
            think("hm"),
            redacted(),
            user("b"),
            think("so"),
            assistant("c"),
            think("hm"),
            redacted(),
            user("d"),
        ],
    );
    assert_eq!(
        messages,
        json!([
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "so", "signature": "c2ln"},
                {"type": "text", "text": "c"},
            ]},
            {"role": "user", "content": [{"type": "text", "text": "d"}]},
        ])
    );
}

#[test]
fn settings_are_sent_in_the_fields_of_each_api() {
    let prompt = Prompt {
        system: "Be brief.".into(),
        history: vec![user("go")],
        tools: vec![ModelTool::function("f", "F.", json!({"type": "object"}))],
        call_mode: ToolCallMode::Single,
        max_output_tokens: Some(3000),
        effort: Some(Effort::High),
        web_search: false,
        cache_key: Some("thread".into()),
    };
    let with_reasoning = |reasoning| Model {
        reasoning,
        ..model()
    };
    let responses = request_body(
        &prompt,
        &with_reasoning(ReasoningStyle::Effort),
        &provider(WireApi::Responses),
    );
    assert_eq!(responses["instructions"], "Be brief.");
    assert_eq!(responses["store"], json!(false));
    assert_eq!(responses["parallel_tool_calls"], json!(false));
    assert_eq!(
        responses["reasoning"],
        json!({"summary": "auto", "effort": "high"})
    );
    assert_eq!(responses["include"], json!(["reasoning.encrypted_content"]));
    assert_eq!(responses["prompt_cache_key"], "thread");
    assert_eq!(responses["max_output_tokens"], 3000);
    assert_eq!(responses["tools"][0]["strict"], json!(false));
    let without_reasoning = request_body(&prompt, &model(), &provider(WireApi::Responses));
    assert!(
        without_reasoning.get("include").is_none() && without_reasoning.get("reasoning").is_none()
    );

    let chat = request_body(
        &prompt,
        &with_reasoning(ReasoningStyle::Effort),
        &provider(WireApi::Chat),
    );
    assert_eq!(
        chat["messages"][0],
        json!({"role": "system", "content": "Be brief."})
    );
    assert_eq!(
        (&chat["max_tokens"], &chat["reasoning_effort"]),
        (&json!(3000), &json!("high"))
    );
    assert_eq!(chat["parallel_tool_calls"], json!(false));
    assert_eq!(chat["stream_options"], json!({"include_usage": true}));
    assert!(chat.get("prompt_cache_key").is_none());
    let openai = Provider {
        wire_api: WireApi::Chat,
        ..Provider::find_built_in("openai").unwrap()
    };
    assert_eq!(
        request_body(&prompt, &model(), &openai)["max_completion_tokens"],
        3000
    );

    let messages = request_body(
        &prompt,
        &with_reasoning(ReasoningStyle::Adaptive),
        &provider(WireApi::Messages),
    );
    assert_eq!(messages["thinking"], json!({"type": "adaptive"}));
    assert_eq!(messages["output_config"], json!({"effort": "high"}));
    assert_eq!(
        messages["tool_choice"],
        json!({"type": "auto", "disable_parallel_tool_use": true})
    );
    let budget = request_body(
        &prompt,
        &with_reasoning(ReasoningStyle::Budget),
        &provider(WireApi::Messages),
    );
    assert_eq!(
        budget["thinking"],
        json!({"type": "enabled", "budget_tokens": 1976})
    );
    let none = Prompt {
        effort: Some(Effort::None),
        ..prompt.clone()
    };
    assert!(
        request_body(
            &none,
            &with_reasoning(ReasoningStyle::Adaptive),
            &provider(WireApi::Messages)
        )
        .get("thinking")
        .is_none()
    );
    // The API rejects a budget after calls that no thinking block precedes.
    let moved = Prompt {
        history: vec![
            user("go"),
            call("c", "f", "{}", FunctionCallKind::Function),
            ConversationItem::function_call_output("c", "1"),
        ],
        ..prompt
    };
    assert!(
        request_body(
            &moved,
            &with_reasoning(ReasoningStyle::Budget),
            &provider(WireApi::Messages)
        )
        .get("thinking")
        .is_none()
    );
}

/// Breakpoints follow the system text, the message before the newest one of the user, and the end.
#[test]
fn cache_breakpoints_follow_the_stable_prefix() {
    let breakpoints = |history: Vec<ConversationItem>| {
        let tools = vec![ModelTool::function("f", "F.", json!({"type": "object"}))];
        let body = body(
            &Prompt {
                system: "s".into(),
                history,
                tools,
                ..Prompt::default()
            },
            WireApi::Messages,
        );
        let mut found = Vec::new();
        for (name, block) in [("tools", &body["tools"][0]), ("system", &body["system"][0])] {
            if block.get("cache_control").is_some() {
                found.push(name.to_owned());
            }
        }
        for message in body["messages"].as_array().unwrap() {
            for block in message["content"].as_array().unwrap() {
                if block.get("cache_control").is_some() {
                    found.push(format!(
                        "{}{}",
                        block["text"].as_str().unwrap_or_default(),
                        block["tool_use_id"].as_str().unwrap_or_default()
                    ));
                }
            }
        }
        found
    };
    let signed = reasoning(
        WireApi::Messages,
        json!({"type": "thinking", "thinking": "Hm", "signature": "s"}),
    );
    assert_eq!(breakpoints(vec![user("a")]), ["system", "a"]);
    assert_eq!(
        breakpoints(vec![user("a"), assistant("b"), user("c")]),
        ["system", "b", "c"]
    );
    let turn = vec![
        user("a"),
        assistant("b"),
        user("c"),
        call("1", "f", "{}", FunctionCallKind::Function),
        ConversationItem::function_call_output("1", "x"),
    ];
    assert_eq!(breakpoints(turn), ["system", "b", "1"]);
    // A thinking block cannot have a breakpoint.
    assert_eq!(
        breakpoints(vec![user("a"), assistant("b"), signed, user("c")]),
        ["system", "b", "c"]
    );
}

/// A request is deterministic, and one with a longer history starts with the same bytes.
#[test]
fn a_longer_history_keeps_the_prefix_of_the_request() {
    for wire in WIRES {
        let mut history = vec![user("a"), assistant("b")];
        let short = conversation(wire, history.clone()).to_string();
        assert_eq!(short, conversation(wire, history.clone()).to_string());
        history.push(user("c"));
        let long = conversation(wire, history).to_string();
        assert!(
            long.starts_with(short.trim_end_matches(']')),
            "{short} {long}"
        );
    }
}

#[test]
fn the_provider_is_asked_to_search_the_web_where_its_api_can() {
    let prompt = Prompt {
        history: vec![user("What is new?")],
        web_search: true,
        ..Prompt::default()
    };
    assert_eq!(
        body(&prompt, WireApi::Responses)["tools"],
        json!([{"type": "web_search"}])
    );
    let tools = without_breakpoints(body(&prompt, WireApi::Messages)["tools"].clone());
    assert_eq!(
        tools,
        json!([{"type": "web_search_20250305", "name": "web_search"}])
    );
    assert_eq!(body(&prompt, WireApi::Chat)["tools"], Value::Null);
}

#[test]
fn strict_tools_are_marked_where_the_api_enforces_schemas() {
    let mut tool = ModelTool::function("add", "Adds.", json!({"type": "object"}));
    let definition = |tool: &ModelTool, wire| {
        let prompt = Prompt {
            history: vec![user("go")],
            tools: vec![tool.clone()],
            ..Prompt::default()
        };
        body(&prompt, wire)["tools"][0].clone()
    };
    assert_eq!(definition(&tool, WireApi::Responses)["strict"], false);
    assert_eq!(
        definition(&tool, WireApi::Chat)["function"]["strict"],
        Value::Null
    );
    tool.strict = true;
    assert_eq!(definition(&tool, WireApi::Responses)["strict"], true);
    assert_eq!(definition(&tool, WireApi::Chat)["function"]["strict"], true);
    assert_eq!(definition(&tool, WireApi::Messages)["strict"], Value::Null);
}
