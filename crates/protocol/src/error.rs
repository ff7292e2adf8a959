//! What can go wrong with a script, as one list of codes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How far a script had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Detection, compilation and pre-flight: nothing ran.
    Parsing,
    /// The script was running.
    Executing,
    /// The script was over; its result was being put together.
    Finalizing,
}

macro_rules! error_codes {
    ($($(#[doc = $doc:literal])+ $code:ident, $retry:literal;)+) => {
        /// Every error a script, or a call inside it, can end with.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[doc = $doc])+ $code,)+
        }

        impl ErrorCode {
            /// All codes, in the order of the reference.
            pub const ALL: &[Self] = &[$(Self::$code,)+];

            /// The code as scripts and JSON spell it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$code => stringify!($code),)+ }
            }

            /// What it means, for the reference.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$code => concat!($($doc,)+).trim_ascii(),)+ }
            }

            /// Whether trying again, perhaps after a change, can help: `yes`, `maybe` or `no`.
            pub fn retry(self) -> &'static str {
                match self { $(Self::$code => $retry,)+ }
            }
        }
    };
}

error_codes! {
    /// The text is not TypeScript, or uses TypeScript that has no JavaScript equivalent here. The error has line and column.
    ScriptSyntaxError, "yes";
    /// The script was refused before it ran: too large, not UTF-8, a banned construct, a malformed block, or scripts are disabled.
    ScriptRejectedError, "yes";
    /// The script threw and nothing caught it. The name it threw is in `metadata.name`.
    ScriptRuntimeError, "yes";
    /// The script ran past its time limit. What its calls returned until then is in `partialResults`.
    ScriptTimeoutError, "maybe";
    /// The script reached its memory limit.
    ScriptMemoryError, "maybe";
    /// The script recursed too deeply.
    ScriptStackError, "maybe";
    /// Somebody stopped the script from outside.
    ScriptCancelledError, "maybe";
    /// The resumed run left calls whose outcome is unknown. The script must decide each one with `resume.repeat` or `resume.skip` before a call that may change something runs.
    OutcomeUnknownError, "no";
    /// A replay left what was recorded: the script, the engine or the recording is another.
    ReplayDivergenceError, "no";
    /// A person said no to this call.
    ApprovalDeniedError, "no";
    /// Nobody answered in time whether this call may run.
    ApprovalTimeoutError, "no";
    /// The tool ran and failed. Its own words are in the message.
    ToolExecutionError, "maybe";
    /// There is no tool of this name. `suggestions` holds the nearest ones.
    ToolNotFoundError, "yes";
    /// The arguments do not fit the tool's schema.
    ToolValidationError, "yes";
    /// The script made more calls than it may.
    ToolBudgetExceededError, "maybe";
    /// The call was stopped: the script ended, a race was decided, or somebody cancelled it.
    ToolAbortedError, "maybe";
    /// The script ended while a call was running, and the tool did not stop when asked.
    DetachedPromiseError, "maybe";
    /// The returned value cannot be written as JSON, or is too large. The message names the path.
    SerializationError, "yes";
    /// Selvedge itself failed. Tried again once by itself when no call had been dispatched.
    HarnessInternalError, "yes";
}

impl ErrorCode {
    /// Whether a caller may simply try again after changing something.
    pub fn is_retryable(self) -> bool {
        self.retry() == "yes"
    }

    /// The code spelled `text`.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The `error` of a script's output. Positions are those of the TypeScript as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScriptError {
    /// Which error.
    pub code: ErrorCode,
    /// One line that says what happened to what.
    pub message: String,
    /// How far the script had come.
    pub phase: Phase,
    /// Line, from one.
    pub line: Option<u32>,
    /// Column, from one.
    pub column: Option<u32>,
    /// The tool, where one was involved.
    pub tool_name: Option<String>,
    /// The call, where one was involved.
    pub call_id: Option<String>,
    /// At most ten frames of the script itself.
    pub stack: Option<String>,
    /// What the author may have meant, or should write instead.
    #[serde(default)]
    pub suggestions: Vec<String>,
    /// Facts that belong to this code.
    #[serde(default)]
    pub metadata: Map<String, Value>,
}

impl ScriptError {
    /// An error with nothing but a code, a message and a phase.
    pub fn new(code: ErrorCode, phase: Phase, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            phase,
            line: None,
            column: None,
            tool_name: None,
            call_id: None,
            stack: None,
            suggestions: Vec::new(),
            metadata: Map::new(),
        }
    }

    /// The same error at a position.
    pub fn at(mut self, line: u32, column: u32) -> Self {
        (self.line, self.column) = (Some(line), Some(column));
        self
    }

    /// The same error with one more suggestion.
    pub fn suggest(mut self, suggestion: impl Into<String>) -> Self {
        self.suggestions.push(suggestion.into());
        self
    }

    /// The same error with one more fact.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.metadata.insert(key.to_owned(), value.into());
        self
    }
}
