//! The ranking finds more than BM25 alone, on synthetic conversations that were not used to tune
//! its weights.
#![allow(missing_docs, clippy::unwrap_used)]

mod chats;
#[path = "../../journal/tests/support/mod.rs"]
mod support;

use selvedge_journal::Redactor;
use selvedge_memory::{Memory, MemoryQuery, NewTurn, RankWeights};
use support::store;

fn open(dir: &tempfile::TempDir) -> Memory {
    Memory::open(store(dir.path()), Redactor::new([])).unwrap()
}

/// The average share of the evidence in the search results, over all questions.
fn recall_of(
    memory: &Memory,
    chats: &[(String, chats::SampleChat)],
    query: &MemoryQuery<'_>,
) -> f64 {
    let (mut sum, mut questions) = (0.0, 0.0);
    for (name, chat) in chats {
        for question in &chat.questions {
            let hits = memory
                .search(&MemoryQuery {
                    text: &question.text,
                    session: Some(name),
                    ..query.clone()
                })
                .unwrap();
            let keys: Vec<String> = hits
                .into_iter()
                .map(|hit| serde_json::from_str(&hit.key.unwrap()).unwrap())
                .collect();
            let found = question
                .evidence
                .iter()
                .filter(|key| keys.contains(key))
                .count();
            sum += found as f64 / question.evidence.len() as f64;
            questions += 1.0;
        }
    }
    sum / questions
}

#[test]
fn ranking_beats_bm25_and_works_within_a_small_budget() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    let chats: Vec<(String, chats::SampleChat)> = (20..26)
        .map(|seed| (format!("{seed}"), chats::chat(seed, 28)))
        .collect();
    for (name, chat) in &chats {
        let keys: Vec<String> = chat
            .lines
            .iter()
            .map(|line| format!("{:?}", line.key))
            .collect();
        let turns = chat.lines.iter().zip(&keys).map(|(line, key)| {
            let (speaker, part) = (Some(line.speaker.as_str()), Some(line.part.as_str()));
            (
                name.as_str(),
                NewTurn {
                    key: Some(key),
                    speaker,
                    part,
                    ..NewTurn::text("user", &line.text)
                },
            )
        });
        memory.append_all(turns).unwrap();
        while memory.write_levels(Some(name)).unwrap().remaining_turns > 0 {}
    }
    let five = MemoryQuery {
        max_turns: 5,
        ..MemoryQuery::new("")
    };
    let bm25 = recall_of(
        &memory,
        &chats,
        &MemoryQuery {
            weights: RankWeights::BM25,
            ..five.clone()
        },
    );
    let all = recall_of(&memory, &chats, &five);
    assert!(all > bm25 + 0.05, "{all} and {bm25}");
    let within_budget = recall_of(
        &memory,
        &chats,
        &MemoryQuery {
            max_turns: usize::MAX,
            budget: Some(2000),
            ..five.clone()
        },
    );
    assert!(within_budget > 0.97, "{within_budget}");
    // Even 300 tokens contain more than half of the evidence.
    let little = MemoryQuery {
        max_turns: usize::MAX,
        budget: Some(300),
        ..five
    };
    assert!(recall_of(&memory, &chats, &little) > 0.5);
}

#[test]
fn the_users_turn_ranks_above_the_assistants_repetition() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    let mut random = chats::SeededRandom(8);
    let (mut facts, mut turns) = (Vec::new(), 0);
    for n in 0..120 {
        let what = random.pick(&[
            "router", "budget", "visa", "garden", "contract", "engine", "recipe", "lease",
        ]);
        let value = format!("value{n}");
        let user =
            format!("My {what} for project {n} has the number {value}, please keep it in mind.");
        let assistant = format!(
            "Of course! A {what} for a project is important. To manage the {what} of project {n}, \
             consider that every {what} needs a number, that the number of the {what} should be \
             written down, and that project {n} may change."
        );
        memory.append("s", &NewTurn::text("user", &user)).unwrap();
        memory
            .append("s", &NewTurn::text("assistant", &assistant))
            .unwrap();
        turns += 2;
        facts.push((
            turns - 1,
            format!("What is the number of the {what} of project {n}?"),
        ));
    }
    let first_hit_rate = |weights: RankWeights| {
        let correct = facts.iter().filter(|(turn, question)| {
            let hits = memory
                .search(&MemoryQuery {
                    max_turns: 1,
                    weights,
                    ..MemoryQuery::new(question).in_session("s")
                })
                .unwrap();
            hits[0].number == *turn
        });
        correct.count() as f64 / facts.len() as f64
    };
    let (with, without) = (
        first_hit_rate(RankWeights::KEYWORDS),
        first_hit_rate(RankWeights {
            user: 0.0,
            ..RankWeights::KEYWORDS
        }),
    );
    assert!(with > 0.9 && with > without + 0.2, "{with} and {without}");
}
