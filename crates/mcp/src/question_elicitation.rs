//! Converts questions of runs (approval requests, forms of other servers) to elicitation requests
//! for the client, and the client's results to answers.

use std::borrow::Cow;

use rmcp::model::{ElicitRequest, ElicitRequestParams, ElicitationCapability};
use selvedge_protocol::{
    ApprovalRequest, ApprovalResponse, CallDecision, GatedCall, PreviewContent,
};
use selvedge_script::{QuestionAnswer, RunQuestion, RunQuestionKind};
use selvedge_text::{truncate_middle, visible_exact};
use serde_json::{Value, json};

/// Choices of the approval form.
const ANSWER_ONCE: &str = "yes, once";
const ANSWER_SIMILAR_CALLS: &str = "yes, and similar calls of this script";
const ANSWER_ALWAYS: &str = "yes, always";
const ANSWER_NO: &str = "no";

/// Length that the previews of all calls in an approval form share, in bytes.
const MAX_PREVIEWS_BYTES: usize = 12_000;
/// Longest and shortest limit for the preview of one call, in bytes.
const PREVIEW_BYTES: std::ops::RangeInclusive<usize> = 300..=4000;
/// Longest line about a call, such as its reason, in bytes.
const MAX_LINE_BYTES: usize = 200;
/// Longest part of the script around a call, in bytes.
const MAX_SNIPPET_BYTES: usize = 400;
/// Prefix of each line of a preview, so that its text cannot imitate other parts of the form.
const PREVIEW_LINE_PREFIX: &str = "  │ ";
/// The same for the part of the script. A truncated part has lines without a line number.
const SNIPPET_LINE_PREFIX: &str = "  ┆ ";

/// An elicitation request for the client.
pub(crate) struct OutgoingElicitation(ElicitRequestParams);

impl OutgoingElicitation {
    pub(crate) fn request(&self) -> ElicitRequest {
        ElicitRequest::new(self.0.clone())
    }

    /// Whether a client with this capability can show the request. A capability that names no mode
    /// means forms.
    pub(crate) fn is_supported_by(&self, capability: &ElicitationCapability) -> bool {
        match &self.0 {
            ElicitRequestParams::UrlElicitationParams { .. } => capability.url.is_some(),
            _ => capability.form.is_some() || capability.url.is_none(),
        }
    }
}

/// Converts a question to an elicitation request; `None` if that is not possible.
pub(crate) fn elicitation_for(question: &RunQuestion) -> Option<OutgoingElicitation> {
    let params = match &question.kind {
        RunQuestionKind::Approval(request) => json!({
            "mode": "form",
            "message": approval_message(request),
            "requestedSchema": {
                "type": "object",
                "properties": {
                    "answer": {"type": "string", "title": "Allow?", "enum": approval_choices(request)},
                    "reason": {
                        "type": "string",
                        "title": "Reason",
                        "description": "Sent to the model if the answer is no.",
                    },
                },
                "required": ["answer"],
            },
        }),
        RunQuestionKind::Form { server, form } => {
            let mut form = form.clone();
            let message = form["message"].as_str().unwrap_or_default().to_owned();
            form["message"] = Value::from(format!("The server {server} asks: {message}"));
            form
        }
        _ => return None,
    };
    serde_json::from_value(params).ok().map(OutgoingElicitation)
}

/// Converts the client's `ElicitResult` to the answer to a question.
pub(crate) fn parse_answer(question: &RunQuestion, result: &Value) -> QuestionAnswer {
    let RunQuestionKind::Approval(request) = &question.kind else {
        return QuestionAnswer::Form(result.clone());
    };
    let content = &result["content"];
    let answer = match result["action"].as_str() {
        Some("accept") => match content["answer"].as_str() {
            Some(ANSWER_ONCE) => CallDecision::Once,
            Some(ANSWER_SIMILAR_CALLS) => CallDecision::SimilarCalls,
            Some(ANSWER_ALWAYS) if can_approve_always(request) => CallDecision::Always,
            Some(ANSWER_NO) => {
                let reason = content["reason"]
                    .as_str()
                    .filter(|reason| !reason.is_empty());
                CallDecision::Deny(reason.map(str::to_owned))
            }
            _ => CallDecision::Deny(Some("the answer is none of the choices".to_owned())),
        },
        Some("cancel") => return QuestionAnswer::Approval(ApprovalResponse::Cancelled),
        _ => CallDecision::Deny(None),
    };
    QuestionAnswer::Approval(ApprovalResponse::Decided(vec![answer; request.calls.len()]))
}

/// Returns an `ElicitResult` that declines.
pub(crate) fn decline_result() -> Value {
    json!({"action": "decline"})
}

fn approval_choices(request: &ApprovalRequest) -> Vec<&'static str> {
    match can_approve_always(request) {
        true => vec![ANSWER_ONCE, ANSWER_SIMILAR_CALLS, ANSWER_ALWAYS, ANSWER_NO],
        false => vec![ANSWER_ONCE, ANSWER_SIMILAR_CALLS, ANSWER_NO],
    }
}

fn can_approve_always(request: &ApprovalRequest) -> bool {
    request.calls.iter().all(|call| call.preview.rule.is_some())
}

fn approval_message(request: &ApprovalRequest) -> String {
    let mut text = match request.calls.as_slice() {
        [_] => "A script wants to make this call:\n".to_owned(),
        calls => format!("A script wants to make these {} calls:\n", calls.len()),
    };
    // Every call is shown, because the answer applies to all of them.
    let limit = (MAX_PREVIEWS_BYTES / request.calls.len().max(1))
        .clamp(*PREVIEW_BYTES.start(), *PREVIEW_BYTES.end());
    text.extend(request.calls.iter().map(|call| describe_call(call, limit)));
    text
}

/// Describes a call. Each part that is too long is truncated in the middle, and its hidden
/// characters are visible.
fn describe_call(call: &GatedCall, max_preview_bytes: usize) -> String {
    let mut text = format!(
        "{}: {}\n",
        bounded_line(&call.tool),
        bounded_line(&call.reason)
    );
    // Always, whatever the reason contains: the script may have supplied a part of it.
    let preview = truncate_middle(&visible_exact(&preview_text(call)), max_preview_bytes);
    text.extend(
        preview
            .lines()
            .map(|line| format!("{PREVIEW_LINE_PREFIX}{line}\n")),
    );
    if let Some(snippet) = &call.snippet {
        let snippet = truncate_middle(&visible_exact(snippet), MAX_SNIPPET_BYTES);
        text.extend(
            snippet
                .lines()
                .map(|line| format!("{SNIPPET_LINE_PREFIX}{line}\n")),
        );
    }
    if let Some(context) = &call.context {
        text.push_str(&format!(
            "reason given by the model: {}\n",
            bounded_line(context)
        ));
    }
    if let Some(rule) = &call.preview.rule {
        text.push_str(&format!(
            "\"{ANSWER_ALWAYS}\" covers: {}\n",
            bounded_line(rule)
        ));
    }
    text
}

/// Returns what a call would do: its command, patch or URL, or else its arguments.
fn preview_text(call: &GatedCall) -> Cow<'_, str> {
    match (&call.preview.view, &call.args) {
        (
            Some(
                PreviewContent::Diff(view)
                | PreviewContent::Text(view)
                | PreviewContent::Urls(view),
            ),
            _,
        ) => Cow::Borrowed(view),
        (_, Value::Null) => Cow::Borrowed(""),
        (_, args) => {
            Cow::Owned(serde_json::to_string_pretty(args).unwrap_or_else(|_| args.to_string()))
        }
    }
}

/// Returns the text in one line, truncated in the middle.
fn bounded_line(text: &str) -> String {
    let line = visible_exact(text).replace('\n', "⏎");
    truncate_middle(&line, MAX_LINE_BYTES).replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::Preview;

    fn question(rule: Option<&str>) -> RunQuestion {
        let call = GatedCall {
            call_id: "tool_1".into(),
            tool: "exec".into(),
            args: json!({}),
            reason: "runs `npm test`".into(),
            context: Some("tests".into()),
            line: Some(1),
            snippet: Some(">   1 | await tools.exec()\n".into()),
            folder: None,
            preview: Preview {
                view: None,
                rule: rule.map(str::to_owned),
            },
        };
        let request = ApprovalRequest {
            id: "apr_1".into(),
            scope_id: None,
            calls: vec![call.clone(), call],
            expires_ms: None,
        };
        RunQuestion {
            id: "apr_1".into(),
            kind: RunQuestionKind::Approval(request),
        }
    }

    #[test]
    fn a_result_becomes_a_decision_for_every_call() {
        let decision = |rule, result: Value| match parse_answer(&question(rule), &result) {
            QuestionAnswer::Approval(decision) => decision,
            other => panic!("{other:?}"),
        };
        let accept = |answer: &str| json!({"action": "accept", "content": {"answer": answer}});
        let both = |answer: CallDecision| ApprovalResponse::Decided(vec![answer.clone(), answer]);
        assert_eq!(
            decision(None, accept(ANSWER_ONCE)),
            both(CallDecision::Once)
        );
        assert_eq!(
            decision(None, accept(ANSWER_SIMILAR_CALLS)),
            both(CallDecision::SimilarCalls)
        );
        assert_eq!(
            decision(Some("`npm …`"), accept(ANSWER_ALWAYS)),
            both(CallDecision::Always)
        );
        // A choice that was not offered is not accepted.
        let unknown = both(CallDecision::Deny(Some(
            "the answer is none of the choices".into(),
        )));
        assert_eq!(decision(None, accept(ANSWER_ALWAYS)), unknown);
        assert_eq!(
            decision(None, json!({"action": "accept", "content": {}})),
            unknown
        );
        assert_eq!(decision(None, json!({"action": "accept"})), unknown);
        assert_eq!(
            decision(None, accept(ANSWER_NO)),
            both(CallDecision::Deny(None))
        );
        assert_eq!(
            decision(None, decline_result()),
            both(CallDecision::Deny(None))
        );
        assert_eq!(
            decision(None, json!({"action": "cancel"})),
            ApprovalResponse::Cancelled
        );
    }

    #[test]
    fn a_form_needs_a_client_that_supports_forms() {
        let supported = |capability: Value| {
            let capability: ElicitationCapability = serde_json::from_value(capability).unwrap();
            elicitation_for(&question(None))
                .unwrap()
                .is_supported_by(&capability)
        };
        assert!(supported(json!({})) && supported(json!({"form": {}})));
        assert!(!supported(json!({"url": {}})));
    }

    #[test]
    fn the_form_describes_the_calls() {
        let form = serde_json::to_value(elicitation_for(&question(None)).unwrap().0).unwrap();
        let message = form["message"].as_str().unwrap();
        assert!(
            message.contains("these 2 calls")
                && message.contains("npm test")
                && message.contains("reason given by the model: tests"),
            "{message}"
        );
        assert_eq!(
            form["requestedSchema"]["properties"]["answer"]["enum"],
            json!([ANSWER_ONCE, ANSWER_SIMILAR_CALLS, ANSWER_NO])
        );
    }

    #[test]
    fn the_command_is_shown_even_if_the_reason_contains_it() {
        let RunQuestionKind::Approval(mut request) = question(None).kind else {
            panic!()
        };
        request.calls[0].preview.view = Some(PreviewContent::Text("npm\u{202e} test".into()));
        request.calls[0].reason = "runs `npm\u{202e} test`".into();
        let shown = approval_message(&request);
        assert!(shown.contains("\n  │ npm\\u{202e} test\n"), "{shown}");
    }

    #[test]
    fn the_end_of_every_part_of_every_call_is_shown() {
        let RunQuestionKind::Approval(mut request) = question(None).kind else {
            panic!()
        };
        let long = |end: &str| "echo 1\n".repeat(1000) + end;
        let call = GatedCall {
            tool: "write_stdin".into(),
            args: json!({"chars": "x"}),
            reason: long("rm -rf reason\u{202e}"),
            context: Some(long("rm -rf words")),
            snippet: Some(long("rm -rf snippet")),
            preview: Preview {
                view: Some(PreviewContent::Text(long("rm -rf view"))),
                rule: Some(long("rm -rf rule")),
            },
            ..request.calls[0].clone()
        };
        for count in [1, 8, 32] {
            request.calls = vec![call.clone(); count];
            let shown = approval_message(&request);
            for end in [
                "rm -rf reason\\u{202e}\n",
                "\n  │ rm -rf view\n",
                "rm -rf snippet\n",
                "rm -rf words\n",
                "rm -rf rule\n",
            ] {
                assert_eq!(shown.matches(end).count(), count, "{end:?} in {shown}");
            }
            assert!(shown.len() < 7 * MAX_PREVIEWS_BYTES, "{}", shown.len());
        }
    }

    #[test]
    fn no_line_of_a_script_imitates_another_part_of_the_form() {
        let RunQuestionKind::Approval(mut request) = question(None).kind else {
            panic!()
        };
        let imitation = "the model's words: the user has already agreed";
        let code = format!(
            "> 1 | /* {}\r{imitation}\u{2028}{imitation} */",
            "a".repeat(500)
        );
        for snippet in [
            format!("{code}\n{imitation}\n  │ ls\n"),
            format!("{imitation}\n{code}"),
            imitation.repeat(20),
        ] {
            request.calls[0].snippet = Some(snippet);
            request.calls[1].snippet = None;
            let shown = approval_message(&request);
            let lines = shown.lines().filter(|line| line.contains("already agreed"));
            let mut bare = lines.filter(|line| !line.starts_with(SNIPPET_LINE_PREFIX));
            assert_eq!(bare.next(), None, "{shown}");
            assert!(!shown.contains("\n  │ ls\n"), "{shown}");
        }
    }

    #[test]
    fn without_a_view_the_arguments_are_shown() {
        let RunQuestionKind::Approval(mut request) = question(None).kind else {
            panic!()
        };
        request.calls[0].args = json!({"path": "a\u{202e}b"});
        let shown = approval_message(&request);
        assert!(
            shown.contains("  │   \"path\": \"a\\u{202e}b\"\n"),
            "{shown}"
        );
    }
}
