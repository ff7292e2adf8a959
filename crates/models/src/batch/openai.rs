//! OpenAI's batches: a file of requests is uploaded and a batch created from it; answers and errors
//! are files to download.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::{
    BatchApi, BatchHttp, BatchPoll, BatchResultLine, batch_status, json_lines, prompt_error,
    valid_id,
};
use crate::ModelError;
use crate::lenient_json::string_at;
use crate::transport::prompt_resource_path;

/// The resources `/files` and `/batches`.
#[derive(Debug)]
pub(super) struct OpenAiBatches;

/// Separates the parts of an upload. No JSON line starts with it.
const MULTIPART_BOUNDARY: &str = "----selvedge-batch-4f1d7c9a2b";

impl BatchApi for OpenAiBatches {
    fn submit<'a>(
        &'a self,
        wire: &'a BatchHttp,
        bodies: Vec<(String, Value)>,
    ) -> BoxFuture<'a, Result<String, ModelError>> {
        async move {
            let endpoint = format!("/v1/{}", prompt_resource_path(wire.provider.wire_api));
            let content_type = format!("multipart/form-data; boundary={MULTIPART_BOUNDARY}");
            let upload = multipart_body(&endpoint, bodies);
            let file = wire.post("files", &content_type, upload).await?;
            let batch = json!({
                "input_file_id": valid_id(&file["id"])?,
                "endpoint": endpoint,
                "completion_window": "24h",
            });
            let batch = wire.post_json("batches", &batch).await?;
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
            let batch = super::parse_json(&wire.get(&format!("batches/{batch}")).await?)?;
            let status = batch_status(&batch["status"])?;
            if !matches!(status, "completed" | "expired" | "cancelled" | "failed") {
                return Ok(BatchPoll::InProgress);
            }
            let mut lines = Vec::new();
            for file in ["output_file_id", "error_file_id"] {
                if batch[file].is_string() {
                    let id = valid_id(&batch[file])?;
                    let body = wire.get(&format!("files/{id}/content")).await?;
                    lines.extend(json_lines(&body).filter_map(parse_result_line));
                }
            }
            // A batch that expired has the answers that were ready by then.
            if status == "completed" || lines.iter().any(|(_, answer)| answer.is_ok()) {
                return Ok(BatchPoll::Ended(lines));
            }
            let message = string_at(&batch["errors"]["data"][0], "message");
            let why = match message.as_str() {
                "" => format!("the batch is {status}"),
                message => format!("the batch is {status}: {message}"),
            };
            Ok(BatchPoll::Failed(why))
        }
        .boxed()
    }
}

/// Returns the multipart body that uploads the requests as a file of JSON lines.
fn multipart_body(endpoint: &str, bodies: Vec<(String, Value)>) -> Vec<u8> {
    let mut text = format!(
        "--{MULTIPART_BOUNDARY}\r\n\
         Content-Disposition: form-data; name=\"purpose\"\r\n\r\n\
         batch\r\n\
         --{MULTIPART_BOUNDARY}\r\n\
         Content-Disposition: form-data; name=\"file\"; filename=\"batch.jsonl\"\r\n\
         Content-Type: application/jsonl\r\n\r\n"
    );
    for (id, body) in bodies {
        let line = json!({"custom_id": id, "method": "POST", "url": endpoint, "body": body});
        text.push_str(&format!("{line}\n"));
    }
    text.push_str(&format!("\r\n--{MULTIPART_BOUNDARY}--\r\n"));
    text.into_bytes()
}

fn parse_result_line(mut line: Value) -> Option<BatchResultLine> {
    let id = line["custom_id"].as_str()?.to_owned();
    let response = &mut line["response"];
    let answer = match response["status_code"].as_u64() {
        Some(200..300) => Ok(response["body"].take()),
        Some(_) => Err(prompt_error(
            &response["body"],
            "the provider rejected the prompt",
        )),
        None => Err(prompt_error(
            &line["error"],
            "the provider did not answer the prompt",
        )),
    };
    Some((id, answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boundary_occurs_only_between_parts() {
        let bodies = vec![(
            "prompt-0".to_owned(),
            json!({"input": format!("\n--{MULTIPART_BOUNDARY}\r\nx")}),
        )];
        let text = String::from_utf8(multipart_body("/v1/responses", bodies)).unwrap();
        assert_eq!(
            text.matches(&format!("\n--{MULTIPART_BOUNDARY}")).count(),
            2,
            "{text}"
        );
    }
}
