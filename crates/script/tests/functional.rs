//! F1–F30: what scripts can do, and which errors they get.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use selvedge_protocol::{
    CallDecision, CallStatus, ErrorCode, Limits, RunStatus, RuntimeEvent, ScriptMode,
    ScriptModeSettings,
};
use selvedge_script::RunOptions;
use selvedge_script::detect::{Segment, detect};
use serde_json::{Value, json};
use support::{FixedApprover, TestFixture};

const TEST_TIMEOUT: Duration = Duration::from_secs(30);

fn with_approver(approver: &FixedApprover, limits: Limits) -> TestFixture {
    let approver = approver.clone();
    TestFixture::with(
        move |orchestrator| orchestrator.with_approver(Arc::new(approver.clone())),
        limits,
    )
}

#[test]
fn f01_basic_execution() {
    let fixture = TestFixture::new();
    let output = fixture.run("return await tools.applyPatch({patch: '*** Begin Patch'})");
    assert_eq!(
        output.value().unwrap(),
        json!({"success": true, "summary": "1 lines"})
    );
    assert_eq!(*fixture.seen.patches.lock().unwrap(), ["*** Begin Patch"]);
    assert_eq!(
        (output.calls.len(), output.metadata.tool_calls_made),
        (1, 1)
    );
}

#[test]
fn f02_text_around_a_script_is_preserved() {
    let message = "Let me see.\n\n<tool-calls>\nreturn 1\n</tool-calls>\n\nDone — ü.";
    let segments = detect(message);
    assert!(
        matches!(&segments[..], [Segment::Text(a), Segment::Script(block), Segment::Text(b)]
        if a == "Let me see.\n\n" && block.code == "return 1" && b == "\n\nDone — ü.")
    );
}

#[test]
fn f03_typescript() {
    let source = "
        enum Colour { Red, Green = 5, Blue }
        interface Point { x: number; y?: number }
        type Pair<T> = [T, T];
        class Counter { static made = 0; \
            constructor(private readonly start: number, public name = 'c') { Counter.made++ } \
            value(): number { return this.start } }
        abstract class Shape { abstract area(): number }
        class Square extends Shape { constructor(public side: number) { super() } \
        override area() { return this.side ** 2 } }
        namespace Names { export const first = 'Ada' }
        function pick<T extends object, K extends keyof T>(o: T, k: K): T[K] { return o[k]! }
        const p = { x: 1 } satisfies Point as Point;
        const pair: Pair<number> = [1, 2];
        let declared!: string; declared = 'later';
        const sleep = async (ms: number): Promise<void> => { await tools.sleep({ ms }) };
        await sleep(1);
        const optional = p?.y ?? 7;
        return [Colour.Blue, Colour[0], pick(p, 'x'), pair.length, new Counter(3).value(), \
        Counter.made, new Square(3).area(), Names.first, declared, optional] as const;
    ";
    assert_eq!(
        TestFixture::new().value(source),
        json!([6, "Red", 1, 2, 3, 1, 9, "Ada", "later", 7])
    );
}

#[test]
fn f04_calls_run_in_parallel() {
    let fixture = TestFixture::new();
    let started = Instant::now();
    let value = fixture
        .value("return await Promise.all([1, 2, 3].map(n => tools.sleep({ms: 300, value: n})))");
    assert_eq!(value, json!([1, 2, 3]));
    assert_eq!(fixture.seen.max_running.load(Ordering::SeqCst), 3);
    assert!(
        started.elapsed() < Duration::from_millis(850),
        "{:?}",
        started.elapsed()
    );
}

#[test]
fn f05_calls_that_lose_a_race_are_cancelled_at_once() {
    let fixture = TestFixture::new();
    let source = "
        const winner = await Promise.race([tools.sleep({ms: 10, value: 'fast'}), \
        tools.sleep({ms: 60_000, value: 'slow'})]);
        await tools.sleep({ms: 50});
        return winner";
    let output = fixture.run(source);
    assert_eq!(output.value().unwrap(), json!("fast"));
    assert_eq!(output.calls[1].status, CallStatus::Aborted);
    assert_eq!(fixture.seen.stopped.load(Ordering::SeqCst), 1);
    assert!(output.warnings.is_empty(), "{:?}", output.warnings);
    // A timer can win too.
    let source = "const timeout = new Promise(r => setTimeout(() => r('late'), 20)); \
        return await Promise.race([tools.sleep({ms: 60_000}), timeout])";
    let output = fixture.run(source);
    assert_eq!(
        (output.value().unwrap(), output.calls[0].status),
        (json!("late"), CallStatus::Aborted)
    );
    // A call that the script still refers to continues.
    let source = "const slow = tools.sleep({ms: 80, value: 'slow'}); \
        const first = await Promise.race([slow, tools.sleep({ms: 5, value: 'fast'})]); \
        return [first, await slow]";
    assert_eq!(fixture.value(source), json!(["fast", "slow"]));
    // A promise pool works.
    let source = "
        const executing = new Set(), results = [];
        for (const n of [1, 2, 3, 4, 5, 6]) {
            const p = tools.sleep({ms: 5 * n, value: n}) \
                .then(v => { executing.delete(p); results.push(v) });
            executing.add(p);
            if (executing.size >= 2) await Promise.race(executing);
        }
        await Promise.all(executing);
        return results.length";
    assert_eq!(fixture.value(source), json!(6));
}

#[test]
fn f06_error_handling() {
    let source = "try { await tools.fail({message: 'disk full'}) } catch (e) {
        return [e instanceof Error, e.name, e.message, e.code, e.toolName, e.callId, e.retryable, \
        e.suggestions.length, e.stack.includes('script.ts:1:')] }";
    assert_eq!(
        TestFixture::new().value(source),
        json!([
            true,
            "ToolExecutionError",
            "disk full",
            "ToolExecutionError",
            "fail",
            "tool_1",
            false,
            0,
            true
        ])
    );
}

#[test]
fn f07_results_can_be_used_in_further_calls() {
    let source = "const files = await tools.fileSearch({pattern: '*.test.ts'});
        const texts = await Promise.all(files.map(f => tools.readFile({path: f.path})));
        return texts.map((t, i) => files[i].path + ':' + t.totalLines)";
    assert_eq!(
        TestFixture::new().value(source),
        json!(["tests/a.test.ts:1", "tests/b.test.ts:2"])
    );
}

#[test]
fn f08_custom_return() {
    let output = TestFixture::new().run(
        "return {message: 'two fixed', \
         nested: {list: [1, {deep: true}], none: null, when: new Date(0)}}",
    );
    assert_eq!(
        output.value().unwrap(),
        json!({
            "message": "two fixed",
            "nested": {
                "list": [1, {"deep": true}],
                "none": null,
                "when": "1970-01-01T00:00:00.000Z",
            },
        })
    );
    assert_eq!(output.summary.as_deref(), Some("two fixed"));
}

#[test]
fn f09_thinking_script_and_text_keep_their_order() {
    let message = "<thinking>plan</thinking>one\n<tool-calls>return 1</tool-calls>\ntwo\n\
        ```ts tool-calls\nreturn 2\n```\nthree";
    let kinds: Vec<&str> = detect(message)
        .iter()
        .map(|segment| match segment {
            Segment::Text(_) => "text",
            Segment::Script(_) => "script",
            Segment::Malformed { .. } => "malformed",
            Segment::Reasoning(_) | Segment::EndOfReasoning(_) => "reasoning",
        })
        .collect();
    assert_eq!(
        kinds,
        ["reasoning", "text", "script", "text", "script", "text"]
    );
}

#[test]
fn f10_progress_events() {
    let fixture = TestFixture::new();
    fixture.value(
        "context.emitProgress('one'); await tools.sleep({ms: 520}); \
        context.telemetry.emitProgress('two', 'warn'); return 1",
    );
    let events = fixture.events.lock().unwrap();
    let messages: Vec<&str> = events
        .iter()
        .filter_map(|event| match event {
            RuntimeEvent::ScriptProgress { message, .. } => Some(message.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(messages, ["one", "two"]);
}

#[test]
fn f11_approval_pauses_the_script_and_its_clock() {
    let approver = FixedApprover {
        delay: Duration::from_millis(700),
        ..FixedApprover::new(CallDecision::Once)
    };
    // The person takes longer than the script's time limit.
    let fixture = with_approver(
        &approver,
        Limits {
            timeout_ms: 300,
            ..Limits::default()
        },
    );
    let output = fixture.run(
        "const r = await tools.exec({command: ['rm', 'x'], approvalContext: 'clean up'}); \
         return r.exitCode",
    );
    assert_eq!(output.error, None);
    assert_eq!(output.value().unwrap(), json!(0));
    let call = approver.asked.lock().unwrap()[0].calls[0].clone();
    assert_eq!(
        (
            call.tool.as_str(),
            call.reason.as_str(),
            call.context.as_deref(),
            call.line
        ),
        ("exec", "removes files", Some("clean up"), Some(1))
    );
    assert!(call.snippet.as_deref().unwrap().contains("> "));
    // The limit of the run counts while another call is running.
    let fixture = with_approver(
        &approver,
        Limits {
            max_timeout_ms: 300,
            ..Limits::default()
        },
    );
    let (code, _) = fixture.error(
        "await Promise.all([tools.exec({command: ['rm', 'x']}), tools.sleep({ms: 60_000})])",
    );
    assert_eq!(code, "ScriptTimeoutError");
}

#[test]
fn f11_calls_of_one_await_are_one_question() {
    let approver = FixedApprover::new(CallDecision::Once);
    let fixture = with_approver(&approver, Limits::default());
    let source = "const asked = [1, 2, 3, 4, 5, 6] \
        .map(n => tools.exec({command: ['rm', String(n)]})); \
        const r = await Promise.all(asked.concat(tools.exec({command: ['ls']}))); return r.length";
    assert_eq!(fixture.value(source), json!(7));
    let asked = approver.asked.lock().unwrap();
    assert_eq!(
        (asked.len(), asked[0].calls.len()),
        (1, 6),
        "the harmless call needs no approval, the others are one question"
    );
}

#[test]
fn f11_an_approval_for_the_script_covers_later_calls() {
    let approver = FixedApprover::new(CallDecision::SimilarCalls);
    let fixture = with_approver(&approver, Limits::default());
    assert_eq!(
        fixture.value(
            "for (const n of [1, 2, 3]) await tools.exec({command: ['rm', String(n)]}); return 'ok'"
        ),
        json!("ok")
    );
    assert_eq!(approver.asked.lock().unwrap().len(), 1);
    // Another script asks again.
    fixture.value("await tools.exec({command: ['rm', 'x']}); return 1");
    assert_eq!(approver.asked.lock().unwrap().len(), 2);
}

#[test]
fn f12_a_denied_approval_is_an_error_that_can_be_caught() {
    let approver = FixedApprover::new(CallDecision::Deny(Some("not that folder".into())));
    let fixture = with_approver(&approver, Limits::default());
    let source = "try { await tools.exec({command: ['rm', '-rf', '/']}); return 'ran' } \
        catch (e) { return [e.name, e.message] }";
    assert_eq!(
        fixture.value(source),
        json!(["ApprovalDeniedError", "exec was denied: not that folder"])
    );
    // No answer in time, and no approver: two other errors.
    let fixture = with_approver(
        &FixedApprover::without_answer(),
        Limits {
            approval_timeout_ms: 50,
            ..Limits::default()
        },
    );
    assert_eq!(
        fixture.error("await tools.exec({command: ['rm', 'x']})").0,
        "ApprovalTimeoutError"
    );
    let (code, message) = TestFixture::new().error("await tools.exec({command: ['rm', 'x']})");
    assert_eq!(
        (code.as_str(), message.as_str()),
        (
            "ApprovalDeniedError",
            "exec needs approval: removes files; no approver is available"
        )
    );
    let never = TestFixture::with(
        |orchestrator| orchestrator.with_policy(selvedge_protocol::ApprovalPolicy::Never),
        Limits::default(),
    );
    assert!(
        never
            .error("await tools.exec({command: ['rm', 'x']})")
            .1
            .contains("`never`")
    );
    assert_eq!(
        never.value("return (await tools.exec({command: ['ls']})).exitCode"),
        json!(0)
    );
}

#[test]
fn f12_policy_untrusted_asks_about_guarded_calls() {
    let approver = FixedApprover::new(CallDecision::Once);
    let shared_approver = approver.clone();
    let fixture = TestFixture::with(
        move |orchestrator| {
            orchestrator
                .with_policy(selvedge_protocol::ApprovalPolicy::Untrusted)
                .with_approver(Arc::new(shared_approver.clone()))
        },
        Limits::default(),
    );
    fixture.value(
        "await tools.exec({command: ['ls']}); await tools.readFile({path: 'README.md'}); return 1",
    );
    assert_eq!(approver.asked.lock().unwrap().len(), 1);
}

#[test]
fn f13_outputs_are_items() {
    let fixture = TestFixture::new();
    let item = fixture.harness.new_script_call("return 1", "call_7");
    let json = serde_json::to_value(&item).unwrap();
    assert_eq!(
        (
            json["type"].as_str(),
            json["call_id"].as_str(),
            json["language"].as_str()
        ),
        (Some("script_tool_call"), Some("call_7"), Some("ts"))
    );
    assert_eq!(json["source_sha256"].as_str().unwrap().len(), 64);
    let options = RunOptions {
        call_id: Some("call_7".into()),
        ..fixture.options()
    };
    let output = serde_json::to_value(fixture.run_with(
        "await tools.echo({value: 1}); text('shown'); console.warn('w'); return {a: 1}",
        options,
        TEST_TIMEOUT,
    ))
    .unwrap();
    let keys: Vec<&str> = output
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        keys,
        [
            "type",
            "id",
            "call_id",
            "status",
            "output_json",
            "error",
            "summary",
            "output",
            "calls",
            "logs",
            "warnings",
            "metadata"
        ]
    );
    assert_eq!(output["type"], json!("script_tool_call_output"));
    assert_eq!(output["call_id"], json!("call_7"));
    assert_eq!(output["output_json"], json!("{\"a\":1}"));
    assert_eq!(output["output"], json!([{"type": "text", "text": "shown"}]));
    assert_eq!(output["logs"], json!([{"level": "warn", "message": "w"}]));
    let call = &output["calls"][0];
    assert_eq!(
        (
            &call["id"],
            &call["tool"],
            &call["status"],
            &call["reused"],
            &call["line"]
        ),
        (
            &json!("tool_1"),
            &json!("echo"),
            &json!("done"),
            &json!(false),
            &json!(1)
        )
    );
    assert!(call["duration_ms"].is_number() && output["metadata"]["duration_ms"].is_number());
}

#[test]
fn f14_timeout_override() {
    let fixture = TestFixture::limited(Limits {
        timeout_ms: 100,
        max_timeout_ms: 2_000,
        ..Limits::default()
    });
    assert_eq!(
        fixture
            .error("await new Promise(r => setTimeout(r, 400))")
            .0,
        "ScriptTimeoutError"
    );
    let longer = RunOptions {
        timeout: Some(Duration::from_secs(1)),
        ..fixture.options()
    };
    assert_eq!(
        fixture
            .run_with(
                "await new Promise(r => setTimeout(r, 400)); return 1",
                longer,
                TEST_TIMEOUT
            )
            .status,
        RunStatus::Completed
    );
    // The pragma sets a limit too. No limit exceeds the maximum.
    assert_eq!(
        fixture.value(
            "// @exec: {\"timeout_ms\": 1000}\n\
             await new Promise(r => setTimeout(r, 300)); return 1"
        ),
        json!(1)
    );
    let too_long = RunOptions {
        timeout: Some(Duration::from_secs(600)),
        ..fixture.options()
    };
    let started = Instant::now();
    assert_eq!(
        fixture
            .run_with(
                "await new Promise(r => setTimeout(r, 60_000))",
                too_long,
                TEST_TIMEOUT
            )
            .error
            .unwrap()
            .code,
        ErrorCode::ScriptTimeoutError
    );
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn f15_namespaced_tool() {
    let fixture = TestFixture::new();
    assert_eq!(
        fixture.value("return (await tools.mcp.github.listIssues({})).map(i => i.title)"),
        json!(["bug", "idea"])
    );
    assert_eq!(
        fixture.value("return (await tools['mcp']['github']['list_issues']()).length"),
        json!(2)
    );
    let error = fixture
        .run("await tools.mcp.github.listIsues()")
        .error
        .unwrap();
    assert_eq!(
        (error.code, error.suggestions),
        (
            ErrorCode::ToolNotFoundError,
            vec!["mcp.github.listIssues".to_owned()]
        )
    );
}

#[test]
fn f16_state_is_clean_between_runs() {
    let fixture = TestFixture::new();
    for _ in 0..50 {
        assert_eq!(
            fixture.value(
                "const seen = typeof leak; try { leak = 1 } catch {} try { globalThis.leak = 1 } \
                 catch {} return seen"
            ),
            json!("undefined")
        );
    }
}

#[test]
fn f17_disabled_mode_rejects_scripts() {
    let fixture = TestFixture::new();
    let output = fixture.run_with(
        "return 1",
        RunOptions {
            mode: Some(ScriptMode::Disabled),
            ..fixture.options()
        },
        TEST_TIMEOUT,
    );
    assert_eq!(output.status, RunStatus::Rejected);
    assert!(output.error.unwrap().message.contains("disabled"));
    let modes = |flag, model_or_provider, global| {
        ScriptModeSettings {
            flag,
            model_or_provider,
            global,
        }
        .resolve()
    };
    assert_eq!(
        modes(
            Some(ScriptMode::Enabled),
            Some(ScriptMode::Disabled),
            Some(ScriptMode::DryRun)
        ),
        ScriptMode::Enabled
    );
    assert_eq!(
        modes(None, Some(ScriptMode::Disabled), Some(ScriptMode::DryRun)),
        ScriptMode::Disabled
    );
    assert_eq!(
        modes(None, None, Some(ScriptMode::DryRun)),
        ScriptMode::DryRun
    );
    assert_eq!(modes(None, None, None), ScriptMode::Enabled);
}

#[test]
fn f18_dry_run_reports() {
    let fixture = TestFixture::new();
    let source = "const name = 'x';\nawait tools.readFile({path: name, limit: 3});\n\
        if (name) await tools.exec({command: ['ls']});\nawait tools.readFle({});";
    let output = fixture.run_with(
        source,
        RunOptions {
            mode: Some(ScriptMode::DryRun),
            ..fixture.options()
        },
        TEST_TIMEOUT,
    );
    let report: Value = output.value().unwrap();
    assert_eq!(report["valid"], json!(false));
    assert_eq!(
        report["calls"][0],
        json!({
            "tool": "read_file",
            "line": 2,
            "args": {"limit": 3},
            "dynamic": ["path"],
            "readOnly": true,
        })
    );
    assert_eq!(
        (&report["calls"][1]["tool"], &report["calls"][1]["line"]),
        (&json!("exec"), &json!(3))
    );
    assert_eq!(
        (&report["errors"][0]["code"], &report["errors"][0]["line"]),
        (&json!("ToolNotFoundError"), &json!(4))
    );
    assert!(output.calls.is_empty());
}

#[test]
fn f19_fenced_block() {
    let segments = detect("Now:\n```ts tool-calls\nconst a = `x`;\nreturn a\n```\n");
    assert!(
        matches!(&segments[1], Segment::Script(block) if block.code == "const a = `x`;\nreturn a")
    );
}

#[test]
fn f20_several_blocks_run_in_order() {
    let fixture = TestFixture::new();
    let session = selvedge_script::ScriptStore::default();
    let mut values = Vec::new();
    for segment in detect(
        "<tool-calls>store('n', 1); return load('n')</tool-calls>\nthen\n\
         <tool-calls>store('n', load('n') + 1); return load('n')</tool-calls>",
    ) {
        if let Segment::Script(block) = segment {
            let options = RunOptions {
                store: session.clone(),
                ..fixture.options()
            };
            values.push(
                fixture
                    .run_with(&block.code, options, TEST_TIMEOUT)
                    .value()
                    .unwrap(),
            );
        }
    }
    assert_eq!(values, [json!(1), json!(2)]);
}

#[test]
fn f21_context() {
    let fixture = TestFixture::new();
    let facts = selvedge_script::ScriptContext {
        conversation_id: "c".into(),
        session_id: "s".into(),
        turn_id: "t".into(),
        working_directory: "/project".into(),
        args: vec!["word".into()],
        provider: "openai".into(),
        model: "m".into(),
    };
    let source = "await tools.echo({value: 1});
        const { sandbox, approvals } = context;
        return [context.conversationId, context.sessionId, context.turnId,
            context.scriptId.startsWith('scr_'), context.workingDirectory, context.provider,
            context.model, sandbox.timeoutMs, sandbox.memoryMb, sandbox.remainingToolBudget,
            sandbox.maxConcurrentToolCalls, sandbox.mode,
            context.capabilities.tools.includes('readFile'), approvals.required,
            typeof approvals.lastRequestId, typeof context.telemetry.emitProgress]";
    let output = fixture.run_with(
        source,
        RunOptions {
            context: facts,
            ..fixture.options()
        },
        TEST_TIMEOUT,
    );
    assert_eq!(
        output.value().unwrap(),
        json!([
            "c",
            "s",
            "t",
            true,
            "/project",
            "openai",
            "m",
            30000,
            96,
            31,
            4,
            "enabled",
            true,
            true,
            "undefined",
            "function"
        ])
    );
}

#[test]
fn f22_a_script_may_return_nothing() {
    let output = TestFixture::new().run("const x = 1");
    assert_eq!(
        (output.status, output.output_json, output.error),
        (RunStatus::Completed, None, None)
    );
}

#[test]
fn f23_stdout_and_stderr() {
    let value = TestFixture::new().value(
        "const r = await tools.exec({command: ['npm', 'test', 'b']}); \
         return [r.exitCode, r.stdout, r.stderr]",
    );
    assert_eq!(value, json!([1, "ran npm test b\n", "1 test failed"]));
}

#[test]
fn f24_wrong_arguments_are_rejected_before_anything_runs() {
    let fixture = TestFixture::new();
    for (source, line, part) in [
        (
            "await tools.applyPatch({patch: 'x'});\nawait tools.readFile({pth: 'x'})",
            2,
            "there is no field `pth`: did you mean `path`?",
        ),
        (
            "await tools.applyPatch({patch: 'x'});\n\nawait tools.readFile({})",
            3,
            "the field `path` is missing",
        ),
        (
            "await tools.applyPatch({patch: 'x'});\n\
             await tools.readFile({\n  path: 'x',\n  limit: 'ten' })",
            4,
            "is not of type",
        ),
        (
            "await tools.applyPatch({patch: 'x'});\nawait tools.exec({command: {line: 'ls'}})",
            2,
            "`command`: {\"line\":\"ls\"} is not of type `string | string[]`",
        ),
    ] {
        let output = fixture.run(source);
        assert_eq!(output.status, RunStatus::Rejected, "{source}");
        let error = output.error.unwrap();
        assert_eq!(
            (error.code, error.line),
            (ErrorCode::ToolValidationError, Some(line)),
            "{source}"
        );
        assert!(error.message.contains(part), "{}", error.message);
    }
    assert!(fixture.seen.patches.lock().unwrap().is_empty());
    // Arguments that are only known at run time fail when the call is made, and can be caught.
    let source = "const args: any = {pth: 'x'}; try { await tools.readFile(args) } catch (e) { \
        return [e.name, e.suggestions] }";
    assert_eq!(
        fixture.value(source),
        json!(["ToolValidationError", ["path"]])
    );
    // Both spellings of a field are accepted.
    assert_eq!(
        fixture.value("return (await tools.exec({command: ['ls'], timeoutMs: 5})).exitCode"),
        json!(0)
    );
    assert_eq!(
        fixture.value("return (await tools.exec({command: ['ls'], timeout_ms: 5})).exitCode"),
        json!(0)
    );
}

#[test]
fn f25_helpers() {
    let source = "
        const pad = (n: number) => String(n).padStart(3, '0');
        async function* numbers() { for (let i = 0; i < 3; i++) yield i }
        class Stack<T> { #items: T[] = []; push(x: T) { this.#items.push(x); return this } \
            get size() { return this.#items.length } }
        const out = []; for await (const n of numbers()) out.push(pad(n));
        return [out.join(), new Stack<number>().push(1).push(2).size, hoisted()];
        function hoisted() { return 'hoisted' }";
    assert_eq!(
        TestFixture::new().value(source),
        json!(["000,001,002", 2, "hoisted"])
    );
}

#[test]
fn f26_progress_throttling() {
    let fixture = TestFixture::new();
    fixture.value("for (let i = 0; i < 1000; i++) context.emitProgress('p' + i); return 1");
    let count = |fixture: &TestFixture| {
        fixture
            .events
            .lock()
            .unwrap()
            .iter()
            .filter(|event| matches!(event, RuntimeEvent::ScriptProgress { .. }))
            .count()
    };
    assert_eq!(count(&fixture), 1);
    let fixture = TestFixture::limited(Limits {
        progress_interval_ms: 0,
        ..Limits::default()
    });
    fixture.value("for (let i = 0; i < 1000; i++) context.emitProgress('p' + i); return 1");
    assert_eq!(count(&fixture), 50);
}

#[test]
fn f27_a_timeout_keeps_partial_results() {
    let fixture = TestFixture::limited(Limits {
        max_timeout_ms: 400,
        ..Limits::default()
    });
    let output = fixture.run(
        "for (let i = 0; i < 3; i++) await tools.echo({value: i});\n\
         await tools.sleep({ms: 60_000});",
    );
    let error = output.error.clone().unwrap();
    assert_eq!(error.code, ErrorCode::ScriptTimeoutError);
    assert_eq!(
        (
            &error.metadata["completedTools"],
            &error.metadata["pendingTools"]
        ),
        (&json!(3), &json!(1))
    );
    assert_eq!(error.script_id.as_deref(), Some(output.id.as_str()));
    assert!(error.metadata["elapsedMs"].as_f64().unwrap() >= 400.0);
    assert_eq!(
        output.value().unwrap()["partialResults"][2],
        json!({"callId": "tool_3", "tool": "echo", "value": 2})
    );
    let statuses: Vec<CallStatus> = output.calls.iter().map(|call| call.status).collect();
    assert_eq!(
        statuses,
        [
            CallStatus::Done,
            CallStatus::Done,
            CallStatus::Done,
            CallStatus::Aborted
        ]
    );
    assert_eq!(fixture.seen.stopped.load(Ordering::SeqCst), 1);
}

#[test]
fn f28_unknown_tool() {
    let fixture = TestFixture::new();
    let output = fixture
        .run("await tools.applyPatch({patch: 'x'});\nconst f = await tools.redFile({path: 'x'})");
    assert_eq!(output.status, RunStatus::Rejected);
    let error = output.error.unwrap();
    assert_eq!(
        (error.code, error.line, error.column),
        (ErrorCode::ToolNotFoundError, Some(2), Some(17))
    );
    assert!(
        error.message.contains("did you mean `readFile`?"),
        "{}",
        error.message
    );
    assert!(fixture.seen.patches.lock().unwrap().is_empty());
    // A name that is only known at run time throws at once, and can be caught.
    let source =
        "const name = 'redFile'; try { tools[name] } catch (e) { return [e.name, e.suggestions] }";
    assert_eq!(
        fixture.value(source),
        json!(["ToolNotFoundError", ["readFile"]])
    );
    // A script that tests for the tool is not rejected.
    assert_eq!(
        fixture.value("return 'webSearch' in tools ? await tools.webSearch({}) : 'no web'"),
        json!("no web")
    );
}

#[test]
fn f29_syntax_error() {
    let fixture = TestFixture::new();
    for (source, line, column) in [
        ("const a = 1;\nconst b = ;", 2, 11),
        ("return 1;\n}", 2, 1),
        ("})(); while (true) {} (() => {", 1, 1),
        ("let a = 1; let a = 2;", 1, 5),
        ("const s = 'unterminated", 1, 11),
        ("await tools.echo({value: 1}", 1, 28),
    ] {
        let output = fixture.run(source);
        assert_eq!(output.status, RunStatus::Rejected, "{source}");
        let error = output.error.unwrap();
        assert_eq!(
            (error.code, error.line, error.column),
            (ErrorCode::ScriptSyntaxError, Some(line), Some(column)),
            "{source}: {}",
            error.message
        );
    }
}

#[test]
fn f30_tool_budget() {
    let fixture = TestFixture::new();
    let source = "let n = 0; try { for (;;) { await tools.echo({value: n}); n++ } } \
        catch (e) { return [n, e.name] }";
    assert_eq!(
        fixture.value(source),
        json!([32, "ToolBudgetExceededError"])
    );
    let output = fixture
        .run("await Promise.all(Array.from({length: 40}, (_, i) => tools.echo({value: i})))");
    assert_eq!(
        output.error.as_ref().unwrap().code,
        ErrorCode::ToolBudgetExceededError
    );
    assert_eq!(output.metadata.tool_calls_made, 32);
    assert_eq!(output.calls.len(), 40);
}
