//! Measures the lower levels of recorded turns (`bench/record-sessions.mjs`): the share that still
//! names the file or symbol at stake, and the tokens.

use std::path::Path;

use selvedge_journal::Redactor;
use selvedge_memory::{Level, Memory, NewTurn};
use serde_json::Value;

use crate::goals::Goals;

/// The lower levels, with the share of turns that must name what is at stake, in per cent.
const LEVELS: [(Level, Option<f64>); 3] = [
    (Level::Smoothed, None),
    (Level::Compressed, Some(95.0)),
    (Level::Tiny, Some(60.0)),
];

/// Measures the turns of a file, and prints a table. With `show`, prints the levels of every turn,
/// too.
pub fn measure(path: &Path, show: bool, goals: &mut Goals) {
    let Ok(text) = std::fs::read_to_string(path) else {
        let how = "record the sessions with `make bench-sessions`";
        goals.add_missing("levels name what is at stake", how);
        return;
    };
    let turns: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let home = tempfile::tempdir().unwrap();
    let memory = Memory::open(home.path(), Redactor::new([])).unwrap();
    for turn in &turns {
        let (session, raw) = (
            turn["session"].as_str().unwrap(),
            turn["raw"].as_str().unwrap(),
        );
        memory
            .append(session, &NewTurn::from_items(raw.as_bytes()))
            .unwrap();
    }
    let started = std::time::Instant::now();
    while memory.write_levels(None).unwrap().remaining_turns > 0 {}
    let elapsed = started.elapsed();
    let mut raw_tokens = 0;
    let mut sums = [(0_u32, 0_u32); 3];
    for turn in &turns {
        let session = turn["session"].as_str().unwrap();
        let number = turn["turn"].as_u64().unwrap() as u32;
        raw_tokens += selvedge_tokens::count(turn["raw"].as_str().unwrap()) as u32;
        if show {
            println!("\n##### {session} T-{number} {}", turn["at_stake"]);
        }
        for ((level, _), sum) in LEVELS.iter().zip(&mut sums) {
            let text = memory.turn_at_level(session, number, *level).unwrap();
            let text = String::from_utf8(text).unwrap();
            let mut names = turn["at_stake"].as_array().unwrap().iter();
            let is_named = names.any(|name| text.contains(name.as_str().unwrap()));
            sum.0 += u32::from(is_named);
            sum.1 += selvedge_tokens::count(&text) as u32;
            if show && *level != Level::Smoothed {
                let mark = if is_named { "" } else { " MISSED" };
                println!("{}{mark}: {text}", level.letter());
            }
        }
    }
    println!(
        "\nlevels of {} recorded turns, {:.1} ms each\n",
        turns.len(),
        1000.0 * elapsed.as_secs_f64() / turns.len().max(1) as f64
    );
    println!("| level | names the file or symbol at stake | goal | tokens, share of raw |");
    println!("|---|---:|---:|---:|");
    for ((level, goal), (named, tokens)) in LEVELS.iter().zip(sums) {
        let share = 100.0 * f64::from(named) / turns.len().max(1) as f64;
        if let Some(goal) = goal {
            let name = format!("level {} names what is at stake", level.letter());
            goals.add_share(&name, share, *goal);
        }
        println!(
            "| {} | {share:.1} % | {} | {:.1} % |",
            level.letter(),
            goal.map(|goal| format!("{goal:.0} %")).unwrap_or_default(),
            100.0 * f64::from(tokens) / f64::from(raw_tokens.max(1)),
        );
    }
}
