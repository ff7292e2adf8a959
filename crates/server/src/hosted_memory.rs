//! What a [`SessionHost`](crate::SessionHost) tells about the memory and about replays, as clients
//! get it.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// How a prompt contains the turns of a session: older turns in shorter form.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct HostedGradient {
    /// Tokens that the turns may have.
    pub budget: u32,
    /// Tokens that they have.
    pub tokens: u32,
    /// The bands, the oldest turns first.
    pub bands: Vec<HostedBand>,
}

/// Consecutive turns of one level.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct HostedBand {
    /// Number of the first turn.
    pub first: u32,
    /// Number of the last turn.
    pub last: u32,
    /// `raw`, `smoothed`, `compressed` or `tiny`.
    #[schema(example = "raw")]
    pub level: String,
    /// Whether one text summarises all the turns.
    pub era: bool,
    /// Tokens of the band.
    pub tokens: u32,
}

/// A turn at one level.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct HostedTurnLevel {
    /// `raw`, `smoothed`, `compressed` or `tiny`.
    #[schema(example = "raw")]
    pub level: String,
    /// The text, with secrets redacted.
    pub text: String,
}

/// A lesson learned from past turns.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct HostedLesson {
    /// Id of the lesson, `les_…`.
    pub id: String,
    /// What kind of lesson it is, as `selvedge memory lessons` shows it.
    pub kind: String,
    /// Whether it is used, as `selvedge memory lessons` shows it.
    pub status: String,
    /// A short title.
    pub title: String,
    /// The topics it belongs to.
    pub topics: Vec<String>,
    /// The text for the model.
    pub content: String,
    /// The turns it was learned from: `session/T-50`.
    pub sources: Vec<String>,
    /// How much it counts, from 0 to 1.
    pub weight: f64,
    /// When it was last learned or reviewed, in milliseconds since 1970.
    pub updated_ms: i64,
}

/// What is decided about a lesson.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LessonReview {
    /// It is used from now on.
    Accept,
    /// It is kept, but not used.
    Decline,
    /// It is deleted.
    Forget,
}

/// A replayed run. Nothing outside of the script was changed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct HostedReplay {
    /// Whether the replay ended as the recorded run did. Missing if a call was made to fail.
    pub matches: Option<bool>,
    /// The result of the replay, as the items of a session have it, with secrets redacted.
    #[schema(value_type = Object)]
    pub output: Value,
}
