//! The agent server: an HTTP API over sessions, their events, approvals, documents and channels.
//!
//! The crate contains no SQL and reads no configuration. It stores through the interfaces of
//! `selvedge-protocol` ([`ServerStores`]), and gets agents from a [`SessionHost`].
// Only the program that uses this crate writes to the standard streams.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod admission;
mod api_error;
mod approval_routes;
mod approvals;
mod caller;
mod change_routes;
mod channel_routes;
mod chat_completions;
mod check_routes;
mod client_conversation;
mod client_tools;
mod document_routes;
mod event_stream;
mod feed;
mod health_routes;
mod highlight;
mod host;
mod hosted_memory;
mod idempotency;
mod keyed_semaphores;
mod lesson_routes;
mod login_routes;
mod memory_routes;
mod message_ends;
mod message_routes;
mod metrics;
mod open_calls;
mod openai;
mod page;
mod render;
mod render_routes;
mod repeated_failure;
mod replay_routes;
mod responses;
mod resume_routes;
mod resumed_scripts;
mod router;
mod run_routes;
mod running_answer;
mod secrets;
mod server;
mod session_routes;
mod shared_approvals;
mod state;
mod status_routes;
mod token_watch;
mod turn_permits;
mod turn_routes;
mod visible_text;
mod workers;
mod workspace_routes;

pub use client_tools::{ClientTool, SessionClientTools};
pub use feed::EventFlush;
pub use host::{
    HostError, HostErrorKind, HostedChangedTurn, HostedCheck, HostedCheckState, HostedDiff,
    HostedItems, HostedMcpServer, HostedMemoryHit, HostedRun, HostedStep, HostedTool,
    HostedToolField, HostedTurn, ResumedRun, RunResume, SessionHost, SessionPlace, SessionWaker,
};
pub use hosted_memory::{
    AddLesson, EditLesson, HostedBand, HostedGradient, HostedLesson, HostedLessonScope,
    HostedReplay, HostedTopic, HostedTopics, HostedTurnLevel, LessonReview, UserLessonReach,
    WrittenLessonKind,
};
pub use router::openapi_json;
pub use secrets::{TokenSecret, TokenSecretError};
pub use server::{AgentServer, ServerNetwork};
pub use state::{ServerLimits, ServerStores};
pub use turn_permits::TurnPermit;
