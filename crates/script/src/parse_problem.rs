//! Reasons for which a script is not parsed, and their errors.

use selvedge_protocol::{ErrorCode, Phase, ScriptError};

/// Why a script is not parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParseProblem {
    /// The parser could take too long.
    Ambiguous,
    /// The meaning of too many slashes is ambiguous.
    Slashes,
    /// Brackets are nested too deeply.
    Nested,
    /// A name contains `\u`.
    EscapeInName,
    /// A backslash stands outside of strings and regular expressions.
    Backslash,
    /// A line starts with the marker of a merge conflict.
    ConflictMarker,
    /// A line starts with an HTML comment.
    HtmlComment,
}

impl ParseProblem {
    /// Returns the error, without a position.
    pub(crate) fn to_error(self) -> ScriptError {
        let rejected = |message: &str| {
            ScriptError::new(ErrorCode::ScriptRejectedError, Phase::Parsing, message)
        };
        let too_complex = |what: &str| {
            rejected(&format!("the script is too complex: {what}"))
                .suggest("split it into more statements with fewer levels")
        };
        match self {
            Self::Ambiguous => {
                too_complex("ambiguous constructs such as `<` and `(` contain each other")
            }
            Self::Slashes => too_complex("the meaning of too many slashes is ambiguous"),
            Self::Nested => too_complex("brackets are nested more than 256 deep"),
            Self::EscapeInName => rejected("`\\u` escapes in names are not supported")
                .suggest("write the character itself"),
            Self::Backslash => ScriptError::new(
                ErrorCode::ScriptSyntaxError,
                Phase::Parsing,
                "a backslash outside of a string",
            )
            .suggest("write ` without the backslash"),
            Self::ConflictMarker => rejected("a line starts with the marker of a merge conflict")
                .suggest("remove the marker"),
            Self::HtmlComment => {
                rejected("HTML comments cannot be used").suggest("start the comment with `//`")
            }
        }
    }
}
