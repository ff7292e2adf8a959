//! Asking a person: what is asked, and what can be answered.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// When a person is asked before a call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalPolicy {
    /// Ask before every call that is not known to be harmless.
    Untrusted,
    /// Ask when a call needs more than the sandbox allows, and before dangerous calls.
    #[default]
    OnRequest,
    /// Run calls in the sandbox, and ask to run a call outside it after the sandbox blocked it.
    OnFailure,
    /// Never ask; deny anything that needs approval.
    Never,
}

/// What commands and tools may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxPolicy {
    /// Write nothing.
    ReadOnly,
    /// Write the workspace and temporary folders; no network.
    #[default]
    WorkspaceWrite,
    /// Change anything, without a sandbox.
    DangerFullAccess,
}

/// One question about all calls that wait for a person at the same await.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// Names the question.
    pub id: String,
    /// The script that asks, where one does.
    pub script_id: Option<String>,
    /// What wants to run, in order.
    pub calls: Vec<GatedCall>,
}

/// A call that waits for a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatedCall {
    /// The call.
    pub call_id: String,
    /// The tool's name.
    pub tool: String,
    /// Its arguments.
    pub args: Value,
    /// Why a person is asked.
    pub reason: String,
    /// What the author said about it in `approvalContext`.
    pub context: Option<String>,
    /// Line of the call in the script, from one.
    pub line: Option<u32>,
    /// The script's lines around the call.
    pub snippet: Option<String>,
    /// What it would do, where the tool can tell beforehand.
    pub preview: Preview,
}

/// What a person is shown of a call before agreeing to it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Preview {
    /// What it would do.
    pub view: Option<View>,
    /// What "always" would allow from now on, in words; `None` where "always" would be too much.
    pub rule: Option<String>,
}

/// What a call would do, for a person to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum View {
    /// Changes to files, as a unified diff.
    Diff(String),
    /// The commands it would run, taken out of their quotes, one per line.
    Commands(String),
    /// The addresses it would reach, one per line, and what it would send there.
    Addresses(String),
}

/// What a person decided about one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Run it this once.
    Once,
    /// Run it, and do not ask again in this script for the same, as its tool understands that.
    ThisScript,
    /// Run it, and never ask again for what [`Preview::rule`] says.
    Always,
    /// Do not run it. The words, if any, are for the model.
    No(Option<String>),
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalDecision {
    /// One answer per call, in order.
    Answered(Vec<Answer>),
    /// The person wants to answer nothing.
    Cancelled,
    /// Nobody can be asked here. The words say why.
    Unavailable(String),
    /// Somebody answers later, perhaps in another process: until then the script is put away. Where it cannot be,
    /// nobody can be asked.
    Later,
}
