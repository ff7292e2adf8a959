//! Error codes of scripts and their calls, generated from the rows in `error_codes.rs`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Phase of a run in which an error occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Detection and compilation, and the check of tool calls. Nothing ran.
    Parsing,
    /// The type check. Nothing ran.
    Preflight,
    /// The script was running.
    Executing,
    /// The script had ended; its result was being serialised.
    Finalizing,
}

/// Whether a retry can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// A retry can help, after a change that the message names.
    Yes,
    /// Whether a retry helps depends on the cause.
    Maybe,
    /// A retry fails again.
    No,
}

impl std::fmt::Display for Retry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Yes => "yes",
            Self::Maybe => "maybe",
            Self::No => "no",
        })
    }
}

macro_rules! error_codes {
    ($($(#[doc = $doc:literal])+ $code:ident, $retry:ident;)+) => {
        /// Every error that a script, or a call in it, can end with.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[doc = $doc])+ $code,)+
        }

        impl ErrorCode {
            /// All codes, in the order of the reference.
            pub const ALL: &[Self] = &[$(Self::$code,)+];

            /// Returns the name used in scripts and JSON.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$code => stringify!($code),)+ }
            }

            /// Returns the doc comment as one line, for the reference.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$code => concat!($($doc,)+).trim_ascii(),)+ }
            }

            /// Returns whether a retry, perhaps after a change, can help.
            pub fn retry(self) -> Retry {
                match self { $(Self::$code => Retry::$retry,)+ }
            }
        }
    };
}

include!("error_codes.rs");

impl ErrorCode {
    /// Returns whether a caller may retry after a change.
    pub fn is_retryable(self) -> bool {
        self.retry() == Retry::Yes
    }

    /// Returns the code with this name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The `error` of a script's output. Positions refer to the TypeScript source as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScriptError {
    /// Code of the error.
    pub code: ErrorCode,
    /// One line that says what failed.
    pub message: String,
    /// Phase in which the error occurred.
    pub phase: Phase,
    /// Id of the script's run. Absent in a check, which has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script_id: Option<String>,
    /// Line in the script, 1-based.
    pub line: Option<u32>,
    /// Column in the line, 1-based.
    pub column: Option<u32>,
    /// Name of the tool, if the error is about one.
    pub tool_name: Option<String>,
    /// Id of the call, if the error is about one.
    pub call_id: Option<String>,
    /// At most ten stack frames, all of the script itself.
    pub stack: Option<String>,
    /// What the author may have meant, or can write instead.
    #[serde(default)]
    pub suggestions: Vec<String>,
    /// Further data, which depends on the code.
    #[serde(default)]
    pub metadata: Map<String, Value>,
}

impl ScriptError {
    /// Creates an error without a position or further data.
    pub fn new(code: ErrorCode, phase: Phase, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            phase,
            script_id: None,
            line: None,
            column: None,
            tool_name: None,
            call_id: None,
            stack: None,
            suggestions: Vec::new(),
            metadata: Map::new(),
        }
    }

    /// Sets the position, 1-based.
    pub fn at(mut self, line: u32, column: u32) -> Self {
        (self.line, self.column) = (Some(line), Some(column));
        self
    }

    /// Adds a suggestion.
    pub fn suggest(mut self, suggestion: impl Into<String>) -> Self {
        self.suggestions.push(suggestion.into());
        self
    }

    /// Adds a suggestion if there is one.
    pub fn suggest_if_some(mut self, suggestion: Option<String>) -> Self {
        self.suggestions.extend(suggestion);
        self
    }

    /// Adds an entry to `metadata`.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.metadata.insert(key.to_owned(), value.into());
        self
    }
}
