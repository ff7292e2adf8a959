//! The searches of a recall: by keywords and by vectors, at the same time, over turns, lessons and
//! layers.

use std::sync::Arc;
use std::time::Duration;

use selvedge_database::params;
use tokio::time::{Instant, timeout_at};

use crate::lessons::{Lesson, LessonKind, lessons_in_use};
use crate::model::SmallModel;
use crate::recall::{DEADLINE_EXCEEDED, RecallDeadlines, flatten, flatten_timed};
use crate::recall_model::ask_other_words;
use crate::recall_trace::{CandidateFate, RecallCandidate, StageName, StageOutcome};
use crate::search::QueryVector;
use crate::store::query_rows;
use crate::{
    Memory, MemoryAccess, MemoryError, MemoryHit, MemoryQuery, RankWeights, RecallRequest,
    RecalledMemory, words,
};

/// Turns that are considered.
const MAX_CANDIDATES: usize = 30;
/// Lessons and layers that are considered.
const MAX_LESSON_CANDIDATES: usize = 12;
/// Best turns of the vector search whose lessons are considered, too.
const MAX_LESSON_TURNS: usize = 5;
/// Lessons that are considered because of their turns.
const MAX_LESSONS_OF_TURNS: usize = 3;
/// A lesson with more sources is about none of them in particular.
const MAX_SPECIAL_SOURCES: usize = 5;

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
        let exclude_from = request.exclude_from;
        let (access, text) = (request.access.clone(), request.text.to_owned());
        let mut by_keywords = self
            .spawn_stage(move |memory| memory.find_candidates(&access, &text, exclude_from, None));
        let by_both = self.encoder.is_some().then(|| {
            let (access, text) = (request.access.clone(), request.text.to_owned());
            self.spawn_stage(move |memory| {
                if !words::has_content_word(&text) {
                    return Ok((Vec::new(), Vec::new()));
                }
                let question = memory.encode_question(&text)?;
                let question = question.as_ref();
                let hits = memory.find_candidates(&access, &text, exclude_from, question)?;
                let mut lessons = memory.lessons_near(&access, question)?;
                lessons.extend(memory.lessons_of_turns(&access, &hits)?);
                Ok((hits, lessons))
            })
        });
        let (access, text) = (request.access.clone(), request.text.to_owned());
        let lessons = self.spawn_stage(move |memory| match words::has_content_word(&text) {
            true => memory.find_lessons(Some(&access), &text, MAX_LESSON_CANDIDATES),
            false => Ok(Vec::new()),
        });
        let mut keyword_result = None;
        if let Ok(done) = timeout_at((start + keyword_limit).min(end), &mut by_keywords).await {
            keyword_result = Some(flatten_timed(done));
        }
        let vector_result = match by_both {
            Some(task) => Some(
                match timeout_at((start + vector_limit).min(end), task).await {
                    Ok(done) => flatten_timed(done),
                    Err(_) => (Err(DEADLINE_EXCEEDED.to_owned()), vector_limit),
                },
            ),
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
        let mut lessons_of_turns = Vec::new();
        match vector_result {
            Some((result, elapsed)) => {
                let result = result.map(|(ranked, lessons)| {
                    lessons_of_turns = lessons;
                    ranked
                });
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
        let lessons_end = (start + vector_limit).min(end).max(Instant::now());
        let mut lessons =
            recalled.or_missing("lessons", flatten(timeout_at(lessons_end, lessons).await));
        for lesson in lessons_of_turns {
            let is_known = lessons.iter().any(|it| it.lesson_id == lesson.lesson_id);
            if !is_known && lessons.len() < MAX_LESSON_CANDIDATES {
                lessons.push(lesson);
            }
        }
        let turns = turns.into_iter().map(Candidate::Turn);
        let all: Vec<Candidate> = turns
            .chain(lessons.into_iter().map(Candidate::Lesson))
            .collect();
        recalled.list_candidates(&all);
        all
    }

    /// Returns the lessons in use that were learned from the best of these turns: a short lesson
    /// may be near to a question only through its turns.
    fn lessons_of_turns(
        &self,
        access: &MemoryAccess,
        hits: &[MemoryHit],
    ) -> Result<Vec<Lesson>, MemoryError> {
        let best = hits.iter().take(MAX_LESSON_TURNS);
        let best: Vec<String> = best
            .map(|hit| format!("{}/T-{}", hit.session, hit.number))
            .collect();
        let mut lessons = self.read(|reader| lessons_in_use(&reader.connection, access))?;
        lessons.retain(|lesson| {
            let sources = &lesson.source_turns;
            let shared = sources.iter().filter(|turn| best.contains(turn)).count();
            shared > 1 || (shared == 1 && sources.len() <= MAX_SPECIAL_SOURCES)
        });
        lessons.truncate(MAX_LESSONS_OF_TURNS);
        Ok(lessons)
    }

    /// Asks the model for other words after the searches found nothing, and searches for them.
    /// Returns the turns and lessons found.
    pub(crate) async fn find_by_other_words(
        self: &Arc<Self>,
        request: &RecallRequest<'_>,
        model: &dyn SmallModel,
        end: Instant,
        recalled: &mut RecalledMemory,
    ) -> Vec<Candidate> {
        let (begun, limit) = (Instant::now(), request.deadlines.filter);
        let deadline = (begun + limit).min(end);
        let (access, exclude_from) = (request.access.clone(), request.exclude_from);
        let can_search = words::has_content_word(request.text);
        let task = self.spawn_stage(move |memory| {
            Ok(can_search && memory.has_turns_to_recall(&access, exclude_from)?)
        });
        if !matches!(flatten(timeout_at(deadline, task).await), Ok(true)) {
            return Vec::new();
        }
        let found = async {
            let words = ask_other_words(model, request.text, deadline).await?;
            let access = request.access.clone();
            let task = self.spawn_stage(move |memory| {
                let turns = memory.find_candidates(&access, &words, exclude_from, None)?;
                let lessons = memory.find_lessons(Some(&access), &words, MAX_LESSON_CANDIDATES)?;
                let turns = turns.into_iter().map(Candidate::Turn);
                let lessons = lessons.into_iter().map(Candidate::Lesson);
                Ok(turns.chain(lessons).collect::<Vec<_>>())
            });
            flatten(timeout_at(deadline, task).await)
        };
        let found: Result<Vec<Candidate>, String> = found.await;
        let outcome = match &found {
            Ok(_) => StageOutcome::Done,
            Err(error) => StageOutcome::Failed(error.clone()),
        };
        let found = found.unwrap_or_default();
        recalled.end_stage(
            StageName::OtherWords,
            limit,
            begun.elapsed(),
            outcome,
            found.len(),
        );
        recalled.list_candidates(&found);
        found
    }

    /// Returns whether the access reaches turns that the prompt does not contain in full.
    fn has_turns_to_recall(
        &self,
        access: &MemoryAccess,
        exclude_from: u32,
    ) -> Result<bool, MemoryError> {
        let readable = self.readable_sessions(access)?;
        let sql = "SELECT name, turns FROM memory_sessions
             WHERE turns > 0 AND (name = ?1 OR ?1 IS NULL) AND (project = ?2 OR ?2 IS NULL)";
        let key = params![readable.session, readable.project];
        let sessions: Vec<(String, u32)> =
            self.read(|reader| query_rows(&reader.connection, sql, key, |row| row.try_into()))?;
        let has_turn = |(name, turns): &(String, u32)| {
            let names = readable.names.as_ref();
            let in_prompt = *name == access.session && exclude_from <= 1;
            *turns > 0 && !in_prompt && names.is_none_or(|names| names.contains(name))
        };
        Ok(sessions.iter().any(has_turn))
    }

    /// Searches the sessions that the access reaches for turns that may be relevant: with keywords,
    /// and with the vector of the question if there is one.
    fn find_candidates(
        &self,
        access: &MemoryAccess,
        text: &str,
        exclude_from: u32,
        question: QueryVector<'_>,
    ) -> Result<Vec<MemoryHit>, MemoryError> {
        if !words::has_content_word(text) {
            return Ok(Vec::new());
        }
        let mut hits = self.search_in(access, text, MAX_CANDIDATES * 2, question)?;
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
        question: QueryVector<'_>,
    ) -> Result<Vec<MemoryHit>, MemoryError> {
        let readable = self.readable_sessions(access)?;
        if let Some(session) = &readable.session
            && self.turn_count(session)? == 0
        {
            return Ok(Vec::new());
        }
        let weights = match question {
            Some(_) => RankWeights::default(),
            None => RankWeights::KEYWORDS,
        };
        let query = MemoryQuery {
            max_turns,
            weights,
            session: readable.session.as_deref(),
            project: readable.project.as_deref(),
            sessions: readable.names.as_deref(),
            ..MemoryQuery::new(text)
        };
        self.search_uncounted(&query, question)
    }
}

impl RecalledMemory {
    /// Lists what the searches found. What becomes of it is decided later.
    fn list_candidates(&mut self, found: &[Candidate]) {
        let listed = found.iter().map(|candidate| RecallCandidate {
            name: candidate.name(),
            kind: candidate.kind(),
            score: match candidate {
                Candidate::Turn(hit) => Some(hit.score),
                Candidate::Lesson(_) => None,
            },
            fate: CandidateFate::NoRoom,
        });
        self.candidates = listed.collect();
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
