//! Questions to a person, as forms an MCP client can show, and answers, as they come back.

use rmcp::model::{ElicitRequest, ElicitRequestParams, ElicitationCapability};
use selvedge_protocol::{Answer, ApprovalDecision, ApprovalRequest, GatedCall, View};
use selvedge_script::{Question, QuestionKind, Reply};
use serde_json::{Value, json};

/// What can be answered to whether calls may run.
const ONCE: &str = "yes, once";
const THIS_SCRIPT: &str = "yes, for this script";
const ALWAYS: &str = "yes, always";
const NO: &str = "no";

/// Characters of what one call would do, of the call, and of the whole question.
const MAX_VIEW: usize = 700;
const MAX_CALL: usize = 1200;
const MAX_QUESTION: usize = 6000;

/// A question as a form.
pub(crate) struct Form(ElicitRequestParams);

impl Form {
    pub(crate) fn request(&self) -> ElicitRequest {
        ElicitRequest::new(self.0.clone())
    }

    /// Whether a client can show it. One that does not say what it can shows forms.
    pub(crate) fn can_be_shown(&self, can: &ElicitationCapability) -> bool {
        match &self.0 {
            ElicitRequestParams::UrlElicitationParams { .. } => can.url.is_some(),
            _ => can.form.is_some() || can.url.is_none(),
        }
    }
}

/// The form for a question; `None` where it is none that can be shown.
pub(crate) fn form(question: &Question) -> Option<Form> {
    let params = match &question.kind {
        QuestionKind::Approval(request) => json!({
            "mode": "form",
            "message": words(request),
            "requestedSchema": {
                "type": "object",
                "properties": {
                    "answer": {"type": "string", "title": "May it run?", "enum": choices(request)},
                    "reason": {"type": "string", "title": "Why not", "description": "Told to the model when the answer is no."},
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

/// What a client's `ElicitResult` means.
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
            _ => Answer::No(Some("the answer was not understood".to_owned())),
        },
        Some("cancel") => return Reply::Approval(ApprovalDecision::Cancelled),
        _ => Answer::No(None),
    };
    Reply::Approval(ApprovalDecision::Answered(vec![
        answer;
        request.calls.len()
    ]))
}

/// A polite no.
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
        [_] => "A script asks for this:\n".to_owned(),
        calls => format!("A script asks for these {} calls:\n", calls.len()),
    };
    // Each has its part of the room: the answer is for all of them.
    let each = MAX_CALL.min(MAX_QUESTION / request.calls.len().max(1));
    for call in &request.calls {
        let described = describe(call);
        text.extend(described.chars().take(each));
        if described.chars().nth(each).is_some() {
            text.push_str("…\n");
        }
    }
    text
}

/// Both ends of a long text: what is to be overlooked would stand last.
pub(crate) fn both_ends(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    let half = most / 2;
    let head: String = text.chars().take(half).collect();
    let tail: String = text.chars().skip(length - half).collect();
    format!(
        "{head}\n… {} characters are not shown here …\n{tail}",
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
        text.push_str(&format!("it says: {}\n", context.replace('\n', " ")));
    }
    if let Some(rule) = &call.preview.rule {
        text.push_str(&format!("always: {rule}\n"));
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
    fn answers_mean_what_they_say() {
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
        // What was not offered is not granted.
        let unclear = both(Answer::No(Some("the answer was not understood".into())));
        assert_eq!(decision(None, accept(ALWAYS)), unclear);
        assert_eq!(
            decision(None, json!({"action": "accept", "content": {}})),
            unclear
        );
        assert_eq!(decision(None, json!({"action": "accept"})), unclear);
        assert_eq!(decision(None, accept(NO)), both(Answer::No(None)));
        assert_eq!(decision(None, declined()), both(Answer::No(None)));
        assert_eq!(
            decision(None, json!({"action": "cancel"})),
            ApprovalDecision::Cancelled
        );
    }

    #[test]
    fn a_client_is_shown_only_what_it_can_show() {
        let can = |words: Value| serde_json::from_value::<ElicitationCapability>(words).unwrap();
        let form = form(&question(None)).unwrap();
        assert!(form.can_be_shown(&can(json!({}))) && form.can_be_shown(&can(json!({"form": {}}))));
        assert!(!form.can_be_shown(&can(json!({"url": {}}))));
    }

    #[test]
    fn the_form_shows_what_is_asked() {
        let form = serde_json::to_value(form(&question(None)).unwrap().0).unwrap();
        let message = form["message"].as_str().unwrap();
        assert!(
            message.contains("these 2 calls")
                && message.contains("npm test")
                && message.contains("it says: tests"),
            "{message}"
        );
        assert_eq!(
            form["requestedSchema"]["properties"]["answer"]["enum"],
            json!([ONCE, THIS_SCRIPT, NO])
        );
    }

    #[test]
    fn the_end_of_a_long_script_is_shown_and_every_call_is() {
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
