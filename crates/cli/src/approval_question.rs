//! What an approval question shows and offers: the same in the chat and in plain lines.
//!
//! The command, patch or URL is shown completely, in a block of its own, with every hidden
//! character made visible. Text that the script supplies about a call is bounded, and labelled as
//! the model's.

use std::borrow::Cow;

use selvedge_protocol::{ApprovalRequest, CallDecision, GatedCall, PreviewContent};
use selvedge_text::{truncate_chars, visible_exact, visible_line};
use serde_json::Value;

/// Characters of a reason that are shown.
const MAX_REASON_CHARS: usize = 300;
/// Characters of the model's explanation of a call that are shown.
const MAX_STATED_REASON_CHARS: usize = 400;

/// An option of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApprovalOption {
    Once,
    AllLaterCalls,
    UntilExit,
    AlwaysInFolder,
    Always,
    Deny,
    /// Deny, with a reason that is typed next.
    DenyWithReason,
    /// Decide about each call separately.
    EachCall,
}

impl ApprovalOption {
    /// Returns the decision of an option that needs no further input.
    pub(crate) fn decision(self) -> Option<CallDecision> {
        match self {
            Self::Once => Some(CallDecision::Once),
            Self::AllLaterCalls => Some(CallDecision::AllLaterCalls),
            Self::UntilExit => Some(CallDecision::UntilExit),
            Self::AlwaysInFolder => Some(CallDecision::AlwaysInFolder),
            Self::Always => Some(CallDecision::Always),
            Self::Deny => Some(CallDecision::Deny(None)),
            Self::DenyWithReason | Self::EachCall => None,
        }
    }
}

/// Whether one answer covers all calls of a request, or each call gets its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApprovalAnswerMode {
    Together,
    OneByOne,
}

/// Where a question is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuestionSurface {
    Chat,
    /// In plain lines, while a script runs.
    Lines,
}

/// Returns the options for these calls of a request, each with its label. A label says how many
/// calls the answer covers and how long it lasts.
pub(crate) fn approval_options(
    request: &ApprovalRequest,
    calls: &[GatedCall],
    mode: ApprovalAnswerMode,
    surface: QuestionSurface,
) -> Vec<(String, ApprovalOption)> {
    let these = match calls.len() {
        1 => "this call".to_owned(),
        count => format!("these {count} calls"),
    };
    let scope = scope_name(request);
    let mut options = vec![
        (format!("Approve {these}, once"), ApprovalOption::Once),
        (
            format!("Approve {these} and every later call of this {scope}"),
            ApprovalOption::AllLaterCalls,
        ),
    ];
    if let Some(rules) = always_rules(calls) {
        let lasting = [
            ("until this chat ends", ApprovalOption::UntilExit),
            ("always in this folder", ApprovalOption::AlwaysInFolder),
            ("always, in every folder", ApprovalOption::Always),
        ];
        // A script ends with its process: a rule for the process would add nothing.
        let offered = lasting.into_iter().filter(|(_, option)| {
            surface == QuestionSurface::Chat || *option != ApprovalOption::UntilExit
        });
        options.extend(offered.map(|(time, option)| (format!("Approve {rules} {time}"), option)));
    }
    options.push(("Deny".to_owned(), ApprovalOption::Deny));
    options.push((
        "Deny, with a reason for the model".to_owned(),
        ApprovalOption::DenyWithReason,
    ));
    if mode == ApprovalAnswerMode::Together && calls.len() > 1 {
        options.push((
            "Decide about each call separately".to_owned(),
            ApprovalOption::EachCall,
        ));
    }
    options
}

/// Returns the name of what asks: a script, or a turn with its structured calls.
pub(crate) fn scope_name(request: &ApprovalRequest) -> &'static str {
    match is_from_script(request) {
        true => "script",
        false => "turn",
    }
}

/// Whether a script asks, rather than structured calls of a turn.
pub(crate) fn is_from_script(request: &ApprovalRequest) -> bool {
    let id = request.scope_id.as_deref();
    id.is_some_and(|id| id.starts_with("scr_"))
}

/// Returns the rules that "always" would save, or `None` if not every call has one.
fn always_rules(calls: &[GatedCall]) -> Option<String> {
    let mut rules: Vec<&str> = calls
        .iter()
        .filter_map(|call| call.preview.rule.as_deref())
        .collect();
    let all = rules.len() == calls.len() && !rules.is_empty();
    rules.dedup();
    all.then(|| visible_exact(&rules.join(", ")).replace('\n', "⏎"))
}

/// Returns the heading of a question about these calls.
pub(crate) fn heading(calls: &[GatedCall]) -> String {
    match calls {
        [_] => "approval needed:".to_owned(),
        calls => format!("approval needed for {} calls:", calls.len()),
    }
}

/// Returns the tool and the reason for asking, each in one line, so that text from a script cannot
/// imitate a question.
pub(crate) fn tool_and_reason(call: &GatedCall) -> (String, String) {
    let reason = visible_line(&call.reason);
    (
        visible_line(&call.tool).into_owned(),
        truncate_chars(&reason, MAX_REASON_CHARS).into_owned(),
    )
}

/// What a call would do, as the lines of a block. All hidden characters are visible.
#[derive(Debug, PartialEq)]
pub(crate) enum CallBlock {
    Diff(String),
    Text(String),
}

/// Returns what a call would do: its command, patch or URL, or else its arguments. `None` if there
/// is nothing to show.
pub(crate) fn call_block(call: &GatedCall) -> Option<CallBlock> {
    let shown = |text: &str| visible_exact(text).into_owned();
    match (&call.preview.view, &call.args) {
        (Some(PreviewContent::Diff(diff)), _) => Some(CallBlock::Diff(shown(diff))),
        (Some(PreviewContent::Text(text) | PreviewContent::Urls(text)), _) => {
            Some(CallBlock::Text(shown(text)))
        }
        // The preview is not possible, for example because a patch does not apply.
        (_, Value::Null) => None,
        (_, args) => Some(CallBlock::Text(shown(
            &serde_json::to_string_pretty(args).unwrap_or_else(|_| args.to_string()),
        ))),
    }
}

/// Returns the model's own explanation of a call, labelled, in one bounded line.
pub(crate) fn stated_reason(call: &GatedCall) -> Option<String> {
    let reason = call.context.as_deref()?;
    let reason = visible_exact(reason).replace('\n', "⏎");
    let reason: Cow<'_, str> = truncate_chars(&reason, MAX_STATED_REASON_CHARS);
    Some(format!("reason given by the model: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::Preview;

    pub(super) fn call(view: Option<PreviewContent>, rule: Option<&str>) -> GatedCall {
        GatedCall {
            call_id: "tool_1".into(),
            tool: "exec".into(),
            args: serde_json::json!({"command": ["x"]}),
            reason: "runs `npm test`".into(),
            context: None,
            line: Some(1),
            snippet: None,
            folder: None,
            preview: Preview {
                view,
                rule: rule.map(str::to_owned),
            },
        }
    }

    fn labels(calls: &[GatedCall], script: &str, mode: ApprovalAnswerMode) -> Vec<String> {
        let request = ApprovalRequest {
            id: "apr_1".into(),
            scope_id: Some(script.into()),
            calls: calls.to_vec(),
            expires_ms: None,
        };
        let options = approval_options(&request, calls, mode, QuestionSurface::Chat);
        options.into_iter().map(|(label, _)| label).collect()
    }

    #[test]
    fn the_labels_say_what_an_answer_covers_and_how_long_it_lasts() {
        let with_rule = call(None, Some("`npm test …`"));
        assert_eq!(
            labels(
                std::slice::from_ref(&with_rule),
                "scr_1",
                ApprovalAnswerMode::Together
            ),
            [
                "Approve this call, once",
                "Approve this call and every later call of this script",
                "Approve `npm test …` until this chat ends",
                "Approve `npm test …` always in this folder",
                "Approve `npm test …` always, in every folder",
                "Deny",
                "Deny, with a reason for the model"
            ]
        );
        assert_eq!(
            labels(
                &[with_rule, call(None, None)],
                "trn_1",
                ApprovalAnswerMode::Together
            ),
            [
                "Approve these 2 calls, once",
                "Approve these 2 calls and every later call of this turn",
                "Deny",
                "Deny, with a reason for the model",
                "Decide about each call separately"
            ]
        );
    }

    #[test]
    fn the_block_is_complete_whatever_the_reason_says() {
        let command = "echo 1\n".repeat(5000) + "rm -rf\u{202e} a";
        let mut call = call(Some(PreviewContent::Text(command.clone())), None);
        call.reason.clone_from(&command);
        call.context = Some(format!("harmless\n{command}"));
        let Some(CallBlock::Text(shown)) = call_block(&call) else {
            panic!()
        };
        assert_eq!(shown, command.replace('\u{202e}', "\\u{202e}"));
        assert!(tool_and_reason(&call).1.chars().count() <= MAX_REASON_CHARS + 1);
        let words = stated_reason(&call).unwrap();
        assert!(
            words.starts_with("reason given by the model: harmless⏎echo 1⏎") && words.len() < 2000
        );
        // Without a preview, the arguments are shown.
        call.preview.view = None;
        assert_eq!(
            call_block(&call),
            Some(CallBlock::Text(
                "{\n  \"command\": [\n    \"x\"\n  ]\n}".into()
            ))
        );
    }
}
