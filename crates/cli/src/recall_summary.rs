//! One line about what memory recalled before a turn.

use selvedge_protocol::RuntimeEvent;
use selvedge_text::count_noun;

/// Returns the line for people: `recalled 3 turns, 1 lesson · 38 ms`. `None` for other events.
pub(crate) fn recall_summary(event: &RuntimeEvent) -> Option<String> {
    let RuntimeEvent::MemoryRecalled {
        turns,
        lessons,
        layers,
        duration_ms,
        details,
    } = event
    else {
        return None;
    };
    let counts = [(turns, "turn"), (lessons, "lesson"), (layers, "reference")];
    let counts = counts.into_iter().filter(|(count, _)| **count > 0);
    let counts: Vec<String> = counts
        .map(|(count, noun)| count_noun(*count, noun))
        .collect();
    let counts = match counts.is_empty() {
        true => "nothing".to_owned(),
        false => counts.join(", "),
    };
    // What failed follows what was recalled.
    let recalled = (turns + lessons + layers) as usize;
    let failed = match details.get(recalled) {
        Some(failed) => format!(" · {failed}"),
        None => String::new(),
    };
    Some(format!("recalled {counts} · {duration_ms} ms{failed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_counts_what_was_recalled_and_names_a_failure() {
        let event = |turns, lessons, details: &[&str]| RuntimeEvent::MemoryRecalled {
            turns,
            lessons,
            layers: 0,
            duration_ms: 38,
            details: details.iter().map(|&line| line.to_owned()).collect(),
        };
        let line = |turns, lessons, details: &[&str]| {
            recall_summary(&event(turns, lessons, details)).unwrap_or_default()
        };
        assert_eq!(
            line(3, 1, &["a", "b", "c", "d"]),
            "recalled 3 turns, 1 lesson · 38 ms"
        );
        assert_eq!(
            line(1, 0, &["a", "model filter: deadline exceeded"]),
            "recalled 1 turn · 38 ms · model filter: deadline exceeded"
        );
        assert_eq!(
            line(0, 0, &["board: failed"]),
            "recalled nothing · 38 ms · board: failed"
        );
    }
}
