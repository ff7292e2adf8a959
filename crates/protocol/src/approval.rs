//! Approvals: policies, requests and decisions.

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
    /// Change no files.
    ReadOnly,
    /// Write the workspace and temporary folders; no network.
    #[default]
    WorkspaceWrite,
    /// Change anything, without a sandbox.
    DangerFullAccess,
}

/// A request to approve all calls of a batch that need approval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// Id of the request, `apr_…`.
    pub id: String,
    /// Id of the run, turn or task that makes the calls.
    pub scope_id: Option<String>,
    /// Calls that need approval, in order.
    pub calls: Vec<GatedCall>,
    /// When the calls are denied without a decision, in milliseconds since 1970. `None` if the
    /// request has no time limit, and in events and the journal, where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<i64>,
}

/// A call that needs approval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatedCall {
    /// Id of the call.
    pub call_id: String,
    /// Canonical name of the tool.
    pub tool: String,
    /// Arguments of the call in canonical form.
    pub args: Value,
    /// Why the call needs approval, in a few words.
    pub reason: String,
    /// The explanation of the script's author, in `approvalContext` and `justification`. It is not
    /// part of the call: the approval question shows it separately.
    pub context: Option<String>,
    /// Line of the call in the script, 1-based.
    pub line: Option<u32>,
    /// Lines of the script around the call.
    pub snippet: Option<String>,
    /// Folder outside of the workspace that the call gives access to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// What the call would do.
    pub preview: Preview,
}

/// What an approver is shown of a call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Preview {
    /// What the call would do. `None` if the tool cannot tell in advance.
    pub view: Option<PreviewContent>,
    /// What the decision "always" would allow from now on. `None` if "always" is not offered.
    pub rule: Option<String>,
}

/// What a call would do, as text for an approver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PreviewContent {
    /// Changes to files, as a unified diff.
    Diff(String),
    /// The commands it would run, without quoting, one per line, or what it would send.
    Text(String),
    /// The URLs it would request, one per line, and what it would send.
    Urls(String),
}

/// An approver's decision about one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallDecision {
    /// Approve this call.
    Once,
    /// Approve this call and equivalent calls of the same script. The tool decides what is
    /// equivalent.
    SimilarCalls,
    /// Approve this call and every later call of the same script that would need approval.
    AllLaterCalls,
    /// Approve this call and, until this process ends, everything that [`Preview::rule`]
    /// describes.
    UntilExit,
    /// Approve this call and, from now on in this folder, everything that [`Preview::rule`]
    /// describes.
    AlwaysInFolder,
    /// Approve this call and, from now on in every folder, everything that [`Preview::rule`]
    /// describes.
    Always,
    /// Deny the call, with an optional reason for the model.
    Deny(Option<String>),
}

/// How long and where a rule applies that an approval adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleScope {
    /// Until this process ends.
    Process,
    /// From now on, in the folder of the workspace.
    Folder,
    /// From now on, in every folder.
    Everywhere,
}

/// An approver's response to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalResponse {
    /// One decision per call, in order.
    Decided(Vec<CallDecision>),
    /// The approver cancelled the request.
    Cancelled,
    /// No approver is available. The text says why.
    Unavailable(String),
    /// The decision follows later, perhaps in another process. The run is suspended until then; if
    /// it cannot be suspended, its calls are denied.
    Deferred,
}
