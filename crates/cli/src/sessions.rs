//! `selvedge sessions`: lists, shows, renames, forks, exports and imports sessions.

use std::sync::Arc;

use anyhow::Result;
use selvedge_agent::{AgentError, Session};
use selvedge_journal::{Journal, JournalError, Redactor, SessionSummary};
use selvedge_protocol::{Item, Role, TurnItem};
use serde_json::{Value, json};

use crate::Exit;
use crate::out::{harmless, line};
use crate::private;
use crate::problem::Problem;
use crate::run::runtime;
use crate::runs::{ago, open, open_to_read, redactor};
use crate::sessions_args::{
    SessionArgs, SessionsCommand, SessionsExportArgs, SessionsForkArgs, SessionsImportArgs,
    SessionsListArgs,
};

pub(crate) fn sessions(command: SessionsCommand) -> Result<Exit> {
    let is_read_only = matches!(
        command,
        SessionsCommand::List(_) | SessionsCommand::Show(_) | SessionsCommand::Export(_)
    );
    let journal = if is_read_only {
        open_to_read()?
    } else {
        open()?
    };
    match command {
        SessionsCommand::List(args) => list(&journal, &args),
        SessionsCommand::Show(args) => show(&journal, &args),
        SessionsCommand::Rename(args) => {
            let found = journal.session(&args.session);
            let renamed = found.and_then(|found| journal.rename_session(&found.id, &args.name));
            renamed.map_err(|error| problem(&error))?;
            Ok(Exit::Done)
        }
        SessionsCommand::Fork(args) => fork(&journal, &args),
        SessionsCommand::Export(args) => export(&journal, &args),
        SessionsCommand::Import(args) => import(&journal, &args),
    }
}

fn list(journal: &Journal, args: &SessionsListArgs) -> Result<Exit> {
    let sessions = match args.all {
        true => journal.all_sessions(args.limit),
        false => journal.sessions(args.limit),
    };
    let sessions = sessions.map_err(|error| problem(&error))?;
    if args.json {
        return crate::out::json(&sessions);
    }
    let redactor = redactor()?;
    let now = selvedge_protocol::since_epoch();
    for session in &sessions {
        let name = title(journal, session, &redactor);
        let when = ago(now, session.touched_ms);
        line(&harmless(&format!(
            "{}  {when:>8}  {name:<40}  {}",
            session.id, session.directory
        )))?;
    }
    if sessions.is_empty() {
        tell!("note: the journal has no sessions");
    }
    Ok(Exit::Done)
}

/// Returns the name of a session, or the start of its first message. Secrets are redacted before
/// the text is truncated, because a truncated secret is not recognised.
pub(crate) fn title(journal: &Journal, session: &SessionSummary, redactor: &Redactor) -> String {
    let name = session
        .name
        .clone()
        .or_else(|| first_words(journal, &session.id))
        .unwrap_or_default();
    redactor.text(&name).chars().take(40).collect()
}

fn first_words(journal: &Journal, id: &str) -> Option<String> {
    let first: TurnItem = serde_json::from_value(journal.first_item(id).ok()??).ok()?;
    match first {
        TurnItem::Item(Item::Message(message)) => {
            Some(message.text().lines().next().unwrap_or_default().to_owned())
        }
        _ => None,
    }
}

fn show(journal: &Arc<Journal>, args: &SessionArgs) -> Result<Exit> {
    let summary = journal
        .session(&args.session)
        .map_err(|error| problem(&error))?;
    let session = Session::read(journal, &summary.id)?;
    let redactor = redactor()?;
    let items = session.history();
    if args.json {
        let items: Vec<Value> = items
            .iter()
            .map(|(turn, item)| json!({"turn": turn, "item": redactor.value(&json!(item.shown()))}))
            .collect();
        let open = session.is_open();
        return crate::out::json(&json!({"session": summary, "open": open, "items": items}));
    }
    for (turn, item) in &items {
        let text = words(item, &redactor).replace('\n', "\n      ");
        line(&harmless(&format!("T-{turn}  {text}")))?;
    }
    if session.is_open() {
        tell!(
            "note: the last turn was interrupted; run `selvedge exec --continue {}` to finish it",
            summary.id
        );
    }
    Ok(Exit::Done)
}

/// Returns an item of a session as text, with secrets redacted.
fn words(item: &TurnItem, redactor: &Redactor) -> String {
    // Redacted before it is truncated, because a truncated secret is not recognised.
    let short = |text: &str| short(&redactor.text(text));
    let text = match item {
        TurnItem::ScriptToolCall(call) => format!("script {}\n{}", call.id, call.source_code),
        TurnItem::ScriptToolCallOutput(output) => match &output.error {
            Some(error) => format!("  failed: {}: {}", error.code, error.message),
            None => {
                let value = output.output_json.as_deref().unwrap_or("no value");
                format!("  returned {}", short(value))
            }
        },
        TurnItem::Item(Item::Message(message)) => match message.role {
            Role::User => format!("> {}", message.text()),
            Role::Assistant => message.text(),
        },
        TurnItem::Item(Item::Reasoning(reasoning)) => {
            let text = reasoning.summary.concat() + &reasoning.content.concat();
            format!("(thinking) {}", short(&text))
        }
        TurnItem::Item(Item::FunctionCall(call)) => {
            format!("call {} {}", call.name, short(&call.arguments))
        }
        TurnItem::Item(Item::FunctionCallOutput(output)) => format!("  {}", short(&output.text())),
        TurnItem::Item(Item::Native(_)) => "(provider-specific item)".to_owned(),
    };
    redactor.text(&text).into_owned()
}

fn short(text: &str) -> String {
    selvedge_text::with_ellipsis(text, 400).into_owned()
}

fn fork(journal: &Arc<Journal>, args: &SessionsForkArgs) -> Result<Exit> {
    let fork = runtime()?.block_on(Session::fork(journal, &args.session, args.turn));
    let fork = fork.map_err(|error| match error {
        AgentError::Journal(error) => problem(&error).into(),
        other => anyhow::Error::from(other),
    })?;
    line(fork.id())?;
    Ok(Exit::Done)
}

/// Writes a session as JSON lines: its summary, then its items, with secrets redacted.
fn export(journal: &Journal, args: &SessionsExportArgs) -> Result<Exit> {
    let lines = journal
        .export_session(&args.session)
        .map_err(|error| problem(&error))?;
    let redactor = redactor()?;
    let lines: Vec<String> = lines
        .iter()
        .map(|line| redactor.value(line).to_string())
        .collect();
    match &args.file {
        Some(file) => private::write(file, &(lines.join("\n") + "\n"))
            .map_err(|error| Problem::new(format!("cannot write {}: {error}", file.display())))?,
        None => lines.iter().try_for_each(|text| line(text))?,
    }
    Ok(Exit::Done)
}

fn import(journal: &Arc<Journal>, args: &SessionsImportArgs) -> Result<Exit> {
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
    line(session.id())?;
    Ok(Exit::Done)
}

/// Describes an error of the journal about sessions, with a hint.
pub(crate) fn problem(error: &JournalError) -> Problem {
    match error {
        JournalError::NoSession(_) | JournalError::Ambiguous(_) => Problem::new(error.to_string())
            .hint("run `selvedge sessions list` to list the sessions"),
        JournalError::SessionInUse(id) => Problem::new(error.to_string()).hint(format!(
            "wait for the other process, or run `selvedge sessions fork {id}`"
        )),
        JournalError::NameTaken(_) => Problem::new(error.to_string()).hint("pass another name"),
        other => crate::runs::problem(other),
    }
}
