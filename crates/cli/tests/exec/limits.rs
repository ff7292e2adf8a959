//! Limits that the model's own script sets, and the sandbox that a flag sets.

use serde_json::json;

use super::answer_encoding::{block, call, text};
use super::{Fixture, err};

/// Returns a fixture whose model first answers with `parts`, then with a final text.
fn first_answer(parts: Vec<super::answer_encoding::AnswerPart>) -> Fixture {
    Fixture::new(move |asked| match asked.number {
        0 => parts.clone().into(),
        _ => vec![text("Done.")].into(),
    })
}

#[test]
fn no_flag_is_suggested_for_a_limit_that_the_script_sets() {
    let code = "// @exec: {\"timeout_ms\": 50}\nfor (;;) {}";
    let in_block = first_answer(vec![text(&block(code))]);
    let as_argument = first_answer(vec![call(
        "c1",
        "script",
        json!({"code": "for (;;) {}", "timeoutMs": 50}),
    )]);
    for (fixture, source, for_model) in [
        (
            in_block,
            "which its `// @exec:` line sets",
            "set \\\"timeout_ms\\\": 100 in the `// @exec:` line",
        ),
        (
            as_argument,
            "which `timeoutMs` of its call sets",
            "pass `timeoutMs: 100`",
        ),
    ] {
        let output = fixture.run(&["exec", "spin"]);
        let shown = err(&output);
        assert!(
            shown.contains("past its time limit of 50 ms, ") && shown.contains(source),
            "{shown}"
        );
        assert!(!shown.contains("hint: "), "{shown}");
        let asked = fixture.server.asked();
        let result = asked.last().unwrap().body["messages"].as_array().unwrap();
        let result = result.last().unwrap().to_string();
        let result = result.replace("\\\\\\\"", "\\\"");
        assert!(result.contains(for_model), "{result}");
    }
}

#[test]
fn the_hint_for_a_read_only_sandbox_names_the_flag() {
    let code = "await tools.writeFile({ path: 'new.txt', content: 'x' })";
    let fixture = first_answer(vec![text(&block(code))]);
    fixture.run(&["exec", "--sandbox", "read-only", "write"]);
    let asked = fixture.server.asked();
    let result = asked.last().unwrap().body["messages"].to_string();
    assert!(
        result.contains("restart Selvedge with --sandbox workspace-write"),
        "{result}"
    );
    assert!(!result.contains("sandbox_mode"), "{result}");
}
