//! The tool `http`: sends one HTTP request. Offered only if the configuration enables it.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use schemars::JsonSchema;
use selvedge_protocol::{Preview, ResumeAs, ToolSpec};
use selvedge_tools::{Call, CallFuture, Risk, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::spec;
use crate::web::{Ask, Peer, Web, parse, text_of};

/// Maximum bytes of a body in the result.
const LONGEST: usize = 1 << 20;
/// The largest accepted `timeout_ms`.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Headers of the connection or of a proxy, which a call may not set.
const OURS: [&str; 9] = [
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

/// The request.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
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
    timeout_ms: Option<u64>,
    /// Reason shown to the person who approves the call.
    #[allow(dead_code)]
    approval_context: Option<String>,
}

/// The response, whatever its status. Redirects are not followed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
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
pub(crate) struct Http(pub(crate) Web);

impl Tool for Http {
    fn spec(&self) -> ToolSpec {
        let description =
            "Sends one HTTP request and returns the response. To read web pages, use fetch_url.";
        spec::<Args, Output>("http", &["url"], description).judged_by_arguments()
    }

    /// The rules that allow hosts apply only to methods that read: sending needs its own approval.
    fn risk(&self, args: &Value) -> Risk {
        let (urls, Some(method)) = (address(args), method(args)) else {
            return Risk::Harmless;
        };
        let action = format!("sends {method} to");
        match only_reads(&method) {
            true => self.0.risk(&urls, &action),
            false => self.0.risk_without_rules(&urls, &action),
        }
    }

    fn reads_only(&self, args: &Value) -> bool {
        method(args).is_some_and(|method| only_reads(&method))
    }

    fn resume_as(&self, value: &Value) -> ResumeAs {
        match value["status"].as_u64() {
            Some(..400) => ResumeAs::Answer,
            Some(400..500) => ResumeAs::Rerun,
            // The server may have failed after it had an effect.
            _ => ResumeAs::Undecided,
        }
    }

    fn preview(&self, args: &Value) -> Preview {
        let (urls, method) = (address(args), method(args).unwrap_or_default());
        let url = urls.first().map(Url::as_str).unwrap_or_default();
        let body = args["body"]
            .as_str()
            .map(|body| format!("\n{}", &body[..body.floor_char_boundary(4096)]));
        let mut preview = self
            .0
            .preview(&urls, format!("{method} {url}{}", body.unwrap_or_default()));
        preview.rule = preview.rule.filter(|_| only_reads(&method));
        preview
    }

    fn agreement(&self, args: &Value) -> Option<String> {
        let (method, host) = (method(args)?, self.0.agreement(&address(args))?);
        Some(format!("{method} {host}"))
    }

    fn allow_always(&self, args: &Value) {
        if self.reads_only(args) {
            self.0.allow_always(&address(args));
        }
    }

    fn call(&self, args: Value, call: Call) -> CallFuture<'_> {
        let run = async move |args| run(&self.0, args, &call).await;
        typed_call(args, run, |output: &Output| {
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
fn address(args: &Value) -> Vec<Url> {
    args["url"]
        .as_str()
        .and_then(|url| parse(url).ok())
        .into_iter()
        .collect()
}

fn method(args: &Value) -> Option<Method> {
    args["method"]
        .as_str()
        .unwrap_or("GET")
        .to_ascii_uppercase()
        .parse()
        .ok()
}

fn only_reads(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

async fn run(web: &Web, args: Args, call: &Call) -> Result<Output, ToolError> {
    let url = parse(&args.url)?;
    web.refuse_nobodys(&url)?;
    let method = args.method.as_deref().unwrap_or("GET").to_ascii_uppercase();
    let method: Method = method
        .parse()
        .map_err(|_| ToolError::new(format!("`{method}` is not an HTTP method")))?;
    let request = Ask {
        method,
        url,
        headers: headers(&args.headers)?,
        body: args.body.unwrap_or_default().into_bytes(),
    };
    let timeout = args
        .timeout_ms
        .map(|ms| Duration::from_millis(ms).min(LONGEST_TIMEOUT));
    let mut response = web
        .within_time(call, timeout, web.exchange(Peer::Stranger, request))
        .await?;
    let truncated = response.cut || response.body.len() > LONGEST;
    response.body.truncate(LONGEST);
    let text = text_of(response.content_type(), &response.body);
    let base64 = text.is_none().then(|| STANDARD.encode(&response.body));
    let to_text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    Ok(Output {
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

fn headers(given: &BTreeMap<String, String>) -> Result<HeaderMap, ToolError> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let invalid = |problem: &str| ToolError::new(format!("header `{name}` {problem}"));
        let parsed: HeaderName = name.parse().map_err(|_| invalid("has an invalid name"))?;
        if OURS.contains(&parsed.as_str()) {
            return Err(invalid("cannot be set by a call"));
        }
        headers.insert(
            parsed,
            HeaderValue::from_str(value).map_err(|_| invalid("has an invalid value"))?,
        );
    }
    Ok(headers)
}
