//! The searches of a recall: by keywords and by vectors, at the same time, over turns, lessons and
//! layers.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::lessons::{Lesson, LessonKind};
use crate::recall::{DEADLINE_EXCEEDED, RecallDeadlines, flatten, flatten_timed};
use crate::recall_trace::{CandidateFate, RecallCandidate, StageName, StageOutcome};
use crate::{
    Memory, MemoryAccess, MemoryError, MemoryHit, MemoryQuery, RankWeights, RecallRequest,
    RecalledMemory, words,
};

/// Turns that are considered.
const MAX_CANDIDATES: usize = 30;
/// Lessons and layers that are considered.
const MAX_LESSON_CANDIDATES: usize = 12;

/// What a model decides about: a turn, a lesson or a layer.
#[derive(Debug, Clone)]
pub(crate) enum Candidate {
    Turn(MemoryHit),
    Lesson(Lesson),
}

impl Candidate {
    /// Returns the name for people: `ses_x/T-5` or `les_…`.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Turn(hit) => format!("{}/T-{}", hit.session, hit.number),
            Self::Lesson(lesson) => lesson.lesson_id.clone(),
        }
    }

    /// Returns the kind for people.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Turn(_) => "turn",
            Self::Lesson(lesson) if lesson.kind == LessonKind::Layer => "layer",
            Self::Lesson(_) => "lesson",
        }
    }
}

impl Memory {
    /// Runs the searches, and returns the candidates: turns, then lessons.
    pub(crate) async fn find_all(
        self: &Arc<Self>,
        request: &RecallRequest<'_>,
        start: Instant,
        end: Instant,
        recalled: &mut RecalledMemory,
    ) -> Vec<Candidate> {
        let RecallDeadlines {
            keywords: keyword_limit,
            vectors: vector_limit,
            ..
        } = request.deadlines;
        let search = |weights: RankWeights| {
            let (access, text) = (request.access.clone(), request.text.to_owned());
            let exclude_from = request.exclude_from;
            self.spawn_stage(move |memory| {
                memory.find_candidates(&access, &text, exclude_from, weights)
            })
        };
        let default = RankWeights::default();
        let mut by_keywords = search(RankWeights {
            vectors: 0.0,
            ..default
        });
        let has_encoder = self.encoder.is_some() && default.vectors != 0.0;
        let by_both = has_encoder.then(|| search(default));
        let (access, text) = (request.access.clone(), request.text.to_owned());
        let lessons = self.spawn_stage(move |memory| match words::has_content_word(&text) {
            true => memory.find_lessons(Some(&access), &text, MAX_LESSON_CANDIDATES),
            false => Ok(Vec::new()),
        });
        let mut keyword_result = None;
        if let Ok(done) = timeout_at(start + keyword_limit, &mut by_keywords).await {
            keyword_result = Some(flatten_timed(done));
        }
        let vector_result = match by_both {
            Some(task) => Some(match timeout_at(start + vector_limit, task).await {
                Ok(done) => flatten_timed(done),
                Err(_) => (Err(DEADLINE_EXCEEDED.to_owned()), vector_limit),
            }),
            None => None,
        };
        let mut is_late = false;
        if keyword_result.is_none() && !matches!(vector_result, Some((Ok(_), _))) {
            is_late = true;
            keyword_result = timeout_at(end, &mut by_keywords)
                .await
                .ok()
                .map(flatten_timed);
        }
        let exceeded = || (Err(DEADLINE_EXCEEDED.to_owned()), start.elapsed());
        let (by_keywords, elapsed) = keyword_result.unwrap_or_else(exceeded);
        let (outcome, mut turns) = stage_outcome(by_keywords, is_late);
        recalled.end_stage(
            StageName::Keywords,
            keyword_limit,
            elapsed,
            outcome,
            turns.len(),
        );
        match vector_result {
            Some((result, elapsed)) => {
                let (outcome, ranked) = stage_outcome(result, false);
                let kept = ranked.len();
                if outcome == StageOutcome::Done {
                    turns = ranked;
                }
                recalled.end_stage(StageName::Vectors, vector_limit, elapsed, outcome, kept);
            }
            None => {
                let outcome = StageOutcome::Skipped("there is no encoder".to_owned());
                recalled.end_stage(StageName::Vectors, vector_limit, Duration::ZERO, outcome, 0);
            }
        }
        let lessons_end = (start + vector_limit).max(Instant::now());
        let lessons =
            recalled.or_missing("lessons", flatten(timeout_at(lessons_end, lessons).await));
        let turns = turns.into_iter().map(Candidate::Turn);
        let all: Vec<Candidate> = turns
            .chain(lessons.into_iter().map(Candidate::Lesson))
            .collect();
        recalled.candidates = all
            .iter()
            .map(|candidate| RecallCandidate {
                name: candidate.name(),
                kind: candidate.kind(),
                score: match candidate {
                    Candidate::Turn(hit) => Some(hit.score),
                    Candidate::Lesson(_) => None,
                },
                fate: CandidateFate::NoRoom,
            })
            .collect();
        all
    }

    /// Searches the sessions that the access reaches for turns that may be relevant.
    fn find_candidates(
        &self,
        access: &MemoryAccess,
        text: &str,
        exclude_from: u32,
        weights: RankWeights,
    ) -> Result<Vec<MemoryHit>, MemoryError> {
        if !words::has_content_word(text) {
            return Ok(Vec::new());
        }
        let mut hits = self.search_in(access, text, MAX_CANDIDATES * 2, weights)?;
        let is_in_prompt =
            |hit: &MemoryHit| hit.session == access.session && hit.number >= exclude_from;
        hits.retain(|hit| !is_in_prompt(hit));
        hits.truncate(MAX_CANDIDATES);
        Ok(hits)
    }

    /// Returns the turns of the sessions that an access reaches that match a question, the best
    /// first.
    pub(crate) fn search_in(
        &self,
        access: &MemoryAccess,
        text: &str,
        max_turns: usize,
        weights: RankWeights,
    ) -> Result<Vec<MemoryHit>, MemoryError> {
        let readable = self.readable_sessions(access)?;
        if let Some(session) = &readable.session
            && self.turn_count(session)? == 0
        {
            return Ok(Vec::new());
        }
        self.search_uncounted(&MemoryQuery {
            max_turns,
            weights,
            session: readable.session.as_deref(),
            project: readable.project.as_deref(),
            sessions: readable.names.as_deref(),
            ..MemoryQuery::new(text)
        })
    }
}

/// The outcome of a search, and the turns it found.
fn stage_outcome(
    result: Result<Vec<MemoryHit>, String>,
    is_late: bool,
) -> (StageOutcome, Vec<MemoryHit>) {
    match result {
        Ok(turns) if is_late => (StageOutcome::Late, turns),
        Ok(turns) => (StageOutcome::Done, turns),
        Err(error) => (StageOutcome::Failed(error), Vec::new()),
    }
}
