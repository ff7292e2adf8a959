//! What clients of the agent server see of the memory: the gradient of a session, a turn at each
//! level, and lessons.

use std::collections::HashSet;
use std::sync::Arc;

use selvedge_config::MemorySettings;
use selvedge_memory::{
    AssembledHistory, GradientOptions, Lesson, Level, Memory, MemoryError, PlanStorage,
    ProposalDecision,
};
use selvedge_server::{
    HostError, HostErrorKind, HostedBand, HostedGradient, HostedLesson, HostedTurnLevel,
    LessonReview,
};

/// Returns how a prompt contains the turns of a session.
pub(crate) async fn gradient(
    memory: Arc<Memory>,
    session: &str,
    config: &MemorySettings,
) -> Result<HostedGradient, HostError> {
    let options = GradientOptions {
        budget: config.history_tokens,
        band_shares: config.level_shares,
    };
    let session = session.to_owned();
    let shown = read(memory, move |memory| match memory.turn_count(&session)? {
        0 => Ok(AssembledHistory::default()),
        _ => memory.assemble(&session, options, PlanStorage::Discard),
    })
    .await?;
    let bands = shown.bands.iter().map(|band| HostedBand {
        first: band.span.first,
        last: band.span.last,
        level: band.span.level.as_str().to_owned(),
        era: band.era,
        tokens: band.tokens,
    });
    Ok(HostedGradient {
        budget: options.budget,
        tokens: shown.tokens,
        bands: bands.collect(),
    })
}

/// Returns a turn at all levels, the most detailed first.
pub(crate) async fn turn_levels(
    memory: Arc<Memory>,
    session: &str,
    turn: u32,
) -> Result<Vec<HostedTurnLevel>, HostError> {
    let session = session.to_owned();
    read(memory, move |memory| {
        let levels = Level::ALL.into_iter().map(|level| {
            let text = memory.turn_at_level(&session, turn, level)?;
            let text = String::from_utf8_lossy(&text);
            Ok(HostedTurnLevel {
                level: level.as_str().to_owned(),
                // The raw level is not redacted.
                text: memory.redact(&text).into_owned(),
            })
        });
        levels.collect()
    })
    .await
}

/// Returns the lessons that were learned only from these sessions.
pub(crate) async fn lessons_of(
    memory: Arc<Memory>,
    sessions: HashSet<String>,
) -> Result<Vec<HostedLesson>, HostError> {
    let lessons = read(memory, |memory| memory.lessons(None)).await?;
    let is_known = |source: &String| {
        let session = source.rsplit_once('/').map(|(session, _)| session);
        session.is_some_and(|session| sessions.contains(session))
    };
    let is_shown = |lesson: &Lesson| {
        !lesson.source_turns.is_empty() && lesson.source_turns.iter().all(is_known)
    };
    Ok(lessons.into_iter().filter(is_shown).map(view).collect())
}

fn view(lesson: Lesson) -> HostedLesson {
    HostedLesson {
        id: lesson.lesson_id,
        kind: lesson.kind.as_str().to_owned(),
        status: lesson.status.as_str().to_owned(),
        title: lesson.title,
        topics: lesson.topic,
        content: lesson.content,
        sources: lesson.source_turns,
        weight: lesson.weight,
        updated_ms: lesson.last_updated,
    }
}

/// Decides about a lesson.
pub(crate) async fn review_lesson(
    memory: Arc<Memory>,
    lesson: &str,
    review: LessonReview,
) -> Result<(), HostError> {
    let lesson = lesson.to_owned();
    read(memory, move |memory| match review {
        LessonReview::Accept => memory.review_lesson(&lesson, ProposalDecision::Accept),
        LessonReview::Decline => memory.review_lesson(&lesson, ProposalDecision::Decline),
        LessonReview::Forget => memory.forget_lesson(&lesson),
    })
    .await
}

/// Uses the memory on a thread that may block.
async fn read<T: Send + 'static>(
    memory: Arc<Memory>,
    work: impl FnOnce(&Memory) -> Result<T, MemoryError> + Send + 'static,
) -> Result<T, HostError> {
    let done = tokio::task::spawn_blocking(move || work(&memory)).await;
    let done = done.map_err(HostError::failed)?;
    done.map_err(|error| HostError {
        kind: match error {
            MemoryError::SessionNotFound(_)
            | MemoryError::TurnNotFound { .. }
            | MemoryError::LessonNotFound(_) => HostErrorKind::NotFound,
            _ => HostErrorKind::Failed,
        },
        message: error.to_string(),
        hint: None,
    })
}
