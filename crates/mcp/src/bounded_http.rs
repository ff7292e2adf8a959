//! An HTTP client for MCP servers that limits what a response costs: its size, its number of
//! values, and how often a server makes the client reconnect.
//!
//! It replaces rmcp's client, which limits the size of an event but not of other bodies. Requests
//! for streams and the end of sessions are passed on to that client. Compression is not offered, so
//! the bytes that are counted are the bytes that are used.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, TryStreamExt};
use http::{HeaderName, HeaderValue, StatusCode, header};
use rmcp::model::{
    ClientJsonRpcMessage, ErrorCode, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
};
use rmcp::transport::common::http_header::{
    EVENT_STREAM_MIME_TYPE, HEADER_LAST_EVENT_ID, HEADER_SESSION_ID, JSON_MIME_TYPE,
};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, HttpStatusError, InsufficientScopeError, SseError, StreamableHttpClient,
    StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};

use crate::process::{
    MAX_MESSAGE_BYTES, OVERSIZED_CODE, find_response_id, has_too_many_values, oversized_error_data,
    too_large_message, too_many_values_message,
};

/// Shortest delay before a stream that ended or broke is requested again, also if the server asks
/// for a shorter one.
const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(500);

/// Maximum length of the text of a failed response that is kept, in bytes.
const MAX_FAILURE_BYTES: usize = 1_000;

type HttpError = StreamableHttpError<reqwest::Error>;
type EventStream = BoxStream<'static, Result<Sse, SseError>>;

/// The client. See the module.
#[derive(Debug, Clone)]
pub(crate) struct BoundedHttpClient(pub(crate) reqwest::Client);

/// A body that is longer than a message may be.
#[derive(Debug, thiserror::Error)]
#[error("{}", too_large_message())]
struct BodyTooLarge;

impl StreamableHttpClient for BoundedHttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_token: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let accepted = [EVENT_STREAM_MIME_TYPE, JSON_MIME_TYPE].join(", ");
        let mut request = self.0.post(uri.as_ref()).header(header::ACCEPT, accepted);
        if let Some(token) = auth_token {
            request = request.bearer_auth(token);
        }
        for (name, value) in custom_headers {
            check_custom_header(&name)?;
            request = request.header(name, value);
        }
        let has_session = session_id.is_some();
        if let Some(session_id) = session_id {
            request = request.header(HEADER_SESSION_ID, session_id.as_ref());
        }
        let response = request.json(&message).send().await?;
        if let Some(error) = auth_error(&response) {
            return Err(error);
        }
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && has_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        let request_id = match &message {
            ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        if !status.is_success() {
            return read_failure(response, request_id).await;
        }
        if response.content_length() == Some(0) && request_id.is_none() {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let session_id = text_header(&response, HEADER_SESSION_ID);
        let media_type = text_header(&response, header::CONTENT_TYPE.as_str());
        match media_type {
            Some(kind) if kind.starts_with(EVENT_STREAM_MIME_TYPE) => {
                let events = response_events(response, request_id);
                Ok(StreamableHttpPostResponse::Sse(events, session_id))
            }
            Some(kind) if kind.starts_with(JSON_MIME_TYPE) => {
                let message = read_json(response, request_id).await?;
                Ok(
                    message.map_or(StreamableHttpPostResponse::Accepted, |message| {
                        StreamableHttpPostResponse::Json(message, session_id)
                    }),
                )
            }
            other => Err(StreamableHttpError::UnexpectedContentType(other)),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_token: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), HttpError> {
        let client = &self.0;
        let deleted = client.delete_session(uri, session_id, auth_token, custom_headers);
        deleted.await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_token: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<EventStream, HttpError> {
        let client = &self.0;
        let stream = client.get_stream_with_max_sse_event_size(
            uri,
            session_id,
            last_event_id,
            auth_token,
            custom_headers,
            MAX_MESSAGE_BYTES,
        );
        Ok(bound_events(stream.await?))
    }
}

/// Rejects headers that the protocol sets itself.
fn check_custom_header(name: &HeaderName) -> Result<(), HttpError> {
    let reserved = ["accept", HEADER_SESSION_ID, HEADER_LAST_EVENT_ID];
    let mut reserved = reserved.iter();
    match reserved.any(|reserved| name.as_str().eq_ignore_ascii_case(reserved)) {
        true => Err(StreamableHttpError::ReservedHeaderConflict(
            name.to_string(),
        )),
        false => Ok(()),
    }
}

/// Returns the error of a response that asks for a login.
fn auth_error(response: &reqwest::Response) -> Option<HttpError> {
    let challenge = text_header(response, header::WWW_AUTHENTICATE.as_str())?;
    match response.status() {
        StatusCode::UNAUTHORIZED => {
            let error = AuthRequiredError::new(challenge);
            Some(StreamableHttpError::AuthRequired(error))
        }
        StatusCode::FORBIDDEN => {
            let error = InsufficientScopeError::new(challenge, None);
            Some(StreamableHttpError::InsufficientScope(error))
        }
        _ => None,
    }
}

fn text_header(response: &reqwest::Response, name: &str) -> Option<String> {
    let value = response.headers().get(name)?;
    value.to_str().ok().map(str::to_owned)
}

/// Reads a body up to the size of a message. Reading stops at the limit.
async fn read_body(
    response: reqwest::Response,
) -> Result<Result<Vec<u8>, BodyTooLarge>, HttpError> {
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.try_next().await? {
        if body.len() + chunk.len() > MAX_MESSAGE_BYTES {
            return Ok(Err(BodyTooLarge));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Ok(body))
}

/// Reads the message of a JSON body; `None` if no request waits for it and it is not a message.
async fn read_json(
    response: reqwest::Response,
    request_id: Option<RequestId>,
) -> Result<Option<ServerJsonRpcMessage>, HttpError> {
    let problem = match read_body(response).await? {
        Ok(body) if has_too_many_values(&body) => too_many_values_message(),
        Ok(body) => {
            return match (serde_json::from_slice(&body), request_id) {
                (Ok(message), _) => Ok(Some(message)),
                (Err(_), None) => Ok(None),
                (Err(error), Some(_)) => Err(unexpected(format!("not a message: {error}"))),
            };
        }
        Err(BodyTooLarge) => too_large_message(),
    };
    Ok(request_id.map(|id| oversized_response(id, problem)))
}

/// Reads a response with a status other than 2xx. It can contain a JSON-RPC error.
async fn read_failure(
    response: reqwest::Response,
    request_id: Option<RequestId>,
) -> Result<StreamableHttpPostResponse, HttpError> {
    let status = response.status();
    let retry_after = text_header(&response, header::RETRY_AFTER.as_str());
    let status_error = (status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error())
        .then(|| HttpStatusError::new(status.as_u16(), retry_after));
    let media_type = text_header(&response, header::CONTENT_TYPE.as_str());
    let is_json = media_type.is_some_and(|kind| kind.starts_with(JSON_MIME_TYPE));
    let is_auth = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    if is_json && !is_auth && status != StatusCode::TOO_MANY_REQUESTS {
        let message = read_json(response, request_id.clone()).await;
        if let Ok(Some(JsonRpcMessage::Error(mut error))) = message {
            // A server that rejects a request before it has read it does not know its id.
            error.id = request_id.or(error.id);
            let message = ServerJsonRpcMessage::Error(error);
            return Ok(StreamableHttpPostResponse::Json(message, None));
        }
        return Err(status_error.map_or_else(|| unexpected(format!("HTTP {status}")), Into::into));
    }
    if let Some(error) = status_error {
        return Err(error.into());
    }
    let mut text = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Ok(Some(chunk)) = chunks.try_next().await
        && text.len() < MAX_FAILURE_BYTES
    {
        text.extend_from_slice(&chunk[..chunk.len().min(MAX_FAILURE_BYTES)]);
    }
    let text = String::from_utf8_lossy(&text);
    Err(unexpected(format!("HTTP {status}: {text}")))
}

fn unexpected(reason: String) -> HttpError {
    StreamableHttpError::UnexpectedServerResponse(reason.into())
}

/// Returns the response that replaces an oversized one.
fn oversized_response(id: RequestId, problem: String) -> ServerJsonRpcMessage {
    let data = Some(oversized_error_data());
    let error = ErrorData::new(ErrorCode(OVERSIZED_CODE), problem, data);
    ServerJsonRpcMessage::error(error, Some(id))
}

/// Returns the events of a response to a request. An event that is too large is replaced by an
/// error for the request, and ends the stream.
fn response_events(response: reqwest::Response, request_id: Option<RequestId>) -> EventStream {
    let chunks = response.bytes_stream().map_err(std::io::Error::other);
    let chunks = chunks.scan(Some(EventSize::default()), |size, chunk| {
        let checked = size.take().map(|mut counted| match chunk {
            Ok(chunk) if counted.exceeds_limit(&chunk) => Err(std::io::Error::other(BodyTooLarge)),
            chunk => {
                *size = Some(counted);
                chunk
            }
        });
        std::future::ready(checked)
    });
    let replace = move |event: Result<Sse, SseError>| match (event, &request_id) {
        (Err(SseError::Body(error)), Some(id)) if is_too_large(&*error) => {
            let message = oversized_response(id.clone(), too_large_message());
            let data = serde_json::to_string(&message).unwrap_or_default();
            Ok(Sse::default().data(data))
        }
        (event, _) => event,
    };
    bound_events(SseStream::from_bytes_stream(chunks).map(replace))
}

/// Returns whether a limit of ours and not the connection ended a body.
fn is_too_large(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    let cause = error.and_then(std::io::Error::get_ref);
    cause.is_some_and(|cause| cause.is::<BodyTooLarge>())
}

/// Bounds the values of events, and delays what makes the client reconnect.
fn bound_events(events: impl Stream<Item = Result<Sse, SseError>> + Send + 'static) -> EventStream {
    let bounded = events.then(|event| async {
        let mut event = match event {
            Ok(event) => event,
            Err(error) => {
                // After an error, rmcp reconnects at once.
                tokio::time::sleep(MIN_RECONNECT_DELAY).await;
                return Err(error);
            }
        };
        let min_delay = MIN_RECONNECT_DELAY.as_millis() as u64;
        event.retry = event.retry.map(|delay| delay.max(min_delay));
        if let Some(data) = event
            .data
            .as_mut()
            .filter(|data| has_too_many_values(data.as_bytes()))
        {
            let ends = data.as_bytes();
            let id = find_response_id(ends, ends).and_then(|id| serde_json::from_value(id).ok());
            let message = id.map(|id| oversized_response(id, too_many_values_message()));
            let replaced = message.and_then(|message| serde_json::to_string(&message).ok());
            *data = replaced.unwrap_or_default();
        }
        Ok(event)
    });
    // Other tasks run between two events, also if a server sends them without a pause.
    let fair = bounded.then(|event| async {
        tokio::task::yield_now().await;
        event
    });
    fair.boxed()
}

/// Counts the bytes since the last blank line, which ends an event.
#[derive(Debug, Default)]
struct EventSize {
    bytes: usize,
    /// Whether the current line has no characters yet.
    is_blank_line: bool,
}

impl EventSize {
    /// Adds a part of a stream, and returns whether an event in it is too large.
    fn exceeds_limit(&mut self, chunk: &[u8]) -> bool {
        for byte in chunk {
            match byte {
                b'\n' | b'\r' if self.is_blank_line => self.bytes = 0,
                b'\n' | b'\r' => self.is_blank_line = true,
                _ => self.is_blank_line = false,
            }
            self.bytes += 1;
            if self.bytes > MAX_MESSAGE_BYTES {
                return true;
            }
        }
        false
    }
}
