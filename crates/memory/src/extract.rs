//! Extracts the lower levels of a turn by rules, without a model and without I/O.
//!
//! A turn is split into units (sentences, actions with their outcome, lines of output), and each
//! unit gets a score. Units are kept whole, the best first, until the target is reached; a sentence
//! that does not fit is cut at its end, and a turn of one message is reduced to its best words. So
//! a turn of any length meets its target, and the kept text stays in its original order. The levels
//! of an exchange always name the file or symbol at stake ([`TurnTopic`]).

use std::collections::{HashMap, HashSet, VecDeque};

use crate::actions::{Action, ActionKind, describe_call, describe_script, describe_script_call};
use crate::best_words::keep_best_words;
use crate::cleaning::{clean_text, is_notable, select_lines, split_sentences};
use crate::text_units::{Shortening, TextUnit, UnitKind, fit_units, join_units, score_text};
use crate::turn_pieces::TurnPiece;
use crate::turn_topic::TurnTopic;

/// Target sizes as shares of the raw tokens. The upper bounds are 75 %, 45 % and 8 %.
const SMOOTHED_SHARE: f64 = 0.66;
const COMPRESSED_SHARE: f64 = 0.36;
const TINY_SHARE: f64 = 0.075;
/// Cleaned text up to this share of the raw tokens is used as the smoothed level unchanged.
const CLEAN_ENOUGH_SHARE: f64 = 0.74;

/// How texts are measured.
pub(crate) struct TextMeasures<'a> {
    /// Returns how rare a word is in its session; higher is rarer.
    pub(crate) rarity: &'a dyn Fn(&str) -> f64,
    /// Counts the tokens of a text.
    pub(crate) count_tokens: &'a dyn Fn(&str) -> u32,
}

/// The three lower levels of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LowerLevels {
    pub(crate) smoothed: String,
    pub(crate) compressed: String,
    pub(crate) tiny: String,
}

/// The lower levels of a turn, and what else is known about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExtractedTurn {
    pub(crate) levels: LowerLevels,
    /// How many tools the turn called, those inside scripts included.
    pub(crate) tool_calls: u32,
    /// What the turn is about, the most important first.
    pub(crate) topics: Vec<String>,
}

/// Topics of one turn.
const MAX_TOPICS: usize = 5;
/// Tokens of the words that are the topics of a turn without names.
const MAX_TOPIC_TOKENS: u32 = 8;

/// Extracts the lower levels of a turn. `raw_tokens` is the size of the raw turn.
pub(crate) fn extract_turn(
    pieces: &[TurnPiece],
    raw_tokens: u32,
    measures: &TextMeasures<'_>,
) -> ExtractedTurn {
    let (levels, mut topics) = extract_lower_levels(pieces, raw_tokens, measures);
    if topics.is_empty() {
        let words = keep_best_words(&levels.tiny, MAX_TOPIC_TOKENS, measures);
        topics = words.split_whitespace().map(str::to_owned).collect();
    }
    topics.truncate(MAX_TOPICS);
    ExtractedTurn {
        levels,
        tool_calls: pieces.iter().map(TurnPiece::tool_calls).sum::<usize>() as u32,
        topics,
    }
}

/// Returns the lower levels and the names of files and symbols.
fn extract_lower_levels(
    pieces: &[TurnPiece],
    raw_tokens: u32,
    measures: &TextMeasures<'_>,
) -> (LowerLevels, Vec<String>) {
    let (units, actions) = split_units(pieces, measures);
    let raw = f64::from(raw_tokens);
    let whole: u32 = units.iter().map(|unit| unit.tokens).sum();
    let target = |share: f64| ((raw * share) as u32).max(1);
    let is_exchange = pieces.len() > 1;
    let shortening = match is_exchange {
        true => Shortening::CutEnd,
        false => Shortening::BestWords,
    };
    let smoothed = match f64::from(whole) <= raw * CLEAN_ENOUGH_SHARE {
        true => join_units(units.iter().map(|unit| (unit, unit.text.clone()))),
        false => fit_units(&units, target(SMOOTHED_SHARE), shortening, measures),
    };
    let is_kept = |unit: &&TextUnit| unit.kind != UnitKind::OutputLine;
    let units: Vec<TextUnit> = units.iter().filter(is_kept).cloned().collect();
    let (compressed, tiny) = (target(COMPRESSED_SHARE), target(TINY_SHARE));
    if !is_exchange {
        let levels = LowerLevels {
            smoothed,
            compressed: fit_units(&units, compressed, shortening, measures),
            tiny: fit_units(&units, tiny, shortening, measures),
        };
        return (levels, Vec::new());
    }
    let topic = TurnTopic::find(pieces, &actions, |sentence| score_text(sentence, measures));
    let tiny_text = topic.tiny_text(tiny, measures);
    let levels = LowerLevels {
        smoothed,
        compressed: fit_with_names(&units, compressed, &topic, measures),
        tiny: tiny_text.unwrap_or_else(|| {
            fit_units(&tiny_units(&units), tiny, Shortening::BestWords, measures)
        }),
    };
    (levels, topic.names)
}

/// Names that the compressed level has at least.
const MIN_COMPRESSED_NAMES: usize = 2;

/// Like [`fit_units`], and names what is at stake in a last line if the kept units do not.
fn fit_with_names(
    units: &[TextUnit],
    target: u32,
    topic: &TurnTopic,
    measures: &TextMeasures<'_>,
) -> String {
    let text = fit_units(units, target, Shortening::CutEnd, measures);
    let names = topic.names.iter().take(MIN_COMPRESSED_NAMES);
    let missing: Vec<&str> = names
        .map(String::as_str)
        .filter(|name| !text.contains(name))
        .collect();
    for count in (1..=missing.len()).rev() {
        let line = format!("about {}", missing[..count].join(", "));
        let tokens = (measures.count_tokens)(&line) + 1;
        if tokens * 2 <= target {
            let text = fit_units(units, target - tokens, Shortening::CutEnd, measures);
            return format!("{text}\n{line}");
        }
    }
    text
}

/// Factors by which the kind of a piece changes the score of its units.
const USER_FACTOR: f64 = 1.6;
const LAST_MESSAGE_FACTOR: f64 = 1.4;
const REASONING_FACTOR: f64 = 0.4;
const CALL_FACTOR: f64 = 1.0;
const RESULT_FACTOR: f64 = 1.4;
const FAILURE_FACTOR: f64 = 1.8;
const FIRST_SENTENCE_FACTOR: f64 = 1.25;
/// Of longer outputs, only the first and last lines and the notable ones are used.
const MAX_OUTPUT_LINES: usize = 400;
/// Lines of the output of one call inside a script.
const MAX_SCRIPT_OUTPUT_LINES: usize = 60;

/// Splits pieces into scored units, and returns the actions, too. A call and its output are
/// combined; the calls inside a script count instead of the script.
fn split_units(pieces: &[TurnPiece], measures: &TextMeasures<'_>) -> (Vec<TextUnit>, Vec<Action>) {
    let mut units: Vec<TextUnit> = Vec::new();
    let mut actions: Vec<Action> = Vec::new();
    let outputs = outputs_of_calls(pieces);
    let is_message = |piece: &TurnPiece| matches!(piece, TurnPiece::Message { .. });
    let last_message = pieces.iter().rposition(is_message);
    let mut at = 0;
    while at < pieces.len() {
        let before = units.len();
        match &pieces[at] {
            TurnPiece::Message { role, text } => {
                let mut factor = if role == "user" { USER_FACTOR } else { 1.0 };
                if Some(at) == last_message && pieces.len() > 1 {
                    factor *= LAST_MESSAGE_FACTOR;
                }
                add_sentences(text, factor, at, measures, &mut units);
            }
            TurnPiece::Reasoning(text) => {
                add_sentences(text, REASONING_FACTOR, at, measures, &mut units)
            }
            TurnPiece::Call { name, args } => {
                let output = outputs.get(&at).map(|output| &pieces[*output]);
                add_actions(
                    actions_of_call(name, args, output),
                    at,
                    measures,
                    &mut units,
                    &mut actions,
                );
            }
            TurnPiece::Output { text, failed, .. } => {
                if !outputs.values().any(|output| *output == at) {
                    let action = describe_call("result", "", text, *failed);
                    add_actions(vec![action], at, measures, &mut units, &mut actions);
                }
            }
        }
        if let Some(first) = units.get_mut(before) {
            first.score *= FIRST_SENTENCE_FACTOR;
        }
        at += 1;
    }
    (units, actions)
}

/// Returns the index of the output of each call. Parallel calls come before their outputs, in the
/// same order.
pub(crate) fn outputs_of_calls(pieces: &[TurnPiece]) -> HashMap<usize, usize> {
    let mut waiting: VecDeque<usize> = VecDeque::new();
    let mut outputs = HashMap::new();
    for (at, piece) in pieces.iter().enumerate() {
        match piece {
            TurnPiece::Call { .. } => {
                // A call after outputs belongs to the next answer of the model.
                if matches!(
                    at.checked_sub(1).map(|at| &pieces[at]),
                    Some(TurnPiece::Output { .. })
                ) {
                    waiting.clear();
                }
                waiting.push_back(at);
            }
            TurnPiece::Output { .. } => {
                if let Some(call) = waiting.pop_front() {
                    outputs.insert(call, at);
                }
            }
            TurnPiece::Message { .. } | TurnPiece::Reasoning(_) => {}
        }
    }
    outputs
}

/// Describes a call, or the calls inside a script.
pub(crate) fn actions_of_call(name: &str, args: &str, output: Option<&TurnPiece>) -> Vec<Action> {
    let Some(TurnPiece::Output {
        text,
        failed,
        calls,
    }) = output
    else {
        return vec![describe_call(name, args, "", false)];
    };
    if calls.is_empty() {
        return match name {
            "script" => vec![describe_script(text, *failed)],
            name => vec![describe_call(name, args, text, *failed)],
        };
    }
    let mut actions: Vec<Action> = calls.iter().map(describe_script_call).collect();
    if *failed {
        actions.push(Action {
            output: String::new(),
            ..describe_script(text, true)
        });
    }
    actions
}

/// Adds the units of actions: one for each, and one for each line of output. An action that repeats
/// an earlier one of the turn is not added again.
fn add_actions(
    new: Vec<Action>,
    piece: usize,
    measures: &TextMeasures<'_>,
    units: &mut Vec<TextUnit>,
    actions: &mut Vec<Action>,
) {
    let max_lines = if new.len() > 1 {
        MAX_SCRIPT_OUTPUT_LINES
    } else {
        MAX_OUTPUT_LINES
    };
    for (index, action) in new.into_iter().enumerate() {
        if actions.iter().any(|earlier| earlier.text == action.text) {
            actions.push(action);
            continue;
        }
        let factor = match action.kind {
            _ if action.failed => FAILURE_FACTOR,
            ActionKind::Check | ActionKind::Change => RESULT_FACTOR,
            ActionKind::Read | ActionKind::Other => CALL_FACTOR,
        };
        // Calls are far apart, so that the lines of one do not mix with the next.
        let line = index * (MAX_OUTPUT_LINES + 1);
        units.push(TextUnit {
            kind: UnitKind::Action,
            ..TextUnit::new(action.text.clone(), (piece, line), factor, measures)
        });
        let lines = select_lines(&action.output, max_lines)
            .into_iter()
            .map(clean_text);
        for (at, text) in (line + 1..).zip(lines) {
            if !text.trim().is_empty() {
                // Output lines count half, because the action has the outcome.
                let factor = if is_notable(&text) {
                    FAILURE_FACTOR
                } else {
                    0.5
                };
                let unit = TextUnit::new(text, (piece, at), factor * 0.5, measures);
                units.push(TextUnit {
                    kind: UnitKind::OutputLine,
                    ..unit
                });
            }
        }
        actions.push(action);
    }
}

/// Adds the sentences of a message or of reasoning. Repeated sentences are added once.
fn add_sentences(
    text: &str,
    factor: f64,
    piece: usize,
    measures: &TextMeasures<'_>,
    units: &mut Vec<TextUnit>,
) {
    let cleaned = clean_text(text);
    let mut seen = HashSet::new();
    for (line, text) in cleaned.lines().enumerate() {
        for sentence in split_sentences(text) {
            if seen.insert(sentence.to_lowercase()) {
                units.push(TextUnit::new(
                    sentence.to_owned(),
                    (piece, line),
                    factor,
                    measures,
                ));
            }
        }
    }
}

/// Selects the units for the tiny level: messages without the calls, unless there is only one call
/// or there are only calls.
fn tiny_units(units: &[TextUnit]) -> Vec<TextUnit> {
    let is_call = |unit: &&TextUnit| unit.kind == UnitKind::Action;
    let calls = units.iter().filter(is_call).count();
    let all_calls = calls == units.len();
    let is_kept = |unit: &&TextUnit| !is_call(unit) || calls == 1 || all_calls;
    units.iter().filter(is_kept).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measures<'a>() -> TextMeasures<'a> {
        TextMeasures {
            rarity: &|word| word.len() as f64 / 2.0,
            count_tokens: &crate::tokens::count,
        }
    }

    fn levels_of(pieces: &[TurnPiece], raw: u32, measures: &TextMeasures<'_>) -> LowerLevels {
        extract_turn(pieces, raw, measures).levels
    }

    fn message(text: &str) -> Vec<TurnPiece> {
        vec![TurnPiece::Message {
            role: "user".into(),
            text: text.into(),
        }]
    }

    #[test]
    fn prose_of_any_length_meets_the_targets() {
        let sentence = "Well, I really just wanted to tell you that Caroline went to the adoption \
                        agency in Boston on May 8, and she was not happy with the answer they gave \
                        her. ";
        let filler = "Anyway, how are you doing these days? I hope that everything is going well \
                      for you and the kids! ";
        for repeated in [1, 2, 5, 40] {
            let text: String = (0..repeated)
                .map(|n| format!("{n}: {sentence}{filler}"))
                .collect();
            let raw = crate::tokens::count(&text);
            let lower = levels_of(&message(&text), raw, &measures());
            let share = |text: &str| f64::from(crate::tokens::count(text)) / f64::from(raw);
            let shares = [&lower.smoothed, &lower.compressed, &lower.tiny].map(|text| share(text));
            assert!(
                (0.4..=0.75).contains(&shares[0]),
                "S {} of {repeated}: {}",
                shares[0],
                lower.smoothed
            );
            assert!(
                (0.25..=0.45).contains(&shares[1]),
                "C {} of {repeated}: {}",
                shares[1],
                lower.compressed
            );
            assert!(
                shares[2] <= 0.08,
                "T {} of {repeated}: {}",
                shares[2],
                lower.tiny
            );
            assert!(!lower.tiny.is_empty());
            assert!(
                lower.compressed.contains("adoption") && lower.compressed.contains("not"),
                "{}",
                lower.compressed
            );
        }
    }

    #[test]
    fn calls_are_compressed_to_actions_with_outcome() {
        let output = "> npm test\n".to_owned()
            + &"  ✓ works\n".repeat(60)
            + "  ✗ login\nTests: 2 failed, 58 passed\n";
        let pieces = vec![
            TurnPiece::Message {
                role: "user".into(),
                text: "Please run the tests and tell me what fails in the login module.".into(),
            },
            TurnPiece::Call {
                name: "exec".into(),
                args: r#"{"command":["npm","test"]}"#.into(),
            },
            TurnPiece::Output {
                text: output.clone(),
                failed: true,
                calls: Vec::new(),
            },
            TurnPiece::Message {
                role: "assistant".into(),
                text: "Two tests of the login module fail: the token has expired.".into(),
            },
        ];
        let lower = levels_of(&pieces, 600, &measures());
        assert!(
            lower.compressed.contains("exec npm test → 2 failed"),
            "{}",
            lower.compressed
        );
        assert!(lower.tiny.contains("login"), "{}", lower.tiny);
        assert_eq!(
            lower.smoothed.matches("works").count(),
            1,
            "{}",
            lower.smoothed
        );
    }

    #[test]
    fn empty_and_one_word_turns_are_handled() {
        assert_eq!(
            levels_of(&[], 0, &measures()),
            LowerLevels {
                smoothed: "".into(),
                compressed: "".into(),
                tiny: "".into()
            }
        );
        let ok = levels_of(&message("ok"), 1, &measures());
        assert_eq!((ok.smoothed.as_str(), ok.tiny.as_str()), ("ok", "ok"));
        assert!(levels_of(&message("… !!"), 2, &measures()).tiny.len() < 10);
    }
}
