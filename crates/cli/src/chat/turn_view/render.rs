//! Renders the parts of a turn: finished parts once, unfinished parts at every redraw.

use std::time::{Duration, Instant};

use selvedge_protocol::FunctionCallOutput;

use super::{ThinkingDisplay, TurnSection, TurnView};
use crate::chat::call_list::format_duration;
use crate::chat::markdown::{last_block_start, render_markdown};
use crate::chat::rows::{StyledRow, fold_rows, sanitize};

/// Bytes of an unfinished block that are rendered as Markdown; a longer one is shown as plain text.
const MAX_LIVE_MARKDOWN_BYTES: usize = 8 << 10;

impl TurnView {
    /// Removes the finished parts from the front and returns their rows. Of a message that streams
    /// in, all blocks but the last are finished.
    pub(super) fn take_finished_rows(
        &mut self,
        width: usize,
        thinking: ThinkingDisplay,
        now: Instant,
    ) -> Vec<StyledRow> {
        let mut rows = Vec::new();
        let theme = self.theme;
        while let Some(part) = self.parts.front_mut() {
            match part {
                TurnSection::Message(part) => {
                    let end = match (part.is_complete, std::mem::take(&mut part.has_new_line)) {
                        (true, _) => part.text.len(),
                        (false, true) => {
                            part.printed_bytes + last_block_start(&part.text[part.printed_bytes..])
                        }
                        (false, false) => part.printed_bytes,
                    };
                    let blocks = render_markdown(&part.text[part.printed_bytes..end], width, theme);
                    if !blocks.is_empty() {
                        rows.extend(blocks);
                        rows.push(StyledRow::blank());
                    }
                    part.printed_bytes = end;
                    if !part.is_complete {
                        break;
                    }
                }
                TurnSection::Thinking(part) => {
                    let Some(duration) = part.duration else { break };
                    let head = format!("thought for {}", format_seconds(duration));
                    rows.extend(thinking_rows(&part.text, &head, thinking));
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
                TurnSection::Calls(part) if part.missing_results > 0 => break,
                TurnSection::Calls(part) => {
                    rows.extend(part.calls.finished_rows(now, theme));
                    rows.append(&mut part.extra_rows);
                    rows.push(StyledRow::blank());
                }
                TurnSection::Note(note) => {
                    rows.append(note);
                    if !matches!(self.parts.get(1), Some(TurnSection::Script(_))) {
                        rows.push(StyledRow::blank());
                    }
                }
            }
            self.parts.pop_front();
        }
        rows
    }

    /// Returns the rows of an unfinished part.
    pub(super) fn section_rows(
        &self,
        part: &TurnSection,
        width: usize,
        thinking: ThinkingDisplay,
        now: Instant,
    ) -> Vec<StyledRow> {
        let theme = self.theme;
        match part {
            TurnSection::Message(part) => match &part.text[part.printed_bytes..] {
                // Redrawn with every piece of text, so a long block shows only its end, as plain
                // text.
                long if long.len() > MAX_LIVE_MARKDOWN_BYTES => {
                    let tail =
                        &long[long.ceil_char_boundary(long.len() - MAX_LIVE_MARKDOWN_BYTES)..];
                    sanitize(tail).lines().map(StyledRow::text).collect()
                }
                short => render_markdown(short, width, theme),
            },
            TurnSection::Thinking(part) => {
                let elapsed = now.saturating_duration_since(part.started_at);
                let head = format!("thinking… {}", format_seconds(elapsed));
                thinking_rows(&part.text, &head, thinking)
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
            TurnSection::Calls(part) => {
                let mut rows = part.calls.live_rows(now, theme);
                rows.extend(part.extra_rows.iter().cloned());
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
        _ => format_duration(duration),
    }
}

fn thinking_rows(text: &str, head: &str, thinking: ThinkingDisplay) -> Vec<StyledRow> {
    let mut rows = vec![StyledRow::dim(format!("· {head}")).truncated()];
    if thinking == ThinkingDisplay::Expanded {
        rows.extend(thinking_text_rows(text));
    }
    rows
}

pub(crate) fn thinking_text_rows(text: &str) -> Vec<StyledRow> {
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
    let rows = fold_rows(rows, MAX_RESULT_LINES).into_iter();
    rows.map(|row| row.indented(4)).collect()
}
