//! Routes of approvals: list the requests that wait, and decide.

use axum::Json;
use axum::extract::{Path, State};
use selvedge_protocol::{ApprovalDecider, CallDecision, DecisionRace, TokenScope};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::approvals::WaitingApproval;
use crate::caller::{ApiJson, ApiQuery, Caller};
use crate::state::SharedState;

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(list_approvals))
        .routes(routes!(decide_approval))
}

/// An approval request that waits for a decision.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ApprovalView {
    /// Id of the request, `apr_…`.
    id: String,
    /// Id of the session whose turn asks.
    session: String,
    /// When it was asked, in milliseconds since 1970.
    asked_ms: i64,
    /// The calls that need approval, with what each would do.
    #[schema(value_type = Vec<Object>)]
    calls: Value,
}

impl From<WaitingApproval> for ApprovalView {
    fn from(approval: WaitingApproval) -> Self {
        Self {
            id: approval.request.id,
            session: approval.session,
            asked_ms: approval.asked_ms,
            calls: json!(approval.request.calls),
        }
    }
}

/// Approval requests.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ApprovalList {
    /// The requests that wait, the oldest first.
    approvals: Vec<ApprovalView>,
}

/// Which approval requests to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListApprovals {
    /// Only requests of this session.
    session: Option<String>,
}

/// List the approval requests that wait for a decision
#[utoipa::path(
    get, path = "/approvals", tag = "approvals", params(ListApprovals),
    responses((status = 200, body = ApprovalList), (status = "4XX", body = ErrorBody)),
)]
async fn list_approvals(
    State(state): State<SharedState>,
    caller: Caller,
    ApiQuery(query): ApiQuery<ListApprovals>,
) -> Result<Json<ApprovalList>, ApiError> {
    caller.require(TokenScope::Approvals)?;
    let mut approvals = Vec::new();
    for approval in state.approvals.list() {
        let is_wanted = query
            .session
            .as_ref()
            .is_none_or(|id| *id == approval.session);
        if is_wanted && state.session(&caller, &approval.session).await.is_ok() {
            approvals.push(ApprovalView::from(approval));
        }
    }
    Ok(Json(ApprovalList { approvals }))
}

/// A decision about all calls of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ApprovalChoice {
    /// Approve these calls.
    Once,
    /// Approve these calls and equivalent calls of the same script.
    SimilarCalls,
    /// Approve these calls and every later call of the same script.
    AllLaterCalls,
    /// Approve these calls and what their rules describe, from now on.
    Always,
    /// Deny the calls.
    Deny,
}

/// The decision about an approval request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DecideApproval {
    /// The decision about all calls of the request.
    decision: ApprovalChoice,
    /// Why the calls are denied, for the model.
    reason: Option<String>,
}

/// A decision that was made.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DecidedApproval {
    /// Id of the request.
    id: String,
    /// The decision.
    decision: ApprovalChoice,
}

/// Decide about an approval request
///
/// Of several decisions about a request the first one counts; the others get status 409.
#[utoipa::path(
    post, path = "/approvals/{id}", tag = "approvals", params(("id" = String, Path)),
    request_body = DecideApproval,
    responses((status = 200, body = DecidedApproval), (status = "4XX", body = ErrorBody)),
)]
async fn decide_approval(
    State(state): State<SharedState>,
    caller: Caller,
    Path(id): Path<String>,
    ApiJson(request): ApiJson<DecideApproval>,
) -> Result<Json<DecidedApproval>, ApiError> {
    caller.require(TokenScope::Approvals)?;
    let decided = || ApiError::conflict("the approval request is decided already");
    let Some(approval) = state.approvals.get(&id) else {
        // Another decision may have removed it.
        let earlier = state.stores.deciders.decider(&id).await?;
        let session = earlier.map(|decider| decider.session).unwrap_or_default();
        return Err(match state.session(&caller, &session).await {
            Ok(_) => decided(),
            Err(_) => ApiError::not_found(format!("approval request `{id}`")),
        });
    };
    if state.session(&caller, &approval.session).await.is_err() {
        return Err(ApiError::not_found(format!("approval request `{id}`")));
    }
    let decider = ApprovalDecider {
        approval: id.clone(),
        session: approval.session,
        token: caller.token.id.clone(),
        decision: json!(request.decision)
            .as_str()
            .unwrap_or_default()
            .to_owned(),
    };
    if state.stores.deciders.record_decider(decider).await? == DecisionRace::Lost {
        return Err(decided());
    }
    let decision = match request.decision {
        ApprovalChoice::Once => CallDecision::Once,
        ApprovalChoice::SimilarCalls => CallDecision::SimilarCalls,
        ApprovalChoice::AllLaterCalls => CallDecision::AllLaterCalls,
        ApprovalChoice::Always => CallDecision::Always,
        ApprovalChoice::Deny => CallDecision::Deny(request.reason),
    };
    let decisions = vec![decision; approval.request.calls.len()];
    match state.approvals.answer(&id, decisions) {
        true => Ok(Json(DecidedApproval {
            id,
            decision: request.decision,
        })),
        // The time limit was reached, or the turn was stopped meanwhile.
        false => Err(ApiError::conflict(
            "the turn no longer waits for the decision",
        )),
    }
}
