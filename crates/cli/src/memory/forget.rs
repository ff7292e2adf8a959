//! `selvedge memory forget`: removes a session, turn or lesson from memory, the journal and the
//! chat history, and from the free pages of the file.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use selvedge_agent::{AgentError, Session};
use selvedge_config::Config;
use selvedge_journal::{Journal, JournalError, SessionForgetReport};
use selvedge_memory::{ForgottenCounts, LessonsToForget, Memory, MemoryError, parse_turn_number};
use selvedge_protocol::{ConversationItem, MessageRole, TurnItem};
use selvedge_text::count_noun;
use serde_json::json;
use tokio::runtime::Handle;

use super::args::MemoryForgetArgs;
use crate::CliStatus;
use crate::chat::remove_from_history;
use crate::output::print_json_text;
use crate::problem::Problem;
use crate::sessions_worktree::remove_worktrees;

/// When the log is truncated again if another process reads it: others that write wait meanwhile.
const LOG_TRUNCATION_INTERVAL: Duration = Duration::from_secs(300);
/// How many times this is tried. The next deletion tries it as well.
const MAX_LOG_TRUNCATIONS: u32 = 12;
/// How long `forget` waits for processes that read the log.
const LOG_READERS_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) fn forget(
    memory: &Memory,
    args: &MemoryForgetArgs,
    home: &Path,
    config: &Config,
) -> Result<CliStatus> {
    let journal = crate::journal::open_journal(home, &config.journal)?;
    if let Some(lesson) = &args.lesson {
        if !args.yes && !confirm_forget(&format!("lesson {lesson}"))? {
            return Ok(CliStatus::Failed);
        }
        memory.forget_lesson(lesson)?;
        journal.scrub().map_err(|error| journal_problem(&error))?;
        eprint_line!("forgot {lesson}");
        return Ok(CliStatus::Success);
    }
    let Some(named) = &args.session else {
        return Err(
            Problem::new("forget needs a session, a turn of it, or a lesson")
                .hint("pass --session SESSION, --session SESSION --turn TURN, or --lesson LESSON")
                .into(),
        );
    };
    let missing = |session: &str, turn: &str| MemoryError::TurnNotFound {
        session: session.to_owned(),
        turn: turn.to_owned(),
    };
    let number = |turn: &String| parse_turn_number(turn).ok_or_else(|| missing(named, turn));
    let turn = args.turn.as_ref().map(number).transpose()?;
    let (session, in_journal) = resolve_session(memory, &journal, named)?;
    let messages = match in_journal {
        true => user_messages(&journal, &session, turn)?,
        false => BTreeSet::new(),
    };
    if let Some(turn) = turn
        && messages.is_empty()
        && !(1..=memory.turn_count(&session)?).contains(&turn)
    {
        return Err(missing(&session, &format!("T-{turn}")).into());
    }
    let what = match turn {
        Some(turn) => format!("turn {turn} of session {session}"),
        None => format!("session {session} with all its turns and runs"),
    };
    if !args.yes && !confirm_forget(&what)? {
        return Ok(CliStatus::Failed);
    }
    let known = KnownSession {
        session: &session,
        messages: &messages,
        in_journal,
        lessons: LessonsToForget::All,
        log: LogTruncation::Now,
    };
    let (removed, counts, _) = remove(memory, &journal, home, &known, turn)?;
    journal.scrub().map_err(|error| journal_problem(&error))?;
    let (turns, lessons) = (counts.turns, counts.lessons);
    let (runs, documents) = (removed.runs, removed.documents);
    if args.json {
        let report =
            json!({"turns": turns, "lessons": lessons, "runs": runs, "documents": documents});
        print_json_text(&report.to_string())?;
    } else {
        eprint_line!(
            "forgot {}, {}, {} and {}",
            count_noun(turns, "turn"),
            count_noun(lessons, "lesson"),
            count_noun(runs, "run"),
            count_noun(documents, "document")
        );
    }
    Ok(CliStatus::Success)
}

/// Asks whether to forget something. Fails if there is no terminal.
fn confirm_forget(what: &str) -> Result<bool> {
    let question = format!("Delete {what}, from the journal and from memory, for good?\n");
    match crate::ask::confirm(&question, "Delete", "Keep") {
        Some(answer) => Ok(answer),
        None => {
            let problem = Problem::new(format!("cannot ask whether to delete {what}"));
            Err(problem
                .hint("pass -y to delete it without a question")
                .into())
        }
    }
}

/// A session to forget.
struct KnownSession<'a> {
    session: &'a str,
    /// The user messages to remove from the chat history.
    messages: &'a BTreeSet<String>,
    /// Whether the journal has it, or the memory only.
    in_journal: bool,
    /// Which lessons are deleted with it.
    lessons: LessonsToForget,
    log: LogTruncation,
}

/// When the write-ahead log, which still has the deleted text, must be truncated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LogTruncation {
    /// At once. It is an error if another process reads the log.
    Now,
    /// Later, if another process reads the log.
    WhenPossible,
}

/// Whether the write-ahead log was truncated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LogState {
    Truncated,
    InUse,
}

/// Removes a session, or a turn of it, from the memory, the chat history and the journal. Also
/// returns the state of the log of the memory.
fn remove(
    memory: &Memory,
    journal: &Arc<Journal>,
    home: &Path,
    known: &KnownSession<'_>,
    turn: Option<u32>,
) -> Result<(SessionForgetReport, ForgottenCounts, LogState)> {
    let KnownSession {
        session,
        messages,
        in_journal,
        lessons,
        log,
    } = known;
    let remembered = memory.session_names()?;
    let agent_problem = |error: AgentError| match error {
        AgentError::Journal(error) => journal_problem(&error),
        other => Problem::new(other.to_string()).hint(format!(
            "run `selvedge sessions show {session}` for details"
        )),
    };
    // The journal's session is removed last: if this is interrupted, the command can be repeated.
    let mut removed = match *in_journal {
        true => Session::preview_forget(journal, session, turn).map_err(agent_problem)?,
        false => SessionForgetReport::default(),
    };
    match turn {
        Some(turn) => {
            _ = removed
                .turns
                .entry((*session).to_owned())
                .or_default()
                .insert(turn)
        }
        None => _ = removed.sessions.insert((*session).to_owned()),
    }
    let mut counts = ForgottenCounts::default();
    let mut log_state = LogState::Truncated;
    let mut add = |more: Result<ForgottenCounts, MemoryError>| {
        match more {
            Ok(more) => {
                counts.turns += more.turns;
                counts.lessons += more.lessons;
            }
            // It is deleted.
            Err(MemoryError::LogInUse) => log_state = LogState::InUse,
            Err(error) => return Err(error),
        }
        Ok(())
    };
    let sessions = removed.sessions.iter();
    for name in sessions.filter(|name| remembered.contains(name)) {
        add(memory.forget_session(name, *lessons))?;
    }
    let turns = removed.turns.iter();
    for (name, turns) in turns.filter(|(name, _)| remembered.contains(name)) {
        let last = memory.turn_count(name)?;
        for turn in turns.iter().filter(|turn| **turn <= last) {
            add(memory.forget_turn(name, *turn))?;
        }
    }
    remove_from_history(home, messages).map_err(|error| {
        Problem::new(format!("cannot write chat_history.jsonl: {error}"))
            .hint("delete the session's messages from the file by hand")
    })?;
    if *in_journal {
        Session::forget(journal, session, turn).map_err(agent_problem)?;
        remove_worktrees(removed.sessions.iter())?;
    }
    if *log == LogTruncation::Now && log_state == LogState::InUse {
        memory.truncate_log_within(LOG_READERS_TIMEOUT)?;
        log_state = LogState::Truncated;
    }
    Ok((removed, counts, log_state))
}

/// Deletes a session of the journal, for a client of the agent server. Lessons that were learned in
/// other folders, too, stay. The content of the session may stay in free pages of the file, which
/// later rows overwrite.
pub(crate) fn delete_session(
    memory: &Arc<Memory>,
    journal: &Arc<Journal>,
    session: &str,
) -> Result<()> {
    let home = selvedge_config::home()
        .ok_or_else(|| Problem::new("cannot find the home folder").hint("set SELVEDGE_HOME"))?;
    let known = KnownSession {
        session,
        messages: &user_messages(journal, session, None)?,
        in_journal: true,
        lessons: LessonsToForget::OfFolder,
        log: LogTruncation::WhenPossible,
    };
    let (_, _, log) = remove(memory, journal, &home, &known, None)?;
    if let (LogState::InUse, Ok(runtime)) = (log, Handle::try_current())
        && !IS_TRUNCATING_LOG.swap(true, Ordering::Relaxed)
    {
        runtime.spawn(truncate_log_later(memory.clone()));
    }
    Ok(())
}

/// Whether a task of this process tries to truncate the log later.
static IS_TRUNCATING_LOG: AtomicBool = AtomicBool::new(false);

/// Truncates the write-ahead log when no other process reads it.
async fn truncate_log_later(memory: Arc<Memory>) {
    for _ in 0..MAX_LOG_TRUNCATIONS {
        tokio::time::sleep(LOG_TRUNCATION_INTERVAL).await;
        let memory = memory.clone();
        let truncated = tokio::task::spawn_blocking(move || memory.truncate_log()).await;
        if !matches!(truncated, Ok(Err(MemoryError::LogInUse))) {
            break;
        }
    }
    IS_TRUNCATING_LOG.store(false, Ordering::Relaxed);
}

/// Returns the id of the session, and whether the journal has it. `named` is its name in memory, or
/// an id, a prefix of it or a name in the journal.
fn resolve_session(memory: &Memory, journal: &Journal, named: &str) -> Result<(String, bool)> {
    let remembered = memory
        .session_names()?
        .iter()
        .any(|session| session == named);
    match journal.session(named) {
        Ok(found) if !remembered || found.id == named => Ok((found.id, true)),
        Ok(_) | Err(JournalError::SessionNotFound(_) | JournalError::AmbiguousId(_))
            if remembered =>
        {
            Ok((named.to_owned(), false))
        }
        Err(JournalError::SessionNotFound(_)) => {
            let missing = MemoryError::SessionNotFound(named.to_owned());
            Err(Problem::new(missing.to_string())
                .hint("run `selvedge sessions list` to list the sessions")
                .into())
        }
        Err(error) => Err(journal_problem(&error).into()),
        Ok(found) => Ok((found.id, true)),
    }
}

/// Returns the user messages of a session, or of one turn of it.
fn user_messages(
    journal: &Arc<Journal>,
    session: &str,
    turn: Option<u32>,
) -> Result<BTreeSet<String>> {
    let history = Session::open_read_only(journal, session)?.history();
    let items = history
        .into_iter()
        .filter(|(number, _)| turn.is_none_or(|turn| turn == *number));
    Ok(items
        .filter_map(|(_, item)| match item {
            TurnItem::Conversation(ConversationItem::Message(message))
                if message.role == MessageRole::User =>
            {
                Some(message.text())
            }
            _ => None,
        })
        .collect())
}

fn journal_problem(error: &JournalError) -> Problem {
    match error {
        JournalError::SessionInUse(_) => Problem::new(error.to_string())
            .hint("stop that process first: it would write the session again"),
        JournalError::RunNotEnded(run) => Problem::new(error.to_string()).hint(format!(
            "end the run first with `selvedge runs cancel {run}`"
        )),
        JournalError::LogNotTruncated => {
            Problem::new(error.to_string()).hint("stop the other process and run the command again")
        }
        other => crate::sessions::session_problem(other),
    }
}
