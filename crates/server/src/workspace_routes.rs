//! The route of the workspaces of a token, which needs no scope.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::caller::Caller;
use crate::state::SharedState;

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new().routes(routes!(list_workspaces))
}

/// Workspaces of a token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkspaceList {
    /// Folders that the token can reach. The first one is used where a request names none.
    workspaces: Vec<String>,
}

/// List the workspaces of the token
#[utoipa::path(get, path = "/workspaces", tag = "workspaces", responses((status = 200, body = WorkspaceList)))]
async fn list_workspaces(caller: Caller) -> Json<WorkspaceList> {
    Json(WorkspaceList {
        workspaces: caller.token.workspaces.clone(),
    })
}
