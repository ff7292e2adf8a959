//! Quotes layers in a recalled block: in full, or the part that matches the message. Nothing is cut
//! without a line that says so.

use std::collections::BTreeSet;

use crate::board::{shorten_title, truncate_to_tokens};
use crate::lessons::Lesson;
use crate::tokens;
use crate::words::{for_each_term, query_terms};

/// A layer is only mentioned if fewer tokens are left for a part of it.
const MIN_PART_TOKENS: u32 = 40;
/// Tokens of the signs around a quote.
const MARGIN_TOKENS: u32 = 8;

/// Returns texts about layers that have at most `room` tokens together: a layer that does not fit
/// is quoted in part, or only mentioned.
pub(crate) fn quote_layers(layers: &[&Lesson], question: &str, room: u32) -> Vec<String> {
    let terms = query_terms(question);
    let mut left = room;
    let quotes = layers.iter().map(|layer| {
        let full = format!("{}\n{}", layer.title, layer.content);
        let quote = match tokens::count(&full) + MARGIN_TOKENS <= left {
            true => full,
            false => quote_in_part(layer, &terms, left),
        };
        left = left.saturating_sub(tokens::count(&quote) + 2);
        quote
    });
    quotes.collect()
}

/// Returns the part of a layer that matches the question best, and how to get all of it; only the
/// latter if there is no room for more.
fn quote_in_part(layer: &Lesson, terms: &[String], room: u32) -> String {
    let (title, mention) = (&layer.title, mention_layer(layer));
    let around = tokens::count(&format!("{title}, in part:\n\n{mention}")) + MARGIN_TOKENS;
    let room = room.saturating_sub(around);
    if room < MIN_PART_TOKENS {
        return mention;
    }
    let part = matching_part(&layer.content, terms, room);
    format!("{title}, in part:\n{part}\n{mention}")
}

/// Returns a line about a layer that is not quoted in full.
pub(crate) fn mention_layer(layer: &Lesson) -> String {
    let title = shorten_title(&layer.title);
    let size = layer.tokens;
    format!(
        "reference \"{title}\" ({size} tokens); \
         tools.memory.search({{ query: \"{title}\" }}) returns it"
    )
}

/// Returns the sentence with most of the terms and its neighbours, within `room` tokens.
fn matching_part(content: &str, terms: &[String], room: u32) -> String {
    let lines = content.split_inclusive('\n');
    let sentences: Vec<&str> = lines.flat_map(|line| line.split_inclusive(". ")).collect();
    let matches = |sentence: &str| {
        let mut found = BTreeSet::new();
        for_each_term(sentence, |term| _ = found.insert(term.to_owned()));
        terms.iter().filter(|term| found.contains(*term)).count()
    };
    let counts = sentences.iter().map(|sentence| matches(sentence));
    // The first of several.
    let best = counts.enumerate().rev().max_by_key(|(_, count)| *count);
    let best = best.map_or(0, |(at, _)| at);
    let sentence = sentences.get(best).unwrap_or(&"");
    if tokens::count(sentence) > room {
        return truncate_to_tokens(sentence, room);
    }
    let (mut first, mut end, mut used) = (best, best, 0);
    loop {
        let mut is_larger = false;
        for at in [Some(end), first.checked_sub(1)].into_iter().flatten() {
            let Some(sentence) = sentences.get(at) else {
                continue;
            };
            let cost = tokens::count(sentence);
            if used + cost <= room {
                used += cost;
                is_larger = true;
                match at < first {
                    true => first = at,
                    false => end = at + 1,
                }
            }
        }
        if !is_larger {
            break;
        }
    }
    let before = if first > 0 { "… " } else { "" };
    let after = if end < sentences.len() { " …" } else { "" };
    let part = sentences[first..end].concat();
    format!("{before}{}{after}", part.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quoted_part_is_the_one_that_matches_and_says_what_is_missing() {
        let filler = |word: &str| format!("The {word} is described in another place. ").repeat(40);
        let content = format!(
            "{}The zephyr queue drains at midnight. It needs a lock.\n{}",
            filler("lobby"),
            filler("garden")
        );
        let terms = query_terms("When does the zephyr queue drain?");
        let part = matching_part(&content, &terms, 60);
        assert!(part.starts_with("… ") && part.ends_with(" …"), "{part}");
        assert!(
            part.contains("The zephyr queue drains at midnight. It needs a lock."),
            "{part}"
        );
        assert!(tokens::count(&part) <= 64, "{part}");
        // Without a match it is the beginning.
        let part = matching_part(&content, &query_terms("violins"), 60);
        assert!(part.starts_with("The lobby is described"), "{part}");
        // A sentence that is too long is cut.
        let long = "word ".repeat(300);
        let part = matching_part(&long, &query_terms("word"), 60);
        assert!(tokens::count(&part) <= 60, "{part}");
    }
}
