//! The tools `channels.post`, `channels.read`, `channels.list` and `channels.follow`: messages
//! between people and sessions.

use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_protocol::{
    AuthorKind, BudgetShare, ChannelError, ChannelInfo, ChannelMessage, ChannelStore, Following,
    MAX_CHANNEL_READ, MessageAuthor, NewChannelMessage, ReadFrom, ToolSpec, TurnBudgets,
    TurnPermissions, share_of_budget,
};
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::built_in_spec;

/// Number of messages that `channels.read` returns if the call does not say.
const DEFAULT_READ: u32 = 50;

/// The channels that the tools use, and in whose name they post.
#[derive(Clone)]
pub struct ChannelAccess {
    /// Stores the channels.
    pub store: Arc<dyn ChannelStore>,
    /// Author of the messages. `None` if each run is an author of its own.
    pub author: Option<MessageAuthor>,
    /// What turns that the messages start may do at most.
    pub permissions: TurnPermissions,
    /// The remaining budgets of turns. `None` outside of an agent.
    pub budgets: Option<Arc<dyn TurnBudgets>>,
    /// Most messages that are not answered, of those that the same token pays for.
    pub max_open_messages: u32,
}

/// The message to post.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ChannelPostArgs {
    /// Name of the channel, such as `engineering`. It is created if it does not exist.
    channel: String,
    /// Text of the message.
    message: String,
}

/// The posted message.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChannelPostOutput {
    /// Position in the channel, counted from 1.
    number: u64,
    /// Ids of the sessions that will work on the message.
    queued: Vec<String>,
}

/// The messages to read.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ChannelReadArgs {
    /// Name of the channel.
    channel: String,
    /// Read the messages after this number; without it, the newest ones.
    after: Option<u64>,
    /// Maximum number of messages.
    #[serde(default = "default_read")]
    #[schemars(range(min = 1, max = 500))]
    limit: u32,
}

fn default_read() -> u32 {
    DEFAULT_READ
}

/// The tool lists all channels, so it takes no arguments.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ChannelListArgs {}

/// The channel to follow.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ChannelFollowArgs {
    /// Name of the channel.
    channel: String,
    /// Whether to follow it; `false` ends it.
    #[serde(default = "default_follow")]
    follow: bool,
}

fn default_follow() -> bool {
    true
}

/// Whether the session follows the channel now.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChannelFollowOutput {
    following: bool,
}

/// The tool `channels.post`.
pub(crate) struct ChannelPost(pub(crate) Option<ChannelAccess>);

impl Tool for ChannelPost {
    fn spec(&self) -> ToolSpec {
        let description = "Posts a message. `@title` or `@ses_…` sends it to a session that \
             follows the channel.";
        built_in_spec::<ChannelPostArgs, ChannelPostOutput>(
            "channels.post",
            &["channel", "message"],
            description,
        )
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let run = async move |args: ChannelPostArgs| {
            let access = require(&self.0)?;
            // The sessions that get the message share one half.
            let share = match args.message.contains('@') {
                true => BudgetShare::Half,
                false => BudgetShare::Rest,
            };
            let permissions = access.permissions_of(&call, share);
            let budget = permissions.budget();
            let message = NewChannelMessage {
                channel: args.channel,
                author: access.author_of(&call),
                text: args.message,
                idempotency_key: Some(call.idempotency_key.clone()),
                permissions: Some(permissions),
                max_open_messages: Some(access.max_open_messages),
            };
            let posted = access.store.post(message).await;
            if let (BudgetShare::Half, Some(budgets)) = (share, &access.budgets) {
                let (queued, refused) = posted.as_ref().map_or((0, 0), |receipt| {
                    (receipt.queued.len() as u32, receipt.refused.len() as u32)
                });
                let unused = match queued + refused {
                    0 => budget,
                    all => share_of_budget(budget, all, refused),
                };
                budgets.release(&call.scope_id, unused);
            }
            let receipt = posted.map_err(tool_error)?;
            for refused in receipt.refused {
                call.warn(format!("not delivered to {refused}"));
            }
            Ok(ChannelPostOutput {
                number: receipt.message.number,
                queued: receipt.queued,
            })
        };
        typed_call(args, run, |output: &ChannelPostOutput| {
            Some(format!("posted as message {}", output.number))
        })
    }
}

/// The tool `channels.read`.
pub(crate) struct ChannelRead(pub(crate) Option<ChannelAccess>);

impl Tool for ChannelRead {
    fn spec(&self) -> ToolSpec {
        built_in_spec::<ChannelReadArgs, Vec<ChannelMessage>>(
            "channels.read",
            &["channel"],
            "Returns messages of a channel, oldest first.",
        )
        .as_read_only()
    }

    fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
        let run = async |args: ChannelReadArgs| {
            let access = require(&self.0)?;
            let from = args.after.map_or(ReadFrom::Newest, ReadFrom::After);
            let limit = args.limit.min(MAX_CHANNEL_READ);
            let read = access.store.read(&args.channel, from, limit).await;
            read.map_err(tool_error)
        };
        typed_call(args, run, |messages: &Vec<ChannelMessage>| {
            Some(render(messages))
        })
    }
}

/// The tool `channels.list`.
pub(crate) struct ChannelList(pub(crate) Option<ChannelAccess>);

impl Tool for ChannelList {
    fn spec(&self) -> ToolSpec {
        built_in_spec::<ChannelListArgs, Vec<ChannelInfo>>(
            "channels.list",
            &[],
            "Lists the channels.",
        )
        .as_read_only()
    }

    fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
        let run = async |_: ChannelListArgs| {
            let access = require(&self.0)?;
            access.store.list().await.map_err(tool_error)
        };
        typed_call(args, run, |_: &Vec<ChannelInfo>| None)
    }
}

/// The tool `channels.follow`.
pub(crate) struct ChannelFollow(pub(crate) Option<ChannelAccess>);

impl Tool for ChannelFollow {
    fn spec(&self) -> ToolSpec {
        built_in_spec::<ChannelFollowArgs, ChannelFollowOutput>(
            "channels.follow",
            &["channel", "follow"],
            "Sends this session the posts of a channel that mention it.",
        )
    }

    fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
        let run = async |args: ChannelFollowArgs| {
            let access = require(&self.0)?;
            let author = access.author.as_ref();
            let Some(author) = author.filter(|author| author.kind == AuthorKind::Session) else {
                return Err(
                    ToolError::new("only a session can follow a channel").suggest(
                        "run `selvedge channels follow NAME SESSION` to make a session follow it",
                    ),
                );
            };
            let following = match args.follow {
                true => Following::On,
                false => Following::Off,
            };
            let follow = access.store.follow(&args.channel, &author.id, following);
            follow.await.map_err(tool_error)?;
            Ok(ChannelFollowOutput {
                following: args.follow,
            })
        };
        typed_call(args, run, |_: &ChannelFollowOutput| None)
    }
}

impl ChannelAccess {
    /// Returns the permissions of scripts, with the remaining budget of this turn.
    fn permissions_of(&self, call: &CallContext, share: BudgetShare) -> TurnPermissions {
        let budgets = self.budgets.as_deref();
        self.permissions.of_turn(&call.scope_id, budgets, share)
    }

    /// Returns the author of a message that this call posts.
    fn author_of(&self, call: &CallContext) -> MessageAuthor {
        self.author.clone().unwrap_or_else(|| MessageAuthor {
            kind: AuthorKind::Run,
            id: call.scope_id.clone(),
        })
    }
}

fn require(access: &Option<ChannelAccess>) -> Result<&ChannelAccess, ToolError> {
    access.as_ref().ok_or_else(|| {
        ToolError::new("channels are stored in the journal, which is turned off")
            .suggest("remove --ephemeral")
    })
}

fn tool_error(error: ChannelError) -> ToolError {
    let failure = ToolError::new(error.to_string());
    match error.hint() {
        Some(hint) => failure.suggest(hint),
        None => failure,
    }
}

fn render(messages: &[ChannelMessage]) -> String {
    if messages.is_empty() {
        return "no messages".to_owned();
    }
    let render_one = |message: &ChannelMessage| {
        format!(
            "#{} {}: {}\n",
            message.number, message.author.id, message.text
        )
    };
    messages.iter().map(render_one).collect()
}
