//! From what a provider says went wrong to what somebody can do about it.
//!
//! Providers agree on little: the same trouble is a status, a `type`, a `code` or only a sentence. The rows below are
//! looked at in order; the first that fits decides.

use std::time::Duration;

use selvedge_protocol::ModelErrorKind::{self, *};
use serde_json::Value;

use crate::{Ability, ModelError};

/// Words that tell a kind whatever the status: in `type`, `code` or the message, lower case.
const WORDS: &[(ModelErrorKind, &str)] = &[
    (
        ContextTooLong,
        "context_length_exceeded|too_many_prompt_tokens|exceed_context_size|\
        request_too_large|prompt is too long|prompt too long|input is too long|\
        maximum context length|exceeds the context window|\
        exceeds the available context size|exceed context limit|context length exceeded|\
        larger than the maximum context|reduce the length of the messages",
    ),
    (
        Quota,
        "insufficient_quota|insufficient_credits|billing_hard_limit|billing_not_active|\
        billing_error|usage_limit_reached|credit balance is too low|insufficient balance|\
        exceeded your current quota",
    ),
    (
        Refused,
        "content_filter|content_policy|responsibleaipolicyviolation|invalid_prompt|\
        cyber_policy|flagged as potentially violating",
    ),
    (
        Auth,
        "invalid_api_key|authentication_error|permission_error|invalid x-api-key|\
        unauthorized",
    ),
    (RateLimit, "rate_limit|too_many_requests"),
    (
        Overloaded,
        "overloaded|slow_down|engine_overloaded|insufficient_system_resource",
    ),
];

/// Sentences of servers that cannot do something.
const LACKS: &[(Ability, &str)] = &[
    (
        Ability::Tools,
        "does not support tools|tools are not supported|does not support function|\
        tools param requires --jinja|enable-auto-tool-choice|\
        no endpoints found that support tool use",
    ),
    (
        Ability::Images,
        "does not support image|image input is not supported|\
        no endpoints found that support image",
    ),
    (
        Ability::Reasoning,
        "does not support thinking|thinking is not supported|\
        encrypted content is not supported|'reasoning.effort' is not supported|\
        reasoning_effort is not supported",
    ),
];

/// The error of an answer with a status that is not 2xx.
pub fn of_status(status: u16, body: &[u8]) -> ModelError {
    let json: Option<Value> = serde_json::from_slice(body).ok();
    let told = json.as_ref().map(Told::of).unwrap_or_default();
    let fallback = || {
        let text = String::from_utf8_lossy(body);
        let text = text.trim();
        // Pages made for browsers tell nothing in one line.
        match text.is_empty() || text.starts_with('<') {
            true => format!("HTTP status {status}"),
            false => text.to_owned(),
        }
    };
    let mut error = told.error(Some(status), fallback);
    error.status = Some(status);
    error
}

/// The error that stands in a stream or in a body that was sent as a success.
pub(crate) fn of_json(json: &Value) -> ModelError {
    let told = Told::of(json);
    let status = told.code.parse().ok();
    let status = status.filter(|code| (400..600).contains(code));
    told.error(status, || {
        "the provider failed and did not say why".to_owned()
    })
}

/// What an error object says, wherever it says it.
#[derive(Debug, Default)]
struct Told {
    kind: String,
    code: String,
    message: String,
    request_id: Option<String>,
    retry_after: Option<Duration>,
}

impl Told {
    fn of(json: &Value) -> Self {
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => String::new(),
        };
        let error = match &json["error"] {
            Value::Object(_) => &json["error"],
            _ => json,
        };
        let message = match (&json["error"], &error["message"], &json["detail"]) {
            (_, Value::String(message), _)
            | (Value::String(message), ..)
            | (.., Value::String(message)) => message.clone(),
            (.., Value::Null) => text(&json["message"]),
            (.., detail) => detail.to_string(),
        };
        let mut code = text(&error["code"]);
        // A gateway's own error, with the provider's inside.
        for inner in [
            &error["innererror"]["code"],
            &error["metadata"]["error_type"],
            &error["metadata"]["raw"],
        ] {
            if let Value::String(inner) = inner {
                code = format!("{code} {inner}").trim().to_owned();
            }
        }
        Self {
            kind: text(&error["type"]),
            code,
            retry_after: in_words(&message),
            message,
            request_id: json["request_id"].as_str().map(str::to_owned),
        }
    }

    fn error(self, status: Option<u16>, fallback: impl FnOnce() -> String) -> ModelError {
        let message = match self.message.trim() {
            "" => fallback(),
            _ => self.message,
        };
        let all = format!("{} {} {message}", self.kind, self.code).to_lowercase();
        let kind = Self::kind_of(status, &all);
        let lacks = match kind {
            InvalidRequest => find(LACKS, &all),
            _ => None,
        };
        ModelError {
            kind,
            message: one_line(&message),
            status,
            retry_after: match kind {
                RateLimit | Overloaded => self.retry_after,
                _ => None,
            },
            request_id: self.request_id,
            lacks,
        }
    }

    fn kind_of(status: Option<u16>, all: &str) -> ModelErrorKind {
        match (status, find(WORDS, all)) {
            (Some(401 | 403), Some(kind @ (Quota | Refused))) => kind,
            (Some(401 | 403), _) => Auth,
            (Some(402), _) => Quota,
            (Some(413), _) => ContextTooLong,
            (Some(429), Some(Quota)) => Quota,
            (Some(429), _) => RateLimit,
            (_, Some(kind)) => kind,
            (Some(503 | 529), _) => Overloaded,
            (Some(408 | 409 | 500..), _) => Server,
            (Some(300..500), _) => InvalidRequest,
            _ if all.contains("invalid_request") || all.contains("not_found") => InvalidRequest,
            _ => Server,
        }
    }
}

/// The first row one of whose words, which `|` separates, is in a text.
fn find<T: Copy>(rows: &[(T, &str)], text: &str) -> Option<T> {
    let is_in = |(_, words): &&(T, &str)| words.split('|').any(|word| text.contains(word));
    rows.iter().find(is_in).map(|row| row.0)
}

/// `try again in 1.5s`, `in 20ms`, `in 6m0s`: some say it only in the sentence.
fn in_words(message: &str) -> Option<Duration> {
    let lower = message.to_lowercase();
    let rest = lower.split_once("try again in ")?.1;
    let word = rest.split_whitespace().next()?.trim_end_matches(['.', ',']);
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let (mut seconds, mut rest) = (0.0, word);
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c| !is_number(c)).unwrap_or(rest.len()));
        let end = after.find(|c: char| c.is_ascii_digit());
        let (unit, after) = after.split_at(end.unwrap_or(after.len()));
        let factor = match unit {
            "ms" => 0.001,
            "s" | "" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * factor;
        rest = after;
    }
    Duration::try_from_secs_f64(seconds).ok()
}

/// At most 500 characters, without line breaks.
pub(crate) fn one_line(text: &str) -> String {
    let mut line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((cut, _)) = line.char_indices().nth(500) {
        line.truncate(cut);
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn statuses_and_words_tell_the_kind() {
        let of = |status, body: Value| of_status(status, body.to_string().as_bytes()).kind;
        let plain = json!({"error": {"message": "no"}});
        let expected = [
            (400, InvalidRequest),
            (401, Auth),
            (402, Quota),
            (403, Auth),
            (404, InvalidRequest),
            (413, ContextTooLong),
            (429, RateLimit),
            (500, Server),
            (502, Server),
            (503, Overloaded),
            (529, Overloaded),
        ];
        for (status, kind) in expected {
            assert_eq!(of(status, plain.clone()), kind, "{status}");
        }
        assert_eq!(
            of(
                429,
                json!({"error": {"code": "insufficient_quota", "message": "no"}})
            ),
            Quota
        );
        assert_eq!(
            of(
                400,
                json!({"error": {"type": "invalid_request_error", "message": "Your credit balance is too low to access the API"}})
            ),
            Quota
        );
        assert_eq!(
            of(
                400,
                json!({"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"}})
            ),
            ContextTooLong
        );
        assert_eq!(
            of(
                200,
                json!({"error": {"type": "overloaded_error", "message": "Overloaded"}})
            ),
            Overloaded
        );
        let error = of_status(502, b"<html><body>Bad gateway</body></html>");
        assert_eq!(
            (error.kind, error.message.as_str()),
            (Server, "HTTP status 502")
        );
    }

    #[test]
    fn errors_inside_streams_have_no_status() {
        assert_eq!(
            of_json(&json!({"error": {"code": 429, "message": "slow"}})).kind,
            RateLimit
        );
        assert_eq!(
            of_json(&json!({"error": {"code": 502, "message": "upstream"}})).kind,
            Server
        );
        assert_eq!(
            of_json(&json!({"type": "error", "error": {"type": "invalid_request_error", "message": "x"}})).kind,
            InvalidRequest
        );
        assert_eq!(
            of_json(&json!({"type": "error", "code": "server_error", "message": "x"})).kind,
            Server
        );
        assert_eq!(of_json(&json!({})).kind, Server);
    }

    #[test]
    fn waits_are_read_from_sentences() {
        let message = "Rate limit reached for gpt-5 in organization org-x on tokens per min (TPM). Please try again in ";
        for (words, millis) in [
            ("1.898s.", 1898),
            ("28ms.", 28),
            ("6m0s. Visit", 360_000),
            ("35 seconds", 35_000),
        ] {
            assert_eq!(
                in_words(&format!("{message}{words}")),
                Some(Duration::from_millis(millis)),
                "{words}"
            );
        }
        assert_eq!(in_words("Please try again in a moment"), None);
        assert_eq!(in_words("try again in 9999999999999999999999h"), None);
    }

    #[test]
    fn what_a_server_cannot_do_is_named() {
        let error =
            of_status(400, br#"{"error":{"message":"registry.ollama.ai/library/gemma:2b does not support tools"}}"#);
        assert_eq!(
            (error.kind, error.lacks),
            (InvalidRequest, Some(Ability::Tools))
        );
    }
}
