//! Runs one program in one fresh, hardened JavaScript realm behind two walls.
//!
//! Wall one is the realm: every intrinsic frozen, no code from strings, no ambient power. Wall two is
//! WebAssembly: the engine and the realm live in one linear memory, which is a copy-on-write copy of a
//! snapshot taken at build time and is gone when the script is.
//!
//! A script talks to its [`Host`] in calls, results and messages, all of them JSON text. What a call
//! means is not known here.
//!
//! ```text
//! Runtime::start(program, host) ─► Pump { requests, state }
//!                 Execution::settle(id, outcome) ─► Pump …   until state is Finished
//!                 Execution::snapshot() ─► Image    Runtime::restore(image, …) ─► Execution, elsewhere
//! ```
// Standard streams belong to whoever runs this.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod budget;
mod code;
mod engine;
mod execution;
mod image;
mod leash;
mod leaving;
mod runtime;
mod ticker;

pub use budget::{MemoryBudget, machine_memory};
pub use engine::{OnFirstUse, Settings, Wasm};
pub use image::Image;
pub use leash::Leash;
pub use runtime::{
    Execution, Fault, Finish, Host, Outcome, Position, Program, Pump, Request, Runtime, Started,
    State,
};
