//! The built-in encoder finds paraphrases that share no word with the question.
#![cfg(feature = "pocket")]
#![allow(missing_docs, clippy::unwrap_used)]

use selvedge_journal::Redactor;
use selvedge_memory::{Encoder, Memory, MemoryQuery, NewTurn, PocketEncoder, RankWeights};

/// Texts, each with a question that shares no word with it.
const PARAPHRASES: &[(&str, &str)] = &[
    ("My dog broke his leg last weekend.", "Was a pet injured?"),
    (
        "We decided to store invoices in Postgres.",
        "Which database holds the bills?",
    ),
    (
        "The flight to Tokyo leaves at nine in the morning.",
        "When does my plane to Japan depart?",
    ),
    (
        "She bakes sourdough every Sunday.",
        "Is there a baker of bread here?",
    ),
    (
        "The deployment failed because the disk was full.",
        "Why did the release crash, no space left?",
    ),
    (
        "He is allergic to peanuts.",
        "Are there foods that make him sick?",
    ),
];

#[test]
fn paraphrases_are_found_that_keywords_miss() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::open(dir.path(), Redactor::new([]))
        .unwrap()
        .with_built_in_encoder();
    for (number, (text, _)) in PARAPHRASES.iter().enumerate() {
        memory.append("s", &NewTurn::text("user", text)).unwrap();
        for small_talk in [
            "Fine, thank you, and yourself these days?",
            "The weather stays cloudy until Thursday.",
            "",
        ] {
            memory
                .append(
                    "s",
                    &NewTurn::text("user", &format!("{small_talk} {number}")),
                )
                .unwrap();
        }
    }
    while memory.write_vectors("s").unwrap() > 0 {}
    let mut ranks = Vec::new();
    for (at, (_, question)) in PARAPHRASES.iter().enumerate() {
        let number = (at * 4 + 1) as u32;
        let query = MemoryQuery {
            max_turns: 24,
            ..MemoryQuery::new(question).in_session("s")
        };
        let rank = |query: &MemoryQuery<'_>| {
            memory
                .search(query)
                .unwrap()
                .iter()
                .position(|hit| hit.number == number)
        };
        ranks.push((
            rank(&query),
            rank(&MemoryQuery {
                weights: RankWeights::KEYWORDS,
                ..query
            }),
        ));
    }
    assert!(
        ranks
            .iter()
            .all(|(with, without)| with.is_some_and(|rank| rank < 3) && without.is_none()),
        "{ranks:?}"
    );
    assert!(
        ranks.iter().filter(|(with, _)| *with == Some(0)).count() >= 5,
        "{ranks:?}"
    );
}

#[test]
fn any_text_has_a_vector() {
    let long = "word ".repeat(50_000);
    let vectors = PocketEncoder::new()
        .encode(&["", " \n", &long, "日本語", "one"])
        .unwrap();
    assert!(vectors.len() == 5 && vectors.iter().all(|vector| vector.len() == 384));
    assert!(PocketEncoder::new().encode(&[]).unwrap().is_empty());
}
