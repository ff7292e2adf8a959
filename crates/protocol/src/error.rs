//! Error codes of scripts and their calls. The rows are in `error_codes.rs`.

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

/// Whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// It can, after a change the message names.
    Yes,
    /// It depends on the cause.
    Maybe,
    /// It cannot.
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

            /// Whether trying again, perhaps after a change, can help.
            pub fn retry(self) -> Retry {
                match self { $(Self::$code => Retry::$retry,)+ }
            }
        }
    };
}

include!("error_codes.rs");

impl ErrorCode {
    /// Whether a caller may simply try again after changing something.
    pub fn is_retryable(self) -> bool {
        self.retry() == Retry::Yes
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
