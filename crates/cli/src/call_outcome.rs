//! How a call ended: the mark and the words that every view shows.

use selvedge_journal::{StoredCall, StoredCallState};
use selvedge_protocol::{CallError, CallRecord, CallStatus, ErrorCode, command_exit_code};

/// Whether an outcome is good news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutcomeTone {
    Good,
    Bad,
    Neutral,
}

impl OutcomeTone {
    /// Returns the parameter of the escape sequence for the colour.
    pub(crate) fn colour_code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Bad => "31",
            Self::Neutral => "2",
        }
    }
}

/// The outcome of a call, as a mark and words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallOutcomeLabel {
    pub(crate) mark: &'static str,
    pub(crate) tone: OutcomeTone,
    /// The outcome without its reason: `denied`, `exit 1`, `reused`; empty for a call that is done.
    pub(crate) words: String,
    /// Why the call failed, if `words` do not say it.
    pub(crate) reason: Option<String>,
}

impl CallOutcomeLabel {
    /// Describes a call that ended. `result_failure` says what went wrong in a call that is done;
    /// without it, the exit code does.
    pub(crate) fn of_record(call: &CallRecord, result_failure: Option<&str>) -> Self {
        Self::new(
            call.status,
            call.reused,
            call.error.as_ref(),
            result_failure
                .map(str::to_owned)
                .or_else(|| call.exit_code.and_then(exit_failure)),
        )
    }

    /// Describes a call of the journal.
    pub(crate) fn of_stored(call: &StoredCall) -> Self {
        match call.state {
            StoredCallState::Running => Self {
                mark: "·",
                tone: OutcomeTone::Neutral,
                words: call.state.as_str().to_owned(),
                reason: None,
            },
            StoredCallState::Ended(status) => Self::new(
                status,
                call.reused,
                call.error.as_ref(),
                call.value.as_ref().and_then(command_failure),
            ),
        }
    }

    fn new(
        status: CallStatus,
        reused: bool,
        error: Option<&CallError>,
        result_failure: Option<String>,
    ) -> Self {
        let (mark, tone) = match status {
            CallStatus::Done if result_failure.is_some() => ("✗", OutcomeTone::Bad),
            CallStatus::Done if reused => ("↺", OutcomeTone::Good),
            CallStatus::Done => ("✓", OutcomeTone::Good),
            CallStatus::Failed => ("✗", OutcomeTone::Bad),
            CallStatus::Aborted | CallStatus::NotStarted => ("–", OutcomeTone::Neutral),
            CallStatus::OutcomeUnknown => ("!", OutcomeTone::Bad),
        };
        let (words, reason) = match (status, error) {
            (CallStatus::Done, _) => {
                let reused = reused.then(|| "reused".to_owned());
                (result_failure.or(reused).unwrap_or_default(), None)
            }
            (_, Some(error)) if error.code == ErrorCode::ApprovalDeniedError => {
                ("denied".to_owned(), denial_reason(&error.message))
            }
            (_, error) => {
                let reason = error.map(|error| error.message.clone());
                (status.as_str().to_owned(), reason)
            }
        };
        Self {
            mark,
            tone,
            words,
            reason,
        }
    }
}

/// Returns the reason in the message of a denial: `exec was denied: too risky`.
fn denial_reason(message: &str) -> Option<String> {
    match message.split_once(" was denied") {
        Some((_, "")) => None,
        Some((_, reason)) => Some(reason.trim_start_matches(": ").to_owned()),
        None => Some(message.to_owned()),
    }
}

/// Returns how a command failed, from the value that `exec` returned.
fn command_failure(value: &serde_json::Value) -> Option<String> {
    if value["timedOut"] == true {
        return Some("stopped at its time limit".to_owned());
    }
    command_exit_code(value).and_then(exit_failure)
}

fn exit_failure(code: i32) -> Option<String> {
    (code != 0).then(|| format!("exit {code}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(status: CallStatus, error: Option<(ErrorCode, &str)>) -> (&'static str, String) {
        let error = error.map(|(code, message)| CallError {
            code,
            message: message.to_owned(),
        });
        let label = CallOutcomeLabel::new(status, false, error.as_ref(), None);
        let reason = label.reason.map(|reason| format!(": {reason}"));
        (label.mark, label.words + &reason.unwrap_or_default())
    }

    #[test]
    fn a_denied_call_says_so_and_why() {
        let denied = |text| {
            label(
                CallStatus::Failed,
                Some((ErrorCode::ApprovalDeniedError, text)),
            )
        };
        assert_eq!(denied("exec was denied"), ("✗", "denied".into()));
        assert_eq!(
            denied("exec was denied: too risky"),
            ("✗", "denied: too risky".into())
        );
        assert_eq!(
            denied("exec needs approval: x; no approver"),
            ("✗", "denied: exec needs approval: x; no approver".into())
        );
        let failed = Some((ErrorCode::ToolExecutionError, "no such file"));
        assert_eq!(
            label(CallStatus::Failed, failed),
            ("✗", "failed: no such file".into())
        );
    }

    #[test]
    fn the_value_of_a_command_says_how_it_failed() {
        let failure = |value| command_failure(&value);
        assert_eq!(failure(serde_json::json!({"exitCode": 0})), None);
        assert_eq!(
            failure(serde_json::json!({"exitCode": 2})).as_deref(),
            Some("exit 2")
        );
        assert_eq!(failure(serde_json::json!("text")), None);
    }
}
