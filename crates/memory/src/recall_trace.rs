//! What a recall did: its stages with their times, and what became of each candidate.

use std::time::Duration;

/// A stage of a recall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageName {
    /// The search by keywords.
    Keywords,
    /// The search by keywords and vectors.
    Vectors,
    /// The small model names other words, because the searches found nothing.
    OtherWords,
    /// The small model removes irrelevant candidates.
    Filter,
    /// The small model decides what is quoted and what is mentioned.
    Judgement,
    /// The text is composed.
    Text,
}

impl StageName {
    /// Returns the name for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Keywords => "keywords",
            Self::Vectors => "vectors",
            Self::OtherWords => "other words",
            Self::Filter => "model filter",
            Self::Judgement => "judgement",
            Self::Text => "text",
        }
    }
}

/// How a stage ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StageOutcome {
    /// It ended in time.
    Done,
    /// After its deadline, but it was waited for because there was no other result.
    Late,
    /// Some of the model's answers are missing or invalid; the message says which.
    Partial(String),
    /// Without a result; the result of the stage before is used.
    Failed(String),
    /// It was not run; the message says why.
    Skipped(String),
}

/// A stage that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct RecallStage {
    /// Which stage it is.
    pub name: StageName,
    /// How long it could take.
    pub limit: Duration,
    /// How long it took.
    pub elapsed: Duration,
    /// How it ended.
    pub outcome: StageOutcome,
    /// The number of candidates after it.
    pub kept: usize,
}

/// What became of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CandidateFate {
    /// Its text is in the prompt, as far as there was room.
    Quoted,
    /// A line in the prompt mentions it.
    Mentioned,
    /// The model's filter removed it.
    RemovedByFilter,
    /// The model's judgement removed it.
    RemovedByJudgement,
    /// Better ones took its place.
    NoRoom,
    /// The text was not ready in time.
    TooLate,
}

impl CandidateFate {
    /// Returns the name for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quoted => "quoted",
            Self::Mentioned => "mentioned",
            Self::RemovedByFilter => "removed by the filter",
            Self::RemovedByJudgement => "removed by the judgement",
            Self::NoRoom => "no room",
            Self::TooLate => "too late",
        }
    }
}

/// A turn, lesson or layer that a search found.
#[derive(Debug, Clone, PartialEq)]
pub struct RecallCandidate {
    /// `ses_x/T-5` for a turn, the id of a lesson or layer.
    pub name: String,
    /// `turn`, `lesson` or `layer`.
    pub kind: &'static str,
    /// The relevance of a turn, comparable within one search.
    pub score: Option<f64>,
    /// What became of it.
    pub fate: CandidateFate,
}
