//! Routes of channels: list, read, post, follow, and the sessions that follow.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use selvedge_protocol::{
    AuthorKind, ChannelInfo, ChannelMessage, Following, MAX_CHANNEL_READ, NewChannelMessage,
    ReadFrom, TokenScope, check_channel_name,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiJson, ApiPath, ApiQuery, Caller};
use crate::event_stream::channel_messages;
use crate::session_routes::last_event_id;
use crate::state::{ApiState, SharedState};

/// Messages that a request reads without `limit`.
const DEFAULT_READ: u32 = 50;

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(list_channels))
        .routes(routes!(read_channel, post_to_channel))
        .routes(routes!(follow_channel))
        .routes(routes!(add_follower, remove_follower))
}

/// A channel with its size.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChannelView {
    /// Name of the channel.
    name: String,
    /// Number of messages, which is the number of the newest one.
    messages: u64,
    /// When the newest message was posted, in milliseconds since 1970.
    time: i64,
    /// Ids of the token's sessions that follow the channel.
    followers: Vec<String>,
}

impl From<ChannelInfo> for ChannelView {
    fn from(channel: ChannelInfo) -> Self {
        Self {
            name: channel.name,
            messages: channel.messages,
            time: channel.time,
            followers: channel.followers,
        }
    }
}

/// The channels of the user.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChannelsResponse {
    /// All channels, the one with the newest message first.
    channels: Vec<ChannelView>,
}

/// A message of a channel.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PostView {
    /// Name of the channel.
    channel: String,
    /// Position in the channel, counted from 1 without gaps.
    number: u64,
    /// Who posted it: the name of a person or token, or the id of a session or run.
    author: String,
    /// Title of the session that posted it, if the token can reach it.
    author_title: Option<String>,
    /// Whether a client with the same token posted it.
    is_own: bool,
    /// Text of the message.
    text: String,
    /// When it was posted, in milliseconds since 1970.
    time: i64,
    /// Ids and titles of sessions after `@` in the text.
    mentions: Vec<String>,
    /// Number of sessions that posted because of each other, up to this message.
    hops: u32,
    /// The message or turn that led to this one.
    cause: Option<String>,
}

impl PostView {
    pub(crate) async fn new(state: &ApiState, caller: &Caller, message: ChannelMessage) -> Self {
        let may_see = caller.require(TokenScope::Sessions).is_ok();
        let author_title = match message.author.kind {
            AuthorKind::Session if may_see => {
                let session = state.session(caller, &message.author.id).await;
                session.ok().and_then(|session| session.title)
            }
            _ => None,
        };
        Self {
            is_own: message.author == caller.author(),
            author_title,
            channel: message.channel,
            number: message.number,
            author: message.author.id,
            text: message.text,
            time: message.time,
            mentions: message.mentions,
            hops: message.hops,
            cause: message.cause,
        }
    }
}

/// Messages of a channel.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PostList {
    /// The messages, oldest first.
    messages: Vec<PostView>,
}

/// A message to post.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PostMessage {
    /// Text of the message.
    text: String,
}

/// A posted message, and who received it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PostedMessage {
    /// Text of the message.
    message: PostView,
    /// Ids of the sessions for which it is queued.
    queued: Vec<String>,
    /// Mentioned sessions of the token that do not get it, each with the reason.
    refused: Vec<String>,
}

/// List the channels
#[utoipa::path(
    get, path = "/channels", tag = "channels",
    responses((status = 200, body = ChannelsResponse), (status = "4XX", body = ErrorBody)),
)]
async fn list_channels(
    State(state): State<SharedState>,
    caller: Caller,
) -> Result<Json<ChannelsResponse>, ApiError> {
    let channels = state.stores.channels.list().await?;
    let mut channels: Vec<ChannelView> = channels.into_iter().map(ChannelView::from).collect();
    for channel in &mut channels {
        channel.followers = usable_sessions(&state, &caller, &channel.followers).await;
    }
    Ok(Json(ChannelsResponse { channels }))
}

/// Returns the texts that begin with the id of a session that the caller can use. Others do not
/// exist for it.
async fn usable_sessions(state: &SharedState, caller: &Caller, texts: &[String]) -> Vec<String> {
    let mut usable = Vec::new();
    if caller.require(TokenScope::Sessions).is_ok() {
        for text in texts {
            let id = text.split(':').next().unwrap_or_default();
            if state.session(caller, id).await.is_ok() {
                usable.push(text.clone());
            }
        }
    }
    usable
}

/// Which messages to read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ReadChannel {
    /// Read the messages after this number. Defaults to the newest messages.
    after: Option<u64>,
    /// Maximum number of messages, up to 500.
    limit: Option<u32>,
}

/// Read messages of a channel
#[utoipa::path(
    get, path = "/channels/{name}/messages", tag = "channels",
    params(("name" = String, Path), ReadChannel),
    responses((status = 200, body = PostList), (status = "4XX", body = ErrorBody)),
)]
async fn read_channel(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(name): ApiPath<String>,
    ApiQuery(query): ApiQuery<ReadChannel>,
) -> Result<Json<PostList>, ApiError> {
    let from = query.after.map_or(ReadFrom::Newest, ReadFrom::After);
    let limit = query.limit.unwrap_or(DEFAULT_READ).min(MAX_CHANNEL_READ);
    let messages = state.stores.channels.read(&name, from, limit).await?;
    let mut views = Vec::new();
    for message in messages {
        views.push(PostView::new(&state, &caller, message).await);
    }
    Ok(Json(PostList { messages: views }))
}

/// Post a message to a channel, which is created if it does not exist
#[utoipa::path(
    post, path = "/channels/{name}/messages", tag = "channels", params(("name" = String, Path)),
    request_body = PostMessage,
    responses((status = 201, body = PostedMessage), (status = "4XX", body = ErrorBody)),
)]
async fn post_to_channel(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(name): ApiPath<String>,
    ApiJson(request): ApiJson<PostMessage>,
) -> Result<(StatusCode, Json<PostedMessage>), ApiError> {
    let message = NewChannelMessage {
        channel: name,
        author: caller.author(),
        text: request.text,
        idempotency_key: caller.message_key(),
        permissions: Some(caller.mention_permissions()),
        max_open_messages: Some(state.limits.queued_turns),
    };
    let receipt = state.stores.channels.post(message).await?;
    for session in &receipt.queued {
        state.workers.wake(session);
    }
    let posted = PostedMessage {
        message: PostView::new(&state, &caller, receipt.message).await,
        queued: receipt.queued,
        refused: usable_sessions(&state, &caller, &receipt.refused).await,
    };
    Ok((StatusCode::CREATED, Json(posted)))
}

/// Make a session follow a channel: a post that mentions it becomes its next message
///
/// Needs the scopes `channels` and `sessions`.
#[utoipa::path(
    put, path = "/channels/{name}/followers/{session}", tag = "channels",
    params(("name" = String, Path), ("session" = String, Path)),
    responses((status = 204), (status = "4XX", body = ErrorBody)),
)]
async fn add_follower(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath((name, session)): ApiPath<(String, String)>,
) -> Result<StatusCode, ApiError> {
    set_following(&state, &caller, &name, &session, Following::On).await
}

/// Make a session no longer follow a channel
///
/// Needs the scopes `channels` and `sessions`.
#[utoipa::path(
    delete, path = "/channels/{name}/followers/{session}", tag = "channels",
    params(("name" = String, Path), ("session" = String, Path)),
    responses((status = 204), (status = "4XX", body = ErrorBody)),
)]
async fn remove_follower(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath((name, session)): ApiPath<(String, String)>,
) -> Result<StatusCode, ApiError> {
    set_following(&state, &caller, &name, &session, Following::Off).await
}

async fn set_following(
    state: &ApiState,
    caller: &Caller,
    channel: &str,
    session: &str,
    following: Following,
) -> Result<StatusCode, ApiError> {
    caller.require(TokenScope::Sessions)?;
    check_channel_name(channel)?;
    let session = state.session(caller, session).await?.id;
    let channels = &state.stores.channels;
    channels.follow(channel, &session, following).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Where to begin.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FollowChannel {
    /// Send the messages after this number. `Last-Event-ID` has precedence.
    after: Option<u64>,
}

/// Follow a channel as Server-Sent Events
#[utoipa::path(
    get, path = "/channels/{name}/events", tag = "channels",
    params(("name" = String, Path), FollowChannel, ("Last-Event-ID" = Option<String>, Header)),
    responses(
        (status = 200, body = String, content_type = "text/event-stream"),
        (status = "4XX", body = ErrorBody),
    ),
)]
async fn follow_channel(
    State(state): State<SharedState>,
    caller: Caller,
    ApiPath(name): ApiPath<String>,
    ApiQuery(query): ApiQuery<FollowChannel>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    check_channel_name(&name)?;
    let after = last_event_id(&headers)?.or(query.after).unwrap_or(0);
    // A channel that does not exist is an error now, not an empty stream.
    let channels = &state.stores.channels;
    channels.read(&name, ReadFrom::After(after), 1).await?;
    Ok(channel_messages(state, caller, name, after))
}
