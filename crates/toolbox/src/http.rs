//! `http`: one plain request, for whoever needs more than a page. Not offered unless the configuration says so.

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

/// Bytes of a body that are returned.
const LONGEST: usize = 1 << 20;
/// How long a call may say a request takes.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Headers that belong to the connection, or to a proxy.
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

/// What to ask.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Where.
    url: String,
    /// `GET` where it is not said.
    method: Option<String>,
    /// Headers to send.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// What to send.
    body: Option<String>,
    /// Time it may take; at most 300,000.
    timeout_ms: Option<u64>,
    /// Told to the person who is asked.
    #[allow(dead_code)]
    approval_context: Option<String>,
}

/// The answer, whatever its status. Redirects are not followed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    status: u16,
    /// Whether the status is one of success.
    ok: bool,
    /// In lower case.
    headers: BTreeMap<String, String>,
    /// As text; empty where it is none.
    body: String,
    /// The body where it is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    /// Whether there was more.
    truncated: bool,
}

/// The tool `http`.
pub(crate) struct Http(pub(crate) Web);

impl Tool for Http {
    fn spec(&self) -> ToolSpec {
        let description =
            "Makes one HTTP request and returns the answer as it is. fetch_url reads pages better.";
        spec::<Args, Output>("http", &["url"], description).judged_by_arguments()
    }

    /// A host that may be read is not one that may be written to.
    fn risk(&self, args: &Value) -> Risk {
        let (urls, Some(method)) = (address(args), method(args)) else {
            return Risk::Harmless;
        };
        let doing = format!("sends {method} to");
        match only_reads(&method) {
            true => self.0.risk(&urls, &doing),
            false => self.0.risk_without_rules(&urls, &doing),
        }
    }

    fn reads_only(&self, args: &Value) -> bool {
        method(args).is_some_and(|method| only_reads(&method))
    }

    fn resume_as(&self, value: &Value) -> ResumeAs {
        match value["status"].as_u64() {
            Some(..400) => ResumeAs::Answer,
            Some(400..500) => ResumeAs::Rerun,
            // The server failed, perhaps after it had done something.
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
            let no_text = output.base64.is_some();
            let rest = if no_text { "[no text]" } else { &output.body };
            Some(format!("{}\n\n{rest}", output.status))
        })
    }
}

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
        .map_err(|_| ToolError::new(format!("`{method}` is no method of HTTP")))?;
    let ask = Ask {
        method,
        url,
        headers: headers(&args.headers)?,
        body: args.body.unwrap_or_default().into_bytes(),
    };
    let limit = args
        .timeout_ms
        .map(|ms| Duration::from_millis(ms).min(LONGEST_TIMEOUT));
    let mut answered = web
        .within_time(call, limit, web.exchange(Peer::Stranger, ask))
        .await?;
    let truncated = answered.cut || answered.body.len() > LONGEST;
    answered.body.truncate(LONGEST);
    let text = text_of(answered.content_type(), &answered.body);
    let base64 = text.is_none().then(|| STANDARD.encode(&answered.body));
    let shown = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    Ok(Output {
        status: answered.status.as_u16(),
        ok: answered.status.is_success(),
        headers: answered
            .headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), shown(value)))
            .collect(),
        body: text.unwrap_or_default(),
        base64,
        truncated,
    })
}

fn headers(given: &BTreeMap<String, String>) -> Result<HeaderMap, ToolError> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let wrong = |why: &str| ToolError::new(format!("the header `{name}` {why}"));
        let own: HeaderName = name
            .parse()
            .map_err(|_| wrong("has a name no header may have"))?;
        if OURS.contains(&own.as_str()) {
            return Err(wrong("is not the caller's to set"));
        }
        headers.insert(
            own,
            HeaderValue::from_str(value).map_err(|_| wrong("has a value no header may have"))?,
        );
    }
    Ok(headers)
}
