//! Anthropic's Message Batches: one request body with all prompts, results as JSON lines.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::{BatchApi, Exchange, Line, Looked, checked, json_lines, refused, status};
use crate::ModelError;

/// The resource `/messages/batches`.
#[derive(Debug)]
pub(super) struct Anthropic;

impl BatchApi for Anthropic {
    fn submit<'a>(
        &'a self,
        wire: &'a Exchange,
        bodies: Vec<(String, Value)>,
    ) -> BoxFuture<'a, Result<String, ModelError>> {
        async move {
            let requests = bodies.into_iter();
            let requests: Value = requests
                .map(|(id, params)| json!({"custom_id": id, "params": params}))
                .collect();
            let body = json!({"requests": requests});
            let batch = wire.post_json("messages/batches", &body).await?;
            Ok(checked(&batch["id"])?.to_owned())
        }
        .boxed()
    }

    fn look<'a>(
        &'a self,
        wire: &'a Exchange,
        batch: &'a str,
    ) -> BoxFuture<'a, Result<Looked, ModelError>> {
        async move {
            let resource = format!("messages/batches/{batch}");
            let state = super::json(&wire.get(&resource).await?)?;
            if status(&state["processing_status"])? != "ended" {
                return Ok(Looked::Working);
            }
            // `results_url` is not used: the key must not be sent to another host.
            let results = wire.get(&format!("{resource}/results")).await?;
            let lines: Vec<Line> = json_lines(&results).filter_map(line).collect();
            let expired = state["request_counts"]["expired"].as_u64().unwrap_or(0) > 0;
            if lines.iter().all(|(_, answer)| answer.is_err()) && expired {
                return Ok(Looked::Lost("the batch expired".to_owned()));
            }
            Ok(Looked::Ended(lines))
        }
        .boxed()
    }
}

fn line(mut line: Value) -> Option<Line> {
    let id = line["custom_id"].as_str()?.to_owned();
    let result = &mut line["result"];
    let answer = match result["type"].as_str().unwrap_or_default() {
        "succeeded" => Ok(result["message"].take()),
        "errored" => Err(refused(
            &result["error"],
            "the provider rejected the prompt",
        )),
        other => Err(refused(&Value::Null, &format!("the prompt is {other}"))),
    };
    Some((id, answer))
}
