//! Renders the parts of a turn: finished parts once, unfinished parts at every redraw.

use std::time::{Duration, Instant};

use selvedge_protocol::FunctionCallOutput;

use super::{Part, Thoughts, Turn};
use crate::chat::calls::took;
use crate::chat::markdown::{last_block, markdown};
use crate::chat::rows::{Row, clean, folded};

/// Bytes of an unfinished block that are rendered as Markdown; a longer one is shown as plain text.
const MOST_LIVE: usize = 8 << 10;

impl Turn {
    /// Removes the finished parts from the front and returns their rows. Of a message that streams
    /// in, all blocks but the last are finished.
    pub(super) fn finished(&mut self, width: usize, thinking: Thoughts, now: Instant) -> Vec<Row> {
        let mut rows = Vec::new();
        let theme = self.look;
        while let Some(part) = self.parts.front_mut() {
            match part {
                Part::Message(part) => {
                    let end = match (part.over, std::mem::take(&mut part.lined)) {
                        (true, _) => part.text.len(),
                        (false, true) => part.printed + last_block(&part.text[part.printed..]),
                        (false, false) => part.printed,
                    };
                    let blocks = markdown(&part.text[part.printed..end], width, theme);
                    if !blocks.is_empty() {
                        rows.extend(blocks);
                        rows.push(Row::blank());
                    }
                    part.printed = end;
                    if !part.over {
                        break;
                    }
                }
                Part::Thought(part) => {
                    let Some(duration) = part.took else { break };
                    let head = format!("thought for {}", told(duration));
                    rows.extend(thought(&part.text, &head, thinking));
                    rows.push(Row::blank());
                }
                Part::Script(script) => {
                    let Some(result) = &script.result else { break };
                    rows.extend(script.calls.rows(now, theme));
                    rows.extend(script.notes());
                    rows.extend(result.iter().cloned());
                    rows.push(Row::blank());
                }
                Part::Calls(part) if part.open > 0 => break,
                Part::Calls(part) => {
                    rows.extend(part.calls.rows(now, theme));
                    rows.append(&mut part.told);
                    rows.push(Row::blank());
                }
                Part::Note(note) => {
                    rows.append(note);
                    if !matches!(self.parts.get(1), Some(Part::Script(_))) {
                        rows.push(Row::blank());
                    }
                }
            }
            self.parts.pop_front();
        }
        rows
    }

    /// Returns the rows of an unfinished part.
    pub(super) fn live(
        &self,
        part: &Part,
        width: usize,
        thinking: Thoughts,
        now: Instant,
    ) -> Vec<Row> {
        let theme = self.look;
        match part {
            Part::Message(part) => match &part.text[part.printed..] {
                // Redrawn with every piece of text, so a long block shows only its end, as plain
                // text.
                long if long.len() > MOST_LIVE => {
                    let tail = &long[long.ceil_char_boundary(long.len() - MOST_LIVE)..];
                    clean(tail).lines().map(Row::text).collect()
                }
                short => markdown(short, width, theme),
            },
            Part::Thought(part) => {
                let elapsed = now.saturating_duration_since(part.since);
                let head = format!("thinking… {}", told(elapsed));
                thought(&part.text, &head, thinking)
            }
            Part::Script(script) => {
                let mut rows = script.calls.live_rows(now, theme);
                rows.extend(script.notes());
                if script.calls.is_empty() {
                    let elapsed = told(now.saturating_duration_since(script.since));
                    rows.push(Row::quiet(format!("  {} running… {elapsed}", script.id)).cut());
                }
                rows
            }
            Part::Calls(part) => {
                let mut rows = part.calls.live_rows(now, theme);
                rows.extend(part.told.iter().cloned());
                rows
            }
            Part::Note(rows) => rows.clone(),
        }
    }
}

/// Formats a duration in whole seconds, so that the text does not change with every redraw.
fn told(duration: Duration) -> String {
    match duration.as_secs() {
        0..60 => format!("{} s", duration.as_secs()),
        _ => took(duration),
    }
}

fn thought(text: &str, head: &str, thinking: Thoughts) -> Vec<Row> {
    let mut rows = vec![Row::quiet(format!("· {head}")).cut()];
    if thinking == Thoughts::Unfolded {
        rows.extend(thought_rows(text));
    }
    rows
}

pub(crate) fn thought_rows(text: &str) -> Vec<Row> {
    let text = clean(text.trim());
    text.lines()
        .map(|line| Row::quiet(line).indent(2))
        .collect()
}

/// Returns the first lines of a structured call's result.
pub(super) fn result_of_call(output: &FunctionCallOutput) -> Vec<Row> {
    const LINES: usize = 3;
    let text = output.text();
    let text = clean(text.trim_end());
    let rows = text.lines().map(|line| Row::quiet(line).cut()).collect();
    let rows = folded(rows, LINES).into_iter();
    rows.map(|row| row.indent(4)).collect()
}
