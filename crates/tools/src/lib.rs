//! The tool system: the [`Tool`] trait, the registry, and the single path of every call.
//!
//! ```text
//! CallRequest ─► Registry ─► check of arguments ─► policy ─► approval gate
//!                            ─► queue ─► Tool ─► CallOutcome
//! ```
//!
//! Calls of scripts, structured calls of models and calls of MCP clients are all [`CallRequest`]s
//! in a batch for [`Orchestrator::run_batch`]; a tool cannot distinguish them. [`ToolRouter`]
//! submits structured calls, the crate `script` submits those of scripts.
// Standard streams belong to the program that uses this crate.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod arguments;
mod asking;
mod digest;
mod failure;
mod function;
mod gate;
mod names;
mod offer;
mod orchestrator;
mod policy;
mod prior;
mod registry;
mod router;
mod scope;
mod search;
mod stop;
mod supervise;
mod tasks;
mod tool;
mod typescript;
mod words;

pub use arguments::{ArgumentError, ArgumentErrorKind, check_partial, list_from_text};
pub use failure::CallFailure;
pub use function::{FunctionTool, tool, tool_with_call};
pub use gate::{Approver, AskLater, Gate, NobodyToAsk, Waiting, WaitsFor, Wish};
pub use names::{camel_case, nearest, snake_case};
pub use offer::{Offered, Shape, offerable};
pub use orchestrator::{Arguments, CallOutcome, CallRequest, Orchestrator, Report, SoFar};
pub use policy::{Risk, Verdict, judge};
pub use prior::{
    DecisionError, PriorCall, PriorCalls, PriorOutcome, PriorProgress, ResumeDecision,
};
pub use registry::{Found, Registered, Registry, RegistryError};
pub use router::{StructuredCall, StructuredOutput, ToolRouter, shown_of_result};
pub use scope::{Belongings, Rest, Scope, ScopeLimits, Source, Standing};
pub use search::{FoundTool, search_tool};
pub use stop::{Stopped, heeding};
pub use tasks::{Means, Tasks};
pub use tool::{
    Again, Call, CallFuture, FieldCase, Tool, ToolError, ToolOutput, read_args, spec_of, typed_call,
};
pub use typescript::{declarations, signature, signatures};
