//! Runs thousands of scripts, some of them hostile, in one process and checks that its memory stops
//! growing.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::time::Duration;

use selvedge_protocol::Limits;
use support::{TestFixture, run_on_thread};

/// Number of scripts before the first measurement.
const WARM_UP_SCRIPTS: usize = 2_500;
/// Number of scripts after which the memory must have stopped growing.
const MAX_SCRIPTS: usize = 20_000;
/// Number of scripts between two measurements of the memory.
const SCRIPTS_PER_SAMPLE: usize = 500;
/// Number of measurements that have to be alike: 4,000 scripts.
const PLATEAU_SAMPLES: usize = 8;
/// Largest difference between alike measurements, in KB: 2 KB for each script.
const PLATEAU_RANGE_KB: u64 = 8 * 1024;

/// Scripts of different kinds. Some fail on purpose.
const KINDS: &[&str] = &[
    "return 1 + 1",
    "const f = await tools.readFile({ path: 'README.md' }); return f.totalLines",
    "return await Promise.all([1, 2, 3].map(n => tools.echo({ value: n })))",
    "enum E { A, B } class P { constructor(private x: number) {} get y() { return this.x } } \
     return new P(E.B).y",
    "const m = new Map(); for (let i = 0; i < 1000; i++) m.set('k' + i, { i }); return m.size",
    "throw new Error('on purpose')",
    "await tools.fail({ message: 'on purpose' })",
    "tools.sleep({ ms: 60_000 }); return 'not awaited'",
    "return 'x'.repeat(200_000)",
    "const deep = (n) => deep(n + 1); deep(0)",
    "await tools.nothing({})",
    "const a = ;",
    "console.log('a'.repeat(1000)); text('b'.repeat(1000)); \
     return JSON.stringify([...Array(500).keys()])",
    "return [...'the quick brown fox'.matchAll(/(?<w>\\w+)/g)].map(m => m.groups.w)",
];

/// Scripts that reach a time or memory limit. They are slow, so fewer of them run.
const HOSTILE: &[&str] = &[
    "while (true) {}",
    "[].reverse.call({ length: 2 ** 53 - 1 })",
    "const keep = []; for (;;) keep.push(new Array(1000).fill(7))",
    "for (;;) await null",
    "let s = 'x'; for (;;) s += s",
    "const big = 'x'.repeat(1e6); for (;;) tools.echo({ value: big })",
];

/// The allocator keeps what a flood of calls once needed, so the memory grows for a while. A leak
/// grows for ever.
#[test]
fn the_memory_of_thousands_of_scripts_stops_growing() {
    let fixture = TestFixture::limited(Limits {
        timeout_ms: 15,
        memory_mb: 16,
        ..Limits::default()
    });
    let default_limits = TestFixture::new();
    let (strict, relaxed) = (fixture.harness.clone(), default_limits.harness.clone());
    let samples = run_on_thread(
        "thousands of scripts",
        Duration::from_secs(600),
        async move {
            let (mut samples, mut succeeded) = (Vec::new(), 0);
            for n in 0..MAX_SCRIPTS {
                if n % 50 == 0 {
                    let source = HOSTILE[(n / 50) % HOSTILE.len()];
                    let output = strict.run(source).await;
                    assert!(output.error.is_some(), "{source}");
                } else {
                    // Half of the scripts are not in the compiler's cache.
                    let kind = KINDS[n % KINDS.len()];
                    let source = if n % 2 == 0 {
                        format!("{kind}\n// {n}")
                    } else {
                        kind.to_owned()
                    };
                    let output = relaxed.run(&source).await;
                    succeeded += usize::from(output.error.is_none());
                }
                if n >= WARM_UP_SCRIPTS && n % SCRIPTS_PER_SAMPLE == 0 {
                    samples.push(resident_kb());
                }
                if is_plateau(&samples) {
                    // Eight of the fourteen kinds succeed.
                    assert!(
                        (n / 2..n * 3 / 5).contains(&succeeded),
                        "{succeeded} of {n} scripts succeeded"
                    );
                    break;
                }
            }
            samples
        },
    );
    assert!(
        samples.iter().all(|kb| *kb > 0),
        "the kernel does not report the memory of this process"
    );
    assert!(is_plateau(&samples), "the memory grows: {samples:?} KB");
    assert!(
        samples[samples.len() - 1] < samples[0] + 64 * 1024,
        "the memory is larger at the end: {samples:?} KB"
    );
}

/// Whether the last measurements are alike.
fn is_plateau(samples: &[u64]) -> bool {
    let Some(last) = samples.last_chunk::<PLATEAU_SAMPLES>() else {
        return false;
    };
    let range = last.iter().max().zip(last.iter().min());
    range.is_some_and(|(max, min)| max - min < PLATEAU_RANGE_KB)
}

/// Returns the resident memory of this process in KB.
fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|kb| kb.parse().ok())
        .unwrap_or(0)
}
