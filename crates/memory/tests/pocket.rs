//! With vectors, what was said in other words is found.
#![cfg(feature = "pocket")]
#![allow(missing_docs, clippy::unwrap_used)]

use selvedge_journal::Redactor;
use selvedge_memory::{Encoder, Memory, NewTurn, Pocket, Query, Weights};

/// What is asked shares no word with what was said.
const SAID: &[(&str, &str)] = &[
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
        "Does anybody make bread?",
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
fn a_paraphrase_is_found_that_keywords_miss() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::open(dir.path(), Redactor::new([]))
        .unwrap()
        .with_built_in_encoder();
    for (number, (said, _)) in SAID.iter().enumerate() {
        memory.append("s", &NewTurn::text("user", said)).unwrap();
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
    let mut places = Vec::new();
    for (at, (_, asked)) in SAID.iter().enumerate() {
        let number = (at * 4 + 1) as u32;
        let query = Query {
            k: 24,
            ..Query::new(asked).in_session("s")
        };
        let place = |query: &Query<'_>| {
            memory
                .search(query)
                .unwrap()
                .iter()
                .position(|hit| hit.number == number)
        };
        places.push((
            place(&query),
            place(&Query {
                weights: Weights::KEYWORDS,
                ..query
            }),
        ));
    }
    assert!(
        places
            .iter()
            .all(|(with, without)| with.is_some_and(|place| place < 3) && without.is_none()),
        "{places:?}"
    );
    assert!(
        places.iter().filter(|(with, _)| *with == Some(0)).count() >= 5,
        "{places:?}"
    );
}

#[test]
fn any_text_has_a_vector() {
    let long = "word ".repeat(50_000);
    let vectors = Pocket::new()
        .encode(&["", " \n", &long, "日本語", "one"])
        .unwrap();
    assert!(vectors.len() == 5 && vectors.iter().all(|vector| vector.len() == 384));
    assert!(Pocket::new().encode(&[]).unwrap().is_empty());
}
