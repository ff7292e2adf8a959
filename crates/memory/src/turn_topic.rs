//! Finds what an exchange is about (the request, the result, the files and symbols at stake) and
//! writes its tiny level: `Run the tests for signatures → 12 passed (signer.py, Signer)`.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use crate::actions::{Action, ActionKind};
use crate::cleaning::{clean_text, split_sentences};
use crate::extract::TextMeasures;
use crate::identifiers::names_in_message;
use crate::outcome_paths::is_source_path;
use crate::turn_pieces::TurnPiece;

/// Importance of a name in the user's message.
const REQUESTED: u32 = 7;
/// Importance of a name in the last message.
const CONCLUDED: u32 = 4;
/// Importance of a name in another message.
const MENTIONED: u32 = 1;
/// Names of a message that count. A pasted file names many.
const MAX_NAMES_OF_MESSAGE: usize = 12;
/// Names in a tiny text.
const MAX_TINY_NAMES: usize = 3;
/// Words of the request in a tiny text, if they fit.
const MAX_REQUEST_WORDS: usize = 16;
/// Fewest words of the request for which the result or a second name is omitted.
const MIN_REQUEST_WORDS: usize = 5;

/// Fewest words of the request beside one name. Fewer say nothing (`The… (signer.py)`).
const MIN_READABLE_WORDS: usize = 3;

/// What an exchange is about.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct TurnTopic {
    /// The sentence of the user's message that says most.
    pub(crate) request: String,
    /// The last result of a test run, a build or a crash.
    pub(crate) result: String,
    /// Names of files (without folders) and symbols, the most important first.
    pub(crate) names: Vec<String>,
}

impl TurnTopic {
    /// Finds the topic of an exchange. `score` rates a sentence.
    pub(crate) fn find(
        pieces: &[TurnPiece],
        actions: &[Action],
        score: impl Fn(&str) -> f64,
    ) -> Self {
        let mut ranked = RankedNames::default();
        let last_message = pieces
            .iter()
            .rposition(|piece| matches!(piece, TurnPiece::Message { .. }));
        let mut request = None;
        for (at, piece) in pieces.iter().enumerate() {
            let TurnPiece::Message { role, text } = piece else {
                continue;
            };
            let weight = match role.as_str() {
                "user" => REQUESTED,
                _ if Some(at) == last_message => CONCLUDED,
                _ => MENTIONED,
            };
            let names = names_in_message(text);
            // A long list of names says little about each.
            let weight = if names.len() > MAX_NAMES_OF_MESSAGE {
                MENTIONED
            } else {
                weight
            };
            for name in names.iter().take(MAX_NAMES_OF_MESSAGE) {
                ranked.add(name, weight);
            }
            if role == "user" && request.is_none() {
                request = best_sentence(text, &score);
            }
        }
        for (name, importance) in actions.iter().flat_map(|action| &action.names) {
            ranked.add(name, *importance);
        }
        let mut checks = actions
            .iter()
            .filter(|action| action.kind == ActionKind::Check);
        let result = checks.next_back().map(|action| {
            let outcome = action.outcome.split("; ").next().unwrap_or_default();
            let rest = outcome
                .strip_prefix("exit ")
                .and_then(|rest| rest.split_once(", "));
            rest.map_or(outcome, |(_, rest)| rest).to_owned()
        });
        Self {
            request: request.unwrap_or_default(),
            result: result.unwrap_or_default(),
            names: ranked.finish(),
        }
    }

    /// Writes the tiny level: at most `target` tokens. `None` if not even a name fits.
    pub(crate) fn tiny_text(&self, target: u32, measures: &TextMeasures<'_>) -> Option<String> {
        let words: Vec<&str> = self
            .request
            .split_whitespace()
            .take(MAX_REQUEST_WORDS)
            .collect();
        let cut = self
            .request
            .split_whitespace()
            .nth(MAX_REQUEST_WORDS)
            .is_some();
        let fits = |text: &str| (measures.count_tokens)(text) <= target;
        let few = MIN_REQUEST_WORDS.min(words.len());
        let result_or_none = [self.result.as_str(), ""];
        let most = MAX_TINY_NAMES.min(self.names.len());
        // The result, the names, and the words of the request.
        let mut forms: Vec<(&str, usize, RangeInclusive<usize>)> = Vec::new();
        for result in &result_or_none[usize::from(self.result.is_empty())..] {
            for names in (most.min(1)..=most).rev() {
                forms.push((result, names, few..=words.len()));
            }
        }
        forms.push(("", most.min(1), MIN_READABLE_WORDS..=words.len()));
        for names in (1..=most).rev() {
            forms.push(("", names, 0..=0));
        }
        for (result, names, counts) in forms {
            for count in counts.rev() {
                let is_cut = cut || count < words.len();
                let text = self.compose(&words[..count], is_cut, result, names);
                if !text.is_empty() && fits(&text) {
                    return Some(text);
                }
            }
        }
        None
    }

    fn compose(&self, words: &[&str], is_cut: bool, result: &str, names: usize) -> String {
        let mut text = words.join(" ");
        if is_cut && !words.is_empty() {
            text = format!("{}…", text.trim_end_matches([',', ';', ':', '.']));
        }
        let text_without_end = text.trim_end_matches(['.', ':']).to_owned();
        text = text_without_end;
        if !result.is_empty() {
            text = format!("{text} → {result}")
                .trim_start_matches(" → ")
                .to_owned();
        }
        let missing: Vec<&str> = self
            .names
            .iter()
            .take(names)
            .map(String::as_str)
            .filter(|name| !text.contains(name))
            .collect();
        match (missing.is_empty(), text.is_empty()) {
            (true, _) => text,
            (false, true) => missing.join(", "),
            (false, false) => format!("{text} ({})", missing.join(", ")),
        }
    }
}

/// Returns the sentence of a message that says most. The first and the last count more.
fn best_sentence(text: &str, score: &impl Fn(&str) -> f64) -> Option<String> {
    let cleaned = clean_text(text);
    let sentences = split_sentences(&cleaned);
    let last = sentences.len().checked_sub(1)?;
    let rate = |at: usize, sentence: &str| {
        let place = if at == 0 {
            1.5
        } else if at == last {
            1.2
        } else {
            1.0
        };
        // The first of few sentences is the request.
        let place = if at == 0 && last < 3 { 4.0 } else { place };
        place * score(sentence)
    };
    let best = sentences.iter().enumerate().max_by(|a, b| {
        rate(a.0, a.1)
            .total_cmp(&rate(b.0, b.1))
            .then(b.0.cmp(&a.0))
    })?;
    Some((*best.1).to_owned())
}

/// Names with the sum of their importance.
#[derive(Debug, Default)]
struct RankedNames {
    sums: HashMap<String, (u32, usize)>,
}

impl RankedNames {
    fn add(&mut self, name: &str, importance: u32) {
        let name = match is_source_path(name) || name.contains('/') {
            true => name.rsplit('/').next().unwrap_or(name),
            false => name,
        };
        if name.len() < 2 {
            return;
        }
        let order = self.sums.len();
        let sum = self.sums.entry(name.to_owned()).or_insert((0, order));
        sum.0 += importance;
    }

    /// Returns the names, the most important first. Files and symbols alternate at the beginning,
    /// so that both kinds are among the first two.
    fn finish(self) -> Vec<String> {
        let mut all: Vec<(String, (u32, usize))> = self.sums.into_iter().collect();
        all.sort_by(|(_, a), (_, b)| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        // Names that only a search found are noise beside others.
        if let Some((_, (best, _))) = all.first() {
            let least = (*best / 4).min(2);
            all.retain(|(_, (sum, _))| *sum >= least);
        }
        let mut names: Vec<String> = all.into_iter().map(|(name, _)| name).collect();
        if let Some(first) = names.first() {
            let first_is_file = is_source_path(first);
            let other = names
                .iter()
                .position(|name| is_source_path(name) != first_is_file);
            if let Some(at) = other
                && at > 1
            {
                let name = names.remove(at);
                names.insert(1, name);
            }
        }
        names.truncate(16);
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tiny_text_names_request_result_and_files() {
        let topic = TurnTopic {
            request: "Run the tests for signatures.".into(),
            result: "12 passed".into(),
            names: vec!["signer.py".into(), "Signer".into()],
        };
        let measures = TextMeasures {
            rarity: &|_| 1.0,
            count_tokens: &|text| text.split_whitespace().count() as u32,
        };
        let tiny = |target| topic.tiny_text(target, &measures);
        assert_eq!(
            tiny(20).as_deref(),
            Some("Run the tests for signatures → 12 passed (signer.py, Signer)")
        );
        assert_eq!(
            tiny(8).as_deref(),
            Some("Run the tests for signatures (signer.py, Signer)")
        );
        assert_eq!(tiny(4).as_deref(), Some("Run the tests… (signer.py)"));
        assert_eq!(tiny(3).as_deref(), Some("signer.py, Signer"));
        assert_eq!(tiny(1).as_deref(), Some("signer.py"));
        assert_eq!(tiny(0), None);
    }
}
