//! Recorded answers of providers as text around a script: the block still runs, except inside of an
//! unclosed fence. The recordings are read if they are beside the checkout.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};

use selvedge_script::detect::{Segment, detect};
use serde_json::Value;

/// Returns the recordings of all APIs; none if there is no such folder.
fn recordings() -> Vec<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = manifest.ancestors();
    let mut folders = folders.map(|folder| folder.join("shared/fixtures"));
    let Some(root) = folders.find(|folder| folder.is_dir()) else {
        return Vec::new();
    };
    let mut pending: Vec<PathBuf> = ["openai_chat", "openai_responses", "anthropic_messages"]
        .map(|api| root.join(api))
        .into();
    let mut files = Vec::new();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(
                std::fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if !path.to_string_lossy().ends_with(".request.json") {
            files.push(path);
        }
    }
    files
}

/// Appends the text of an answer, which may be a part of a stream.
fn collect_text(value: &Value, text: &mut String) {
    for pointer in [
        "/choices/0/delta/content",
        "/choices/0/message/content",
        "/delta/text",
        "/content/0/text",
        "/output/0/content/0/text",
        "/output/1/content/0/text",
    ] {
        text.push_str(value.pointer(pointer).and_then(Value::as_str).unwrap_or(""));
    }
    if value["type"] == "response.output_text.delta" {
        text.push_str(value["delta"].as_str().unwrap_or_default());
    }
}

fn answer_text(recording: &str) -> String {
    let mut text = String::new();
    match serde_json::from_str(recording) {
        Ok(value) => collect_text(&value, &mut text),
        Err(_) => {
            let events = recording
                .lines()
                .filter_map(|line| line.strip_prefix("data:"));
            for event in events.filter_map(|event| serde_json::from_str(event.trim()).ok()) {
                collect_text(&event, &mut text);
            }
        }
    }
    text
}

#[test]
fn a_block_after_any_recorded_answer_runs() {
    let (mut checked, mut refused) = (0, Vec::new());
    for file in recordings() {
        let Ok(recording) = std::fs::read_to_string(&file) else {
            continue;
        };
        let answer = answer_text(&recording);
        if answer.trim().is_empty() {
            continue;
        }
        checked += 1;
        let fences = |line: &&str| line.trim_start().starts_with("```");
        let in_fence = answer.lines().filter(fences).count() % 2 == 1;
        let text = format!("{answer}\n\n<tool-calls>\nreturn 1\n</tool-calls>\n");
        let segments = detect(&text);
        let runs = segments
            .iter()
            .any(|segment| matches!(segment, Segment::Script(block) if block.code == "return 1"));
        if !runs && !in_fence {
            refused.push(file);
        }
        // Recorded answers themselves contain no block.
        assert!(
            detect(&answer)
                .iter()
                .all(|segment| !matches!(segment, Segment::Script(_))),
            "{answer}"
        );
    }
    println!("{checked} answers");
    assert!(refused.is_empty(), "{refused:?}");
}
