//! `selvedge memory show`: prints a session within a token budget, as it appears in a prompt.

use std::io::IsTerminal;

use anyhow::Result;
use selvedge_memory::{Assembled, Band, Gradient, Keep, Level, Memory, MemoryError, Strategy};
use serde_json::json;

use super::args::ShowArgs;
use crate::Exit;
use crate::out::{line, talk};

pub(super) fn show(memory: &Memory, args: &ShowArgs, configured: Gradient) -> Result<Exit> {
    let session = super::session(memory, args.session.as_deref())?;
    if memory.turns(&session)? == 0 {
        return Err(MemoryError::NoSession(session).into());
    }
    let gradient = Gradient {
        budget: args.budget.unwrap_or(configured.budget),
        ..configured
    };
    let shown = memory.assemble(&session, Strategy::Gradient(gradient), Keep::Nothing)?;
    let text = memory.redacted(&shown.text);
    if args.json {
        let answer = json!({
            "session": session, "budget": gradient.budget, "tokens": shown.tokens,
            "reserve": shown.reserve, "planned": shown.planned, "bands": shown.bands, "text": text,
        });
        line(&serde_json::to_string(&answer)?)?;
        return Ok(Exit::Done);
    }
    let chart = picture(&shown, gradient.budget);
    if std::io::stdout().is_terminal() && !args.text {
        line(chart.trim_end())?;
        tell!("note: pass --text to print the text of the prompt");
        return Ok(Exit::Done);
    }
    talk(&chart);
    line(text.trim_end_matches('\n'))?;
    Ok(Exit::Done)
}

/// Columns of a bar in the chart.
const WIDTH: usize = 40;

/// Returns a chart with one line per band: its turns, its tokens, and its share of the budget.
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
    rows.push(("reserve", "for new turns".to_owned(), shown.reserve));
    let mut chart = String::new();
    for (name, turns, tokens) in rows {
        let share = f64::from(tokens) / f64::from(budget.max(1));
        let filled = ((share * WIDTH as f64).round() as usize).min(WIDTH);
        let bar = "█".repeat(filled) + &"·".repeat(WIDTH - filled);
        chart.push_str(&format!(
            "{name:<10} {turns:<20} {tokens:>8} tokens  {bar} {:>3.0} %\n",
            share * 100.0
        ));
    }
    let used = shown.tokens + shown.reserve;
    chart.push_str(&format!(
        "{:<10} {:<20} {used:>8} of {budget}\n",
        "total", ""
    ));
    chart
}
