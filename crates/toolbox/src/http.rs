//! The tool `http`: sends one HTTP request. Offered only if the configuration enables it.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use schemars::JsonSchema;
use selvedge_protocol::{CallReach, Preview, ResumeAs, RuleScope, ToolSpec};
use selvedge_tools::{CallContext, CallFuture, Risk, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::built_in_spec;
use crate::web::{RequestDestination, WebAccess, WebRequest, decode_text, parse_url};

/// Maximum bytes of a body in the result.
const MAX_BODY_BYTES: usize = 1 << 20;
/// The largest accepted `timeout_ms`.
const MAX_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Headers of the connection or of a proxy, which a call may not set.
const FORBIDDEN_HEADERS: [&str; 9] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "proxy-authorization",
    "proxy-connection",
];

/// Arguments of `http`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct HttpArgs {
    /// URL of the request.
    url: String,
    /// HTTP method; `GET` by default.
    method: Option<String>,
    /// Headers to send.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Body to send.
    body: Option<String>,
    /// Timeout in milliseconds; at most 300,000.
    #[allow(dead_code)]
    timeout_ms: Option<u64>,
    /// Reason shown to the person who approves the call.
    #[allow(dead_code)]
    approval_context: Option<String>,
}

/// The response, whatever its status. Redirects are not followed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct HttpOutput {
    status: u16,
    /// Whether the status is 200 to 299.
    ok: bool,
    /// Response headers, with names in lower case.
    headers: BTreeMap<String, String>,
    /// The body as text; empty if it is not text.
    body: String,
    /// The body as base64, if it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    /// Whether the body was longer.
    truncated: bool,
}

/// The tool `http`.
pub(crate) struct Http(pub(crate) WebAccess);

impl Tool for Http {
    fn spec(&self) -> ToolSpec {
        let description =
            "Sends one HTTP request and returns the response. To read web pages, use fetch_url.";
        built_in_spec::<HttpArgs, HttpOutput>("http", &["url"], description)
            .approval_by_arguments()
            .with_reach(CallReach::Web)
            .with_timeout(self.0.call_timeout().or_requested(MAX_TIMEOUT))
    }

    /// The rules that allow hosts apply only to methods that read: sending needs its own approval.
    fn risk(&self, args: &Value) -> Risk {
        let (urls, Some(method)) = (url_in_args(args), method_in_args(args)) else {
            return Risk::Harmless;
        };
        let action = format!("sends {method} to");
        match is_read_only_method(&method) {
            true => self.0.risk(&urls, &action),
            false => self.0.risk_without_rules(&urls, &action),
        }
    }

    fn is_read_only(&self, args: &Value) -> bool {
        method_in_args(args).is_some_and(|method| is_read_only_method(&method))
    }

    fn resume_as(&self, value: &Value) -> ResumeAs {
        match value["status"].as_u64() {
            Some(..400) => ResumeAs::Reuse,
            Some(400..500) => ResumeAs::Rerun,
            // The server may have failed after it had an effect.
            _ => ResumeAs::Undecided,
        }
    }

    fn preview(&self, args: &Value) -> Preview {
        let (urls, method) = (url_in_args(args), method_in_args(args).unwrap_or_default());
        let url = urls.first().map(Url::as_str).unwrap_or_default();
        let mut view = format!("{method} {url}");
        for (name, value) in args["headers"].as_object().into_iter().flatten() {
            let value = value.as_str().unwrap_or_default();
            let header = format!("{name}: {value}").replace('\n', "⏎");
            view.push_str(&format!("\n{header}"));
        }
        if let Some(body) = args["body"].as_str() {
            view.push_str(&format!("\n\n{body}"));
        }
        let mut preview = self.0.preview(&urls, view);
        preview.rule = preview.rule.filter(|_| is_read_only_method(&method));
        preview
    }

    fn approval_key(&self, args: &Value) -> Option<String> {
        let (method, host) = (
            method_in_args(args)?,
            self.0.approval_scope_key(&url_in_args(args))?,
        );
        Some(format!("{method} {host}"))
    }

    fn add_rule(&self, args: &Value, scope: RuleScope) {
        if self.is_read_only(args) {
            self.0.add_rule(&url_in_args(args), scope);
        }
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let run = async move |args| send_request(&self.0, args, &call).await;
        typed_call(args, run, |output: &HttpOutput| {
            let is_binary = output.base64.is_some();
            let body = if is_binary {
                "[binary body]"
            } else {
                &output.body
            };
            Some(format!("{}\n\n{body}", output.status))
        })
    }
}

/// Returns the URL in a call's arguments, if it is valid.
fn url_in_args(args: &Value) -> Vec<Url> {
    args["url"]
        .as_str()
        .and_then(|url| parse_url(url).ok())
        .into_iter()
        .collect()
}

fn method_in_args(args: &Value) -> Option<Method> {
    args["method"]
        .as_str()
        .unwrap_or("GET")
        .to_ascii_uppercase()
        .parse()
        .ok()
}

fn is_read_only_method(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

async fn send_request(
    web: &WebAccess,
    args: HttpArgs,
    call: &CallContext,
) -> Result<HttpOutput, ToolError> {
    let url = parse_url(&args.url)?;
    web.refuse_blocked(&url)?;
    let method = args.method.as_deref().unwrap_or("GET").to_ascii_uppercase();
    let method: Method = method
        .parse()
        .map_err(|_| ToolError::new(format!("`{method}` is not an HTTP method")))?;
    let request = WebRequest {
        method,
        url,
        headers: parse_headers(&args.headers)?,
        body: args.body.unwrap_or_default().into_bytes(),
    };
    let response = web.send(RequestDestination::CallerUrl, request);
    let mut response = web.run_cancellable(call, response).await?;
    let truncated = response.truncated || response.body.len() > MAX_BODY_BYTES;
    response.body.truncate(MAX_BODY_BYTES);
    let text = decode_text(response.content_type(), &response.body);
    let base64 = text.is_none().then(|| STANDARD.encode(&response.body));
    let to_text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    Ok(HttpOutput {
        status: response.status.as_u16(),
        ok: response.status.is_success(),
        headers: response
            .headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), to_text(value)))
            .collect(),
        body: text.unwrap_or_default(),
        base64,
        truncated,
    })
}

fn parse_headers(given: &BTreeMap<String, String>) -> Result<HeaderMap, ToolError> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let invalid = |problem: &str| ToolError::new(format!("header `{name}` {problem}"));
        let parsed: HeaderName = name.parse().map_err(|_| invalid("has an invalid name"))?;
        if FORBIDDEN_HEADERS.contains(&parsed.as_str()) {
            return Err(invalid("cannot be set by a call"));
        }
        headers.insert(
            parsed,
            HeaderValue::from_str(value).map_err(|_| invalid("has an invalid value"))?,
        );
    }
    Ok(headers)
}
