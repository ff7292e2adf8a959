//! The script harness: finds scripts in a model's words, compiles them, checks them, runs them, and
//! says what came of it.
//!
//! ```text
//! text ─► detect ─► compile ─► preflight ─► run ─► ScriptToolCallOutput
//!                  (TypeScript) (tools)     (sandbox ⇄ orchestrator)
//! ```
//!
//! It opens no file and no socket: a script reaches the world through `selvedge-tools` alone.

mod bridge;
mod compile;
pub mod detect;
mod globals;
mod harness;
mod hints;
mod live;
mod meter;
mod nesting;
mod outcome;
mod positions;
mod pragma;
mod preflight;
mod preview;
mod question;
mod run;
mod session;
mod survey;
mod teach;
mod traffic;
mod unicode;

pub use bridge::overview;
pub use compile::{Compiled, Compiler};
pub use globals::GLOBALS;
pub use harness::{Facts, Harness, Resume, RunOptions};
pub use live::{LiveLimits, LiveRun, LiveRuns, LiveSummary, Report, TooManyRuns};
pub use pragma::Pragma;
pub use preflight::{PlannedCall, Preflight};
pub use question::{Answered, Question, QuestionKind, Reply};
pub use session::Session;
pub use teach::description;
