//! Routes of approvals: list and follow the requests that wait, and decide.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream::unfold;
use selvedge_protocol::{
    ApprovalDecider, ApprovalDeciderStore, CallDecision, DecisionRace, SessionInfo,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::approvals::{ApprovalChange, ApprovalDecision, WaitingApproval};
use crate::caller::{ApiJson, ApiPath, ApiQuery, Caller};
use crate::event_stream::event_response;
use crate::metrics::GaugeGuard;
use crate::shared_approvals::KnownApprovals;
use crate::state::SharedState;

/// How often a stream looks for approval requests of other servers.
const OTHER_SERVERS_POLL_INTERVAL: Duration = Duration::from_secs(1);

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
    /// Title of the session.
    title: Option<String>,
    /// Folder that the session works in.
    directory: String,
    /// When it was asked, in milliseconds since 1970.
    asked_ms: i64,
    /// When the calls are denied without a decision, in milliseconds since 1970. Missing without a
    /// time limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_ms: Option<i64>,
    /// Id of the run or turn that makes the calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    /// The calls that need approval, with what each would do.
    #[schema(value_type = Vec<Object>)]
    calls: Value,
}

impl ApprovalView {
    fn new(approval: WaitingApproval, session: SessionInfo) -> Self {
        Self {
            id: approval.request.id,
            session: approval.session,
            title: session.title,
            directory: session.directory,
            asked_ms: approval.asked_ms,
            expires_ms: approval.request.expires_ms,
            run: approval.request.scope_id,
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
    let mut waiting = state.approvals.list();
    if let Some(shared) = &state.approvals.shared {
        let mut others = shared.announced().await?;
        for own in &waiting {
            others.remove(&own.request.id);
        }
        waiting.extend(others.into_values());
        waiting.sort_by_key(|approval| approval.asked_ms);
    }
    let mut approvals = Vec::new();
    for approval in waiting {
        let is_wanted = query
            .session
            .as_ref()
            .is_none_or(|id| *id == approval.session);
        if is_wanted && let Ok(session) = state.session(&caller, &approval.session).await {
            approvals.push(ApprovalView::new(approval, session));
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
        known: KnownApprovals::default(),
        next_poll: Instant::now(),
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
    /// The requests of other servers, which are read again and again.
    known: KnownApprovals,
    next_poll: Instant,
    _open: GaugeGuard,
}

impl ApprovalReader {
    /// Reads what changed on other servers. Returns `None` if that fails; the stream then ends and
    /// the client connects again.
    async fn read_other_servers(&mut self) -> Option<()> {
        if let Some(shared) = &self.state.approvals.shared {
            let changes = self.known.changes(shared, &self.state.approvals).await;
            self.ready.extend(changes.ok()?);
        }
        Some(())
    }

    /// Returns the next event; `None` when the server stops.
    async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some(change) = self.ready.pop_front() {
                let session = match &change {
                    ApprovalChange::Asked(approval) => &approval.session,
                    ApprovalChange::Closed { session, .. } => session,
                };
                let session = match self.state.session(&self.caller, session).await {
                    Ok(session) => session,
                    Err(error) if error.is_not_found() => continue,
                    // The stream ends if the storage fails; the client connects again.
                    Err(_) => return None,
                };
                return Some(match change {
                    ApprovalChange::Asked(approval) => {
                        let view = ApprovalView::new(*approval, session);
                        json!({"type": "approval.requested", "approval": view})
                    }
                    ApprovalChange::Closed { id, .. } => {
                        json!({"type": "approval.closed", "id": id})
                    }
                });
            }
            let Some(changes) = &mut self.changes else {
                let (waiting, changes) = self.state.approvals.follow();
                let waiting = waiting.into_iter().map(Box::new);
                self.ready.extend(waiting.map(ApprovalChange::Asked));
                self.changes = Some(changes);
                continue;
            };
            let next_poll = self.next_poll;
            let change = tokio::select! {
                change = changes.recv() => change,
                () = self.state.stopping.cancelled() => return None,
                () = tokio::time::sleep_until(next_poll) => {
                    self.next_poll = Instant::now() + OTHER_SERVERS_POLL_INTERVAL;
                    self.read_other_servers().await?;
                    continue;
                }
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

impl ApprovalChoice {
    /// Reads a stored choice.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        serde_json::from_value(text.into()).ok()
    }
}

/// Returns the decision about a call.
pub(crate) fn call_decision(choice: ApprovalChoice, reason: Option<String>) -> CallDecision {
    match choice {
        ApprovalChoice::Once => CallDecision::Once,
        ApprovalChoice::SimilarCalls => CallDecision::SimilarCalls,
        ApprovalChoice::AllLaterCalls => CallDecision::AllLaterCalls,
        ApprovalChoice::Deny => CallDecision::Deny(reason),
    }
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
    let (approval, place) = match state.approvals.get(&id) {
        Some(approval) => (approval, DecisionPlace::Here),
        None => (
            announced_elsewhere(&state, &caller, &id).await?,
            DecisionPlace::OtherServer,
        ),
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
        && let Some(folder) = folders.find(|folder| !caller.token.works_in(folder))
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
        reason: request.reason.clone(),
    };
    // A task of its own: a client that disconnects does not stop it.
    let done = match place {
        DecisionPlace::Here => {
            let right = state.approvals.begin_decision(&id);
            let right = right.ok_or_else(decided_already)?;
            let decision = call_decision(request.decision, request.reason);
            let decisions = vec![decision; approval.request.calls.len()];
            let deciders = state.stores.deciders.clone();
            tokio::spawn(store_and_deliver(deciders, decider, right, decisions)).await
        }
        DecisionPlace::OtherServer => tokio::spawn(store_for_other(state.clone(), decider)).await,
    };
    done.map_err(|error| ApiError::internal(error.to_string()))??;
    Ok(Json(DecidedApproval {
        id,
        decision: request.decision,
    }))
}

/// Which server runs the turn that waits for a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DecisionPlace {
    Here,
    OtherServer,
}

pub(crate) fn no_longer_waits() -> ApiError {
    ApiError::conflict("the turn no longer waits for the decision")
}

fn decided_already() -> ApiError {
    ApiError::conflict("the approval request is decided already")
}

/// Returns an approval request that does not wait here but on another server.
async fn announced_elsewhere(
    state: &SharedState,
    caller: &Caller,
    id: &str,
) -> Result<WaitingApproval, ApiError> {
    if let Some(shared) = &state.approvals.shared
        && let Some(approval) = shared.announced().await?.remove(id)
    {
        return Ok(approval);
    }
    // Another decision may have removed it.
    let earlier = state.stores.deciders.decider(id).await?;
    let session = earlier.map(|decider| decider.session).unwrap_or_default();
    Err(match state.session(caller, &session).await {
        Ok(_) => decided_already(),
        Err(_) => ApiError::not_found(format!("approval request `{id}`")),
    })
}

/// Stores a decision for a turn on another server, and waits until it was received.
async fn store_for_other(state: SharedState, decider: ApprovalDecider) -> Result<(), ApiError> {
    let Some(shared) = &state.approvals.shared else {
        return Err(no_longer_waits());
    };
    let id = decider.approval.clone();
    match shared.store.decide_announced(decider).await? {
        DecisionRace::Won => shared.wait_for_delivery(&id).await,
        DecisionRace::Lost => Err(decided_already()),
        DecisionRace::Closed => Err(no_longer_waits()),
    }
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
        return Err(decided_already());
    }
    if right.deliver(decisions) {
        return Ok(());
    }
    // The time limit was reached, or the turn was stopped meanwhile.
    deciders.remove_decider(&id).await?;
    Err(no_longer_waits())
}
