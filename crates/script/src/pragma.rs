//! The optional first line `// @exec: {…}`, with options for the run.

use selvedge_protocol::{ErrorCode, LimitKind, Phase, ScriptError};
use selvedge_tools::snake_case;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Options that a script sets for its own run. Fields are accepted in snake_case and in camelCase.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pragma {
    /// Time after which the caller may stop waiting and let the run continue, in milliseconds.
    #[serde(alias = "yieldTimeMs")]
    pub yield_time_ms: Option<u64>,
    /// Maximum number of tokens of the result that the model sees.
    #[serde(alias = "maxOutputTokens")]
    pub max_output_tokens: Option<u64>,
    /// Time limit in milliseconds, at most the configured maximum.
    #[serde(alias = "timeoutMs")]
    pub timeout_ms: Option<u64>,
    /// Id of the run that this one resumes.
    pub resume: Option<String>,
}

impl Pragma {
    /// Parses the first line that is not blank. Returns `None` if it is not a pragma.
    pub fn parse(source: &str) -> Result<Option<Self>, ScriptError> {
        let line = source
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default();
        let Some(json) = line.trim_start().strip_prefix("// @exec:") else {
            return Ok(None);
        };
        let invalid = |reason: String| {
            ScriptError::new(
                ErrorCode::ScriptRejectedError,
                Phase::Parsing,
                format!("the `// @exec:` line is invalid: {reason}"),
            )
            .at(1, 1)
            .suggest(r#"use only these fields: // @exec: {"timeout_ms": 60000, "yield_time_ms": 10000, "max_output_tokens": 5000, "resume": "scr_…"}"#)
        };
        let pragma: Self = serde_json::from_str(json.trim()).map_err(|error| {
            // Without the list of all fields and the position in the line.
            let reason = error.to_string();
            let reason = reason.split(", expected").next().unwrap_or(&reason);
            let mut error = invalid(reason.to_owned());
            if let Some(hint) = limit_flag_hint(json) {
                error.suggestions = vec![hint];
            }
            error
        })?;
        const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;
        let numbers = [
            pragma.yield_time_ms,
            pragma.max_output_tokens,
            pragma.timeout_ms,
        ];
        let mut numbers = numbers.into_iter().flatten();
        if numbers.any(|number| number > MAX_SAFE_INTEGER) {
            return Err(invalid(format!(
                "numbers must be at most {MAX_SAFE_INTEGER}"
            )));
        }
        Ok(Some(pragma))
    }
}

/// Returns the hint for a pragma with a limit that only a flag can set.
fn limit_flag_hint(json: &str) -> Option<String> {
    let fields: Map<String, Value> = serde_json::from_str(json.trim()).ok()?;
    fields.iter().find_map(|(name, value)| {
        let kind = LimitKind::from_key(&snake_case(name))?;
        let unit = match kind {
            LimitKind::Memory => "MB",
            LimitKind::Calls | LimitKind::FileCalls => "",
            _ => return None,
        };
        let flag = kind.flag()?;
        Some(format!(
            "remove `{name}`, and pass {flag} {}{unit} to `selvedge`",
            value.as_u64()?
        ))
    })
}

/// Returns the id of the run that a script resumes: `argument`, which the caller passed beside the
/// script, or else that of the pragma. An empty id counts as none.
pub fn named_run_to_resume(argument: Option<String>, source: &str) -> Option<String> {
    let in_source = || Pragma::parse(source).ok().flatten()?.resume;
    let named = |run: &String| !run.is_empty();
    argument.filter(named).or_else(in_source).filter(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_wins_over_the_pragma_and_an_empty_id_names_no_run() {
        let named = "// @exec: {\"resume\": \"scr_a\"}\nreturn 1";
        let empty = "// @exec: {\"resume\": \"\"}\nreturn 1";
        for (argument, source, expected) in [
            (None, named, Some("scr_a")),
            (Some("scr_b"), named, Some("scr_b")),
            (Some(""), named, Some("scr_a")),
            (Some(""), "return 1", None),
            (None, empty, None),
        ] {
            let run = named_run_to_resume(argument.map(str::to_owned), source);
            assert_eq!(run.as_deref(), expected, "{argument:?}, {source}");
        }
    }
}
