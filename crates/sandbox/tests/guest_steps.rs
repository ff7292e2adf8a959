//! Tests of the sandbox without the script harness: a program, its host, and their exchange.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_sandbox::{
    EngineSettings, Execution, Fault, GuestProgram, GuestRequest, GuestStep, GuestStepState, Host,
    InterruptHandle, Position, Runtime, ScriptFinish, Settlement, WasmRuntime,
};

fn wasm() -> &'static WasmRuntime {
    static WASM: OnceLock<WasmRuntime> = OnceLock::new();
    WASM.get_or_init(|| {
        WasmRuntime::new(EngineSettings {
            max_scripts: 64,
            ..EngineSettings::default()
        })
        .unwrap()
    })
}

#[derive(Default)]
struct TestHost {
    clock: f64,
}

impl Host for TestHost {
    fn now(&mut self) -> f64 {
        self.clock += 1.0;
        1_700_000_000_000.0 + self.clock
    }

    fn message<'a>(&'a mut self, channel: &'a str, text: &'a str) -> BoxFuture<'a, Option<String>> {
        let reply = match (channel, text) {
            ("resolve", "missing") => Some(
                r#"!{"name":"ToolNotFoundError","message":"there is no tool `missing`"}"#.into(),
            ),
            ("resolve", "space") => Some("namespace".into()),
            ("resolve", _) => Some("tool".into()),
            ("names", "") => Some(r#"["echo","space"]"#.into()),
            ("names", _) => Some("[]".into()),
            ("context", _) => Some(r#"{"turnId":"t1","sandbox":{"memoryMb":96}}"#.into()),
            _ => None,
        };
        std::future::ready(reply).boxed()
    }

    fn locate(&mut self, at: Position) -> Option<Position> {
        Some(at)
    }
}

fn program(source: &str) -> GuestProgram<'_> {
    GuestProgram {
        source,
        seed: 42,
        memory_limit: 96 << 20,
        stack_limit: 512 << 10,
        interrupt: Arc::new(InterruptHandle::new(Duration::from_secs(5))),
    }
}

/// Runs a function body to its end. Each call is answered with its own arguments.
async fn run_body(body: &str) -> Result<ScriptFinish, Fault> {
    let source = format!("(async () => {{\n{body}\n}})");
    let (mut execution, mut step): (Box<dyn Execution>, GuestStep) = wasm()
        .start(program(&source), Box::new(TestHost::default()))
        .await?;
    let mut waiting: HashMap<u32, String> = HashMap::new();
    loop {
        if let GuestStepState::Finished(finish) = step.state {
            return Ok(finish);
        }
        for request in step.requests {
            match request {
                GuestRequest::Call { id, args, .. } => _ = waiting.insert(id, args),
                GuestRequest::Sleep { id, .. } => _ = waiting.insert(id, "null".into()),
                GuestRequest::Cancel { id } => _ = waiting.remove(&id),
            }
        }
        let Some(id) = waiting.keys().min().copied() else {
            panic!("the script waits for nothing")
        };
        let answer = waiting.remove(&id).unwrap();
        step = execution.settle(id, Settlement::Value(&answer)).await?;
    }
}

async fn value(body: &str) -> String {
    match run_body(body).await {
        Ok(ScriptFinish::Value(Some(value))) => value,
        other => panic!("{body}\n→ {other:?}"),
    }
}

#[tokio::test]
async fn a_returned_value_reaches_the_host() {
    assert_eq!(value("return 1 + 1").await, "2");
    assert_eq!(
        value("return {a: [1, 'x', null]}").await,
        r#"{"a":[1,"x",null]}"#
    );
}

#[tokio::test]
async fn call_results_are_frozen() {
    let body = "const r = await tools.echo({list: [3, 1, 2]});
        return [Object.isFrozen(r), Object.isFrozen(r[0].list), r[0].list.toSorted()]";
    assert_eq!(value(body).await, "[true,true,[1,2,3]]");
}

#[tokio::test]
async fn sorting_a_result_in_place_suggests_to_sorted() {
    let body =
        "const r = await tools.echo(3, 1, 2); try { r.sort() } catch (e) { return e.message }";
    assert!(value(body).await.contains("toSorted"));
}

#[tokio::test]
async fn own_properties_may_shadow_frozen_ones() {
    assert_eq!(
        value("const o = {}; o.toString = () => 'mine'; return String(o)").await,
        "\"mine\""
    );
    let body = "class A { constructor() { this.constructor = 1; this.valueOf = 2 } }
        return new A().valueOf";
    assert_eq!(value(body).await, "2");
}

#[tokio::test]
async fn everything_reachable_is_frozen() {
    let body = r#"
        const thrown = (f) => { try { f() } catch (e) { return e } };
        const roots = [globalThis, tools, context, console,
            thrown(() => atob("*")), thrown(() => null.x),
            thrown(() => { const f = () => f(); f() }),
            (async () => {})(), (function*(){})(), (async function*(){})(),
            [].values(), "a".matchAll(/a/g), new Map().entries(), new Set().values(),
            [].values().map(x => x), Iterator.from([]), Array.fromAsync([]),
            /x/, new Date(), Symbol(), 1n, new Uint8Array(), new WeakRef({}),
            (() => {}), (async () => {}), (function*(){}), (async function*(){}), class {},
            tools.echo, help, new Proxy({}, {})];
        const boxed = roots.map(Object);
        const seen = new Set(), queue = boxed.map(r => [typeof r, r]), unfrozen = [];
        // Created by this script: the roots, and the prototype of each generator object.
        const generatorPrototypes = boxed.filter(o => "next" in o)
            .map(o => Object.getPrototypeOf(o)).filter(p => !Reflect.ownKeys(p).length);
        const own = new Set([...boxed, ...generatorPrototypes]);
        const isOwnKey = (o, k) => k === "prototype"
            || o.constructor !== Object && k !== "constructor" && o !== globalThis;
        while (queue.length) {
            const [path, o] = queue.pop();
            if (o === null || (typeof o !== "object" && typeof o !== "function")) continue;
            if (seen.has(o)) continue;
            seen.add(o);
            if (!Object.isFrozen(o) && !own.has(o)) unfrozen.push(path);
            queue.push([path + ".__proto__", Object.getPrototypeOf(o)]);
            for (const k of Reflect.ownKeys(o)) {
                const d = Object.getOwnPropertyDescriptor(o, k);
                if (own.has(o) && isOwnKey(o, k)) continue;
                for (const p of ["value", "get", "set"])
                    if (d[p] !== undefined) queue.push([`${path}.${String(k)}`, d[p]]);
            }
        }
        return {unfrozen, seen: seen.size > 500}
    "#;
    assert_eq!(value(body).await, r#"{"unfrozen":[],"seen":true}"#);
}

#[tokio::test]
async fn code_cannot_be_created_from_strings() {
    let body = r#"
        const attempts = [
            () => (() => {}).constructor("return 1"),
            () => (async () => {}).constructor("return 1"),
            () => (function*(){}).constructor("return 1"),
            () => (async function*(){}).constructor("return 1"),
            () => new (class {}).constructor.constructor("return 1"),
            () => Reflect.construct((() => {}).constructor, ["1"]),
            () => eval("1"),
            () => globalThis.eval("1"),
            () => Function("1"),
            () => tools.echo.constructor("1"),
            () => [].map.constructor("1")(),
            () => Object.getPrototypeOf(async () => {}).constructor("1"),
            () => console.log.constructor("1"),
            () => setTimeout("1", 1),
        ];
        return attempts.map(f => { try { f(); return "open" } catch (e) { return e.name } })
    "#;
    assert!(!value(body).await.contains("open"));
}

#[tokio::test]
async fn loops_are_stopped_at_the_deadline() {
    let source = "(async () => { while (true) {} })";
    let interrupt = Arc::new(InterruptHandle::new(Duration::from_millis(50)));
    let result = wasm()
        .start(
            GuestProgram {
                interrupt,
                ..program(source)
            },
            Box::new(TestHost::default()),
        )
        .await;
    assert!(matches!(result, Err(Fault::Deadline)));
}

#[tokio::test]
async fn exhausted_memory_and_stack_are_errors() {
    let body = "try { const a = []; for (;;) a.push(new Array(1000).fill(1)) }
        catch (e) { return e.message }";
    assert_eq!(value(body).await, "\"out of memory\"");
    let body = "const f = () => f() + 1; try { f() } catch (e) { return e.name }";
    assert_eq!(value(body).await, "\"RangeError\"");
    let deep = "try { JSON.parse('['.repeat(1e6)) } catch (e) { return e.name + e.message }";
    assert_eq!(
        value(deep).await,
        "\"RangeErrorMaximum call stack size exceeded\""
    );
}

#[tokio::test]
async fn exit_ends_the_script_and_cannot_be_caught() {
    let body =
        "try { exit() } catch { return 'caught' } finally { await tools.echo(1) } return 'after'";
    assert!(matches!(run_body(body).await, Ok(ScriptFinish::Exit)));
    let body = "await tools.echo(1); await (async () => { try { exit() } catch { throw 1 } })();
        return 'after'";
    assert!(matches!(run_body(body).await, Ok(ScriptFinish::Exit)));
}

#[tokio::test]
async fn random_numbers_are_seeded_and_the_clock_comes_from_the_host() {
    let a = value("return [Math.random(), Math.random()]").await;
    assert_eq!(a, value("return [Math.random(), Math.random()]").await);
    assert_eq!(value("return Date.now()").await, "1700000000001");
}

#[tokio::test]
async fn stack_traces_show_only_the_script() {
    let body =
        "const f = () => { throw new Error('x') };\ntry { f() } catch (e) { return e.stack }";
    assert_eq!(
        value(body).await,
        r#""    at f (script.ts:2:29)\n    at <anonymous> (script.ts:3:7)\n""#
    );
}

#[tokio::test]
async fn returned_values_are_complete_or_an_error() {
    assert_eq!(
        value("return {m: new Map([['a', 1]]), s: new Set([1]), d: new Date(0)}").await,
        r#"{"m":{"a":1},"s":[1],"d":"1970-01-01T00:00:00.000Z"}"#
    );
    assert_eq!(
        value("return {e: new TypeError('no')}").await,
        r#"{"e":{"name":"TypeError","message":"no"}}"#
    );
    for (body, part) in [
        ("return {a: [1n]}", "`a[0]` is a BigInt"),
        ("const o = {x: {}}; o.x.y = o; return o", "`x.y` is cyclic"),
        ("return {f() {}}", "`f` is a function"),
        ("return [tools.echo(1)]", "await"),
    ] {
        match run_body(body).await {
            Ok(ScriptFinish::Error(error)) => assert!(error.contains(part), "{error}"),
            other => panic!("{body} → {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_snapshot_continues_in_another_engine() {
    let body = "class Counter { n = 0; add(x) { this.n += x; return this } }
        const counter = new Counter(), seen = new Map([['a', 1]]);
        const both = Promise.all([tools.echo(1), tools.echo(2)]);
        const big = 'x'.repeat(300_000).split('');
        const first = Math.random();
        const [one, two] = await both;
        counter.add(one).add(two); seen.set('b', big.length);
        return [counter.n, [...seen], first !== Math.random(), (await tools.echo(3)) + 1]";
    let source = format!("(async () => {{\n{body}\n}})");
    let (mut execution, step) = wasm()
        .start(program(&source), Box::new(TestHost::default()))
        .await
        .unwrap();
    assert_eq!(step.requests.len(), 2);
    execution.settle(1, Settlement::Value("10")).await.unwrap();
    let snapshot = execution.snapshot().unwrap();
    drop(execution);
    // A second engine, as another process would have.
    let other_engine = WasmRuntime::new(EngineSettings {
        max_scripts: 1,
        ..EngineSettings::default()
    })
    .unwrap();
    let mut execution = other_engine
        .restore(&snapshot, program(""), Box::new(TestHost::default()))
        .await
        .unwrap();
    let step = execution.settle(2, Settlement::Value("20")).await.unwrap();
    assert!(
        matches!(&step.requests[..], [GuestRequest::Call { id: 3, .. }]),
        "{step:?}"
    );
    let step = execution.settle(3, Settlement::Value("4")).await.unwrap();
    let GuestStepState::Finished(ScriptFinish::Value(Some(value))) = step.state else {
        panic!("{step:?}")
    };
    assert_eq!(value, r#"[30,[["a",1],["b",300000]],true,5]"#);
}

#[tokio::test]
async fn a_snapshot_of_a_small_script_is_small_and_bound_to_its_build() {
    let source = "(async () => { await tools.echo(1) })";
    let (mut execution, _) = wasm()
        .start(program(source), Box::new(TestHost::default()))
        .await
        .unwrap();
    let mut snapshot = execution.snapshot().unwrap();
    assert!(
        snapshot.bytes.len() < 400 << 10,
        "{} bytes",
        snapshot.bytes.len()
    );
    snapshot.build_id = "another".into();
    let refused = wasm()
        .restore(&snapshot, program(""), Box::new(TestHost::default()))
        .await;
    assert!(matches!(refused, Err(Fault::BuildMismatch { .. })));
}

#[tokio::test]
async fn a_corrupt_snapshot_cannot_leave_the_sandbox() {
    let source = "(async () => { await tools.echo(1); return 1 })";
    let (mut execution, _) = wasm()
        .start(program(source), Box::new(TestHost::default()))
        .await
        .unwrap();
    let snapshot = execution.snapshot().unwrap();
    for step in [1, 7, 113, 1031] {
        let mut corrupt = snapshot.clone();
        corrupt
            .bytes
            .iter_mut()
            .skip(4)
            .step_by(step)
            .for_each(|byte| *byte ^= 0x5a);
        let restored = wasm()
            .restore(&corrupt, program(""), Box::new(TestHost::default()))
            .await;
        if let Ok(mut execution) = restored {
            let _ = execution.settle(1, Settlement::Value("1")).await;
        }
    }
    for length in [0, 3, snapshot.bytes.len() - 1] {
        let mut truncated = snapshot.clone();
        truncated.bytes.truncate(length);
        let refused = wasm()
            .restore(&truncated, program(""), Box::new(TestHost::default()))
            .await;
        assert!(matches!(refused, Err(Fault::Engine(_))), "{length}");
    }
}
