//! The sandbox alone: a program, its host, and the pump between them.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_sandbox::{
    Execution, Fault, Finish, Host, Leash, Outcome, Position, Program, Pump, Request, Runtime,
    Settings, State, Wasm,
};

fn wasm() -> &'static Wasm {
    static WASM: OnceLock<Wasm> = OnceLock::new();
    WASM.get_or_init(|| {
        Wasm::new(Settings {
            max_scripts: 64,
            ..Settings::default()
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

fn program(source: &str) -> Program<'_> {
    Program {
        source,
        seed: 42,
        memory_limit: 96 << 20,
        stack_limit: 512 << 10,
        leash: Arc::new(Leash::new(Duration::from_secs(5))),
    }
}

/// Runs a body to its end; each call is answered with its own arguments.
async fn run_body(body: &str) -> Result<Finish, Fault> {
    let source = format!("(async () => {{\n{body}\n}})");
    let (mut execution, mut pump): (Box<dyn Execution>, Pump) = wasm()
        .start(program(&source), Box::new(TestHost::default()))
        .await?;
    let mut waiting: HashMap<u32, String> = HashMap::new();
    loop {
        if let State::Finished(finish) = pump.state {
            return Ok(finish);
        }
        for request in pump.requests {
            match request {
                Request::Call { id, args, .. } => _ = waiting.insert(id, args),
                Request::Sleep { id, .. } => _ = waiting.insert(id, "null".into()),
                Request::Cancel { id } => _ = waiting.remove(&id),
            }
        }
        let Some(id) = waiting.keys().min().copied() else {
            panic!("the script waits for nothing")
        };
        let answer = waiting.remove(&id).unwrap();
        pump = execution.settle(id, Outcome::Value(&answer)).await?;
    }
}

async fn value(body: &str) -> String {
    match run_body(body).await {
        Ok(Finish::Value(Some(value))) => value,
        other => panic!("{body}\n→ {other:?}"),
    }
}

#[tokio::test]
async fn a_value_comes_back() {
    assert_eq!(value("return 1 + 1").await, "2");
    assert_eq!(
        value("return {a: [1, 'x', null]}").await,
        r#"{"a":[1,"x",null]}"#
    );
}

#[tokio::test]
async fn calls_are_answered_and_frozen() {
    let body = "const r = await tools.echo({list: [3, 1, 2]}); return [Object.isFrozen(r), Object.isFrozen(r[0].list), r[0].list.toSorted()]";
    assert_eq!(value(body).await, "[true,true,[1,2,3]]");
}

#[tokio::test]
async fn sorting_a_result_in_place_says_what_to_write() {
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
    assert_eq!(
        value("class A { constructor() { this.constructor = 1; this.valueOf = 2 } } return new A().valueOf").await,
        "2"
    );
}

#[tokio::test]
async fn everything_reachable_is_frozen() {
    let body = r#"
        const thrown = (f) => { try { f() } catch (e) { return e } };
        const roots = [globalThis, tools, context, console, thrown(() => atob("*")), thrown(() => null.x),
            thrown(() => { const f = () => f(); f() }), (async () => {})(), (function*(){})(), (async function*(){})(),
            [].values(), "a".matchAll(/a/g), new Map().entries(), new Set().values(), [].values().map(x => x),
            Iterator.from([]), Array.fromAsync([]), /x/, new Date(), Symbol(), 1n, new Uint8Array(), new WeakRef({}),
            (() => {}), (async () => {}), (function*(){}), (async function*(){}), class {}, tools.echo, help, new Proxy({}, {})];
        const boxed = roots.map(Object);
        const seen = new Set(), queue = boxed.map(r => [typeof r, r]), loose = [];
        // Made by this very script: the roots, and the prototype each generator object gets of its own.
        const mine = new Set([...boxed, ...boxed.filter(o => "next" in o).map(o => Object.getPrototypeOf(o)).filter(p => !Reflect.ownKeys(p).length)]);
        while (queue.length) {
            const [path, o] = queue.pop();
            if (o === null || (typeof o !== "object" && typeof o !== "function") || seen.has(o)) continue;
            seen.add(o);
            if (!Object.isFrozen(o) && !mine.has(o)) loose.push(path);
            queue.push([path + ".__proto__", Object.getPrototypeOf(o)]);
            for (const k of Reflect.ownKeys(o)) {
                const d = Object.getOwnPropertyDescriptor(o, k);
                if (mine.has(o) && (k === "prototype" || o.constructor !== Object && k !== "constructor" && o !== globalThis)) continue;
                for (const p of ["value", "get", "set"]) if (d[p] !== undefined) queue.push([`${path}.${String(k)}`, d[p]]);
            }
        }
        return {loose, seen: seen.size > 500}
    "#;
    assert_eq!(value(body).await, r#"{"loose":[],"seen":true}"#);
}

#[tokio::test]
async fn no_road_leads_to_code_from_strings() {
    let body = r#"
        const roads = [
            () => (() => {}).constructor("return 1"), () => (async () => {}).constructor("return 1"),
            () => (function*(){}).constructor("return 1"), () => (async function*(){}).constructor("return 1"),
            () => new (class {}).constructor.constructor("return 1"), () => Reflect.construct((() => {}).constructor, ["1"]),
            () => eval("1"), () => globalThis.eval("1"), () => Function("1"), () => tools.echo.constructor("1"),
            () => [].map.constructor("1")(), () => Object.getPrototypeOf(async () => {}).constructor("1"),
            () => console.log.constructor("1"), () => setTimeout("1", 1),
        ];
        return roads.map(r => { try { r(); return "open" } catch (e) { return e.name } })
    "#;
    assert!(!value(body).await.contains("open"));
}

#[tokio::test]
async fn loops_are_stopped_at_the_deadline() {
    let source = "(async () => { while (true) {} })";
    let leash = Arc::new(Leash::new(Duration::from_millis(50)));
    let result = wasm()
        .start(
            Program {
                leash,
                ..program(source)
            },
            Box::new(TestHost::default()),
        )
        .await;
    assert!(matches!(result, Err(Fault::Deadline)));
}

#[tokio::test]
async fn memory_and_stack_run_out_as_errors() {
    assert_eq!(
        value("try { const a = []; for (;;) a.push(new Array(1000).fill(1)) } catch (e) { return e.message }").await,
        "\"out of memory\""
    );
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
    assert!(matches!(run_body(body).await, Ok(Finish::Exit)));
    let body = "await tools.echo(1); await (async () => { try { exit() } catch { throw 1 } })(); return 'after'";
    assert!(matches!(run_body(body).await, Ok(Finish::Exit)));
}

#[tokio::test]
async fn random_is_seeded_and_the_clock_is_the_hosts() {
    let a = value("return [Math.random(), Math.random()]").await;
    assert_eq!(a, value("return [Math.random(), Math.random()]").await);
    assert_eq!(value("return Date.now()").await, "1700000000001");
}

#[tokio::test]
async fn stacks_show_only_the_script() {
    let body =
        "const f = () => { throw new Error('x') };\ntry { f() } catch (e) { return e.stack }";
    assert_eq!(
        value(body).await,
        r#""    at f (script.ts:2:29)\n    at <anonymous> (script.ts:3:7)\n""#
    );
}

#[tokio::test]
async fn values_leave_whole_or_not_at_all() {
    assert_eq!(
        value("return {m: new Map([['a', 1]]), s: new Set([1]), d: new Date(0), e: new TypeError('no')}").await,
        r#"{"m":{"a":1},"s":[1],"d":"1970-01-01T00:00:00.000Z","e":{"name":"TypeError","message":"no"}}"#
    );
    for (body, part) in [
        ("return {a: [1n]}", "`a[0]` is a BigInt"),
        ("const o = {x: {}}; o.x.y = o; return o", "`x.y` is cyclic"),
        ("return {f() {}}", "`f` is a function"),
        ("return [tools.echo(1)]", "await"),
    ] {
        match run_body(body).await {
            Ok(Finish::Error(error)) => assert!(error.contains(part), "{error}"),
            other => panic!("{body} → {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_snapshot_continues_in_another_instance() {
    let body = "class Counter { n = 0; add(x) { this.n += x; return this } }
        const counter = new Counter(), seen = new Map([['a', 1]]);
        const both = Promise.all([tools.echo(1), tools.echo(2)]);
        const big = 'x'.repeat(300_000).split('');
        const first = Math.random();
        const [one, two] = await both;
        counter.add(one).add(two); seen.set('b', big.length);
        return [counter.n, [...seen], first !== Math.random(), (await tools.echo(3)) + 1]";
    let source = format!("(async () => {{\n{body}\n}})");
    let (mut execution, pump) = wasm()
        .start(program(&source), Box::new(TestHost::default()))
        .await
        .unwrap();
    assert_eq!(pump.requests.len(), 2);
    execution.settle(1, Outcome::Value("10")).await.unwrap();
    let image = execution.snapshot().unwrap();
    drop(execution);
    // Another engine, as another process has it.
    let elsewhere = Wasm::new(Settings {
        max_scripts: 1,
        ..Settings::default()
    })
    .unwrap();
    let mut execution = elsewhere
        .restore(&image, program(""), Box::new(TestHost::default()))
        .await
        .unwrap();
    let pump = execution.settle(2, Outcome::Value("20")).await.unwrap();
    assert!(
        matches!(&pump.requests[..], [Request::Call { id: 3, .. }]),
        "{pump:?}"
    );
    let pump = execution.settle(3, Outcome::Value("4")).await.unwrap();
    let State::Finished(Finish::Value(Some(value))) = pump.state else {
        panic!("{pump:?}")
    };
    assert_eq!(value, r#"[30,[["a",1],["b",300000]],true,5]"#);
}

#[tokio::test]
async fn a_snapshot_of_a_small_script_is_small_and_only_for_its_own_build() {
    let source = "(async () => { await tools.echo(1) })";
    let (mut execution, _) = wasm()
        .start(program(source), Box::new(TestHost::default()))
        .await
        .unwrap();
    let mut image = execution.snapshot().unwrap();
    assert!(image.bytes.len() < 400 << 10, "{} bytes", image.bytes.len());
    image.build = "another".into();
    let refused = wasm()
        .restore(&image, program(""), Box::new(TestHost::default()))
        .await;
    assert!(matches!(refused, Err(Fault::Foreign { .. })));
}

#[tokio::test]
async fn a_mangled_image_stays_behind_the_wall() {
    let source = "(async () => { await tools.echo(1); return 1 })";
    let (mut execution, _) = wasm()
        .start(program(source), Box::new(TestHost::default()))
        .await
        .unwrap();
    let image = execution.snapshot().unwrap();
    for step in [1, 7, 113, 1031] {
        let mut mangled = image.clone();
        mangled
            .bytes
            .iter_mut()
            .skip(4)
            .step_by(step)
            .for_each(|byte| *byte ^= 0x5a);
        let restored = wasm()
            .restore(&mangled, program(""), Box::new(TestHost::default()))
            .await;
        if let Ok(mut execution) = restored {
            let _ = execution.settle(1, Outcome::Value("1")).await;
        }
    }
    for length in [0, 3, image.bytes.len() - 1] {
        let mut short = image.clone();
        short.bytes.truncate(length);
        let refused = wasm()
            .restore(&short, program(""), Box::new(TestHost::default()))
            .await;
        assert!(matches!(refused, Err(Fault::Engine(_))), "{length}");
    }
}
