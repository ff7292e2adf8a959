//! Errors of the API: `{"error": {"code", "message", "hint"}}` with an HTTP status.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use selvedge_protocol::{ChannelError, LedgerError, ServerStoreError, SessionError};
use serde::Serialize;
use utoipa::ToSchema;

use crate::host::{HostError, HostErrorKind};

/// After how many seconds a client may repeat a request that was over a limit.
const RETRY_AFTER_SECONDS: u32 = 5;

/// An error of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    hint: Option<String>,
    /// What failed in the server, for its log only: it may name files and settings.
    detail: Option<String>,
}

/// Body of a response that reports an error.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    error: ErrorDetail,
}

/// What went wrong.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorDetail {
    /// Name of the error, for programs.
    code: String,
    /// One line that says what failed.
    message: String,
    /// What to do instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            hint: None,
            detail: None,
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The request is wrong.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    /// There is no such thing, or the token cannot reach it.
    pub(crate) fn not_found(what: impl std::fmt::Display) -> Self {
        let message = format!("there is no {what}");
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// Returns whether the thing does not exist, or not for the caller.
    pub(crate) fn is_not_found(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
    }

    /// The request has no valid token.
    pub(crate) fn unauthorized() -> Self {
        let message = "a valid bearer token is required";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
            .hint("run `selvedge serve token create` on the server")
    }

    /// The token or the policy does not allow the request.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// The state of the thing does not allow the request.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    /// This server does not serve the folder that the request needs.
    pub(crate) fn not_served() -> Self {
        let message = "this server does not serve the workspace";
        Self::new(StatusCode::MISDIRECTED_REQUEST, "not_served", message)
            .hint("ask a server with the folder in `serve.workspaces`")
    }

    /// The idempotency key was used for another request.
    pub(crate) fn key_reused() -> Self {
        let message = "the Idempotency-Key was used for another request";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "key_reused", message)
            .hint("use a new key for each request")
    }

    /// A limit of the token is reached.
    pub(crate) fn over_limit(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "over_limit", message)
    }

    /// The body of a request is too large.
    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("the body is larger than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// The body of a request took too long.
    pub(crate) fn request_timeout() -> Self {
        let message = "the body did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
    }

    /// The path does not support the method.
    pub(crate) fn method_not_allowed() -> Self {
        let message = "this path does not support the method";
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            message,
        )
    }

    /// The server cannot take the request now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    /// The storage failed.
    fn storage(error: &LedgerError, detail: String) -> Self {
        match error {
            LedgerError::DiskFull(_) => {
                let message = "the disk of the server is full";
                let full = Self::new(StatusCode::INSUFFICIENT_STORAGE, "disk_full", message);
                let hint = "free space on the disk of the server, then repeat the request";
                Self {
                    detail: Some(detail),
                    ..full.hint(hint)
                }
            }
            LedgerError::Unavailable(_) => {
                let error = Self::unavailable("the server cannot reach its database");
                Self {
                    detail: Some(detail),
                    ..error.hint("repeat the request later; nothing of it was stored")
                }
            }
            _ => Self::internal(detail),
        }
    }

    /// The server failed. Clients do not see the detail.
    pub(crate) fn internal(detail: impl Into<String>) -> Self {
        let message = "the server could not handle the request";
        let error = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message);
        Self {
            detail: Some(detail.into()),
            ..error
        }
    }

    /// The turn that was to answer the request failed.
    pub(crate) fn turn_failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "turn_failed", message)
    }

    /// Writes the detail of a failure of the server to its log, and names the request in the
    /// response.
    pub(crate) fn log_detail(response: Response, request_id: &str) -> Response {
        let error = response.extensions().get::<Self>();
        let Some(mut error) = error.filter(|error| error.detail.is_some()).cloned() else {
            return response;
        };
        let detail = error.detail.take();
        tracing::error!(
            request = request_id,
            code = error.code,
            error = detail,
            "request failed"
        );
        error.message = format!("{}; its log has the request {request_id}", error.message);
        error.into_response()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ErrorBody {
            error: ErrorDetail {
                code: self.code.to_owned(),
                message: self.message.clone(),
                hint: self.hint.clone(),
            },
        };
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, RETRY_AFTER_SECONDS.into());
            }
            _ => {}
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<ServerStoreError> for ApiError {
    fn from(error: ServerStoreError) -> Self {
        let message = error.to_string();
        match &error {
            ServerStoreError::Storage(error) => Self::storage(error, message),
            _ => Self::internal(message),
        }
    }
}

impl From<SessionError> for ApiError {
    fn from(error: SessionError) -> Self {
        let message = error.to_string();
        match &error {
            SessionError::NotFound(id) => Self::not_found(format!("session `{id}`")),
            SessionError::MessageNotFound(..) => {
                Self::new(StatusCode::NOT_FOUND, "not_found", message)
            }
            SessionError::EmptyMessage => Self::invalid(message).hint("send a text"),
            SessionError::MessageTooLong(_) => Self::invalid(message),
            SessionError::QueueFull(_) => Self::over_limit(message),
            SessionError::TooManyOpen(_) | SessionError::TooManySessions(_) => {
                Self::over_limit(message).hint(error.hint().unwrap_or_default())
            }
            SessionError::Storage(error) => Self::storage(error, message),
            _ => Self::conflict(message),
        }
    }
}

impl From<ChannelError> for ApiError {
    fn from(error: ChannelError) -> Self {
        let message = error.to_string();
        match &error {
            ChannelError::NotFound(_) | ChannelError::SessionNotFound(_) => {
                Self::new(StatusCode::NOT_FOUND, "not_found", message)
            }
            ChannelError::Storage(error) => Self::storage(error, message),
            ChannelError::TooManyHops => Self::conflict(message),
            ChannelError::InvalidName(_) => {
                let hint = error.hint().unwrap_or_default();
                Self::invalid(message).hint(hint)
            }
            _ => Self::invalid(message),
        }
    }
}

impl From<HostError> for ApiError {
    fn from(error: HostError) -> Self {
        let mapped = match error.kind {
            HostErrorKind::NotFound => Self::new(StatusCode::NOT_FOUND, "not_found", error.message),
            HostErrorKind::Invalid => Self::invalid(error.message),
            HostErrorKind::Denied => Self::forbidden(error.message),
            HostErrorKind::Busy => Self::conflict(error.message),
            HostErrorKind::OtherServer => Self::not_served(),
            HostErrorKind::Failed => Self::internal(error.message),
        };
        Self {
            // A failure of the server is not the client's to resolve.
            hint: error.hint.filter(|_| mapped.detail.is_none()),
            ..mapped
        }
    }
}
