//! One process, ten thousand scripts, hostile ones among them, and no more memory at the end.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::time::Duration;

use selvedge_protocol::Limits;
use support::{Bench, on_a_thread};

const SCRIPTS: usize = 10_000;
/// Scripts between two looks at the memory.
const BETWEEN_LOOKS: usize = 500;

/// Scripts of all kinds; those that fail are meant to.
const KINDS: &[&str] = &[
    "return 1 + 1",
    "const f = await tools.readFile({ path: 'README.md' }); return f.totalLines",
    "return await Promise.all([1, 2, 3].map(n => tools.echo({ value: n })))",
    "enum E { A, B } class P { constructor(private x: number) {} get y() { return this.x } } return new P(E.B).y",
    "const m = new Map(); for (let i = 0; i < 1000; i++) m.set('k' + i, { i }); return m.size",
    "throw new Error('on purpose')",
    "await tools.fail({ message: 'on purpose' })",
    "tools.sleep({ ms: 60_000 }); return 'not awaited'",
    "return 'x'.repeat(200_000)",
    "const deep = (n) => deep(n + 1); deep(0)",
    "await tools.nothing({})",
    "const a = ;",
    "console.log('a'.repeat(1000)); text('b'.repeat(1000)); return JSON.stringify([...Array(500).keys()])",
    "return [...'the quick brown fox'.matchAll(/(?<w>\\w+)/g)].map(m => m.groups.w)",
];

/// These run into a limit of time or memory, so fewer of them.
const HOSTILE: &[&str] = &[
    "while (true) {}",
    "[].reverse.call({ length: 2 ** 53 - 1 })",
    "const keep = []; for (;;) keep.push(new Array(1000).fill(7))",
    "for (;;) await null",
    "let s = 'x'; for (;;) s += s",
    "const big = 'x'.repeat(1e6); for (;;) tools.echo({ value: big })",
];

#[test]
fn ten_thousand_scripts_leave_memory_as_it_was() {
    let bench = Bench::limited(Limits {
        timeout_ms: 15,
        memory_mb: 16,
        ..Limits::default()
    });
    let patient = Bench::new();
    let (strict, relaxed) = (bench.harness.clone(), patient.harness.clone());
    let seen = on_a_thread(
        "ten thousand scripts",
        Duration::from_secs(300),
        async move {
            let (mut seen, mut fine) = (Vec::new(), 0);
            for n in 0..SCRIPTS {
                if n % 50 == 0 {
                    let output = strict.run(HOSTILE[(n / 50) % HOSTILE.len()]).await;
                    assert!(
                        output.error.is_some(),
                        "{}",
                        HOSTILE[(n / 50) % HOSTILE.len()]
                    );
                } else {
                    // Half of them are new to the compiler.
                    let kind = KINDS[n % KINDS.len()];
                    let source = if n % 2 == 0 {
                        format!("{kind}\n// {n}")
                    } else {
                        kind.to_owned()
                    };
                    let output = relaxed.run(&source).await;
                    fine += usize::from(output.error.is_none());
                }
                if n >= SCRIPTS / 4 && n % BETWEEN_LOOKS == 0 {
                    seen.push(resident_kb());
                }
            }
            // Eight of the fourteen kinds end well.
            assert!((5_000..6_000).contains(&fine), "{fine} scripts ended well");
            seen
        },
    );
    assert!(
        seen.iter().all(|kb| *kb > 0),
        "the kernel does not tell our memory"
    );
    // What leaks grows all the time. The allocator keeps what a flood of calls once needed: that is a step, and no more
    // follow.
    let mut grown: Vec<i64> = seen
        .windows(2)
        .map(|pair| pair[1] as i64 - pair[0] as i64)
        .collect();
    grown.sort_unstable();
    assert!(
        grown[grown.len() / 2] * (grown.len() as i64) < 16 * 1024,
        "it grows: {seen:?} KB"
    );
    assert!(
        seen[seen.len() - 1] < seen[0] + 64 * 1024,
        "it keeps too much: {seen:?} KB"
    );
}

/// Resident memory of this process.
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
