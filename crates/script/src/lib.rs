//! The script harness: finds scripts in a model's words, compiles them, checks them, runs them, and
//! says what came of it.
//!
//! ```text
//! text ─► detect ─► compile ─► preflight ─► run ─► ScriptToolCallOutput
//!                  (TypeScript) (tools)     (sandbox ⇄ orchestrator)
//! ```
//!
//! It opens no file and no socket: a script reaches the world through `selvedge-tools` alone.
// Standard streams belong to whoever runs this.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod bridge;
mod compile;
mod conclusion;
pub mod detect;
mod first_line;
mod globals;
mod harness;
mod hints;
mod hopeless;
mod live;
mod meter;
mod nesting;
mod options;
mod outcome;
mod playing;
mod positions;
mod pragma;
mod preflight;
mod preview;
mod question;
mod replay;
mod run;
mod session;
mod survey;
mod suspension;
mod tape;
mod teach;
mod traffic;
mod unicode;
mod watch;

pub use bridge::overview;
pub use compile::{Compiled, Compiler};
pub use globals::GLOBALS;
pub use harness::Harness;
pub use hopeless::hopeless;
pub use live::{LiveLimits, LiveRun, LiveRuns, LiveSummary, Report, TooManyRuns};
pub use options::{Author, Facts, Resume, RunOptions, Suspended};
pub use playing::{Step, Watch};
pub use pragma::Pragma;
pub use preflight::{PlannedCall, Preflight};
pub use preview::preview;
pub use question::{Answered, Question, QuestionKind, Reply};
pub use replay::{Cassette, Replay};
pub use session::Session;
pub use tape::Tape;
pub use teach::description;
