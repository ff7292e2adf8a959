//! The tool `edit_file`.

use std::os::unix::fs::PermissionsExt;

use selvedge_protocol::{ApprovalPolicy, CallDecision, PreviewContent, SandboxPolicy};
use selvedge_script::Harness;
use serde_json::{Value, json};

use super::{failure, turn};
use crate::support::{BOTH, Person, TestToolbox, Way, both_ways};

#[test]
fn an_edit_replaces_exactly_one_place() {
    // Content, arguments, expected content, expected result.
    let cases: &[(&[u8], Value, &[u8], Value)] = &[
        (
            b"a\nb\nc\n",
            json!({"old": "b", "new": "B\nB"}),
            b"a\nB\nB\nc\n",
            json!({"path": "f", "replacements": 1, "lines": [2]}),
        ),
        (
            b"x = 1\ny\nx = 1\n",
            json!({"old": "x = 1", "new": "xx = 2", "all": true}),
            b"xx = 2\ny\nxx = 2\n",
            json!({"path": "f", "replacements": 2, "lines": [1, 3]}),
        ),
        // Overlapping matches are replaced from left to right.
        (
            b"aaa",
            json!({"old": "aa", "new": "b", "replaceAll": true}),
            b"ba",
            json!({"path": "f", "replacements": 1, "lines": [1]}),
        ),
        // `$&` has no meaning.
        (
            b"price\n",
            json!({"old_string": "price", "new_string": "$& $1"}),
            b"$& $1\n",
            json!({"path": "f", "replacements": 1, "lines": [1]}),
        ),
        // A byte order mark and Windows line endings stay.
        (
            b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n",
            json!({"old": "one\ntwo\n", "new": "1\n2\n"}),
            b"\xef\xbb\xbf1\r\n2\r\nthree\r\n",
            json!({"path": "f", "replacements": 1, "lines": [1]}),
        ),
        (
            b"one\r\ntwo\r\n",
            json!({"old": "two", "new": "2\n3"}),
            b"one\r\n2\r\n3\r\n",
            json!({"path": "f", "replacements": 1, "lines": [2]}),
        ),
        // Mixed line endings: only exact text.
        (
            b"one\r\ntwo\nthree\n",
            json!({"old": "two\n", "new": "2\n"}),
            b"one\r\n2\nthree\n",
            json!({"path": "f", "replacements": 1, "lines": [2]}),
        ),
        // Bytes that are not UTF-8 stay.
        (
            b"caf\xe9 noir\n",
            json!({"old": " noir", "new": " blanc"}),
            b"caf\xe9 blanc\n",
            json!({"path": "f", "replacements": 1, "lines": [1]}),
        ),
        (
            b"gone\nstays\n",
            json!({"old": "gone\n", "new": ""}),
            b"stays\n",
            json!({"path": "f", "replacements": 1, "lines": [1]}),
        ),
    ];
    for way in BOTH {
        for (content, args, expected, result) in cases {
            let fixture = TestToolbox::new();
            fixture.write("work/f", content);
            let mut args = args.clone();
            args["path"] = json!("f");
            let ran = fixture.call(way, "edit_file", &args);
            assert_eq!(ran.error, None, "{args}");
            assert_eq!(ran.value.as_ref(), Some(result), "{args}");
            assert_eq!(
                std::fs::read(fixture.path("work/f")).unwrap(),
                *expected,
                "{args}"
            );
        }
    }
}

#[test]
fn an_edit_that_does_not_apply_says_what_to_change() {
    let source = "fn main() {\n    let total = add(1, 2);\n    print(total);\n}\n\nfn add() {\n    print(total);\n}\n";
    let cases = [
        // Several places.
        (
            json!({"old": "print(total);", "new": "x"}),
            "`old` occurs 2 times in f, at lines 3 and 7",
        ),
        (
            json!({"old": "print(total);", "new": "x"}),
            "pass all: true",
        ),
        // White space.
        (
            json!({"old": "let total = add(1,2);", "new": "x"}),
            "nearest match at line 2, which differs only in whitespace",
        ),
        (
            json!({"old": "fn main() {\n\tlet total = add(1, 2);", "new": "x"}),
            "nearest match at lines 1 to 2, which differs only in whitespace",
        ),
        // Other text.
        (
            json!({"old": "    let total = add(1, 3);\n", "new": "x"}),
            "nearest match at line 2:\n  file 2:     let total = add(1, 2);\n  old   :     let total = add(1, 3);",
        ),
        (
            json!({"old": "let sum = add(1, 2);\n    print(total);\n}", "new": "x"}),
            "nearest match at lines 2 to 4:",
        ),
        // A view with line numbers is not the text.
        (
            json!({"old": "L2:     let total = add(1, 2);", "new": "x"}),
            "`old` contains line numbers; use `text` of readFile, not `numbered`",
        ),
        (
            json!({"old": "something else entirely", "new": "x"}),
            "f has no similar lines",
        ),
        (json!({"old": "", "new": "x"}), "`old` is empty"),
        (
            json!({"path": "missing", "old": "a", "new": "b"}),
            "missing does not exist",
        ),
        (
            json!({"path": "folder", "old": "a", "new": "b"}),
            "folder is a folder",
        ),
        (
            json!({"path": "wide", "old": "a", "new": "b"}),
            "wide is not UTF-8 but utf-16le",
        ),
    ];
    let fixture = TestToolbox::new();
    fixture.write("work/f", source);
    fixture.write("work/wide", b"\xff\xfea\0");
    fixture.write("work/folder/a", "a");
    for (mut args, part) in cases {
        if args.get("path").is_none() {
            args["path"] = json!("f");
        }
        let error = failure(&fixture, &format!("return await tools.editFile({args})"));
        assert!(error.contains(part), "{args}: {error}");
        assert_eq!(fixture.read("work/f"), source);
    }
}

#[test]
fn an_edit_is_approved_and_shown_like_a_write() {
    let mut fixture = TestToolbox::new();
    fixture.policy = ApprovalPolicy::Untrusted;
    fixture.person = Person::who_says(CallDecision::Once);
    fixture.write("work/f", "one\ntwo\n");
    let ran = fixture.call(
        Way::Script,
        "editFile",
        &json!({"path": "f", "old": "two", "new": "2"}),
    );
    assert_eq!(ran.error, None);
    let asked = &ran.asked[0].calls[0];
    let expected = "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n";
    assert_eq!(
        asked.preview.view,
        Some(PreviewContent::Diff(expected.to_owned())),
        "{asked:?}"
    );
}

#[test]
fn an_edit_is_part_of_a_turns_diff_and_result_text() {
    let fixture = TestToolbox::new();
    fixture.write("work/f", "one\ntwo\n");
    let args = json!({"path": "f", "old": "two", "new": "2"});
    let output = turn(&fixture, &[("edit_file", args)]).remove(0);
    assert_eq!(output.content, "edited f: 1 replacement at line 2");
    let toolbox = fixture.toolbox();
    toolbox.turn_diff.begin_turn();
    let harness = Harness::new(fixture.orchestrator(&toolbox)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let script = "await tools.editFile({ filePath: 'f', oldString: '2', newString: 'two' })";
    assert_eq!(runtime.block_on(harness.run(script)).error, None);
    let diff = toolbox.turn_diff.diff().text;
    assert!(diff.contains("-2\n+two\n"), "{diff}");
}

#[test]
fn an_edit_obeys_the_same_rules_as_a_write() {
    let make = || {
        let fixture = TestToolbox::new();
        for path in ["work/.vscode/tasks.json", "work/.git/config", "work/f"] {
            fixture.write(path, "before");
        }
        fixture
    };
    let edit = |path: &str| json!({"path": path, "old": "before", "new": "after"});
    for (path, part) in [
        (".vscode/tasks.json", "is protected"),
        (".git/config", "is protected"),
        (
            "../outside/file.txt",
            "cannot be written: it is outside the workspace",
        ),
    ] {
        let args = |_: &TestToolbox| json!({"path": path, "old": "outside", "new": "x"});
        both_ways(make, "edit_file", args, |_, ran| {
            let message = ran.error.as_ref().map(|(_, message)| message.as_str());
            assert!(
                message.is_some_and(|text| text.contains(part)),
                "{path}: {ran:?}"
            );
        });
    }
    let read_only = || {
        let mut fixture = make();
        fixture.sandbox = SandboxPolicy::ReadOnly;
        fixture
    };
    both_ways(
        read_only,
        "edit_file",
        |_| edit("f"),
        |fixture, ran| {
            assert!(ran.error.is_some());
            assert_eq!(fixture.read("work/f"), "before");
        },
    );
    // The mode stays, and a link is followed.
    let fixture = make();
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(fixture.path("work/f"), mode).unwrap();
    std::os::unix::fs::symlink("f", fixture.path("work/link")).unwrap();
    assert_eq!(
        fixture.call(Way::Script, "editFile", &edit("link")).error,
        None
    );
    assert_eq!(fixture.read("work/f"), "after");
    let metadata = fixture.path("work/f").metadata().unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o755);
    assert!(fixture.path("work/link").is_symlink());
}
