//! `selvedge sessions`: lists, shows, renames, forks, exports and imports sessions. `send` is in
//! `sessions_send`, `stop` and `revert` in `sessions_stop`, the rest in `sessions_worktree`.

use std::sync::Arc;

use anyhow::Result;
use selvedge_agent::{AgentError, Session};
use selvedge_journal::{Journal, JournalError, Redactor, SessionSummary};
use selvedge_protocol::{ConversationItem, MessageRole, SessionStore, TurnItem};
use serde_json::{Value, json};

use crate::CliStatus;
use crate::list_table::{cut_list, print_list};
use crate::output::{print_json_text, print_line, print_text};
use crate::private_file;
use crate::problem::Problem;
use crate::prompt_images::text_with_images;
use crate::run::runtime;
use crate::runs::{format_age, open_user_journal, open_user_journal_read_only, user_redactor};
use crate::sessions_args::{
    SessionsCommand, SessionsExportArgs, SessionsForkArgs, SessionsImportArgs, SessionsListArgs,
    SessionsShowArgs,
};

pub(crate) fn sessions(command: SessionsCommand) -> Result<CliStatus> {
    if let SessionsCommand::Delete(args) = command {
        return crate::memory::delete_session_with_question(args.session, args.yes);
    }
    let is_read_only = matches!(
        command,
        SessionsCommand::List(_)
            | SessionsCommand::Show(_)
            | SessionsCommand::Diff(_)
            | SessionsCommand::Export(_)
    );
    let journal = if is_read_only {
        open_user_journal_read_only()?
    } else {
        open_user_journal()?
    };
    match command {
        SessionsCommand::List(args) => list(&journal, &args),
        SessionsCommand::Show(args) => show(&journal, &args),
        SessionsCommand::Send(args) => crate::sessions_send::send(&journal, args),
        SessionsCommand::Stop(args) => crate::sessions_stop::stop(&journal, &args),
        SessionsCommand::Revert(args) => crate::sessions_stop::revert(&journal, &args),
        SessionsCommand::Diff(args) => crate::sessions_worktree::diff(&journal, &args),
        SessionsCommand::Apply(args) => crate::sessions_worktree::apply(&journal, &args),
        SessionsCommand::Discard(args) => crate::sessions_worktree::discard(&journal, &args),
        SessionsCommand::Rename(args) => {
            let found = journal.session(&args.session);
            let renamed = found.and_then(|found| journal.rename_session(&found.id, &args.name));
            renamed.map_err(|error| session_problem(&error))?;
            Ok(CliStatus::Success)
        }
        SessionsCommand::Delete(_) => Ok(CliStatus::Success),
        SessionsCommand::Fork(args) => fork(&journal, &args),
        SessionsCommand::Export(args) => export(&journal, &args),
        SessionsCommand::Import(args) => import(&journal, &args),
    }
}

fn list(journal: &Journal, args: &SessionsListArgs) -> Result<CliStatus> {
    // One more tells whether the list is cut.
    let limit = args.limit.saturating_add(1);
    let sessions = match args.all {
        true => journal.all_sessions(limit),
        false => journal.sessions(limit),
    };
    let mut sessions = sessions.map_err(|error| session_problem(&error))?;
    let is_cut = cut_list(&mut sessions, args.limit);
    if args.json {
        return crate::output::print_json(&sessions);
    }
    let redactor = user_redactor()?;
    let now = selvedge_protocol::since_epoch();
    let row = |session: &SessionSummary| {
        vec![
            session.id.as_str().into(),
            format!("{} ago", format_age(now, session.touched_ms)).into(),
            session_title(journal, session, &redactor).into(),
            session.directory.as_str().into(),
            origin_and_queue(session).trim_start().into(),
        ]
    };
    let headings = ["SESSION", "USED", "TITLE", "FOLDER", ""];
    print_list(&headings, sessions.iter().map(row).collect())?;
    if is_cut {
        eprint_line!(
            "note: only the last {} sessions; pass --limit N",
            sessions.len()
        );
    }
    if sessions.is_empty() {
        eprint_line!("note: the journal has no sessions");
    }
    Ok(CliStatus::Success)
}

/// Returns the environment, the creator and the queue of a session, as the end of a line.
fn origin_and_queue(session: &SessionSummary) -> String {
    let environment = session.environment.iter();
    let environment = environment.map(|name| format!("  environment {name}"));
    let creator = session.creator.iter();
    let creator = creator.map(|id| format!("  created by {id}"));
    let worktree = session.worktree.then(|| "  own worktree".to_owned());
    let queued = (session.queued > 0).then(|| format!("  {} queued", session.queued));
    let unserved = session.unserved;
    let unserved = unserved.then(|| "  no running server serves its folder".to_owned());
    environment
        .chain(creator)
        .chain(worktree)
        .chain(queued)
        .chain(unserved)
        .collect()
}

/// Returns the name of a session, its title, or the start of its first message. Secrets are
/// redacted before the text is truncated, because a truncated secret is not recognised.
pub(crate) fn session_title(
    journal: &Journal,
    session: &SessionSummary,
    redactor: &Redactor,
) -> String {
    let name = session
        .name
        .clone()
        .or_else(|| session.title.clone())
        .or_else(|| first_line(journal, &session.id))
        .unwrap_or_default();
    selvedge_text::truncate_chars(&redactor.redact_text(&name), 40).into_owned()
}

fn first_line(journal: &Journal, id: &str) -> Option<String> {
    let first: TurnItem = serde_json::from_value(journal.first_item(id).ok()??).ok()?;
    match first {
        TurnItem::Conversation(ConversationItem::Message(message)) => {
            Some(message.text().lines().next().unwrap_or_default().to_owned())
        }
        _ => None,
    }
}

fn show(journal: &Arc<Journal>, args: &SessionsShowArgs) -> Result<CliStatus> {
    let summary = journal
        .session(&args.session)
        .map_err(|error| session_problem(&error))?;
    let session = Session::open_read_only(journal, &summary.id)?;
    let redactor = user_redactor()?;
    let items = session.history();
    let queue = runtime()?.block_on(journal.queue(&summary.id))?;
    if args.json {
        let items: Vec<Value> = items
            .iter()
            .map(|(turn, item)| json!({"turn": turn, "item": redactor.redact_value(&json!(item.without_native()))}))
            .collect();
        let open = session.has_open_turn();
        return crate::output::print_json(&json!({
            "session": summary,
            "open": open,
            "items": items,
            "queue": redactor.redact_value(&json!(queue)),
        }));
    }
    let title = redactor.redact_text(summary.title.as_deref().unwrap_or_default());
    let origin = format!("{title}{}", origin_and_queue(&summary));
    if !origin.is_empty() {
        print_line(origin.trim_start())?;
    }
    for (turn, item) in &items {
        let text = item_text(item, &redactor).replace('\n', "\n      ");
        print_text(&format!("T-{turn}  {text}"))?;
    }
    for message in &queue {
        let text = truncate_item(&redactor.redact_text(&message.text));
        let text = text.replace('\n', "\n      ");
        print_text(&format!(
            "{}  from {}: {text}",
            message.state.as_str(),
            message.author.id
        ))?;
    }
    if session.has_open_turn() {
        eprint_line!(
            "note: the last turn was interrupted; run `selvedge exec --continue {}` to finish it",
            summary.id
        );
    }
    Ok(CliStatus::Success)
}

/// Returns an item of a session as text, with secrets redacted.
fn item_text(item: &TurnItem, redactor: &Redactor) -> String {
    // Redacted before it is truncated, because a truncated secret is not recognised.
    let short = |text: &str| truncate_item(&redactor.redact_text(text));
    let text = match item {
        TurnItem::ScriptToolCall(call) => format!("script {}\n{}", call.id, call.source_code),
        TurnItem::ScriptToolCallOutput(output) => match &output.error {
            Some(error) => format!("  failed: {}: {}", error.code, error.message),
            None => {
                let value = output.output_json.as_deref().unwrap_or("no value");
                format!("  returned {}", short(value))
            }
        },
        TurnItem::Conversation(ConversationItem::Message(message)) => match message.role {
            MessageRole::User => format!("> {}", text_with_images(message)),
            MessageRole::Assistant => message.text(),
        },
        TurnItem::Conversation(ConversationItem::Reasoning(reasoning)) => {
            let text = reasoning.summary.concat() + &reasoning.content.concat();
            format!("(reasoning) {}", short(&text))
        }
        TurnItem::Conversation(ConversationItem::FunctionCall(call)) => {
            format!("call {} {}", call.name, short(&call.arguments))
        }
        TurnItem::Conversation(ConversationItem::FunctionCallOutput(output)) => {
            format!("  {}", short(&output.text()))
        }
        TurnItem::Conversation(ConversationItem::Native(_)) => {
            "(provider-specific item)".to_owned()
        }
    };
    redactor.redact_text(&text).into_owned()
}

fn truncate_item(text: &str) -> String {
    selvedge_text::truncate_chars(text, 400).into_owned()
}

fn fork(journal: &Arc<Journal>, args: &SessionsForkArgs) -> Result<CliStatus> {
    let fork = runtime()?.block_on(Session::fork(journal, &args.session, args.turn));
    let fork = fork.map_err(|error| match error {
        AgentError::Journal(error) => session_problem(&error).into(),
        other => anyhow::Error::from(other),
    })?;
    print_line(fork.id())?;
    Ok(CliStatus::Success)
}

/// Writes a session as JSON lines: its summary, then its items, with secrets redacted.
fn export(journal: &Journal, args: &SessionsExportArgs) -> Result<CliStatus> {
    let lines = journal
        .export_session(&args.session)
        .map_err(|error| session_problem(&error))?;
    let redactor = user_redactor()?;
    let lines: Vec<String> = lines
        .iter()
        .map(|line| redactor.redact_value(line).to_string())
        .collect();
    match &args.file {
        Some(file) => private_file::write_private(file, &(lines.join("\n") + "\n"))
            .map_err(|error| Problem::new(format!("cannot write {}: {error}", file.display())))?,
        None => lines.iter().try_for_each(|text| print_json_text(text))?,
    }
    Ok(CliStatus::Success)
}

fn import(journal: &Arc<Journal>, args: &SessionsImportArgs) -> Result<CliStatus> {
    let invalid = |why: String| {
        Problem::new(format!("{}: {why}", args.file.display()))
            .hint("pass a file that `selvedge sessions export` wrote")
    };
    let text = std::fs::read_to_string(&args.file).map_err(|error| invalid(error.to_string()))?;
    let lines = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(serde_json::from_str)
        .collect::<Result<Vec<Value>, _>>();
    let lines = lines.map_err(|error| invalid(format!("not JSON lines: {error}")))?;
    let session = runtime()?.block_on(Session::import(journal, lines));
    let session = session.map_err(|error| invalid(error.to_string()))?;
    print_line(session.id())?;
    Ok(CliStatus::Success)
}

/// Describes an error of the journal about sessions, with a hint.
pub(crate) fn session_problem(error: &JournalError) -> Problem {
    match error {
        JournalError::SessionNotFound(_) | JournalError::AmbiguousId(_) => {
            Problem::new(error.to_string())
                .hint("run `selvedge sessions list` to list the sessions")
        }
        JournalError::SessionInUse(id) => Problem::new(error.to_string()).hint(format!(
            "wait for the other process, or run `selvedge sessions fork {id}`"
        )),
        JournalError::NameTaken(_) => Problem::new(error.to_string()).hint("pass another name"),
        other => crate::runs::journal_error_problem(other),
    }
}
