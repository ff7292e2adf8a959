//! Routes of what the memory keeps: the gradient of a session, a turn at each level, lessons and
//! topics.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use selvedge_protocol::TokenScope;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiJson, ApiPath, Caller};
use crate::hosted_memory::{
    AddLesson, EditLesson, HostedGradient, HostedLesson, HostedLessonScope, HostedTopics,
    HostedTurnLevel, LessonReview, UserLessonReach,
};
use crate::state::{ApiState, SharedState};

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(get_gradient))
        .routes(routes!(get_turn_levels))
        .routes(routes!(list_lessons, add_lesson))
        .routes(routes!(review_lesson, edit_lesson, forget_lesson))
        .routes(routes!(list_topics))
}

/// Show how a prompt contains the turns of a session: the gradient
#[utoipa::path(
    get, path = "/sessions/{id}/memory", tag = "memory", params(("id" = String, Path)),
    responses((status = 200, body = HostedGradient), (status = "4XX", body = ErrorBody)),
)]
async fn get_gradient(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
) -> Result<Json<HostedGradient>, ApiError> {
    let session = state.session(&caller, &id).await?;
    Ok(Json(state.host.memory_gradient(&session.id).await?))
}

/// A turn at all levels.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TurnLevels {
    /// The levels, the most detailed first.
    levels: Vec<HostedTurnLevel>,
}

/// Show a turn of a session at each level of the memory
#[utoipa::path(
    get, path = "/sessions/{id}/memory/{turn}", tag = "memory",
    params(("id" = String, Path), ("turn" = u32, Path)),
    responses((status = 200, body = TurnLevels), (status = "4XX", body = ErrorBody)),
)]
async fn get_turn_levels(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath((id, turn)): ApiPath<(String, u32)>,
) -> Result<Json<TurnLevels>, ApiError> {
    let session = state.session(&caller, &id).await?;
    let levels = state.host.memory_turn(&session.id, turn).await?;
    Ok(Json(TurnLevels { levels }))
}

/// Lessons of the token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LessonList {
    /// The lessons, the one that counts most first.
    lessons: Vec<HostedLesson>,
}

/// List the lessons of the workspaces of the token
///
/// Those that were learned only from sessions in the workspaces, and those that a person wrote for
/// their projects. With the scope `user-memory` also all that are used in all projects.
#[utoipa::path(
    get, path = "/memory/lessons", tag = "memory",
    responses((status = 200, body = LessonList), (status = "4XX", body = ErrorBody)),
)]
async fn list_lessons(
    State(state): State<SharedState>,
    caller: Caller,
) -> Result<Json<LessonList>, ApiError> {
    let lessons = lessons_of(&state, &caller).await?;
    Ok(Json(LessonList { lessons }))
}

/// Returns the lessons that the caller can list.
async fn lessons_of(state: &ApiState, caller: &Caller) -> Result<Vec<HostedLesson>, ApiError> {
    let user = match caller.require(TokenScope::UserMemory) {
        Ok(()) => UserLessonReach::All,
        Err(_) => UserLessonReach::Workspaces,
    };
    Ok(state.host.lessons(&caller.token.workspaces, user).await?)
}

/// A lesson that was stored.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AddedLesson {
    /// Id of the lesson, `les_…`.
    id: String,
}

/// Add a lesson that a person wrote
///
/// Needs the scopes `memory` and `approvals`: the lesson is part of later prompts of its project. A
/// lesson for all projects can be written only with a command.
#[utoipa::path(
    post, path = "/memory/lessons", tag = "memory", request_body = AddLesson,
    responses((status = 201, body = AddedLesson), (status = "4XX", body = ErrorBody)),
)]
async fn add_lesson(
    State(state): State<SharedState>,
    caller: Caller,
    ApiJson(request): ApiJson<AddLesson>,
) -> Result<(StatusCode, Json<AddedLesson>), ApiError> {
    caller.require(TokenScope::Approvals)?;
    let workspace = state.workspace(&caller, request.workspace.as_deref())?;
    let id = state.host.add_lesson(&workspace, request).await?;
    Ok((StatusCode::CREATED, Json(AddedLesson { id })))
}

/// A decision about a lesson.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LessonDecision {
    /// Use it from now on.
    Accept,
    /// Keep it, but do not use it.
    Decline,
}

/// The decision about a lesson.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReviewLesson {
    /// What to do with the lesson.
    decision: LessonDecision,
}

/// Accept or decline a lesson
///
/// Needs the scopes `memory` and `approvals`: an accepted lesson is part of later prompts. A lesson
/// that is used in all projects also needs `user-memory`.
#[utoipa::path(
    post, path = "/memory/lessons/{lesson}", tag = "memory",
    params(("lesson" = String, Path)),
    request_body = ReviewLesson,
    responses((status = 204), (status = "4XX", body = ErrorBody)),
)]
async fn review_lesson(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
    ApiJson(request): ApiJson<ReviewLesson>,
) -> Result<StatusCode, ApiError> {
    let review = match request.decision {
        LessonDecision::Accept => LessonReview::Accept,
        LessonDecision::Decline => LessonReview::Decline,
    };
    decide(&state, &caller, &id, review).await
}

/// Change the text of a lesson
///
/// Needs the scopes `memory` and `approvals`, and for a lesson that is used in all projects
/// `user-memory`.
#[utoipa::path(
    patch, path = "/memory/lessons/{lesson}", tag = "memory",
    params(("lesson" = String, Path)),
    request_body = EditLesson,
    responses((status = 204), (status = "4XX", body = ErrorBody)),
)]
async fn edit_lesson(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
    ApiJson(request): ApiJson<EditLesson>,
) -> Result<StatusCode, ApiError> {
    require_lesson(&state, &caller, &id).await?;
    state.host.edit_lesson(&id, request).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Delete a lesson
///
/// Needs the scopes `memory` and `approvals`, and for a lesson that is used in all projects
/// `user-memory`.
#[utoipa::path(
    delete, path = "/memory/lessons/{lesson}", tag = "memory",
    params(("lesson" = String, Path)),
    responses((status = 204), (status = "4XX", body = ErrorBody)),
)]
async fn forget_lesson(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(id): ApiPath<String>,
) -> Result<StatusCode, ApiError> {
    decide(&state, &caller, &id, LessonReview::Forget).await
}

/// Decides about a lesson that the caller can list.
async fn decide(
    state: &ApiState,
    caller: &Caller,
    id: &str,
    review: LessonReview,
) -> Result<StatusCode, ApiError> {
    require_lesson(state, caller, id).await?;
    state.host.review_lesson(id, review).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Fails unless the caller can list a lesson and decide about it. A lesson that is used in all
/// projects is part of prompts outside of the token's workspaces, and needs a scope of its own.
async fn require_lesson(state: &ApiState, caller: &Caller, id: &str) -> Result<(), ApiError> {
    caller.require(TokenScope::Approvals)?;
    let lessons = lessons_of(state, caller).await?;
    match lessons.iter().find(|lesson| lesson.id == id) {
        None => Err(ApiError::not_found(format!("lesson `{id}`"))),
        Some(lesson) if lesson.scope == HostedLessonScope::User => {
            caller.require(TokenScope::UserMemory)
        }
        Some(_) => Ok(()),
    }
}

/// Show the topics of sessions in the workspaces of the token over time
#[utoipa::path(
    get, path = "/memory/topics", tag = "memory",
    responses((status = 200, body = HostedTopics), (status = "4XX", body = ErrorBody)),
)]
async fn list_topics(
    State(state): State<SharedState>,
    caller: Caller,
) -> Result<Json<HostedTopics>, ApiError> {
    Ok(Json(state.host.topics(&caller.token.workspaces).await?))
}
