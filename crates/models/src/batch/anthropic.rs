//! Anthropic's Message Batches: requests go in one body, results come as lines.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::{BatchApi, Exchange, Line, Looked, checked, json_lines, refused};
use crate::ModelError;

/// The `/messages/batches` of the API.
#[derive(Debug)]
pub(super) struct Anthropic;

impl BatchApi for Anthropic {
    fn submit<'a>(
        &'a self,
        wire: &'a Exchange,
        bodies: Vec<(String, Value)>,
    ) -> BoxFuture<'a, Result<String, ModelError>> {
        async move {
            let requests: Vec<Value> = bodies
                .into_iter()
                .map(|(id, params)| json!({"custom_id": id, "params": params}))
                .collect();
            let body = json!({"requests": requests}).to_string();
            let batch = super::json(
                &wire
                    .post("messages/batches", "application/json", body.into())
                    .await?,
            )?;
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
            let state = super::json(&wire.get(&format!("messages/batches/{batch}")).await?)?;
            match state["processing_status"].as_str() {
                Some("ended") => {}
                Some(_) => return Ok(Looked::Working),
                None => {
                    return Err(ModelError::protocol(
                        "the answer does not tell where the batch stands",
                    ));
                }
            }
            // Not from the address it names: a key does not travel to another host.
            let results = wire
                .get(&format!("messages/batches/{batch}/results"))
                .await?;
            let lines: Vec<Line> = json_lines(&results).filter_map(line).collect();
            let expired = state["request_counts"]["expired"].as_u64().unwrap_or(0) > 0;
            if lines.iter().all(|line| line.answer.is_err()) && expired {
                return Ok(Looked::Lost("it is expired".to_owned()));
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
        "errored" => Err(refused(&result["error"], "the provider refused it")),
        other => Err(ModelError::new(
            selvedge_protocol::ModelErrorKind::Server,
            format!("it is {other}"),
        )),
    };
    Some(Line { id, answer })
}
