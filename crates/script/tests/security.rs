//! S1–S20: what a script must not be able to do.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use selvedge_protocol::{CallStatus, ErrorCode, Limits, Mode, RunStatus};
use serde_json::{Value, json};
use support::Bench;

fn code(bench: &Bench, source: &str) -> String {
    bench.error(source).0
}

#[test]
fn s01_prototype_pollution() {
    let bench = Bench::new();
    for target in [
        "Object",
        "Array",
        "(() => {}).constructor",
        "Promise",
        "Map",
        "String",
    ] {
        let source = format!(
            "try {{ ({target}).prototype.hack = 1; return 'open' }} catch (e) {{ return [e.name, ({{}}).hack === undefined] }}"
        );
        assert_eq!(bench.value(&source), json!(["TypeError", true]), "{target}");
    }
    assert_eq!(
        bench.value("try { ({}).__proto__.hack = 1; return 'open' } catch (e) { return e.name }"),
        json!("TypeError")
    );
}

#[test]
fn s02_frozen_tools() {
    let bench = Bench::new();
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
        assert_eq!(bench.value(&source), json!("TypeError"), "{change}");
    }
    assert_eq!(bench.value("return Object.isFrozen(tools)"), json!(true));
}

#[test]
fn s03_banned_require() {
    let bench = Bench::new();
    let output = bench.run("const fs = require('fs'); return fs");
    assert_eq!(output.status, RunStatus::Rejected);
    let error = output.error.unwrap();
    assert_eq!(
        (error.code, error.line, error.column),
        (ErrorCode::ScriptRejectedError, Some(1), Some(12))
    );
    assert_eq!(
        bench.value("// require('fs')\nreturn \"require('fs')\""),
        json!("require('fs')")
    );
}

#[test]
fn s04_banned_import() {
    let bench = Bench::new();
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
        let output = bench.run(source);
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
        bench.value("return 'import x from \"y\"'"),
        json!("import x from \"y\"")
    );
}

#[test]
fn s05_infinite_loop() {
    let bench = Bench::new();
    let started = Instant::now();
    let error = bench
        .run_with("while (true) {}", bench.options(), Duration::from_secs(50))
        .error
        .unwrap();
    let took = started.elapsed();
    assert_eq!(error.code, ErrorCode::ScriptTimeoutError);
    assert!(
        took >= Duration::from_secs(30) && took < Duration::from_secs(33),
        "{took:?}"
    );
    // The thread that ran it runs the next one.
    assert_eq!(bench.value("return 1"), json!(1));
}

#[test]
fn s06_microtask_flood() {
    let bench = Bench::limited(Limits {
        timeout_ms: 300,
        ..Limits::default()
    });
    assert_eq!(
        code(
            &bench,
            "const again = () => Promise.resolve().then(again); await again()"
        ),
        "ScriptTimeoutError"
    );
    assert_eq!(code(&bench, "for (;;) await null"), "ScriptTimeoutError");
    assert_eq!(
        code(&bench, "const f = async () => { await f() }; await f()"),
        "ScriptStackError"
    );
}

#[test]
fn s07_memory_exhaustion() {
    let bench = Bench::new();
    // Fills the 96 MB with data that is really written.
    let fill = "const keep = []; for (let i = 0; ; i++) keep.push(new Array(10_000).fill(i))";
    let output = bench.run(fill);
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
        let code = code(&bench, source);
        assert!(
            ["ScriptMemoryError", "ScriptRuntimeError"].contains(&code.as_str()),
            "{source}: {code}"
        );
    }
    // A script that keeps within its means after it was told is not punished.
    assert_eq!(
        bench.value("try { const a = []; for (;;) a.push(new Array(1e5).fill(1)) } catch (e) { return e.message }"),
        json!("out of memory")
    );
}

#[test]
fn s08_stack_overflow() {
    let bench = Bench::new();
    assert_eq!(
        code(
            &bench,
            "const deep = (n) => deep(n + 1) + 1; return deep(0)"
        ),
        "ScriptStackError"
    );
    assert_eq!(
        code(
            &bench,
            "return JSON.parse('['.repeat(200_000) + ']'.repeat(200_000))"
        ),
        "ScriptStackError"
    );
    assert_eq!(
        code(
            &bench,
            "let a = []; for (let i = 0; i < 100_000; i++) a = [a]; return JSON.stringify(a).length"
        ),
        "ScriptStackError"
    );
    assert_eq!(
        bench
            .value("const f = () => f(); try { f() } catch (e) { return e instanceof RangeError }"),
        json!(true)
    );
}

#[test]
fn s09_eval_blocked() {
    let bench = Bench::new();
    assert_eq!(bench.run("eval('1')").status, RunStatus::Rejected);
    for source in [
        "globalThis.eval('1')",
        "(0, globalThis['ev' + 'al'])('1')",
        "const e = eval; e('1')",
    ] {
        let error = bench.run(source).error.unwrap();
        assert!(
            ["ReferenceError", "TypeError"].contains(&error.metadata["name"].as_str().unwrap()),
            "{source}"
        );
    }
}

#[test]
fn s10_function_constructor() {
    let bench = Bench::new();
    assert_eq!(
        bench.run("return new Function('return this')()").status,
        RunStatus::Rejected
    );
    assert_eq!(
        bench.run("return Function('return this')()").status,
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
        assert_eq!(bench.value(&source), json!("TypeError"), "{make}");
    }
}

#[test]
fn s11_no_process() {
    let bench = Bench::new();
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
            bench.value(&format!(
                "return [typeof globalThis['{name}'], typeof {name}]"
            )),
            json!(["undefined", "undefined"]),
            "{name}"
        );
    }
}

#[test]
fn s12_context_cannot_be_changed() {
    let bench = Bench::new();
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
        assert_eq!(bench.value(&source), json!("TypeError"), "{change}");
    }
}

#[test]
fn s13_context_prototype_is_frozen() {
    let bench = Bench::new();
    assert_eq!(
        bench.value(
            "return Object.isFrozen(context.__proto__) && Object.isFrozen(context) && Object.isFrozen(context.sandbox)"
        ),
        json!(true)
    );
    assert_eq!(
        bench.value("try { context.__proto__.x = 1; return 'open' } catch (e) { return e.name }"),
        json!("TypeError")
    );
}

#[test]
fn s14_promise_cannot_be_changed() {
    let bench = Bench::new();
    for change in [
        "Promise.constructor = null",
        "Promise.all = null",
        "Promise.prototype.then = null",
        "Promise.resolve = () => 1",
        "globalThis.Promise = null",
    ] {
        let source = format!("try {{ {change}; return 'open' }} catch (e) {{ return e.name }}");
        assert_eq!(bench.value(&source), json!("TypeError"), "{change}");
    }
}

#[test]
fn s15_a_hung_script_ends_and_the_host_goes_on() {
    let bench = Bench::limited(Limits {
        timeout_ms: 200,
        ..Limits::default()
    });
    for source in [
        "[].reverse.call({length: 2 ** 53 - 1})",
        "'a'.repeat(2e6).indexOf('a'.repeat(1e6) + 'b')",
        "/(a+)+$/.test('a'.repeat(40) + 'b')",
    ] {
        let started = Instant::now();
        assert_eq!(code(&bench, source), "ScriptTimeoutError", "{source}");
        assert!(started.elapsed() < Duration::from_secs(5), "{source}");
        assert_eq!(bench.value("return 1"), json!(1));
    }
}

#[test]
fn s16_scripts_do_not_see_each_other() {
    let bench = Bench::new();
    assert_eq!(bench.run("try { globalThis.secret = 1 } catch {} try { Object.prototype.secret = 1 } catch {} Symbol.for('secret'); return 1").status, RunStatus::Completed);
    assert_eq!(
        bench.value("return [typeof secret, ({}).secret ?? null]"),
        json!(["undefined", null])
    );
    let numbers: Vec<Value> = (0..20)
        .map(|_| bench.value("return Math.random()"))
        .collect();
    assert!(
        numbers.iter().any(|number| *number != numbers[0]),
        "Math.random starts the same in every script"
    );
}

#[test]
fn s17_orphaned_promise_is_stopped() {
    let bench = Bench::new();
    let started = Instant::now();
    let output =
        bench.run("tools.sleep({ms: 60_000});\nawait tools.echo({value: 1});\nreturn 'done'");
    assert_eq!(output.status, RunStatus::Completed);
    assert_eq!(output.calls[0].status, CallStatus::Aborted);
    assert!(
        output.warnings[0].contains("tool_1") && output.warnings[0].contains("line 1"),
        "{:?}",
        output.warnings
    );
    assert_eq!(bench.seen.stopped.load(Ordering::SeqCst), 1);
    // One that never got to run is stopped as well.
    let output = bench.run("tools.applyPatch({patch: 'x'});\nreturn 'done'");
    assert_eq!(
        (output.status, output.calls[0].status),
        (RunStatus::Completed, CallStatus::Aborted)
    );
    assert!(bench.seen.patches.lock().unwrap().is_empty());
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn s18_no_worker() {
    let bench = Bench::new();
    let error = bench.run("new Worker('x')").error.unwrap();
    assert_eq!(error.metadata["name"], json!("ReferenceError"));
}

#[test]
fn s19_large_return() {
    let bench = Bench::new();
    let output = bench.run("return {list: Array.from({length: 50_000}, (_, i) => 'item ' + i)}");
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
    // Exactly the limit is still whole: two quotes and the rest.
    assert_eq!(
        bench.run("return 'x'.repeat(131_070)").status,
        RunStatus::Completed
    );
    assert_eq!(
        bench.run("return 'x'.repeat(131_071)").status,
        RunStatus::Error
    );
}

#[test]
fn s20_dry_run() {
    let bench = Bench::new();
    let options = selvedge_script::RunOptions {
        mode: Some(Mode::DryRun),
        ..bench.options()
    };
    let output = bench.run_with(
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
    assert!(bench.seen.patches.lock().unwrap().is_empty());
    assert!(bench.events.lock().unwrap().is_empty());
}
