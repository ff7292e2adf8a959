//! The File Cabinet and prompts: content moves byte for byte, and not through the model.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod support;

use std::sync::{Arc, Mutex};

use selvedge_protocol::{
    Answer, ApprovalPolicy, DocumentKind, ErrorCode, Event, EventSink, NewDocument, View,
};
use selvedge_toolbox::ToolsConfig;
use selvedge_tools::{Scope, ScopeLimits, StructuredCall};
use serde_json::{Value, json};
use support::{BOTH, Desk, Person, Way};

/// A desk with one cabinet for all its calls.
fn desk() -> Desk {
    let mut desk = Desk::new();
    let cabinet = desk.toolbox().cabinet;
    desk.outfit = Box::new(move |toolbox| toolbox.cabinet = cabinet.clone());
    desk
}

/// Every byte there is, and what text tools like to change.
fn bytes() -> Vec<u8> {
    let all: Vec<u8> = (0..=255).collect();
    [
        b"\xef\xbb\xbfline\r\nline\n\n\0".as_slice(),
        &all.repeat(1000),
    ]
    .concat()
}

fn named(way: Way, script: &'static str, structured: &'static str) -> &'static str {
    if way == Way::Script {
        script
    } else {
        structured
    }
}

#[test]
fn a_document_becomes_a_file_byte_for_byte() {
    for way in BOTH {
        let desk = desk();
        let (kind, title, source) = (
            DocumentKind::Page,
            "archive.bin",
            "https://example.com/archive.bin",
        );
        let document = NewDocument {
            kind,
            title,
            source,
            media_type: "application/octet-stream",
            content: &bytes(),
        };
        let key = desk.toolbox().cabinet.keep(&document).unwrap().key;
        let ran = desk.call(
            way,
            named(way, "writeFile", "write_file"),
            &json!({"fileKey": key, "path": "new/archive.bin"}),
        );
        assert_eq!(
            ran.value.unwrap(),
            json!({"path": "new/archive.bin", "bytes": bytes().len(), "created": true})
        );
        assert_eq!(
            std::fs::read(desk.path("work/new/archive.bin")).unwrap(),
            bytes()
        );
        // And a file becomes a document.
        let saved = desk.call(
            way,
            named(way, "saveToFC", "save_to_fc"),
            &json!({"path": "new/archive.bin"}),
        );
        let again = saved.value.unwrap()["fileKey"].as_str().unwrap().to_owned();
        assert_eq!(
            desk.toolbox().cabinet.get(&again).unwrap().unwrap().content,
            bytes()
        );
        let read = desk.call(
            way,
            named(way, "fetchFromFC", "fetch_from_fc"),
            &json!({"fileKey": again}),
        );
        assert_eq!(
            read.error.unwrap().1,
            format!("{again} is no text but application/octet-stream")
        );
    }
}

#[test]
fn nothing_of_a_document_reaches_a_model_that_saves_it() {
    let desk = desk();
    let secret = "the whole text of a long document ".repeat(500);
    let kept = desk
        .call(
            Way::Script,
            "saveToFC",
            &json!({"content": secret, "title": "Long"}),
        )
        .value
        .unwrap();
    assert_eq!(
        (&kept["title"], &kept["bytes"]),
        (&json!("Long"), &json!(secret.len()))
    );
    let key = kept["fileKey"].as_str().unwrap();
    let heard = Arc::new(Mutex::new(String::new()));
    let hearing = heard.clone();
    let events = EventSink::new(move |event| {
        hearing
            .lock()
            .unwrap()
            .push_str(&serde_json::to_string(&event).unwrap())
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let router = support::router(desk.orchestrator(&desk.toolbox()), &ToolsConfig::default());
    let scope = Scope::new(
        "turn".into(),
        ScopeLimits::from(&desk.limits),
        &desk.cancel,
        events,
    );
    let arguments = json!({"file_key": key, "path": "long.txt"}).to_string();
    let call = StructuredCall {
        call_id: "c".into(),
        name: "write_file".into(),
        arguments,
    };
    let outputs = runtime.block_on(router.route(&scope, vec![call]));
    let said = format!("{:?}{}", outputs[0], heard.lock().unwrap());
    assert!(
        said.contains("long.txt") && !said.contains("long document"),
        "{said}"
    );
    assert_eq!(desk.read("work/long.txt"), secret);
}

#[test]
fn every_spelling_of_the_catalogue_works() {
    let desk = desk();
    let ran = desk.script(
        r#"const a = await tools.saveToFC("one", "First");
           const b = await tools.saveToFc({ content: "\x23 Second\ntwo" });
           const c = await tools.save_to_fc({ text: "three", name: "Third" });
           await tools.writeFile(a.fileKey, "a.txt");
           await tools.writeFile({ file_key: b.fileKey, filePath: "b.txt" });
           const read = await Promise.all([a, b, c].map(async ({ fileKey }) => {
             const { title, content } = await tools.fetchFromFC(fileKey.toLowerCase());
             return `${title}: ${content}`;
           }));
           const part = await tools.fetch_from_fc({ key: c.fileKey, offset: 1, limit: 2 });
           return [read, [part.content, part.total, part.truncated]]"#,
    );
    let expected = json!([
        ["First: one", "Second: # Second\ntwo", "Third: three"],
        ["hr", 5, true]
    ]);
    assert_eq!(ran.value(), Some(expected), "{:?}", ran.error);
    assert_eq!(
        (
            desk.read("work/a.txt").as_str(),
            desk.read("work/b.txt").as_str()
        ),
        ("one", "# Second\ntwo")
    );
}

#[test]
fn wrong_keys_and_arguments_are_told() {
    let desk = desk();
    let said = |tool: &str, args: Value| {
        let (code, message) = desk.call(Way::Script, tool, &args).error.unwrap();
        assert_eq!(code, ErrorCode::ToolExecutionError);
        message
    };
    assert_eq!(
        said("fetchFromFC", json!("FNOTHERE")),
        "the File Cabinet has nothing under `FNOTHERE`"
    );
    assert_eq!(
        said("writeFile", json!({"path": "x", "fileKey": "nope"})),
        "the File Cabinet has nothing under `nope`"
    );
    assert_eq!(
        said("writeFile", json!({"path": "x"})),
        "write_file takes either `content` or `file_key`"
    );
    let both = json!({"path": "x", "content": "", "fileKey": "F"});
    assert_eq!(
        said("writeFile", both),
        "write_file takes either `content` or `file_key`"
    );
    assert_eq!(
        said("saveToFC", json!({})),
        "save_to_fc takes either `content` or `path`"
    );
    assert!(
        said("saveToFC", json!({"path": "../private/journal"}))
            .ends_with("cannot be accessed: it holds secrets")
    );
    assert!(!desk.path("work/x").exists());
}

#[test]
fn a_person_sees_what_a_document_would_make_of_a_file() {
    let mut desk = desk();
    desk.write("work/notes.txt", "old\n");
    let key = desk
        .call(Way::Script, "saveToFC", &json!({"content": "new\n"}))
        .value
        .unwrap()["fileKey"]
        .clone();
    desk.policy = ApprovalPolicy::Untrusted;
    desk.person = Person::who_says(Answer::No(None));
    let ran = desk.call(
        Way::Structured,
        "write_file",
        &json!({"file_key": key, "path": "notes.txt"}),
    );
    let Some(View::Diff(diff)) = &ran.asked[0].calls[0].preview.view else {
        panic!("{ran:?}")
    };
    assert!(diff.contains("-old\n+new\n"), "{diff}");
    assert_eq!(desk.read("work/notes.txt"), "old\n");
}

#[test]
fn documents_are_announced_to_whoever_listens() {
    let mut desk = desk();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hearing = heard.clone();
    desk.events = EventSink::new(move |event| {
        if let Event::DocumentKept {
            document, call_id, ..
        } = event
        {
            hearing
                .lock()
                .unwrap()
                .push((call_id, document.key, document.title));
        }
    });
    let ran = desk.script(
        "const { fileKey } = await tools.saveToFC('x', 'Notes'); await tools.fetchFromFC(fileKey); return fileKey",
    );
    let key = ran.value().unwrap().as_str().unwrap().to_owned();
    let told = |call: &str| (call.to_owned(), key.clone(), "Notes".to_owned());
    assert_eq!(*heard.lock().unwrap(), [told("tool_1"), told("tool_2")]);
}

#[test]
fn prompts_are_kept_and_the_same_text_has_the_same_key() {
    let desk = desk();
    let ran = desk.script(
        r#"const { keys } = await tools.prompts.save(["You are terse.", "You are kind.", "You are terse."]);
           const again = await tools.prompts.save({ prompt: "You are kind." });
           const { prompts } = await tools.prompts.get({ keys: [keys[1], keys[0]] });
           return [keys[0] === keys[2], keys[0] === keys[1], again.keys[0] === keys[1], prompts, (await tools.prompts.get(keys[0])).prompts]"#,
    );
    let expected = json!([
        true,
        false,
        true,
        ["You are kind.", "You are terse."],
        ["You are terse."]
    ]);
    assert_eq!(ran.value(), Some(expected), "{:?}", ran.error);
    let none = desk
        .call(Way::Script, "prompts.save", &json!({"prompts": []}))
        .error
        .unwrap()
        .1;
    assert_eq!(none, "expected 1 to 64 prompts in one call, got 0");
}
