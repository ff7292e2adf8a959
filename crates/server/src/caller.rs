//! Who makes a request, and extractors whose failures are errors of the API.

use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use selvedge_protocol::{
    ApiToken, ApprovalPolicy, AuthorKind, MessageAuthor, SandboxPolicy, TokenScope,
    TurnPermissions, WorkspaceReach,
};
use serde::de::DeserializeOwned;

use crate::api_error::ApiError;

/// A folder that no session works in, because folders of sessions are absolute.
const NO_WORKSPACE: &str = "none";

/// The token of a request, and the idempotency key if it has one.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) token: Arc<ApiToken>,
    pub(crate) idempotency_key: Option<String>,
}

impl Caller {
    /// Fails if the token does not have a scope.
    pub(crate) fn require(&self, scope: TokenScope) -> Result<(), ApiError> {
        match self.token.scopes.contains(&scope) {
            true => Ok(()),
            false => {
                let scope = scope.as_str();
                let message = format!("the token does not have the scope `{scope}`");
                let hint = format!("run `selvedge serve token create --scope {scope}`");
                Err(ApiError::forbidden(message).hint(hint))
            }
        }
    }

    /// Returns the caller as the author of messages.
    pub(crate) fn author(&self) -> MessageAuthor {
        MessageAuthor {
            kind: AuthorKind::Client,
            id: self.token.name.clone(),
        }
    }

    /// Returns the workspace of a request: the named one, else the first of the token. Fails if the
    /// token cannot reach it.
    pub(crate) fn workspace(&self, named: Option<&str>) -> Result<String, ApiError> {
        let workspace = named.or(self.token.workspaces.first().map(String::as_str));
        match workspace {
            Some(workspace) if self.token.works_in(workspace) => Ok(workspace.to_owned()),
            _ => Err(no_workspace()),
        }
    }

    /// Returns what turns may do that a post of the caller starts by mentioning a session. Only
    /// sessions of the token's first workspace get the post, and only if the token has the scope of
    /// sessions. Such turns never ask for approval.
    pub(crate) fn mention_permissions(&self) -> TurnPermissions {
        let first = self.token.workspaces.first().cloned();
        let may_send = self.token.scopes.contains(&TokenScope::Sessions);
        TurnPermissions {
            // The configuration of the session restricts these.
            sandbox: SandboxPolicy::DangerFullAccess,
            approval: ApprovalPolicy::Never,
            network: true,
            tool_packs: Vec::new(),
            tools: None,
            workspace: first
                .filter(|_| may_send)
                .unwrap_or(NO_WORKSPACE.to_owned()),
            reach: WorkspaceReach::FolderOnly,
            max_tokens: None,
            max_cost: None,
        }
    }

    /// Returns a key for stored messages that is the same for every attempt of this request.
    pub(crate) fn message_key(&self) -> Option<String> {
        let key = self.idempotency_key.as_ref()?;
        Some(format!("api/{}/{key}", self.token.id))
    }
}

/// Returns the error for a folder that is no workspace of the token.
pub(crate) fn no_workspace() -> ApiError {
    ApiError::not_found("such workspace").hint("name one of GET /api/v1/workspaces")
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(ApiError::unauthorized)
    }
}

/// A JSON body. An empty body is read as `{}`.
pub(crate) struct ApiJson<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for ApiJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        // The body was read and bounded when the request was admitted.
        let body = axum::body::to_bytes(request.into_body(), usize::MAX).await;
        let body = body.map_err(|error| ApiError::invalid(error.to_string()))?;
        let text: &[u8] = if body.is_empty() { b"{}" } else { &body };
        // A list would be read as the fields of an object in their order.
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(ApiError::invalid("the body is not a JSON object")
                .hint("send JSON as /openapi.json describes it"));
        }
        let value = serde_json::from_slice(text).map_err(|error| {
            ApiError::invalid(format!("the body is not valid: {error}"))
                .hint("send JSON as /openapi.json describes it")
        })?;
        Ok(Self(value))
    }
}

/// The parameters in the query of a request.
pub(crate) struct ApiQuery<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for ApiQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Self(value)),
            Err(error) => Err(ApiError::invalid(error.body_text())),
        }
    }
}

/// The parameters in the path of a request.
pub(crate) struct ApiPath<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for ApiPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Self(value)),
            Err(error) => Err(ApiError::invalid(error.body_text())),
        }
    }
}
