//! Finds the topics of turns and the areas they belong to, without a model: words and names that
//! several turns share, grouped by the turns in which they occur together. Pure functions.

use std::collections::{BTreeMap, BTreeSet};

use crate::cleaning::clean_text;
use crate::identifiers::names_in_message;
use crate::lesson_rules::ObservedTurn;
use crate::turn_metrics::SpeakerRole;
use crate::turn_pieces::TurnPiece;
use crate::words::{for_each_term, for_each_word, is_stop_word};

/// Topics of one group of turns.
const MAX_TOPICS: usize = 32;
/// Fewest turns that mention a topic.
const MIN_TOPIC_TURNS: usize = 3;
/// Names of files and symbols of a turn that count, the most important first.
const MAX_NAMES_OF_TURN: usize = 4;
/// Groups of topics are joined while their mean similarity is at least this.
const MIN_SIMILARITY: f64 = 0.35;
/// A topic alone joins the nearest area if it is at least this similar.
const MIN_SIMILARITY_OF_SINGLE: f64 = 0.2;
/// The area of topics that occur with no other.
pub(crate) const OTHER_AREA: &str = "other";
/// Frequent words of conversations, and of work on code, that are not topics. (Stop words are in
/// `words`.)
const COMMON_WORDS: &str = "\
    able added adding already also another answer anything asked back because been before better \
    both call called calls came cannot cause caused change changed changes changing check \
    checked checks clear clearer code come correct could create created current default \
    different does doing done down each else enough error errors even every everything example \
    expected explain fail failed failing fails feel file files find fine first fixed fixes \
    fixing found from full function functions gets getting give going gone good great happen \
    happened happens have hello help here idea implement implemented important instead issue \
    issues it's just keep kind know last left less like line lines list little long look looking \
    lot love made main make makes many maybe mean means method might minute minutes missing \
    moment more most move moved much must name named need needed needs never next nice none \
    noted nothing number often okay once only open other output over part pass passed passes \
    people please possible previous probably problem problems question quick quickly raises \
    rather read ready really reason remove removed rename renamed repair repaired replace \
    replaced report reported reports require required result results return returned returns \
    review reviewed right running runs said same says seems send sent several short should show \
    showed shown shows simple since single small some something soon spent start started step \
    steps still stop such sure take taken takes tell test tested testing tests text than thank \
    thanks that them then there these they thing things think this thought time today together \
    told took tried tries true turn twice type under update updated usage used user users uses \
    using value values version very wait want wanted well went were what when whether which \
    while whole will with without word words work worked working works would write writes \
    writing written wrong yeah year yesterday your";

/// A topic of a group of turns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FoundTopic {
    pub(crate) name: String,
    /// The turns that mention it, as indices into the group, in order.
    pub(crate) turns: Vec<usize>,
}

/// Finds the topics of a group of turns: words, files and symbols that at least three turns
/// mention, but at most 30 % of them. The most frequent come first.
pub(crate) fn find_topics(turns: &[ObservedTurn]) -> Vec<FoundTopic> {
    // By key: the turns, and how often each spelling occurs.
    let mut counts: BTreeMap<String, (BTreeSet<usize>, BTreeMap<String, u32>)> = BTreeMap::new();
    let mut add = |key: &str, spelling: &str, at: usize| {
        let (turns, spellings) = counts.entry(key.to_owned()).or_default();
        turns.insert(at);
        *spellings.entry(spelling.to_owned()).or_default() += 1;
    };
    for (at, turn) in turns.iter().enumerate() {
        let messages = || turn.pieces.iter().filter_map(message_of);
        let has_user = messages().any(|(role, _)| role == SpeakerRole::User);
        let mut names = turn.names.clone();
        for (role, text) in messages() {
            let mut text = text.to_owned();
            for name in names_in_message(&text) {
                // The parts of a name are no topics of their own.
                if !text.contains(&name) {
                    continue;
                }
                text = text.replace(&name, " ");
                let name = name.rsplit('/').next().unwrap_or(&name);
                if !names.iter().any(|known| known == name) {
                    names.push(name.to_owned());
                }
            }
            // What an assistant says about its work is the same about everything.
            if has_user && role == SpeakerRole::Assistant {
                continue;
            }
            for_each_word(&clean_text(&text), |word| {
                let is_topic = word.len() >= 4
                    && !is_stop_word(word)
                    && !COMMON_WORDS.split_whitespace().any(|common| common == word)
                    && !word.starts_with(|c: char| c.is_ascii_digit());
                if is_topic {
                    for_each_term(word, |term| add(term, word, at));
                }
            });
        }
        for name in names.iter().take(MAX_NAMES_OF_TURN) {
            if name.len() > 2 {
                add(&name.to_lowercase(), name, at);
            }
        }
    }
    let max_turns = (turns.len() * 3 / 10).max(MIN_TOPIC_TURNS);
    let topics = counts
        .into_values()
        .filter(|(turns, _)| (MIN_TOPIC_TURNS..=max_turns).contains(&turns.len()))
        .filter_map(|(turns, spellings)| {
            // The name of a topic is its most frequent spelling.
            let name = spellings.into_iter().max_by_key(|(_, times)| *times)?.0;
            let turns = turns.into_iter().collect();
            Some(FoundTopic { name, turns })
        });
    let mut topics: Vec<FoundTopic> = topics.collect();
    topics.sort_by(|a, b| b.turns.len().cmp(&a.turns.len()).then(a.name.cmp(&b.name)));
    let mut names = BTreeSet::new();
    topics.retain(|topic| names.insert(topic.name.clone()));
    topics.truncate(MAX_TOPICS);
    topics
}

fn message_of(piece: &TurnPiece) -> Option<(SpeakerRole, &str)> {
    match piece {
        TurnPiece::Message { role, text } => Some((SpeakerRole::from_name(role), text)),
        _ => None,
    }
}

/// Returns the area of each topic: topics that occur in the same turns belong together. An area is
/// named after the topic in its middle, or keeps the name that its topics have in `known`.
pub(crate) fn find_areas(topics: &[FoundTopic], known: &BTreeMap<String, String>) -> Vec<String> {
    let similarity: Vec<Vec<f64>> = topics
        .iter()
        .map(|a| topics.iter().map(|b| similarity(a, b)).collect())
        .collect();
    let mean = |a: &[usize], b: &[usize]| {
        let sum: f64 = a
            .iter()
            .flat_map(|i| b.iter().map(|j| similarity[*i][*j]))
            .sum();
        sum / (a.len() * b.len()) as f64
    };
    let mut groups: Vec<Vec<usize>> = (0..topics.len()).map(|at| vec![at]).collect();
    while let Some((a, b, best)) = nearest_groups(&groups, &mean)
        && best >= MIN_SIMILARITY
    {
        let joined = groups.remove(b);
        groups[a].extend(joined);
    }
    let (mut areas, singles): (Vec<_>, Vec<_>) =
        groups.into_iter().partition(|group| group.len() > 1);
    let mut alone = Vec::new();
    for single in singles {
        let nearest = areas
            .iter_mut()
            .max_by(|a, b| mean(a, &single).total_cmp(&mean(b, &single)));
        match nearest {
            Some(area) if mean(area, &single) >= MIN_SIMILARITY_OF_SINGLE => area.extend(single),
            _ => alone.extend(single),
        }
    }
    let mut names = vec![OTHER_AREA.to_owned(); topics.len()];
    for area in &areas {
        let name = area_name(topics, area, &similarity, known);
        for at in area {
            names[*at].clone_from(&name);
        }
    }
    for at in alone {
        if let Some(area) = known.get(&topics[at].name) {
            names[at].clone_from(area);
        }
    }
    names
}

/// Returns the two most similar groups and their similarity; `None` if there is only one group.
fn nearest_groups(
    groups: &[Vec<usize>],
    mean: &impl Fn(&[usize], &[usize]) -> f64,
) -> Option<(usize, usize, f64)> {
    let pairs = (0..groups.len()).flat_map(|a| (a + 1..groups.len()).map(move |b| (a, b)));
    let rated = pairs.map(|(a, b)| (a, b, mean(&groups[a], &groups[b])));
    // Of equal pairs, the first.
    rated.reduce(|best, next| if next.2 > best.2 { next } else { best })
}

/// Returns the name of an area: the one that most of its turns had before, or its central topic.
fn area_name(
    topics: &[FoundTopic],
    area: &[usize],
    similarity: &[Vec<f64>],
    known: &BTreeMap<String, String>,
) -> String {
    let mut earlier: BTreeMap<&str, usize> = BTreeMap::new();
    for at in area {
        let name = known
            .get(&topics[*at].name)
            .filter(|name| *name != OTHER_AREA);
        if let Some(name) = name {
            *earlier.entry(name.as_str()).or_default() += topics[*at].turns.len();
        }
    }
    if let Some((name, _)) = earlier.into_iter().max_by_key(|(_, turns)| *turns) {
        return name.to_owned();
    }
    let centrality = |at: usize| {
        let sum: f64 = area.iter().map(|other| similarity[at][*other]).sum();
        sum * (topics[at].turns.len() as f64).sqrt()
    };
    let central = area
        .iter()
        .max_by(|a, b| centrality(**a).total_cmp(&centrality(**b)));
    central.map_or(OTHER_AREA.to_owned(), |at| topics[*at].name.clone())
}

/// The cosine of the sets of turns that mention two topics.
fn similarity(a: &FoundTopic, b: &FoundTopic) -> f64 {
    let others: BTreeSet<&usize> = b.turns.iter().collect();
    let shared = a.turns.iter().filter(|turn| others.contains(turn)).count();
    shared as f64 / ((a.turns.len() * b.turns.len()) as f64).sqrt().max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(texts: &[&str]) -> Vec<ObservedTurn> {
        let observed = |(at, text): (usize, &&str)| ObservedTurn {
            session: 1,
            number: at as u32 + 1,
            at_ms: 0,
            names: Vec::new(),
            pieces: vec![TurnPiece::Message {
                role: "user".into(),
                text: (*text).into(),
            }],
        };
        texts.iter().enumerate().map(observed).collect()
    }

    #[test]
    fn topics_are_repeated_words_that_are_not_everywhere() {
        let mut texts = vec!["everywhere nothing"; 20];
        for n in [2, 5, 9, 12] {
            texts[n] = "the migration of the database, everywhere";
        }
        let found = find_topics(&turns(&texts));
        let names: Vec<&str> = found.iter().map(|topic| topic.name.as_str()).collect();
        assert_eq!(names, ["database", "migration"]);
        assert_eq!(found[0].turns, [2, 5, 9, 12]);
    }

    #[test]
    fn files_and_symbols_are_topics() {
        let mut observed = turns(&["nothing here"; 12]);
        for at in [1, 4, 8] {
            observed[at].names = vec!["signer.py".into(), "Signer".into()];
        }
        let found = find_topics(&observed);
        let names: Vec<&str> = found.iter().map(|topic| topic.name.as_str()).collect();
        assert_eq!(names, ["Signer", "signer.py"]);
    }

    #[test]
    fn names_in_messages_are_topics_and_words_of_answers_are_not() {
        let mut observed = turns(&["nothing here"; 12]);
        for at in [1, 4, 8] {
            let message = |role: &str, text: &str| TurnPiece::Message {
                role: role.into(),
                text: text.into(),
            };
            observed[at].pieces = vec![
                message(
                    "user",
                    "The refund in src/tax_rate.py is too high, see renew_token.",
                ),
                message(
                    "assistant",
                    "I inserted a condition and everything succeeds.",
                ),
            ];
        }
        let found = find_topics(&observed);
        let names: Vec<&str> = found.iter().map(|topic| topic.name.as_str()).collect();
        assert_eq!(names, ["high", "refund", "renew_token", "tax_rate.py"]);
    }

    #[test]
    fn areas_are_topics_that_occur_together_and_keep_their_names() {
        let mut texts = vec!["lunch"; 40];
        for n in 0..5 {
            texts[n * 3] = "the oauth token of the login expired";
            texts[n * 3 + 1] = "the sailing harbour has a lantern";
        }
        let topics = find_topics(&turns(&texts));
        let areas = find_areas(&topics, &BTreeMap::new());
        let area_of = |name: &str| {
            let at = topics.iter().position(|topic| topic.name == name);
            at.map(|at| areas[at].as_str())
                .unwrap_or_else(|| panic!("{topics:?}"))
        };
        assert_eq!(area_of("oauth"), area_of("login"));
        assert_eq!(area_of("harbour"), area_of("lantern"));
        assert_ne!(area_of("oauth"), area_of("harbour"));
        let known = BTreeMap::from([("login".to_owned(), "auth".to_owned())]);
        let areas = find_areas(&topics, &known);
        let at = topics.iter().position(|topic| topic.name == "oauth");
        assert_eq!(areas[at.unwrap_or_default()], "auth");
    }
}
