//! What a [`SessionHost`](crate::SessionHost) tells about the memory and about replays, as clients
//! get it.

use serde::{Deserialize, Serialize};
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
    /// Whether it is used in all projects or in one.
    pub scope: HostedLessonScope,
    /// The turns it was learned from: `session/T-50`.
    pub sources: Vec<String>,
    /// How much it counts, from 0 to 1.
    pub weight: f64,
    /// When it was last learned or reviewed, in milliseconds since 1970.
    pub updated_ms: i64,
}

/// Where a lesson is used. Only the command `selvedge memory review` changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostedLessonScope {
    /// In all projects of the user.
    User,
    /// In the project in which it was learned.
    Project,
}

/// Which of the lessons that are used in all projects a client sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserLessonReach {
    /// Those that were learned only from sessions in its workspaces.
    Workspaces,
    /// All of them.
    All,
}

/// What to change in a lesson. A field that is missing stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EditLesson {
    /// The title, one line.
    pub title: Option<String>,
    /// The text for the model.
    pub content: Option<String>,
    /// The topics it belongs to.
    pub topics: Option<Vec<String>>,
}

/// A lesson that a person writes. It is used in the project of its folder from now on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddLesson {
    /// What kind of lesson it is.
    pub kind: WrittenLessonKind,
    /// The title, one line. Without one, it is the first line of the text.
    pub title: Option<String>,
    /// The text for the model. That of a layer has 500 to 5,000 tokens.
    pub content: String,
    /// The topics it belongs to.
    #[serde(default)]
    pub topics: Vec<String>,
    /// Folder in whose project the lesson is used, one of the token's workspaces. Defaults to the
    /// first one.
    pub workspace: Option<String>,
}

/// The kind of a lesson that a person writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WrittenLessonKind {
    /// Something that worked or did not.
    Lesson,
    /// Something the user wants in future sessions.
    Preference,
    /// A recurring error and its fix.
    Problem,
    /// How things are done in the project.
    Convention,
    /// A longer reference text about a topic.
    Layer,
}

/// Topics of sessions, and how many turns mentioned them over time.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct HostedTopics {
    /// The latest weeks in which turns mention a topic, in order: the days of their Mondays.
    pub weeks: Vec<String>,
    /// The topics, the most prominent first.
    pub topics: Vec<HostedTopic>,
}

/// A topic over time.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct HostedTopic {
    /// Name of the topic.
    pub name: String,
    /// The area it belongs to, such as `tests`.
    pub category: String,
    /// How many turns mention it.
    pub turns: u32,
    /// How many turns mention it in each of the weeks.
    pub turns_by_week: Vec<u32>,
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
