//! What an MCP server serves, and what its clients may do.

use std::time::Duration;

use futures_util::future::BoxFuture;
use selvedge_script::{Harness, LiveRuns, ResumeInput, ScriptContext, StoreBudget};
use selvedge_tools::Registry;

use crate::open_sessions::OpenSessions;
use crate::servers::Servers;

/// A request of a session to resume a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeRequest {
    /// Id of the run.
    pub run: String,
    /// Id of the session that sent the request.
    pub session: String,
}

/// Why a run cannot be resumed, for the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ResumeRequestError(pub String);

/// Returns the input of a script that resumes a run. Fails if the run cannot be resumed. A run that
/// the session may not use is reported like one that does not exist.
pub type ResumeInputFn = dyn Fn(ResumeRequest) -> BoxFuture<'static, Result<ResumeInput, ResumeRequestError>>
    + Send
    + Sync;

/// Whether clients answer the approval requests of their scripts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientApprovals {
    /// Clients are asked, if they support elicitation.
    Asked,
    /// Calls that need approval are denied.
    Denied {
        /// Why, for the script.
        reason: String,
    },
}

/// What a [`ScriptServerSession`](crate::ScriptServerSession) serves, shared by the sessions of all
/// clients.
pub struct ScriptServerConfig {
    /// Runs the scripts. Its tools are replaced by `tools` and those of `servers`.
    pub harness: Harness,
    /// The tools that are not from MCP servers.
    pub tools: Registry,
    /// The MCP servers whose tools scripts can call.
    pub servers: Servers,
    /// The runs in progress.
    pub live_runs: LiveRuns,
    /// The sessions that have not ended.
    pub open_sessions: OpenSessions,
    /// What the sessions may store together.
    pub store_budget: StoreBudget,
    /// Whether clients approve calls. Replaces the approver of the harness.
    pub approvals: ClientApprovals,
    /// The `context` of scripts.
    pub context: ScriptContext,
    /// Configuration that is stored with each run, to restore it in another process.
    pub saved_config: String,
    /// Returns the input of a script that resumes a run.
    pub resume_input: Box<ResumeInputFn>,
    /// Returns how often a tool was called before. Tools that are used often are described first.
    pub use_count: Box<dyn Fn(&str) -> u64 + Send + Sync>,
    /// How long a request waits for a script before it returns a handle, by default.
    pub default_yield_after: Duration,
    /// Maximum number of tokens of the description of `script`.
    pub description_tokens: usize,
}
