//! Levels by a model and vectors of turns of commands, which end with their turn.

use serde_json::{Value, json};

use super::schedule::wait_until;
use super::{OfflineFixture, WORK, is_small, prompt_of};
use crate::answer_encoding::{block, text};
use crate::server::Reply;

/// The input tokens of a request for a level.
const LEVEL_TOKENS: u64 = 70_000;

fn by_model(fixture: &OfflineFixture) -> i64 {
    fixture.number("SELECT count(*) FROM memory_levels WHERE made_by = 'model'")
}

#[test]
fn the_model_writes_the_levels_of_a_command_and_the_next_turn_counts_them() {
    let fixture = OfflineFixture::new("model = \"mock/small\"", |asked| {
        if is_small(asked) && prompt_of(asked).contains("### turn ") {
            let levels = json!({"compressed": "A greeting.", "tiny": "hi"}).to_string();
            return Reply::Counted(vec![text(&levels)], LEVEL_TOKENS);
        }
        Reply::Counted(vec![text("Hello.")], 10)
    });
    // Returns the tokens of a turn.
    let input_tokens = |args: &[&str]| {
        let events = fixture.out(WORK, args);
        let events = events
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        let mut completed = events.filter(|event: &Value| event["type"] == "turn.completed");
        completed.next().unwrap()["usage"]["input_tokens"]
            .as_u64()
            .unwrap()
    };
    let greeting = "Good morning to all of you, and thanks for the fish that we had for lunch.";
    let first = input_tokens(&["exec", "--json", greeting]);
    assert!(first < LEVEL_TOKENS, "{first}");
    wait_until(|| by_model(&fixture) == 1);
    wait_until(|| !fixture.has_process());
    let second = input_tokens(&["exec", "--json", "--last", "What did we have for lunch?"]);
    assert!(
        (LEVEL_TOKENS..2 * LEVEL_TOKENS).contains(&second),
        "{second}"
    );
    wait_until(|| by_model(&fixture) == 2);
    wait_until(|| !fixture.has_process());
    // Each turn was in one request.
    let asked = fixture.server.asked();
    let levels = asked.iter().filter(|asked| is_small(asked));
    let levels: Vec<_> = levels
        .filter(|asked| prompt_of(asked).contains("### turn "))
        .collect();
    assert_eq!(levels.len(), 2);
}

#[test]
fn a_command_writes_the_levels_of_its_turn() {
    let fixture = OfflineFixture::by_rules();
    for message in [
        "The harbour is called falcon.",
        "The vault is called heron.",
    ] {
        fixture.out(WORK, &["exec", message]);
        let stats = fixture.out(WORK, &["memory", "stats"]);
        assert!(!stats.contains("without levels"), "{stats}");
    }
}

#[test]
fn the_raw_turn_has_the_console_output_of_a_script() {
    let fixture = OfflineFixture::new("", |asked| match asked.number {
        0 => vec![text(&block("console.log('zeph' + 'yr-' + (40 + 2))"))].into(),
        _ => vec![text("Done.")].into(),
    });
    fixture.out(WORK, &["exec", "Log the name."]);
    let raw = fixture.out(WORK, &["memory", "turn", "T-1", "--level", "R"]);
    assert!(raw.contains("zephyr-42"), "{raw}");
    let found = fixture.json(WORK, &["memory", "search", "zephyr", "--json"]);
    assert_eq!(found["hits"][0]["id"], "T-1", "{found}");
}
