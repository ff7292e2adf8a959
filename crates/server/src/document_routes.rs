//! Routes of the workspace's documents. Each request is a call of a tool, so that the policy and
//! the gate of the workspace apply and the journal has it.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiJson, ApiQuery, Caller};
use crate::host::HostErrorKind;
use crate::state::SharedState;

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(query_documents))
        .routes(routes!(document_patterns))
        .routes(routes!(read_document, write_document))
}

/// A query for documents.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DocumentQueryRequest {
    /// Workspace to search, one of the token's. Defaults to the first one.
    workspace: Option<String>,
    /// Arguments of `workspace.query`: `kind`, `status`, `text`, `sort`, `limit`, any field.
    #[serde(default)]
    #[schema(value_type = Object)]
    query: Map<String, Value>,
}

/// Documents that match.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DocumentMatches {
    /// The result of `workspace.query`.
    #[schema(value_type = Object)]
    documents: Value,
}

/// Query documents of a workspace
#[utoipa::path(
    post, path = "/documents/query", tag = "documents", request_body = DocumentQueryRequest,
    responses((status = 200, body = DocumentMatches), (status = "4XX", body = ErrorBody)),
)]
async fn query_documents(
    State(state): State<SharedState>,
    caller: Caller,
    ApiJson(request): ApiJson<DocumentQueryRequest>,
) -> Result<Json<DocumentMatches>, ApiError> {
    let workspace = request.workspace.as_deref();
    let workspace = state.workspace(&caller, workspace)?;
    let args = Value::Object(request.query);
    let documents = state
        .host
        .call_tool(&workspace, "workspace.query", args)
        .await?;
    Ok(Json(DocumentMatches { documents }))
}

/// Whose patterns to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListPatterns {
    /// Workspace, one of the token's. Defaults to the first one.
    workspace: Option<String>,
}

/// Where documents of a workspace can be.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DocumentPatterns {
    /// Globs relative to the workspace, such as `issues/**/*.md`.
    patterns: Vec<String>,
}

/// List where documents of a workspace can be
#[utoipa::path(
    get, path = "/documents/patterns", tag = "documents", params(ListPatterns),
    responses((status = 200, body = DocumentPatterns), (status = "4XX", body = ErrorBody)),
)]
async fn document_patterns(
    State(state): State<SharedState>,
    caller: Caller,
    ApiQuery(query): ApiQuery<ListPatterns>,
) -> Result<Json<DocumentPatterns>, ApiError> {
    let workspace = state.workspace(&caller, query.workspace.as_deref())?;
    let patterns = state.host.document_patterns(&workspace).await?;
    Ok(Json(DocumentPatterns { patterns }))
}

/// Which document to read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ReadDocument {
    /// Workspace of the document, one of the token's. Defaults to the first one.
    workspace: Option<String>,
    /// Path of the document, relative to the workspace.
    path: String,
    /// Return the file as it is, in `content`, instead of its fields and its text.
    source: Option<bool>,
}

/// Read a document
#[utoipa::path(
    get, path = "/documents", tag = "documents", params(ReadDocument),
    responses((status = 200, body = Object), (status = "4XX", body = ErrorBody)),
)]
async fn read_document(
    State(state): State<SharedState>,
    caller: Caller,
    ApiQuery(query): ApiQuery<ReadDocument>,
) -> Result<Json<Value>, ApiError> {
    let workspace = state.workspace(&caller, query.workspace.as_deref())?;
    if query.source == Some(true) {
        let source = state.host.document_source(&workspace, &query.path);
        let content = source.await?;
        return Ok(Json(json!({"path": query.path, "content": content})));
    }
    let args = json!({"path": query.path});
    let document = state
        .host
        .call_tool(&workspace, "workspace.read", args)
        .await?;
    Ok(Json(document))
}

/// A document to write.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteDocument {
    /// Workspace of the document, one of the token's. Defaults to the first one.
    workspace: Option<String>,
    /// Path of the document, relative to the workspace.
    path: String,
    /// The whole document, with its front matter.
    content: String,
    /// The content that is replaced; empty for a new document. If the document has another content
    /// now, nothing is written and the response is 409. Without it, any content is replaced.
    replaces: Option<String>,
}

/// Write a document
#[utoipa::path(
    put, path = "/documents", tag = "documents", request_body = WriteDocument,
    responses((status = 200, body = Object), (status = "4XX", body = ErrorBody)),
)]
async fn write_document(
    State(state): State<SharedState>,
    caller: Caller,
    ApiJson(request): ApiJson<WriteDocument>,
) -> Result<Json<Value>, ApiError> {
    let workspace = request.workspace.as_deref();
    let workspace = state.workspace(&caller, workspace)?;
    if let Some(replaced) = request.replaces {
        let source = state.host.document_source(&workspace, &request.path).await;
        let now = match source {
            Err(error) if error.kind == HostErrorKind::NotFound => String::new(),
            source => source?,
        };
        // A repeated request finds its own content.
        if now != replaced && now != request.content {
            return Err(ApiError::conflict("the document was changed meanwhile")
                .hint("read it again, and repeat your change"));
        }
    }
    let args = json!({"path": request.path, "content": request.content});
    let written = state
        .host
        .call_tool(&workspace, "workspace.write", args)
        .await?;
    Ok(Json(written))
}
