//! Learns from turns by rules, without a model: topics, preferences of the user, and errors with
//! their fixes.

use std::collections::{BTreeMap, BTreeSet};

use crate::cleaning::{
    clean_text, find_key_line, format_arguments, is_notable, split_sentences, truncate_words,
};
use crate::lessons::{LessonDraft, LessonKind, LessonStatus};
use crate::turn_metrics::SpeakerRole;
use crate::turn_pieces::TurnPiece;
use crate::words::{for_each_term, for_each_word, is_stop_word};

/// A turn to learn from, with secrets redacted.
pub(crate) struct ObservedTurn {
    pub(crate) number: u32,
    pub(crate) pieces: Vec<TurnPiece>,
}

/// Phrases that mark a preference of the user.
const PREFERENCE_PHRASES: &str = "\
    i prefer|i'd prefer|always |never |from now on|please use|please don't|please always|\
    don't ever|i like|i don't like|i hate|i love|i want you to|remember that|remember to|\
    my name is|call me |we use |we never|we always|our convention|make sure to|in this project";
/// A longer sentence is not a preference.
const MAX_PREFERENCE_BYTES: usize = 240;
/// Keywords of a lesson.
const MAX_KEYWORDS: usize = 8;

/// Finds the sentences in which the user states a preference.
pub(crate) fn find_preferences(turns: &[ObservedTurn]) -> Vec<LessonDraft> {
    let mut drafts = Vec::new();
    for turn in turns {
        for piece in &turn.pieces {
            let TurnPiece::Message { role, text } = piece else {
                continue;
            };
            if SpeakerRole::from_name(role) != SpeakerRole::User {
                continue;
            }
            for sentence in split_sentences(&clean_text(text)) {
                let lower = sentence.to_lowercase();
                let is_preference = PREFERENCE_PHRASES.split('|').any(|phrase| {
                    lower.find(phrase).is_some_and(|at| {
                        at == 0 || !lower.as_bytes()[at - 1].is_ascii_alphanumeric()
                    })
                });
                if is_preference
                    && !sentence.ends_with('?')
                    && sentence.len() <= MAX_PREFERENCE_BYTES
                {
                    let (kind, status) = (LessonKind::Preference, LessonStatus::Used);
                    let content = sentence.to_owned();
                    drafts.push(new_draft(
                        kind,
                        status,
                        sentence,
                        content,
                        vec![turn.number],
                    ));
                }
            }
        }
    }
    drafts
}

/// Finds calls that failed and later succeeded, with the calls in between that may have fixed them.
pub(crate) fn find_fixes(turns: &[ObservedTurn]) -> Vec<LessonDraft> {
    let mut failures: BTreeMap<String, OpenFailure> = BTreeMap::new();
    let mut drafts = Vec::new();
    for turn in turns {
        for (at, piece) in turn.pieces.iter().enumerate() {
            let TurnPiece::Call { name, args } = piece else {
                continue;
            };
            let arguments_text = format_arguments(args);
            let (output, failed) = match turn.pieces.get(at + 1) {
                Some(TurnPiece::Output { text, failed, .. }) => {
                    (text.as_str(), *failed || looks_failed(text))
                }
                _ => ("", false),
            };
            let call = format!("{name} {}", truncate_words(&arguments_text, 120));
            if failed {
                let failure = failures.entry(call).or_insert_with(|| OpenFailure {
                    error: find_key_line(output),
                    ..OpenFailure::default()
                });
                failure.turns.push(turn.number);
            } else if let Some(failure) = failures.remove(&call) {
                drafts.extend(failure.into_fix(&call, turn.number));
            } else {
                for failure in failures.values_mut() {
                    failure.add_step(&call, turn.number);
                }
            }
        }
    }
    drafts
}

/// A call that has failed and not succeeded since.
#[derive(Default)]
struct OpenFailure {
    error: String,
    steps: Vec<String>,
    turns: Vec<u32>,
}

impl OpenFailure {
    /// Notes a successful call after the failure. Only the first six are kept.
    fn add_step(&mut self, call: &str, turn: u32) {
        if self.steps.len() < 6 {
            self.steps.push(call.to_owned());
            self.turns.push(turn);
        }
    }

    /// Drafts a lesson from the failure and its fix, when the call has succeeded. Returns `None` if
    /// nothing was done in between.
    fn into_fix(mut self, call: &str, turn: u32) -> Option<LessonDraft> {
        if self.steps.is_empty() {
            return None;
        }
        self.turns.push(turn);
        self.turns.sort_unstable();
        self.turns.dedup();
        let error = truncate_words(&self.error, 200).into_owned();
        let steps = self.steps.join("; ");
        let content = format!("{call} failed with: {error}\nWhat helped: {steps}");
        let title = format!(
            "{} fails: {}",
            truncate_words(call, 40),
            truncate_words(&error, 60)
        );
        let (kind, status) = (LessonKind::Problem, LessonStatus::Seen);
        Some(LessonDraft {
            identity: signature(&format!("{call} {error}")),
            ..new_draft(kind, status, &title, content, self.turns)
        })
    }
}

/// Returns whether the output of a call reads like a failure.
fn looks_failed(output: &str) -> bool {
    output.lines().any(|line| {
        let line = line.trim_start().to_lowercase();
        line.starts_with("error")
            || line.starts_with("fatal:")
            || line.contains("exit code: 1")
            || line.contains(" failed")
    }) && is_notable(output)
}

/// Reduces a text to the words that are the same in each occurrence of an error: without numbers,
/// addresses and single letters.
fn signature(text: &str) -> String {
    let mut out = String::new();
    for_each_word(text, |word| {
        if !word.starts_with(|c: char| c.is_ascii_digit()) && word.len() > 1 {
            out.push_str(word);
            out.push(' ');
        }
    });
    out
}

/// Builds a draft. Keywords, topics and identity are derived from the content.
fn new_draft(
    kind: LessonKind,
    status: LessonStatus,
    title: &str,
    content: String,
    turns: Vec<u32>,
) -> LessonDraft {
    let keywords = extract_keywords(&content);
    LessonDraft {
        kind,
        status,
        title: truncate_words(title, 100).into_owned(),
        topics: keywords.iter().take(3).cloned().collect(),
        keywords,
        identity: signature(&content),
        content,
        turns,
    }
}

/// Returns the longest content words of a text, the longest first.
pub(crate) fn extract_keywords(text: &str) -> Vec<String> {
    let mut words = BTreeSet::new();
    for_each_word(text, |word| {
        if word.len() > 3 && !is_stop_word(word) && !word.starts_with(|c: char| c.is_ascii_digit())
        {
            words.insert(word.to_owned());
        }
    });
    let mut words: Vec<String> = words.into_iter().collect();
    words.sort_by_key(|word| std::cmp::Reverse(word.len()));
    words.truncate(MAX_KEYWORDS);
    words
}

/// Finds the topics of a group of turns: words that at least three turns mention, but at most 30 %
/// of them. Returns each topic with its number of turns.
pub(crate) fn find_topics(turns: &[ObservedTurn]) -> BTreeMap<String, u32> {
    let mut counts: BTreeMap<String, (u32, BTreeMap<String, u32>)> = BTreeMap::new();
    for turn in turns {
        let mut seen = BTreeSet::new();
        for piece in &turn.pieces {
            let TurnPiece::Message { text, .. } = piece else {
                continue;
            };
            for_each_word(&clean_text(text), |word| {
                if word.len() < 4
                    || is_stop_word(word)
                    || COMMON_WORDS.split(' ').any(|common| common == word)
                    || word.starts_with(|c: char| c.is_ascii_digit())
                {
                    return;
                }
                for_each_term(word, |term| {
                    let entry = counts.entry(term.to_owned()).or_default();
                    *entry.1.entry(word.to_owned()).or_default() += 1;
                    if seen.insert(term.to_owned()) {
                        entry.0 += 1;
                    }
                });
            });
        }
    }
    let max_turns = (turns.len() as u32 * 3 / 10).max(3);
    let topics = counts
        .into_values()
        .filter(|(turns, _)| (3..=max_turns).contains(turns))
        .filter_map(|(turns, spellings)| {
            // The name of a topic is its most frequent spelling.
            let name = spellings.into_iter().max_by_key(|(_, times)| *times)?.0;
            Some((name, turns))
        });
    let mut topics: Vec<(String, u32)> = topics.collect();
    topics.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    topics.truncate(MAX_TOPICS);
    topics.into_iter().collect()
}

/// Topics of one group of turns.
const MAX_TOPICS: usize = 24;
/// Frequent words of conversations that are not topics. (Stop words are in `words`.)
const COMMON_WORDS: &str = "\
    back been come could doing done even every feel find first from getting give going good \
    great have help here it's keep kind know last like little long look looking lot love made \
    make many maybe mean much need never next nice part people really right said same should \
    since some something soon still such sure take tell than thank thanks that them then there \
    these they thing things think this thought time today told took true used using very want \
    wanted well were what when will with work would yeah year yesterday your";

/// Returns the area a topic belongs to, or `general`.
pub(crate) fn topic_category(topic: &str) -> &'static str {
    const AREAS: [(&str, &str); 7] = [
        ("auth", "auth login token password oauth session permission"),
        ("tests", "test spec assert coverage fixture mock"),
        (
            "build",
            "build compil cargo webpack docker deploy release pipeline",
        ),
        (
            "data",
            "database sql query schema migration table index cache",
        ),
        (
            "api",
            "api endpoint request response server client route http",
        ),
        (
            "ui",
            "button page layout style react component screen theme",
        ),
        ("docs", "docs readme document guide comment"),
    ];
    let found = AREAS
        .iter()
        .find(|(_, stems)| stems.split(' ').any(|stem| topic.contains(stem)));
    found.map_or("general", |(area, _)| area)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u32, role: &str, text: &str) -> ObservedTurn {
        ObservedTurn {
            number,
            pieces: vec![TurnPiece::Message {
                role: role.into(),
                text: text.into(),
            }],
        }
    }

    #[test]
    fn preferences_are_distinguished_from_other_sentences() {
        let turns = [
            message(
                1,
                "user",
                "Hi! From now on always answer in German. The weather is fine.",
            ),
            message(2, "assistant", "I always do."),
            message(
                3,
                "user",
                "Do you always do that? We use pnpm in this project.",
            ),
        ];
        let found = find_preferences(&turns);
        let contents: Vec<&str> = found.iter().map(|draft| draft.content.as_str()).collect();
        assert_eq!(
            contents,
            [
                "From now on always answer in German.",
                "We use pnpm in this project."
            ]
        );
        assert_eq!(found[1].turns, [3]);
    }

    #[test]
    fn an_error_and_its_fix_become_a_draft() {
        let called = |args: &str, output: &str, failed| {
            [
                TurnPiece::Call {
                    name: "exec".into(),
                    args: format!("{{\"command\":\"{args}\"}}"),
                },
                TurnPiece::Output {
                    text: output.into(),
                    failed,
                    calls: Vec::new(),
                },
            ]
        };
        let pieces = [
            called(
                "npm test",
                "Error: Cannot find module 'left-pad' at line 12",
                true,
            ),
            called("npm install left-pad", "added 1 package", false),
            called("npm test", "12 passing", false),
        ];
        let found = find_fixes(&[ObservedTurn {
            number: 4,
            pieces: pieces.concat(),
        }]);
        assert_eq!(found.len(), 1);
        assert!(
            found[0]
                .content
                .contains("What helped: exec npm install left-pad"),
            "{}",
            found[0].content
        );
        let again = find_fixes(&[ObservedTurn {
            number: 9,
            pieces: pieces.concat(),
        }]);
        assert_eq!(found[0].identity, again[0].identity);
    }

    #[test]
    fn topics_are_repeated_words_that_are_not_everywhere() {
        let mut turns: Vec<ObservedTurn> = (0..20)
            .map(|n| message(n + 1, "user", "everywhere nothing"))
            .collect();
        for n in [2, 5, 9, 12] {
            turns[n] = message(
                n as u32 + 1,
                "user",
                "the migration of the database, everywhere",
            );
        }
        let found = find_topics(&turns);
        assert!(
            found.contains_key("migration") && !found.contains_key("everywhere"),
            "{found:?}"
        );
        assert_eq!(
            (topic_category("database"), topic_category("gardening")),
            ("data", "general")
        );
    }
}
