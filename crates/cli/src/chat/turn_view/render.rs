//! Renders the sections of a turn: finished sections once, unfinished sections at every redraw.

use std::time::{Duration, Instant};

use selvedge_protocol::FunctionCallOutput;

use super::{ReasoningDisplay, TurnSection, TurnView};
use crate::chat::markdown::render_markdown;
use crate::chat::rows::{StyledRow, fold_expandable_rows, sanitize};
use crate::units::format_elapsed;

/// Bytes of an unfinished block that are rendered as Markdown; a longer one is shown as plain text.
const MAX_LIVE_MARKDOWN_BYTES: usize = 8 << 10;

impl TurnView {
    /// Removes the finished sections from the front and returns their rows. Of a message that
    /// streams in, all blocks but the last are finished.
    pub(super) fn take_finished_rows(
        &mut self,
        width: usize,
        reasoning: ReasoningDisplay,
        now: Instant,
    ) -> Vec<StyledRow> {
        let mut rows = Vec::new();
        let theme = self.theme;
        while let Some(section) = self.sections.front_mut() {
            match section {
                TurnSection::Message(section) => {
                    rows.extend(section.text.take_rows(width, theme));
                    if !section.text.is_complete() {
                        break;
                    }
                }
                TurnSection::Reasoning(section) => {
                    let Some(duration) = section.duration else {
                        break;
                    };
                    let head = format!("thought for {}", format_seconds(duration));
                    rows.extend(reasoning_rows(&section.text, &head, reasoning));
                    rows.push(StyledRow::blank());
                }
                TurnSection::Script(script) => {
                    let Some(result) = &script.result_rows else {
                        break;
                    };
                    rows.extend(script.calls.finished_rows(now, theme));
                    rows.extend(script.extra_rows());
                    rows.extend(result.iter().cloned());
                    rows.push(StyledRow::blank());
                }
                TurnSection::Calls(section) if section.missing_results > 0 => break,
                TurnSection::Calls(section) => {
                    rows.extend(section.calls.finished_rows(now, theme));
                    rows.append(&mut section.extra_rows);
                    rows.push(StyledRow::blank());
                }
                TurnSection::Note(note) => {
                    rows.append(note);
                    if !matches!(self.sections.get(1), Some(TurnSection::Script(_))) {
                        rows.push(StyledRow::blank());
                    }
                }
            }
            self.sections.pop_front();
        }
        rows
    }

    /// Returns the rows of an unfinished section.
    pub(super) fn section_rows(
        &self,
        section: &TurnSection,
        width: usize,
        reasoning: ReasoningDisplay,
        now: Instant,
    ) -> Vec<StyledRow> {
        let theme = self.theme;
        match section {
            TurnSection::Message(section) => match section.text.pending() {
                // Redrawn with every piece of text, so a long block shows only its end, as plain
                // text.
                long if long.len() > MAX_LIVE_MARKDOWN_BYTES => {
                    let tail =
                        &long[long.ceil_char_boundary(long.len() - MAX_LIVE_MARKDOWN_BYTES)..];
                    sanitize(tail).lines().map(StyledRow::text).collect()
                }
                short => render_markdown(short, width, theme),
            },
            TurnSection::Reasoning(section) => {
                let elapsed = now.saturating_duration_since(section.started_at);
                let head = format!("reasoning… {}", format_seconds(elapsed));
                reasoning_rows(&section.text, &head, reasoning)
            }
            TurnSection::Script(script) => {
                let mut rows = script.calls.live_rows(now, theme);
                rows.extend(script.extra_rows());
                if script.calls.is_empty() {
                    let elapsed = format_seconds(now.saturating_duration_since(script.started_at));
                    rows.push(
                        StyledRow::dim(format!("  {} running… {elapsed}", script.id)).truncated(),
                    );
                }
                rows
            }
            TurnSection::Calls(section) => {
                let mut rows = section.calls.live_rows(now, theme);
                rows.extend(section.extra_rows.iter().cloned());
                rows
            }
            TurnSection::Note(rows) => rows.clone(),
        }
    }
}

/// Formats a duration in whole seconds, so that the text does not change with every redraw.
fn format_seconds(duration: Duration) -> String {
    match duration.as_secs() {
        0..60 => format!("{} s", duration.as_secs()),
        _ => format_elapsed(duration),
    }
}

fn reasoning_rows(text: &str, head: &str, reasoning: ReasoningDisplay) -> Vec<StyledRow> {
    let mut rows = vec![StyledRow::dim(format!("· {head}")).truncated()];
    if reasoning == ReasoningDisplay::Expanded {
        rows.extend(reasoning_text_rows(text));
    }
    rows
}

pub(crate) fn reasoning_text_rows(text: &str) -> Vec<StyledRow> {
    let text = sanitize(text.trim());
    text.lines()
        .map(|line| StyledRow::dim(line).indented(2))
        .collect()
}

/// Returns the first lines of a structured call's result.
pub(super) fn call_result_rows(output: &FunctionCallOutput) -> Vec<StyledRow> {
    const MAX_RESULT_LINES: usize = 3;
    let text = output.text();
    let text = sanitize(text.trim_end());
    let rows = text
        .lines()
        .map(|line| StyledRow::dim(line).truncated())
        .collect();
    let rows = fold_expandable_rows(rows, MAX_RESULT_LINES).into_iter();
    rows.map(|row| row.indented(4)).collect()
}
