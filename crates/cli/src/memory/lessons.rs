//! `selvedge memory lessons` and `review`.

use anyhow::Result;
use selvedge_memory::{Lesson, LessonScope, LessonStatus, Memory, ProposalDecision};

use super::args::{MemoryLessonsArgs, MemoryReviewArgs};
use crate::CliStatus;
use crate::output::{print_line, print_text};

pub(super) fn lessons(memory: &Memory, args: &MemoryLessonsArgs) -> Result<CliStatus> {
    let lessons = match &args.about {
        Some(about) => memory.find_lessons(None, about, 20)?,
        None => memory.lessons(None)?,
    };
    if args.json {
        return crate::output::print_json(&lessons);
    }
    let here = super::project_of_this_folder(memory)?;
    for lesson in &lessons {
        print_line(&lesson_line(lesson, here.as_deref()))?;
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
    let here = super::project_of_this_folder(memory)?;
    for lesson in &proposals {
        print_line(&lesson_line(lesson, here.as_deref()))?;
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

/// Returns one line about a lesson, without its content. `here` is the project of this folder.
fn lesson_line(lesson: &Lesson, here: Option<&str>) -> String {
    let source = match lesson.source_turns.as_slice() {
        [] => String::new(),
        [turn] => format!("  from {turn}"),
        [turn, more @ ..] => format!("  from {turn} and {} more", more.len()),
    };
    let scope = match lesson.project.as_deref() {
        None => "user",
        project if project == here => "project",
        Some(_) => "other",
    };
    let note = match &lesson.note {
        Some(note) => format!("  contradicted by: {note}"),
        None => String::new(),
    };
    format!(
        "{}  {:<10} {:<12} {scope:<7} {:.2}  {}{source}{note}",
        lesson.lesson_id,
        lesson.kind.as_str(),
        lesson.status.as_str(),
        lesson.weight,
        lesson.title
    )
}
