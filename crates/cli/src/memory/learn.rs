//! `selvedge memory distill`, `lessons` and `review`: what was learned.

use std::time::Duration;

use anyhow::Result;
use selvedge_config::Config;
use selvedge_memory::{Distilled, Lesson, LessonStatus, Memory, MemoryError, Verdict};
use serde_json::json;

use super::args::{DistillArgs, LessonsArgs, ReviewArgs};
use super::import::bar;
use crate::Exit;
use crate::out::{harmless, line};

/// Between looks at a batch: soon at first, then rarely, since most take an hour.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const LAST_LOOK: Duration = Duration::from_secs(60);

pub(super) fn distill(memory: &Memory, args: &DistillArgs, config: &Config) -> Result<Exit> {
    let sessions = match &args.session {
        Some(session) => vec![session.clone()],
        None => memory.sessions()?,
    };
    let runtime = crate::run::runtime()?;
    let small = runtime.block_on(crate::remember::small_model(config))?;
    let mut all = Distilled::default();
    for session in sessions {
        let (mut shown, mut pause) = (None, FIRST_LOOK);
        loop {
            let done = match runtime.block_on(memory.distill(&session, small.as_deref())) {
                // Whoever is at it does the same.
                Err(MemoryError::Busy(_)) if args.session.is_none() => break,
                done => done?,
            };
            let bar = shown.get_or_insert_with(|| {
                let all = u64::from(done.turns + done.waiting);
                let bar = bar(Some(all), "{msg} {wide_bar} {pos}/{len} {eta}");
                bar.with_message(session.clone())
            });
            bar.inc(u64::from(done.turns));
            if done.handed_over > 0 && args.wait {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LAST_LOOK);
                continue;
            }
            all.handed_over += done.handed_over;
            all.turns += done.turns;
            all.learned += done.learned;
            all.dropped += done.dropped;
            if done.waiting == 0 {
                bar.finish_and_clear();
                break;
            }
        }
    }
    if args.json {
        line(&json!({"turns": all.turns, "learned": all.learned, "dropped": all.dropped, "handed_over": all.handed_over}).to_string())?;
    } else {
        let Distilled {
            turns,
            learned,
            dropped,
            handed_over,
            ..
        } = all;
        tell!("{turns} turns read, {learned} things learned, {dropped} dropped");
        if handed_over > 0 {
            tell!(
                "note: {handed_over} turns are with the provider: distill again later, or with --wait, to learn from them"
            );
        }
    }
    Ok(Exit::Done)
}

pub(super) fn lessons(memory: &Memory, args: &LessonsArgs) -> Result<Exit> {
    let lessons = match &args.about {
        Some(about) => memory.lessons_about(about, 20)?,
        None => memory.lessons(None)?,
    };
    if args.json {
        return crate::out::json(&lessons);
    }
    for lesson in &lessons {
        line(&short(lesson))?;
    }
    if lessons.is_empty() {
        tell!("note: nothing was learned yet; `selvedge memory distill` reads what is new");
    }
    Ok(Exit::Done)
}

pub(super) fn review(memory: &Memory, args: &ReviewArgs) -> Result<Exit> {
    for (ids, verdict) in [
        (&args.accept, Verdict::Accept),
        (&args.decline, Verdict::Decline),
    ] {
        for id in ids {
            memory.review(id, verdict)?;
        }
    }
    if !args.accept.is_empty() || !args.decline.is_empty() {
        let (accepted, declined) = (args.accept.len(), args.decline.len());
        tell!("{accepted} accepted, {declined} declined");
        return Ok(Exit::Done);
    }
    let waiting = memory.lessons(Some(LessonStatus::Proposed))?;
    if args.json {
        return crate::out::json(&waiting);
    }
    for lesson in &waiting {
        line(&short(lesson))?;
        line(&harmless(&lesson.content))?;
    }
    match waiting.len() {
        0 => tell!("note: nothing waits for a review"),
        _ => tell!("note: --accept ID uses one from now on, --decline ID never"),
    }
    Ok(Exit::Done)
}

fn short(lesson: &Lesson) -> String {
    let from = match lesson.source_turns.as_slice() {
        [] => String::new(),
        [turn] => format!("  from {turn}"),
        [turn, more @ ..] => format!("  from {turn} and {} more", more.len()),
    };
    let text = format!(
        "{}  {:<10} {:<8} {:.2}  {}{from}",
        lesson.lesson_id,
        lesson.kind.as_str(),
        lesson.status.as_str(),
        lesson.weight,
        lesson.title
    );
    harmless(&text).into_owned()
}
