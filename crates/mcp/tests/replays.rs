//! Replays sessions that were recorded with other clients: the same calls have the same results.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_mcp::{
    McpSamplingRequest, McpSamplingResponse, McpSamplingStopReason, SamplingHandler,
    ServerRequestError, ServerRequestHandlers, Servers,
};
use selvedge_protocol::McpSampling;
use serde_json::{Value, json};
use support::{program, value};

struct MockModel;

impl SamplingHandler for MockModel {
    fn sample<'a>(
        &'a self,
        _: &'a McpSamplingRequest,
    ) -> BoxFuture<'a, Result<McpSamplingResponse, ServerRequestError>> {
        let answer = McpSamplingResponse {
            text: "a word".into(),
            model: "mock".into(),
            stop_reason: McpSamplingStopReason::EndTurn,
        };
        std::future::ready(Ok(answer)).boxed()
    }
}

#[tokio::test]
async fn replayed_sessions_have_the_recorded_results() {
    let Some(folder) = fixtures("mcp_replays") else {
        eprintln!("skipped: set SELVEDGE_FIXTURES to the folder of shared fixtures");
        return;
    };
    let mut sessions = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let results = PathBuf::from(format!("{}.results.json", path.display()));
        if !results.exists() {
            continue;
        }
        sessions += 1;
        let expected = std::fs::read(&results).unwrap();
        let expected: Vec<Value> = serde_json::from_slice(&expected).unwrap();
        let calls: Vec<Value> = std::fs::read_to_string(&path)
            .unwrap()
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("STDIN: ")?).ok())
            .filter(|message| message["method"] == "tools/call")
            .map(|message| json!([message["params"]["name"], message["params"]["arguments"]]))
            .collect();
        assert_eq!(calls.len(), expected.len(), "{}", path.display());
        let replay = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/replay.py");
        let mut settings = program("recorded", "python3", &[replay, path.to_str().unwrap()]);
        settings.options.sampling = McpSampling::Approve;
        let handlers = ServerRequestHandlers {
            sampling: Some(Arc::new(MockModel)),
            ..ServerRequestHandlers::default()
        };
        let servers = Servers::new(vec![settings], handlers, None);
        let script = format!(
            "const out = [];
            for (const [name, args] of {}) out.push(await tools.mcp.recorded[name].raw(args));
            return out;",
            Value::from(calls)
        );
        let got = value(&servers, &script).await;
        assert_eq!(
            got,
            as_javascript(Value::from(expected)),
            "{}",
            path.display()
        );
    }
    assert!(sessions > 0);
}

/// Converts numbers as JavaScript does: 5.0 becomes 5.
fn as_javascript(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if float.fract() == 0.0 => json!(float as i64),
            _ => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(as_javascript).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(key, value)| (key, as_javascript(value)))
            .collect(),
        other => other,
    }
}

/// Finds a folder of test data that is not part of the repository.
fn fixtures(name: &str) -> Option<PathBuf> {
    let ancestors = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().skip(3);
    let defaults = ancestors.map(|folder| folder.join("shared/fixtures"));
    let configured = std::env::var_os("SELVEDGE_FIXTURES").map(PathBuf::from);
    configured
        .into_iter()
        .chain(defaults)
        .map(|folder| folder.join(name))
        .find(|folder| folder.is_dir())
}
