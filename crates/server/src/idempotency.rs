//! `Idempotency-Key`: a POST that is repeated with the same key gets the first answer again.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::unfold;
use selvedge_protocol::{IdempotencyStore, RepeatedRequest, StoredReply};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc::{Sender, channel};
use tokio_util::sync::CancellationToken;

use crate::api_error::ApiError;
use crate::caller::Caller;
use crate::state::ApiState;

const KEY_HEADER: &str = "idempotency-key";
/// Says that a response is the stored answer to an earlier request.
const REPLAYED_HEADER: &str = "idempotent-replayed";
/// Longest key, in bytes.
const MAX_KEY_BYTES: usize = 255;
/// Parts of a stream that wait for a client that reads slowly.
const WAITING_PARTS: usize = 16;

/// Returns the key of a request.
pub(crate) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut keys = headers.get_all(KEY_HEADER).iter();
    let Some(key) = keys.next() else {
        return Ok(None);
    };
    let text = key.to_str().ok().map(str::trim);
    match text {
        Some(text) if !text.is_empty() && text.len() <= MAX_KEY_BYTES && keys.next().is_none() => {
            Ok(Some(text.to_owned()))
        }
        _ => Err(ApiError::invalid(format!(
            "Idempotency-Key must be one text of up to {MAX_KEY_BYTES} ASCII characters"
        ))),
    }
}

/// Runs the handler of a request with a key, unless the request was answered before. The answer is
/// stored, except failures of the server, after which the request may be repeated. The handler runs
/// to its end even if the client disconnects, so that a repetition gets its answer.
pub(crate) async fn answer_once(
    state: &Arc<ApiState>,
    caller: &Caller,
    request: Request,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    // The body was read and bounded when the request was admitted.
    let body = match to_bytes(body, usize::MAX).await {
        Ok(body) => body,
        Err(error) => return ApiError::invalid(error.to_string()).into_response(),
    };
    let mut digest = Sha256::new();
    digest.update(parts.uri.to_string());
    digest.update([0]);
    digest.update(&body);
    let (token, key) = (&caller.token.id, caller.idempotency_key.as_deref());
    let key = key.unwrap_or_default();
    let begun = state
        .stores
        .replies
        .begin_request(token, key, digest.finalize().into())
        .await;
    match begun {
        Ok(RepeatedRequest::New) => {}
        Ok(RepeatedRequest::Answered(reply)) => return stored_response(reply),
        Ok(RepeatedRequest::InProgress) => {
            let message = "the request with this Idempotency-Key is still being handled";
            return ApiError::conflict(message).into_response();
        }
        Ok(RepeatedRequest::OtherRequest) => return ApiError::key_reused().into_response(),
        Ok(RepeatedRequest::TooMany) => {
            let message = "too many requests with an Idempotency-Key are still being handled";
            return ApiError::over_limit(message).into_response();
        }
        Err(error) => return ApiError::from(error).into_response(),
    }
    let reserved = ReservedKey {
        replies: state.stores.replies.clone(),
        stopping: state.stopping.clone(),
        token: token.clone(),
        key: key.to_owned(),
        is_ended: false,
    };
    let request = Request::from_parts(parts, Body::from(body));
    let handled = tokio::spawn(async move {
        let response = next.run(request).await;
        reserved.store(response).await
    });
    handled
        .await
        .unwrap_or_else(|_| ApiError::internal("the request failed").into_response())
}

/// A key whose request is being handled. It is free again when this is dropped before the end.
struct ReservedKey {
    replies: Arc<dyn IdempotencyStore>,
    /// Cancelled when the server stops, which ends streams before their turns.
    stopping: CancellationToken,
    token: String,
    key: String,
    is_ended: bool,
}

impl ReservedKey {
    /// Stores the answer, and returns it. A stream of events is passed on while it is copied, and
    /// ends after the copy is stored.
    async fn store(mut self, response: Response) -> Response {
        let (mut parts, body) = response.into_parts();
        parts.headers.remove(header::TRANSFER_ENCODING);
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|kind| kind.to_str().ok());
        let content_type = content_type.unwrap_or("application/json").to_owned();
        let status = parts.status;
        if !content_type.starts_with("text/event-stream") {
            let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
            let is_final = !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS;
            let reply = is_final.then(|| stored_reply(status, content_type, &body));
            self.end(reply).await;
            return Response::from_parts(parts, Body::from(body));
        }
        let (client, passed_on) = channel(WAITING_PARTS);
        tokio::spawn(async move {
            let copy = copy_stream(body, &client).await;
            let copy = copy.filter(|_| !self.stopping.is_cancelled());
            let reply = copy.map(|copy| stored_reply(status, content_type, &copy));
            self.end(reply).await;
        });
        let passed_on = unfold(passed_on, async |mut passed_on| {
            let part: Bytes = passed_on.recv().await?;
            Some((Ok::<_, Infallible>(part), passed_on))
        });
        Response::from_parts(parts, Body::from_stream(passed_on))
    }

    async fn end(&mut self, reply: Option<StoredReply>) {
        self.is_ended = true;
        let ended = self.replies.end_request(&self.token, &self.key, reply);
        if let Err(error) = ended.await {
            tracing::error!(%error, "cannot store the answer to a request");
        }
    }
}

/// Passes a stream on, and returns a copy at its end; `None` if it failed. After the client has
/// disconnected, the function reads the rest of the stream.
async fn copy_stream(body: Body, client: &Sender<Bytes>) -> Option<Vec<u8>> {
    let mut parts = body.into_data_stream();
    let mut copy = Vec::new();
    while let Some(part) = parts.next().await {
        let part = part.ok()?;
        copy.extend_from_slice(&part);
        // The repeated request of a client that is gone gets the copy.
        let _ = client.send(part).await;
    }
    Some(copy)
}

fn stored_reply(status: StatusCode, content_type: String, body: &[u8]) -> StoredReply {
    StoredReply {
        status: status.as_u16(),
        content_type,
        body: String::from_utf8_lossy(body).into_owned(),
    }
}

impl Drop for ReservedKey {
    fn drop(&mut self) {
        // Outside of a runtime the process ends, which also frees the key.
        if let (false, Ok(runtime)) = (self.is_ended, tokio::runtime::Handle::try_current()) {
            let (replies, token) = (self.replies.clone(), self.token.clone());
            let key = self.key.clone();
            runtime.spawn(async move { replies.end_request(&token, &key, None).await });
        }
    }
}

fn stored_response(reply: StoredReply) -> Response {
    let mut response = Response::new(Body::from(reply.body));
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::OK);
    let headers = response.headers_mut();
    let json = HeaderValue::from_static("application/json");
    let content_type = HeaderValue::from_str(&reply.content_type).unwrap_or(json);
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(REPLAYED_HEADER, HeaderValue::from_static("true"));
    response
}
