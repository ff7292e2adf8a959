//! `selvedge channels`: posts, reads and lists messages between people and sessions. Also the
//! channels that scripts use.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use selvedge_journal::{Journal, Redactor};
use selvedge_protocol::{
    AuthorKind, ChannelError, ChannelMessage, ChannelStore, Following, MessageAuthor,
    NewChannelMessage, ReadFrom, TokenScope, ToolSpec, since_epoch,
};
use selvedge_toolbox::ChannelAccess;
use serde_json::json;

use crate::CliStatus;
use crate::channels_args::{
    ChannelsCommand, ChannelsFollowArgs, ChannelsListArgs, ChannelsPostArgs, ChannelsReadArgs,
};
use crate::list_table::print_list;
use crate::output::{print_json, print_json_text, print_line, print_text};
use crate::problem::Problem;
use crate::run::runtime;
use crate::runs::{format_age, open_user_journal, open_user_journal_read_only, user_redactor};
use crate::sessions::session_problem;
use crate::setup::CliSetup;

/// How often `read --follow` looks for new messages.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) fn channels(command: ChannelsCommand) -> Result<CliStatus> {
    let runtime = runtime()?;
    match command {
        ChannelsCommand::Post(args) => runtime.block_on(post(&*open_user_journal()?, args)),
        ChannelsCommand::Read(args) => {
            runtime.block_on(read(&*open_user_journal_read_only()?, &args))
        }
        ChannelsCommand::List(args) => {
            runtime.block_on(list(&*open_user_journal_read_only()?, &args))
        }
        ChannelsCommand::Follow(args) => {
            runtime.block_on(follow(&open_user_journal()?, &args, Following::On))
        }
        ChannelsCommand::Unfollow(args) => {
            runtime.block_on(follow(&open_user_journal()?, &args, Following::Off))
        }
    }
}

async fn post(channels: &dyn ChannelStore, args: ChannelsPostArgs) -> Result<CliStatus> {
    let text = read_message(args.message)?;
    let message = NewChannelMessage {
        channel: args.channel,
        author: this_person(),
        text,
        idempotency_key: None,
        permissions: None,
        max_open_messages: None,
    };
    let receipt = channels.post(message).await;
    let receipt = receipt.map_err(|error| channel_problem(&error))?;
    for refused in &receipt.refused {
        eprint_line!("warning: not delivered to {refused}");
    }
    let message = &receipt.message;
    if args.json {
        return print_json(&json!({"message": message, "queued": receipt.queued}));
    }
    print_line(&format!("{}#{}", message.channel, message.number))?;
    for session in &receipt.queued {
        eprint_line!("note: queued for {session}");
    }
    Ok(CliStatus::Success)
}

/// Returns a message: the argument, or standard input if the argument is `-`.
pub(crate) fn read_message(argument: String) -> Result<String, Problem> {
    match argument.as_str() {
        "-" if std::io::stdin().is_terminal() => Ok(String::new()),
        "-" => std::io::read_to_string(std::io::stdin().lock()).map_err(|error| {
            Problem::new(format!(
                "cannot read the message from standard input: {error}"
            ))
            .hint("pass the message as UTF-8 text")
        }),
        _ => Ok(argument),
    }
}

async fn read(channels: &dyn ChannelStore, args: &ChannelsReadArgs) -> Result<CliStatus> {
    let redactor = user_redactor()?;
    let from = args.after.map_or(ReadFrom::Newest, ReadFrom::After);
    let messages = channels.read(&args.channel, from, args.limit).await;
    let messages = messages.map_err(|error| channel_problem(&error))?;
    if !args.follow && args.json {
        let shown: Vec<_> = messages
            .iter()
            .map(|message| redactor.redact_value(&json!(message)))
            .collect();
        return print_json(&shown);
    }
    if !args.follow {
        for message in &messages {
            print_message(message, &redactor)?;
        }
        if messages.is_empty() {
            eprint_line!("note: there are no such messages");
        }
        return Ok(CliStatus::Success);
    }
    let mut last = args.after.unwrap_or_default();
    let mut messages = messages;
    loop {
        for message in &messages {
            last = last.max(message.number);
            match args.json {
                true => print_json_text(&redactor.redact_value(&json!(message)).to_string())?,
                false => print_message(message, &redactor)?,
            }
        }
        if messages.is_empty() {
            tokio::time::sleep(FOLLOW_INTERVAL).await;
        }
        let next = channels.read(&args.channel, ReadFrom::After(last), args.limit);
        messages = next.await.map_err(|error| channel_problem(&error))?;
    }
}

/// Prints a message as text. Further lines of it are indented.
fn print_message(message: &ChannelMessage, redactor: &Redactor) -> Result<()> {
    let when = format_age(since_epoch(), message.time);
    let text = redactor.redact_text(&message.text);
    let text = text.trim_end().replace('\n', "\n      ");
    Ok(print_text(&format!(
        "#{:<4} {when:>7}  {}: {text}",
        message.number, message.author.id
    ))?)
}

async fn list(channels: &dyn ChannelStore, args: &ChannelsListArgs) -> Result<CliStatus> {
    let all = channels.list().await;
    let all = all.map_err(|error| channel_problem(&error))?;
    if args.json {
        return print_json(&all);
    }
    let now = since_epoch();
    let rows = all.iter().map(|channel| {
        let when = match channel.messages {
            0 => "never".to_owned(),
            _ => format!("{} ago", format_age(now, channel.time)),
        };
        vec![
            channel.name.as_str().into(),
            when.into(),
            selvedge_text::count_noun(channel.messages, "message").into(),
            channel.followers.join(", ").into(),
        ]
    });
    let headings = ["CHANNEL", "NEWEST", "MESSAGES", "FOLLOWED BY"];
    print_list(&headings, rows.collect())?;
    if all.is_empty() {
        eprint_line!("note: there are no channels; `selvedge channels post` creates one");
    }
    Ok(CliStatus::Success)
}

async fn follow(
    journal: &Arc<Journal>,
    args: &ChannelsFollowArgs,
    following: Following,
) -> Result<CliStatus> {
    let session = args.session.clone();
    let session = journal.spawn_blocking(move |journal| journal.session(&session));
    let session = session.await.map_err(|error| session_problem(&error))?.id;
    let done = journal.follow(&args.channel, &session, following).await;
    done.map_err(|error| channel_problem(&error))?;
    Ok(CliStatus::Success)
}

fn channel_problem(error: &ChannelError) -> Problem {
    let problem = Problem::new(error.to_string());
    match error.hint() {
        Some(hint) => problem.hint(hint),
        None => problem,
    }
}

/// Whether a tool reads or changes channels.
pub(crate) fn is_channel_tool(spec: &ToolSpec) -> bool {
    spec.js_name.starts_with("channels.")
}

/// Returns the person at this terminal, as the author of messages.
pub(crate) fn this_person() -> MessageAuthor {
    let name = ["USER", "LOGNAME", "USERNAME"]
        .iter()
        .find_map(|variable| std::env::var(variable).ok())
        .filter(|name| !name.is_empty());
    MessageAuthor {
        kind: AuthorKind::Person,
        id: name.unwrap_or_else(|| "user".to_owned()),
    }
}

impl CliSetup {
    /// Whether scripts may use channels: not in a turn that a token without that scope pays for,
    /// because channels are the same for all workspaces.
    pub(crate) fn offers_channels(&self) -> bool {
        let scopes = self.payer_scopes.as_ref();
        scopes.is_none_or(|scopes| scopes.contains(&TokenScope::Channels))
    }

    /// Returns the channels for scripts; `None` without a journal, and if they are not offered.
    pub(crate) fn channel_access(&self) -> Option<ChannelAccess> {
        if !self.offers_channels() {
            return None;
        }
        let journal = self.journal.as_ref()?;
        let mcp = self.mcp_run_access.as_ref();
        // Clients over HTTP have channels of their own.
        let store = match mcp.and_then(|access| access.http_client_name.as_deref()) {
            Some(client) => journal.channels_of(client),
            None => journal.clone(),
        };
        Some(ChannelAccess {
            store,
            author: self.message_author(),
            permissions: self.turn_permissions(),
            budgets: self.turn_budgets(),
            max_open_messages: self.config.serve.max_queued_turns,
        })
    }

    /// Returns the author of messages that scripts send: the session, or the person who runs the
    /// script. `None` in `mcp serve`, where each run is an author of its own.
    pub(crate) fn message_author(&self) -> Option<MessageAuthor> {
        match (&self.mcp_run_access, self.session.as_str()) {
            (Some(_), _) => None,
            (None, "") => Some(this_person()),
            (None, id) => Some(MessageAuthor {
                kind: AuthorKind::Session,
                id: id.to_owned(),
            }),
        }
    }
}
