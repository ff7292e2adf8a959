//! The levels of turns with tool calls: what they name, and that the raw turn stays exact.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../journal/tests/support/mod.rs"]
mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_journal::Redactor;
use selvedge_memory::{Level, Memory, NewTurn, SmallModel, SmallModelAnswer, SmallModelError};
use selvedge_protocol::Usage;
use serde_json::json;
use support::store;

/// A model that records its prompts, and answers all but the second.
#[derive(Default)]
struct PromptRecorder(Mutex<Vec<String>>);

impl SmallModel for PromptRecorder {
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        let number = {
            let mut prompts = self.0.lock().unwrap();
            prompts.push(prompt.to_owned());
            prompts.len()
        };
        async move {
            if number == 2 {
                std::future::pending::<()>().await;
            }
            Ok(json!({"turn": number, "smoothed": "Repair the login test.",
                "compressed": "The login test is repaired.", "tiny": "login repaired"})
            .to_string())
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_small_model_writes_the_levels_of_several_turns_within_two_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(Memory::open(store(dir.path()), Redactor::new([])).unwrap());
    for _ in 0..3 {
        memory
            .append("s", &NewTurn::from_items(&turn_with_script()))
            .unwrap();
    }
    while memory.write_levels(None).unwrap().remaining_turns > 0 {}
    let by_rules = memory.turn_at_level("s", 2, Level::Compressed).unwrap();
    let model = PromptRecorder::default();
    let started = Instant::now();
    assert_eq!(memory.summarise("s", &model).await.unwrap(), 3);
    assert!(
        started.elapsed() < Duration::from_secs(6),
        "{:?}",
        started.elapsed()
    );
    let prompts = model.0.into_inner().unwrap();
    assert_eq!(prompts.len(), 3);
    assert!(
        prompts[0].contains("spelling and grammar"),
        "{}",
        prompts[0]
    );
    assert!(
        prompts[0].contains("exec cargo test -p auth → exit 0, 115 passed"),
        "{}",
        prompts[0]
    );
    let level = |number, level| {
        String::from_utf8(memory.turn_at_level("s", number, level).unwrap()).unwrap()
    };
    // What the model omitted is added.
    assert!(level(1, Level::Compressed).starts_with("The login test is repaired.\nabout lib.rs"));
    assert_eq!(level(1, Level::Tiny), "login repaired (lib.rs)");
    // The model did not answer in time: the levels of the rules stay.
    assert_eq!(level(2, Level::Compressed).as_bytes(), by_rules);
    assert_eq!(memory.turn_record("s", 3).unwrap().unwrap().tool_calls, 2);
}

/// A model that is unavailable for its first two prompts. Each answer uses 700 tokens.
#[derive(Default)]
struct RestartingModel(Mutex<Vec<String>>);

impl SmallModel for RestartingModel {
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        async move { Ok(self.ask_counted(prompt).await?.text) }.boxed()
    }

    fn ask_counted<'a>(
        &'a self,
        prompt: &'a str,
    ) -> BoxFuture<'a, Result<SmallModelAnswer, SmallModelError>> {
        let mut prompts = self.0.lock().unwrap();
        prompts.push(prompt.to_owned());
        let answer = match prompts.len() {
            1 | 2 => Err(SmallModelError::Unavailable("starting".to_owned())),
            _ => Ok(SmallModelAnswer {
                text: json!({"compressed": "The login test is repaired."}).to_string(),
                usage: Usage {
                    input_tokens: 700,
                    ..Usage::default()
                },
                cost: Some(0.5),
            }),
        };
        std::future::ready(answer).boxed()
    }
}

#[tokio::test]
async fn turns_wait_for_a_model_that_is_not_available_and_no_answer_is_paid_twice() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(Memory::open(store(dir.path()), Redactor::new([])).unwrap());
    let raw = turn_with_script();
    for _ in 0..3 {
        memory.append("s", &NewTurn::from_items(&raw)).unwrap();
    }
    let model = RestartingModel::default();
    // The third turn is answered, the first two are not processed.
    assert_eq!(memory.summarise("s", &model).await.unwrap(), 0);
    assert_eq!(memory.summarise("s", &model).await.unwrap(), 3);
    assert_eq!(memory.summarise("s", &model).await.unwrap(), 0);
    assert_eq!(
        model.0.lock().unwrap().len(),
        5,
        "the third is asked about once"
    );
    for number in 1..=3 {
        let level = memory
            .turn_at_level("s", number, Level::Compressed)
            .unwrap();
        let level = String::from_utf8(level).unwrap();
        assert!(level.starts_with("The login test is repaired."), "{level}");
    }
    let (usage, cost) = memory.take_late_usage("s").unwrap();
    assert_eq!((usage.input_tokens, cost), (3 * 700, 1.5));
    let (usage, cost) = memory.take_late_usage("s").unwrap();
    assert_eq!((usage.input_tokens, cost), (0, 0.0));
}

/// A model that is unavailable for its first prompt, and fails for its second.
#[derive(Default)]
struct FailingStart(Mutex<Vec<String>>);

impl SmallModel for FailingStart {
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        let mut prompts = self.0.lock().unwrap();
        prompts.push(prompt.to_owned());
        let answer = match prompts.len() {
            1 => Err(SmallModelError::Unavailable("starting".to_owned())),
            2 => Err(SmallModelError::Failed("the answer broke off".to_owned())),
            _ => Ok(json!({"compressed": "The login test is repaired."}).to_string()),
        };
        std::future::ready(answer).boxed()
    }
}

#[tokio::test]
async fn a_turn_before_one_whose_answer_failed_is_asked_about_again() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(Memory::open(store(dir.path()), Redactor::new([])).unwrap());
    let raw = turn_with_script();
    for _ in 0..2 {
        memory.append("s", &NewTurn::from_items(&raw)).unwrap();
    }
    let model = FailingStart::default();
    assert_eq!(memory.summarise("s", &model).await.unwrap(), 0);
    assert_eq!(memory.summarise("s", &model).await.unwrap(), 2);
    assert_eq!(memory.summarise("s", &model).await.unwrap(), 0);
    // The second may have been paid for.
    let prompts = model.0.into_inner().unwrap();
    let about = |turn: u32| {
        let turn = format!("### turn {turn}\n");
        prompts.iter().filter(|it| it.contains(&turn)).count()
    };
    assert_eq!((about(1), about(2)), (2, 1));
    let level = memory.turn_at_level("s", 1, Level::Compressed).unwrap();
    let level = String::from_utf8(level).unwrap();
    assert!(level.starts_with("The login test is repaired."), "{level}");
}

#[tokio::test]
async fn two_tasks_ask_about_a_turn_once() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(Memory::open(store(dir.path()), Redactor::new([])).unwrap());
    let raw = turn_with_script();
    for _ in 0..3 {
        memory.append("s", &NewTurn::from_items(&raw)).unwrap();
    }
    let model = PromptRecorder::default();
    let tasks = (memory.summarise("s", &model), memory.summarise("s", &model));
    let (first, second) = tokio::join!(tasks.0, tasks.1);
    assert_eq!(first.unwrap() + second.unwrap(), 3);
    assert_eq!(model.0.lock().unwrap().len(), 3);
}

fn turn_with_script() -> Vec<u8> {
    let output = "   Compiling auth v0.8.0\ntest result: ok. 115 passed; 0 failed; 0 ignored\n";
    let items = [
        json!({"type": "message", "role": "user", "content": [{"type": "text",
            "text": "Why does the login test fail? Please repair it."}]}),
        json!({"type": "script_tool_call", "language": "ts",
            "source_code": "await tools.editFile(edit); return await tools.exec(test);"}),
        json!({"type": "script_tool_call_output", "status": "completed", "output_json": "{}",
            "calls": [
                {"tool": "edit_file", "status": "done", "args": {"path": "crates/auth/src/lib.rs",
                    "old": "let token = None;", "new": "let token = store.get(key);"},
                    "result": {"replacements": 1}},
                {"tool": "exec", "status": "done",
                    "args": {"command": ["cargo", "test", "-p", "auth"]},
                    "result": {"exitCode": 0, "aggregatedOutput": output}}]}),
        json!({"type": "message", "role": "assistant", "content": [{"type": "text",
            "text": "The token was never read. It is now, and the tests pass."}]}),
    ];
    let lines = items.iter().map(|item| format!("{item}\n"));
    lines.collect::<String>().into_bytes()
}

#[test]
fn levels_have_request_actions_with_outcome_and_conclusion() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::open(store(dir.path()), Redactor::new([])).unwrap();
    let raw = turn_with_script();
    memory.append("s", &NewTurn::from_items(&raw)).unwrap();
    let level = |level| String::from_utf8(memory.turn_at_level("s", 1, level).unwrap()).unwrap();
    assert_eq!(level(Level::Raw).as_bytes(), raw);
    assert_eq!(
        level(Level::Compressed),
        "Why does the login test fail? Repair it.\n\
         editFile crates/auth/src/lib.rs +1 −1\n\
         exec cargo test -p auth → exit 0, 115 passed\n\
         The token was never read. It is now, and the tests pass."
    );
    let tiny = level(Level::Tiny);
    assert!(tiny.contains("lib.rs") && tiny.contains("login"), "{tiny}");
    // Source code is no secret.
    let smoothed = level(Level::Smoothed);
    assert!(
        smoothed.contains("let token = store.get(key);"),
        "{smoothed}"
    );
    let record = memory.turn_record("s", 1).unwrap().unwrap();
    assert_eq!(
        (record.tool_calls, record.topics[0].as_str()),
        (2, "lib.rs")
    );
}

#[test]
fn a_certain_secret_is_redacted_in_lower_levels_only() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::open(store(dir.path()), Redactor::new([])).unwrap();
    let token = format!("ghp_{}", "a1B2".repeat(9));
    let text =
        format!("Use {token} for the upload, and let token = store.get(key) stays as it is.");
    memory.append("s", &NewTurn::text("user", &text)).unwrap();
    let level = |level| String::from_utf8(memory.turn_at_level("s", 1, level).unwrap()).unwrap();
    assert_eq!(level(Level::Raw), text);
    assert!(!level(Level::Smoothed).contains(&token));
    assert!(level(Level::Smoothed).contains("token = store.get(key)"));
}

#[test]
fn eras_are_whole_clauses() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::open(store(dir.path()), Redactor::new([])).unwrap();
    for number in 0..64 {
        let raw = String::from_utf8(turn_with_script()).unwrap();
        let raw = raw.replace("login", ["invoice", "cart", "search", "login"][number % 4]);
        memory
            .append("s", &NewTurn::from_items(raw.as_bytes()))
            .unwrap();
    }
    while memory.write_levels(None).unwrap().remaining_turns > 0 {}
    let options = selvedge_memory::GradientOptions::new(900);
    let history = memory
        .assemble("s", options, selvedge_memory::PlanStorage::Discard)
        .unwrap();
    let (_, era) = history.text.split_once("<T-1-through-32-T>\n").unwrap();
    let era = era.lines().next().unwrap();
    assert!(era.starts_with("Why does the"), "{era}");
    assert!(era.contains("; Why does the"), "{era}");
    assert!(era.contains("lib.rs"), "{era}");
}
