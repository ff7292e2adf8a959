//! Distilling, summarising, forgetting, redaction, export and vectors.
#![allow(missing_docs, clippy::unwrap_used)]

mod chats;
#[path = "../../journal/tests/support/mod.rs"]
mod support;

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_journal::Redactor;
use selvedge_memory::{
    Encoder, GradientOptions, LessonKind, LessonStatus, LessonsToForget, Level, Memory,
    MemoryAccess, MemoryError, MemoryQuery, NewTurn, PlanStorage, ProposalDecision, SmallModel,
    SmallModelError,
};
use serde_json::json;
use support::{store, stores_text};

fn open(dir: &tempfile::TempDir) -> Arc<Memory> {
    Arc::new(Memory::open(store(dir.path()), Redactor::new([])).unwrap())
}

async fn distill_all(memory: &Arc<Memory>, session: &str) {
    while memory.distill(session, None).await.unwrap().remaining_turns > 0 {}
}

#[tokio::test]
async fn forgotten_text_is_removed_from_every_file() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::open(store(dir.path()), Redactor::new([])).unwrap();
    let memory = Arc::new(memory.with_encoder(Arc::new(LetterPairs)));
    for line in chats::chat(2, 10).lines {
        memory
            .append("keep", &NewTurn::text("user", &line.text))
            .unwrap();
    }
    memory
        .append(
            "keep",
            &NewTurn::text(
                "user",
                "I prefer zyzzyvaplex over everything else in Qaanaaqtown.",
            ),
        )
        .unwrap();
    for line in chats::chat(3, 4).lines {
        let text = format!("{} Xylophonemarmalade was there.", line.text);
        memory
            .append("keep", &NewTurn::text("user", &line.text))
            .unwrap();
        memory
            .append(
                "lose",
                &NewTurn {
                    speaker: Some("Bartholomewina"),
                    ..NewTurn::text("user", &text)
                },
            )
            .unwrap();
    }
    for session in ["keep", "lose"] {
        distill_all(&memory, session).await;
        while memory.write_vectors(session).unwrap() > 0 {}
        memory
            .assemble(session, GradientOptions::new(1500), PlanStorage::Store)
            .unwrap();
        memory
            .get_turn(&MemoryAccess::new(session), "T-2", Level::Raw)
            .unwrap();
    }
    let number = memory
        .search(&MemoryQuery::new("zyzzyvaplex").in_session("keep"))
        .unwrap()[0]
        .number;
    memory
        .get_turn(
            &MemoryAccess::new("keep"),
            &format!("T-{number}"),
            Level::Raw,
        )
        .unwrap();
    assert!(
        memory
            .lessons(None)
            .unwrap()
            .iter()
            .any(|lesson| lesson.content.contains("zyzzyvaplex"))
    );
    for word in [
        "zyzzyvaplex",
        "qaanaaqtown",
        "xylophonemarmalade",
        "bartholomewina",
    ] {
        assert!(stores_text(dir.path(), word), "{word}");
    }
    let turns = memory.turn_count("keep").unwrap();
    let forgotten = memory.forget_turn("keep", number).unwrap();
    assert_eq!((forgotten.turns, forgotten.lessons), (1, 1));
    assert!(
        memory
            .forget_session("lose", LessonsToForget::All)
            .unwrap()
            .turns
            > 40
    );
    for word in [
        "zyzzyvaplex",
        "qaanaaqtown",
        "xylophonemarmalade",
        "bartholomewina",
    ] {
        assert!(!stores_text(dir.path(), word), "{word} is still there");
    }
    // Nothing else has changed: numbers, search, gradient, and the number of the next turn.
    assert_eq!(memory.turn_count("keep").unwrap(), turns);
    assert!(matches!(
        memory.turn("keep", number),
        Err(MemoryError::TurnNotFound { .. })
    ));
    assert!(matches!(
        memory.turn("lose", 1),
        Err(MemoryError::SessionNotFound(_))
    ));
    assert!(
        open(&dir)
            .search(&MemoryQuery::new("zyzzyvaplex"))
            .unwrap()
            .is_empty()
    );
    assert!(
        memory
            .search(&MemoryQuery {
                max_turns: 1000,
                ..MemoryQuery::new("zyzzyvaplex")
            })
            .unwrap()
            .iter()
            .all(|hit| hit.number != number)
    );
    assert!(
        !memory
            .search(&MemoryQuery::new("telescope and pottery"))
            .unwrap()
            .is_empty()
    );
    let shown = memory
        .assemble("keep", GradientOptions::new(1500), PlanStorage::Discard)
        .unwrap();
    assert_eq!(shown.bands.last().unwrap().span.last, turns);
    assert_eq!(
        memory
            .append("keep", &NewTurn::text("user", "on we go"))
            .unwrap(),
        turns + 1
    );
    assert_eq!(
        memory
            .append("lose", &NewTurn::text("user", "a new beginning"))
            .unwrap(),
        1
    );
}

#[tokio::test]
async fn each_turn_is_distilled_once_and_by_one_process_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    let exchange = |n: u32| {
        let call = |command: &str, output: &str, ok: bool| {
            let arguments = json!({"command": command}).to_string();
            let call = json!({"type": "function_call", "name": "exec", "arguments": arguments});
            let output = json!({"type": "function_call_output", "output": output, "success": ok});
            format!("{call}\n{output}\n")
        };
        let text = format!("Please fix build {n}. Always run the linter.");
        let message = json!({"type": "message", "role": "user", "content": text});
        let lines = [
            format!("{message}\n"),
            call(
                "cargo build",
                &format!("error: linker `cc` not found, attempt {n}"),
                false,
            ),
            call("apt install gcc", "done", true),
            call("cargo build", "finished", true),
        ];
        lines.concat()
    };
    memory
        .append("s", &NewTurn::from_items(exchange(1).as_bytes()))
        .unwrap();
    distill_all(&memory, "s").await;
    let status = |memory: &Memory, kind: LessonKind| {
        let all = memory.lessons(None).unwrap();
        all.iter()
            .filter(|lesson| lesson.kind == kind)
            .map(|lesson| lesson.status)
            .collect::<Vec<_>>()
    };
    // A problem that was solved once is not used; solved twice, it is.
    assert_eq!(status(&memory, LessonKind::Problem), [LessonStatus::Seen]);
    memory
        .append("s", &NewTurn::from_items(exchange(2).as_bytes()))
        .unwrap();
    distill_all(&memory, "s").await;
    distill_all(&memory, "s").await;
    assert_eq!(
        (
            status(&memory, LessonKind::Problem),
            status(&memory, LessonKind::Preference)
        ),
        (vec![LessonStatus::Used], vec![LessonStatus::Used])
    );
    let lessons = memory
        .find_lessons(None, "cargo build fails, linker not found", 3)
        .unwrap();
    assert!(
        lessons[0].content.contains("apt install gcc"),
        "{lessons:?}"
    );
    assert_eq!(lessons[0].source_turns, ["s/T-1", "s/T-2"]);
    assert!(lessons[0].weight > 0.5 && lessons[0].weight < 0.7);
    // Another process holds the lock.
    let live = dir.path().join("live");
    let mut lease = std::fs::read_dir(&live)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let lease = lease
        .find(|path| path.to_string_lossy().contains("distill"))
        .unwrap();
    let held = std::fs::File::open(lease).unwrap();
    held.lock().unwrap();
    assert!(matches!(
        memory.distill("s", None).await,
        Err(MemoryError::DistillLocked(_))
    ));
    drop(held);
    assert_eq!(memory.distill("s", None).await.unwrap().distilled_turns, 0);
}

/// A model that always gives the same answer, or fails if it is empty.
struct FixedAnswer(&'static str);

impl SmallModel for FixedAnswer {
    fn ask<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        async move {
            if self.0.is_empty() {
                Err(SmallModelError::Failed("overloaded".to_owned()))
            } else {
                Ok(self.0.to_owned())
            }
        }
        .boxed()
    }
}

#[tokio::test]
async fn lessons_come_from_the_model_or_from_rules_if_it_fails() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    memory
        .append("s", &NewTurn::text("user", "From now on always use tabs."))
        .unwrap();
    let model = FixedAnswer(
        r#"Sure: {"lessons":[{"title":"Tabs","content":"The team indents with tabs.",
           "topics":["style"],"keywords":["tabs","indent"],"turns":["T-1"]}],
           "layers":[{"title":"too short","content":"short"}]}"#,
    );
    memory.distill("s", Some(&model)).await.unwrap();
    let lessons = memory.lessons(None).unwrap();
    assert_eq!(lessons.len(), 1);
    assert_eq!(
        (
            lessons[0].content.as_str(),
            lessons[0].source_turns[0].as_str()
        ),
        ("The team indents with tabs.", "s/T-1")
    );
    memory
        .append(
            "s",
            &NewTurn::text("user", "From now on always use spaces."),
        )
        .unwrap();
    memory.distill("s", Some(&FixedAnswer(""))).await.unwrap();
    assert!(
        memory
            .lessons(None)
            .unwrap()
            .iter()
            .any(|lesson| lesson.content.contains("spaces"))
    );
}

#[tokio::test]
async fn a_models_summaries_are_stored_and_indexed() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    let long = "The committee met on Tuesday and after a very long discussion about many things \
                agreed to paint the bridge blue, which no one had expected, and then everyone \
                went home for the day, tired but content with what was done.";
    for _ in 0..3 {
        memory.append("s", &NewTurn::text("user", long)).unwrap();
    }
    let by_rules = memory.turn_at_level("s", 2, Level::Compressed).unwrap();
    let model = FixedAnswer(concat!(
        r#"[{"turn":1,"smoothed":"The committee agreed on Tuesday to paint the bridge blue.","#,
        r#""compressed":"Municipality: bridge becomes blue.","tiny":"blue bridge"},"#,
        r#"{"turn":2,"smoothed":"","compressed":"far too long far too long far too long far "#,
        r#"too long far too long far too long far too long far too long far too long far too "#,
        r#"long far too long far too long"}]"#,
    ));
    assert_eq!(memory.summarise("s", &model).await.unwrap(), 3);
    assert_eq!(memory.summarise("s", &model).await.unwrap(), 0);
    assert_eq!(
        memory.turn_at_level("s", 1, Level::Compressed).unwrap(),
        b"Municipality: bridge becomes blue."
    );
    assert_eq!(
        memory.turn_at_level("s", 2, Level::Compressed).unwrap(),
        by_rules
    );
    assert_eq!(
        memory.search(&MemoryQuery::new("municipalities")).unwrap()[0].number,
        1
    );
    assert_eq!(
        memory.turn_at_level("s", 1, Level::Raw).unwrap(),
        long.as_bytes()
    );
    // If the model fails, the turns keep what rules wrote, and count as processed.
    memory.append("s", &NewTurn::text("user", long)).unwrap();
    assert_eq!(memory.summarise("s", &FixedAnswer("")).await.unwrap(), 1);
    assert!(
        !memory
            .turn_at_level("s", 4, Level::Tiny)
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn proposed_layers_are_used_only_after_review() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    let mut random = chats::SeededRandom(4);
    for n in 0..150 {
        let subject = if n % 7 == 0 {
            "The migration of the billing database"
        } else {
            "Our lunch"
        };
        let more: Vec<&str> = (0..60)
            .map(|_| {
                random.pick(&[
                    "slow", "careful", "weekend", "rollback", "index", "walk", "green",
                ])
            })
            .collect();
        let text = format!("{subject} number {n} went like this: {}.", more.join(" "));
        memory.append("s", &NewTurn::text("user", &text)).unwrap();
    }
    distill_all(&memory, "s").await;
    let proposed = memory.lessons(Some(LessonStatus::Proposed)).unwrap();
    let layer = proposed
        .iter()
        .find(|lesson| lesson.keywords.iter().any(|word| word == "migration"))
        .unwrap_or_else(|| panic!("{proposed:?}"));
    let matching = |memory: &Memory| {
        memory
            .find_lessons(None, "migration of the billing database", 9)
            .unwrap()
    };
    assert!(matching(&memory).is_empty());
    memory
        .review_lesson(&layer.lesson_id, ProposalDecision::Accept)
        .unwrap();
    assert_eq!(matching(&memory)[0].lesson_id, layer.lesson_id);
    memory
        .review_lesson(&layer.lesson_id, ProposalDecision::Decline)
        .unwrap();
    assert!(matching(&memory).is_empty());
    assert!(matches!(
        memory.review_lesson("les_0", ProposalDecision::Accept),
        Err(MemoryError::LessonNotFound(_))
    ));
    // Topics that occur together are one area.
    let topics = memory.topics("s").unwrap();
    let area_of = |name: &str| {
        let topic = topics.iter().find(|topic| topic.name == name);
        topic.map(|topic| topic.category.as_str())
    };
    assert!(area_of("database").is_some(), "{topics:?}");
    assert_eq!(area_of("database"), area_of("migration"), "{topics:?}");
}

#[tokio::test]
async fn secrets_are_redacted_everywhere_but_in_the_raw_turn() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    let secret = "ghp_abcdefghijklmnopqrstuvwxyz123456";
    let text = format!("I prefer to deploy with the token {secret} from the vault.");
    memory.append("s", &NewTurn::text("user", &text)).unwrap();
    distill_all(&memory, "s").await;
    assert_eq!(
        memory.turn_at_level("s", 1, Level::Raw).unwrap(),
        text.as_bytes()
    );
    for level in [Level::Smoothed, Level::Compressed, Level::Tiny] {
        assert!(
            !String::from_utf8(memory.turn_at_level("s", 1, level).unwrap())
                .unwrap()
                .contains("ghp_")
        );
    }
    assert!(
        memory
            .search(&MemoryQuery::new("ghp_abcdefghijklmnopqrstuvwxyz123456"))
            .unwrap()
            .is_empty()
    );
    assert!(!memory.lessons(None).unwrap()[0].content.contains("ghp_"));
    let mut out = Vec::new();
    memory.export(None, &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(out.contains("[redacted]") && !out.contains("ghp_"), "{out}");
}

#[test]
fn an_export_can_be_imported() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    let items = format!(
        "{}\n",
        json!({"type": "message", "role": "user", "content": "hello exporters"})
    );
    memory
        .append(
            "a",
            &NewTurn {
                ts: Some("2024-02-03T04:05:06Z"),
                part: Some("p"),
                ..NewTurn::from_items(items.as_bytes())
            },
        )
        .unwrap();
    memory
        .append(
            "a",
            &NewTurn {
                key: Some("7"),
                speaker: Some("Ann"),
                part: Some("p"),
                ..NewTurn::text("user", "two\nlines")
            },
        )
        .unwrap();
    let mut out = Vec::new();
    assert_eq!(memory.export(Some("a"), &mut out).unwrap(), 2);
    let other = tempfile::tempdir().unwrap();
    let copy = open(&other);
    assert_eq!(
        copy.import(&out[..], "export", None, None, |_| {})
            .unwrap()
            .new_turns,
        2
    );
    let mut again = Vec::new();
    copy.export(Some("a"), &mut again).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        String::from_utf8(again).unwrap()
    );
    assert_eq!(
        copy.turn_at_level("a", 1, Level::Raw).unwrap(),
        items.as_bytes()
    );
}

/// A simple encoder: counts the pairs of letters in a text.
#[derive(Debug)]
struct LetterPairs;

impl Encoder for LetterPairs {
    fn name(&self) -> &str {
        "letter pairs"
    }

    fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, MemoryError> {
        let vector = |text: &&str| {
            let mut vector = vec![0.0; 26 * 26];
            let letters: Vec<usize> = text
                .to_lowercase()
                .bytes()
                .filter(u8::is_ascii_lowercase)
                .map(|b| usize::from(b - b'a'))
                .collect();
            letters
                .windows(2)
                .for_each(|pair| vector[pair[0] * 26 + pair[1]] += 1.0);
            vector
        };
        Ok(texts.iter().map(vector).collect())
    }
}

#[test]
fn vectors_find_what_keywords_miss() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    for line in chats::chat(7, 12).lines {
        memory
            .append("s", &NewTurn::text("user", &line.text))
            .unwrap();
    }
    memory
        .append("s", &NewTurn::text("user", "Photosynthesiser calibration"))
        .unwrap();
    let expected = memory.turn_count("s").unwrap();
    let query = "fotosynthesizer calibrations";
    let rank = |memory: &Memory| {
        let hits = memory
            .search(&MemoryQuery {
                max_turns: 500,
                ..MemoryQuery::new(query).in_session("s")
            })
            .unwrap();
        hits.iter().position(|hit| hit.number == expected)
    };
    let memory = Arc::into_inner(memory).unwrap();
    let memory = memory.with_encoder(Arc::new(LetterPairs));
    let mut written = 0;
    loop {
        match memory.write_vectors("s").unwrap() {
            0 => break,
            count => written += count,
        }
    }
    assert_eq!(written, expected);
    assert_eq!(rank(&memory), Some(0));
    // A misspelled word has no match in the index, but its vector is similar.
    let hits = |memory: &Memory| {
        memory
            .search(&MemoryQuery::new("fotosynthesizer").in_session("s"))
            .unwrap()
    };
    assert_eq!(hits(&memory)[0].number, expected);
    assert!(hits(&open(&dir)).is_empty());
    memory
        .append("s", &NewTurn::text("user", "one more"))
        .unwrap();
    assert_eq!(
        (
            memory.write_vectors("s").unwrap(),
            memory.write_vectors("s").unwrap()
        ),
        (1, 0)
    );
}

#[test]
fn text_that_became_a_secret_after_indexing_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let text = "the vault: zyzzyvaplex";
    let memory = Memory::open(store(dir.path()), Redactor::new([])).unwrap();
    memory.append("s", &NewTurn::text("user", text)).unwrap();
    memory
        .append("s", &NewTurn::text("user", "something else"))
        .unwrap();
    drop(memory);
    assert!(stores_text(dir.path(), "zyzzyvaplex"));
    // Now the redactor treats the text as a secret.
    let memory = Memory::open(store(dir.path()), Redactor::new(["vault".to_owned()])).unwrap();
    assert_eq!(memory.forget_turn("s", 1).unwrap().turns, 1);
    drop(memory);
    assert!(!stores_text(dir.path(), "zyzzyvaplex"));
}
