//! Route that checks the machine of the server, as `selvedge doctor` does.

use std::sync::LazyLock;

use axum::Json;
use axum::extract::State;
use selvedge_protocol::TokenScope;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiQuery, Caller};
use crate::host::{HostedCheck, HostedCheckState};
use crate::state::SharedState;

/// Checks that run at once: they start the engine of scripts, and one that never ends.
static CHECKS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(1));

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new().routes(routes!(check_health))
}

/// Which workspace to check.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct CheckHealth {
    /// Workspace, one of the token's. Defaults to the first one.
    workspace: Option<String>,
}

/// Result of one check.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CheckView {
    /// What was checked, such as `sandbox`.
    what: String,
    /// How it is.
    state: HostedCheckState,
    /// What was found, in one line.
    details: String,
}

impl From<HostedCheck> for CheckView {
    fn from(check: HostedCheck) -> Self {
        Self {
            what: check.what,
            state: check.state,
            details: check.details,
        }
    }
}

/// Results of all checks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthReport {
    /// The checks, as `selvedge doctor` shows them.
    checks: Vec<CheckView>,
}

/// Check the sandbox, the confinement of commands, the MCP servers and the model of a workspace
#[utoipa::path(
    get, path = "/health", tag = "health", params(CheckHealth),
    responses((status = 200, body = HealthReport), (status = "4XX", body = ErrorBody)),
)]
async fn check_health(
    State(state): State<SharedState>,
    caller: Caller,
    ApiQuery(query): ApiQuery<CheckHealth>,
) -> Result<Json<HealthReport>, ApiError> {
    let workspace = state.workspace(&caller, query.workspace.as_deref())?;
    let permit = CHECKS.acquire().await;
    let _permit = permit.map_err(|error| ApiError::internal(error.to_string()))?;
    let mut checks = state.host.check_health(&workspace).await?;
    if caller.require(TokenScope::Memory).is_ok() {
        checks.push(state.host.check_memory(&workspace).await?);
    }
    let checks = checks.into_iter().map(CheckView::from).collect();
    Ok(Json(HealthReport { checks }))
}
