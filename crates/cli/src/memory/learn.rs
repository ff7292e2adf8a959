//! `selvedge memory distill`, `lessons` and `review`.

use std::time::Duration;

use anyhow::Result;
use selvedge_config::Config;
use selvedge_memory::{Distilled, Lesson, LessonStatus, Memory, MemoryError, Verdict};
use serde_json::json;

use super::args::{DistillArgs, LessonsArgs, ReviewArgs};
use super::import::bar;
use crate::Exit;
use crate::out::{harmless, line};

/// First interval between two checks of a provider's batch. It doubles up to [`LAST_LOOK`].
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// Longest interval between two checks. Most batches take an hour.
const LAST_LOOK: Duration = Duration::from_secs(60);

pub(super) fn distill(memory: &Memory, args: &DistillArgs, config: &Config) -> Result<Exit> {
    let sessions = match &args.session {
        Some(session) => vec![session.clone()],
        None => memory.sessions()?,
    };
    let runtime = crate::run::runtime()?;
    let small = runtime.block_on(crate::remember::small_model(config))?;
    let mut total = Distilled::default();
    for session in sessions {
        let (mut bar_shown, mut interval) = (None, FIRST_LOOK);
        loop {
            let distilled = match runtime.block_on(memory.distill(&session, small.as_deref())) {
                // Another process distills this session.
                Err(MemoryError::Busy(_)) if args.session.is_none() => break,
                distilled => distilled?,
            };
            let bar = bar_shown.get_or_insert_with(|| {
                let turns = u64::from(distilled.turns + distilled.waiting);
                let bar = bar(Some(turns), "{msg} {wide_bar} {pos}/{len} {eta}");
                bar.with_message(session.clone())
            });
            bar.inc(u64::from(distilled.turns));
            if distilled.handed_over > 0 && args.wait {
                std::thread::sleep(interval);
                interval = (interval * 2).min(LAST_LOOK);
                continue;
            }
            total.handed_over += distilled.handed_over;
            total.turns += distilled.turns;
            total.learned += distilled.learned;
            total.dropped += distilled.dropped;
            if distilled.waiting == 0 {
                bar.finish_and_clear();
                break;
            }
        }
    }
    if args.json {
        let report = json!({
            "turns": total.turns, "learned": total.learned, "dropped": total.dropped,
            "handed_over": total.handed_over,
        });
        line(&report.to_string())?;
    } else {
        let Distilled {
            turns,
            learned,
            dropped,
            handed_over,
            ..
        } = total;
        tell!("read {turns} turns, learned {learned} lessons, dropped {dropped}");
        if handed_over > 0 {
            tell!("note: {handed_over} turns are in a provider's batch");
            tell!("hint: run `selvedge memory distill` again later, or pass --wait");
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
        tell!("note: no lessons yet; run `selvedge memory distill` to learn from new turns");
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
    let proposals = memory.lessons(Some(LessonStatus::Proposed))?;
    if args.json {
        return crate::out::json(&proposals);
    }
    for lesson in &proposals {
        line(&short(lesson))?;
        line(&harmless(&lesson.content))?;
    }
    match proposals.len() {
        0 => tell!("note: no proposals to review"),
        _ => tell!("note: pass --accept ID to use a lesson, or --decline ID to reject it"),
    }
    Ok(Exit::Done)
}

/// Returns one line about a lesson, without its content.
fn short(lesson: &Lesson) -> String {
    let source = match lesson.source_turns.as_slice() {
        [] => String::new(),
        [turn] => format!("  from {turn}"),
        [turn, more @ ..] => format!("  from {turn} and {} more", more.len()),
    };
    let text = format!(
        "{}  {:<10} {:<8} {:.2}  {}{source}",
        lesson.lesson_id,
        lesson.kind.as_str(),
        lesson.status.as_str(),
        lesson.weight,
        lesson.title
    );
    harmless(&text).into_owned()
}
