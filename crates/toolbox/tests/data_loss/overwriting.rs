//! A file that was read incompletely is not overwritten as a whole.

use serde_json::json;

use super::{failure, lines, run, turn};
use crate::support::TestToolbox;

fn fixture() -> TestToolbox {
    let fixture = TestToolbox::new();
    fixture.write("work/long.txt", lines(4306));
    fixture.write("work/latin1.txt", b"caf\xe9 au lait\n");
    fixture
}

#[test]
fn an_incomplete_read_prevents_overwriting() {
    let read = "const { text } = await tools.readFile({ path: 'long.txt', limit: 2000 });\n";
    let lossy = "const { text } = await tools.readFile({ path: 'latin1.txt' });\n";
    let cases = [
        (
            read,
            "await tools.writeFile({ path: './long.txt', content: text })",
            "long.txt was not written: tool_1 read only 2,000 of its 4,306 lines",
        ),
        (
            read,
            "await tools.applyPatch({ path: 'long.txt', originalContent: text, updatedContent: 'x' })",
            "long.txt was not written: tool_1 read only 2,000 of its 4,306 lines",
        ),
        (
            read,
            "await tools.applyPatch('*** Begin Patch\\n*** Add File: long.txt\\n+x\\n*** End Patch')",
            "long.txt was not written: tool_1 read only 2,000 of its 4,306 lines",
        ),
        (
            lossy,
            "await tools.writeFile({ path: 'latin1.txt', content: text })",
            "latin1.txt was not written: tool_1 replaced bytes of it that are not UTF-8",
        ),
        (
            lossy,
            "await tools.applyPatch({ path: 'latin1.txt', originalContent: text, updatedContent: 'x' })",
            "latin1.txt was not written: tool_1 replaced bytes of it that are not UTF-8",
        ),
    ];
    for (read, write, message) in cases {
        let fixture = fixture();
        let error = failure(&fixture, &format!("{read}{write}"));
        assert!(error.starts_with(message), "{write}: {error}");
        assert!(
            error.contains("editFile") && error.contains("hunks"),
            "{error}"
        );
        assert_eq!(fixture.read("work/long.txt"), lines(4306));
        let bytes = std::fs::read(fixture.path("work/latin1.txt")).unwrap();
        assert_eq!(bytes, b"caf\xe9 au lait\n");
    }
}

#[test]
fn other_writes_after_an_incomplete_read_work() {
    let peek = "const { text } = await tools.readFile({ path: 'long.txt', limit: 9 });\n";
    for (what, script) in [
        (
            "a patch with hunks",
            "const patch = '*** Begin Patch\\n*** Update File: long.txt\\n@@\\n-line 3\\n+three\\n*** End Patch';
             await tools.applyPatch({ patch })",
        ),
        (
            "an edit",
            "await tools.editFile({ path: 'long.txt', old: 'line 3\\n', new: 'three\\n' })",
        ),
        (
            "a complete read after the first",
            "const whole = await tools.readFile({ path: 'long.txt' });
             await tools.writeFile({ path: 'long.txt', content: whole.text.replace('line 3\\n', 'three\\n') })",
        ),
        (
            "reading the rest",
            "const rest = await tools.readFile({ path: 'long.txt', offset: 10 });
             const whole = text + rest.text;
             await tools.writeFile({ path: 'long.txt', content: whole.replace('line 3\\n', 'three\\n') })",
        ),
        (
            "another file",
            "await tools.writeFile({ path: 'other.txt', content: text });
             await tools.editFile({ path: 'long.txt', old: 'line 3\\n', new: 'three\\n' })",
        ),
        (
            "a new file in its place",
            "const whole = await tools.readFile({ path: 'long.txt' });
             await tools.readFile({ path: 'long.txt', limit: 1 });
             await tools.exec({ command: ['rm', 'long.txt'] });
             await tools.writeFile({ path: 'long.txt', content: whole.text.replace('line 3\\n', 'three\\n') })",
        ),
    ] {
        let fixture = fixture();
        run(&fixture, &format!("{peek}{script}"));
        let expected = lines(4306).replace("line 3\n", "three\n");
        assert!(fixture.read("work/long.txt") == expected, "{what}");
    }
}

#[test]
fn a_part_of_another_version_of_the_file_does_not_complete_a_read() {
    let error = failure(
        &fixture(),
        "const a = await tools.readFile({ path: 'long.txt', limit: 9 });
         await tools.editFile({ path: 'long.txt', old: 'line 4306', new: 'the last line' });
         const b = await tools.readFile({ path: 'long.txt', offset: 10 });
         await tools.writeFile({ path: 'long.txt', content: a.text + b.text })",
    );
    assert!(
        error.contains("tool_3 read only 4,297 of its 4,306 lines"),
        "{error}"
    );
}

#[test]
fn the_structured_calls_of_a_turn_are_one_run() {
    let fixture = fixture();
    let outputs = turn(
        &fixture,
        &[
            ("read_file", json!({"path": "long.txt"})),
            (
                "write_file",
                json!({"path": "long.txt", "content": "short\n"}),
            ),
            (
                "read_file",
                json!({"path": "long.txt", "offset": 2001, "limit": 3000}),
            ),
            (
                "write_file",
                json!({"path": "long.txt", "content": "short\n"}),
            ),
        ],
    );
    let refused = &outputs[1].content;
    assert!(
        refused.contains("call_1 read only 2,000 of its 4,306 lines"),
        "{refused}"
    );
    assert!(outputs[3].is_success(), "{}", outputs[3].content);
    // Another run does not know of the read.
    let again = turn(
        &fixture,
        &[("write_file", json!({"path": "long.txt", "content": "x\n"}))],
    );
    assert!(again[0].is_success());
}

#[test]
fn a_lossy_read_warns() {
    let source = "return (await tools.readFile({ path: 'latin1.txt' })).lossy";
    let (_, warnings) = run(&fixture(), source);
    assert_eq!(
        warnings,
        ["readFile: latin1.txt is not valid UTF-8; its invalid bytes are replaced in `text`"]
    );
}

#[test]
fn the_error_of_a_replacement_says_that_it_takes_the_whole_file() {
    let error = failure(
        &fixture(),
        "await tools.applyPatch({ path: 'long.txt', originalContent: 'line 5\\n', updatedContent: 'five\\n' })",
    );
    for part in [
        "`originalContent` must be the whole file",
        "it is lines 5 to 5 of 4,306",
        "tools.editFile({ path: \"long.txt\", old: …, new: … })",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}
