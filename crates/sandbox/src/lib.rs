//! Runs one program in a fresh, hardened JavaScript realm, isolated by two layers.
//!
//! The first layer is the realm: every intrinsic is frozen, code cannot be created from strings,
//! and there is no access to files, network or processes. The second layer is WebAssembly: the
//! engine and the realm live in one linear memory, a copy-on-write copy of a snapshot taken at
//! build time. The memory is dropped with the script.
//!
//! A script exchanges calls, results and messages with its [`Host`], all as JSON text. This crate
//! does not interpret calls: it knows no tools.
//!
//! ```text
//! Runtime::start(program, host) ─► GuestStep { requests, state }
//! Execution::settle(id, …)      ─► GuestStep …    until the state is Finished
//! Execution::snapshot()         ─► GuestSnapshot
//! Runtime::restore(snapshot, …) ─► Execution      in the same or another process
//! ```
// The standard streams belong to the embedding program.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod budget;
mod code;
mod deferred_drop;
mod engine;
mod execution;
mod interrupt;
mod runtime;
mod snapshot;
mod ticker;

pub use budget::{MemoryBudget, total_memory_bytes};
pub use engine::{EngineSettings, LazyWasmRuntime, WasmRuntime};
pub use interrupt::InterruptHandle;
pub use runtime::{
    Execution, Fault, GuestProgram, GuestRequest, GuestStep, GuestStepState, Host, Position,
    Runtime, ScriptFinish, Settlement, StartedExecution,
};
pub use snapshot::GuestSnapshot;
