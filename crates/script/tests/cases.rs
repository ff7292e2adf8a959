//! Runs the scripts in the Markdown files of `cases/` and checks what each file expects of them. A
//! new case needs no code. `cases/README.md` lists the keys of an `expect` block.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use selvedge_protocol::{ErrorCode, Limits, OutputPart, ScriptToolCallOutput};
use selvedge_script::ReplayOptions;
use serde_json::Value;
use support::servers::with_more_servers;
use support::{MemoryLedger, TestFixture, run_on_thread};

/// Time after its own time limit within which a script must return.
const TEST_TIMEOUT: Duration = Duration::from_secs(8);

struct Case {
    title: String,
    code: String,
    expect: Vec<(String, String)>,
}

#[test]
fn scripts_as_models_write_them() {
    assert!(run_file("models.md", 30_000, 0..1) >= 50);
}

#[test]
fn calls_and_helpers_in_every_form_that_models_write() {
    assert!(run_file("calls.md", 30_000, 0..1) >= 30);
}

/// Each row of `cases/urls.json` is an input, a base (or null), and the parts of the URL that
/// Node.js 20 makes of them: `[href, origin, username, password, host, pathname, search, hash]`, or
/// null if it is invalid.
#[test]
fn urls_are_parsed_as_in_node() {
    let table = include_str!("cases/urls.json");
    let rows: Vec<(String, Option<String>, Option<Vec<String>>)> =
        serde_json::from_str(table).unwrap();
    assert!(rows.len() >= 60, "{}", rows.len());
    let fixture = TestFixture::new();
    for part in rows.chunks(50) {
        let inputs: Vec<_> = part.iter().map(|(input, base, _)| (input, base)).collect();
        let parts = fixture.value(&format!(
            "const keys = ['href', 'origin', 'username', 'password', 'host', 'pathname', 'search', \
             'hash'];
             const parts = ([input, base]) => {{
               const url = URL.parse(input, base ?? undefined);
               return url && keys.map(key => url[key]);
             }};
             return {}.map(parts)",
            serde_json::to_string(&inputs).unwrap()
        ));
        let parts: Vec<Option<Vec<String>>> = serde_json::from_value(parts).unwrap();
        for ((input, base, expected), parts) in part.iter().zip(parts) {
            assert_eq!(&parts, expected, "{input:?} with the base {base:?}");
        }
    }
}

/// The cases are split into two tests, which run in parallel.
#[test]
fn hostile_scripts_with_even_numbers_are_contained() {
    assert!(run_file("hostile.md", 300, 0..2) >= 70);
}

#[test]
fn hostile_scripts_with_odd_numbers_are_contained() {
    assert!(run_file("hostile.md", 300, 1..2) >= 70);
}

/// Runs every `part.end`-th case of a file, beginning with number `part.start`. Returns how many
/// ran.
fn run_file(name: &str, timeout_ms: u64, part: std::ops::Range<usize>) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/cases")
        .join(name);
    let cases = parse(&std::fs::read_to_string(path).unwrap());
    let cases: Vec<Case> = cases
        .into_iter()
        .skip(part.start)
        .step_by(part.end)
        .collect();
    let mut problems = Vec::new();
    let ledger = Arc::new(MemoryLedger::default());
    for case in &cases {
        let timeout_ms = case
            .expect
            .iter()
            .find(|(key, _)| key == "timeout")
            .map_or(timeout_ms, |(_, ms)| ms.parse().unwrap());
        let attempt = |timeout_ms: u64| {
            let ledger = ledger.clone();
            let fixture = TestFixture::with(
                move |orchestrator| {
                    let mut tools = orchestrator.registry().clone();
                    if name == "calls.md" {
                        tools = with_more_servers(tools);
                    }
                    orchestrator
                        .with_registry(tools)
                        .with_ledger(ledger.clone())
                },
                Limits {
                    timeout_ms,
                    ..Limits::default()
                },
            );
            // Fails if the script is not stopped at its time limit.
            let output = fixture.run_with(
                &case.code,
                fixture.options(),
                Duration::from_millis(timeout_ms) + TEST_TIMEOUT,
            );
            (fixture, output)
        };
        let (mut fixture, mut output) = attempt(timeout_ms);
        // A script that should not time out gets more time, in case the machine is busy.
        let in_time = |output: &ScriptToolCallOutput| {
            output
                .error
                .as_ref()
                .is_none_or(|error| error.code != ErrorCode::ScriptTimeoutError)
        };
        let expects_no_timeout = |(key, expected): &(String, String)| {
            key == "value" || key == "error" && expected != ErrorCode::ScriptTimeoutError.as_str()
        };
        if case.expect.iter().any(expects_no_timeout) && !in_time(&output) {
            (fixture, output) = attempt(30_000);
        }
        problems.extend(case.expect.iter().filter_map(|(key, expected)| {
            check(&output, key, expected).map(|problem| {
                format!(
                    "{}: {problem}\n{}",
                    case.title,
                    serde_json::to_string(&output).unwrap()
                )
            })
        }));
        if name != "hostile.md"
            && let Some(recorded_run) = ledger.recorded_run(&case.code, &output)
        {
            let again = run_on_thread(&case.title, TEST_TIMEOUT, async move {
                recorded_run.replay(ReplayOptions::default()).await.unwrap()
            });
            problems.extend(diverged(&again).map(|message| format!("{}: {message}", case.title)));
        }
        let next = fixture.run("return 'fine'");
        if next.output_json.as_deref() != Some("\"fine\"") {
            problems.push(format!(
                "{}: the next script does not run: {:?}",
                case.title, next.error
            ));
        }
    }
    assert!(
        problems.is_empty(),
        "{} problems in {} cases:\n\n{}",
        problems.len(),
        cases.len(),
        problems.join("\n\n")
    );
    cases.len()
}

fn diverged(output: &ScriptToolCallOutput) -> Option<String> {
    let error = output.error.as_ref()?;
    (error.code == ErrorCode::ReplayDivergenceError).then(|| error.message.clone())
}

/// Returns a description of the problem if the output is not as expected.
fn check(output: &ScriptToolCallOutput, key: &str, expected: &str) -> Option<String> {
    let error = output.error.as_ref();
    let is = |ok: bool| (!ok).then(|| format!("expected {key}: {expected}"));
    let json = |text: &str| {
        serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    };
    match key {
        "value" => is(error.is_none() && output.value().unwrap_or(Value::Null) == json(expected)),
        "error" => is(error.is_some_and(|error| error.code.as_str() == expected)),
        "message" => is(error.is_some_and(|error| error.message.contains(expected))),
        "hint" => is(error.is_some_and(|error| {
            error.message.contains(expected)
                || error.suggestions.iter().any(|hint| hint.contains(expected))
        })),
        "line" => is(error
            .and_then(|error| error.line)
            .map(|line| line.to_string())
            .as_deref()
            == Some(expected)),
        "status" => {
            is(serde_json::to_value(output.status).unwrap() == Value::String(expected.to_owned()))
        }
        "warning" => is(output
            .warnings
            .iter()
            .any(|warning| warning.contains(expected))),
        "warnings" => is(output.warnings.len().to_string() == expected),
        "log" => is(output.logs.iter().any(|log| log.message.contains(expected))),
        "text" => is(output
            .output
            .iter()
            .any(|part| matches!(part, OutputPart::Text { text } if text.contains(expected)))),
        "calls" => {
            let calls: Vec<String> = output
                .calls
                .iter()
                .map(|call| format!("{} {}", call.tool, call.status.as_str()))
                .collect();
            is(calls.join(", ") == expected)
        }
        // The script may end in any way, but must not return the word of a successful attack.
        "contained" => is(error.is_some()
            || output
                .output_json
                .as_deref()
                .is_none_or(|json| !json.contains("ESCAPED"))),
        "timeout" => None,
        other => panic!("unknown key in an expect block: {other}"),
    }
}

fn parse(text: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for section in text.split("\n## ").skip(1) {
        let title = section.lines().next().unwrap_or_default().trim().to_owned();
        let code = fence(section, "ts").unwrap_or_else(|| panic!("{title}: no ```ts block"));
        let expect =
            fence(section, "expect").unwrap_or_else(|| panic!("{title}: no ```expect block"));
        let expect: Vec<(String, String)> = expect
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(|line| {
                let (key, value) = line.split_once(':').unwrap_or((line, ""));
                (key.trim().to_owned(), value.trim().to_owned())
            })
            .collect();
        assert!(
            expect.iter().any(|(key, _)| key != "timeout"),
            "{title}: expects nothing"
        );
        cases.push(Case {
            title,
            code,
            expect,
        });
    }
    cases
}

fn fence(section: &str, kind: &str) -> Option<String> {
    let start = section.find(&format!("\n```{kind}\n"))? + kind.len() + 5;
    let end = section[start..].find("\n```").map(|end| start + end)?;
    Some(section[start..end].to_owned())
}
