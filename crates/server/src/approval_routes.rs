//! Routes of approvals: list and follow the requests that wait, and decide.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream::unfold;
use selvedge_protocol::{ApprovalDecider, ApprovalDeciderStore, CallDecision, DecisionRace};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::approvals::{ApprovalChange, ApprovalDecision, WaitingApproval};
use crate::caller::{ApiJson, ApiPath, ApiQuery, Caller};
use crate::event_stream::event_response;
use crate::metrics::GaugeGuard;
use crate::state::SharedState;

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(list_approvals))
        .routes(routes!(follow_approvals))
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

/// Approval requests that wait.
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

/// Follow the approval requests of all sessions as Server-Sent Events
///
/// First the requests that wait, each as `approval.requested` with the field `approval`, then
/// changes. `approval.closed` has the `id` of a request that no longer waits.
#[utoipa::path(
    get, path = "/approvals/events", tag = "approvals",
    responses(
        (status = 200, body = String, content_type = "text/event-stream"),
        (status = "4XX", body = ErrorBody),
    ),
)]
async fn follow_approvals(
    State(state): State<SharedState>,
    caller: Caller,
) -> Result<Response, ApiError> {
    let reader = ApprovalReader {
        state: state.clone(),
        caller,
        ready: VecDeque::new(),
        changes: None,
        _open: state.metrics.open_streams.enter(),
    };
    Ok(event_response(unfold(reader, async |mut reader| {
        let event = reader.next().await?;
        Some((Ok(Event::default().data(event.to_string())), reader))
    })))
}

/// Reads the changes of approval requests for one client.
struct ApprovalReader {
    state: SharedState,
    caller: Caller,
    ready: VecDeque<ApprovalChange>,
    /// `None` until the requests that wait were read.
    changes: Option<Receiver<ApprovalChange>>,
    _open: GaugeGuard,
}

impl ApprovalReader {
    /// Returns the next event; `None` when the server stops.
    async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some(change) = self.ready.pop_front() {
                let (session, event) = match change {
                    ApprovalChange::Asked(approval) => {
                        let view = ApprovalView::from(*approval);
                        let event = json!({"type": "approval.requested", "approval": view});
                        (view.session, event)
                    }
                    ApprovalChange::Closed { id, session } => {
                        (session, json!({"type": "approval.closed", "id": id}))
                    }
                };
                if self.state.session(&self.caller, &session).await.is_ok() {
                    return Some(event);
                }
            }
            let Some(changes) = &mut self.changes else {
                let (waiting, changes) = self.state.approvals.follow();
                let waiting = waiting.into_iter().map(Box::new);
                self.ready.extend(waiting.map(ApprovalChange::Asked));
                self.changes = Some(changes);
                continue;
            };
            let change = tokio::select! {
                change = changes.recv() => change,
                () = self.state.stopping.cancelled() => return None,
            };
            match change {
                Ok(change) => self.ready.push_back(change),
                // The client was too slow: it gets the whole list again.
                Err(RecvError::Lagged(_)) => self.changes = None,
                Err(RecvError::Closed) => return None,
            }
        }
    }
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
    /// What the client decides.
    decision: ApprovalChoice,
}

/// Decide about an approval request
///
/// Of several decisions about a request the first one counts; the others get status 409. The token
/// must also reach each `folder` that the calls give access to, except to deny them.
#[utoipa::path(
    post, path = "/approvals/{id}", tag = "approvals", params(("id" = String, Path)),
    request_body = DecideApproval,
    responses((status = 200, body = DecidedApproval), (status = "4XX", body = ErrorBody)),
)]
async fn decide_approval(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
    ApiJson(request): ApiJson<DecideApproval>,
) -> Result<Json<DecidedApproval>, ApiError> {
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
    let mut folders = approval
        .request
        .calls
        .iter()
        .filter_map(|call| call.folder.as_ref());
    if request.decision != ApprovalChoice::Deny
        && let Some(folder) = folders.find(|folder| !caller.token.allows_directory(folder))
    {
        return Err(ApiError::forbidden(format!(
            "the calls give access to {folder}, which the token cannot reach"
        )));
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
    let right = state.approvals.begin_decision(&id).ok_or_else(decided)?;
    let decision = match request.decision {
        ApprovalChoice::Once => CallDecision::Once,
        ApprovalChoice::SimilarCalls => CallDecision::SimilarCalls,
        ApprovalChoice::AllLaterCalls => CallDecision::AllLaterCalls,
        ApprovalChoice::Deny => CallDecision::Deny(request.reason),
    };
    let decisions = vec![decision; approval.request.calls.len()];
    // A task of its own: a client that disconnects does not stop it.
    let store = store_and_deliver(state.stores.deciders.clone(), decider, right, decisions);
    let done = tokio::spawn(store).await;
    done.map_err(|error| ApiError::internal(error.to_string()))??;
    Ok(Json(DecidedApproval {
        id,
        decision: request.decision,
    }))
}

/// Stores a decision and passes it to the turn. A decision that the turn does not receive is not
/// kept.
async fn store_and_deliver(
    deciders: Arc<dyn ApprovalDeciderStore>,
    decider: ApprovalDecider,
    right: ApprovalDecision,
    decisions: Vec<CallDecision>,
) -> Result<(), ApiError> {
    let id = decider.approval.clone();
    if deciders.record_decider(decider).await? == DecisionRace::Lost {
        return Err(ApiError::conflict(
            "the approval request is decided already",
        ));
    }
    if right.deliver(decisions) {
        return Ok(());
    }
    // The time limit was reached, or the turn was stopped meanwhile.
    deciders.remove_decider(&id).await?;
    Err(ApiError::conflict(
        "the turn no longer waits for the decision",
    ))
}
