//! Importing conversations from files: Selvedge's own format, Codex and Claude Code.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../journal/tests/support/mod.rs"]
mod support;

use selvedge_journal::Redactor;
use selvedge_memory::{ImportReport, Level, Memory, MemoryError, MemoryQuery};
use support::store;

fn memory() -> (tempfile::TempDir, Memory) {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::open(store(dir.path()), Redactor::new([])).unwrap();
    (dir, memory)
}

fn import(memory: &Memory, text: &str) -> Result<ImportReport, MemoryError> {
    memory.import(text.as_bytes(), "file.jsonl", None, None, |_| {})
}

#[test]
fn importing_a_file_again_changes_nothing() {
    let (_dir, memory) = memory();
    let text = r#"{"session":"a","part":1,"turn":"D1:1","role":"user","speaker":"Ann","ts":"2023-05-08T12:00:00Z","text":"I moved to Oslo. "}
{"session":"b","turn":7,"role":"assistant","text":"Noted,\n<T-1-R> exactly"}

{"session":"a","part":1,"turn":"D1:2","role":"user","speaker":"Bob","text":"Oslo is cold"}
"#;
    let first = import(&memory, text).unwrap();
    assert_eq!(
        (
            first.new_turns,
            first.existing_turns,
            first.sessions.as_slice()
        ),
        (3, 0, &["a".to_owned(), "b".to_owned()][..])
    );
    let again = import(&memory, text).unwrap();
    assert_eq!((again.new_turns, again.existing_turns), (0, 3));
    assert_eq!(
        (
            memory.turn_count("a").unwrap(),
            memory.turn_count("b").unwrap()
        ),
        (2, 1)
    );
    // Turns are numbered in the order of the file, and their bytes are exact.
    assert_eq!(memory.find_turn_by_key("a", "\"D1:2\"").unwrap(), Some(2));
    assert_eq!(
        memory.turn_at_level("b", 1, Level::Raw).unwrap(),
        b"Noted,\n<T-1-R> exactly"
    );
    assert_eq!(memory.turn("a", 1).unwrap().raw, b"I moved to Oslo. ");
    let hits = memory
        .search(&MemoryQuery::new("who moved to Oslo?"))
        .unwrap();
    assert_eq!(
        (hits[0].session.as_str(), hits[0].key.as_deref()),
        ("a", Some("\"D1:1\""))
    );
}

#[test]
fn errors_name_the_file_and_line() {
    let (_dir, memory) = memory();
    for (text, expected) in [
        (
            "{\"a\":1}\n",
            "file.jsonl:1: unknown format: expected fields",
        ),
        (
            "{\"session\":\"a\",\"turn\":1,\"role\":\"user\",\"text\":\"x\"}\nnonsense\n",
            "file.jsonl:2: not valid JSON",
        ),
        (
            "{\"session\":\"a\",\"turn\":1,\"role\":\"user\"}\n",
            "file.jsonl:1: `text` is missing",
        ),
        (
            "{\"session\":\"a\",\"turn\":[],\"role\":\"user\",\"text\":\"x\"}\n",
            "file.jsonl:1: `turn` must be a string or a number",
        ),
    ] {
        let error = import(&memory, text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    assert_eq!(import(&memory, "").unwrap(), ImportReport::default());
}

#[test]
fn codex_sessions_become_exchanges() {
    let (_dir, memory) = memory();
    let text = r#"{"timestamp":"2026-01-02T03:04:05Z","type":"session_meta","payload":{"id":"0199-abc","cwd":"/x"}}
{"timestamp":"2026-01-02T03:04:06Z","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"<environment_context>cwd</environment_context>"}]}}
{"timestamp":"2026-01-02T03:04:07Z","type":"event_msg","payload":{"type":"user_message","message":"fix it"}}
{"timestamp":"2026-01-02T03:04:07Z","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"fix the login test"}]}}
{"timestamp":"2026-01-02T03:04:09Z","type":"response_item","payload":{"type":"function_call","name":"shell","arguments":"{\"command\":[\"npm\",\"test\"]}","call_id":"c1"}}
{"timestamp":"2026-01-02T03:04:10Z","type":"response_item","payload":{"type":"function_call_output","call_id":"c1","output":"1 failed: token expired"}}
{"timestamp":"2026-01-02T03:04:11Z","type":"response_item","payload":{"type":"message","role":"assistant","content":[{"type":"output_text","text":"The token had expired; it is renewed now."}]}}
{"timestamp":"2026-01-02T03:05:00Z","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"thanks"}]}}
"#;
    let imported = import(&memory, text).unwrap();
    assert_eq!(
        (imported.new_turns, imported.sessions.as_slice()),
        (3, &["0199-abc".to_owned()][..])
    );
    let hits = memory
        .search(&MemoryQuery::new("what was wrong with the token").in_session("0199-abc"))
        .unwrap();
    assert_eq!(hits[0].number, 2);
    let compressed = String::from_utf8(
        memory
            .turn_at_level("0199-abc", 2, Level::Compressed)
            .unwrap(),
    )
    .unwrap();
    assert!(
        compressed.contains("1 failed: token expired"),
        "{compressed}"
    );
    assert_eq!(import(&memory, text).unwrap().existing_turns, 3);
}

#[test]
fn claude_code_sessions_become_exchanges() {
    let (_dir, memory) = memory();
    let text = r#"{"type":"summary","summary":"Login","leafUuid":"u9"}
{"type":"user","message":{"role":"user","content":"rename the flag"},"uuid":"u1","sessionId":"s-1","timestamp":"2026-01-02T03:04:05.123Z"}
{"type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":"I look for it."},{"type":"tool_use","id":"t1","name":"Grep","input":{"pattern":"--flag"}}]},"uuid":"u2","sessionId":"s-1","timestamp":"2026-01-02T03:04:07Z"}
{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"3 matches"}]},"uuid":"u3","sessionId":"s-1","timestamp":"2026-01-02T03:04:08Z"}
{"type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":"Renamed in three files."}]},"uuid":"u4","sessionId":"s-1","timestamp":"2026-01-02T03:04:09Z"}
{"type":"user","message":{"role":"user","content":"and the docs"},"uuid":"u5","sessionId":"s-1","timestamp":"2026-01-02T03:05:05Z"}
"#;
    assert_eq!(import(&memory, text).unwrap().new_turns, 2);
    let turn = memory.turn("s-1", 1).unwrap();
    assert_eq!(turn.ts.as_deref(), Some("2026-01-02T03:04:05.123Z"));
    assert_eq!(String::from_utf8(turn.raw).unwrap().lines().count(), 5);
    let compressed =
        String::from_utf8(memory.turn_at_level("s-1", 1, Level::Compressed).unwrap()).unwrap();
    assert!(
        compressed.contains("Grep --flag → 3 matches"),
        "{compressed}"
    );
}
