//! Scripts that read, change and write files lose nothing silently: whole files by default,
//! warnings at limits, and no overwriting after an incomplete read.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "data_loss/edits.rs"]
mod edits;
#[path = "data_loss/listing.rs"]
mod listing;
#[path = "data_loss/overwriting.rs"]
mod overwriting;
mod support;

use selvedge_protocol::{EventSink, Limits};
use selvedge_toolbox::ToolsConfig;
use selvedge_tools::{Scope, ScopeLimits, StructuredCall, StructuredOutput, declarations};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use support::{TestToolbox, router};

/// Returns numbered lines of text: `line 1`, `line 2`, …
fn lines(count: usize) -> String {
    (1..=count).map(|n| format!("line {n}\n")).collect()
}

/// Runs a script that must succeed. Returns its value and its warnings.
fn run(fixture: &TestToolbox, source: &str) -> (Value, Vec<String>) {
    let output = fixture.script(source);
    assert_eq!(output.error, None, "{source}");
    (output.value().unwrap_or_default(), output.warnings)
}

/// Runs a script that must fail. Returns the message and the suggestions.
fn failure(fixture: &TestToolbox, source: &str) -> String {
    let output = fixture.script(source);
    let error = output.error.unwrap_or_else(|| panic!("no error: {source}"));
    format!("{}\n{}", error.message, error.suggestions.join("\n"))
}

/// Makes structured calls one after the other in one turn.
fn turn(fixture: &TestToolbox, calls: &[(&str, Value)]) -> Vec<StructuredOutput> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let router = router(
        fixture.orchestrator(&fixture.toolbox()),
        &ToolsConfig::default(),
    );
    let limits = ScopeLimits::from(&Limits::default());
    let scope = Scope::new(
        "turn".into(),
        limits,
        &CancellationToken::new(),
        EventSink::silent(),
    );
    let made = calls.iter().enumerate().map(|(n, (tool, args))| {
        let call = StructuredCall {
            call_id: format!("call_{}", n + 1),
            name: (*tool).to_owned(),
            arguments: args.to_string(),
        };
        runtime.block_on(router.route(&scope, vec![call])).remove(0)
    });
    made.collect()
}

#[test]
fn a_long_file_that_is_read_changed_and_written_keeps_all_lines() {
    let fixture = TestToolbox::new();
    fixture.write("work/long.py", lines(4306));
    let (value, warnings) = run(
        &fixture,
        "const { text } = await tools.readFile({ path: 'long.py' });
         await tools.writeFile({ path: 'long.py', content: text.replace('line 7\\n', 'seven\\n') });
         return (await tools.readFile({ path: 'long.py' })).totalLines",
    );
    assert_eq!((value, warnings), (json!(4306), vec![]));
    let written = fixture.read("work/long.py");
    assert_eq!(written, lines(4306).replace("line 7\n", "seven\n"));
}

#[test]
fn a_file_of_eight_megabytes_is_read_whole_and_a_longer_one_warns() {
    let fixture = TestToolbox::new();
    let line = format!("{}\n", "x".repeat(1023));
    fixture.write("work/eight", line.repeat(8 << 10));
    fixture.write("work/nine", line.repeat(9 << 10));
    // One line, as in minified code.
    fixture.write("work/one_line", "y".repeat(6 << 20));
    let source = "const out = [];
         for (const path of ['eight', 'nine', 'one_line']) {
           const f = await tools.readFile({ path });
           out.push([f.text.length, f.totalLines, f.truncated, f.cut]);
         }
         return out";
    let (value, warnings) = run(&fixture, source);
    assert_eq!(
        value,
        json!([
            [8 << 20, 8 << 10, false, false],
            [8 << 20, 9 << 10, true, false],
            [6 << 20, 1, false, false],
        ])
    );
    assert_eq!(
        warnings,
        ["readFile: read only lines 1 to 8,192 of 9,216 in nine: one call reads at most 8 MB"]
    );
}

#[test]
fn a_structured_call_reads_two_thousand_lines_and_says_so() {
    let fixture = TestToolbox::new();
    fixture.write("work/long.txt", "x\n".repeat(4306));
    for (args, last) in [
        (json!({"path": "long.txt"}), 2000),
        // Other spellings of the field count too.
        (json!({"file_path": "long.txt", "max_lines": 3}), 3),
        (json!({"filePath": "long.txt", "endLine": 5}), 5),
    ] {
        let output = turn(&fixture, &[("read_file", args.clone())]).remove(0);
        let text = output.value.as_ref().unwrap()["text"].as_str().unwrap();
        assert_eq!(text.lines().count(), last, "{args}");
        let next = format!("more lines: continue with offset {}", last + 1);
        assert!(output.content.contains(&next), "{}", output.content);
    }
}

#[test]
fn content_is_raw_and_numbered_has_the_line_numbers() {
    let fixture = TestToolbox::new();
    fixture.write("work/a.txt", lines(14).replace("line 13", "a\u{2028}b\r"));
    let (value, _) = run(
        &fixture,
        "const f = await tools.readFile({ path: 'a.txt', offset: 12 });
         const { numbered } = f;
         return [f.content === f.text, numbered, f.numbered === numbered, Object.keys(f),
                 Object.isFrozen(f), JSON.parse(JSON.stringify(f)), { ...f }.content === f.text]",
    );
    assert_eq!(value[0], json!(true));
    assert_eq!(
        value[1],
        json!("L12: line 12\nL13: a\u{2028}b\nL14: line 14")
    );
    assert_eq!(value[2], json!(true));
    // A result that is returned or logged contains the text as text and as content, no third time.
    let keys = json!([
        "text",
        "firstLine",
        "totalLines",
        "truncated",
        "cut",
        "encoding",
        "lossy",
        "content"
    ]);
    assert_eq!(value[3], keys);
    assert_eq!(value[4], json!(true));
    assert_eq!(value[5]["content"], value[5]["text"]);
    assert_eq!(value[6], json!(true));
    let (empty, _) = run(
        &fixture,
        "await tools.writeFile({ path: 'e', content: '' });
         const f = await tools.readFile({ path: 'e' }); return [f.text, f.content, f.numbered]",
    );
    assert_eq!(empty, json!(["", "", ""]));
}

#[test]
fn a_tool_has_the_same_views_under_each_of_its_names() {
    let fixture = TestToolbox::new();
    fixture.write("work/a.txt", lines(3));
    let (value, warnings) = run(
        &fixture,
        "const names = ['readFile', 'read_file'];
         const all = await Promise.all(names.map((name) => tools[name]({ path: 'a.txt', limit: 1 })));
         return all.map((f) => f.numbered)",
    );
    assert_eq!(
        (value, warnings),
        (json!(["L1: line 1", "L1: line 1"]), vec![])
    );
}

#[test]
fn defaults_are_in_the_declarations() {
    let fixture = TestToolbox::new();
    let orchestrator = fixture.orchestrator(&fixture.toolbox());
    let text = declarations(orchestrator.registry());
    for (tool, part) in [
        ("listDir", "Maximum number of entries. (default 2000)"),
        ("grepFiles", "Maximum number of matches. (default 2000)"),
        ("fileSearch", "Maximum number of files. (default 2000)"),
        (
            "readFile",
            "in scripts, by default the whole file, up to 8 MB.",
        ),
    ] {
        let from = text.find(&format!("  {tool}(")).unwrap();
        let to = from + text[from..].find("\n  }>").unwrap_or(2000);
        assert!(text[from..to].contains(part), "{tool}: {}", &text[from..to]);
    }
}
