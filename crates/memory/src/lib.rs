//! Long-term memory of projects: stores every turn of their sessions at four levels of detail,
//! renders a session within a token budget (the gradient), recalls what is relevant to a new
//! message from all sessions of the project, and learns lessons from past turns.
//!
//! All data is in the journal's SQLite file. The crate opens no socket and knows no provider: a
//! small model and an encoder for vectors are optional and passed in by the caller.
//!
//! ```
//! use std::sync::Arc;
//! use selvedge_journal::Redactor;
//! use selvedge_memory::{
//!     GradientOptions, Memory, NewTurn, PlanStorage, RecallRequest,
//! };
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! # let home = tempfile::tempdir().unwrap();
//! let memory = Arc::new(Memory::open(home.path(), Redactor::new([]))?);
//!
//! // After each turn: store it, and write its lower levels (usually in the background).
//! memory.append("session", &NewTurn::text("user", "The staging server is called heron."))?;
//! memory.write_levels(Some("session"))?;
//!
//! // Before each turn: the history for the prompt, and what is relevant to the new message.
//! let gradient = GradientOptions::new(100_000);
//! let history = memory.assemble("session", gradient, PlanStorage::Store)?;
//! let request = RecallRequest::new("session", "Deploy to the staging server");
//! let recalled = memory.recall(&request).await;
//! let newest_message = format!("{}Deploy to the staging server", recalled.text);
//!
//! assert_eq!(history.text, "<T-1-R>\nThe staging server is called heron.\n</T-1-R>\n");
//! assert!(newest_message.contains("heron"));
//! # Ok::<(), selvedge_memory::MemoryError>(())
//! # }).unwrap();
//! ```
//!
//! [`get_turn_tool`] is the tool with which a model fetches a turn in more detail, and
//! [`MEMORY_PROMPT`] is the part of the system prompt that explains the tags. A [`SmallModel`] and
//! an [`Encoder`] improve recall. [`Memory::distill`] learns lessons.
// Standard streams belong to the embedding program.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod actions;
mod append;
mod assemble;
mod best_words;
mod board;
mod brief;
mod change_actions;
mod cleaning;
mod contradictions;
mod date_hints;
mod diff_summary;
mod distill;
mod distill_answer;
mod distill_input;
mod distill_lock;
mod distill_passes;
mod distill_requests;
mod distill_retry;
mod distill_steps;
mod distill_unit;
mod encryption;
mod eras;
mod error;
mod error_places;
mod export;
mod extract;
mod forget;
mod gradient;
mod identifiers;
mod import;
mod late_usage;
mod layer_quote;
mod layers;
mod lesson_bounds;
mod lesson_edit;
mod lesson_learning;
mod lesson_rules;
mod lesson_vectors;
mod lessons;
mod level;
mod level_writer;
mod model;
mod outcome;
mod outcome_paths;
#[cfg(feature = "pocket")]
mod pocket;
mod postings;
mod projects;
mod rank;
mod recall;
mod recall_model;
mod recall_search;
mod recall_text;
mod recall_trace;
mod reindex;
mod schema;
mod search;
mod search_budget;
mod search_tool;
mod sectioned_text;
mod stats;
mod store;
mod summarise;
mod test_runs;
mod text_units;
mod time;
mod tokens;
mod tool;
mod topic_clusters;
mod topics;
mod turn_metrics;
mod turn_pieces;
mod turn_topic;
mod vectors;
mod words;

pub use append::{NewTurn, TurnFormat};
pub use assemble::{AssembledHistory, PlanStorage};
pub use board::{ANNOUNCEMENT_TURNS, Announcement};
pub use brief::MAX_BRIEF_TOKENS;
pub use distill::DistillReport;
pub use distill_passes::{DISTILL_INTERVAL, DistillPass, DistillState};
pub use distill_retry::DistillRetryReport;
pub use distill_unit::AGENT_ROLE;
pub use error::MemoryError;
pub use forget::ForgottenCounts;
pub use gradient::{Band, GradientOptions};
pub use import::{ImportFormat, ImportReport};
pub use layers::{LAYER_TOKENS, NewLesson};
pub use lesson_bounds::LessonsToForget;
pub use lesson_edit::LessonEdit;
pub use lessons::{Lesson, LessonKind, LessonScope, LessonStatus, ProposalDecision};
pub use level::{Level, TaggedSpan, parse_turn_number};
pub use level_writer::{LevelProgress, TurnRecord};
pub use model::{
    BatchSmallModel, BatchSubmission, SmallModel, SmallModelAnswer, SmallModelBatchStatus,
    SmallModelError,
};
#[cfg(feature = "pocket")]
pub use pocket::PocketEncoder;
pub use projects::{MemoryAccess, MemoryProject, ProjectPlace};
pub use rank::RankWeights;
pub use recall::{
    DEADLINE_EXCEEDED, MEMORY_PROMPT, RecallDeadlines, RecallRequest, RecalledMemory,
};
pub use recall_trace::{CandidateFate, RecallCandidate, RecallStage, StageName, StageOutcome};
pub use schema::memory_schema;
pub use search::{MemoryHit, MemoryQuery};
pub use search_tool::{search_memory_spec, search_memory_tool};
pub use stats::{MemoryStats, SessionStats};
pub use store::{AppendedTurn, Memory, StoredTurn};
pub use tool::{get_turn_spec, get_turn_tool};
pub use topics::{Topic, TopicArea, TopicTrend};
pub use vectors::Encoder;
