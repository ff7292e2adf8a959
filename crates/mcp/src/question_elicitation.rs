//! Converts questions of runs (approval requests, forms of other servers) to elicitation requests
//! for the client, and the client's results to answers.

use rmcp::model::{ElicitRequest, ElicitRequestParams, ElicitationCapability};
use selvedge_protocol::{
    ApprovalRequest, ApprovalResponse, CallDecision, GatedCall, PreviewContent,
};
use selvedge_script::{QuestionAnswer, RunQuestion, RunQuestionKind};
use selvedge_text::{truncate_chars, visible_exact, visible_line};
use serde_json::{Value, json};

/// Choices of the approval form.
const ANSWER_ONCE: &str = "yes, once";
const ANSWER_THIS_SCRIPT: &str = "yes, for this script";
const ANSWER_ALWAYS: &str = "yes, always";
const ANSWER_NO: &str = "no";

/// Longest preview of one call in an approval form, in characters.
const MAX_PREVIEW_CHARS: usize = 700;
/// Longest explanation of the script's author in an approval form, in characters.
const MAX_CONTEXT_CHARS: usize = 200;
/// Longest description of one call in an approval form, in characters.
const MAX_CALL_CHARS: usize = 1200;
/// Length that the descriptions of all calls in an approval form share, in characters.
const MAX_MESSAGE_CHARS: usize = 6000;

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
        RunQuestionKind::Form { from, form } => {
            let mut form = form.clone();
            let message = form["message"].as_str().unwrap_or_default().to_owned();
            form["message"] = Value::from(format!("The server {from} asks: {message}"));
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
            Some(ANSWER_THIS_SCRIPT) => CallDecision::ThisScript,
            Some(ANSWER_ALWAYS) if can_approve_always(request) => CallDecision::Always,
            Some(ANSWER_NO) => {
                let why = content["reason"].as_str().filter(|why| !why.is_empty());
                CallDecision::Deny(why.map(str::to_owned))
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
        true => vec![ANSWER_ONCE, ANSWER_THIS_SCRIPT, ANSWER_ALWAYS, ANSWER_NO],
        false => vec![ANSWER_ONCE, ANSWER_THIS_SCRIPT, ANSWER_NO],
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
    let limit = MAX_CALL_CHARS.min(MAX_MESSAGE_CHARS / request.calls.len().max(1));
    for call in &request.calls {
        let described = describe_call(call);
        text.extend(described.chars().take(limit));
        if described.chars().nth(limit).is_some() {
            text.push_str("…\n");
        }
    }
    text
}

/// Truncates a long text in the middle, to about `limit` characters.
///
/// The end stays visible, because a malicious text would hide something there.
pub(crate) fn truncate_middle(text: &str, limit: usize) -> String {
    let length = text.chars().count();
    if length <= limit {
        return text.to_owned();
    }
    let half = limit / 2;
    let head: String = text.chars().take(half).collect();
    let tail: String = text.chars().skip(length - half).collect();
    format!(
        "{head}\n… {} characters omitted …\n{tail}",
        length - 2 * half
    )
}

fn describe_call(call: &GatedCall) -> String {
    let mut text = format!("{}: {}\n", call.tool, call.reason.replace('\n', " "));
    // Always, whatever the reason contains: the script may have supplied a part of it.
    let view = match &call.preview.view {
        Some(
            PreviewContent::Diff(view)
            | PreviewContent::Commands(view)
            | PreviewContent::Addresses(view),
        ) => Some(truncate_middle(&visible_exact(view), MAX_PREVIEW_CHARS)),
        _ => None,
    };
    text.extend(view.map(|view| view + "\n"));
    text.push_str(call.snippet.as_deref().unwrap_or_default());
    if let Some(context) = &call.context {
        text.push_str(&format!(
            "the model's words: {}\n",
            truncate_chars(&visible_line(context), MAX_CONTEXT_CHARS)
        ));
    }
    if let Some(rule) = &call.preview.rule {
        text.push_str(&format!("\"{ANSWER_ALWAYS}\" covers: {rule}\n"));
    }
    text
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
            preview: Preview {
                view: None,
                rule: rule.map(str::to_owned),
            },
        };
        let request = ApprovalRequest {
            id: "apr_1".into(),
            script_id: None,
            calls: vec![call.clone(), call],
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
            decision(None, accept(ANSWER_THIS_SCRIPT)),
            both(CallDecision::ThisScript)
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
                && message.contains("the model's words: tests"),
            "{message}"
        );
        assert_eq!(
            form["requestedSchema"]["properties"]["answer"]["enum"],
            json!([ANSWER_ONCE, ANSWER_THIS_SCRIPT, ANSWER_NO])
        );
    }

    #[test]
    fn the_command_is_shown_even_if_the_reason_contains_it() {
        let RunQuestionKind::Approval(mut request) = question(None).kind else {
            panic!()
        };
        request.calls[0].preview.view = Some(PreviewContent::Commands("npm\u{202e} test".into()));
        request.calls[0].reason = "runs `npm\u{202e} test`".into();
        let shown = approval_message(&request);
        assert!(shown.contains("\nnpm\\u{202e} test\n"), "{shown}");
    }

    #[test]
    fn the_end_of_a_long_command_and_every_call_are_shown() {
        let RunQuestionKind::Approval(mut request) = question(None).kind else {
            panic!()
        };
        let script = "echo 1\n".repeat(1000) + "rm -rf a";
        request.calls[0].preview.view = Some(PreviewContent::Commands(script));
        assert!(
            approval_message(&request).contains("rm -rf a\n"),
            "{}",
            approval_message(&request)
        );
        let last = GatedCall {
            reason: "runs `the last one`".into(),
            ..request.calls[1].clone()
        };
        request.calls = vec![request.calls[0].clone(); 31];
        request.calls.push(last);
        let shown = approval_message(&request);
        assert!(
            shown.contains("the last one") && shown.len() < 2 * MAX_MESSAGE_CHARS,
            "{shown}"
        );
    }
}
