//! `selvedge memory import`.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::Path;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use selvedge_memory::{Format, Imported, Memory};
use serde_json::json;

use super::args::{FormatArg, ImportArgs};
use crate::Exit;
use crate::out::line;
use crate::problem::Problem;

pub(super) fn import(memory: &Memory, args: &ImportArgs) -> Result<Exit> {
    let format = args.format.map(|format| match format {
        FormatArg::Jsonl => Format::Lines,
        FormatArg::Codex => Format::Codex,
        FormatArg::ClaudeCode => Format::ClaudeCode,
    });
    let mut all = Imported::default();
    for path in &args.files {
        let (file, size) = open(path)?;
        let name = path.display().to_string();
        let bar =
            bar(size, "{msg} {wide_bar} {bytes}/{total_bytes} {eta}").with_message(name.clone());
        let done = memory.import(file, &name, format, args.session.as_deref(), |bytes| {
            bar.set_position(bytes)
        })?;
        bar.finish_and_clear();
        all.turns += done.turns;
        all.before += done.before;
        for name in done.sessions {
            if !all.sessions.contains(&name) {
                all.sessions.push(name);
            }
        }
    }
    write_levels(memory)?;
    for session in &all.sessions {
        write_vectors(memory, session)?;
    }
    if args.json {
        let report = json!({"turns": all.turns, "before": all.before, "sessions": all.sessions});
        line(&report.to_string())?;
    } else {
        let before = match all.before {
            0 => String::new(),
            some => format!(", {some} were there before"),
        };
        let (turns, sessions) = (all.turns, all.sessions.len());
        tell!("{turns} turns of {sessions} sessions remembered{before}");
    }
    Ok(Exit::Done)
}

/// Writes what is still to be written of every turn's levels.
pub(super) fn write_levels(memory: &Memory) -> Result<()> {
    let mut bar_shown = None;
    loop {
        let written = memory.write_levels(None)?;
        let bar = bar_shown.get_or_insert_with(|| {
            let all = u64::from(written.now) + u64::from(written.waiting);
            bar(Some(all), "writing levels {wide_bar} {pos}/{len} {eta}")
        });
        bar.inc(u64::from(written.now));
        if written.waiting == 0 {
            bar.finish_and_clear();
            return Ok(());
        }
    }
}

/// Writes the vectors that a session lacks, where there is an encoder.
fn write_vectors(memory: &Memory, session: &str) -> Result<()> {
    let bar =
        bar(None, "writing vectors of {msg} {spinner} {pos}").with_message(session.to_owned());
    loop {
        match memory.write_vectors(session)? {
            0 => break,
            some => bar.inc(u64::from(some)),
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// A bar for people; nothing where nobody looks.
pub(super) fn bar(size: Option<u64>, template: &str) -> ProgressBar {
    let target = match std::io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(size, target);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// A file to read, and its size where it has one.
pub(super) fn open(path: &Path) -> Result<(Box<dyn BufRead>, Option<u64>)> {
    if path == Path::new("-") {
        return Ok((Box::new(BufReader::new(std::io::stdin())), None));
    }
    let file = File::open(path).map_err(|error| {
        Problem::new(format!("cannot read {}: {error}", path.display())).hint("name a file, or `-`")
    })?;
    let size = file.metadata().ok().map(|about| about.len());
    Ok((Box::new(BufReader::new(file)), size))
}
