//! Anthropic's Message Batches: one request body with all prompts, results as JSON lines.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::{
    BatchApi, BatchHttp, BatchPoll, BatchResultLine, batch_status, json_lines, prompt_error,
    valid_id,
};
use crate::ModelError;

/// The resource `/messages/batches`.
#[derive(Debug)]
pub(super) struct AnthropicBatches;

impl BatchApi for AnthropicBatches {
    fn submit<'a>(
        &'a self,
        wire: &'a BatchHttp,
        bodies: Vec<(String, Value)>,
    ) -> BoxFuture<'a, Result<String, ModelError>> {
        async move {
            let requests = bodies.into_iter();
            let requests: Value = requests
                .map(|(id, params)| json!({"custom_id": id, "params": params}))
                .collect();
            let body = json!({"requests": requests});
            let batch = wire.post_json("messages/batches", &body).await?;
            Ok(valid_id(&batch["id"])?.to_owned())
        }
        .boxed()
    }

    fn poll<'a>(
        &'a self,
        wire: &'a BatchHttp,
        batch: &'a str,
    ) -> BoxFuture<'a, Result<BatchPoll, ModelError>> {
        async move {
            let resource = format!("messages/batches/{batch}");
            let state = super::parse_json(&wire.get(&resource).await?)?;
            if batch_status(&state["processing_status"])? != "ended" {
                return Ok(BatchPoll::InProgress);
            }
            // `results_url` is not used: the key must not be sent to another host.
            let results = wire.get(&format!("{resource}/results")).await?;
            let lines: Vec<BatchResultLine> =
                json_lines(&results).filter_map(parse_result_line).collect();
            let expired = state["request_counts"]["expired"].as_u64().unwrap_or(0) > 0;
            if lines.iter().all(|(_, answer)| answer.is_err()) && expired {
                return Ok(BatchPoll::Failed("the batch expired".to_owned()));
            }
            Ok(BatchPoll::Ended(lines))
        }
        .boxed()
    }
}

fn parse_result_line(mut line: Value) -> Option<BatchResultLine> {
    let id = line["custom_id"].as_str()?.to_owned();
    let result = &mut line["result"];
    let answer = match result["type"].as_str().unwrap_or_default() {
        "succeeded" => Ok(result["message"].take()),
        "errored" => Err(prompt_error(
            &result["error"],
            "the provider rejected the prompt",
        )),
        other => Err(prompt_error(
            &Value::Null,
            &format!("the prompt is {other}"),
        )),
    };
    Some((id, answer))
}
