//! Deletes turns of a session, or a whole session, with everything that was recorded for them.
//!
//! Deleted with a turn: its items, the runs that began in it with their calls and approvals, the
//! values that scripts stored in it, the documents it saved, the stored answers to requests that
//! name the session, and the sessions of agents it launched. Copies of the turn in forks of the
//! session are deleted as well. Messages that the turn posted to channels lose their text and keep
//! their numbers.

use std::collections::{BTreeMap, BTreeSet};

use selvedge_database::{Connection, params};

use crate::connection::{BUSY_TIMEOUT, execute, query_column};
use crate::document_store::OWNER_SEPARATOR;
use crate::idempotency::ANY_SESSION;
use crate::{Journal, JournalError, StoredRow, StoredRunState};

/// What [`Journal::forget`] deleted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionForgetReport {
    /// Ids of the sessions that were deleted as a whole.
    pub sessions: BTreeSet<String>,
    /// Numbers of the turns that were deleted from sessions that remain, by session.
    pub turns: BTreeMap<String, BTreeSet<u32>>,
    /// Number of runs, which were deleted with their calls.
    pub runs: usize,
    /// Number of documents deleted from the File Cabinet.
    pub documents: usize,
}

/// Returns the items that replace a session's items when these turns are deleted. It gets the items
/// from the first deleted turn on, and must not change the numbers of items that remain.
pub type RewriteItemsFn<'a> = &'a dyn Fn(Vec<StoredRow>, &BTreeSet<u32>) -> Vec<StoredRow>;

impl Journal {
    /// Deletes a turn of a session, or the whole session if `turn` is `None`. Forks of the session
    /// remain, without the turns they copied. Fails if another process has claimed the session or
    /// one of its runs has not ended. [`Journal::scrub`] overwrites the free pages that remain.
    ///
    /// Large payloads are deleted after the transaction that deletes the rows. If the process ends
    /// between, [`Journal::apply_retention`] deletes them.
    pub fn forget(
        &self,
        session: &str,
        turn: Option<u32>,
        rewrite: RewriteItemsFn<'_>,
    ) -> Result<SessionForgetReport, JournalError> {
        let forgotten =
            self.write(|connection| self.forget_in(connection, session, turn, rewrite))?;
        self.claims.remove_all(&forgotten.sessions);
        self.remove_unused_blobs()?;
        Ok(forgotten)
    }

    /// Returns what [`Journal::forget`] would return, and changes nothing.
    pub fn preview_forget(
        &self,
        session: &str,
        turn: Option<u32>,
        rewrite: RewriteItemsFn<'_>,
    ) -> Result<SessionForgetReport, JournalError> {
        let connection = self.flushed_connection();
        let transaction = connection.begin_write()?;
        let forgotten = self.forget_in(&transaction, session, turn, rewrite)?;
        transaction.rollback()?;
        Ok(forgotten)
    }

    fn forget_in(
        &self,
        connection: &Connection,
        session: &str,
        turn: Option<u32>,
        rewrite: RewriteItemsFn<'_>,
    ) -> Result<SessionForgetReport, JournalError> {
        check_session_exists(connection, session)?;
        let mut work = ForgetTransaction {
            journal: self,
            connection,
            rewrite,
            report: SessionForgetReport::default(),
        };
        for relative in session_family(connection, session)? {
            if relative != session || turn.is_some() {
                let turns = shared_turns(connection, session, &relative, turn)?;
                work.delete_turns(&relative, &turns)?;
            }
        }
        if turn.is_none() {
            work.delete_session(session)?;
        }
        Ok(work.report)
    }

    /// Rewrites the file without free pages and truncates its log, so that deleted content is no
    /// longer on disk. Waits for readers, and fails with [`JournalError::LogNotTruncated`] if they
    /// do not finish.
    pub fn scrub(&self) -> Result<(), JournalError> {
        let connection = self.flushed_connection();
        crate::schema::JOURNAL_SCHEMA.refuse_too_old(&connection)?;
        connection.compact()?;
        match connection.truncate_log(BUSY_TIMEOUT)? {
            true => Ok(()),
            false => Err(JournalError::LogNotTruncated),
        }
    }
}

/// The state of one [`Journal::forget`] in its transaction.
struct ForgetTransaction<'a> {
    journal: &'a Journal,
    connection: &'a Connection,
    rewrite: RewriteItemsFn<'a>,
    report: SessionForgetReport,
}

impl ForgetTransaction<'_> {
    /// Deletes some turns of a session that remains.
    fn delete_turns(&mut self, session: &str, turns: &BTreeSet<u32>) -> Result<(), JournalError> {
        let Some(first) = turns.first() else {
            return Ok(());
        };
        self.journal.check_session_free(self.connection, session)?;
        // Processes that keep the items in memory read them again.
        let sql = "UPDATE sessions SET fence = fence + 1 WHERE id = ?1";
        execute(self.connection, sql, params![session])?;
        let before = self.journal.items_from(self.connection, session, *first)?;
        let deleted = before.iter().filter(|item| turns.contains(&item.turn));
        let began_ms = deleted.clone().map(|item| item.at_ms).min();
        let texts = deleted.map(|item| item.item.to_string()).collect();
        let turn_list: Vec<Option<u32>> = turns.iter().copied().map(Some).collect();
        self.delete_activity(session, &turn_list, began_ms.unwrap_or(i64::MAX), texts)?;
        for turn in turns {
            self.journal.clear_events(self.connection, session, *turn)?;
            for table in ["inbox", "turn_changes"] {
                let sql = format!("DELETE FROM {table} WHERE session = ?1 AND turn = ?2");
                execute(self.connection, &sql, params![session, turn])?;
            }
        }
        let after = (self.rewrite)(before.clone(), turns);
        let remaining: BTreeMap<u32, &StoredRow> =
            after.iter().map(|item| (item.number, item)).collect();
        for item in before
            .iter()
            .filter(|item| remaining.get(&item.number) != Some(item))
        {
            let sql = "DELETE FROM items WHERE session = ?1 AND number = ?2";
            execute(self.connection, sql, params![session, item.number])?;
        }
        let existing: BTreeMap<u32, &StoredRow> =
            before.iter().map(|item| (item.number, item)).collect();
        for item in after
            .iter()
            .filter(|item| existing.get(&item.number) != Some(item))
        {
            self.journal.insert_item(self.connection, session, item)?;
        }
        self.report
            .turns
            .entry(session.to_owned())
            .or_default()
            .extend(turns);
        Ok(())
    }

    /// Deletes a whole session.
    fn delete_session(&mut self, session: &str) -> Result<(), JournalError> {
        self.journal.check_session_free(self.connection, session)?;
        let items = self.journal.items_from(self.connection, session, 0)?;
        let texts = items
            .into_iter()
            .map(|item| item.item.to_string())
            .collect();
        self.delete_activity(session, &[None], i64::MIN, texts)?;
        for sql in [
            "DELETE FROM items WHERE session = ?1",
            "DELETE FROM inbox WHERE session = ?1",
            "DELETE FROM turn_changes WHERE session = ?1",
            "DELETE FROM session_events WHERE session = ?1",
            "DELETE FROM approval_deciders WHERE session = ?1",
            "DELETE FROM shared_approvals WHERE session = ?1",
            "DELETE FROM channel_followers WHERE session = ?1",
            "DELETE FROM sessions WHERE id = ?1",
        ] {
            execute(self.connection, sql, params![session])?;
        }
        self.report.sessions.insert(session.to_owned());
        Ok(())
    }

    /// Deletes everything recorded for some turns of a session, or for the whole session (`None`),
    /// except its items and events. Clocks of machines differ, so rows are selected by their turn.
    /// `texts` are the texts of these items, which are searched for keys of documents,
    /// and `began_ms` the time of the first one.
    fn delete_activity(
        &mut self,
        session: &str,
        turns: &[Option<u32>],
        began_ms: i64,
        mut texts: Vec<String>,
    ) -> Result<(), JournalError> {
        let (mut runs, mut launched) = (Vec::new(), Vec::new());
        for turn in turns {
            let within = params![session, turn];
            let ids = |sql: &str| -> Result<Vec<String>, JournalError> {
                query_column(self.connection, sql, within)
            };
            // Runs that resumed a run of the turn contain the same content.
            runs.extend(ids("WITH RECURSIVE of_turn(id) AS (
                    SELECT id FROM runs WHERE session = ?1 AND (turn = ?2 OR ?2 IS NULL)
                    UNION SELECT runs.id FROM runs JOIN of_turn ON runs.resumes = of_turn.id)
                 SELECT id FROM of_turn")?);
            launched.extend(ids("SELECT id FROM sessions
                 WHERE parent = ?1 AND (parent_turn = ?2 OR ?2 IS NULL)")?);
            let sql = "DELETE FROM stored WHERE session = ?1 AND (turn = ?2 OR ?2 IS NULL)";
            execute(self.connection, sql, within)?;
            self.journal.clear_posts(self.connection, session, *turn)?;
        }
        for run in runs.iter().collect::<BTreeSet<_>>() {
            texts.extend(self.delete_run(run)?);
        }
        // Documents that were saved before the session began belong to other sessions.
        let sql = "SELECT started_ms FROM sessions WHERE id = ?1";
        let started: i64 = self
            .connection
            .query_row(sql, params![session], |row| row.get(0))?;
        self.delete_documents(began_ms.max(started), &texts)?;
        self.delete_replies(session)?;
        for session in launched {
            // A session that another session of this list launched is already deleted.
            if check_session_exists(self.connection, &session).is_ok() {
                self.delete_session(&session)?;
            }
        }
        Ok(())
    }

    /// Deletes the answers to requests with an idempotency key that name a session. They may quote
    /// its turns.
    fn delete_replies(&self, session: &str) -> Result<(), JournalError> {
        let sql = "DELETE FROM api_replies
            WHERE sessions = ?2 OR sessions LIKE '%' || ?1 || '%'";
        execute(self.connection, sql, params![session, ANY_SESSION])
    }

    /// Deletes a run, which must have ended. Returns the texts of the run and of its calls.
    fn delete_run(&mut self, id: &str) -> Result<Vec<String>, JournalError> {
        let run = self.journal.read_run(self.connection, id)?;
        if matches!(
            run.summary.state,
            StoredRunState::Running | StoredRunState::Suspended
        ) {
            return Err(JournalError::RunNotEnded(id.to_owned()));
        }
        let mut texts = vec![run.source];
        texts.extend(
            run.output
                .map(|output| output.output_json.unwrap_or_default()),
        );
        for call in run.calls {
            texts.extend(
                call.args
                    .into_iter()
                    .chain(call.value)
                    .map(|value| value.to_string()),
            );
        }
        for sql in [
            "DELETE FROM calls WHERE run = ?1",
            "DELETE FROM approvals WHERE run = ?1",
            "DELETE FROM suspensions WHERE run = ?1",
            "DELETE FROM runs WHERE id = ?1",
        ] {
            execute(self.connection, sql, params![id])?;
        }
        self.report.runs += 1;
        Ok(texts)
    }

    /// Deletes the documents that were saved since `since_ms` and whose keys occur in `texts`.
    fn delete_documents(&mut self, since_ms: i64, texts: &[String]) -> Result<(), JournalError> {
        let sql = "SELECT key FROM cabinet WHERE saved_ms >= ?1";
        let keys: Vec<String> = query_column(self.connection, sql, params![since_ms])?;
        let is_named = |stored: &&String| {
            let key = stored.split(OWNER_SEPARATOR).next().unwrap_or_default();
            texts.iter().any(|text| text.contains(key))
        };
        for key in keys.iter().filter(is_named) {
            self.report.documents += self
                .connection
                .execute("DELETE FROM cabinet WHERE key = ?1", params![key])?;
        }
        Ok(())
    }
}

fn check_session_exists(connection: &Connection, session: &str) -> Result<(), JournalError> {
    match connection
        .prepare_cached("SELECT 1 FROM sessions WHERE id = ?1")?
        .exists(params![session])?
    {
        true => Ok(()),
        false => Err(JournalError::SessionNotFound(session.to_owned())),
    }
}

/// Returns the session, the sessions it was forked from, and all their forks.
fn session_family(connection: &Connection, session: &str) -> Result<Vec<String>, JournalError> {
    query_column(
        connection,
        "WITH RECURSIVE family(id) AS (
            SELECT id FROM sessions WHERE id = ?1
            UNION SELECT links.other FROM family JOIN (
                    SELECT forked_from AS one, id AS other FROM sessions
                        WHERE forked_from IS NOT NULL
                    UNION ALL SELECT id, forked_from FROM sessions WHERE forked_from IS NOT NULL
                ) AS links ON links.one = family.id)
         SELECT id FROM family WHERE id IN (SELECT id FROM sessions)",
        params![session],
    )
}

/// Returns the turns that two sessions share, or only `turn` if they share it. An item that a fork
/// copied has the same number and time as the original.
fn shared_turns(
    connection: &Connection,
    session: &str,
    other: &str,
    turn: Option<u32>,
) -> Result<BTreeSet<u32>, JournalError> {
    let turns = query_column(
        connection,
        "SELECT DISTINCT ours.turn FROM items ours JOIN items theirs
         ON theirs.session = ?2 AND theirs.number = ours.number
             AND theirs.at_ms = ours.at_ms AND theirs.turn = ours.turn
         WHERE ours.session = ?1 AND (ours.turn = ?3 OR ?3 IS NULL)",
        params![session, other, turn],
    )?;
    Ok(turns.into_iter().collect())
}
