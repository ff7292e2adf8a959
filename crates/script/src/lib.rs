//! The script harness: finds scripts in a model's text, compiles, checks and runs them, and returns
//! their output.
//!
//! ```text
//! text ─► detect ─► compile ─► preflight ─► run ─► ScriptToolCallOutput
//!                  (TypeScript) (tools)     (sandbox ⇄ orchestrator)
//! ```
//!
//! It opens no file and no socket: a script has effects only through the tools of `selvedge-tools`.
// The standard streams belong to the embedding program.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod bridge;
mod call_log;
mod clock;
mod compile;
mod conclusion;
mod context;
pub mod detect;
mod execute;
mod globals;
mod harness;
mod help;
mod hints;
mod in_flight;
mod live;
mod meter;
mod nesting;
mod options;
mod outcome;
mod output_buffer;
mod playback;
mod positions;
mod pragma;
mod preflight;
mod preview;
mod question;
mod recording;
mod replay;
mod run;
mod run_entry;
mod session;
mod state;
mod survey;
mod suspension;
mod teach;
mod teardown;
mod unicode;

pub use compile::{Compiled, Compiler};
pub use globals::GLOBALS;
pub use harness::Harness;
pub use help::overview;
pub use live::{LiveLimits, LiveRun, LiveRuns, LiveSummary, Report, TooManyRuns};
pub use options::{Author, Facts, Resume, RunOptions, Suspended};
pub use playback::{Step, Watch};
pub use pragma::Pragma;
pub use preflight::{PlannedCall, Preflight};
pub use preview::preview;
pub use question::{Answered, Question, QuestionKind, Reply};
pub use recording::Recording;
pub use replay::{Cassette, Replay};
pub use session::Session;
pub use survey::Mentions;
pub use suspension::ResumeError;
pub use teach::description;
