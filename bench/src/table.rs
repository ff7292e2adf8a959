//! The Markdown table of the results.

use std::fmt::Write;

use anyhow::{Context, Result};

/// Rows in the order they were measured.
#[derive(Debug, Default)]
pub(crate) struct BenchTable {
    rows: Vec<BenchRow>,
}

#[derive(Debug)]
struct BenchRow {
    /// What was measured.
    measurement: String,
    /// The result of Selvedge.
    selvedge: String,
    /// The result of the peers; empty if there are none.
    peer: String,
    /// The target; empty if there is none.
    target: String,
    /// Whether the target was met.
    is_met: bool,
}

impl BenchTable {
    /// Adds a row and prints it to standard error.
    pub(crate) fn add_row(&mut self, what: &str, ours: String, peer: &str, hold: &str, held: bool) {
        eprintln!("{} {what}: {ours}", if held { "✓" } else { "✗" });
        self.rows.push(BenchRow {
            measurement: what.to_owned(),
            selvedge: ours,
            peer: peer.to_owned(),
            target: hold.to_owned(),
            is_met: held,
        });
    }

    pub(crate) fn render(&self) -> String {
        let mut out = String::from(
            "| measurement | Selvedge | peer, same run | target | met |\n|---|---|---|---|---|\n",
        );
        for row in &self.rows {
            let held = match (row.target.is_empty(), row.is_met) {
                (true, _) => "",
                (false, true) => "yes",
                (false, false) => "**no**",
            };
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {held} |",
                row.measurement, row.selvedge, row.peer, row.target
            );
        }
        out
    }
}

/// Replaces the text between two marks of a Markdown file by the table and a description of the
/// machine.
pub(crate) fn write_table(file: &str, table: &str) -> Result<()> {
    const START: &str = "<!-- measured -->";
    const END: &str = "<!-- /measured -->";
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let (before, rest) = text
        .split_once(START)
        .with_context(|| format!("{file} has no {START}"))?;
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("{file} has no {END}"))?;
    let text = format!(
        "{before}{START}\nMeasured {} on {}.\n\n{table}{END}{after}",
        today(),
        describe_machine()
    );
    std::fs::write(file, text).with_context(|| format!("cannot write {file}"))
}

/// Returns the date as `2026-01-31`.
fn today() -> String {
    let output = std::process::Command::new("date").arg("+%Y-%m-%d").output();
    output
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map_or_else(|| "?".into(), |date| date.trim().to_owned())
}

/// Describes this machine: CPU, cores, kernel and load.
fn describe_machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| {
        line.strip_prefix("model name")?
            .split_once(": ")
            .map(|(_, name)| name.to_owned())
    });
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg")
        .split(' ')
        .next()
        .unwrap_or_default()
        .to_owned();
    let kernel = kernel
        .split('-')
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned();
    format!(
        "{} ({cores} cores), Linux {kernel},\nload {load} at the start",
        model.unwrap_or_else(|| std::env::consts::ARCH.into())
    )
}
