//! S1–S20: what scripts must not be able to do.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use selvedge_protocol::{CallStatus, ErrorCode, Limits, RunStatus, ScriptMode};
use serde_json::{Value, json};
use support::TestFixture;

fn code(fixture: &TestFixture, source: &str) -> String {
    fixture.error(source).0
}

#[test]
fn s01_prototype_pollution() {
    let fixture = TestFixture::new();
    for target in [
        "Object",
        "Array",
        "(() => {}).constructor",
        "Promise",
        "Map",
        "String",
    ] {
        let source = format!(
            "try {{ ({target}).prototype.hack = 1; return 'open' }} catch (e) {{ return [e.name, \
             ({{}}).hack === undefined] }}"
        );
        assert_eq!(
            fixture.value(&source),
            json!(["TypeError", true]),
            "{target}"
        );
    }
    assert_eq!(
        fixture.value("try { ({}).__proto__.hack = 1; return 'open' } catch (e) { return e.name }"),
        json!("TypeError")
    );
}

#[test]
fn s02_frozen_tools() {
    let fixture = TestFixture::new();
    for change in [
        "tools.applyPatch = null",
        "delete tools.applyPatch",
        "tools.extra = 1",
        "Object.defineProperty(tools, 'exec', {value: 1})",
        "tools.exec.call = null",
        "tools = {}",
        "globalThis.tools = {}",
        "tools.mcp.github = 1",
    ] {
        let source = format!("try {{ {change}; return 'open' }} catch (e) {{ return e.name }}");
        assert_eq!(fixture.value(&source), json!("TypeError"), "{change}");
    }
    assert_eq!(fixture.value("return Object.isFrozen(tools)"), json!(true));
}

#[test]
fn s03_banned_require() {
    let fixture = TestFixture::new();
    let output = fixture.run("const fs = require('fs'); return fs");
    assert_eq!(output.status, RunStatus::Rejected);
    let error = output.error.unwrap();
    assert_eq!(
        (error.code, error.line, error.column),
        (ErrorCode::ScriptRejectedError, Some(1), Some(12))
    );
    assert_eq!(
        fixture.value("// require('fs')\nreturn \"require('fs')\""),
        json!("require('fs')")
    );
}

#[test]
fn s04_banned_import() {
    let fixture = TestFixture::new();
    for source in [
        "import('fs')",
        "await import('fs')",
        "import fs from 'fs'",
        "import 'x'",
        "export const a = 1",
        "export default 1",
        "export * from 'x'",
        "import fs = require('fs')",
        "export = 1",
    ] {
        let output = fixture.run(source);
        assert_eq!(output.status, RunStatus::Rejected, "{source}");
        assert!(
            matches!(
                output.error.unwrap().code,
                ErrorCode::ScriptRejectedError | ErrorCode::ScriptSyntaxError
            ),
            "{source}"
        );
    }
    assert_eq!(
        fixture.value("return 'import x from \"y\"'"),
        json!("import x from \"y\"")
    );
}

#[test]
fn s05_infinite_loop() {
    let fixture = TestFixture::new();
    let started = Instant::now();
    let error = fixture
        .run_with(
            "while (true) {}",
            fixture.options(),
            Duration::from_secs(50),
        )
        .error
        .unwrap();
    let took = started.elapsed();
    assert_eq!(error.code, ErrorCode::ScriptTimeoutError);
    assert!(
        took >= Duration::from_secs(30) && took < Duration::from_secs(33),
        "{took:?}"
    );
    // The same process can run another script.
    assert_eq!(fixture.value("return 1"), json!(1));
}

#[test]
fn s06_microtask_flood() {
    let fixture = TestFixture::limited(Limits {
        timeout_ms: 300,
        ..Limits::default()
    });
    assert_eq!(
        code(
            &fixture,
            "const again = () => Promise.resolve().then(again); await again()"
        ),
        "ScriptTimeoutError"
    );
    assert_eq!(code(&fixture, "for (;;) await null"), "ScriptTimeoutError");
    assert_eq!(
        code(&fixture, "const f = async () => { await f() }; await f()"),
        "ScriptStackError"
    );
}

#[test]
fn s07_memory_exhaustion() {
    let fixture = TestFixture::new();
    // Fills the 96 MB with data.
    let fill = "const keep = []; for (let i = 0; ; i++) keep.push(new Array(10_000).fill(i))";
    let output = fixture.run(fill);
    assert_eq!(output.error.unwrap().code, ErrorCode::ScriptMemoryError);
    assert!(
        output.metadata.memory_used_mb > 80.0 && output.metadata.memory_used_mb <= 96.5,
        "{}",
        output.metadata.memory_used_mb
    );
    for source in [
        "const a = new Array(1e9).fill(0)",
        "return 'x'.repeat(2 ** 29).length",
        "return new Uint8Array(2 ** 31)[0]",
        "let s = 'x'; for (;;) s += s",
        "const m = new Map(); for (let i = 0; ; i++) m.set(i, {i})",
        "const o = {}; for (let i = 0; ; i++) o['k' + i] = i",
    ] {
        let code = code(&fixture, source);
        assert!(
            ["ScriptMemoryError", "ScriptRuntimeError"].contains(&code.as_str()),
            "{source}: {code}"
        );
    }
    // A script can catch the error and continue.
    assert_eq!(
        fixture.value(
            "try { const a = []; for (;;) a.push(new Array(1e5).fill(1)) } catch (e) { \
            return e.message }"
        ),
        json!("out of memory")
    );
}

#[test]
fn s08_stack_overflow() {
    let fixture = TestFixture::new();
    assert_eq!(
        code(
            &fixture,
            "const deep = (n) => deep(n + 1) + 1; return deep(0)"
        ),
        "ScriptStackError"
    );
    assert_eq!(
        code(
            &fixture,
            "return JSON.parse('['.repeat(200_000) + ']'.repeat(200_000))"
        ),
        "ScriptStackError"
    );
    assert_eq!(
        code(
            &fixture,
            "let a = []; for (let i = 0; i < 100_000; i++) a = [a]; return JSON.stringify(a).length"
        ),
        "ScriptStackError"
    );
    assert_eq!(
        fixture
            .value("const f = () => f(); try { f() } catch (e) { return e instanceof RangeError }"),
        json!(true)
    );
}

#[test]
fn s09_eval_blocked() {
    let fixture = TestFixture::new();
    assert_eq!(fixture.run("eval('1')").status, RunStatus::Rejected);
    for source in [
        "globalThis.eval('1')",
        "(0, globalThis['ev' + 'al'])('1')",
        "const e = eval; e('1')",
    ] {
        let error = fixture.run(source).error.unwrap();
        assert!(
            ["ReferenceError", "TypeError"].contains(&error.metadata["name"].as_str().unwrap()),
            "{source}"
        );
    }
}

#[test]
fn s10_function_constructor() {
    let fixture = TestFixture::new();
    assert_eq!(
        fixture.run("return new Function('return this')()").status,
        RunStatus::Rejected
    );
    assert_eq!(
        fixture.run("return Function('return this')()").status,
        RunStatus::Rejected
    );
    for make in [
        "(() => {}).constructor",
        "(async () => {}).constructor",
        "(function* () {}).constructor",
        "(async function* () {}).constructor",
        "tools.exec.constructor",
        "[].map.constructor",
        "Object.getPrototypeOf(async () => {}).constructor",
        "class {}.constructor",
    ] {
        let source =
            format!("try {{ return ({make})('return 1')() }} catch (e) {{ return e.name }}");
        assert_eq!(fixture.value(&source), json!("TypeError"), "{make}");
    }
}

#[test]
fn s11_no_process() {
    let fixture = TestFixture::new();
    let names = [
        "process",
        "require",
        "module",
        "exports",
        "Buffer",
        "fetch",
        "XMLHttpRequest",
        "WebSocket",
        "WebAssembly",
        "Worker",
        "Deno",
        "Bun",
        "global",
        "window",
        "self",
        "SharedArrayBuffer",
        "Atomics",
        "setInterval",
        "setImmediate",
        "__dirname",
        "navigator",
        "std",
        "os",
        "print",
        "gc",
    ];
    for name in names {
        assert_eq!(
            fixture.value(&format!(
                "return [typeof globalThis['{name}'], typeof {name}]"
            )),
            json!(["undefined", "undefined"]),
            "{name}"
        );
    }
}

#[test]
fn s12_context_cannot_be_changed() {
    let fixture = TestFixture::new();
    for change in [
        "context.turnId = 'x'",
        "delete context.turnId",
        "context.extra = 1",
        "context.sandbox.timeoutMs = 1e9",
        "context.sandbox.remainingToolBudget = 1e9",
        "context.capabilities.tools.push('x')",
        "context = {}",
        "context.telemetry.emitProgress = 1",
    ] {
        let source = format!("try {{ {change}; return 'open' }} catch (e) {{ return e.name }}");
        assert_eq!(fixture.value(&source), json!("TypeError"), "{change}");
    }
}

#[test]
fn s13_context_prototype_is_frozen() {
    let fixture = TestFixture::new();
    assert_eq!(
        fixture.value(
            "return Object.isFrozen(context.__proto__) && Object.isFrozen(context) && \
             Object.isFrozen(context.sandbox)"
        ),
        json!(true)
    );
    assert_eq!(
        fixture.value("try { context.__proto__.x = 1; return 'open' } catch (e) { return e.name }"),
        json!("TypeError")
    );
}

#[test]
fn s14_promise_cannot_be_changed() {
    let fixture = TestFixture::new();
    for change in [
        "Promise.constructor = null",
        "Promise.all = null",
        "Promise.prototype.then = null",
        "Promise.resolve = () => 1",
        "globalThis.Promise = null",
    ] {
        let source = format!("try {{ {change}; return 'open' }} catch (e) {{ return e.name }}");
        assert_eq!(fixture.value(&source), json!("TypeError"), "{change}");
    }
}

#[test]
fn s15_a_hung_script_is_stopped_and_the_host_continues() {
    let fixture = TestFixture::limited(Limits {
        timeout_ms: 200,
        ..Limits::default()
    });
    for source in [
        "[].reverse.call({length: 2 ** 53 - 1})",
        "'a'.repeat(2e6).indexOf('a'.repeat(1e6) + 'b')",
        "/(a+)+$/.test('a'.repeat(40) + 'b')",
    ] {
        let started = Instant::now();
        assert_eq!(code(&fixture, source), "ScriptTimeoutError", "{source}");
        assert!(started.elapsed() < Duration::from_secs(5), "{source}");
        assert_eq!(fixture.value("return 1"), json!(1));
    }
}

#[test]
fn s16_scripts_share_no_state() {
    let fixture = TestFixture::new();
    assert_eq!(
        fixture
            .run(
                "try { globalThis.secret = 1 } catch {} try { \
        Object.prototype.secret = 1 } catch {} Symbol.for('secret'); \
        return 1"
            )
            .status,
        RunStatus::Completed
    );
    assert_eq!(
        fixture.value("return [typeof secret, ({}).secret ?? null]"),
        json!(["undefined", null])
    );
    let numbers: Vec<Value> = (0..20)
        .map(|_| fixture.value("return Math.random()"))
        .collect();
    assert!(
        numbers.iter().any(|number| *number != numbers[0]),
        "Math.random has the same seed in every script"
    );
}

#[test]
fn s17_a_call_that_is_not_awaited_is_cancelled() {
    let fixture = TestFixture::new();
    let started = Instant::now();
    let output =
        fixture.run("tools.sleep({ms: 60_000});\nawait tools.echo({value: 1});\nreturn 'done'");
    assert_eq!(output.status, RunStatus::Completed);
    assert_eq!(output.calls[0].status, CallStatus::Aborted);
    assert!(
        output.warnings[0].contains("tool_1") && output.warnings[0].contains("line 1"),
        "{:?}",
        output.warnings
    );
    assert_eq!(fixture.seen.stopped.load(Ordering::SeqCst), 1);
    // A call that did not start is cancelled too.
    let output = fixture.run("tools.applyPatch({patch: 'x'});\nreturn 'done'");
    assert_eq!(
        (output.status, output.calls[0].status),
        (RunStatus::Completed, CallStatus::Aborted)
    );
    assert!(fixture.seen.patches.lock().unwrap().is_empty());
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn s18_no_worker() {
    let fixture = TestFixture::new();
    let error = fixture.run("new Worker('x')").error.unwrap();
    assert_eq!(error.metadata["name"], json!("ReferenceError"));
}

#[test]
fn s19_large_return() {
    let fixture = TestFixture::new();
    let output = fixture.run("return {list: Array.from({length: 50_000}, (_, i) => 'item ' + i)}");
    assert_eq!(output.status, RunStatus::Error);
    let json = output.output_json.clone().unwrap();
    assert!(json.len() <= 131_072);
    assert_eq!(output.value().unwrap()["list"][0], json!("item 0"));
    let error = output.error.unwrap();
    assert_eq!(error.code, ErrorCode::SerializationError);
    assert!(
        error.message.contains("more than 131072"),
        "{}",
        error.message
    );
    // A value of exactly the limit, with its two quotes, is returned.
    assert_eq!(
        fixture.run("return 'x'.repeat(131_070)").status,
        RunStatus::Completed
    );
    assert_eq!(
        fixture.run("return 'x'.repeat(131_071)").status,
        RunStatus::Error
    );
}

#[test]
fn s20_dry_run() {
    let fixture = TestFixture::new();
    let options = selvedge_script::RunOptions {
        mode: Some(ScriptMode::DryRun),
        ..fixture.options()
    };
    let output = fixture.run_with(
        "await tools.applyPatch({patch: 'x'}); return 1",
        options,
        Duration::from_secs(10),
    );
    assert_eq!(output.status, RunStatus::DryRun);
    assert!(output.warnings[0].contains("nothing ran"));
    assert_eq!(
        output.value().unwrap()["calls"][0]["tool"],
        json!("apply_patch")
    );
    assert!(fixture.seen.patches.lock().unwrap().is_empty());
    assert!(fixture.events.lock().unwrap().is_empty());
}
