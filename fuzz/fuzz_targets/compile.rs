//! Compiling arbitrary text ends with a script or with an error at a line of the text, never with a
//! panic, and within 2 s of CPU time and 256 MB. Prints each text that costs more than all before.
//! The parser's memory is compared with the predicted cost, so that a text which it would read
//! exponentially often is found while it is small.
#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use libfuzzer_sys::fuzz_target;
use selvedge_script::{ParseWork, ScriptCompiler};

/// CPU time that compiling one text may take, in nanoseconds.
const MAX_CPU_NANOSECONDS: u64 = 2_000_000_000;
/// Memory that compiling one text may take, in bytes.
const MAX_BYTES: usize = 256 << 20;

/// Memory that the parser may use for each unit of predicted cost and each byte of text.
const MAX_BYTES_PER_COST: usize = 500;

/// How often a text is compiled again that took longer than all before. The shortest time counts.
const REPETITIONS: usize = 3;

/// The system's allocator, which counts the bytes in use and their peak.
struct CountingAllocator;

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static WORST_CPU: AtomicU64 = AtomicU64::new(0);
static WORST_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(used, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Returns the CPU time of this thread in nanoseconds.
fn cpu_time() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = stat.split(' ').next().and_then(|time| time.parse().ok());
    nanoseconds.unwrap_or_default()
}

fuzz_target!(|source: &[u8]| {
    if let Some(work) = std::str::from_utf8(source).ok().and_then(ParseWork::measure) {
        let predicted = work.predicted_cost as usize + source.len() + 1;
        assert!(work.arena_bytes / predicted < MAX_BYTES_PER_COST, "{work:?}");
    }
    let used = USED.load(Ordering::Relaxed);
    PEAK.store(used, Ordering::Relaxed);
    let started = cpu_time();
    let compiled = ScriptCompiler::default().compile_bytes(source, 20_480);
    let mut spent = cpu_time() - started;
    // A virtual machine that is paused counts the pause as CPU time, so a slow text is repeated.
    for _ in 0..REPETITIONS {
        if spent <= WORST_CPU.load(Ordering::Relaxed) {
            break;
        }
        let started = cpu_time();
        let _ = ScriptCompiler::default().compile_bytes(source, 20_480);
        spent = spent.min(cpu_time() - started);
    }
    let bytes = PEAK.load(Ordering::Relaxed).saturating_sub(used);
    if let Err(error) = compiled {
        let lines = source.split(|byte| *byte == b'\n').count() as u32;
        assert!(
            error.line.is_none_or(|line| (1..=lines).contains(&line)),
            "{error:?}"
        );
    }
    let is_slowest = WORST_CPU.fetch_max(spent, Ordering::Relaxed) < spent;
    let is_largest = WORST_BYTES.fetch_max(bytes, Ordering::Relaxed) < bytes;
    if is_slowest || is_largest {
        let (ms, mb) = (spent as f64 / 1e6, bytes as f64 / 1e6);
        eprintln!(
            "worst: {ms:.1} ms, {mb:.1} MB, {} bytes of text",
            source.len()
        );
    }
    assert!(spent < MAX_CPU_NANOSECONDS, "{spent} ns");
    assert!(bytes < MAX_BYTES, "{bytes} bytes");
});
