//! Recorded answers of real services are decoded correctly, wherever the chunks end.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "recorded/expect.rs"]
mod expect;
#[path = "recorded/folder.rs"]
mod folder;

use expect::{AnswerSummary, summarise, summarise_recording};
use folder::{Form, Recorded};
use selvedge_models::{Decoder, ModelError, ModelEvent};
use selvedge_protocol::{ConversationItem, FinishReason, ModelErrorKind, ModelOrigin, WireApi};

/// Files up to this size are split at every byte.
const SMALL_BYTES: usize = 3 * 1024;

fn decode<'a>(
    wire: WireApi,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<ModelEvent>, ModelError> {
    let mut decoder = Decoder::new(ModelOrigin {
        wire,
        provider: "recorded".into(),
        model: "recorded".into(),
    });
    let mut events = Vec::new();
    for chunk in chunks {
        decoder.feed(chunk, &mut events)?;
    }
    decoder.finish(&mut events)?;
    Ok(events)
}

/// Whether the recording is a complete answer and not an error.
fn is_complete(recorded: &Recorded) -> bool {
    recorded.status < 300 && !recorded.has("error")
}

#[test]
fn decoded_answers_match_the_recordings() {
    let mut failures = Vec::new();
    for recorded in folder::all()
        .iter()
        .filter(|recorded| is_complete(recorded))
    {
        for bytes in &recorded.answers {
            let outcome = std::panic::catch_unwind(|| {
                let events = decode(recorded.wire, [&bytes[..]]).unwrap();
                let (mut found, mut expected) = (
                    summarise(&events),
                    summarise_recording(recorded.wire, bytes),
                );
                // Ids that the server did not send are generated.
                for (id, recorded) in found.ids.iter_mut().zip(&mut expected.ids) {
                    if recorded.is_empty() {
                        assert!(id.starts_with("call_"));
                        id.clear();
                    }
                }
                assert_eq!(found, expected);
                check_features(recorded, &found, &events);
            });
            if outcome.is_err() {
                failures.push(recorded.path.clone());
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} failed: {failures:#?}",
        failures.len()
    );
}

/// Checks that an answer has the features that the index lists for its file.
fn check_features(recorded: &Recorded, summary: &AnswerSummary, events: &[ModelEvent]) {
    // The index has one line for a file with several answers.
    if recorded.answers.len() > 1 {
        return;
    }
    let restarted = events.contains(&ModelEvent::Restarted);
    if recorded.has("parallel_tools") && !restarted {
        assert!(summary.calls.len() > 1, "parallel calls");
    }
    if recorded.has("tools") && summary.finish != Some(FinishReason::Length) {
        assert!(!summary.calls.is_empty(), "calls");
    }
    if recorded.has("cache_read") {
        assert!(
            summary.usage.unwrap().cached_input_tokens > 0,
            "cached tokens"
        );
    }
    if recorded.has("cache_write") {
        assert!(
            summary.usage.unwrap().cache_write_input_tokens > 0,
            "tokens written to a cache"
        );
    }
    if recorded.has("usage") {
        assert!(
            summary.usage.is_some_and(|usage| usage.input_tokens > 0),
            "usage"
        );
    }
    if recorded.has("reasoning_tokens") && recorded.wire != WireApi::Messages {
        assert!(
            summary.usage.unwrap().reasoning_output_tokens > 0,
            "reasoning tokens"
        );
    }
    let length = [
        "finish_length",
        "stop_max_tokens",
        "incomplete_max_output_tokens",
    ];
    if length.iter().any(|feature| recorded.has(feature)) {
        assert_eq!(summary.finish, Some(FinishReason::Length));
    }
    let natives = events.iter().filter_map(|event| match event {
        ModelEvent::ItemDone {
            item: ConversationItem::Reasoning(reasoning),
            ..
        } => reasoning.native.as_ref(),
        ModelEvent::ItemDone {
            item: ConversationItem::Native(native),
            ..
        } => Some(native),
        _ => None,
    });
    let natives: Vec<String> = natives.map(|native| native.json.to_string()).collect();
    for (feature, text) in [
        ("encrypted_content", "\"encrypted_content\":\""),
        ("delta_signature_delta", "\"signature\":\""),
        ("signature", "\"signature\":\""),
        ("block_redacted_thinking", "\"redacted_thinking\""),
        ("block_web_search_tool_result", "\"web_search_tool_result\""),
        ("item_web_search_call", "\"web_search_call\""),
        ("item_compaction", "\"compaction\""),
        ("delta_compaction_delta", "\"compaction\""),
        ("delta_reasoning_content", "\"reasoning_content\":\""),
        ("delta_reasoning_details", "\"reasoning_details\":["),
    ] {
        if recorded.has(feature) {
            assert!(
                natives.iter().any(|json| json.contains(text)),
                "{feature} is kept: {natives:?}"
            );
        }
    }
}

#[test]
fn answers_are_the_same_wherever_the_chunks_end() {
    let mut random = fastrand::Rng::with_seed(7);
    for recorded in folder::all()
        .iter()
        .filter(|recorded| is_complete(recorded))
    {
        for bytes in &recorded.answers {
            let whole = without_generated_ids(decode(recorded.wire, [&bytes[..]]).unwrap(), bytes);
            let check = |chunks: Vec<&[u8]>| {
                let found = decode(recorded.wire, chunks.iter().copied()).unwrap();
                assert_eq!(
                    without_generated_ids(found, bytes),
                    whole,
                    "{}",
                    recorded.path
                );
            };
            check(bytes.chunks(1).collect());
            if recorded.form == Form::Stream && bytes.len() <= SMALL_BYTES {
                for end in 1..bytes.len() {
                    check(vec![&bytes[..end], &bytes[end..]]);
                }
            }
            for _ in 0..20 {
                let mut chunks = Vec::new();
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let (chunk, more) = rest.split_at(random.usize(1..=rest.len().min(700)));
                    chunks.push(chunk);
                    rest = more;
                }
                check(chunks);
            }
        }
    }
}

/// Other line endings and missing line breaks at the end change nothing.
#[test]
fn line_endings_do_not_matter() {
    for recorded in folder::all()
        .iter()
        .filter(|recorded| is_complete(recorded) && recorded.form == Form::Stream)
    {
        for bytes in &recorded.answers {
            let whole = without_generated_ids(decode(recorded.wire, [&bytes[..]]).unwrap(), bytes);
            let text = String::from_utf8(bytes.clone())
                .unwrap()
                .replace("\r\n", "\n");
            for variant in [
                text.replace('\n', "\r\n"),
                text.replace('\n', "\r"),
                text.trim_end().to_owned(),
            ] {
                let events = decode(recorded.wire, [variant.as_bytes()]).unwrap();
                assert_eq!(
                    without_generated_ids(events, bytes),
                    whole,
                    "{}",
                    recorded.path
                );
            }
        }
    }
}

/// An answer that ends early is an error, unless it is already complete.
#[test]
fn incomplete_answers_are_errors() {
    for recorded in folder::all()
        .iter()
        .filter(|recorded| is_complete(recorded) && recorded.form == Form::Stream)
    {
        for bytes in &recorded.answers {
            let whole = summarise(&decode(recorded.wire, [&bytes[..]]).unwrap());
            for part in 1..20 {
                let start = &bytes[..bytes.len() * part / 20];
                if let Ok(events) = decode(recorded.wire, [start]) {
                    let mut found = summarise(&events);
                    // Usage may be sent last.
                    found.usage = whole.usage;
                    found.ids = whole.ids.clone();
                    assert_eq!(found, whole, "{} cut at {part}/20", recorded.path);
                }
            }
        }
    }
}

#[test]
fn recorded_errors_are_classified() {
    use ModelErrorKind::*;
    let mut seen = 0;
    for recorded in folder::all()
        .iter()
        .filter(|recorded| !is_complete(recorded))
    {
        let bytes = &recorded.answers[0];
        let error = match recorded.status {
            200 => decode(recorded.wire, [&bytes[..]]).unwrap_err(),
            status => selvedge_models::error_from_status(status, bytes),
        };
        let text = String::from_utf8_lossy(bytes);
        let kind = match recorded.status {
            401 => Auth,
            _ if text.contains("insufficient_quota") => Quota,
            _ if text.contains("context window") || text.contains("too_many_prompt_tokens") => {
                ContextTooLong
            }
            _ if text.contains("content_filter") => Refused,
            _ if text.contains("model_not_found") || text.contains("\"model: ") => UnknownModel,
            _ => InvalidRequest,
        };
        assert_eq!(error.kind, kind, "{}: {error}", recorded.path);
        assert!(
            !error.message.is_empty() && !error.message.contains('{'),
            "{}: {error}",
            recorded.path
        );
        seen += 1;
    }
    assert!(seen == 0 || seen > 20, "{seen}");
}

/// Clears ids that are not in the recording, because they are random.
fn without_generated_ids(mut events: Vec<ModelEvent>, bytes: &[u8]) -> Vec<ModelEvent> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let clean = |id: &mut String| {
        if !text.contains(id.as_str()) {
            id.clear();
        }
    };
    for event in &mut events {
        match event {
            ModelEvent::CallStarted { call_id, .. } => clean(call_id),
            ModelEvent::CallTruncated { call, .. }
            | ModelEvent::ItemDone {
                item: ConversationItem::FunctionCall(call),
                ..
            } => {
                clean(&mut call.call_id);
            }
            _ => {}
        }
    }
    events
}
