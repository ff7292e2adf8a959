//! Attacks on the compiler in front of the sandbox: texts for which parsers need exponential time
//! or memory. The rows of `data/front_end.tsv` are a prefix, a piece that is repeated, and a piece
//! that is repeated after it.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::attempt::{Attempt, Verdict};
use crate::lab::observe;

/// Maximum size of a script.
const MAX_SOURCE_BYTES: usize = 20_480;
/// Number of repetitions of the short texts.
const SHORT_REPETITIONS: usize = 24;
/// CPU seconds of the whole process, after which the kernel kills it. The compiler may use two.
const MAX_CPU_SECONDS: u32 = 5;
/// Memory of the whole process in KB, without which its next allocation fails.
const MAX_DATA_KB: u32 = 1_000_000;

/// Returns one attempt per row and length.
pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    let rows = include_str!("../data/front_end.tsv").lines();
    let rows = rows.filter(|row| !row.starts_with("# "));
    let mut attempts = Vec::new();
    for (number, row) in rows.enumerate() {
        let name = format!("row {}: {row:?}", number + 1);
        let text = row.replace("\\n", "\n").replace("\\u2028", "\u{2028}");
        let text = text.replace("\\u200b", "\u{200b}");
        let mut columns = text.split('\t');
        let mut column = || columns.next().unwrap_or_default().to_owned();
        let (prefix, piece, end) = (column(), column(), column());
        // A text that hides the piece from a scanner is most expensive if it is short.
        for most in [SHORT_REPETITIONS, usize::MAX] {
            let source = repeated_text(&prefix, &piece, &end, most);
            attempts.push(Attempt::new(name.clone(), move |lab| {
                let selvedge = lab.selvedge(&["run", "--json", "--timeout", "2s", "-"]);
                let seen = observe(limited(&selvedge)?, &source)?;
                let item: Value = serde_json::from_str(&seen.stdout).unwrap_or(Value::Null);
                let has_result = item["type"] == "script_tool_call_output";
                Ok(Verdict::held_if(
                    has_result && seen.ended_cleanly(),
                    format!("{:?}: {}", seen.elapsed, seen.output()),
                ))
            }));
        }
    }
    Ok(attempts)
}

/// Returns a text with at most this many repetitions that is not too long for a script.
fn repeated_text(prefix: &str, piece: &str, end: &str, most: usize) -> String {
    let numbered = |piece: &str, number: usize| {
        let number_before = number.saturating_sub(1).to_string();
        piece
            .replace("%n", &number.to_string())
            .replace("%p", &number_before)
    };
    let mut times = most.min(MAX_SOURCE_BYTES / (piece.len() + end.len()).max(1));
    loop {
        let repeated = |piece: &str| (1..=times).map(|n| numbered(piece, n)).collect::<String>();
        let text = format!("{prefix}{}{}", repeated(piece), repeated(end));
        if text.len() <= MAX_SOURCE_BYTES {
            return text;
        }
        times -= 1 + times / 20;
    }
}

/// Returns the command with limits that kill it.
fn limited(command: &Command) -> Result<Command> {
    let mut shell = Command::new("sh");
    let limits = format!("ulimit -t {MAX_CPU_SECONDS} && ulimit -d {MAX_DATA_KB} && exec \"$@\"");
    shell.args(["-c", &limits, "sh"]).arg(command.get_program());
    shell.args(command.get_args());
    for (name, value) in command.get_envs() {
        shell.env(name, value.context("a variable without a value")?);
    }
    shell.current_dir(command.get_current_dir().context("no folder")?);
    Ok(shell)
}
