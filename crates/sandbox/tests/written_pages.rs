//! Checks which pages of its memory a script writes. A process of its own, because it looks at the
//! memory of all instances.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use selvedge_sandbox::{GuestProgram, Host, InterruptHandle, Position, Runtime, WasmRuntime};

/// Number of separate ranges of pages that wasmtime restores by copying when an instance ends. The
/// pages after them are unmapped, and each costs the next script a page fault.
const MAX_RESTORED_RANGES: usize = 32;

const PAGE_BYTES: usize = 4096;

/// A host with tools of any name.
struct NamingHost;

impl Host for NamingHost {
    fn now(&mut self) -> f64 {
        0.0
    }

    fn message<'a>(&'a mut self, channel: &'a str, _: &'a str) -> BoxFuture<'a, Option<String>> {
        let reply = (channel == "resolve").then(|| "tool".to_owned());
        Box::pin(std::future::ready(reply))
    }

    fn locate(&mut self, _: Position) -> Option<Position> {
        None
    }
}

/// Returns whether each page of a mapping was written, for all mappings of the snapshot.
fn written_pages() -> Vec<Vec<bool>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    let snapshots = maps
        .lines()
        .filter(|line| line.contains("memfd:wasm-memory-image") && line.contains("rw-p"));
    let mut pages_of = |line: &str| {
        let (range, _) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let page = |address| usize::from_str_radix(address, 16).unwrap() / PAGE_BYTES;
        let (start, end) = (page(start), page(end));
        let mut entries = vec![0; (end - start) * 8];
        pagemap.seek(SeekFrom::Start(start as u64 * 8)).unwrap();
        pagemap.read_exact(&mut entries).unwrap();
        // A written page is present (bit 63), and no longer a page of the file (bit 61).
        let is_written = |entry: &[u8]| entry[7] & 0x80 != 0 && entry[7] & 0x20 == 0;
        entries.chunks(8).map(is_written).collect()
    };
    snapshots.map(&mut pages_of).collect()
}

#[test]
fn a_script_with_a_call_writes_to_few_ranges_of_pages() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let wasm = WasmRuntime::shared().unwrap();
    let program = GuestProgram {
        source: "(async () => { const r = await tools.tool({ a: 1 }); return r })",
        seed: 1,
        memory_limit: 96 << 20,
        stack_limit: 512 << 10,
        interrupt: Arc::new(InterruptHandle::new(Duration::from_secs(60))),
    };
    let started = runtime.block_on(wasm.start(program, Box::new(NamingHost)));
    let _waiting = started.ok().unwrap();
    let ranges = |pages: &Vec<bool>| {
        let starts = (0..pages.len()).filter(|&at| pages[at] && (at == 0 || !pages[at - 1]));
        starts.count()
    };
    let written: Vec<usize> = written_pages().iter().map(ranges).collect();
    let most = written.into_iter().max().unwrap();
    println!("{most} ranges");
    assert!((1..=MAX_RESTORED_RANGES).contains(&most), "{most} ranges");
}
