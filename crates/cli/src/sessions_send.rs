//! `selvedge sessions send`: queues a message for a session, and runs its turn with `--wait`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use selvedge_agent::TurnOptions;
use selvedge_journal::{Journal, SessionSummary};
use selvedge_protocol::{InboxMessage, InboxState, NewInboxMessage, SessionError, SessionStore};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::CliStatus;
use crate::args::WorkspaceArgs;
use crate::channels::{read_message, this_person};
use crate::output::{print_json, print_line, print_text};
use crate::problem::Problem;
use crate::progress::ProgressDisplay;
use crate::run::{SignalTokens, run_with_signals, runtime};
use crate::session_runner::{TurnPlace, finish_running_sessions, run_queue};
use crate::sessions::session_problem;
use crate::sessions_args::SessionsSendArgs;
use crate::setup::load_configuration;

pub(crate) fn send(journal: &Arc<Journal>, args: SessionsSendArgs) -> Result<CliStatus> {
    let session = journal.session(&args.session);
    let session = session.map_err(|error| session_problem(&error))?;
    let runtime = runtime()?;
    let queued = match args.message {
        Some(message) => {
            let message = NewInboxMessage {
                session: session.id.clone(),
                author: this_person(),
                text: read_message(message)?,
                permissions: None,
                idempotency_key: None,
                max_open_messages: None,
            };
            let sent = runtime.block_on(journal.send(message));
            Some(sent.map_err(|error| store_problem(&error))?)
        }
        None => {
            let queue = runtime.block_on(journal.queue(&session.id));
            queue.map_err(|error| store_problem(&error))?.pop()
        }
    };
    let Some(queued) = queued else {
        return Err(
            Problem::new(format!("no message waits for session {}", session.id))
                .hint("pass a message: selvedge sessions send ID MESSAGE --wait")
                .into(),
        );
    };
    if !args.wait {
        return print_queued(&session, &queued, args.json);
    }
    let workspace = WorkspaceArgs {
        directory: Some(PathBuf::from(&session.directory)),
        ..WorkspaceArgs::default()
    };
    let configuration = load_configuration(&workspace)?.into();
    let progress = ProgressDisplay::on_stderr(args.json);
    let options = TurnOptions {
        cancel: CancellationToken::new(),
        events: progress.sink(),
        ..TurnOptions::default()
    };
    let signals = SignalTokens {
        cancel: options.cancel.clone(),
        terminate: options.cancel.clone(),
    };
    let on_busy = || eprint_line!("note: another process uses the session; waiting for it");
    let work = async {
        let (id, number, place) = (&session.id, queued.number, TurnPlace::Thread);
        let answered = run_queue(&configuration, id, number, &options, place, on_busy).await;
        finish_running_sessions(&options.cancel).await;
        answered
    };
    let answered = run_with_signals(&runtime, signals, work);
    runtime.shutdown_background();
    progress.finish();
    print_answer(&answered?.message, args.json)
}

fn print_queued(
    session: &SessionSummary,
    message: &InboxMessage,
    as_json: bool,
) -> Result<CliStatus> {
    if as_json {
        return print_json(&json!({"message": message}));
    }
    print_line(&format!("{}#{}", session.id, message.number))?;
    eprint_line!(
        "note: queued; run `selvedge sessions send {} --wait` to answer it",
        session.id
    );
    Ok(CliStatus::Success)
}

fn print_answer(message: &InboxMessage, as_json: bool) -> Result<CliStatus> {
    let answer = message.answer.as_deref().unwrap_or_default();
    let is_answered = message.state == InboxState::Answered;
    match (as_json, is_answered) {
        (true, _) => {
            print_json(&json!({"message": message}))?;
        }
        (false, true) => print_text(answer.trim_end())?,
        (false, false) => {
            let error = match message.state {
                InboxState::Stopped => "the turn was stopped".to_owned(),
                _ => format!("the turn failed: {answer}"),
            };
            Problem::new(error)
                .hint(format!("run `selvedge sessions show {}`", message.session))
                .print();
        }
    }
    Ok(match is_answered {
        true => CliStatus::Success,
        false => CliStatus::Failed,
    })
}

pub(crate) fn store_problem(error: &SessionError) -> Problem {
    let problem = Problem::new(error.to_string());
    match error.hint() {
        Some(hint) => problem.hint(hint),
        None => problem,
    }
}
