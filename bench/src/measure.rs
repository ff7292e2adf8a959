//! Time samples with their quantiles, and the memory of processes.

use std::time::Instant;

/// Durations in milliseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn extend(&mut self, more: impl IntoIterator<Item = f64>) {
        self.0.extend(more);
    }

    pub(crate) fn p50(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(crate) fn p95(&self) -> f64 {
        self.quantile(0.95)
    }

    pub(crate) fn p99(&self) -> f64 {
        self.quantile(0.99)
    }

    fn quantile(&self, quantile: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let index = ((sorted.len() as f64 - 1.0) * quantile).round() as usize;
        sorted.get(index).copied().unwrap_or(f64::NAN)
    }
}

/// Returns the milliseconds since `start`.
pub(crate) fn elapsed_ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Resident memory of a process in megabytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResidentMemory {
    /// All resident pages, shared ones included.
    pub(crate) all: f64,
    /// The proportional set size: shared pages counted once, however often they are mapped.
    pub(crate) proportional: f64,
}

/// Returns the resident memory of this process.
pub(crate) fn resident_mb() -> ResidentMemory {
    resident_mb_of("self")
}

/// Returns the resident memory of a process, by its id.
pub(crate) fn resident_mb_of(process: &str) -> ResidentMemory {
    let rollup = format!("/proc/{process}/smaps_rollup");
    let rollup = std::fs::read_to_string(rollup).unwrap_or_default();
    let read = |name: &str| {
        let line = rollup
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_default();
        line.split_whitespace()
            .nth(1)
            .and_then(|kb| kb.parse::<f64>().ok())
            .map_or(f64::NAN, |kb| kb / 1024.0)
    };
    ResidentMemory {
        all: read("Rss:"),
        proportional: read("Pss:"),
    }
}
