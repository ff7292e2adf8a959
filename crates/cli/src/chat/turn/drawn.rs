//! A turn as it is drawn: what is over once and for all, what is not anew each time.

use std::time::{Duration, Instant};

use selvedge_protocol::FunctionCallOutput;

use super::{Part, Thoughts, Turn};
use crate::chat::calls::took;
use crate::chat::markdown::{last_block, markdown};
use crate::chat::rows::{Row, clean, folded};

/// Bytes of a block that still comes.
const MOST_LIVE: usize = 8 << 10;

impl Turn {
    /// Takes off what is over, in order; of words that still come, all but the last block.
    pub(super) fn finished(&mut self, width: usize, thoughts: Thoughts, now: Instant) -> Vec<Row> {
        let mut rows = Vec::new();
        let look = self.look;
        while let Some(part) = self.parts.front_mut() {
            match part {
                Part::Message(part) => {
                    let end = match (part.over, std::mem::take(&mut part.lined)) {
                        (true, _) => part.text.len(),
                        (false, true) => part.printed + last_block(&part.text[part.printed..]),
                        (false, false) => part.printed,
                    };
                    let more = markdown(&part.text[part.printed..end], width, look);
                    if !more.is_empty() {
                        rows.extend(more);
                        rows.push(Row::blank());
                    }
                    part.printed = end;
                    if !part.over {
                        break;
                    }
                }
                Part::Thought(part) => {
                    let Some(time) = part.took else { break };
                    let head = format!("thought for {}", told(time));
                    rows.extend(thought(&part.text, &head, thoughts));
                    rows.push(Row::blank());
                }
                Part::Script(script) => {
                    let Some(result) = &script.result else { break };
                    rows.extend(script.calls.rows(now, look));
                    rows.extend(script.notes());
                    rows.extend(result.iter().cloned());
                    rows.push(Row::blank());
                }
                Part::Calls(part) if part.open > 0 => break,
                Part::Calls(part) => {
                    rows.extend(part.calls.rows(now, look));
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

    pub(super) fn live(
        &self,
        part: &Part,
        width: usize,
        thoughts: Thoughts,
        now: Instant,
    ) -> Vec<Row> {
        let look = self.look;
        match part {
            Part::Message(part) => match &part.text[part.printed..] {
                // Drawn again with every word: of much, only what is in sight, and plainly until it is complete.
                long if long.len() > MOST_LIVE => {
                    let tail = &long[long.ceil_char_boundary(long.len() - MOST_LIVE)..];
                    clean(tail).lines().map(Row::text).collect()
                }
                short => markdown(short, width, look),
            },
            Part::Thought(part) => {
                let time = now.saturating_duration_since(part.since);
                thought(&part.text, &format!("thinking… {}", told(time)), thoughts)
            }
            Part::Script(script) => {
                let mut rows = script.calls.live_rows(now, look);
                rows.extend(script.notes());
                if script.calls.is_empty() {
                    let time = now.saturating_duration_since(script.since);
                    rows.push(Row::quiet(format!("  {} runs… {}", script.id, told(time))).cut());
                }
                rows
            }
            Part::Calls(part) => {
                let mut rows = part.calls.live_rows(now, look);
                rows.extend(part.told.iter().cloned());
                rows
            }
            Part::Note(rows) => rows.clone(),
        }
    }
}

/// Whole seconds: nobody wants to see letters jump.
fn told(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{} s", time.as_secs()),
        _ => took(time),
    }
}

fn thought(text: &str, head: &str, thoughts: Thoughts) -> Vec<Row> {
    let mut rows = vec![Row::quiet(format!("· {head}")).cut()];
    if thoughts == Thoughts::Unfolded {
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

/// The first lines of what a call returned.
pub(super) fn result_of_call(output: &FunctionCallOutput) -> Vec<Row> {
    const LINES: usize = 3;
    let text = output.text();
    let text = clean(text.trim_end());
    let rows = text.lines().map(|line| Row::quiet(line).cut()).collect();
    let rows = folded(rows, LINES).into_iter();
    rows.map(|row| row.indent(4)).collect()
}
