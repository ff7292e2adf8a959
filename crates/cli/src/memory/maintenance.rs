//! `selvedge memory topics`, `replan` and `reindex`.

use std::collections::BTreeMap;

use anyhow::Result;
use selvedge_memory::{GradientOptions, Memory, MemoryAccess, TopicTrend};
use selvedge_protocol::MemoryScope;
use selvedge_text::count_noun;
use serde_json::json;

use super::args::{MemoryReindexArgs, MemoryReplanArgs, MemoryTopicsArgs};
use super::import::write_vectors;
use crate::CliStatus;
use crate::output::{print_json_text, print_line};

/// Weeks that the chart shows, the latest.
pub(crate) const MAX_CHART_WEEKS: usize = 12;
/// Topics of one area that are shown.
const MAX_TOPICS_OF_AREA: usize = 10;
/// The bars of the chart, the lowest first. A space is a week without the topic.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub(super) fn topics(memory: &Memory, args: &MemoryTopicsArgs) -> Result<CliStatus> {
    let mut access = MemoryAccess::new(args.session.as_deref().unwrap_or_default());
    let mut areas = Vec::new();
    if args.all {
        access.scope = MemoryScope::All;
    } else if args.session.is_some() {
        access.scope = MemoryScope::Session;
    } else {
        access.project = super::project_of_this_folder(memory)?;
        if let Some(project) = &access.project {
            areas = memory.topic_areas(project)?;
        }
    }
    let trends = memory.topic_trends(&access)?;
    if args.json {
        print_json_text(&json!({"topics": trends, "areas": areas}).to_string())?;
        return Ok(CliStatus::Success);
    }
    if trends.is_empty() && areas.is_empty() {
        eprint_line!("note: no topics yet; run `selvedge memory distill` to find them");
        eprint_line!("hint: pass --all for the topics of all projects");
        return Ok(CliStatus::Success);
    }
    let weeks = TopicTrend::latest_weeks(&trends, MAX_CHART_WEEKS);
    if let (Some(first), Some(last)) = (weeks.first(), weeks.last()) {
        let weeks = count_noun(weeks.len(), "week");
        print_line(&format!("{weeks}, from {first} to {last}"))?;
    }
    let mut by_area: BTreeMap<&str, Vec<&TopicTrend>> = BTreeMap::new();
    for trend in &trends {
        by_area
            .entry(&trend.topic.category)
            .or_default()
            .push(trend);
    }
    let mut listed: Vec<(&str, Vec<&TopicTrend>)> = by_area.into_iter().collect();
    // The area with the most prominent topic comes first, the others' area last.
    let weight = |topics: &[&TopicTrend]| topics.first().map_or(0.0, |it| it.topic.weight);
    listed.sort_by(|(a_name, a), (b_name, b)| {
        let is_other = |name: &str| name == "other";
        let by_weight = weight(b).total_cmp(&weight(a));
        is_other(a_name).cmp(&is_other(b_name)).then(by_weight)
    });
    for (area, topics) in listed {
        print_line(area)?;
        if let Some(described) = areas.iter().find(|it| it.name == area) {
            print_line(&format!("  {}", described.note))?;
        }
        let width = topics.iter().map(|it| it.topic.name.chars().count()).max();
        let width = width.unwrap_or(0).min(30);
        for trend in topics.iter().take(MAX_TOPICS_OF_AREA) {
            let (topic, bars) = (&trend.topic, chart(trend, &weeks));
            let turns = count_noun(topic.turns, "turn");
            let name = &topic.name;
            print_line(&format!(
                "  {name:<width$}  {bars}  {:.2}  {turns}",
                topic.weight
            ))?;
        }
    }
    for area in &areas {
        if !trends.iter().any(|trend| trend.topic.category == area.name) {
            print_line(&area.name)?;
            print_line(&format!("  {}", area.note))?;
        }
    }
    Ok(CliStatus::Success)
}

/// Draws how often a topic occurred in each week, with the highest bar for its best week.
fn chart(trend: &TopicTrend, weeks: &[String]) -> String {
    let turns = trend.turns_in(weeks);
    let highest = turns.iter().copied().max().unwrap_or(0).max(1);
    let bar = |turns: u32| match turns {
        0 => ' ',
        turns => BARS[((turns * 8).div_ceil(highest) as usize).clamp(1, 8) - 1],
    };
    turns.into_iter().map(bar).collect()
}

pub(super) fn replan(
    memory: &Memory,
    args: &MemoryReplanArgs,
    gradient: GradientOptions,
) -> Result<CliStatus> {
    let sessions = sessions_of(memory, args.session.as_deref())?;
    let mut planned = Vec::new();
    for session in &sessions {
        let history = memory.replan(session, gradient)?;
        planned.push(json!({
            "session": session, "bands": history.bands.len(), "tokens": history.tokens,
        }));
        if !args.json {
            let (bands, tokens) = (count_noun(history.bands.len(), "band"), history.tokens);
            print_line(&format!("{session}: {bands}, {tokens} tokens"))?;
        }
    }
    if args.json {
        print_json_text(&json!(planned).to_string())?;
    }
    Ok(CliStatus::Success)
}

pub(super) fn reindex(memory: &Memory, args: &MemoryReindexArgs) -> Result<CliStatus> {
    let sessions = sessions_of(memory, args.session.as_deref())?;
    let mut turns = 0;
    for session in &sessions {
        turns += memory.reindex(session)?;
        write_vectors(memory, session)?;
    }
    if args.session.is_none() {
        memory.reindex_lessons()?;
    }
    if args.json {
        let report = json!({"sessions": sessions.len(), "turns": turns});
        print_json_text(&report.to_string())?;
    } else {
        let sessions = count_noun(sessions.len(), "session");
        eprint_line!("indexed {} of {sessions}", count_noun(turns, "turn"));
    }
    Ok(CliStatus::Success)
}

fn sessions_of(memory: &Memory, named: Option<&str>) -> Result<Vec<String>> {
    Ok(match named {
        Some(session) => vec![session.to_owned()],
        None => memory.session_names()?,
    })
}

#[cfg(test)]
mod tests {
    use selvedge_memory::Topic;

    use super::*;

    #[test]
    fn the_chart_has_one_bar_per_week() {
        let trend = TopicTrend {
            topic: Topic {
                name: "auth".into(),
                category: "server".into(),
                weight: 0.5,
                turns: 9,
            },
            weeks: vec![("2026-01-05".into(), 1), ("2026-01-19".into(), 8)],
        };
        let weeks = ["2026-01-05", "2026-01-12", "2026-01-19"].map(str::to_owned);
        assert_eq!(chart(&trend, &weeks), "▁ █");
        // A week without a topic has its place.
        let trends = [trend];
        assert_eq!(TopicTrend::latest_weeks(&trends, 12), weeks);
        assert_eq!(TopicTrend::latest_weeks(&trends, 2), weeks[1..]);
    }
}
