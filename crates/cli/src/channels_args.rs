//! The command line of `selvedge channels`.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum ChannelsCommand {
    /// Post a message to a channel, which is created if it does not exist
    Post(ChannelsPostArgs),
    /// Print messages of a channel, oldest first
    Read(ChannelsReadArgs),
    /// List channels, the one with the newest message first
    List(ChannelsListArgs),
    /// Make a session follow a channel: posts that mention it become messages to it
    Follow(ChannelsFollowArgs),
    /// Make a session no longer follow a channel
    Unfollow(ChannelsFollowArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ChannelsPostArgs {
    /// Name of the channel
    pub(crate) channel: String,

    /// Text of the message; `-` reads standard input
    pub(crate) message: String,

    /// Print the posted message as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChannelsReadArgs {
    /// Name of the channel
    pub(crate) channel: String,

    /// Print the messages after message N [default: the newest messages]
    #[arg(long, value_name = "N")]
    pub(crate) after: Option<u64>,

    /// Maximum number of messages, up to 500
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(crate) limit: u32,

    /// Keep printing messages as they are posted
    #[arg(long)]
    pub(crate) follow: bool,

    /// Print the result as JSON; with --follow, one message per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChannelsListArgs {
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChannelsFollowArgs {
    /// Name of the channel
    pub(crate) channel: String,

    /// Id of the session, a prefix of the id, or its name
    pub(crate) session: String,
}
