//! `selvedge memory stats` and `export`.

use std::io::{BufWriter, Write};

use anyhow::Result;
use selvedge_memory::{Level, Memory, MemoryError};

use super::args::{ExportArgs, StatsArgs};
use crate::Exit;
use crate::out::line;
use crate::problem::Problem;

pub(super) fn stats(memory: &Memory, args: &StatsArgs) -> Result<Exit> {
    let stats = memory.stats()?;
    if args.json {
        return crate::out::json(&stats);
    }
    if stats.sessions.is_empty() {
        tell!("note: the memory is empty");
        return Ok(Exit::Done);
    }
    line(&format!(
        "{:<28} {:>8} {:>9} {:>11} {:>7} {:>7} {:>7}  days",
        "session", "turns", "this week", "raw tokens", "S", "C", "T"
    ))?;
    for session in &stats.sessions {
        let name: String = session.session.chars().take(28).collect();
        let share = |level| format!("{:.0} %", session.share(level));
        let waiting = match session.waiting {
            0 => String::new(),
            count => format!("  ({count} turns without levels)"),
        };
        line(&format!(
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
    line(&format!(
        "{} lessons in use, {} proposals to review, {:.1} MB",
        stats.lessons,
        stats.proposals,
        stats.bytes as f64 / 1e6
    ))?;
    Ok(Exit::Done)
}

pub(super) fn export(memory: &Memory, args: &ExportArgs) -> Result<Exit> {
    let count = match &args.out {
        Some(path) => {
            let problem = |error: std::io::Error| {
                Problem::new(format!("cannot write {}: {error}", path.display()))
                    .hint("pass --out a path that is writable")
            };
            let mut out = BufWriter::new(crate::private::create(path).map_err(problem)?);
            let count = memory.export(args.session.as_deref(), &mut out)?;
            out.flush().map_err(problem)?;
            count
        }
        None => {
            let mut out = BufWriter::new(std::io::stdout().lock());
            let exported = memory.export(args.session.as_deref(), &mut out);
            // A reader that closes the pipe early is not an error.
            let is_closed = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
            match exported {
                Err(MemoryError::File { error, .. }) if is_closed(&error) => return Ok(Exit::Done),
                exported => {
                    let count = exported?;
                    match out.flush() {
                        Err(error) if is_closed(&error) => return Ok(Exit::Done),
                        flushed => flushed?,
                    }
                    count
                }
            }
        }
    };
    tell!("exported {count} turns, with secrets redacted");
    Ok(Exit::Done)
}
