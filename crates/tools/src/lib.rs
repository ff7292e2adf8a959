//! The tool system: what a tool is, where tools are found, and the one path every call takes.
//!
//! ```text
//! CallRequest ─► Registry (who?) ─► arguments (well-formed?) ─► Policy (ask?) ─► Gate (a person)
//!                                    ─► queue ─► Tool ─► CallOutcome
//! ```
//!
//! [`ToolRouter`] makes structured calls into that; `script` does it for scripts.
//!
//! A structured call, a call from a script, a sub-agent's call and an MCP client's call are all
//! [`CallRequest`]s in a batch for [`Orchestrator::run_batch`]; no tool can tell which it was.
// Standard streams belong to whoever runs this.
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
