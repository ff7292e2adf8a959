//! `selvedge memory forget`: gone from memory, from the conversation, from what was done for it, and from the file.

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
        tell!("forgotten: {lesson}");
        return Ok(Exit::Done);
    }
    let Some(named) = &args.session else {
        return Err(Problem::new("nothing is named")
            .hint("--session SESSION, with --turn T-5 for one turn of it")
            .into());
    };
    let missing = |session: &str, turn: &str| MemoryError::NoTurn {
        session: session.to_owned(),
        turn: turn.to_owned(),
    };
    let number = |turn: &String| turn_number(turn).ok_or_else(|| missing(named, turn));
    let turn = args.turn.as_ref().map(number).transpose()?;
    let (session, talked) = which(memory, &journal, named)?;
    let known = memory.sessions()?;
    let asked = match talked {
        true => said_by_user(&journal, &session, turn)?,
        false => BTreeSet::new(),
    };
    if let Some(turn) = turn
        && asked.is_empty()
        && !(1..=memory.turns(&session)?).contains(&turn)
    {
        return Err(missing(&session, &format!("T-{turn}")).into());
    }
    let refused = |error: AgentError| match error {
        AgentError::Journal(error) => problem(&error),
        other => Problem::new(other.to_string()).hint("`selvedge sessions show` tells more"),
    };
    // The conversation last: as long as it is there, what was interrupted can be asked for again.
    let mut gone = match talked {
        true => Session::would_forget(&journal, &session, turn).map_err(refused)?,
        false => Forgotten::default(),
    };
    match turn {
        Some(turn) => _ = gone.turns.entry(session.clone()).or_default().insert(turn),
        None => _ = gone.sessions.insert(session.clone()),
    }
    let mut counts = selvedge_memory::Forgotten::default();
    let mut add = |more: selvedge_memory::Forgotten| {
        counts.turns += more.turns;
        counts.lessons += more.lessons;
    };
    for name in gone.sessions.iter().filter(|name| known.contains(name)) {
        add(memory.forget_session(name)?);
    }
    for (name, turns) in gone.turns.iter().filter(|(name, _)| known.contains(name)) {
        let there = memory.turns(name)?;
        for turn in turns.iter().filter(|turn| **turn <= there) {
            add(memory.forget_turn(name, *turn)?);
        }
    }
    forget_asked(home, &asked).map_err(|error| {
        Problem::new(format!("cannot write chat_history.jsonl: {error}"))
            .hint("remove what was asked from it by hand")
    })?;
    if talked {
        Session::forget(&journal, &session, turn).map_err(refused)?;
    }
    journal.scrub().map_err(|error| problem(&error))?;
    let (turns, lessons) = (counts.turns, counts.lessons);
    let (runs, documents) = (gone.runs, gone.documents);
    if args.json {
        let report =
            json!({"turns": turns, "lessons": lessons, "runs": runs, "documents": documents});
        line(&report.to_string())?;
    } else {
        tell!(
            "forgotten: {turns} turns, {lessons} lessons drawn from them, {runs} runs, {documents} documents"
        );
    }
    Ok(Exit::Done)
}

/// The session that is meant, by the name memory has for it or any the journal knows, and whether it is a conversation
/// of the journal.
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

fn said_by_user(
    journal: &Arc<Journal>,
    session: &str,
    turn: Option<u32>,
) -> Result<BTreeSet<String>> {
    let history = Session::read(journal, session)?.history();
    let of_turns = history
        .into_iter()
        .filter(|(number, _)| turn.is_none_or(|turn| turn == *number));
    Ok(of_turns
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
            .hint("end it there first: it would write down again what it knows"),
        JournalError::NotOver(run) => Problem::new(error.to_string()).hint(format!(
            "it belongs to what is to be forgotten: `selvedge runs answer {run}` ends it"
        )),
        JournalError::StillRead => {
            Problem::new(error.to_string()).hint("end the other process and forget it again")
        }
        other => crate::sessions::problem(other),
    }
}
