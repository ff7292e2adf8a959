//! Time limits of scripts and calls compose, and file calls have a limit of their own.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::mpsc;
use std::time::Duration;

use selvedge_protocol::{CallStatus, ErrorCode, EventSink, RuntimeEvent, ScriptToolCallOutput};
use serde_json::json;

use support::TestToolbox;

/// Time limit of the scripts in these tests.
const SCRIPT_LIMIT: Duration = Duration::from_millis(1500);

/// Runs a script whose command reads the pipe `gate`, which is opened only after the script's time
/// limit has passed twice.
fn run_past_the_script_limit(fixture: &mut TestToolbox, source: &str) -> ScriptToolCallOutput {
    let gate = fixture.path("work/gate");
    rustix::fs::mkfifoat(rustix::fs::CWD, &gate, rustix::fs::Mode::from(0o600)).unwrap();
    fixture.limits.timeout_ms = SCRIPT_LIMIT.as_millis() as u64;
    let (started, wait) = mpsc::channel();
    fixture.events = EventSink::new(move |event| {
        if matches!(event, RuntimeEvent::CallStarted { .. }) {
            let _ = started.send(());
        }
    });
    let opener = std::thread::spawn(move || {
        wait.recv().unwrap();
        std::thread::sleep(SCRIPT_LIMIT * 2);
        // Fails if no command reads the pipe any more.
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
        let _ = rustix::fs::open(&gate, flags, rustix::fs::Mode::empty());
    });
    let output = fixture.script(source);
    opener.join().unwrap();
    output
}

#[test]
fn a_command_with_a_longer_time_limit_is_not_killed_by_the_limit_of_the_script() {
    let mut fixture = TestToolbox::new();
    let output = run_past_the_script_limit(
        &mut fixture,
        "return (await tools.exec({ command: ['cat', 'gate'], timeoutMs: 120_000 })).exitCode",
    );
    assert_eq!(output.value(), Some(json!(0)), "{:?}", output.error);
}

#[test]
fn a_script_that_computes_after_a_long_call_is_still_limited() {
    let mut fixture = TestToolbox::new();
    let output = run_past_the_script_limit(
        &mut fixture,
        "await tools.exec({ command: ['cat', 'gate'] }); for (;;) {}",
    );
    let error = output.error.unwrap();
    assert_eq!(error.code, ErrorCode::ScriptTimeoutError);
    assert!(error.message.contains("1500 ms"), "{}", error.message);
    assert_eq!(output.calls[0].status, CallStatus::Done);
}

#[test]
fn the_limit_of_the_whole_run_ends_a_call_with_a_longer_limit() {
    let mut fixture = TestToolbox::new();
    fixture.limits.timeout_ms = 300;
    fixture.limits.max_timeout_ms = 900;
    let output = fixture
        .script("await tools.exec({ command: ['sh', '-c', 'setsid sleep 600 & wait'], timeoutMs: 120_000 })");
    let error = output.error.unwrap();
    assert_eq!(error.code, ErrorCode::ScriptTimeoutError);
    assert!(error.message.contains("900 ms"), "{}", error.message);
    assert_eq!(output.calls[0].status, CallStatus::Aborted);
}

#[test]
fn a_search_that_reaches_its_time_limit_returns_no_partial_result() {
    let mut fixture = TestToolbox::new();
    for folder in 0..40 {
        let folder = fixture.path(&format!("work/many/{folder}"));
        std::fs::create_dir_all(&folder).unwrap();
        for file in 0..100 {
            std::fs::write(folder.join(format!("{file}.txt")), "needle\n").unwrap();
        }
    }
    for (tool, call) in [
        (
            "grep_files",
            "tools.grepFiles({ pattern: 'needle', limit: 9000 })",
        ),
        (
            "file_search",
            "tools.fileSearch({ pattern: '*.txt', limit: 9000 })",
        ),
        (
            "file_search",
            "tools.fileSearch({ pattern: 'txt', limit: 9000 })",
        ),
        (
            "list_dir",
            "tools.listDir({ path: '.', recursive: true, limit: 9000 }).then((it) => it.entries)",
        ),
    ] {
        fixture.limits.tool_timeouts_ms = [(tool.to_owned(), 1)].into();
        let output = fixture.script(&format!("return (await {call}).length"));
        let error = output.error.as_ref().map(|error| error.code);
        assert_eq!(error, Some(ErrorCode::ToolTimeoutError), "{output:?}");
    }
}

#[test]
fn one_script_can_make_hundreds_of_file_calls() {
    let fixture = TestToolbox::new();
    let output = fixture.script(
        "for (let i = 0; i < 100; i++) {
            await tools.writeFile({ path: `f${i}`, content: `v${i}` });
            const { text } = await tools.readFile({ path: `f${i}` });
            if (!text.startsWith(`v${i}`)) throw new Error(text);
         }
         return (await tools.listDir({ path: '.', limit: 500 })).entries.length >= 100",
    );
    assert_eq!(output.value(), Some(json!(true)), "{:?}", output.error);
    assert_eq!(output.calls.len(), 201);
}

#[test]
fn the_33rd_command_is_refused_and_file_calls_still_run() {
    let fixture = TestToolbox::new();
    let output = fixture.script(
        "let n = 0;
         try { for (;;) { await tools.exec({ command: ['true'] }); n++ } }
         catch (e) { await tools.writeFile({ path: 'x', content: 'y' }); return [n, e.name, e.message] }",
    );
    assert_eq!(
        output.value(),
        Some(json!([
            32,
            "ToolBudgetExceededError",
            "the script reached its limit of 32 calls that leave the process"
        ])),
        "{:?}",
        output.error
    );
}

#[test]
fn file_calls_have_a_limit_of_their_own() {
    let fixture = TestToolbox::new();
    let output = fixture.script(
        "let n = 0;
         try { for (;;) { await tools.listDir({ path: '.' }); n++ } } catch (e) { return [n, e.message] }",
    );
    assert_eq!(
        output.value(),
        Some(json!([
            1000,
            "the script reached its limit of 1000 file calls"
        ])),
        "{:?}",
        output.error
    );
}

#[test]
fn what_the_sandbox_refuses_is_a_sandbox_violation() {
    let fixture = TestToolbox::new();
    let outside = fixture.path("outside/file.txt").display().to_string();
    let secret = fixture.path("private/journal").display().to_string();
    for call in [
        format!("tools.writeFile({{ path: {outside:?}, content: 'x' }})"),
        "tools.writeFile({ path: '.git/config', content: 'x' })".to_owned(),
        format!("tools.readFile({{ path: {secret:?} }})"),
    ] {
        let output = fixture.script(&format!(
            "try {{ await {call} }} catch (e) {{ return e instanceof SandboxViolationError }}"
        ));
        assert_eq!(output.value(), Some(json!(true)), "{call}: {output:?}");
    }
    let missing = fixture.script("await tools.readFile({ path: 'missing' })");
    assert_eq!(missing.error.unwrap().code, ErrorCode::ToolExecutionError);
}
