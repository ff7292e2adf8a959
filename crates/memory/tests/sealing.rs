//! A sealed memory has no word in the clear, finds what it always finds, and opens with its key only.
#![allow(missing_docs, clippy::unwrap_used)]

mod chats;

use std::sync::Arc;

use selvedge_journal::{JournalError, Redactor};
use selvedge_memory::{
    Encoder, Gradient, Keep, Level, Memory, MemoryError, NewTurn, Query, Strategy,
};

const KEY: [u8; 32] = [7; 32];

/// As many letters of each kind as a text has.
#[derive(Debug)]
struct Letters;

impl Encoder for Letters {
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

fn sealed(dir: &tempfile::TempDir) -> Memory {
    Memory::open_sealed(dir.path(), Redactor::new([]), &KEY)
        .unwrap()
        .with_encoder(Arc::new(Letters))
}

fn plain(dir: &tempfile::TempDir) -> Memory {
    Memory::open(dir.path(), Redactor::new([]))
        .unwrap()
        .with_encoder(Arc::new(Letters))
}

/// Words of every kind of row, none of which is anywhere else in the file.
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

async fn fill(memory: &Memory) {
    for line in chats::chat(5, 12).lines {
        let turn = NewTurn {
            speaker: Some(&line.speaker),
            ts: Some(&line.ts),
            ..NewTurn::text("user", &line.text)
        };
        memory.append("s", &turn).unwrap();
    }
    let odd = NewTurn {
        key: Some("\"turnkey77\""),
        speaker: Some("Bartholomewina"),
        part: Some("sittinglabel"),
        ..NewTurn::text("user", "I always wishword the zyzzyvaplex in Qaanaaq.")
    };
    memory.append("s", &odd).unwrap();
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
    while memory.distill("s", None).await.unwrap().waiting > 0 {}
    while memory.write_vectors("s").unwrap() > 0 {}
    memory
        .assemble("s", Strategy::Gradient(Gradient::new(2_000)), Keep::Pinned)
        .unwrap();
    memory
        .announce("s", "file", "boardword is on the board")
        .unwrap();
}

/// The words that the file or its log has.
fn in_the_clear(dir: &tempfile::TempDir) -> Vec<&'static str> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            all.extend(std::fs::read(path).unwrap().to_ascii_lowercase());
        }
    }
    let has = |word: &str| {
        all.windows(word.len())
            .any(|window| window == word.as_bytes())
    };
    WORDS.iter().copied().filter(|word| has(word)).collect()
}

/// Everything anybody can learn of a memory.
fn told(memory: &Memory) -> Vec<String> {
    let mut told = Vec::new();
    for question in [
        "zyzzyvaplex in Qaanaaq",
        "what did Bartholomewina wish",
        "the stairs of the north wing",
        "telescope and pottery",
    ] {
        let hits = memory
            .search(&Query {
                k: 20,
                ..Query::new(question).in_session("s")
            })
            .unwrap();
        told.push(format!("{hits:?}"));
    }
    let numbers = 1..=memory.turns("s").unwrap();
    for level in [Level::Raw, Level::Smoothed, Level::Compressed, Level::Tiny] {
        told.extend(
            numbers
                .clone()
                .map(|n| format!("{:?}", memory.level("s", n, level).unwrap())),
        );
    }
    let shown = memory
        .assemble("s", Strategy::Gradient(Gradient::new(2_000)), Keep::Nothing)
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
    told.push(format!(
        "{}\n{lessons:?}\n{topics:?}\n{:?}\n{}",
        shown.text,
        memory.board("s").unwrap(),
        String::from_utf8(exported).unwrap()
    ));
    told.push(format!(
        "{:?}",
        memory.number_of("s", "\"turnkey77\"").unwrap()
    ));
    told
}

#[tokio::test]
async fn no_word_is_in_the_clear_and_everything_is_found_as_before() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (memory, clear) = (sealed(&dir), plain(&other));
    fill(&memory).await;
    fill(&clear).await;
    assert_eq!(in_the_clear(&other), WORDS, "a plain one has every word");
    assert_eq!(in_the_clear(&dir), [] as [&str; 0]);
    assert!(
        told(&clear)
            .iter()
            .zip(told(&memory))
            .all(|(clear, sealed)| *clear == sealed)
    );
    assert!(!memory.lessons(None).unwrap().is_empty() && !memory.topics("s").unwrap().is_empty());

    // The key opens it again, nothing else does.
    let before = told(&memory);
    drop(memory);
    assert_eq!(told(&sealed(&dir)), before);
    let refused = |opened: Result<Memory, MemoryError>| {
        matches!(opened, Err(MemoryError::Journal(JournalError::Sealed)))
    };
    assert!(refused(Memory::open(dir.path(), Redactor::new([]))));
    assert!(refused(Memory::open_sealed(
        dir.path(),
        Redactor::new([]),
        &[8; 32]
    )));

    // What is forgotten there is gone there.
    let memory = sealed(&dir);
    let number = memory.number_of("s", "\"turnkey77\"").unwrap().unwrap();
    assert_eq!(memory.forget_turn("s", number).unwrap().lessons, 1);
    assert!(
        !memory
            .search(&Query::new("zyzzyvaplex"))
            .unwrap()
            .iter()
            .any(|hit| hit.number == number)
    );
    assert_eq!(
        memory
            .append("s", &NewTurn::text("user", "on we go"))
            .unwrap(),
        memory.turns("s").unwrap()
    );
}

#[tokio::test]
async fn what_was_there_in_the_clear_is_sealed_when_there_is_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let clear = plain(&dir);
    fill(&clear).await;
    let before = told(&clear);
    let memory = sealed(&dir);
    assert_eq!(told(&memory), before);
    // A process from before that knows no key writes nothing beside it.
    let late = clear.append("s", &NewTurn::text("user", "zyzzyvaplex once more"));
    assert!(
        matches!(late, Err(MemoryError::Journal(JournalError::Sealed))),
        "{late:?}"
    );
    drop((clear, memory));
    assert_eq!(in_the_clear(&dir), [] as [&str; 0]);
    assert_eq!(told(&sealed(&dir)), before);
}
