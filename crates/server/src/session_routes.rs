//! Routes of sessions: create, list, read, fork, stop, events, plan and children.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use selvedge_protocol::{
    NewSession, SessionError, SessionFilter, SessionFolder, SessionInfo, SessionState,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiJson, ApiPath, ApiQuery, Caller};
use crate::event_stream::{StreamEnd, session_events};
use crate::state::{ApiState, SharedState};

/// Most sessions that one request lists.
const MAX_LISTED_SESSIONS: u32 = 500;
/// Most items that one request lists.
const MAX_LISTED_ITEMS: usize = 1000;
/// Sessions that a request lists without `limit`.
const DEFAULT_LISTED_SESSIONS: u32 = 50;

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(create_session, list_sessions))
        .routes(routes!(get_session, delete_session))
        .routes(routes!(get_items))
        .routes(routes!(fork_session))
        .routes(routes!(stop_session))
        .routes(routes!(follow_events))
        .routes(routes!(get_plan))
        .routes(routes!(get_children))
}

/// A session of the token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionView {
    /// Id of the session, `ses_…`.
    id: String,
    /// Title of the session, or the first line of its first message.
    title: Option<String>,
    /// Name of its environment.
    environment: Option<String>,
    /// Folder that it works in.
    directory: String,
    /// Id of the session whose script created it.
    creator: Option<String>,
    /// `busy` while a process runs a turn of it or has it open, else `idle`.
    #[schema(example = "idle")]
    state: String,
    /// Number of messages that are not answered yet.
    queued: u32,
    /// Whether it works in a git worktree of its own.
    worktree: bool,
    /// When it was last used, in milliseconds since 1970.
    used_ms: i64,
}

impl From<SessionInfo> for SessionView {
    fn from(session: SessionInfo) -> Self {
        Self {
            id: session.id,
            title: session.title,
            environment: session.environment,
            directory: session.directory,
            creator: session.creator,
            state: match session.state {
                SessionState::Idle => "idle",
                SessionState::Busy => "busy",
                SessionState::Unserved => "unserved",
            }
            .to_owned(),
            queued: session.queued,
            worktree: session.folder == SessionFolder::Worktree,
            used_ms: session.touched_ms,
        }
    }
}

/// A list of sessions.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionsResponse {
    /// The sessions, the last used one first.
    sessions: Vec<SessionView>,
    /// Pass it as `after` to list further sessions. Missing at the end of the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<i64>,
}

impl SessionsResponse {
    /// Returns a page of a list. If it has fewer sessions than the limit, it is the last one.
    fn page(sessions: Vec<SessionInfo>, limit: u32) -> Self {
        let last = sessions.last().map(|session| session.touched_ms);
        Self {
            next: last.filter(|_| sessions.len() >= limit as usize),
            sessions: sessions.into_iter().map(SessionView::from).collect(),
        }
    }
}

/// A session to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSession {
    /// Folder to work in. Defaults to the first workspace of the token.
    workspace: Option<String>,
    /// Name of an environment of the workspace's configuration.
    environment: Option<String>,
    /// Title of the session.
    title: Option<String>,
    /// The first message, which starts a turn.
    prompt: Option<String>,
    /// Whether the session works in a git worktree of its own. Defaults to the environment.
    worktree: Option<bool>,
}

/// Create a session
#[utoipa::path(
    post, path = "/sessions", tag = "sessions", request_body = CreateSession,
    responses((status = 201, body = SessionView), (status = "4XX", body = ErrorBody)),
)]
async fn create_session(
    State(state): State<SharedState>,
    caller: Caller,
    ApiJson(request): ApiJson<CreateSession>,
) -> Result<(StatusCode, Json<SessionView>), ApiError> {
    let workspace = request.workspace.as_deref();
    let workspace = state.session_workspace(&caller, workspace)?;
    let environment = request.environment.as_deref();
    let place = state
        .host
        .session_place(&workspace, environment, request.worktree)
        .await?;
    if !caller.token.works_in(&place.directory) {
        let message = "the environment works in a folder that is no workspace of the token";
        return Err(ApiError::forbidden(message)
            .hint("run `selvedge serve token create --workspace DIR` for that folder"));
    }
    if request.prompt.is_some() {
        check_spending(&caller)?;
    }
    let session = NewSession {
        title: request.title,
        environment: request.environment,
        directory: place.directory,
        folder: place.folder,
        creator: caller.author(),
        permissions: None,
        prompt: request.prompt,
        idempotency_key: caller.message_key(),
        max_open_messages: Some(state.limits.queued_turns),
        max_client_sessions: Some(state.limits.sessions),
    };
    let session = state.stores.sessions.create(session).await?;
    state.workers.wake(&session.id);
    Ok((StatusCode::CREATED, Json(session.into())))
}

/// Fails if the clients of the token have created as many sessions as they may.
pub(crate) async fn check_session_limit(state: &ApiState, caller: &Caller) -> Result<(), ApiError> {
    let sessions = state
        .stores
        .queues
        .session_count(&caller.token.name)
        .await?;
    match sessions >= state.limits.sessions {
        false => Ok(()),
        true => Err(SessionError::TooManySessions(sessions).into()),
    }
}

/// Fails if the money of the token is spent.
pub(crate) fn check_spending(caller: &Caller) -> Result<(), ApiError> {
    let token = &caller.token;
    match (token.has_spent_all(), token.max_cost) {
        (true, Some(limit)) => {
            let message = format!("this token has spent {:.2} of {limit:.2}", token.spent);
            Err(ApiError::over_limit(message)
                .hint("run `selvedge serve token create --max-cost AMOUNT` for another token"))
        }
        _ => Ok(()),
    }
}

/// Fails if as many messages of the token wait as may, or its money is spent. The limit is compared
/// again when a message is stored; this is for requests that store something else before.
pub(crate) async fn check_queue_limit(state: &ApiState, caller: &Caller) -> Result<(), ApiError> {
    check_spending(caller)?;
    let queues = &state.stores.queues;
    let open = queues.open_message_count(&caller.token.name).await?;
    match open >= state.limits.queued_turns {
        false => Ok(()),
        true => Err(SessionError::TooManyOpen(open).into()),
    }
}

/// Which sessions to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListSessions {
    /// Only sessions that work in this folder or below. Defaults to all workspaces of the token.
    workspace: Option<String>,
    /// Only sessions whose title contains this text.
    title: Option<String>,
    /// Only sessions of this environment.
    environment: Option<String>,
    /// List the sessions after those of an earlier response: its `next`.
    after: Option<i64>,
    /// Maximum number of sessions, up to 500. Defaults to 50.
    limit: Option<u32>,
}

/// List the sessions
#[utoipa::path(
    get, path = "/sessions", tag = "sessions", params(ListSessions),
    responses((status = 200, body = SessionsResponse), (status = "4XX", body = ErrorBody)),
)]
async fn list_sessions(
    State(state): State<SharedState>,
    caller: Caller,
    ApiQuery(query): ApiQuery<ListSessions>,
) -> Result<Json<SessionsResponse>, ApiError> {
    let workspaces = match &query.workspace {
        Some(named) => vec![caller.workspace(Some(named))?],
        None => caller.token.workspaces.clone(),
    };
    let limit = query.limit.unwrap_or(DEFAULT_LISTED_SESSIONS);
    let limit = limit.clamp(1, MAX_LISTED_SESSIONS);
    let mut sessions = Vec::new();
    // Without a workspace, a filter would select all sessions.
    if !workspaces.is_empty() {
        let filter = SessionFilter {
            workspaces,
            title: query.title,
            environment: query.environment,
            touched_before_ms: query.after,
            limit,
            ..SessionFilter::default()
        };
        sessions = state.stores.sessions.list(filter).await?;
    }
    Ok(Json(SessionsResponse::page(sessions, limit)))
}

/// Show a session
#[utoipa::path(
    get, path = "/sessions/{id}", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, body = SessionView), (status = "4XX", body = ErrorBody)),
)]
async fn get_session(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
) -> Result<Json<SessionView>, ApiError> {
    Ok(Json(state.session(&caller, &id).await?.into()))
}

/// Delete a session with its turns, runs, worktree and memory, and the messages that wait for it
///
/// Copies of its turns in forks are deleted as well. Fails with 409 while a turn of it runs.
#[utoipa::path(
    delete, path = "/sessions/{id}", tag = "sessions", params(("id" = String, Path)),
    responses((status = 204), (status = "4XX", body = ErrorBody)),
)]
async fn delete_session(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
) -> Result<StatusCode, ApiError> {
    let session = state.session(&caller, &id).await?;
    if !state.resumed_scripts.stop_and_wait(&session.id).await {
        return Err(
            ApiError::conflict("a resumed script of the session did not stop in time")
                .hint("try again later"),
        );
    }
    state.host.delete_session(&session.id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// An item of a session.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ItemView {
    /// Position in the session, counted from 1.
    number: u64,
    /// Number of the turn that it belongs to.
    turn: u32,
    /// The item, as in events.
    #[schema(value_type = Object)]
    item: Value,
}

/// Items of a session.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ItemList {
    /// The items, in order.
    items: Vec<ItemView>,
    /// Number of items of the session.
    total: u64,
}

/// Which items to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListItems {
    /// List the items after this number.
    after: Option<u64>,
    /// Maximum number of items, up to 1000, which is the default.
    limit: Option<usize>,
}

/// List the items of a session: messages, reasoning, scripts, calls and results
#[utoipa::path(
    get, path = "/sessions/{id}/items", tag = "sessions",
    params(("id" = String, Path), ListItems),
    responses((status = 200, body = ItemList), (status = "4XX", body = ErrorBody)),
)]
async fn get_items(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
    ApiQuery(query): ApiQuery<ListItems>,
) -> Result<Json<ItemList>, ApiError> {
    let session = state.session(&caller, &id).await?;
    let after = query.after.unwrap_or(0);
    let limit = query
        .limit
        .unwrap_or(MAX_LISTED_ITEMS)
        .min(MAX_LISTED_ITEMS);
    let listed = state.host.items(&session.id, after, limit).await?;
    let numbered = (after.saturating_add(1)..).zip(listed.items);
    let items = numbered.map(|(number, (turn, item))| ItemView { number, turn, item });
    Ok(Json(ItemList {
        items: items.collect(),
        total: listed.total,
    }))
}

/// How to fork a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkSession {
    /// The last turn to copy. Defaults to all turns.
    up_to_turn: Option<u32>,
}

/// Fork a session: a new one with its turns
#[utoipa::path(
    post, path = "/sessions/{id}/fork", tag = "sessions", params(("id" = String, Path)),
    request_body = ForkSession,
    responses((status = 201, body = SessionView), (status = "4XX", body = ErrorBody)),
)]
async fn fork_session(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
    ApiJson(request): ApiJson<ForkSession>,
) -> Result<(StatusCode, Json<SessionView>), ApiError> {
    let session = state.session(&caller, &id).await?;
    // Held until the fork is counted, so that requests at the same time do not exceed the limit.
    let _forking = state.forking.lock().await;
    check_session_limit(&state, &caller).await?;
    let fork = state.host.fork(&session.id, request.up_to_turn).await?;
    let queues = &state.stores.queues;
    queues.count_session(&fork, &caller.token.name).await?;
    let fork = state.session(&caller, &fork).await?;
    Ok((StatusCode::CREATED, Json(fork.into())))
}

/// What to stop.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StopSession {
    /// Whether the turns of sessions stop as well that this session created, directly or through
    /// others.
    #[serde(default)]
    children: bool,
}

/// The turns and scripts that stop.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StoppedTurns {
    /// Whether a turn of the session was running, which now ends as `interrupted`, or a script that
    /// resumed a run of it.
    stopped: bool,
    /// Ids of the other sessions whose turns were running.
    children: Vec<String>,
}

/// Stop the running turn of a session, in whatever process, and its resumed scripts
///
/// Queued messages stay.
#[utoipa::path(
    post, path = "/sessions/{id}/stop", tag = "sessions", params(("id" = String, Path)),
    request_body = StopSession,
    responses((status = 200, body = StoppedTurns), (status = "4XX", body = ErrorBody)),
)]
async fn stop_session(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
    ApiJson(request): ApiJson<StopSession>,
) -> Result<Json<StoppedTurns>, ApiError> {
    let session = state.session(&caller, &id).await?;
    let stopped = state.stop_turn(&session.id).await?;
    let (mut children, mut creators) = (Vec::new(), Vec::new());
    if request.children {
        creators.push(session.id);
    }
    while let Some(creator) = creators.pop() {
        for child in reachable_children(&state, &caller, creator).await? {
            if state.stop_turn(&child.id).await? {
                children.push(child.id.clone());
            }
            creators.push(child.id);
        }
    }
    Ok(Json(StoppedTurns { stopped, children }))
}

/// Returns the sessions that scripts of a session created, as far as the token can reach them.
async fn reachable_children(
    state: &ApiState,
    caller: &Caller,
    creator: String,
) -> Result<Vec<SessionInfo>, ApiError> {
    let filter = SessionFilter {
        creator: Some(creator),
        limit: MAX_LISTED_SESSIONS,
        ..SessionFilter::default()
    };
    let mut children = state.stores.sessions.list(filter).await?;
    children.retain(|child| caller.token.works_in(&child.directory));
    Ok(children)
}

/// Which events to send.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FollowEvents {
    /// Send the events after this number. `Last-Event-ID` has precedence.
    after: Option<u64>,
    /// `false` ends the stream after the events that are stored now.
    follow: Option<bool>,
}

/// Follow the events of a session as Server-Sent Events
///
/// The events are those of `selvedge exec --json`. An event with an `id` is stored; the others are
/// parts of an open item. After a reconnect with `Last-Event-ID` every stored event follows that
/// was missed, then each open item again with its text so far.
#[utoipa::path(
    get, path = "/sessions/{id}/events", tag = "sessions",
    params(("id" = String, Path), FollowEvents, ("Last-Event-ID" = Option<String>, Header)),
    responses(
        (status = 200, body = String, content_type = "text/event-stream"),
        (status = "4XX", body = ErrorBody),
    ),
)]
async fn follow_events(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
    ApiQuery(query): ApiQuery<FollowEvents>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let session = state.session(&caller, &id).await?;
    let after = last_event_id(&headers)?.or(query.after).unwrap_or(0);
    let end = match query.follow {
        Some(false) => StreamEnd::AfterStored,
        _ => StreamEnd::Never,
    };
    let feed = state.feeds.feed(&session.id);
    let stopping = state.stopping.clone();
    Ok(session_events(feed, after, end, &state.metrics, stopping))
}

/// Returns the number in `Last-Event-ID`.
pub(crate) fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let Some(id) = headers.get("last-event-id") else {
        return Ok(None);
    };
    let number = id.to_str().ok().and_then(|id| id.trim().parse().ok());
    match number {
        Some(number) => Ok(Some(number)),
        None => Err(ApiError::invalid(
            "Last-Event-ID is not the number of an event",
        )),
    }
}

/// The plan of a session.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PlanView {
    /// The steps, in order. Empty if there is no plan.
    #[schema(value_type = Vec<Object>)]
    plan: Value,
    /// Reason that the model gave for the last change.
    #[schema(value_type = Option<String>)]
    explanation: Value,
}

/// Show the plan of a session
#[utoipa::path(
    get, path = "/sessions/{id}/plan", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, body = PlanView), (status = "4XX", body = ErrorBody)),
)]
async fn get_plan(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
) -> Result<Json<PlanView>, ApiError> {
    let session = state.session(&caller, &id).await?;
    let events = &state.stores.events;
    let latest = events.latest_event(&session.id, "plan.updated").await?;
    let mut body = latest.map(|event| event.body).unwrap_or_default();
    let plan = body["plan"].take();
    Ok(Json(PlanView {
        plan: if plan.is_null() {
            Value::Array(Vec::new())
        } else {
            plan
        },
        explanation: body["explanation"].take(),
    }))
}

/// List the sessions that scripts of a session created
#[utoipa::path(
    get, path = "/sessions/{id}/children", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, body = SessionsResponse), (status = "4XX", body = ErrorBody)),
)]
async fn get_children(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
) -> Result<Json<SessionsResponse>, ApiError> {
    let session = state.session(&caller, &id).await?;
    let children = reachable_children(&state, &caller, session.id).await?;
    Ok(Json(SessionsResponse::page(children, MAX_LISTED_SESSIONS)))
}
