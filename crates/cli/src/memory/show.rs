//! `selvedge memory show`: prints a session within a token budget, as it appears in a prompt.

use std::io::IsTerminal;

use anyhow::Result;
use selvedge_memory::{
    AssembledHistory, Band, GradientOptions, Level, Memory, MemoryError, PlanStorage,
};
use serde_json::json;

use super::args::MemoryShowArgs;
use crate::CliStatus;
use crate::output::{eprint_text, print_json_text, print_text};

pub(super) fn show(
    memory: &Memory,
    args: &MemoryShowArgs,
    configured: GradientOptions,
) -> Result<CliStatus> {
    let session = super::resolve_session(memory, args.session.as_deref())?;
    if memory.turn_count(&session)? == 0 {
        return Err(MemoryError::SessionNotFound(session).into());
    }
    let gradient = GradientOptions {
        budget: args.budget.unwrap_or(configured.budget),
        ..configured
    };
    let shown = memory.assemble(&session, gradient, PlanStorage::Discard)?;
    let text = memory.redact(&shown.text);
    if args.json {
        let answer = json!({
            "session": session, "budget": gradient.budget, "tokens": shown.tokens,
            "reserve": shown.reserve_tokens, "planned": shown.last_planned_turn, "bands": shown.bands, "text": text,
        });
        print_json_text(&serde_json::to_string(&answer)?)?;
        return Ok(CliStatus::Success);
    }
    let chart = band_chart(&shown, gradient.budget);
    if std::io::stdout().is_terminal() && !args.text {
        print_text(chart.trim_end())?;
        eprint_line!("note: pass --text to print the text of the prompt");
        return Ok(CliStatus::Success);
    }
    eprint_text(&chart);
    print_text(text.trim_end_matches('\n'))?;
    Ok(CliStatus::Success)
}

/// Columns of a bar in the chart.
const BAR_COLUMNS: usize = 40;

/// Returns a chart with one line per band: its turns, its tokens, and its share of the budget.
fn band_chart(shown: &AssembledHistory, budget: u32) -> String {
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
        let name = if era { "eras" } else { level.as_str() };
        let turns = format!("T-{} … T-{}", first.span.first, last.span.last);
        rows.push((name, turns, bands.iter().map(|band| band.tokens).sum()));
    }
    rows.push(("reserve", "for new turns".to_owned(), shown.reserve_tokens));
    let mut chart = String::new();
    for (name, turns, tokens) in rows {
        let share = f64::from(tokens) / f64::from(budget.max(1));
        let filled = ((share * BAR_COLUMNS as f64).round() as usize).min(BAR_COLUMNS);
        let bar = "█".repeat(filled) + &"·".repeat(BAR_COLUMNS - filled);
        chart.push_str(&format!(
            "{name:<10} {turns:<20} {tokens:>8} tokens  {bar} {:>3.0} %\n",
            share * 100.0
        ));
    }
    let used = shown.tokens + shown.reserve_tokens;
    chart.push_str(&format!(
        "{:<10} {:<20} {used:>8} of {budget}\n",
        "total", ""
    ));
    chart
}
