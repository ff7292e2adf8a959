//! The interface between a script and the engine that runs it: [`Runtime`] starts a program,
//! [`Execution`] runs it from one await to the next, [`Host`] answers it.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::{GuestSnapshot, InterruptHandle};

/// Runs scripts. Each `start` gets a fresh realm, which is not used again.
pub trait Runtime: Send + Sync {
    /// Returns the id of the engine's build. A snapshot can only be restored by its own build.
    fn build_id(&self) -> &str;

    /// Loads the engine unless it is loaded. Called before a script's time limit begins.
    fn load(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Starts the program and runs it until it waits, finishes or fails.
    fn start<'a>(
        &'a self,
        program: GuestProgram<'a>,
        host: Box<dyn Host>,
    ) -> BoxFuture<'a, Result<StartedExecution, Fault>>;

    /// Restores a script from a snapshot, which another process may have taken, at the await where
    /// it was taken. `program` holds its limits; its source is in the snapshot. Fails with
    /// [`Fault::BuildMismatch`] if another build of the engine took the snapshot.
    fn restore<'a>(
        &'a self,
        snapshot: &'a GuestSnapshot,
        program: GuestProgram<'a>,
        host: Box<dyn Host>,
    ) -> BoxFuture<'a, Result<Box<dyn Execution>, Fault>>;
}

/// A started execution and its first [`GuestStep`].
pub type StartedExecution = (Box<dyn Execution>, GuestStep);

/// A script that awaits something.
pub trait Execution: Send {
    /// Settles the call `id`, or fires the timer `id`, and runs the script until it waits again.
    fn settle<'a>(
        &'a mut self,
        id: u32,
        settlement: Settlement<'a>,
    ) -> BoxFuture<'a, Result<GuestStep, Fault>>;

    /// Takes a snapshot of the script. The script can continue afterwards.
    fn snapshot(&mut self) -> Result<GuestSnapshot, Fault>;

    /// Returns the most heap that the script has used at one time, in bytes.
    fn heap_peak(&self) -> u64;
}

/// A program to run, and its limits.
#[derive(Debug, Clone)]
pub struct GuestProgram<'a> {
    /// JavaScript: an expression whose value is an async function without parameters.
    pub source: &'a str,
    /// Seed of `Math.random`.
    pub seed: u64,
    /// The most heap the script may use, in bytes.
    pub memory_limit: u64,
    /// The most stack the script may use, in bytes.
    pub stack_limit: u32,
    /// Deadline and cancellation of the script.
    pub interrupt: Arc<InterruptHandle>,
}

/// Answers a script's messages. The script is paused while a method runs, and its interrupt does
/// not stop the method.
pub trait Host: Send {
    /// Returns the time that the script sees, in milliseconds since the Unix epoch.
    fn now(&mut self) -> f64;

    /// Receives a message of the script on a named channel and returns the reply, if there is one.
    /// A reply that starts with `!` is thrown as an error, described in JSON.
    fn message<'a>(&'a mut self, channel: &'a str, text: &'a str) -> BoxFuture<'a, Option<String>>;

    /// Maps a position in [`GuestProgram::source`] to the text that the author wrote.
    fn locate(&mut self, compiled: Position) -> Option<Position>;
}

/// A position in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line, counted from one.
    pub line: u32,
    /// Column, counted from one.
    pub column: u32,
}

/// The result of running a script until it had nothing more to do.
#[derive(Debug)]
pub struct GuestStep {
    /// Requests that the script made meanwhile, in order.
    pub requests: Vec<GuestRequest>,
    /// Whether the script waits or has finished.
    pub state: GuestStepState,
}

/// A request of the script to its host.
#[derive(Debug)]
pub enum GuestRequest {
    /// Calls a function of the host.
    Call {
        /// Id with which [`Execution::settle`] answers the call.
        id: u32,
        /// Dotted name of the function.
        path: String,
        /// Arguments, as a JSON array.
        args: String,
        /// Position of the call in the compiled text, if it is known.
        at: Option<Position>,
    },
    /// Starts a timer.
    Sleep {
        /// Id with which [`Execution::settle`] fires the timer.
        id: u32,
        /// Time until it fires, in milliseconds.
        ms: f64,
    },
    /// Cancels a call or a timer: the script no longer uses its result.
    Cancel {
        /// Id of the call or timer.
        id: u32,
    },
}

/// Whether a script waits or has finished.
#[derive(Debug)]
pub enum GuestStepState {
    /// The script awaits something.
    Waiting,
    /// The script has finished.
    Finished(ScriptFinish),
}

/// How a script finished without being stopped.
#[derive(Debug)]
pub enum ScriptFinish {
    /// The script returned this JSON; `None` for `undefined`.
    Value(Option<String>),
    /// The script threw an error, described in JSON.
    Error(String),
    /// The engine cannot parse the script, so nothing ran. The error is described in JSON.
    Syntax(String),
    /// The script called `exit()`.
    Exit,
}

/// The answer that settles a call.
#[derive(Debug, Clone, Copy)]
pub enum Settlement<'a> {
    /// A value in JSON.
    Value(&'a str),
    /// An error described in JSON: `name`, `message` and further fields for the script.
    Error(&'a str),
}

/// Why a script was stopped or could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The deadline passed.
    #[error("the script ran past its deadline")]
    Deadline,
    /// The script was cancelled.
    #[error("the script was cancelled")]
    Cancelled,
    /// Memory ran out where the engine could not turn it into a catchable error.
    #[error("the script ran out of memory")]
    Memory,
    /// The stack ran out where the engine could not turn it into a catchable error.
    #[error("the script ran out of stack")]
    Stack,
    /// Another build of the engine made the snapshot.
    #[error("the snapshot was made by another build of the engine ({theirs}, this is {ours})")]
    BuildMismatch {
        /// The build that made the snapshot.
        theirs: String,
        /// The build of this engine.
        ours: String,
    },
    /// The engine or its host failed.
    #[error("the sandbox failed: {0}")]
    Engine(String),
}
