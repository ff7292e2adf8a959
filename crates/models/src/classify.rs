//! Classifies errors of providers.
//!
//! Providers report the same failure by a status, a `type`, a `code` or only a message. The rows of
//! the tables below are searched in order; the first match decides.

use std::time::Duration;

use selvedge_protocol::ModelErrorKind::{self, *};
use serde_json::Value;

use crate::{ModelCapability, ModelError};

/// Phrases that decide the kind of an error, separated by `|`. They are searched in the lower-case
/// `type`, `code` and message.
const KIND_PHRASES: &[(ModelErrorKind, &str)] = &[
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

/// Phrases of servers that lack a capability, separated by `|`.
const CAPABILITY_PHRASES: &[(ModelCapability, &str)] = &[
    (
        ModelCapability::Tools,
        "does not support tools|tools are not supported|does not support function|\
        tools param requires --jinja|enable-auto-tool-choice|\
        no endpoints found that support tool use",
    ),
    (
        ModelCapability::Images,
        "does not support image|image input is not supported|\
        no endpoints found that support image",
    ),
    (
        ModelCapability::Reasoning,
        "does not support thinking|thinking is not supported|\
        encrypted content is not supported|'reasoning.effort' is not supported|\
        reasoning_effort is not supported",
    ),
];

/// Returns the error of a response with a status that is not 2xx.
pub fn error_from_status(status: u16, body: &[u8]) -> ModelError {
    let json: Option<Value> = serde_json::from_slice(body).ok();
    let details = json
        .as_ref()
        .map(ProviderErrorFields::from_json)
        .unwrap_or_default();
    let fallback = || {
        let text = String::from_utf8_lossy(body);
        let text = text.trim();
        // Neither an HTML page nor an empty JSON value helps in a message of one line.
        let is_empty = matches!(text, "" | "{}" | "[]" | "null" | "\"\"");
        match is_empty || text.starts_with('<') {
            true => format!("HTTP status {status}"),
            false => text.to_owned(),
        }
    };
    let mut error = details.into_model_error(Some(status), fallback);
    error.status = Some(status);
    error
}

/// Returns the error in a stream, or in the body of a response with status 200.
pub(crate) fn error_from_json(json: &Value) -> ModelError {
    let details = ProviderErrorFields::from_json(json);
    let status = details.code.parse().ok();
    let status = status.filter(|code| (400..600).contains(code));
    details.into_model_error(status, || {
        "the provider failed without an error message".to_owned()
    })
}

/// The fields of an error body, from the different places where providers put them.
#[derive(Debug, Default)]
struct ProviderErrorFields {
    kind: String,
    code: String,
    message: String,
    request_id: Option<String>,
    retry_after: Option<Duration>,
}

impl ProviderErrorFields {
    fn from_json(json: &Value) -> Self {
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
        // A gateway's error contains that of the provider.
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
            retry_after: parse_retry_delay(&message),
            message,
            request_id: json["request_id"].as_str().map(str::to_owned),
        }
    }

    fn into_model_error(
        self,
        status: Option<u16>,
        fallback: impl FnOnce() -> String,
    ) -> ModelError {
        let message = match self.message.trim() {
            "" => fallback(),
            _ => self.message,
        };
        let text = format!("{} {} {message}", self.kind, self.code).to_lowercase();
        let mut kind = Self::classify_kind(status, &text);
        let lacks = match kind {
            InvalidRequest | UnknownModel => find_phrase(CAPABILITY_PHRASES, &text),
            _ => None,
        };
        if lacks.is_some() {
            kind = InvalidRequest;
        }
        let message = match (kind, message.strip_prefix("model: "), status) {
            (UnknownModel, Some(model), _) => format!("there is no model `{model}`"),
            (Server, _, Some(status)) if !message.contains(&status.to_string()) => {
                format!("{message} (HTTP status {status})")
            }
            _ => message,
        };
        ModelError {
            kind,
            message: truncate_line(&message),
            status,
            retry_after: match kind {
                RateLimit | Overloaded => self.retry_after,
                _ => None,
            },
            request_id: self.request_id,
            missing_capability: lacks,
            may_be_processed: false,
        }
    }

    /// Decides the kind from the status and the lower-case text of all fields.
    fn classify_kind(status: Option<u16>, text: &str) -> ModelErrorKind {
        match (status, find_phrase(KIND_PHRASES, text)) {
            (Some(401 | 403), Some(kind @ (Quota | Refused))) => kind,
            (Some(401 | 403), _) => Auth,
            (Some(402), _) => Quota,
            (Some(413), _) => ContextTooLong,
            (Some(429), Some(Quota)) => Quota,
            (Some(429), _) => RateLimit,
            (_, Some(kind)) => kind,
            (Some(503 | 529), _) => Overloaded,
            (Some(408 | 409 | 500..), _) => Server,
            _ if text.contains("model_not_found") => UnknownModel,
            (Some(404), _) if text.contains("model") => UnknownModel,
            (Some(300..500), _) => InvalidRequest,
            _ if text.contains("invalid_request") || text.contains("not_found") => InvalidRequest,
            _ => Server,
        }
    }
}

/// Returns the first row of which one phrase is contained in the text.
fn find_phrase<T: Copy>(rows: &[(T, &str)], text: &str) -> Option<T> {
    let matches = |(_, phrases): &&(T, &str)| phrases.split('|').any(|part| text.contains(part));
    rows.iter().find(matches).map(|row| row.0)
}

/// Parses a delay in a message, such as `try again in 1.5s`, `20ms` or `6m0s`. Some providers
/// report it nowhere else.
fn parse_retry_delay(message: &str) -> Option<Duration> {
    let lower = message.to_lowercase();
    let rest = lower.split_once("try again in ")?.1;
    let delay = rest.split_whitespace().next()?.trim_end_matches(['.', ',']);
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let (mut seconds, mut rest) = (0.0, delay);
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

/// Replaces whitespace by single spaces and truncates to 500 characters.
pub(crate) fn truncate_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    selvedge_text::truncate_chars(&line, 500).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn status_and_phrases_decide_the_kind() {
        let of = |status, body: Value| error_from_status(status, body.to_string().as_bytes()).kind;
        let body = json!({"error": {"message": "no"}});
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
            assert_eq!(of(status, body.clone()), kind, "{status}");
        }
        let invalid = |message: &str| json!({"type": "invalid_request_error", "message": message});
        assert_eq!(
            of(
                429,
                json!({"error": {"code": "insufficient_quota", "message": "no"}})
            ),
            Quota
        );
        let no_credit = invalid("Your credit balance is too low to access the API");
        assert_eq!(of(400, json!({"error": no_credit})), Quota);
        let too_long = invalid("prompt is too long: 210000 tokens > 200000 maximum");
        assert_eq!(
            of(400, json!({"type": "error", "error": too_long})),
            ContextTooLong
        );
        assert_eq!(
            of(
                200,
                json!({"error": {"type": "overloaded_error", "message": "Overloaded"}})
            ),
            Overloaded
        );
        let unknown = json!({"type": "not_found_error", "message": "model: claude-nope"});
        let error = error_from_status(404, json!({"error": unknown}).to_string().as_bytes());
        assert_eq!(
            (error.kind, error.message.as_str()),
            (UnknownModel, "there is no model `claude-nope`")
        );
        let error = error_from_status(500, b"internal");
        assert_eq!(error.message, "internal (HTTP status 500)");
        let error = error_from_status(502, b"<html><body>Bad gateway</body></html>");
        assert_eq!(
            (error.kind, error.message.as_str()),
            (Server, "HTTP status 502")
        );
    }

    #[test]
    fn errors_inside_streams_have_no_status() {
        assert_eq!(
            error_from_json(&json!({"error": {"code": 429, "message": "slow"}})).kind,
            RateLimit
        );
        assert_eq!(
            error_from_json(&json!({"error": {"code": 502, "message": "upstream"}})).kind,
            Server
        );
        let nested = json!({"type": "invalid_request_error", "message": "x"});
        assert_eq!(
            error_from_json(&json!({"type": "error", "error": nested})).kind,
            InvalidRequest
        );
        assert_eq!(
            error_from_json(&json!({"type": "error", "code": "server_error", "message": "x"})).kind,
            Server
        );
        assert_eq!(error_from_json(&json!({})).kind, Server);
    }

    #[test]
    fn delays_are_parsed_from_messages() {
        let message = "Rate limit reached for gpt-5 in organization org-x on tokens per min (TPM). \
            Please try again in ";
        for (delay, millis) in [
            ("1.898s.", 1898),
            ("28ms.", 28),
            ("6m0s. Visit", 360_000),
            ("35 seconds", 35_000),
        ] {
            assert_eq!(
                parse_retry_delay(&format!("{message}{delay}")),
                Some(Duration::from_millis(millis)),
                "{delay}"
            );
        }
        assert_eq!(parse_retry_delay("Please try again in a moment"), None);
        assert_eq!(
            parse_retry_delay("try again in 9999999999999999999999h"),
            None
        );
    }

    #[test]
    fn a_missing_capability_is_recognised() {
        let message = "registry.ollama.ai/library/gemma:2b does not support tools";
        let body = json!({"error": {"message": message}}).to_string();
        let error = error_from_status(400, body.as_bytes());
        assert_eq!(
            (error.kind, error.missing_capability),
            (InvalidRequest, Some(ModelCapability::Tools))
        );
    }
}
