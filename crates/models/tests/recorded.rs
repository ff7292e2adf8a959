//! Answers that real services gave: decoded right, wherever the bytes are cut.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "recorded/expect.rs"]
mod expect;
#[path = "recorded/folder.rs"]
mod folder;

use expect::{Gist, expected, gist};
use folder::{Form, Recorded};
use selvedge_models::{Decoder, ModelError, ModelEvent};
use selvedge_protocol::{FinishReason, Item, ModelErrorKind, Origin, WireApi};

/// Files up to this size are cut at every byte.
const SMALL: usize = 3 * 1024;

fn decode<'a>(
    wire: WireApi,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<ModelEvent>, ModelError> {
    let mut decoder = Decoder::new(Origin {
        wire,
        provider: "recorded".into(),
        model: "recorded".into(),
    });
    let mut events = Vec::new();
    for piece in pieces {
        decoder.feed(piece, &mut events)?;
    }
    decoder.finish(&mut events)?;
    Ok(events)
}

/// Answers that end well.
fn good(recorded: &Recorded) -> bool {
    recorded.status < 300 && !recorded.has("error")
}

#[test]
fn every_answer_says_what_was_recorded() {
    let mut failures = Vec::new();
    for recorded in folder::all().iter().filter(|recorded| good(recorded)) {
        for bytes in &recorded.answers {
            let outcome = std::panic::catch_unwind(|| {
                let events = decode(recorded.wire, [&bytes[..]]).unwrap();
                let (mut found, mut wanted) = (gist(&events), expected(recorded.wire, bytes));
                // Ids a server did not give are made up, and never twice.
                for (id, given) in found.ids.iter_mut().zip(&mut wanted.ids) {
                    if given.is_empty() {
                        assert!(id.starts_with("call_"));
                        id.clear();
                    }
                }
                assert_eq!(found, wanted);
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

/// What the index says each file holds is found in it.
fn check_features(recorded: &Recorded, gist: &Gist, events: &[ModelEvent]) {
    // Several answers in one file share one line of the index.
    if recorded.answers.len() > 1 {
        return;
    }
    let spliced = events.contains(&ModelEvent::Restarted);
    if recorded.has("parallel_tools") && !spliced {
        assert!(gist.calls.len() > 1, "parallel calls");
    }
    if recorded.has("tools") && gist.finish != Some(FinishReason::Length) {
        assert!(!gist.calls.is_empty(), "calls");
    }
    if recorded.has("cache_read") {
        assert!(gist.usage.unwrap().cached_input_tokens > 0, "cached tokens");
    }
    if recorded.has("cache_write") {
        assert!(
            gist.usage.unwrap().cache_write_input_tokens > 0,
            "tokens written to a cache"
        );
    }
    if recorded.has("usage") {
        assert!(
            gist.usage.is_some_and(|usage| usage.input_tokens > 0),
            "usage"
        );
    }
    if recorded.has("reasoning_tokens") && recorded.wire != WireApi::Messages {
        assert!(
            gist.usage.unwrap().reasoning_output_tokens > 0,
            "reasoning tokens"
        );
    }
    let length = [
        "finish_length",
        "stop_max_tokens",
        "incomplete_max_output_tokens",
    ];
    if length.iter().any(|feature| recorded.has(feature)) {
        assert_eq!(gist.finish, Some(FinishReason::Length));
    }
    let natives = events.iter().filter_map(|event| match event {
        ModelEvent::ItemDone {
            done: Item::Reasoning(reasoning),
            ..
        } => reasoning.native.as_ref(),
        ModelEvent::ItemDone {
            done: Item::Native(native),
            ..
        } => Some(native),
        _ => None,
    });
    let natives: Vec<String> = natives.map(|native| native.json.to_string()).collect();
    for (feature, mark) in [
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
                natives.iter().any(|json| json.contains(mark)),
                "{feature} goes back as it came: {natives:?}"
            );
        }
    }
}

#[test]
fn answers_are_the_same_wherever_they_are_cut() {
    let mut chance = fastrand::Rng::with_seed(7);
    for recorded in folder::all().iter().filter(|recorded| good(recorded)) {
        for bytes in &recorded.answers {
            let whole = without_made_up_ids(decode(recorded.wire, [&bytes[..]]).unwrap(), bytes);
            let check = |pieces: Vec<&[u8]>| {
                let cut = decode(recorded.wire, pieces.iter().copied()).unwrap();
                assert_eq!(without_made_up_ids(cut, bytes), whole, "{}", recorded.path);
            };
            check(bytes.chunks(1).collect());
            if recorded.form == Form::Stream && bytes.len() <= SMALL {
                for at in 1..bytes.len() {
                    check(vec![&bytes[..at], &bytes[at..]]);
                }
            }
            for _ in 0..20 {
                let mut pieces = Vec::new();
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let (piece, more) = rest.split_at(chance.usize(1..=rest.len().min(700)));
                    pieces.push(piece);
                    rest = more;
                }
                check(pieces);
            }
        }
    }
}

/// Line ends of another system and a missing last line change nothing.
#[test]
fn line_ends_do_not_matter() {
    for recorded in folder::all()
        .iter()
        .filter(|recorded| good(recorded) && recorded.form == Form::Stream)
    {
        for bytes in &recorded.answers {
            let whole = without_made_up_ids(decode(recorded.wire, [&bytes[..]]).unwrap(), bytes);
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
                    without_made_up_ids(events, bytes),
                    whole,
                    "{}",
                    recorded.path
                );
            }
        }
    }
}

/// An answer that breaks off anywhere before its end is an error, or already complete.
#[test]
fn answers_that_break_off_are_noticed() {
    for recorded in folder::all()
        .iter()
        .filter(|recorded| good(recorded) && recorded.form == Form::Stream)
    {
        for bytes in &recorded.answers {
            let whole = gist(&decode(recorded.wire, [&bytes[..]]).unwrap());
            for part in 1..20 {
                let cut = &bytes[..bytes.len() * part / 20];
                if let Ok(events) = decode(recorded.wire, [cut]) {
                    let mut found = gist(&events);
                    // Usage may come after everything else.
                    found.usage = whole.usage;
                    found.ids = whole.ids.clone();
                    assert_eq!(found, whole, "{} cut at {part}/20", recorded.path);
                }
            }
        }
    }
}

#[test]
fn failures_have_their_class() {
    use ModelErrorKind::*;
    let mut seen = 0;
    for recorded in folder::all().iter().filter(|recorded| !good(recorded)) {
        let bytes = &recorded.answers[0];
        let error = match recorded.status {
            200 => decode(recorded.wire, [&bytes[..]]).unwrap_err(),
            status => selvedge_models::error_of(status, bytes),
        };
        let text = String::from_utf8_lossy(bytes);
        let kind = match recorded.status {
            401 => Auth,
            _ if text.contains("insufficient_quota") => Quota,
            _ if text.contains("context window") || text.contains("too_many_prompt_tokens") => {
                ContextTooLong
            }
            _ if text.contains("content_filter") => Refused,
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

/// Ids that do not stand in the recording are random.
fn without_made_up_ids(mut events: Vec<ModelEvent>, bytes: &[u8]) -> Vec<ModelEvent> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let clean = |id: &mut String| {
        if !text.contains(id.as_str()) {
            id.clear();
        }
    };
    for event in &mut events {
        match event {
            ModelEvent::CallStarted { call_id, .. } => clean(call_id),
            ModelEvent::CallCut { call, .. }
            | ModelEvent::ItemDone {
                done: Item::FunctionCall(call),
                ..
            } => {
                clean(&mut call.call_id);
            }
            _ => {}
        }
    }
    events
}
