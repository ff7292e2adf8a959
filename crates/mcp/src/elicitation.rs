//! Elicitation as an MCP server: converts approval requests and forms to elicitation requests for
//! the client, and the client's results to replies.

use rmcp::model::{ElicitRequest, ElicitRequestParams, ElicitationCapability};
use selvedge_protocol::{Answer, ApprovalDecision, ApprovalRequest, GatedCall, View};
use selvedge_script::{Question, QuestionKind, Reply};
use serde_json::{Value, json};

/// Choices of the approval form.
const ONCE: &str = "yes, once";
const THIS_SCRIPT: &str = "yes, for this script";
const ALWAYS: &str = "yes, always";
const NO: &str = "no";

/// Longest preview of one call in an approval form, in characters.
const MAX_VIEW: usize = 700;
/// Longest description of one call in an approval form, in characters.
const MAX_CALL: usize = 1200;
/// Length that the descriptions of all calls in an approval form share, in characters.
const MAX_QUESTION: usize = 6000;

/// An elicitation request for the client.
pub(crate) struct Form(ElicitRequestParams);

impl Form {
    pub(crate) fn request(&self) -> ElicitRequest {
        ElicitRequest::new(self.0.clone())
    }

    /// Whether a client with this capability can show the request. A capability that names no mode
    /// means forms.
    pub(crate) fn can_be_shown(&self, capability: &ElicitationCapability) -> bool {
        match &self.0 {
            ElicitRequestParams::UrlElicitationParams { .. } => capability.url.is_some(),
            _ => capability.form.is_some() || capability.url.is_none(),
        }
    }
}

/// Converts a question to an elicitation request; `None` if it has no such form.
pub(crate) fn form(question: &Question) -> Option<Form> {
    let params = match &question.kind {
        QuestionKind::Approval(request) => json!({
            "mode": "form",
            "message": words(request),
            "requestedSchema": {
                "type": "object",
                "properties": {
                    "answer": {"type": "string", "title": "Allow?", "enum": choices(request)},
                    "reason": {
                        "type": "string",
                        "title": "Reason",
                        "description": "Sent to the model if the answer is no.",
                    },
                },
                "required": ["answer"],
            },
        }),
        QuestionKind::Form { from, form } => {
            let mut form = form.clone();
            let message = form["message"].as_str().unwrap_or_default().to_owned();
            form["message"] = Value::from(format!("The server {from} asks: {message}"));
            form
        }
        _ => return None,
    };
    serde_json::from_value(params).ok().map(Form)
}

/// Converts the client's `ElicitResult` to a reply.
pub(crate) fn reply(question: &Question, result: &Value) -> Reply {
    let QuestionKind::Approval(request) = &question.kind else {
        return Reply::Form(result.clone());
    };
    let content = &result["content"];
    let answer = match result["action"].as_str() {
        Some("accept") => match content["answer"].as_str() {
            Some(ONCE) => Answer::Once,
            Some(THIS_SCRIPT) => Answer::ThisScript,
            Some(ALWAYS) if may_be_always(request) => Answer::Always,
            Some(NO) => {
                let why = content["reason"].as_str().filter(|why| !why.is_empty());
                Answer::No(why.map(str::to_owned))
            }
            _ => Answer::No(Some("the answer is none of the choices".to_owned())),
        },
        Some("cancel") => return Reply::Approval(ApprovalDecision::Cancelled),
        _ => Answer::No(None),
    };
    Reply::Approval(ApprovalDecision::Answered(vec![
        answer;
        request.calls.len()
    ]))
}

/// Returns an `ElicitResult` that declines.
pub(crate) fn declined() -> Value {
    json!({"action": "decline"})
}

fn choices(request: &ApprovalRequest) -> Vec<&'static str> {
    match may_be_always(request) {
        true => vec![ONCE, THIS_SCRIPT, ALWAYS, NO],
        false => vec![ONCE, THIS_SCRIPT, NO],
    }
}

fn may_be_always(request: &ApprovalRequest) -> bool {
    request.calls.iter().all(|call| call.preview.rule.is_some())
}

fn words(request: &ApprovalRequest) -> String {
    let mut text = match request.calls.as_slice() {
        [_] => "A script wants to make this call:\n".to_owned(),
        calls => format!("A script wants to make these {} calls:\n", calls.len()),
    };
    // Every call is shown, because the answer applies to all of them.
    let limit = MAX_CALL.min(MAX_QUESTION / request.calls.len().max(1));
    for call in &request.calls {
        let described = describe(call);
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
pub(crate) fn both_ends(text: &str, limit: usize) -> String {
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

fn describe(call: &GatedCall) -> String {
    let mut text = format!("{}: {}\n", call.tool, call.reason.replace('\n', " "));
    let view = match &call.preview.view {
        Some(View::Commands(view)) if call.reason.contains(view.as_str()) => None,
        Some(View::Diff(view) | View::Commands(view)) => Some(both_ends(view, MAX_VIEW)),
        _ => None,
    };
    text.extend(view.map(|view| view + "\n"));
    text.push_str(call.snippet.as_deref().unwrap_or_default());
    if let Some(context) = &call.context {
        text.push_str(&format!(
            "reason given by the script: {}\n",
            context.replace('\n', " ")
        ));
    }
    if let Some(rule) = &call.preview.rule {
        text.push_str(&format!("\"{ALWAYS}\" covers: {rule}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::Preview;

    fn question(rule: Option<&str>) -> Question {
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
        Question {
            id: "apr_1".into(),
            kind: QuestionKind::Approval(request),
        }
    }

    #[test]
    fn a_result_becomes_a_decision_for_every_call() {
        let decision = |rule, result: Value| match reply(&question(rule), &result) {
            Reply::Approval(decision) => decision,
            other => panic!("{other:?}"),
        };
        let accept = |answer: &str| json!({"action": "accept", "content": {"answer": answer}});
        let both = |answer: Answer| ApprovalDecision::Answered(vec![answer.clone(), answer]);
        assert_eq!(decision(None, accept(ONCE)), both(Answer::Once));
        assert_eq!(
            decision(None, accept(THIS_SCRIPT)),
            both(Answer::ThisScript)
        );
        assert_eq!(
            decision(Some("`npm …`"), accept(ALWAYS)),
            both(Answer::Always)
        );
        // A choice that was not offered is not accepted.
        let unknown = both(Answer::No(Some("the answer is none of the choices".into())));
        assert_eq!(decision(None, accept(ALWAYS)), unknown);
        assert_eq!(
            decision(None, json!({"action": "accept", "content": {}})),
            unknown
        );
        assert_eq!(decision(None, json!({"action": "accept"})), unknown);
        assert_eq!(decision(None, accept(NO)), both(Answer::No(None)));
        assert_eq!(decision(None, declined()), both(Answer::No(None)));
        assert_eq!(
            decision(None, json!({"action": "cancel"})),
            ApprovalDecision::Cancelled
        );
    }

    #[test]
    fn a_form_needs_a_client_that_supports_forms() {
        let supported = |capability: Value| {
            let capability: ElicitationCapability = serde_json::from_value(capability).unwrap();
            form(&question(None)).unwrap().can_be_shown(&capability)
        };
        assert!(supported(json!({})) && supported(json!({"form": {}})));
        assert!(!supported(json!({"url": {}})));
    }

    #[test]
    fn the_form_describes_the_calls() {
        let form = serde_json::to_value(form(&question(None)).unwrap().0).unwrap();
        let message = form["message"].as_str().unwrap();
        assert!(
            message.contains("these 2 calls")
                && message.contains("npm test")
                && message.contains("reason given by the script: tests"),
            "{message}"
        );
        assert_eq!(
            form["requestedSchema"]["properties"]["answer"]["enum"],
            json!([ONCE, THIS_SCRIPT, NO])
        );
    }

    #[test]
    fn the_end_of_a_long_command_and_every_call_are_shown() {
        let QuestionKind::Approval(mut request) = question(None).kind else {
            panic!()
        };
        let script = "echo 1\n".repeat(1000) + "rm -rf a";
        request.calls[0].preview.view = Some(View::Commands(script));
        assert!(
            words(&request).contains("rm -rf a\n"),
            "{}",
            words(&request)
        );
        let last = GatedCall {
            reason: "runs `the last one`".into(),
            ..request.calls[1].clone()
        };
        request.calls = vec![request.calls[0].clone(); 31];
        request.calls.push(last);
        let shown = words(&request);
        assert!(
            shown.contains("the last one") && shown.len() < 2 * MAX_QUESTION,
            "{shown}"
        );
    }
}
