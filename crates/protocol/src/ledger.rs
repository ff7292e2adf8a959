//! The port through which runs and calls are written down, before and after they happen.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ApprovalRequest, CallRecord, ScriptToolCallOutput};

/// Writes down what is about to happen and what has happened. Whatever it has taken is safe from the death of this
/// process when the future of the write is done.
///
/// A write may have to wait for others, and its future may be dropped meanwhile. Once a future was polled, its write is
/// made all the same: in the order in which the futures were first polled, and before whatever is read afterwards.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// The key that digests of arguments are made with.
    fn digest_key(&self) -> [u8; 32];
    /// A script is about to run. A run that has begun already stays as it is.
    async fn begin(&self, run: RunStart<'_>) -> Result<(), LedgerError>;
    /// A call is about to be handed to its tool.
    async fn intend(&self, intent: Intent<'_>) -> Result<(), LedgerError>;
    /// A call is over, or never began.
    async fn settle(&self, settled: Settled<'_>) -> Result<(), LedgerError>;
    /// A person is asked.
    async fn ask(&self, run: &str, request: &ApprovalRequest) -> Result<(), LedgerError>;
    /// A person has answered, or will not; the answers in words, one per call.
    async fn answer(&self, request_id: &str, answers: &[String]) -> Result<(), LedgerError>;
    /// A script waits for nothing but people: this is all of it. It stands until something is written of the run again.
    async fn suspend(&self, run: &str, state: Vec<u8>) -> Result<(), LedgerError>;
    /// A script is about to go on from where it was suspended. Only one process may: the others get
    /// [`LedgerError::TakenOver`], now and for whatever else they write of it.
    async fn go_on(&self, run: &str) -> Result<(), LedgerError>;
    /// Whether somebody outside this process wants the run stopped. Asked now and then while it runs long.
    async fn is_to_stop(&self, _run: &str) -> bool {
        false
    }
    /// A script is over; the recording is what it was told from outside, to be replayed.
    async fn end(
        &self,
        output: &ScriptToolCallOutput,
        recording: Option<Vec<u8>>,
    ) -> Result<(), LedgerError>;
    /// A script is over that did nothing but compute. That it has begun was not written, or may not be written yet.
    async fn begin_and_end(
        &self,
        run: RunStart<'_>,
        output: &ScriptToolCallOutput,
        recording: Option<Vec<u8>>,
    ) -> Result<(), LedgerError> {
        self.begin(run).await?;
        self.end(output, recording).await
    }
}

/// Where the scripts of a session keep values for each other, as JSON. Writes are made as those of a [`Ledger`].
#[async_trait]
pub trait Shelf: Send + Sync {
    /// What is kept under a key.
    async fn get(&self, key: &str) -> Result<Option<String>, LedgerError>;
    /// Keeps these, all or none.
    async fn put(&self, values: BTreeMap<String, String>) -> Result<(), LedgerError>;
    /// Bytes of everything kept.
    async fn bytes(&self) -> Result<usize, LedgerError>;
}

/// A script that is about to run.
#[derive(Debug, Clone, Copy)]
pub struct RunStart<'a> {
    /// The run.
    pub id: &'a str,
    /// The script as written.
    pub source: &'a str,
    /// Where it runs.
    pub directory: &'a str,
    /// The session it belongs to.
    pub session: &'a str,
    /// Seed of `Math.random`.
    pub seed: &'a str,
    /// The run it resumes.
    pub resumes: Option<&'a str>,
    /// What whoever assembled the tools needs to assemble them again.
    pub setting: &'a str,
}

/// A call that is about to be handed to its tool.
#[derive(Debug, Clone, Copy)]
pub struct Intent<'a> {
    /// The run or turn it belongs to.
    pub run: &'a str,
    /// The call.
    pub id: &'a str,
    /// Canonical name of the tool.
    pub tool: &'a str,
    /// Its arguments, made canonical.
    pub args: &'a Value,
    /// Digest of tool and arguments.
    pub digest: &'a str,
    /// Whether it leaves the world as it was.
    pub read_only: bool,
    /// Line in the script, from one.
    pub line: Option<u32>,
    /// The call of the resumed run that this one repeats.
    pub origin: Option<&'a str>,
}

/// A call that is over, or never began.
#[derive(Debug, Clone, Copy)]
pub struct Settled<'a> {
    /// The run or turn it belongs to.
    pub run: &'a str,
    /// Its line in the ledger.
    pub record: &'a CallRecord,
    /// What it returned, where it did.
    pub value: Option<&'a Value>,
    /// What a model was shown of it, where that is not the value.
    pub shown: Option<&'a str>,
    /// What a run that resumes this one makes of the call.
    pub resume_as: ResumeAs,
    /// The arguments, if there was no intent.
    pub answered: Option<&'a Answered>,
}

/// What a recorded call means to a run that resumes its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResumeAs {
    /// It succeeded and changed something or cost money: its result answers an identical call.
    Answer,
    /// It failed, never ran, or only read: an identical call runs.
    Rerun,
    /// It may have changed something and its outcome is unknown: the script has to decide.
    Undecided,
}

impl ResumeAs {
    /// The word a ledger stores, the same as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Answer => "answer",
            Self::Rerun => "rerun",
            Self::Undecided => "undecided",
        }
    }
}

/// A call of which there is no intent, because it was answered without running, or is a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered {
    /// The call of the resumed run that it reuses or repeats.
    pub origin: Option<String>,
    /// Its arguments, made canonical.
    pub args: Value,
    /// Whether it leaves the world as it was.
    pub read_only: bool,
}

/// Why something could not be written down.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LedgerError {
    /// Another process goes on with the run: nothing more is done of it here.
    TakenOver,
    /// Another run has resumed the run that this one was to resume: nothing was done here.
    AlreadyResumed {
        /// From which.
        run: String,
        /// Which did.
        by: String,
    },
    /// It failed, and why, in one line.
    Failed(String),
}

impl std::fmt::Display for LedgerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TakenOver => f.write_str("another process goes on with the run"),
            Self::AlreadyResumed { run, by } => write!(f, "{run} was resumed by {by}"),
            Self::Failed(words) => f.write_str(words),
        }
    }
}

impl std::error::Error for LedgerError {}
