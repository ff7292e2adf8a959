//! The optional first line `// @exec: {…}` with wishes for the run.

use selvedge_protocol::{ErrorCode, Phase, ScriptError};
use serde::Deserialize;

/// What a script may wish for itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pragma {
    /// Hand back a handle after this many milliseconds.
    pub yield_time_ms: Option<u64>,
    /// Show the model at most this many tokens of the result.
    pub max_output_tokens: Option<u64>,
    /// Time limit in milliseconds, up to the configured maximum.
    pub timeout_ms: Option<u64>,
    /// The run this one resumes.
    pub resume: Option<String>,
}

impl Pragma {
    /// Reads the first line that is not blank, if it is a pragma.
    pub fn read(source: &str) -> Result<Option<Self>, ScriptError> {
        let line = source
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default();
        let Some(json) = line.trim_start().strip_prefix("// @exec:") else {
            return Ok(None);
        };
        let refuse = |why: String| {
            ScriptError::new(
                ErrorCode::ScriptRejectedError,
                Phase::Parsing,
                format!("the `// @exec:` line cannot be read: {why}"),
            )
            .at(1, 1)
            .suggest(r#"// @exec: {"yield_time_ms": 10000, "max_output_tokens": 5000}"#)
        };
        let pragma: Self =
            serde_json::from_str(json.trim()).map_err(|error| refuse(error.to_string()))?;
        const LARGEST: u64 = (1 << 53) - 1;
        let numbers = [
            pragma.yield_time_ms,
            pragma.max_output_tokens,
            pragma.timeout_ms,
        ];
        if numbers.into_iter().flatten().any(|number| number > LARGEST) {
            return Err(refuse(format!("numbers go up to {LARGEST}")));
        }
        Ok(Some(pragma))
    }
}
