//! An encrypted memory has no plain text in its file, gives the same results, and opens with its
//! key only.
#![allow(missing_docs, clippy::unwrap_used)]

mod chats;
#[path = "../../journal/tests/support/mod.rs"]
mod support;

use std::sync::Arc;

use selvedge_journal::{JournalError, Redactor};
use selvedge_memory::{
    Encoder, GradientOptions, Level, Memory, MemoryError, MemoryQuery, NewTurn, PlanStorage,
};
use support::{store, stores_text};

const KEY: [u8; 32] = [7; 32];

/// A simple encoder: counts each letter of a text.
#[derive(Debug)]
struct LetterEncoder;

impl Encoder for LetterEncoder {
    fn name(&self) -> &str {
        "letters"
    }

    fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, MemoryError> {
        let count =
            |text: &str, letter: u8| text.bytes().filter(|byte| *byte == letter).count() as f32;
        Ok(texts
            .iter()
            .map(|text| (b'a'..=b'z').map(|letter| count(text, letter)).collect())
            .collect())
    }
}

fn open_encrypted(dir: &tempfile::TempDir) -> Arc<Memory> {
    let memory = Memory::open_encrypted(store(dir.path()), Redactor::new([]), &KEY).unwrap();
    Arc::new(memory.with_encoder(Arc::new(LetterEncoder)))
}

fn open_plain(dir: &tempfile::TempDir) -> Arc<Memory> {
    let memory = Memory::open(store(dir.path()), Redactor::new([])).unwrap();
    Arc::new(memory.with_encoder(Arc::new(LetterEncoder)))
}

/// Unique words, one for each kind of stored text.
const WORDS: &[&str] = &[
    "zyzzyvaplex",
    "qaanaaq",
    "bartholomewina",
    "sittinglabel",
    "turnkey77",
    "boardword",
    "layerword",
    "wishword",
];

async fn fill(memory: &Arc<Memory>) {
    for line in chats::chat(5, 12).lines {
        let turn = NewTurn {
            speaker: Some(&line.speaker),
            ts: Some(&line.ts),
            ..NewTurn::text("user", &line.text)
        };
        memory.append("s", &turn).unwrap();
    }
    let marked = NewTurn {
        key: Some("\"turnkey77\""),
        speaker: Some("Bartholomewina"),
        part: Some("sittinglabel"),
        ..NewTurn::text("user", "I always wishword the zyzzyvaplex in Qaanaaq.")
    };
    memory.append("s", &marked).unwrap();
    for n in 0..14 {
        let text = format!(
            "About the layerword, item {n}: {}",
            "it is stored in the north wing near the stairs ".repeat(12)
        );
        memory.append("s", &NewTurn::text("user", &text)).unwrap();
        memory
            .append(
                "s",
                &NewTurn::text("user", &format!("Nothing of the kind number {n}.")),
            )
            .unwrap();
        memory
            .append(
                "s",
                &NewTurn::text("user", &format!("Nor here at all number {n}.")),
            )
            .unwrap();
    }
    while memory.distill("s", None).await.unwrap().remaining_turns > 0 {}
    while memory.write_vectors("s").unwrap() > 0 {}
    memory
        .assemble("s", GradientOptions::new(2_000), PlanStorage::Store)
        .unwrap();
    memory
        .announce("s", "file", "boardword is on the board")
        .unwrap();
}

/// The words of `WORDS` that the file or its log contains as plain text.
fn plain_words(dir: &tempfile::TempDir) -> Vec<&'static str> {
    let words = WORDS.iter().copied();
    words.filter(|word| stores_text(dir.path(), word)).collect()
}

/// Everything that the public API returns from a memory.
fn contents(memory: &Memory) -> Vec<String> {
    let mut contents = Vec::new();
    for question in [
        "zyzzyvaplex in Qaanaaq",
        "what did Bartholomewina wish",
        "the stairs of the north wing",
        "telescope and pottery",
    ] {
        let hits = memory
            .search(&MemoryQuery {
                max_turns: 20,
                ..MemoryQuery::new(question).in_session("s")
            })
            .unwrap();
        contents.push(format!("{hits:?}"));
    }
    let numbers = 1..=memory.turn_count("s").unwrap();
    for level in [Level::Raw, Level::Smoothed, Level::Compressed, Level::Tiny] {
        contents.extend(
            numbers
                .clone()
                .map(|n| format!("{:?}", memory.turn_at_level("s", n, level).unwrap())),
        );
    }
    let shown = memory
        .assemble("s", GradientOptions::new(2_000), PlanStorage::Discard)
        .unwrap();
    let lessons = memory.lessons(None).unwrap().into_iter().map(|lesson| {
        format!(
            "{} {} {:?}",
            lesson.title, lesson.content, lesson.source_turns
        )
    });
    let mut lessons: Vec<String> = lessons.collect();
    lessons.sort();
    let mut exported = Vec::new();
    memory.export(None, &mut exported).unwrap();
    let topics: Vec<String> = memory
        .topics("s")
        .unwrap()
        .into_iter()
        .map(|topic| topic.name)
        .collect();
    contents.push(format!(
        "{}\n{lessons:?}\n{topics:?}\n{:?}\n{}",
        shown.text,
        memory.board("s").unwrap(),
        String::from_utf8(exported).unwrap()
    ));
    contents.push(format!(
        "{:?}",
        memory.find_turn_by_key("s", "\"turnkey77\"").unwrap()
    ));
    contents
}

#[tokio::test]
async fn an_encrypted_file_has_no_plain_text_and_gives_the_same_results() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (memory, plain) = (open_encrypted(&dir), open_plain(&other));
    fill(&memory).await;
    fill(&plain).await;
    assert_eq!(plain_words(&other), WORDS, "a plain file has every word");
    assert_eq!(plain_words(&dir), [] as [&str; 0]);
    assert!(
        contents(&plain)
            .iter()
            .zip(contents(&memory))
            .all(|(plain, encrypted)| *plain == encrypted)
    );
    assert!(!memory.lessons(None).unwrap().is_empty() && !memory.topics("s").unwrap().is_empty());

    // It opens with its key only.
    let before = contents(&memory);
    drop(memory);
    assert_eq!(contents(&open_encrypted(&dir)), before);
    let is_rejected = |opened: Result<Memory, MemoryError>| {
        matches!(opened, Err(MemoryError::Journal(JournalError::WrongKey)))
    };
    assert!(is_rejected(Memory::open(
        store(dir.path()),
        Redactor::new([])
    )));
    assert!(is_rejected(Memory::open_encrypted(
        store(dir.path()),
        Redactor::new([]),
        &[8; 32]
    )));

    // Forgetting works in an encrypted memory.
    let memory = open_encrypted(&dir);
    let number = memory
        .find_turn_by_key("s", "\"turnkey77\"")
        .unwrap()
        .unwrap();
    assert_eq!(memory.forget_turn("s", number).unwrap().lessons, 1);
    assert!(
        !memory
            .search(&MemoryQuery::new("zyzzyvaplex"))
            .unwrap()
            .iter()
            .any(|hit| hit.number == number)
    );
    assert_eq!(
        memory
            .append("s", &NewTurn::text("user", "on we go"))
            .unwrap(),
        memory.turn_count("s").unwrap()
    );
}

#[tokio::test]
async fn existing_plain_text_is_encrypted_when_a_key_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let plain = open_plain(&dir);
    fill(&plain).await;
    let before = contents(&plain);
    let memory = open_encrypted(&dir);
    assert_eq!(contents(&memory), before);
    // A process that opened the memory before, without the key, cannot write plain text.
    let late = plain.append("s", &NewTurn::text("user", "zyzzyvaplex once more"));
    assert!(
        matches!(late, Err(MemoryError::Journal(JournalError::WrongKey))),
        "{late:?}"
    );
    drop((plain, memory));
    assert_eq!(plain_words(&dir), [] as [&str; 0]);
    assert_eq!(contents(&open_encrypted(&dir)), before);
}
