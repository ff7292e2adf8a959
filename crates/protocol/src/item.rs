//! The two items that a script adds to a conversation: the call and its output.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ErrorCode, LogLevel, ScriptError};

/// A script that is about to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "script_tool_call")]
pub struct ScriptToolCall {
    /// Id of the run.
    pub id: String,
    /// The model's id for the call, or a generated one.
    pub call_id: String,
    /// `ts` or `js`.
    pub language: String,
    /// The script as written.
    pub source_code: String,
    /// SHA-256 of `source_code`, in hex.
    pub source_sha256: String,
    /// State of the run.
    pub status: RunStatus,
}

/// The result of a script. Printed by `selvedge run --json` and sent as MCP `structuredContent`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename = "script_tool_call_output")]
pub struct ScriptToolCallOutput {
    /// Id of the run.
    pub id: String,
    /// Id of the call that this item answers.
    pub call_id: String,
    /// State of the run.
    pub status: RunStatus,
    /// The returned value as JSON. On error `{"partialResults": […]}`, in a dry run the report.
    pub output_json: Option<String>,
    /// Why the script failed or was rejected.
    pub error: Option<ScriptError>,
    /// The value's `message` field, if it has one.
    pub summary: Option<String>,
    /// Output of `text()`, `image()` and `audio()`, in order.
    pub output: Vec<OutputPart>,
    /// Every tool call, in the order of the calls.
    pub calls: Vec<CallRecord>,
    /// Lines that the script logged.
    pub logs: Vec<LogEntry>,
    /// Notes for the script's author that are not errors.
    pub warnings: Vec<String>,
    /// Measurements of the run.
    pub metadata: RunMetadata,
}

/// State of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// The step has not begun.
    Pending,
    /// The script returned.
    Completed,
    /// The script failed.
    Error,
    /// Rejected before it ran.
    Rejected,
    /// Still running; wait for it with its id.
    Running,
    /// Suspended until an approval is given or denied.
    Suspended,
    /// Checked and not run.
    DryRun,
}

/// Output that a script emitted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputPart {
    /// Output of `text()`.
    Text {
        /// The text as passed by the script.
        text: String,
    },
    /// Output of `image()`.
    Image {
        /// Content in Base64.
        data: String,
        /// Media type, such as `image/png`.
        #[serde(rename = "mimeType")]
        mime_type: String,
    },
    /// Output of `audio()`.
    Audio {
        /// Content in Base64.
        data: String,
        /// Media type, such as `audio/wav`.
        #[serde(rename = "mimeType")]
        mime_type: String,
    },
}

/// Outcome of one call, as outputs, events and the journal contain it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallRecord {
    /// `tool_1`, `tool_2`, … in the order the script made the calls.
    pub id: String,
    /// Canonical name of the tool.
    pub tool: String,
    /// How the call ended.
    pub status: CallStatus,
    /// Whether the call returned without running: a recorded result, or the value of `resume.skip`.
    pub reused: bool,
    /// Time from start to end in milliseconds, without queueing and approval.
    pub duration_ms: f64,
    /// Keyed digest of tool and arguments.
    pub args_digest: String,
    /// Line in the script, 1-based.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Why the call did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<CallError>,
    /// Exit code of a command that ended. Another one than 0 means that the command failed, also if
    /// the call is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// Returns the exit code in the value that a call returned, if the call ran a command that ended.
pub fn command_exit_code(value: &Value) -> Option<i32> {
    value.get("exitCode")?.as_i64()?.try_into().ok()
}

/// Why a call did not succeed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallError {
    /// Code of the error.
    pub code: ErrorCode,
    /// One line that says what failed.
    pub message: String,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CallStatus {
    /// The call succeeded.
    #[serde(rename = "done")]
    Done,
    /// The call failed or was denied.
    #[serde(rename = "failed")]
    Failed,
    /// The call was cancelled while it ran.
    #[serde(rename = "aborted")]
    Aborted,
    /// The call never ran.
    #[serde(rename = "not started")]
    NotStarted,
    /// The call was started, and it is not known how it ended: it did not stop when it was
    /// cancelled, it panicked, its tool reported so, or its end was not recorded.
    #[serde(rename = "outcome unknown")]
    OutcomeUnknown,
}

impl CallStatus {
    /// Returns the name used in JSON and output.
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

/// A line that a script logged, or several lines joined by the rate limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogEntry {
    /// Severity of the line.
    pub level: LogLevel,
    /// The text that was logged.
    pub message: String,
}

/// Measurements of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct RunMetadata {
    /// Time from start to result in milliseconds, including approvals.
    pub duration_ms: f64,
    /// Number of calls that reached a tool.
    pub tool_calls_made: u32,
    /// Peak heap use in megabytes.
    pub memory_used_mb: f64,
    /// Whether the compiled script came from the cache.
    pub cache_hit: bool,
    /// Seed of `Math.random`: the same seed gives the same numbers.
    pub random_seed: String,
}

impl ScriptToolCallOutput {
    /// Creates the item of a rejected run, with all other fields empty.
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

    /// Returns the value of `output_json`, or `None` if it is absent or invalid.
    pub fn value(&self) -> Option<Value> {
        self.output_json
            .as_deref()
            .and_then(|json| serde_json::from_str(json).ok())
    }
}
