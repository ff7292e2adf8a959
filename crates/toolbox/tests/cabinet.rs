//! The File Cabinet and prompts: content is copied byte for byte, without passing through the
//! model.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod support;

use std::sync::{Arc, Mutex};

use selvedge_protocol::{
    ApprovalPolicy, CallDecision, DocumentKind, ErrorCode, EventSink, NewDocument, PreviewContent,
    RuntimeEvent,
};
use selvedge_toolbox::ToolsConfig;
use selvedge_tools::{Scope, ScopeLimits, StructuredCall};
use serde_json::{Value, json};
use support::{BOTH, Person, TestToolbox, Way};

/// Returns a fixture whose calls share one cabinet.
fn fixture() -> TestToolbox {
    let mut fixture = TestToolbox::new();
    let cabinet = fixture.toolbox().cabinet;
    fixture.outfit = Box::new(move |toolbox| toolbox.cabinet = cabinet.clone());
    fixture
}

/// Every byte value, and sequences that text tools tend to change.
fn bytes() -> Vec<u8> {
    let all: Vec<u8> = (0..=255).collect();
    [
        b"\xef\xbb\xbfline\r\nline\n\n\0".as_slice(),
        &all.repeat(1000),
    ]
    .concat()
}

/// Returns the name of a tool for a way to call it.
fn named(way: Way, script: &'static str, structured: &'static str) -> &'static str {
    if way == Way::Script {
        script
    } else {
        structured
    }
}

#[test]
fn a_document_is_written_to_a_file_byte_for_byte() {
    for way in BOTH {
        let fixture = fixture();
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
        let key = fixture.toolbox().cabinet.save(&document).unwrap().key;
        let ran = fixture.call(
            way,
            named(way, "writeFile", "write_file"),
            &json!({"fileKey": key, "path": "new/archive.bin"}),
        );
        assert_eq!(
            ran.value.unwrap(),
            json!({"path": "new/archive.bin", "bytes": bytes().len(), "created": true})
        );
        assert_eq!(
            std::fs::read(fixture.path("work/new/archive.bin")).unwrap(),
            bytes()
        );
        // And back from the file to a document.
        let saved = fixture.call(
            way,
            named(way, "saveToFC", "save_to_fc"),
            &json!({"path": "new/archive.bin"}),
        );
        let again = saved.value.unwrap()["fileKey"].as_str().unwrap().to_owned();
        assert_eq!(
            fixture
                .toolbox()
                .cabinet
                .get(&again)
                .unwrap()
                .unwrap()
                .content,
            bytes()
        );
        let read = fixture.call(
            way,
            named(way, "fetchFromFC", "fetch_from_fc"),
            &json!({"fileKey": again}),
        );
        assert_eq!(
            read.error.unwrap().1,
            format!("{again} is not text but application/octet-stream")
        );
    }
}

#[test]
fn saving_a_document_does_not_show_its_content_to_the_model() {
    let fixture = fixture();
    let secret = "the whole text of a long document ".repeat(500);
    let kept = fixture
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
    let emitted = Arc::new(Mutex::new(String::new()));
    let sink = emitted.clone();
    let events = EventSink::new(move |event| {
        sink.lock()
            .unwrap()
            .push_str(&serde_json::to_string(&event).unwrap())
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let router = support::router(
        fixture.orchestrator(&fixture.toolbox()),
        &ToolsConfig::default(),
    );
    let scope = Scope::new(
        "turn".into(),
        ScopeLimits::from(&fixture.limits),
        &fixture.cancel,
        events,
    );
    let arguments = json!({"file_key": key, "path": "long.txt"}).to_string();
    let call = StructuredCall {
        call_id: "c".into(),
        name: "write_file".into(),
        arguments,
    };
    let outputs = runtime.block_on(router.route(&scope, vec![call]));
    let visible = format!("{:?}{}", outputs[0], emitted.lock().unwrap());
    assert!(
        visible.contains("long.txt") && !visible.contains("long document"),
        "{visible}"
    );
    assert_eq!(fixture.read("work/long.txt"), secret);
}

#[test]
fn tools_accept_all_documented_names_and_argument_forms() {
    let fixture = fixture();
    let ran = fixture.script(
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
            fixture.read("work/a.txt").as_str(),
            fixture.read("work/b.txt").as_str()
        ),
        ("one", "# Second\ntwo")
    );
}

#[test]
fn wrong_keys_and_arguments_are_errors() {
    let fixture = fixture();
    let message_of = |tool: &str, args: Value| {
        let (code, message) = fixture.call(Way::Script, tool, &args).error.unwrap();
        let expected = match message.contains("it holds secrets") {
            true => ErrorCode::SandboxViolationError,
            false => ErrorCode::ToolExecutionError,
        };
        assert_eq!(code, expected);
        message
    };
    assert_eq!(
        message_of("fetchFromFC", json!("FNOTHERE")),
        "no document in the File Cabinet has the key `FNOTHERE`"
    );
    assert_eq!(
        message_of("writeFile", json!({"path": "x", "fileKey": "nope"})),
        "no document in the File Cabinet has the key `nope`"
    );
    assert_eq!(
        message_of("writeFile", json!({"path": "x"})),
        "write_file takes either `content` or `file_key`"
    );
    let both = json!({"path": "x", "content": "", "fileKey": "F"});
    assert_eq!(
        message_of("writeFile", both),
        "write_file takes either `content` or `file_key`"
    );
    assert_eq!(
        message_of("saveToFC", json!({})),
        "save_to_fc takes either `content` or `path`"
    );
    assert!(
        message_of("saveToFC", json!({"path": "../private/journal"}))
            .ends_with("cannot be accessed: it holds secrets")
    );
    assert!(!fixture.path("work/x").exists());
}

#[test]
fn approval_shows_the_diff_that_a_document_would_make() {
    let mut fixture = fixture();
    fixture.write("work/notes.txt", "old\n");
    let key = fixture
        .call(Way::Script, "saveToFC", &json!({"content": "new\n"}))
        .value
        .unwrap()["fileKey"]
        .clone();
    fixture.policy = ApprovalPolicy::Untrusted;
    fixture.person = Person::who_says(CallDecision::Deny(None));
    let ran = fixture.call(
        Way::Structured,
        "write_file",
        &json!({"file_key": key, "path": "notes.txt"}),
    );
    let Some(PreviewContent::Diff(diff)) = &ran.asked[0].calls[0].preview.view else {
        panic!("{ran:?}")
    };
    assert!(diff.contains("-old\n+new\n"), "{diff}");
    assert_eq!(fixture.read("work/notes.txt"), "old\n");
}

#[test]
fn events_report_stored_and_read_documents() {
    let mut fixture = fixture();
    let emitted = Arc::new(Mutex::new(Vec::new()));
    let sink = emitted.clone();
    fixture.events = EventSink::new(move |event| {
        if let RuntimeEvent::DocumentStored {
            document, call_id, ..
        } = event
        {
            sink.lock()
                .unwrap()
                .push((call_id, document.key, document.title));
        }
    });
    let ran = fixture.script(
        "const { fileKey } = await tools.saveToFC('x', 'Notes'); \
         await tools.fetchFromFC(fileKey); return fileKey",
    );
    let key = ran.value().unwrap().as_str().unwrap().to_owned();
    let event = |call: &str| (call.to_owned(), key.clone(), "Notes".to_owned());
    assert_eq!(*emitted.lock().unwrap(), [event("tool_1"), event("tool_2")]);
}

#[test]
fn prompts_with_the_same_text_have_the_same_key() {
    let fixture = fixture();
    let ran = fixture.script(
        r#"const texts = ["You are terse.", "You are kind.", "You are terse."];
           const { keys } = await tools.prompts.save(texts);
           const again = await tools.prompts.save({ prompt: "You are kind." });
           const { prompts } = await tools.prompts.get({ keys: [keys[1], keys[0]] });
           const one = await tools.prompts.get(keys[0]);
           return [keys[0] === keys[2], keys[0] === keys[1], again.keys[0] === keys[1],
                   prompts, one.prompts]"#,
    );
    let expected = json!([
        true,
        false,
        true,
        ["You are kind.", "You are terse."],
        ["You are terse."]
    ]);
    assert_eq!(ran.value(), Some(expected), "{:?}", ran.error);
    let none = fixture
        .call(Way::Script, "prompts.save", &json!({"prompts": []}))
        .error
        .unwrap()
        .1;
    assert_eq!(none, "expected 1 to 64 prompts in one call, got 0");
}
