//! What can be learned from turns by rules: what they are about, what the user wants, and which error had which cure.

use std::collections::{BTreeMap, BTreeSet};

use crate::columns::Role;
use crate::items::Piece;
use crate::lessons::{Draft, LessonKind, LessonStatus};
use crate::smooth::{arguments, clean, sentences, shortened, stands_out, telling_line};
use crate::words::{each_term, each_word, is_stop_word};

/// A turn, as far as learning needs it.
pub(crate) struct Observed {
    pub(crate) number: u32,
    pub(crate) pieces: Vec<Piece>,
}

/// Words that begin what a user wants from now on.
const WISHES: &str = "\
    i prefer|i'd prefer|always |never |from now on|please use|please don't|please always|\
    don't ever|i like|i don't like|i hate|i love|i want you to|remember that|remember to|\
    my name is|call me |we use |we never|we always|our convention|make sure to|in this project";
/// A sentence longer than this is not a wish.
const WISH_CHARACTERS: usize = 240;
/// Keywords of a lesson.
const KEYWORDS: usize = 8;

/// What the user wants from now on.
pub(crate) fn preferences(turns: &[Observed]) -> Vec<Draft> {
    let mut drafts = Vec::new();
    for turn in turns {
        for piece in &turn.pieces {
            let Piece::Said { role, text } = piece else {
                continue;
            };
            if Role::named(role) != Role::User {
                continue;
            }
            for sentence in sentences(&clean(text)) {
                let lower = sentence.to_lowercase();
                let is_wish = WISHES.split('|').any(|wish| {
                    lower.find(wish).is_some_and(|at| {
                        at == 0 || !lower.as_bytes()[at - 1].is_ascii_alphanumeric()
                    })
                });
                if is_wish && !sentence.ends_with('?') && sentence.len() <= WISH_CHARACTERS {
                    let (kind, status) = (LessonKind::Preference, LessonStatus::Used);
                    let content = sentence.to_owned();
                    drafts.push(draft(kind, status, sentence, content, vec![turn.number]));
                }
            }
        }
    }
    drafts
}

/// A failure, and what was done until the same thing worked.
pub(crate) fn cures(turns: &[Observed]) -> Vec<Draft> {
    let mut open: BTreeMap<String, Trouble> = BTreeMap::new();
    let mut drafts = Vec::new();
    for turn in turns {
        for (at, piece) in turn.pieces.iter().enumerate() {
            let Piece::Called { name, args } = piece else {
                continue;
            };
            let told = arguments(args);
            let (output, failed) = match turn.pieces.get(at + 1) {
                Some(Piece::Came { text, failed }) => {
                    (text.as_str(), *failed || looks_failed(text))
                }
                _ => ("", false),
            };
            let what = format!("{name} {}", shortened(&told, 120));
            if failed {
                let trouble = open.entry(what).or_insert_with(|| Trouble {
                    error: telling_line(output),
                    ..Trouble::default()
                });
                trouble.turns.push(turn.number);
            } else if let Some(trouble) = open.remove(&what) {
                drafts.extend(trouble.cured(&what, turn.number));
            } else {
                for trouble in open.values_mut() {
                    trouble.step(&what, turn.number);
                }
            }
        }
    }
    drafts
}

#[derive(Default)]
struct Trouble {
    error: String,
    steps: Vec<String>,
    turns: Vec<u32>,
}

impl Trouble {
    fn step(&mut self, what: &str, turn: u32) {
        if self.steps.len() < 6 {
            self.steps.push(what.to_owned());
            self.turns.push(turn);
        }
    }

    fn cured(mut self, what: &str, turn: u32) -> Option<Draft> {
        if self.steps.is_empty() {
            return None;
        }
        self.turns.push(turn);
        self.turns.sort_unstable();
        self.turns.dedup();
        let error = shortened(&self.error, 200).into_owned();
        let steps = self.steps.join("; ");
        let content = format!("{what} failed with: {error}\nWhat helped: {steps}");
        let title = format!("{} fails: {}", shortened(what, 40), shortened(&error, 60));
        let (kind, status) = (LessonKind::Problem, LessonStatus::Seen);
        Some(Draft {
            same_as: signature(&format!("{what} {error}")),
            ..draft(kind, status, &title, content, self.turns)
        })
    }
}

fn looks_failed(output: &str) -> bool {
    output.lines().any(|line| {
        let line = line.trim_start().to_lowercase();
        line.starts_with("error")
            || line.starts_with("fatal:")
            || line.contains("exit code: 1")
            || line.contains(" failed")
    }) && stands_out(output)
}

/// An error without what differs from one time to the next: numbers, addresses, the rest of paths.
fn signature(text: &str) -> String {
    let mut out = String::new();
    each_word(text, |word| {
        if !word.starts_with(|c: char| c.is_ascii_digit()) && word.len() > 1 {
            out.push_str(word);
            out.push(' ');
        }
    });
    out
}

fn draft(
    kind: LessonKind,
    status: LessonStatus,
    title: &str,
    content: String,
    turns: Vec<u32>,
) -> Draft {
    let keywords = keywords(&content);
    Draft {
        kind,
        status,
        title: shortened(title, 100).into_owned(),
        topics: keywords.iter().take(3).cloned().collect(),
        keywords,
        same_as: signature(&content),
        content,
        turns,
    }
}

/// The words that tell most, the longest first.
pub(crate) fn keywords(text: &str) -> Vec<String> {
    let mut words = BTreeSet::new();
    each_word(text, |word| {
        if word.len() > 3 && !is_stop_word(word) && !word.starts_with(|c: char| c.is_ascii_digit())
        {
            words.insert(word.to_owned());
        }
    });
    let mut words: Vec<String> = words.into_iter().collect();
    words.sort_by_key(|word| std::cmp::Reverse(word.len()));
    words.truncate(KEYWORDS);
    words
}

/// What some turns are about: words that come again and again, yet not everywhere.
pub(crate) fn topics(turns: &[Observed]) -> BTreeMap<String, u32> {
    let mut counts: BTreeMap<String, (u32, BTreeMap<String, u32>)> = BTreeMap::new();
    for turn in turns {
        let mut seen = BTreeSet::new();
        for piece in &turn.pieces {
            let Piece::Said { text, .. } = piece else {
                continue;
            };
            each_word(&clean(text), |word| {
                if word.len() < 4
                    || is_stop_word(word)
                    || COMMON.split(' ').any(|common| common == word)
                    || word.starts_with(|c: char| c.is_ascii_digit())
                {
                    return;
                }
                each_term(word, |term| {
                    let entry = counts.entry(term.to_owned()).or_default();
                    *entry.1.entry(word.to_owned()).or_default() += 1;
                    if seen.insert(term.to_owned()) {
                        entry.0 += 1;
                    }
                });
            });
        }
    }
    let most = (turns.len() as u32 * 3 / 10).max(3);
    let told = counts
        .into_values()
        .filter(|(turns, _)| (3..=most).contains(turns))
        .filter_map(|(turns, spellings)| {
            // A topic goes by its most frequent spelling.
            let name = spellings.into_iter().max_by_key(|(_, times)| *times)?.0;
            Some((name, turns))
        });
    let mut told: Vec<(String, u32)> = told.collect();
    told.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    told.truncate(TOPICS);
    told.into_iter().collect()
}

/// Topics of one batch of turns.
const TOPICS: usize = 24;
/// Frequent in talk, and about nothing.
const COMMON: &str = "\
    back been come could doing done even every feel find first from getting give going good \
    great have help here it's keep kind know last like little long look looking lot love made \
    make many maybe mean much need never next nice part people really right said same should \
    since some something soon still such sure take tell than thank thanks that them then there \
    these they thing things think this thought time today told took true used using very want \
    wanted well were what when will with work would yeah year yesterday your";

/// Which area a topic belongs to.
pub(crate) fn category(topic: &str) -> &'static str {
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
        .find(|(_, marks)| marks.split(' ').any(|mark| topic.contains(mark)));
    found.map_or("general", |(area, _)| area)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(number: u32, role: &str, text: &str) -> Observed {
        Observed {
            number,
            pieces: vec![Piece::Said {
                role: role.into(),
                text: text.into(),
            }],
        }
    }

    #[test]
    fn wishes_are_told_from_talk() {
        let turns = [
            said(
                1,
                "user",
                "Hi! From now on always answer in German. The weather is fine.",
            ),
            said(2, "assistant", "I always do."),
            said(
                3,
                "user",
                "Do you always do that? We use pnpm in this project.",
            ),
        ];
        let found = preferences(&turns);
        let told: Vec<&str> = found.iter().map(|draft| draft.content.as_str()).collect();
        assert_eq!(
            told,
            [
                "From now on always answer in German.",
                "We use pnpm in this project."
            ]
        );
        assert_eq!(found[1].turns, [3]);
    }

    #[test]
    fn an_error_and_its_cure_are_a_pair() {
        let called = |args: &str, output: &str, failed| {
            [
                Piece::Called {
                    name: "exec".into(),
                    args: format!("{{\"command\":\"{args}\"}}"),
                },
                Piece::Came {
                    text: output.into(),
                    failed,
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
        let found = cures(&[Observed {
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
        let again = cures(&[Observed {
            number: 9,
            pieces: pieces.concat(),
        }]);
        assert_eq!(found[0].same_as, again[0].same_as);
    }

    #[test]
    fn topics_come_again_yet_not_everywhere() {
        let mut turns: Vec<Observed> = (0..20)
            .map(|n| said(n + 1, "user", "everywhere nothing"))
            .collect();
        for n in [2, 5, 9, 12] {
            turns[n] = said(
                n as u32 + 1,
                "user",
                "the migration of the database, everywhere",
            );
        }
        let found = topics(&turns);
        assert!(
            found.contains_key("migration") && !found.contains_key("everywhere"),
            "{found:?}"
        );
        assert_eq!(
            (category("database"), category("gardening")),
            ("data", "general")
        );
    }
}
