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

mod args_summary;
mod arguments;
mod batch_gate;
mod call_clock;
mod call_gate;
mod compact_declarations;
mod digest;
mod external_cancel;
mod failure;
mod function;
mod names;
mod offered;
mod orchestrator;
mod policy;
mod prior;
mod registry;
mod render_state;
mod router;
mod schema_cost;
mod schema_type;
mod scope;
mod search;
mod supervise;
mod tasks;
mod tool;
mod tool_cache;
mod typescript;

pub use args_summary::summarise_args;
pub use arguments::{ArgumentError, ArgumentErrorKind, check_partial, object_from_literal};
pub use call_gate::{
    ApprovalTimeLimit, Approver, CallGate, DeferringApprover, GatedAction, NoApprover, WaitGuard,
};
pub use compact_declarations::{compact_declarations, compact_signature};
pub use external_cancel::{ExternalCancel, run_until_cancel_requested, until_cancel_requested};
pub use failure::{CallFailure, DENIED_CALL_HINT};
pub use function::{FunctionTool, tool, tool_with_context};
pub use names::{camel_case, similar_names, snake_case};
pub use offered::{OfferInScriptMode, OfferedShape, OfferedTool, offerable_tools};
pub use orchestrator::{
    ApprovalTiming, BatchReport, CallArguments, CallOutcome, CallRequest, Orchestrator,
};
pub use policy::{PolicyVerdict, Risk, apply_policy};
pub use prior::{DecisionError, PriorCall, PriorCalls, PriorProgress, PriorUse, ResumeDecision};
pub use registry::{RegisteredTool, Registry, RegistryError, RegistryIdentity, ToolLookup};
pub use router::{ResultHint, StructuredCall, StructuredOutput, ToolRouter, truncate_result};
pub use schema_cost::{CheckCost, SchemaTooDeep, check_schema_depth};
pub use schema_type::{SchemaField, SchemaObject, SchemaType, ToolTypes};
pub use scope::{
    Scope, ScopeLimits, ScopeNotes, ScopeResources, ScopeSnapshot, ScriptSource, SuspendPolicy,
};
pub use search::ToolSearch;
pub use tasks::{RecordedTask, TaskContext, TaskQuery, TaskSet};
pub use tool::{
    CallContext, CallFuture, CallWarnings, FieldCase, PlanReader, Tool, ToolError, ToolOutput,
    UnconfinedRetry, image_parts, parse_args, spec_of, typed_call,
};
pub use tool_cache::ToolCache;
pub use typescript::{declarations, signature};
