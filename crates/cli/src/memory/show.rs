//! `selvedge memory show`: a session within a budget, as a prompt has it.

use std::io::IsTerminal;

use anyhow::Result;
use selvedge_memory::{Assembled, Band, Gradient, Keep, Level, Memory, MemoryError, Strategy};
use serde_json::json;

use super::args::ShowArgs;
use crate::Exit;
use crate::out::{line, talk};

pub(super) fn show(memory: &Memory, args: &ShowArgs, usual: Gradient) -> Result<Exit> {
    let session = super::session(memory, args.session.as_deref())?;
    if memory.turns(&session)? == 0 {
        return Err(MemoryError::NoSession(session).into());
    }
    let gradient = Gradient {
        budget: args.budget.unwrap_or(usual.budget),
        ..usual
    };
    let shown = memory.assemble(&session, Strategy::Gradient(gradient), Keep::Nothing)?;
    let text = memory.redacted(&shown.text);
    if args.json {
        let answer = json!({
            "session": session, "budget": gradient.budget, "tokens": shown.tokens, "reserve": shown.reserve,
            "planned": shown.planned, "bands": shown.bands, "text": text,
        });
        line(&serde_json::to_string(&answer)?)?;
        return Ok(Exit::Done);
    }
    let picture = picture(&shown, gradient.budget);
    if std::io::stdout().is_terminal() && !args.text {
        line(picture.trim_end())?;
        tell!("note: --text prints what a prompt has of it");
        return Ok(Exit::Done);
    }
    talk(&picture);
    line(text.trim_end_matches('\n'))?;
    Ok(Exit::Done)
}

const WIDTH: usize = 40;

/// One line per band: its turns, its tokens, and its share of the budget drawn.
fn picture(shown: &Assembled, budget: u32) -> String {
    let mut rows: Vec<(&str, String, u32)> = Vec::new();
    let in_band =
        |level: Level, era: bool| move |band: &&Band| band.span.level == level && band.era == era;
    for (level, era) in [
        (Level::Tiny, true),
        (Level::Tiny, false),
        (Level::Compressed, false),
        (Level::Smoothed, false),
        (Level::Raw, false),
    ] {
        let bands: Vec<&Band> = shown.bands.iter().filter(in_band(level, era)).collect();
        let (Some(first), Some(last)) = (bands.first(), bands.last()) else {
            continue;
        };
        let name = if era { "eras" } else { level.word() };
        let turns = format!("T-{} … T-{}", first.span.first, last.span.last);
        rows.push((name, turns, bands.iter().map(|band| band.tokens).sum()));
    }
    rows.push(("room", "for turns to come".to_owned(), shown.reserve));
    let mut picture = String::new();
    for (name, turns, tokens) in rows {
        let share = f64::from(tokens) / f64::from(budget.max(1));
        let filled = ((share * WIDTH as f64).round() as usize).min(WIDTH);
        let bar = "█".repeat(filled) + &"·".repeat(WIDTH - filled);
        picture.push_str(&format!(
            "{name:<10} {turns:<20} {tokens:>8} tokens  {bar} {:>3.0} %\n",
            share * 100.0
        ));
    }
    let used = shown.tokens + shown.reserve;
    picture.push_str(&format!("{:<10} {:<20} {used:>8} of {budget}\n", "all", ""));
    picture
}
