//! Scripts in Markdown files and what must come of them. A file in `cases/` holds many; adding one
//! adds no code. See `cases/README.md` for the words an `expect` block knows.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use selvedge_protocol::{ErrorCode, Limits, OutputPart, ScriptToolCallOutput};
use selvedge_script::Replay;
use serde_json::Value;
use support::{Bench, Notebook, on_a_thread};

/// Beyond its own deadline, no script may hold anybody up longer than this.
const PATIENCE: Duration = Duration::from_secs(8);

struct Case {
    title: String,
    code: String,
    expect: Vec<(String, String)>,
}

#[test]
fn scripts_as_models_write_them() {
    assert!(run_file("models.md", 30_000, 0..1) >= 50);
}

/// In two halves, which two cores run side by side.
#[test]
fn hostile_scripts_are_contained() {
    assert!(run_file("hostile.md", 300, 0..2) >= 70);
}

#[test]
fn hostile_scripts_are_contained_too() {
    assert!(run_file("hostile.md", 300, 1..2) >= 70);
}

/// Runs every n-th case from the first named: `part.start..part.end` is which of how many.
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
    let mut wrong = Vec::new();
    let notebook = Arc::new(Notebook::default());
    for case in &cases {
        let timeout_ms = case
            .expect
            .iter()
            .find(|(key, _)| key == "timeout")
            .map_or(timeout_ms, |(_, ms)| ms.parse().unwrap());
        let attempt = |timeout_ms: u64| {
            let ledger = notebook.clone();
            let bench = Bench::with(
                move |orchestrator| orchestrator.with_ledger(ledger.clone()),
                Limits {
                    timeout_ms,
                    ..Limits::default()
                },
            );
            let started = Instant::now();
            let output = bench.run_with(
                &case.code,
                bench.options(),
                Duration::from_millis(timeout_ms) + PATIENCE,
            );
            (bench, output, started.elapsed(), timeout_ms)
        };
        let (mut bench, mut output, mut took, mut timeout_ms) = attempt(timeout_ms);
        // What should end by itself has time for that, on a busy machine too.
        let in_time = |output: &ScriptToolCallOutput| {
            output
                .error
                .as_ref()
                .is_none_or(|error| error.code != ErrorCode::ScriptTimeoutError)
        };
        let ends_by_itself = |(key, wanted): &(String, String)| {
            key == "value" || key == "error" && wanted != ErrorCode::ScriptTimeoutError.as_str()
        };
        if case.expect.iter().any(ends_by_itself) && !in_time(&output) {
            (bench, output, took, timeout_ms) = attempt(30_000);
        }
        wrong.extend(case.expect.iter().filter_map(|(key, wanted)| {
            judge(&output, key, wanted).map(|problem| {
                format!(
                    "{}: {problem}\n{}",
                    case.title,
                    serde_json::to_string(&output).unwrap()
                )
            })
        }));
        if took > Duration::from_millis(timeout_ms) + Duration::from_secs(4) {
            wrong.push(format!("{}: took {took:?}", case.title));
        }
        if name == "models.md"
            && let Some(cassette) = notebook.cassette(&case.code, &output)
        {
            let again = on_a_thread(&case.title, PATIENCE, async move {
                cassette.play(Replay::default()).await.unwrap()
            });
            wrong.extend(diverged(&again).map(|words| format!("{}: {words}", case.title)));
        }
        let next = bench.run("return 'fine'");
        if next.output_json.as_deref() != Some("\"fine\"") {
            wrong.push(format!(
                "{}: the next script does not run: {:?}",
                case.title, next.error
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} cases:\n\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n\n")
    );
    cases.len()
}

fn diverged(output: &ScriptToolCallOutput) -> Option<String> {
    let error = output.error.as_ref()?;
    (error.code == ErrorCode::ReplayDivergenceError).then(|| error.message.clone())
}

/// What is wrong, if anything.
fn judge(output: &ScriptToolCallOutput, key: &str, wanted: &str) -> Option<String> {
    let error = output.error.as_ref();
    let is = |ok: bool| (!ok).then(|| format!("expected {key}: {wanted}"));
    let json = |text: &str| {
        serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    };
    match key {
        "value" => is(error.is_none() && output.value().unwrap_or(Value::Null) == json(wanted)),
        "error" => is(error.is_some_and(|error| error.code.as_str() == wanted)),
        "message" => is(error.is_some_and(|error| error.message.contains(wanted))),
        "hint" => is(error.is_some_and(|error| {
            error.message.contains(wanted)
                || error.suggestions.iter().any(|hint| hint.contains(wanted))
        })),
        "line" => is(error
            .and_then(|error| error.line)
            .map(|line| line.to_string())
            .as_deref()
            == Some(wanted)),
        "status" => {
            is(serde_json::to_value(output.status).unwrap() == Value::String(wanted.to_owned()))
        }
        "warning" => is(output
            .warnings
            .iter()
            .any(|warning| warning.contains(wanted))),
        "warnings" => is(output.warnings.len().to_string() == wanted),
        "log" => is(output.logs.iter().any(|log| log.message.contains(wanted))),
        "text" => is(output
            .output
            .iter()
            .any(|part| matches!(part, OutputPart::Text { text } if text.contains(wanted)))),
        "calls" => {
            let calls: Vec<String> = output
                .calls
                .iter()
                .map(|call| format!("{} {}", call.tool, call.status.as_str()))
                .collect();
            is(calls.join(", ") == wanted)
        }
        // Ends by itself or is stopped: whatever it answers, it must not be the word of a successful attack.
        "contained" => is(error.is_some()
            || output
                .output_json
                .as_deref()
                .is_none_or(|json| !json.contains("ESCAPED"))),
        "timeout" => None,
        other => panic!("an expect block does not know the word {other}"),
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
