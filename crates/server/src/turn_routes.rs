//! Routes that a client needs to follow a session from its latest turn, to show the turns before
//! it, and to create one.

use axum::Json;
use axum::extract::State;
use selvedge_protocol::{MAX_EVENT_READ, SessionEvent, TurnEnd};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiPath, ApiQuery, Caller};
use crate::state::SharedState;

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(get_latest_turn))
        .routes(routes!(list_turn_notes))
        .routes(routes!(list_environments))
}

/// The latest turn of a session that a server ran.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LatestTurn {
    /// Number of the turn. Missing if no server ran one.
    turn: Option<u64>,
    /// Pass it as `after` to `GET /sessions/{id}/events` to get the events of this turn.
    after: u64,
    /// The latest event `usage.updated`: tokens and cost of a turn, and of the model's context.
    #[schema(value_type = Option<Object>)]
    usage: Option<Value>,
}

/// Show the latest turn of a session: where its events begin, and its usage
#[utoipa::path(
    get, path = "/sessions/{id}/latest-turn", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, body = LatestTurn), (status = "4XX", body = ErrorBody)),
)]
async fn get_latest_turn(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
) -> Result<Json<LatestTurn>, ApiError> {
    let session = state.session(&caller, &id).await?;
    let events = &state.stores.events;
    let usage = events.latest_event(&session.id, "usage.updated").await?;
    let mut started = events.latest_event(&session.id, "turn.started").await?;
    let turn = started
        .as_ref()
        .and_then(|event| event.body["turn"].as_u64());
    // A turn that was continued after a crash has started several times.
    while let Some(event) = &started {
        let earlier = events.event_before(&session.id, "turn.started", event.number);
        match earlier.await? {
            Some(earlier) if earlier.body["turn"].as_u64() == turn => started = Some(earlier),
            _ => break,
        }
    }
    Ok(Json(LatestTurn {
        turn,
        after: started.map_or(0, |event| event.number.saturating_sub(1)),
        usage: usage.map(|event| event.body),
    }))
}

/// Types of the events that notes are made of.
const NOTED_EVENTS: [&str; 4] = [
    "turn.started",
    "memory.recalled",
    "turn.completed",
    "turn.failed",
];

/// Which notes to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListTurnNotes {
    /// The `next` of the response before. Defaults to the beginning.
    after: Option<u64>,
}

/// What the items of a turn do not say.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct TurnNote {
    /// Number of the turn.
    turn: u64,
    /// The event `memory.recalled`: what the memory added to the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    recalled: Option<Value>,
    /// Why the turn ended, if the model did not finish its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_reason: Option<String>,
    /// Why the turn failed: `kind` and `message`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    error: Option<Value>,
    /// What a person can do about the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// Whether the turn started again, so that its end in an earlier response does not count.
    #[serde(skip)]
    is_continued: bool,
}

impl TurnNote {
    fn new(turn: u64) -> Self {
        Self {
            turn,
            ..Self::default()
        }
    }

    /// Removes the end of a turn that starts again.
    fn continue_turn(&mut self) {
        *self = Self {
            recalled: self.recalled.take(),
            is_continued: true,
            ..Self::new(self.turn)
        };
    }

    /// Adds the end of the turn, from its event.
    fn end(&mut self, event: &Value) {
        let text = |name: &str| event[name].as_str().map(str::to_owned);
        self.finish_reason =
            text("finish_reason").filter(|reason| reason != TurnEnd::Stop.as_str());
        self.error = event.get("error").cloned();
        self.hint = text("hint");
    }

    fn is_listed(&self) -> bool {
        let has_end = self.finish_reason.is_some() || self.error.is_some();
        self.is_continued || self.recalled.is_some() || has_end
    }
}

/// Notes about turns.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TurnNoteList {
    /// Turns with a note, in order.
    turns: Vec<TurnNote>,
    /// Pass it as `after` to get the notes that follow. Missing at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

/// List what the memory added to turns of a session, and why turns failed or were stopped
///
/// Most turns have no such note and are not listed. A turn can be in two responses; what the later
/// one says about its end counts.
#[utoipa::path(
    get, path = "/sessions/{id}/turn-notes", tag = "sessions",
    params(("id" = String, Path), ListTurnNotes),
    responses((status = 200, body = TurnNoteList), (status = "4XX", body = ErrorBody)),
)]
async fn list_turn_notes(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
    ApiQuery(query): ApiQuery<ListTurnNotes>,
) -> Result<Json<TurnNoteList>, ApiError> {
    let session = state.session(&caller, &id).await?;
    let (events, after) = (&state.stores.events, query.after.unwrap_or(0));
    let page = events.events_of_kinds(&session.id, &NOTED_EVENTS, after, MAX_EVENT_READ);
    let page = page.await?;
    // The first events may be those of a turn that started before them.
    let before = after.saturating_add(1);
    let started = events.event_before(&session.id, "turn.started", before);
    let turn = started.await?.and_then(|event| event.body["turn"].as_u64());
    Ok(Json(TurnNoteList {
        turns: notes_of(&page, turn),
        next: page.last().map(|event| event.number),
    }))
}

/// Returns the notes that events in order make. `turn` started before them.
fn notes_of(events: &[SessionEvent], turn: Option<u64>) -> Vec<TurnNote> {
    let mut notes: Vec<TurnNote> = turn.map(TurnNote::new).into_iter().collect();
    for SessionEvent { body, .. } in events {
        let is_known = notes.last().map(|note| note.turn) == body["turn"].as_u64();
        match (body["type"].as_str(), notes.last_mut()) {
            // A turn that was suspended or interrupted by a crash starts again.
            (Some("turn.started"), Some(note)) if is_known => note.continue_turn(),
            (Some("turn.started"), _) => notes.extend(body["turn"].as_u64().map(TurnNote::new)),
            (Some("memory.recalled"), Some(note)) => note.recalled = Some(body.clone()),
            (Some("turn.completed" | "turn.failed"), Some(note)) if is_known => note.end(body),
            _ => {}
        }
    }
    notes.retain(TurnNote::is_listed);
    notes
}

/// Whose environments to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListEnvironments {
    /// Workspace, one of the token's. Defaults to the first one.
    workspace: Option<String>,
}

/// The environments of a workspace.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EnvironmentNames {
    /// Names of the environments, as `POST /sessions` takes them.
    environments: Vec<String>,
}

/// List the environments of a workspace
#[utoipa::path(
    get, path = "/environments", tag = "sessions", params(ListEnvironments),
    responses((status = 200, body = EnvironmentNames), (status = "4XX", body = ErrorBody)),
)]
async fn list_environments(
    State(state): State<SharedState>,
    caller: Caller,
    ApiQuery(query): ApiQuery<ListEnvironments>,
) -> Result<Json<EnvironmentNames>, ApiError> {
    let workspace = state.workspace(&caller, query.workspace.as_deref())?;
    let environments = state.host.environments(&workspace).await?;
    Ok(Json(EnvironmentNames { environments }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the notes of events with these types, numbers of turns and fields, as JSON.
    fn notes(events: &[(&str, Value)], turn: Option<u64>) -> Value {
        let events = (1..).zip(events).map(|(number, (kind, fields))| {
            let mut body = fields.clone();
            body["type"] = json!(kind);
            SessionEvent { number, body }
        });
        json!(notes_of(&events.collect::<Vec<_>>(), turn))
    }

    #[test]
    fn a_page_of_notes_may_begin_within_a_turn() {
        let recalled = ("memory.recalled", json!({"turns": 3}));
        let completed = |turn, reason| {
            let fields = json!({"turn": turn, "finish_reason": reason});
            ("turn.completed", fields)
        };
        let first = notes(&[recalled, completed(7, "stop")], Some(7));
        let event = json!({"type": "memory.recalled", "turns": 3});
        assert_eq!(first, json!([{"turn": 7, "recalled": event}]));
        let started = |turn| ("turn.started", json!({"turn": turn}));
        let suspended = notes(&[started(1), completed(1, "suspended"), started(2)], None);
        assert_eq!(
            suspended,
            json!([{"turn": 1, "finish_reason": "suspended"}])
        );
        // The turn continued, so that it was not the end.
        let continued = notes(&[started(1), completed(1, "stop"), started(2)], Some(1));
        assert_eq!(continued, json!([{"turn": 1}]));
    }
}
