//! The seam between a script and whatever engine runs it: [`Runtime`] starts a program, [`Execution`]
//! carries it from one await to the next.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::{Image, Leash};

/// A place to run scripts. Each `start` gets a realm nobody has used and nobody will use again.
pub trait Runtime: Send + Sync {
    /// Which build of the engine this is: an image means something to its own build alone.
    fn build(&self) -> &str;

    /// Makes sure that the engine is loaded. Called before a script's time begins.
    fn load(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Runs the program until it first waits, finishes or faults.
    fn start<'a>(
        &'a self,
        program: Program<'a>,
        host: Box<dyn Host>,
    ) -> BoxFuture<'a, Result<Started, Fault>>;

    /// Restores a script from a snapshot, perhaps of another process, at the await where it was taken. `program` holds its
    /// limits; its source is in the image. A snapshot of another build is [`Fault::Foreign`].
    fn restore<'a>(
        &'a self,
        image: &'a Image,
        program: Program<'a>,
        host: Box<dyn Host>,
    ) -> BoxFuture<'a, Result<Box<dyn Execution>, Fault>>;
}

/// An execution and its first [`Pump`].
pub type Started = (Box<dyn Execution>, Pump);

/// A script between two awaits.
pub trait Execution: Send {
    /// Answers the call (or fires the timer) `id` and runs until the script waits again.
    fn settle<'a>(
        &'a mut self,
        id: u32,
        outcome: Outcome<'a>,
    ) -> BoxFuture<'a, Result<Pump, Fault>>;

    /// A snapshot of the script, which can continue as before.
    fn snapshot(&mut self) -> Result<Image, Fault>;

    /// The most heap the script has had in use, in bytes.
    fn heap_peak(&self) -> u64;
}

/// What to run and how far it may go.
#[derive(Debug, Clone)]
pub struct Program<'a> {
    /// JavaScript: an expression whose value is an async function without parameters.
    pub source: &'a str,
    /// Seed of `Math.random`.
    pub seed: u64,
    /// Heap the script may use, in bytes.
    pub memory_limit: u64,
    /// Stack of the script, in bytes.
    pub stack_limit: u32,
    /// When to stop it.
    pub leash: Arc<Leash>,
}

/// The other side of a script: answers what it asks. The script stands still meanwhile, and its leash does not stop it.
pub trait Host: Send {
    /// Milliseconds since the Unix epoch, as the script shall see them.
    fn now(&mut self) -> f64;

    /// A word from the script on a named channel. A reply that starts with `!` is thrown as an error.
    fn message<'a>(&'a mut self, channel: &'a str, text: &'a str) -> BoxFuture<'a, Option<String>>;

    /// Where a position in [`Program::source`] stands in the text its author wrote.
    fn locate(&mut self, compiled: Position) -> Option<Position>;
}

/// A line and a column, both counted from one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line, from one.
    pub line: u32,
    /// Column, from one.
    pub column: u32,
}

/// What happened until the script had nothing more to do.
#[derive(Debug)]
pub struct Pump {
    /// What it asked for meanwhile, in order.
    pub requests: Vec<Request>,
    /// Whether it waits or is done.
    pub state: State,
}

/// Something the script wants done.
#[derive(Debug)]
pub enum Request {
    /// Call `path` with the arguments in `args` (a JSON array).
    Call {
        /// Answered with [`Execution::settle`].
        id: u32,
        /// Dotted name.
        path: String,
        /// A JSON array.
        args: String,
        /// Where in the compiled text the call stands.
        at: Option<Position>,
    },
    /// Settle `id` after some milliseconds.
    Sleep {
        /// The timer.
        id: u32,
        /// How long.
        ms: f64,
    },
    /// Nobody will look at `id` any more.
    Cancel {
        /// A call or a timer.
        id: u32,
    },
}

/// Waiting or finished.
#[derive(Debug)]
pub enum State {
    /// The script awaits something.
    Waiting,
    /// The script is over.
    Finished(Finish),
}

/// How a script ended of its own accord.
#[derive(Debug)]
pub enum Finish {
    /// It returned this JSON; `None` for `undefined`.
    Value(Option<String>),
    /// It threw; the error described in JSON.
    Error(String),
    /// The engine does not understand it; nothing ran. The error described in JSON.
    Syntax(String),
    /// It called `exit()`.
    Exit,
}

/// The answer to a call.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// A value in JSON.
    Value(&'a str),
    /// An error described in JSON: `name`, `message` and whatever else the script should see.
    Error(&'a str),
}

/// Why a script was stopped from outside.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The leash's deadline passed.
    #[error("the script ran past its deadline")]
    Deadline,
    /// The leash was cut.
    #[error("the script was cancelled")]
    Cancelled,
    /// Memory ran out where the engine could not turn it into a catchable error.
    #[error("the script ran out of memory")]
    Memory,
    /// The stack ran out where the engine could not turn it into a catchable error.
    #[error("the script ran out of stack")]
    Stack,
    /// The image is of another build of the engine.
    #[error("the snapshot was made by another build of the engine ({theirs}, this is {ours})")]
    Foreign {
        /// The build that made it.
        theirs: String,
        /// This build.
        ours: String,
    },
    /// The engine or its host failed.
    #[error("the sandbox failed: {0}")]
    Engine(String),
}
