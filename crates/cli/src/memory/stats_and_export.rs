//! `selvedge memory stats` and `export`.

use std::io::{BufWriter, Write};

use anyhow::Result;
use selvedge_memory::{Level, Memory, MemoryError};
use selvedge_text::count_noun;

use super::args::{MemoryExportArgs, MemoryStatsArgs};
use crate::CliStatus;
use crate::output::{JsonLinesWriter, print_line};
use crate::problem::Problem;

pub(super) fn stats(memory: &Memory, args: &MemoryStatsArgs) -> Result<CliStatus> {
    let stats = memory.stats()?;
    if args.json {
        return crate::output::print_json(&stats);
    }
    if stats.sessions.is_empty() {
        eprint_line!("note: the memory is empty");
        return Ok(CliStatus::Success);
    }
    print_line(&format!(
        "{:<28} {:>8} {:>9} {:>11} {:>7} {:>7} {:>7}  days",
        "session", "turns", "this week", "raw tokens", "S", "C", "T"
    ))?;
    for session in &stats.sessions {
        let name: String = session.session.chars().take(28).collect();
        let share = |level| format!("{:.0} %", session.percent_of_raw(level));
        let waiting = match session.waiting {
            0 => String::new(),
            count => format!("  ({} without levels)", count_noun(count, "turn")),
        };
        print_line(&format!(
            "{name:<28} {:>8} {:>9} {:>11} {:>7} {:>7} {:>7}  {} … {}{waiting}",
            session.turns,
            session.this_week,
            session.tokens[0],
            share(Level::Smoothed),
            share(Level::Compressed),
            share(Level::Tiny),
            session.days[0],
            session.days[1],
        ))?;
    }
    print_line(&format!(
        "{} in use, {} to review, {:.1} MB",
        count_noun(stats.lessons, "lesson"),
        count_noun(stats.proposals, "proposal"),
        stats.bytes as f64 / 1e6
    ))?;
    Ok(CliStatus::Success)
}

pub(super) fn export(memory: &Memory, args: &MemoryExportArgs) -> Result<CliStatus> {
    let count = match &args.out {
        Some(path) => {
            let problem = |error: std::io::Error| {
                Problem::new(format!("cannot write {}: {error}", path.display()))
                    .hint("pass --out a path that is writable")
            };
            let mut out =
                BufWriter::new(crate::private_file::create_private(path).map_err(problem)?);
            let count = memory.export(args.session.as_deref(), &mut out)?;
            out.flush().map_err(problem)?;
            count
        }
        None => {
            let mut out = BufWriter::new(JsonLinesWriter::stdout());
            let exported = memory.export(args.session.as_deref(), &mut out);
            // A reader that closes the pipe early is not an error.
            let is_closed = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
            match exported {
                Err(MemoryError::File { error, .. }) if is_closed(&error) => {
                    return Ok(CliStatus::Success);
                }
                exported => {
                    let count = exported?;
                    match out.flush() {
                        Err(error) if is_closed(&error) => return Ok(CliStatus::Success),
                        flushed => flushed?,
                    }
                    count
                }
            }
        }
    };
    let exported = count_noun(count, "turn");
    eprint_line!("exported {exported}, with secrets redacted");
    Ok(CliStatus::Success)
}
