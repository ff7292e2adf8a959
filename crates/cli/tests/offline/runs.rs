//! Runs on a project of 500 turns, with a scripted model and without.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::{OfflineFixture, WORK, is_small, new_turns, prompt_of};
use crate::answer_encoding::text;
use crate::server::{Asked, Reply};

/// The answer of a model that finds something of each kind.
pub fn full_answer(asked: &Asked) -> String {
    let turns = new_turns(asked);
    let name = |at: usize| format!("{}/T-{}", turns[at].0, turns[at].1);
    let last = name(turns.len() - 1);
    let item = |title: &str, content: &str| {
        let content = format!("{content} (seen at {})", name(0));
        json!({"title": title, "content": content, "topics": ["login"], "turns": [name(0)]})
    };
    let prompt = prompt_of(asked);
    // The tabs that a known lesson asks for are no longer right.
    let tabs = prompt
        .lines()
        .find(|line| line.contains("indent with tabs"));
    let tabs = tabs.and_then(|line| line.split_whitespace().nth(1));
    // Only the first request is about a preference.
    let preferences = match turns[0].1 {
        1 if turns[0].0 == "left" => vec![item("Tabs", "Always indent with tabs.")],
        _ => Vec::new(),
    };
    let layer = "The login checks the token, and asks for a new one. ".repeat(60);
    json!({
        "topics": [{"name": "login", "area": "auth", "weight": 0.9, "turns": [name(0), last]},
            {"name": "billing", "area": "data", "weight": 0.4, "turns": [last]}],
        "areas": [{"name": "auth", "evolution": "Tokens first, then sessions."}],
        "lessons": [item("Tokens", "Renew tokens a minute before they expire.")],
        "preferences": preferences,
        "conventions": [item("Redis", "Sessions are kept in Redis.")],
        "stack": [item("Redis 8", "The project uses Redis 8.")],
        "contradictions": [{"lesson": tabs, "statement": "Indent with spaces.", "turns": [last]}],
        "gaps": [item("Releases", "How releases are made is not documented.")],
        "layers": [{"title": "Login", "content": layer, "topics": ["login"], "turns": [name(0)]}],
    })
    .to_string()
}

fn lessons_of_kind(fixture: &OfflineFixture, kind: &str) -> Vec<Value> {
    let lessons = fixture.json(WORK, &["memory", "lessons", "--json"]);
    let lessons = lessons.as_array().unwrap().iter();
    lessons
        .filter(|lesson| lesson["kind"] == kind)
        .cloned()
        .collect()
}

#[test]
fn a_model_finds_topics_lessons_contradictions_gaps_and_layers() {
    let fixture = OfflineFixture::new("model = \"mock/small\"", |asked| {
        Reply::Counted(vec![text(&full_answer(asked))], 4000)
    });
    fixture.import_project(500);
    let done = fixture.json(WORK, &["memory", "distill", "--now", "--json"]);
    assert_eq!(done["turns"], 500, "{done}");
    let asked = fixture.server.asked();
    assert!(
        asked.iter().all(is_small) && asked.len() > 1,
        "{}",
        asked.len()
    );
    assert_eq!(done["requests"], asked.len());
    assert_eq!(done["input_tokens"], 4000 * asked.len());
    assert!(done["cost"].as_f64().unwrap() > 0.0, "{done}");
    // Each turn is in one request, in order.
    let turns: Vec<(String, u32)> = asked.iter().flat_map(new_turns).collect();
    let expected = super::SESSIONS.map(|session| (1..=250).map(move |n| (session.to_owned(), n)));
    assert_eq!(turns, expected.into_iter().flatten().collect::<Vec<_>>());
    // Later requests contain what is known.
    let second = prompt_of(&asked[1]);
    assert!(
        second.contains("# Known") && second.contains("Renew tokens a minute before"),
        "{second}"
    );
    // Every lesson keeps its source turns.
    let lessons = lessons_of_kind(&fixture, "lesson");
    let mut sources = lessons.iter().map(|lesson| &lesson["sourceTurns"][0]);
    assert!(sources.any(|source| source == "left/T-1"), "{lessons:?}");
    for kind in ["convention", "stack", "gap", "layer"] {
        assert!(!lessons_of_kind(&fixture, kind).is_empty(), "{kind}");
    }
    // The preference of the first answer is contradicted by the second, and kept.
    let tabs = lessons_of_kind(&fixture, "preference");
    let contradicted = tabs
        .iter()
        .find(|lesson| lesson["status"] == "contradicted");
    let contradicted = contradicted.unwrap_or_else(|| panic!("{tabs:?}"));
    assert!(
        contradicted["note"]
            .as_str()
            .unwrap()
            .starts_with("Indent with spaces. ("),
        "{contradicted}"
    );
    let topics = fixture.json(WORK, &["memory", "topics", "--json"]);
    assert_eq!(topics["topics"][0]["name"], "login", "{topics}");
    assert_eq!(topics["topics"][0]["category"], "auth");
    assert_eq!(topics["areas"][0]["note"], "Tokens first, then sessions.");
    // Proposals wait for a person.
    let proposals = fixture.json(WORK, &["memory", "review", "--json"]);
    let proposals = proposals.as_array().unwrap();
    assert!(
        proposals.iter().any(|it| it["kind"] == "layer"),
        "{proposals:?}"
    );
    let (_, _, err) = fixture.run(WORK, &["memory", "distill"]);
    assert!(err.contains("to review: `selvedge memory review`"), "{err}");
    assert_eq!(fixture.server.asked().len(), asked.len());
    let status = fixture.out(WORK, &["memory", "distill", "--status"]);
    assert!(
        status.contains("nothing to do") && status.contains("read 500 turns"),
        "{status}"
    );
    assert!(
        status.contains(&format!("used {} requests", asked.len())),
        "{status}"
    );
}

#[test]
fn without_a_model_topics_are_grouped_by_the_terms_of_the_project() {
    let fixture = OfflineFixture::by_rules();
    fixture.import_project(500);
    fixture.out(WORK, &["memory", "distill", "--now"]);
    assert_eq!(fixture.server.asked().len(), 0);
    let topics = fixture.json(WORK, &["memory", "topics", "--json"]);
    let area_of = |name: &str| {
        let topics = topics["topics"].as_array().unwrap();
        let topic = topics.iter().find(|topic| topic["name"] == name);
        topic.unwrap_or_else(|| panic!("{topics:?}"))["category"].clone()
    };
    assert_eq!(area_of("oauth"), area_of("login"));
    assert_eq!(area_of("billing"), area_of("database"));
    assert_ne!(area_of("oauth"), area_of("billing"));
    let chart = fixture.out(WORK, &["memory", "topics"]);
    assert!(
        chart.contains('█') && chart.contains("weeks, from 2026-"),
        "{chart}"
    );
    // What a later turn takes back is contradicted, and kept.
    let preferences = lessons_of_kind(&fixture, "preference");
    let status_of = |content: &str| {
        let lesson = preferences
            .iter()
            .find(|lesson| lesson["content"] == content);
        lesson.unwrap_or_else(|| panic!("{preferences:?}"))["status"].clone()
    };
    assert_eq!(status_of("Always indent with tabs."), "contradicted");
    assert_eq!(
        status_of("From now on indent with spaces instead of tabs."),
        "used"
    );
    let conventions = lessons_of_kind(&fixture, "convention");
    assert_eq!(
        conventions[0]["content"],
        "We decided to keep sessions in Redis."
    );
    assert_eq!(conventions[0]["sourceTurns"], json!(["right/T-21"]));
}

#[test]
fn a_wrong_or_truncated_answer_loses_nothing() {
    for answer in [
        "I cannot do that.",
        "{\"lessons\": \"none\"}",
        "{\"lessons\": [{\"title\": \"Kept\", \"content\": \"This one is complete.\"}, {\"ti",
    ] {
        let fixture =
            OfflineFixture::new("model = \"mock/small\"", move |_| vec![text(answer)].into());
        fixture.import_project(60);
        let done = fixture.json(WORK, &["memory", "distill", "--json"]);
        assert_eq!(done["turns"], 60, "{answer}");
        let lessons = fixture.out(WORK, &["memory", "lessons"]);
        // Rules read the turns, too.
        assert!(
            lessons.contains("Always indent with tabs."),
            "{answer}: {lessons}"
        );
        assert_eq!(
            lessons.contains("Kept"),
            answer.contains("Kept"),
            "{lessons}"
        );
    }
}

#[test]
fn a_model_that_fails_is_replaced_by_rules() {
    let has_failed = AtomicBool::new(false);
    let fixture = OfflineFixture::new("model = \"mock/small\"", move |asked| {
        match has_failed.swap(true, Ordering::SeqCst) {
            false => Reply::Fail(400, "no".to_owned()),
            true => vec![text(&full_answer(asked))].into(),
        }
    });
    fixture.import_project(500);
    let done = fixture.json(WORK, &["memory", "distill", "--json"]);
    assert_eq!(done["turns"], 500);
    let lessons = fixture.out(WORK, &["memory", "lessons"]);
    assert!(lessons.contains("Always indent with tabs."), "{lessons}");
    assert!(lessons.contains("Redis 8"), "{lessons}");
}

#[test]
fn plans_and_indexes_are_made_again_on_demand() {
    let fixture = OfflineFixture::by_rules();
    fixture.import_project(120);
    let search = ["memory", "search", "billing database migration", "--json"];
    let hits = |out: String| serde_json::from_str::<Value>(&out).unwrap()["hits"].clone();
    let before = hits(fixture.out(WORK, &search));
    fixture
        .store()
        .execute("DELETE FROM memory_postings", [])
        .unwrap();
    assert_eq!(hits(fixture.out(WORK, &search)), json!([]));
    let done = fixture.json(WORK, &["memory", "reindex", "--json"]);
    assert_eq!(done, json!({"sessions": 2, "turns": 120}));
    assert_eq!(hits(fixture.out(WORK, &search)), before);
    let planned = fixture.json(WORK, &["memory", "replan", "--json"]);
    assert_eq!(planned.as_array().unwrap().len(), 2);
    assert!(planned[0]["tokens"].as_u64().unwrap() > 0, "{planned}");
    assert_eq!(fixture.number("SELECT count(*) FROM memory_gradients"), 2);
    let (status, _, err) = fixture.run(WORK, &["memory", "reindex", "--session", "nothing"]);
    assert!(
        status != 0 && err.contains("error: there is no session `nothing`"),
        "{err}"
    );
}

#[test]
fn the_latest_twenty_turns_are_in_the_request_in_more_detail() {
    let fixture = OfflineFixture::new("model = \"mock/small\"", |asked| {
        vec![text(&full_answer(asked))].into()
    });
    fixture.import_project(40);
    fixture.out(WORK, &["memory", "distill"]);
    let prompt = prompt_of(&fixture.server.asked()[0]);
    let level = |turn: &str, level: &str| {
        let args = [
            "memory",
            "turn",
            turn,
            "--session",
            "left",
            "--level",
            level,
        ];
        let text = fixture.out(WORK, &args);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    // The turns of both sessions alternate, so ten of each are among the latest.
    let (_, left) = prompt.split_once("## session left\n").unwrap();
    let mut shorter = 0;
    for number in 1..=20 {
        let turn = format!("T-{number}");
        let (smoothed, compressed) = (level(&turn, "S"), level(&turn, "C"));
        shorter += usize::from(compressed.len() < smoothed.len());
        let expected = if number > 10 { smoothed } else { compressed };
        let line = left
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{turn}: ")));
        assert_eq!(line, Some(expected.as_str()), "{turn}");
    }
    assert!(shorter >= 15, "{shorter}");
}
