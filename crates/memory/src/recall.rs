//! Recall before a turn: finds the turns, lessons and announcements that are relevant to the new
//! message, within a deadline and a token limit.
//!
//! The stages: keyword search and vector search, at the same time; other words of a small model, if
//! they found nothing; the model removes irrelevant candidates, in batches; its judgement about
//! what is quoted and what is mentioned; the text. Each stage has a deadline, and falls back to the
//! result of the one before. Without a model, the ranking decides. The result becomes part of the
//! newest message and is never stored.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::board::ProjectDocument;
use crate::lessons::{Lesson, LessonKind};
use crate::model::SmallModel;
use crate::recall_model::{ModelVerdict, filter_candidates, judge_candidates};
use crate::recall_search::Candidate;
use crate::recall_trace::{CandidateFate, RecallCandidate, RecallStage, StageName, StageOutcome};
use crate::{Announcement, Band, Memory, MemoryAccess, MemoryError, MemoryHit, tokens};

/// The part of the system prompt that explains tags, levels and recalled blocks to the model.
pub const MEMORY_PROMPT: &str = "Earlier turns are in tags, older ones shortened: <T-183-R> is turn \
183 raw; S is smoothed, C compressed, T tiny; <T-50-through-100-C> covers several turns. \
tools.history.getTurn(\"T-50\", \"R\") returns one in more detail, \"ses_x/T-50\" is of another \
session. <project_brief> and <recalled> are memory of this project, not something the user said.";

/// What to recall, and within which limits.
#[derive(Clone)]
pub struct RecallRequest<'a> {
    /// The session, and the sessions whose turns are recalled.
    pub access: MemoryAccess,
    /// The new message of the user.
    pub text: &'a str,
    /// Turns of the session from this number on are not recalled, because the prompt has them in
    /// full.
    pub exclude_from: u32,
    /// The time limits of the stages.
    pub deadlines: RecallDeadlines,
    /// The maximum tokens of the text.
    pub max_tokens: u32,
    /// A model that removes irrelevant candidates and decides about the others, if there is time.
    pub model: Option<Arc<dyn SmallModel>>,
    /// What the prompt contains of the session, to say on the board.
    pub bands: Vec<Band>,
}

impl<'a> RecallRequest<'a> {
    /// A request about the project of a session, with the default limits (1.2 seconds, 2,000
    /// tokens) and without a model.
    pub fn new(session: &str, text: &'a str) -> Self {
        Self {
            access: MemoryAccess::new(session),
            text,
            exclude_from: u32::MAX,
            deadlines: RecallDeadlines::default(),
            max_tokens: 2000,
            model: None,
            bands: Vec::new(),
        }
    }
}

/// The time limits of a recall. Both searches start at the same time; the others follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecallDeadlines {
    /// Of the keyword search. If there is no other result, a late one is waited for.
    pub keywords: Duration,
    /// Of the vector search.
    pub vectors: Duration,
    /// Of the model that removes candidates.
    pub filter: Duration,
    /// Of the model's judgement.
    pub judgement: Duration,
    /// Of everything, with the text.
    pub total: Duration,
}

impl Default for RecallDeadlines {
    fn default() -> Self {
        Self {
            keywords: Duration::from_millis(100),
            vectors: Duration::from_millis(200),
            filter: Duration::from_millis(500),
            judgement: Duration::from_millis(200),
            total: Duration::from_millis(1200),
        }
    }
}

impl RecallDeadlines {
    /// Time limits with another total, of which each stage has the same share as by default.
    pub fn within(total: Duration) -> Self {
        let default = Self::default();
        let factor = total.as_secs_f64() / default.total.as_secs_f64();
        Self {
            keywords: default.keywords.mul_f64(factor),
            vectors: default.vectors.mul_f64(factor),
            filter: default.filter.mul_f64(factor),
            judgement: default.judgement.mul_f64(factor),
            total,
        }
    }
}

/// The result of a recall.
#[derive(Debug, Clone, Default)]
pub struct RecalledMemory {
    /// The relevant turns, the best first.
    pub hits: Vec<MemoryHit>,
    /// Relevant turns that are only mentioned, in a line each.
    pub mentioned: Vec<MemoryHit>,
    /// The relevant lessons and reference layers, the best first.
    pub lessons: Vec<Lesson>,
    /// Relevant layers that are only mentioned, in a line each.
    pub mentioned_layers: Vec<Lesson>,
    /// The current announcements.
    pub board: Vec<Announcement>,
    /// All of it as a block for the newest message; empty if there is nothing relevant.
    pub text: String,
    /// The tokens of `text`.
    pub tokens: u32,
    /// What is missing because it failed or was not ready in time, one message each.
    pub missing: Vec<String>,
    /// The stages, in order.
    pub stages: Vec<RecallStage>,
    /// What the searches found, and what became of it.
    pub candidates: Vec<RecallCandidate>,
    /// How long it took.
    pub elapsed: Duration,
}

/// Why a stage has no result.
pub const DEADLINE_EXCEEDED: &str = "deadline exceeded";
/// Turns in the result.
const MAX_RECALLED_TURNS: usize = 12;
/// Lessons in the result.
const MAX_RECALLED_LESSONS: usize = 6;
/// The share of the total time that is reserved for composing the text, in percent.
const TEXT_TIME_PERCENT: u32 = 20;

/// A blocking task, and how long it took.
pub(crate) type StageTask<T> = JoinHandle<(Result<T, MemoryError>, Duration)>;

/// How such a task ended.
type StageTaskEnd<T> = Result<(Result<T, MemoryError>, Duration), tokio::task::JoinError>;

impl RecalledMemory {
    /// Returns the value, or notes the error in `missing` and returns the default.
    pub(crate) fn or_missing<T: Default>(&mut self, what: &str, result: Result<T, String>) -> T {
        result.unwrap_or_else(|error| {
            self.missing.push(format!("{what}: {error}"));
            T::default()
        })
    }

    /// Records a stage. A failure is also noted in `missing`.
    pub(crate) fn end_stage(
        &mut self,
        name: StageName,
        limit: Duration,
        elapsed: Duration,
        outcome: StageOutcome,
        kept: usize,
    ) {
        if let StageOutcome::Failed(error) = &outcome {
            self.missing.push(format!("{}: {error}", name.as_str()));
        }
        self.stages.push(RecallStage {
            name,
            limit,
            elapsed,
            outcome,
            kept,
        });
    }
}

impl Memory {
    /// Recalls what is relevant to a new message. Returns by the total deadline. Errors do not
    /// fail the recall: see [`RecalledMemory::missing`].
    pub async fn recall(self: &Arc<Self>, request: &RecallRequest<'_>) -> RecalledMemory {
        let start = Instant::now();
        let RecallDeadlines { total, .. } = request.deadlines;
        // Indexes the vocabulary, which takes 10 ms, while the searches run.
        drop(tokio::task::spawn_blocking(|| tokens::count("a")));
        let stages_end = start + total - total * TEXT_TIME_PERCENT / 100;
        let mut recalled = RecalledMemory::default();
        let access = request.access.clone();
        let board = self.spawn_stage(move |memory| {
            let board = memory.board(&access.session)?;
            let documents = memory.project_documents(&access, &board)?;
            Ok((board, documents))
        });
        let mut candidates = self
            .find_all(request, start, stages_end, &mut recalled)
            .await;
        if let (true, Some(model)) = (candidates.is_empty(), &request.model) {
            let model = model.as_ref();
            candidates = self
                .find_by_other_words(request, model, stages_end, &mut recalled)
                .await;
        }
        let verdict = match &request.model {
            Some(model) if !candidates.is_empty() => {
                let model = model.as_ref();
                self.ask_model(request, model, stages_end, &mut candidates, &mut recalled)
                    .await
            }
            _ => {
                for name in [StageName::Filter, StageName::Judgement] {
                    let reason = match request.model {
                        None => "there is no memory.model",
                        Some(_) => "there are no candidates",
                    };
                    let outcome = StageOutcome::Skipped(reason.to_owned());
                    recalled.end_stage(name, Duration::ZERO, Duration::ZERO, outcome, 0);
                }
                None
            }
        };
        recalled.choose(candidates, verdict);
        let board = timeout_at(stages_end.max(Instant::now()), board).await;
        let (board, documents) = recalled.or_missing("board", flatten(board));
        recalled.board = board;
        self.compose(request, documents, start + total, &mut recalled)
            .await;
        recalled.elapsed = start.elapsed();
        recalled
    }

    /// Asks the model about the candidates, and removes those that it rejects. Returns its
    /// judgement about the others.
    async fn ask_model(
        self: &Arc<Self>,
        request: &RecallRequest<'_>,
        model: &dyn SmallModel,
        end: Instant,
        candidates: &mut Vec<Candidate>,
        recalled: &mut RecalledMemory,
    ) -> Option<ModelVerdict> {
        let RecallDeadlines {
            filter, judgement, ..
        } = request.deadlines;
        let begun = Instant::now();
        let all = std::mem::take(candidates);
        let prepared = {
            let all = all.clone();
            let task = self.spawn_stage(move |memory| Ok(memory.candidate_lines(&all)));
            flatten(timeout_at((begun + filter).min(end), task).await)
        };
        let lines = match prepared {
            Ok(lines) => lines,
            Err(error) => {
                *candidates = all;
                let outcome = StageOutcome::Failed(error);
                let kept = candidates.len();
                recalled.end_stage(StageName::Filter, filter, begun.elapsed(), outcome, kept);
                let outcome = StageOutcome::Skipped("there is nothing to ask about".to_owned());
                recalled.end_stage(
                    StageName::Judgement,
                    judgement,
                    Duration::ZERO,
                    outcome,
                    kept,
                );
                return None;
            }
        };
        let deadline = (begun + filter).min(end);
        let kept = filter_candidates(model, request.text, &lines, deadline).await;
        let outcome = kept.outcome;
        for (at, candidate) in recalled.candidates.iter_mut().enumerate() {
            if !kept.kept.contains(&at) {
                candidate.fate = CandidateFate::RemovedByFilter;
            }
        }
        recalled.end_stage(
            StageName::Filter,
            filter,
            begun.elapsed(),
            outcome,
            kept.kept.len(),
        );
        let begun = Instant::now();
        let mut verdict = None;
        if kept.kept.is_empty() {
            let outcome = StageOutcome::Skipped("there are no candidates".to_owned());
            recalled.end_stage(StageName::Judgement, judgement, Duration::ZERO, outcome, 0);
        } else {
            let deadline = (begun + judgement).min(end);
            let judged = judge_candidates(model, request.text, &lines, &kept.kept, deadline).await;
            let (outcome, count) = match &judged {
                Ok(judged) => (
                    StageOutcome::Done,
                    judged.quoted.len() + judged.mentioned.len(),
                ),
                Err(error) => (StageOutcome::Failed(error.clone()), kept.kept.len()),
            };
            recalled.end_stage(
                StageName::Judgement,
                judgement,
                begun.elapsed(),
                outcome,
                count,
            );
            verdict = judged.ok();
        }
        let verdict = verdict.unwrap_or(ModelVerdict {
            quoted: kept.kept,
            mentioned: Vec::new(),
        });
        *candidates = all;
        Some(verdict)
    }

    /// Writes the text of the result, if there is time.
    async fn compose(
        self: &Arc<Self>,
        request: &RecallRequest<'_>,
        documents: Vec<ProjectDocument>,
        deadline: Instant,
        recalled: &mut RecalledMemory,
    ) {
        let begun = Instant::now();
        let limit = deadline.saturating_duration_since(begun);
        let found = recalled.clone();
        let (session, max_tokens) = (request.access.session.clone(), request.max_tokens);
        let (bands, question) = (request.bands.clone(), request.text.to_owned());
        let task = self.spawn_stage(move |memory| {
            Ok(memory.compose_block(&session, max_tokens, &found, &documents, &bands, &question))
        });
        let composed = flatten(timeout_at(deadline, task).await);
        let outcome = match &composed {
            Ok(_) => StageOutcome::Done,
            Err(error) => StageOutcome::Failed(error.clone()),
        };
        (recalled.text, recalled.tokens) = composed.unwrap_or_default();
        if recalled.text.is_empty() && outcome != StageOutcome::Done {
            recalled.hits.clear();
            recalled.mentioned.clear();
            recalled.lessons.clear();
            recalled.mentioned_layers.clear();
            for candidate in &mut recalled.candidates {
                if matches!(
                    candidate.fate,
                    CandidateFate::Quoted | CandidateFate::Mentioned
                ) {
                    candidate.fate = CandidateFate::TooLate;
                }
            }
        }
        let turns = recalled.hits.len() + recalled.mentioned.len();
        let kept = turns + recalled.lessons.len() + recalled.mentioned_layers.len();
        recalled.end_stage(StageName::Text, limit, begun.elapsed(), outcome, kept);
    }

    /// Runs blocking work on another thread, and measures it.
    pub(crate) fn spawn_stage<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> Result<T, MemoryError> + Send + 'static,
    ) -> StageTask<T> {
        let memory = self.clone();
        tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            let done = work(&memory);
            (done, begun.elapsed())
        })
    }
}

impl RecalledMemory {
    /// Takes the candidates that are quoted and mentioned: those of the verdict, or the best.
    fn choose(&mut self, candidates: Vec<Candidate>, verdict: Option<ModelVerdict>) {
        let verdict = verdict.unwrap_or_else(|| ModelVerdict {
            quoted: (0..candidates.len()).collect(),
            mentioned: Vec::new(),
        });
        for candidate in &mut self.candidates {
            // The filter has marked what it removed; the judgement removes the others.
            if candidate.fate != CandidateFate::RemovedByFilter {
                candidate.fate = CandidateFate::RemovedByJudgement;
            }
        }
        let quoted = verdict.quoted.iter().map(|at| (*at, true));
        let mentioned = verdict.mentioned.iter().map(|at| (*at, false));
        for (at, is_quoted) in quoted.chain(mentioned) {
            let Some(candidate) = candidates.get(at) else {
                continue;
            };
            let has_room = match candidate {
                Candidate::Turn(_) => self.hits.len() + self.mentioned.len() < MAX_RECALLED_TURNS,
                Candidate::Lesson(_) => {
                    self.lessons.len() + self.mentioned_layers.len() < MAX_RECALLED_LESSONS
                }
            };
            let fate = match (candidate, is_quoted) {
                _ if !has_room => CandidateFate::NoRoom,
                (Candidate::Turn(hit), true) => {
                    self.hits.push(hit.clone());
                    CandidateFate::Quoted
                }
                (Candidate::Turn(hit), false) => {
                    self.mentioned.push(hit.clone());
                    CandidateFate::Mentioned
                }
                // A layer is long; a lesson is as long as a line about it.
                (Candidate::Lesson(layer), false) if layer.kind == LessonKind::Layer => {
                    self.mentioned_layers.push(layer.clone());
                    CandidateFate::Mentioned
                }
                (Candidate::Lesson(lesson), _) => {
                    self.lessons.push(lesson.clone());
                    CandidateFate::Quoted
                }
            };
            if let Some(candidate) = self.candidates.get_mut(at) {
                candidate.fate = fate;
            }
        }
    }
}

/// The result of a stage that ended, with its own time.
pub(crate) fn flatten_timed<T>(done: StageTaskEnd<T>) -> (Result<T, String>, Duration) {
    match done {
        Ok((result, elapsed)) => (result.map_err(|error| error.to_string()), elapsed),
        Err(_) => (Err("task failed".to_owned()), Duration::ZERO),
    }
}

/// The result of a stage that ended or not.
pub(crate) fn flatten<T>(
    done: Result<StageTaskEnd<T>, tokio::time::error::Elapsed>,
) -> Result<T, String> {
    match done {
        Ok(done) => flatten_timed(done).0,
        Err(_) => Err(DEADLINE_EXCEEDED.to_owned()),
    }
}
