//! `selvedge memory forget`: removes a session, turn or lesson from memory, the journal and the
//! chat history, and from the free pages of the file.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use selvedge_agent::{AgentError, Session};
use selvedge_config::Config;
use selvedge_journal::{Forgotten, Journal, JournalError};
use selvedge_memory::{Memory, MemoryError, turn_number};
use selvedge_protocol::{Item, Role, TurnItem};
use serde_json::json;

use super::args::ForgetArgs;
use crate::Exit;
use crate::chat::forget_asked;
use crate::out::line;
use crate::problem::Problem;

pub(super) fn forget(
    memory: &Memory,
    args: &ForgetArgs,
    home: &Path,
    config: &Config,
) -> Result<Exit> {
    let journal = crate::journal::open(home, &config.journal)?;
    if let Some(lesson) = &args.lesson {
        memory.forget_lesson(lesson)?;
        journal.scrub().map_err(|error| problem(&error))?;
        tell!("forgot {lesson}");
        return Ok(Exit::Done);
    }
    let Some(named) = &args.session else {
        return Err(
            Problem::new("forget needs a session, a turn of it, or a lesson")
                .hint("pass --session SESSION, --session SESSION --turn TURN, or --lesson LESSON")
                .into(),
        );
    };
    let missing = |session: &str, turn: &str| MemoryError::NoTurn {
        session: session.to_owned(),
        turn: turn.to_owned(),
    };
    let number = |turn: &String| turn_number(turn).ok_or_else(|| missing(named, turn));
    let turn = args.turn.as_ref().map(number).transpose()?;
    let (session, in_journal) = which(memory, &journal, named)?;
    let remembered = memory.sessions()?;
    let messages = match in_journal {
        true => said_by_user(&journal, &session, turn)?,
        false => BTreeSet::new(),
    };
    if let Some(turn) = turn
        && messages.is_empty()
        && !(1..=memory.turns(&session)?).contains(&turn)
    {
        return Err(missing(&session, &format!("T-{turn}")).into());
    }
    let agent_problem = |error: AgentError| match error {
        AgentError::Journal(error) => problem(&error),
        other => Problem::new(other.to_string()).hint(format!(
            "run `selvedge sessions show {session}` for details"
        )),
    };
    // The journal's session is removed last: if this is interrupted, the command can be repeated.
    let mut removed = match in_journal {
        true => Session::would_forget(&journal, &session, turn).map_err(agent_problem)?,
        false => Forgotten::default(),
    };
    match turn {
        Some(turn) => {
            _ = removed
                .turns
                .entry(session.clone())
                .or_default()
                .insert(turn)
        }
        None => _ = removed.sessions.insert(session.clone()),
    }
    let mut counts = selvedge_memory::Forgotten::default();
    let mut add = |more: selvedge_memory::Forgotten| {
        counts.turns += more.turns;
        counts.lessons += more.lessons;
    };
    let sessions = removed.sessions.iter();
    for name in sessions.filter(|name| remembered.contains(name)) {
        add(memory.forget_session(name)?);
    }
    let turns = removed.turns.iter();
    for (name, turns) in turns.filter(|(name, _)| remembered.contains(name)) {
        let last = memory.turns(name)?;
        for turn in turns.iter().filter(|turn| **turn <= last) {
            add(memory.forget_turn(name, *turn)?);
        }
    }
    forget_asked(home, &messages).map_err(|error| {
        Problem::new(format!("cannot write chat_history.jsonl: {error}"))
            .hint("delete the session's messages from the file by hand")
    })?;
    if in_journal {
        Session::forget(&journal, &session, turn).map_err(agent_problem)?;
    }
    journal.scrub().map_err(|error| problem(&error))?;
    let (turns, lessons) = (counts.turns, counts.lessons);
    let (runs, documents) = (removed.runs, removed.documents);
    if args.json {
        let report =
            json!({"turns": turns, "lessons": lessons, "runs": runs, "documents": documents});
        line(&report.to_string())?;
    } else {
        tell!("forgot {turns} turns, {lessons} lessons, {runs} runs and {documents} documents");
    }
    Ok(Exit::Done)
}

/// Returns the id of the session, and whether the journal has it. `named` is its name in memory, or
/// an id, a prefix of it or a name in the journal.
fn which(memory: &Memory, journal: &Journal, named: &str) -> Result<(String, bool)> {
    let remembered = memory.sessions()?.iter().any(|session| session == named);
    match journal.session(named) {
        Ok(found) if !remembered || found.id == named => Ok((found.id, true)),
        Ok(_) | Err(JournalError::NoSession(_) | JournalError::Ambiguous(_)) if remembered => {
            Ok((named.to_owned(), false))
        }
        Err(JournalError::NoSession(_)) => Err(MemoryError::NoSession(named.to_owned()).into()),
        Err(error) => Err(problem(&error).into()),
        Ok(found) => Ok((found.id, true)),
    }
}

/// Returns the user messages of a session, or of one turn of it.
fn said_by_user(
    journal: &Arc<Journal>,
    session: &str,
    turn: Option<u32>,
) -> Result<BTreeSet<String>> {
    let history = Session::read(journal, session)?.history();
    let items = history
        .into_iter()
        .filter(|(number, _)| turn.is_none_or(|turn| turn == *number));
    Ok(items
        .filter_map(|(_, item)| match item {
            TurnItem::Item(Item::Message(message)) if message.role == Role::User => {
                Some(message.text())
            }
            _ => None,
        })
        .collect())
}

fn problem(error: &JournalError) -> Problem {
    match error {
        JournalError::SessionInUse(_) => Problem::new(error.to_string())
            .hint("stop that process first: it would write the session again"),
        JournalError::NotOver(run) => Problem::new(error.to_string()).hint(format!(
            "end the run first with `selvedge runs cancel {run}`"
        )),
        JournalError::StillRead => {
            Problem::new(error.to_string()).hint("stop the other process and run the command again")
        }
        other => crate::sessions::problem(other),
    }
}
