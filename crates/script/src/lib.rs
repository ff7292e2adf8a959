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

mod analysis;
mod brackets;
mod call_groups;
mod call_log;
mod clock;
mod compile;
mod context;
pub mod detect;
mod enum_values;
mod errors;
mod execute;
mod globals;
mod harness;
mod help;
mod hints;
mod in_flight;
mod lexing;
mod live;
mod live_queue;
mod metrics;
mod open_tags;
mod options;
mod output_buffer;
mod parse_cost;
mod parse_problem;
mod parse_work;
mod positions;
mod pragma;
mod preflight;
mod question;
mod rate_limit;
mod reasoning_marks;
mod recording;
mod replay;
mod replay_calls;
mod run;
mod run_output;
mod run_record;
mod script_cache;
mod script_host;
mod script_store;
mod state;
mod suspension;
mod teardown;
mod tool_description;
mod top_level;
mod truncate_json;
mod typecheck;
mod unicode;

pub use analysis::ToolMentions;
pub use call_groups::{group_calls, group_label};
pub use compile::{CompiledScript, ScriptCompiler};
pub use globals::{GLOBAL_DECLARATIONS, callable_name, is_script_name, script_declarations};
pub use harness::Harness;
pub use help::{help_overview, limits_text};
pub use live::{LiveRun, LiveRunReport, LiveRunSummary, LiveRuns};
pub use live_queue::{LiveRunLimits, TooManyRuns};
pub use metrics::record_call_metrics;
pub use options::{RestoreInput, ResumeHintStyle, ResumeInput, RunOptions, ScriptContext};
#[doc(hidden)]
pub use parse_work::ParseWork;
pub use pragma::{Pragma, named_run_to_resume};
pub use preflight::{PlannedCall, Preflight};
pub use question::{AnswerDelivery, QuestionAnswer, RunQuestion, RunQuestionKind};
pub use recording::Recording;
pub use replay::{RecordedRun, ReplayOptions};
pub use replay_calls::{ReplayObserver, ReplayedCall};
pub use script_store::{ScriptStore, StoreBudget};
pub use suspension::RestoreError;
pub use tool_description::script_tool_description;
pub use truncate_json::{fair_share, truncate_json};
