//! `selvedge memory import`: stores conversations from files and writes their levels and vectors.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::Path;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use selvedge_memory::{ImportFormat, ImportReport, Memory};
use selvedge_text::count_noun;
use serde_json::json;

use super::args::{MemoryFormatArg, MemoryImportArgs};
use crate::CliStatus;
use crate::output::print_json_text;
use crate::problem::Problem;

pub(super) fn import(memory: &Memory, args: &MemoryImportArgs) -> Result<CliStatus> {
    let format = args.format.map(|format| match format {
        MemoryFormatArg::Jsonl => ImportFormat::Lines,
        MemoryFormatArg::Codex => ImportFormat::Codex,
        MemoryFormatArg::ClaudeCode => ImportFormat::ClaudeCode,
    });
    let mut total = ImportReport::default();
    for path in &args.files {
        let (file, size) = open_input(path)?;
        let name = path.display().to_string();
        let bar = progress_bar(size, "{msg} {wide_bar} {bytes}/{total_bytes} {eta}", &name);
        let imported = memory.import(file, &name, format, args.session.as_deref(), |bytes| {
            bar.set_position(bytes)
        })?;
        bar.finish_and_clear();
        total.new_turns += imported.new_turns;
        total.existing_turns += imported.existing_turns;
        for name in imported.sessions {
            if !total.sessions.contains(&name) {
                total.sessions.push(name);
            }
        }
    }
    write_levels(memory)?;
    for session in &total.sessions {
        write_vectors(memory, session)?;
    }
    if args.json {
        let report = json!({"turns": total.new_turns, "before": total.existing_turns, "sessions": total.sessions});
        print_json_text(&report.to_string())?;
    } else {
        let skipped = match total.existing_turns {
            0 => String::new(),
            count => format!(", skipped {count} already imported"),
        };
        let turns = count_noun(total.new_turns, "turn");
        let sessions = count_noun(total.sessions.len(), "session");
        eprint_line!("imported {turns} of {sessions}{skipped}");
    }
    Ok(CliStatus::Success)
}

/// Writes all levels that are still missing, with a progress bar.
pub(super) fn write_levels(memory: &Memory) -> Result<()> {
    let mut bar_shown = None;
    loop {
        let written = memory.write_levels(None)?;
        let bar = bar_shown.get_or_insert_with(|| {
            let total = u64::from(written.written_turns) + u64::from(written.remaining_turns);
            progress_bar(
                Some(total),
                "writing levels {wide_bar} {pos}/{len} {eta}",
                "",
            )
        });
        bar.inc(u64::from(written.written_turns));
        if written.remaining_turns == 0 {
            bar.finish_and_clear();
            return Ok(());
        }
    }
}

/// Writes the missing vectors of a session, if the memory has an encoder.
pub(super) fn write_vectors(memory: &Memory, session: &str) -> Result<()> {
    let bar = progress_bar(None, "writing vectors of {msg} {spinner} {pos}", session);
    loop {
        match memory.write_vectors(session)? {
            0 => break,
            written => bar.inc(u64::from(written)),
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// Creates a progress bar with a message on standard error, hidden unless that is a terminal.
pub(super) fn progress_bar(size: Option<u64>, template: &str, message: &str) -> ProgressBar {
    let target = match std::io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(size, target)
        .with_message(selvedge_text::visible_line(message).into_owned());
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Opens a file, or standard input for `-`. Returns its size if known.
pub(super) fn open_input(path: &Path) -> Result<(Box<dyn BufRead>, Option<u64>)> {
    if path == Path::new("-") {
        return Ok((Box::new(BufReader::new(std::io::stdin())), None));
    }
    let file = File::open(path).map_err(|error| {
        Problem::new(format!("cannot read {}: {error}", path.display()))
            .hint("pass the path of a file, or `-` for standard input")
    })?;
    let size = file.metadata().ok().map(|metadata| metadata.len());
    Ok((Box::new(BufReader::new(file)), size))
}
