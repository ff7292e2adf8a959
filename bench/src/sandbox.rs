//! Measures the sandbox alone, compared with JavaScript sandboxes from npm.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use selvedge_sandbox::{
    GuestProgram, GuestRequest, GuestStepState, Host, InterruptHandle, Position, Runtime,
    ScriptFinish, Settlement, WasmRuntime,
};

use crate::measure::{ResidentMemory, Samples, elapsed_ms, resident_mb};
use crate::peers::Peers;
use crate::table::BenchTable;

/// Rounds, in each of which Selvedge and the peers are measured in turn.
const ROUNDS: u32 = 40;
/// Repetitions in one round.
const REPETITIONS: u32 = 25;

/// A host that answers nothing but the name of a tool.
struct SilentHost;

impl Host for SilentHost {
    fn now(&mut self) -> f64 {
        0.0
    }

    fn message<'a>(
        &'a mut self,
        channel: &'a str,
        _: &'a str,
    ) -> Pin<Box<dyn Future<Output = Option<String>> + Send + 'a>> {
        let reply = (channel == "resolve").then(|| "tool".to_owned());
        Box::pin(std::future::ready(reply))
    }

    fn locate(&mut self, _: Position) -> Option<Position> {
        None
    }
}

pub(crate) fn measure(table: &mut BenchTable) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let wasm = WasmRuntime::shared()?;
    let mut peers = Peers::start()?;

    let (mut ours, mut quickjs, mut isolated) =
        (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        ours.extend(
            (0..REPETITIONS).map(|_| time_ms(|| runtime.block_on(run_one_plus_one(&wasm)))),
        );
        quickjs.extend(peers.measure("quickjs-emscripten/one", REPETITIONS)?);
        isolated.extend(peers.measure("isolated-vm/one", REPETITIONS)?);
    }
    let to_quickjs = ours.p50() / quickjs.p50();
    let to_isolated = ours.p50() / isolated.p50();
    table.add_row(
        "fresh hardened sandbox + `1+1` + drop",
        format!("{:.3} ms (p99 {:.3})", ours.p50(), ours.p99()),
        &format!(
            "quickjs-emscripten {:.2} ms (p99 {:.2}): ratio 1/{:.1}; \
             isolated-vm {:.2} ms (p99 {:.2}): ratio 1/{:.1}",
            quickjs.p50(),
            quickjs.p99(),
            1.0 / to_quickjs,
            isolated.p50(),
            isolated.p99(),
            1.0 / to_isolated
        ),
        "≤ 0.15 ms, ≤ 1/5, ≤ 1/15",
        ours.p50() <= 0.15 && to_quickjs <= 0.2 && to_isolated <= 1.0 / 15.0,
    );

    let (mut ours, mut quickjs) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        ours.extend((0..REPETITIONS).map(|_| time_ms(|| runtime.block_on(run_ten_awaits(&wasm)))));
        quickjs.extend(peers.measure("quickjs-emscripten/await-ten", REPETITIONS)?);
    }
    let ratio = ours.p50() / quickjs.p50();
    table.add_row(
        "10 sequential awaits, fresh sandbox included",
        format!("{:.3} ms (p99 {:.3})", ours.p50(), ours.p99()),
        &format!(
            "quickjs-emscripten {:.2} ms (p99 {:.2}): ratio 1/{:.1}",
            quickjs.p50(),
            quickjs.p99(),
            1.0 / ratio
        ),
        "≤ 0.4 ms, ≤ 1/3",
        ours.p50() <= 0.4 && ratio <= 1.0 / 3.0,
    );

    let mut overshoot = Samples::default();
    for _ in 0..150 {
        overshoot.extend([runtime.block_on(measure_overshoot(&wasm))]);
    }
    table.add_row(
        "hostile script past its deadline",
        format!(
            "{:.1} ms over (p99 {:.1})",
            overshoot.p50(),
            overshoot.p99()
        ),
        "",
        "p99 ≤ 50 ms",
        overshoot.p99() <= 50.0,
    );

    let before = resident_mb();
    let (total_ms, during) = runtime.block_on(run_thousand(&wasm));
    table.add_row(
        "1,000 scripts at once, each awaiting a tool",
        format!(
            "all finished in {total_ms:.0} ms, {:.0} MB PSS ({:.0} before), {:.0} MB resident",
            during.proportional, before.proportional, during.all
        ),
        "",
        "all finish, ≤ 250 MB PSS",
        during.proportional <= 250.0,
    );
    Ok(())
}

/// Returns the milliseconds that `work` takes.
fn time_ms<T>(work: impl FnOnce() -> T) -> f64 {
    let start = Instant::now();
    work();
    elapsed_ms(start)
}

fn program(source: &str) -> GuestProgram<'_> {
    GuestProgram {
        source,
        seed: 1,
        memory_limit: 96 << 20,
        stack_limit: 512 << 10,
        interrupt: Arc::new(InterruptHandle::new(Duration::from_secs(10))),
    }
}

/// Runs `1 + 1` in a new sandbox.
async fn run_one_plus_one(wasm: &WasmRuntime) {
    let started = wasm
        .start(program("(async () => 1 + 1)"), Box::new(SilentHost))
        .await;
    let Ok((_, step)) = started else {
        panic!("the script does not start")
    };
    assert!(matches!(
        &step.state,
        GuestStepState::Finished(ScriptFinish::Value(Some(value))) if value == "2"
    ));
}

/// Runs a script that awaits ten calls one after the other.
async fn run_ten_awaits(wasm: &WasmRuntime) {
    let source = "(async () => { for (let i = 0; i < 10; i++) await tools.tool({ i }); return 1 })";
    let Ok((mut execution, mut step)) = wasm.start(program(source), Box::new(SilentHost)).await
    else {
        panic!("the script does not start")
    };
    let mut answered = 0;
    while !matches!(step.state, GuestStepState::Finished(_)) {
        let Some(GuestRequest::Call { id, .. }) = step.requests.pop() else {
            panic!("the script makes no call")
        };
        let Ok(next) = execution.settle(id, Settlement::Value("null")).await else {
            panic!("the script failed")
        };
        step = next;
        answered += 1;
    }
    assert_eq!(answered, 10);
}

/// Returns how many milliseconds after its deadline an endless built-in function is stopped.
async fn measure_overshoot(wasm: &WasmRuntime) -> f64 {
    let limit = Duration::from_millis(20);
    let source = "(async () => { [].reverse.call({ length: 2 ** 53 - 1 }) })";
    let start = Instant::now();
    let stopped = wasm
        .start(
            GuestProgram {
                interrupt: Arc::new(InterruptHandle::new(limit)),
                ..program(source)
            },
            Box::new(SilentHost),
        )
        .await;
    assert!(stopped.is_err());
    (elapsed_ms(start) - limit.as_secs_f64() * 1e3).max(0.0)
}

/// Runs 1,000 scripts at once, and returns the milliseconds of all and the memory while they wait.
async fn run_thousand(wasm: &WasmRuntime) -> (f64, ResidentMemory) {
    let source = "(async () => { const r = await tools.tool({}); return r })";
    let start = Instant::now();
    let mut waiting = Vec::new();
    for _ in 0..1000 {
        let Ok(started) = wasm.start(program(source), Box::new(SilentHost)).await else {
            panic!("the script does not start")
        };
        waiting.push(started);
    }
    let during = resident_mb();
    for (mut execution, mut step) in waiting {
        let Some(GuestRequest::Call { id, .. }) = step.requests.pop() else {
            panic!("the script makes no call")
        };
        let Ok(next) = execution.settle(id, Settlement::Value("7")).await else {
            panic!("the script failed")
        };
        assert!(matches!(
            next.state,
            GuestStepState::Finished(ScriptFinish::Value(_))
        ));
    }
    (elapsed_ms(start), during)
}
