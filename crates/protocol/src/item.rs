//! The two items a script leaves in a conversation: the call and its output.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ErrorCode, LogLevel, ScriptError};

/// A script the model wants to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "script_tool_call")]
pub struct ScriptToolCall {
    /// The run.
    pub id: String,
    /// The model's own name for the call, or one made up.
    pub call_id: String,
    /// `ts` or `js`.
    pub language: String,
    /// The script as written.
    pub source_code: String,
    /// SHA-256 of `source_code`, in hex.
    pub source_sha256: String,
    /// Where it stands.
    pub status: RunStatus,
}

/// What a script came to. Printed by `selvedge run --json` and sent as MCP `structuredContent`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename = "script_tool_call_output")]
pub struct ScriptToolCallOutput {
    /// The run.
    pub id: String,
    /// The call this answers.
    pub call_id: String,
    /// How it ended, or that it has not.
    pub status: RunStatus,
    /// The returned value as JSON; on error `{"partialResults": […]}`; in a dry run the report.
    pub output_json: Option<String>,
    /// What went wrong.
    pub error: Option<ScriptError>,
    /// The value's `message` field, when it has one.
    pub summary: Option<String>,
    /// What `text()`, `image()` and `audio()` emitted, in order.
    pub output: Vec<OutputPart>,
    /// Every tool call, in the order they were made.
    pub calls: Vec<CallRecord>,
    /// What the script logged.
    pub logs: Vec<LogEntry>,
    /// What the author should know although nothing failed.
    pub warnings: Vec<String>,
    /// Numbers.
    pub metadata: RunMetadata,
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Not started.
    Pending,
    /// It returned.
    Completed,
    /// It failed.
    Error,
    /// Refused before it ran.
    Rejected,
    /// Still going; ask again with its id.
    Running,
    /// Stored away until a person answers.
    Suspended,
    /// Only checked.
    DryRun,
}

/// Something a script showed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputPart {
    /// From `text()`.
    Text {
        /// As given.
        text: String,
    },
    /// From `image()`.
    Image {
        /// Base64.
        data: String,
        /// Such as `image/png`.
        #[serde(rename = "mimeType")]
        mime_type: String,
    },
    /// From `audio()`.
    Audio {
        /// Base64.
        data: String,
        /// Such as `audio/wav`.
        #[serde(rename = "mimeType")]
        mime_type: String,
    },
}

/// One line of the ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallRecord {
    /// `tool_1`, `tool_2`, … in the order the script made them.
    pub id: String,
    /// Canonical name.
    pub tool: String,
    /// What became of it.
    pub status: CallStatus,
    /// Whether it was answered from an earlier run.
    pub reused: bool,
    /// From its start, queueing and questions left out, to its end.
    pub duration_ms: f64,
    /// Digest of tool and arguments.
    pub args_digest: String,
    /// Line in the script, from one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Why it did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<CallError>,
}

/// Why a call did not succeed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallError {
    /// Which error.
    pub code: ErrorCode,
    /// In one line.
    pub message: String,
}

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CallStatus {
    /// It succeeded.
    #[serde(rename = "done")]
    Done,
    /// It failed, was denied, or was refused.
    #[serde(rename = "failed")]
    Failed,
    /// It was stopped while it ran.
    #[serde(rename = "aborted")]
    Aborted,
    /// It never ran.
    #[serde(rename = "not started")]
    NotStarted,
    /// It was started, and nobody knows how it ended.
    #[serde(rename = "outcome unknown")]
    OutcomeUnknown,
}

impl CallStatus {
    /// The status in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
            Self::NotStarted => "not started",
            Self::OutcomeUnknown => "outcome unknown",
        }
    }
}

/// A line, or several joined, that a script logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogEntry {
    /// How serious.
    pub level: LogLevel,
    /// What was logged.
    pub message: String,
}

/// Numbers about a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct RunMetadata {
    /// From start to result, questions to people included.
    pub duration_ms: f64,
    /// Calls that were dispatched to a tool.
    pub tool_calls_made: u32,
    /// The most heap in use, in megabytes.
    pub memory_used_mb: f64,
    /// Whether the compiled script was at hand.
    pub cache_hit: bool,
    /// Seed of `Math.random`: the same seed gives the same numbers.
    pub random_seed: String,
}

impl ScriptToolCallOutput {
    /// The item of a run of which nothing is known yet.
    pub fn new(id: impl Into<String>, call_id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            call_id: call_id.into(),
            status: RunStatus::Rejected,
            output_json: None,
            error: None,
            summary: None,
            output: Vec::new(),
            calls: Vec::new(),
            logs: Vec::new(),
            warnings: Vec::new(),
            metadata: RunMetadata::default(),
        }
    }

    /// The returned value.
    pub fn value(&self) -> Option<Value> {
        self.output_json
            .as_deref()
            .and_then(|json| serde_json::from_str(json).ok())
    }
}
