//! Compares the index with FTS5: BM25 scores and stems must be the same.
#![allow(missing_docs, clippy::unwrap_used)]

mod chats;

use rusqlite::{Connection, params};
use selvedge_journal::Redactor;
use selvedge_memory::{Memory, MemoryQuery, NewTurn, RankWeights};

fn fts5(lines: &[chats::ChatLine]) -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    connection
        .execute_batch("CREATE VIRTUAL TABLE t USING fts5(text, tokenize = 'porter unicode61')")
        .unwrap();
    for (at, line) in lines.iter().enumerate() {
        connection
            .execute(
                "INSERT INTO t (rowid, text) VALUES (?1, ?2)",
                params![at as i64 + 1, line.text],
            )
            .unwrap();
    }
    connection
}

#[test]
fn bm25_scores_equal_those_of_fts5_for_each_session() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::open(dir.path(), Redactor::new([])).unwrap();
    let mut compared = 0;
    for seed in 0..4 {
        let chat = chats::chat(seed, 12);
        let name = format!("chat {seed}");
        for line in &chat.lines {
            let turn = NewTurn {
                part: Some(&line.part),
                speaker: Some(&line.speaker),
                ..NewTurn::text("user", &line.text)
            };
            memory.append(&name, &turn).unwrap();
        }
        let peer = fts5(&chat.lines);
        for question in &chat.questions {
            let query = MemoryQuery {
                max_turns: 1000,
                weights: RankWeights::BM25,
                ..MemoryQuery::new(&question.text).in_session(&name)
            };
            let our_hits = memory.search(&query).unwrap();
            let words: Vec<String> = question
                .text
                .split(|c: char| !c.is_alphanumeric())
                .filter(|word| !word.is_empty() && !STOP.contains(&word.to_lowercase().as_str()))
                .map(|word| format!("\"{word}\""))
                .collect();
            let mut read = peer
                .prepare("SELECT rowid, -bm25(t) FROM t WHERE t MATCH ?1")
                .unwrap();
            let fts5_scores = read
                .query_map(params![words.join(" OR ")], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })
                .unwrap();
            let fts5_scores: std::collections::BTreeMap<u32, f64> =
                fts5_scores.map(Result::unwrap).collect();
            assert_eq!(our_hits.len(), fts5_scores.len(), "{}", question.text);
            let best = fts5_scores.values().copied().fold(0.0, f64::max);
            for hit in &our_hits {
                let expected = fts5_scores[&hit.number] / best;
                assert!(
                    (hit.score - expected).abs() < 1e-9,
                    "{}: {} and {expected}",
                    question.text,
                    hit.score
                );
                compared += 1;
            }
        }
    }
    assert!(compared > 4000, "{compared}");
}

/// The stop words in the questions of the generated chats.
const STOP: &[&str] = &[
    "what", "when", "where", "which", "whom", "how", "does", "did", "is", "was", "has", "the",
    "of", "at", "and", "to", "for", "in", "on", "through", "after", "down", "her", "from",
];

#[test]
fn words_are_stemmed_as_fts5_stems_them() {
    let mut text: Vec<String> = Vec::new();
    let endings = [
        "", "s", "es", "ies", "ed", "eed", "ing", "ly", "ational", "ization", "fulness", "iveness",
        "able", "ment", "ement", "ness", "ation", "ator", "alism", "aliti", "ive", "ize", "izer",
        "er", "ic", "ical", "ion", "ous", "ously", "y", "e", "ll", "at", "bl", "iz",
    ];
    for stem in [
        "run", "hop", "hope", "relat", "cat", "sky", "agre", "plaster", "controll", "fizz", "tann",
        "fall", "oper", "y", "be", "sensib", "a", "rate", "probat", "élan", "ss", "bl",
    ] {
        text.extend(endings.iter().map(|ending| format!("{stem}{ending}")));
    }
    for line in chats::chat(9, 30).lines {
        text.extend(line.text.split_whitespace().map(str::to_owned));
    }
    let connection = Connection::open_in_memory().unwrap();
    connection
        .execute_batch(
            "CREATE VIRTUAL TABLE t USING fts5(text, tokenize = 'porter unicode61');
             CREATE VIRTUAL TABLE v USING fts5vocab(t, 'row');",
        )
        .unwrap();
    // The same text in both indexes must give the same terms.
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::open(dir.path(), Redactor::new([])).unwrap();
    memory
        .append("s", &NewTurn::text("user", &text.join(" ")))
        .unwrap();
    connection
        .execute("INSERT INTO t (text) VALUES (?1)", params![text.join(" ")])
        .unwrap();
    let terms = |connection: &Connection, sql: &str| -> Vec<String> {
        let mut read = connection.prepare(sql).unwrap();
        read.query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect()
    };
    let store = Connection::open(dir.path().join("journal.sqlite")).unwrap();
    let our_terms = terms(
        &store,
        "SELECT DISTINCT term FROM memory_postings ORDER BY term",
    );
    let fts5_terms = terms(&connection, "SELECT term FROM v ORDER BY term");
    assert!(our_terms.len() > 300);
    assert_eq!(our_terms, fts5_terms);
}
