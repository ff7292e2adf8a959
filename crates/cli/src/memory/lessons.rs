//! `selvedge memory distill`, `lessons` and `review`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use selvedge_config::Config;
use selvedge_memory::{
    DistillReport, Lesson, LessonScope, LessonStatus, Memory, MemoryError, ProposalDecision,
};
use selvedge_text::count_noun;
use serde_json::json;

use super::args::{MemoryDistillArgs, MemoryLessonsArgs, MemoryReviewArgs};
use super::import::progress_bar;
use crate::CliStatus;
use crate::output::{print_json_text, print_line, print_text};

/// First interval between two checks of a provider's batch. It doubles up to [`MAX_POLL_INTERVAL`].
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Longest interval between two checks. Most batches take an hour.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(60);

pub(super) fn distill(
    memory: &Arc<Memory>,
    args: &MemoryDistillArgs,
    config: &Config,
) -> Result<CliStatus> {
    let sessions = match &args.session {
        Some(session) => vec![session.clone()],
        None => memory.session_names()?,
    };
    let runtime = crate::run::runtime()?;
    let small = runtime.block_on(crate::memory_setup::small_model(config, None))?;
    let mut total = DistillReport::default();
    for session in sessions {
        let (mut bar_shown, mut interval) = (None, MIN_POLL_INTERVAL);
        loop {
            let distilled = match runtime.block_on(memory.distill(&session, small.as_deref())) {
                // Another process distills this session.
                Err(MemoryError::DistillLocked(_)) if args.session.is_none() => break,
                distilled => distilled?,
            };
            let bar = bar_shown.get_or_insert_with(|| {
                let turns = u64::from(distilled.distilled_turns + distilled.remaining_turns);
                let template = "{msg} {wide_bar} {pos}/{len} {eta}";
                progress_bar(Some(turns), template, &session)
            });
            bar.inc(u64::from(distilled.distilled_turns));
            if distilled.submitted_turns > 0 && args.wait {
                std::thread::sleep(interval);
                interval = (interval * 2).min(MAX_POLL_INTERVAL);
                continue;
            }
            total.submitted_turns += distilled.submitted_turns;
            total.distilled_turns += distilled.distilled_turns;
            total.learned += distilled.learned;
            total.dropped += distilled.dropped;
            if distilled.remaining_turns == 0 {
                bar.finish_and_clear();
                break;
            }
        }
    }
    if args.json {
        let report = json!({
            "turns": total.distilled_turns, "learned": total.learned, "dropped": total.dropped,
            "handed_over": total.submitted_turns,
        });
        print_json_text(&report.to_string())?;
    } else {
        let DistillReport {
            distilled_turns: turns,
            learned,
            dropped,
            submitted_turns: handed_over,
            ..
        } = total;
        let (read, learned) = (count_noun(turns, "turn"), count_noun(learned, "lesson"));
        eprint_line!("read {read}, learned {learned}, dropped {dropped}");
        if handed_over > 0 {
            let submitted = count_noun(handed_over, "turn");
            eprint_line!("note: submitted {submitted} in a provider's batch");
            eprint_line!("hint: run `selvedge memory distill` again later, or pass --wait");
        }
    }
    Ok(CliStatus::Success)
}

pub(super) fn lessons(memory: &Memory, args: &MemoryLessonsArgs) -> Result<CliStatus> {
    let lessons = match &args.about {
        Some(about) => memory.find_lessons(None, about, 20)?,
        None => memory.lessons(None)?,
    };
    if args.json {
        return crate::output::print_json(&lessons);
    }
    for lesson in &lessons {
        print_line(&lesson_line(lesson))?;
    }
    if lessons.is_empty() {
        eprint_line!("note: no lessons yet; run `selvedge memory distill` to learn from new turns");
    }
    Ok(CliStatus::Success)
}

pub(super) fn review(memory: &Memory, args: &MemoryReviewArgs) -> Result<CliStatus> {
    for (ids, verdict) in [
        (&args.accept, ProposalDecision::Accept),
        (&args.decline, ProposalDecision::Decline),
    ] {
        for id in ids {
            memory.review_lesson(id, verdict)?;
        }
    }
    for (ids, scope) in [
        (&args.user, LessonScope::User),
        (&args.project, LessonScope::Project),
    ] {
        for id in ids {
            memory.set_lesson_scope(id, scope)?;
        }
    }
    let moved = args.user.len() + args.project.len();
    if moved > 0 {
        eprint_line!("changed where {} used", lessons_are(moved));
        if args.accept.is_empty() && args.decline.is_empty() {
            return Ok(CliStatus::Success);
        }
    }
    if !args.accept.is_empty() || !args.decline.is_empty() {
        let (accepted, declined) = (args.accept.len(), args.decline.len());
        eprint_line!("{accepted} accepted, {declined} declined");
        return Ok(CliStatus::Success);
    }
    let proposals = memory.lessons(Some(LessonStatus::Proposed))?;
    if args.json {
        return crate::output::print_json(&proposals);
    }
    for lesson in &proposals {
        print_line(&lesson_line(lesson))?;
        print_text(&lesson.content)?;
    }
    match proposals.len() {
        0 => eprint_line!("note: no proposals to review"),
        _ => eprint_line!("note: pass --accept ID to use a lesson, or --decline ID to reject it"),
    }
    Ok(CliStatus::Success)
}

fn lessons_are(count: usize) -> String {
    match count {
        1 => "1 lesson is".to_owned(),
        count => format!("{count} lessons are"),
    }
}

/// Returns one line about a lesson, without its content.
fn lesson_line(lesson: &Lesson) -> String {
    let source = match lesson.source_turns.as_slice() {
        [] => String::new(),
        [turn] => format!("  from {turn}"),
        [turn, more @ ..] => format!("  from {turn} and {} more", more.len()),
    };
    let scope = match lesson.project {
        Some(_) => "project",
        None => "user",
    };
    format!(
        "{}  {:<10} {:<8} {scope:<7} {:.2}  {}{source}",
        lesson.lesson_id,
        lesson.kind.as_str(),
        lesson.status.as_str(),
        lesson.weight,
        lesson.title
    )
}
