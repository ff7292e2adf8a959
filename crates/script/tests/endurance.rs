//! Runs ten thousand scripts, some of them hostile, in one process and checks that its memory does
//! not grow.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::time::Duration;

use selvedge_protocol::Limits;
use support::{TestFixture, run_on_thread};

const SCRIPTS: usize = 10_000;
/// Number of scripts between two measurements of the memory.
const SCRIPTS_PER_SAMPLE: usize = 500;

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

#[test]
fn ten_thousand_scripts_do_not_grow_the_memory() {
    let fixture = TestFixture::limited(Limits {
        timeout_ms: 15,
        memory_mb: 16,
        ..Limits::default()
    });
    let default_limits = TestFixture::new();
    let (strict, relaxed) = (fixture.harness.clone(), default_limits.harness.clone());
    let samples = run_on_thread(
        "ten thousand scripts",
        Duration::from_secs(300),
        async move {
            let (mut samples, mut succeeded) = (Vec::new(), 0);
            for n in 0..SCRIPTS {
                if n % 50 == 0 {
                    let output = strict.run(HOSTILE[(n / 50) % HOSTILE.len()]).await;
                    assert!(
                        output.error.is_some(),
                        "{}",
                        HOSTILE[(n / 50) % HOSTILE.len()]
                    );
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
                if n >= SCRIPTS / 4 && n % SCRIPTS_PER_SAMPLE == 0 {
                    samples.push(resident_kb());
                }
            }
            // Eight of the fourteen kinds succeed.
            assert!(
                (5_000..6_000).contains(&succeeded),
                "{succeeded} scripts succeeded"
            );
            samples
        },
    );
    assert!(
        samples.iter().all(|kb| *kb > 0),
        "the kernel does not report the memory of this process"
    );
    // A leak grows in every interval. The allocator also keeps what a flood of calls once needed,
    // but that is a single step.
    let mut growth: Vec<i64> = samples
        .windows(2)
        .map(|pair| pair[1] as i64 - pair[0] as i64)
        .collect();
    growth.sort_unstable();
    assert!(
        growth[growth.len() / 2] * (growth.len() as i64) < 16 * 1024,
        "the memory grows: {samples:?} KB"
    );
    assert!(
        samples[samples.len() - 1] < samples[0] + 64 * 1024,
        "the memory is larger at the end: {samples:?} KB"
    );
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
