//! Vectors of texts, from the `embeddings` resource that OpenAI and compatible servers have.

use serde_json::{Value, json};

use crate::transport::{check_response, connection_error, request_headers, resource_url};
use crate::{ModelClient, ModelError};

/// Largest response with vectors that is read, in bytes.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

impl ModelClient {
    /// Computes one vector per text with an embedding model of the provider. All vectors have the
    /// same length. The caller limits the time; a failed request is not repeated.
    pub async fn embed(&self, model: &str, texts: &[String]) -> Result<Vec<Vec<f32>>, ModelError> {
        let provider = &*self.provider().authorized().await?;
        provider.require_key()?;
        provider.require_accepted_user()?;
        let failed = |error| connection_error(provider, error);
        let body = async {
            let request = self.http().post(resource_url(provider, "embeddings")?);
            let request = request.headers(request_headers(provider)?);
            let request = request.header("content-type", "application/json");
            let body = json!({"model": model, "input": texts, "encoding_format": "float"});
            let request = request.body(body.to_string());
            let mut response = check_response(request.send().await.map_err(failed)?).await?;
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(failed)? {
                if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
                    return Err(ModelError::protocol(
                        "the response with vectors is too large",
                    ));
                }
                body.extend_from_slice(&chunk);
            }
            Ok(body)
        };
        let body = body.await.map_err(|error| provider.redact_secrets(error))?;
        let response: Value = serde_json::from_slice(&body)
            .map_err(|_| ModelError::protocol("the response with vectors is not JSON"))?;
        read_vectors(&response, texts.len())
    }
}

/// Reads the vectors of a response, in the order of the texts.
fn read_vectors(response: &Value, count: usize) -> Result<Vec<Vec<f32>>, ModelError> {
    let mut vectors: Vec<Option<Vec<f32>>> = vec![None; count];
    let items = response["data"].as_array().into_iter().flatten();
    for (at, item) in items.enumerate() {
        let index = item["index"].as_u64().map_or(at, |index| index as usize);
        let numbers = item["embedding"].as_array();
        let numbers = numbers.map(|all| all.iter().map(|x| x.as_f64().map(|x| x as f32)));
        if let (Some(place), Some(numbers)) = (vectors.get_mut(index), numbers) {
            *place = numbers.collect();
        }
    }
    let vectors: Option<Vec<Vec<f32>>> = vectors.into_iter().collect();
    let vectors = vectors.ok_or_else(|| {
        ModelError::protocol(format!("the response does not have {count} vectors"))
    })?;
    let width = vectors.first().map_or(0, Vec::len);
    match count == 0 || width > 0 && vectors.iter().all(|vector| vector.len() == width) {
        true => Ok(vectors),
        false => Err(ModelError::protocol("the vectors have different lengths")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_read_in_the_order_of_the_texts() {
        let response = json!({"data": [
            {"index": 1, "embedding": [3, 4.5]}, {"index": 0, "embedding": [1, 2]}]});
        assert_eq!(
            read_vectors(&response, 2).unwrap(),
            [vec![1.0, 2.0], vec![3.0, 4.5]]
        );
        for (response, count) in [
            (json!({"error": "no such model"}), 1),
            (json!({"data": [{"embedding": [1]}]}), 2),
            (
                json!({"data": [{"embedding": [1]}, {"embedding": [1, 2]}]}),
                2,
            ),
            (json!({"data": [{"embedding": ["x"]}]}), 1),
            (json!({"data": [{"embedding": []}]}), 1),
            (json!({"data": [{"index": 7, "embedding": [1]}]}), 1),
        ] {
            assert!(read_vectors(&response, count).is_err(), "{response}");
        }
    }
}
