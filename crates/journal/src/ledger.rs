//! Records runs, calls and approvals: the implementation of [`Ledger`].

use std::sync::PoisonError;

use async_trait::async_trait;
use selvedge_database::{Connection, NamedLockMode, params};
use selvedge_protocol::{
    ApprovalRequest, CallEnd, CallStart, CallStatus, Ledger, LedgerError, RunStart,
    ScriptToolCallOutput,
};

use crate::claims::SessionClaim;
use crate::connection::{execute, query_first};
use crate::run_call_counts::SET_CALL_COUNTS;
use crate::time::{next_ns, now_ms};
use crate::{Journal, JournalError};

/// Inserts a run, unless there is one with this id.
pub(crate) const INSERT_RUN: &str =
    "INSERT INTO runs (id, session, resumes, source, directory, seed, owner, status,
     started_ms, saved_config, output, ended_ms, recording, calls, tools, turn)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15,
     (SELECT turn FROM items WHERE session = ?2 ORDER BY number DESC LIMIT 1))
     ON CONFLICT (id) DO NOTHING";
/// Inserts the outcome of a call, or adds it to the recorded start of the call.
pub(crate) const RECORD_CALL_END: &str =
    "INSERT INTO calls (run, id, tool, digest, read_only, line, state, value, error,
     reused, started_ms, duration_ms, shown, args, started_ns, resume_as, prior_call)
     VALUES (?1, ?2, ?3, ?4, ?13, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?14, ?15,
     ?16, ?17)
     ON CONFLICT (run, id) DO UPDATE SET state = ?6, value = ?7, error = ?8,
     reused = ?9, duration_ms = ?11, shown = ?12, resume_as = ?16
     WHERE calls.state = 'started'";

/// The row of a run that starts, or of a run that has ended without a call.
#[derive(Debug)]
pub(crate) struct NewRunRow {
    id: String,
    source: String,
    directory: String,
    session: String,
    seed: String,
    pub(crate) resumes: Option<String>,
    saved_config: String,
    started_ms: i64,
    /// The claim of the process on the session of the run.
    claim: Option<SessionClaim>,
    end: Option<RunEndRow>,
}

/// The end of a run.
#[derive(Debug)]
struct RunEndRow {
    output: ScriptToolCallOutput,
    /// The host's inputs to the script, for replay.
    recording: Option<Vec<u8>>,
    at_ms: i64,
}

impl NewRunRow {
    fn new(run: &RunStart<'_>, claim: Option<SessionClaim>, end: Option<RunEndRow>) -> Self {
        let took = |end: &RunEndRow| end.output.metadata.duration_ms as i64;
        Self {
            id: run.id.to_owned(),
            source: run.source.to_owned(),
            directory: run.directory.to_owned(),
            session: run.session.to_owned(),
            seed: run.seed.to_owned(),
            resumes: run.resumes.map(str::to_owned),
            saved_config: run.saved_config.to_owned(),
            started_ms: end
                .as_ref()
                .map_or_else(now_ms, |end| end.at_ms - took(end)),
            claim,
            end,
        }
    }
}

impl RunEndRow {
    fn new(output: &ScriptToolCallOutput, recording: Option<Vec<u8>>) -> Self {
        Self {
            output: output.clone(),
            recording,
            at_ms: now_ms(),
        }
    }

    /// Returns the value of the column `status` in the table `runs`.
    fn status(&self) -> String {
        serde_json::to_value(self.output.status)
            .ok()
            .and_then(|word| word.as_str().map(str::to_owned))
            .unwrap_or_default()
    }
}

impl Journal {
    /// Claims a suspended run so that this process can restore it. If several processes try at the
    /// same time, one succeeds and the others fail with [`JournalError::ClaimedByOther`].
    pub fn claim_suspended_run(&self, run: &str) -> Result<(), JournalError> {
        self.write(|connection| {
            let lock = connection.row_lock();
            let sql = format!("SELECT claimed_by FROM suspensions WHERE run = ?1{lock}");
            let claimed: Option<Option<String>> = query_first(connection, &sql, params![run])?;
            match claimed {
                None => return Err(JournalError::NotSuspended(run.to_owned())),
                // A claim of a process that no longer runs does not count.
                Some(Some(other))
                    if other != self.owner.id && !self.may_replace_owner(connection, &other)? =>
                {
                    return Err(JournalError::ClaimedByOther);
                }
                Some(_) => {}
            }
            // An earlier stop request was meant for the process that suspended the run.
            execute(
                connection,
                "DELETE FROM cancel_requests WHERE run = ?1",
                params![run],
            )?;
            for sql in [
                "UPDATE suspensions SET claimed_by = ?2 WHERE run = ?1",
                "UPDATE runs SET owner = ?2 WHERE id = ?1",
            ] {
                execute(connection, sql, params![run, self.owner.id])?;
            }
            Ok(())
        })
    }

    /// Ends a suspended run that this process has claimed with this output, and cancels its open
    /// approvals.
    pub fn cancel_suspended_run(&self, output: &ScriptToolCallOutput) -> Result<(), JournalError> {
        let (run, end) = (&output.id, RunEndRow::new(output, None));
        self.write(|connection| {
            self.check_owner_and_delete_suspension(connection, run)?;
            let sql = "UPDATE approvals SET answers = '[\"cancelled\"]', answered_ms = ?2
                 WHERE run = ?1 AND answered_ms IS NULL";
            execute(connection, sql, params![run, now_ms()])?;
            self.update_run_end(connection, &end)
        })
    }

    /// Fails if the run belongs to another process. An id without a row belongs to this process.
    /// Locks the row of the run, so that no other process claims it during the transaction. Returns
    /// whether there is a row.
    fn check_run_owner(&self, connection: &Connection, run: &str) -> Result<bool, JournalError> {
        let sql = format!(
            "SELECT owner FROM runs WHERE id = ?1{}",
            connection.row_lock()
        );
        let owner: Option<String> = query_first(connection, &sql, params![run])?;
        match owner {
            Some(other) if other != self.owner.id => Err(JournalError::ClaimedByOther),
            owner => Ok(owner.is_some()),
        }
    }

    /// Inserts a run. If an earlier write whose future was dropped has inserted it already, only
    /// its end is added.
    pub(crate) fn insert_run(
        &self,
        connection: &Connection,
        run: &NewRunRow,
    ) -> Result<(), JournalError> {
        self.check_claim(connection, run.claim.as_ref())?;
        if let Some(earlier) = &run.resumes {
            // Only one run may resume another: a second would repeat its remaining work.
            let lock = format!("resume {earlier}");
            connection.lock_name(&lock, NamedLockMode::Exclusive);
            let sql = "SELECT id FROM runs WHERE resumes = ?1 AND id <> ?2 LIMIT 1";
            if let Some(by) = query_first(connection, sql, params![earlier, run.id])? {
                return Err(JournalError::AlreadyResumed {
                    run: earlier.to_owned(),
                    by,
                });
            }
        }
        let source = self.payloads.put(connection, run.source.as_bytes())?;
        let saved_config = self
            .payloads
            .put_shared(connection, run.saved_config.as_bytes())?;
        let end = run.end.as_ref();
        let [output, recording] =
            end.map_or(Ok([None, None]), |end| self.store_run_end(connection, end))?;
        let inserted = connection.prepare_cached(INSERT_RUN)?.execute(params![
            run.id,
            run.session,
            run.resumes,
            source,
            run.directory,
            run.seed,
            self.owner.id,
            end.map_or_else(|| "running".to_owned(), RunEndRow::status),
            run.started_ms,
            saved_config,
            output,
            end.map(|end| end.at_ms),
            recording,
            end.map(|_| 0),
            end.map(|_| "[]")
        ])?;
        match (inserted, end) {
            (0, _) if !self.is_running_here(connection, &run.id)? => {
                Err(JournalError::RunExists(run.id.clone()))
            }
            (0, Some(end)) => self.update_run_end(connection, end),
            _ => Ok(()),
        }
    }

    /// Returns whether this process has started the run and the run has not ended.
    fn is_running_here(&self, connection: &Connection, run: &str) -> Result<bool, JournalError> {
        let sql = "SELECT 1 FROM runs WHERE id = ?1 AND owner = ?2 AND ended_ms IS NULL";
        let mut read = connection.prepare_cached(sql)?;
        Ok(read.exists(params![run, self.owner.id])?)
    }

    /// Stores the output and the recording of a run, and returns their columns.
    fn store_run_end(
        &self,
        connection: &Connection,
        end: &RunEndRow,
    ) -> Result<[Option<Vec<u8>>; 2], JournalError> {
        let recording = end.recording.as_ref();
        let recording = recording
            .map(|recording| self.payloads.put(connection, recording))
            .transpose()?;
        let output = self.payloads.put_json(connection, &end.output)?;
        Ok([Some(output), recording])
    }

    fn update_run_end(&self, connection: &Connection, end: &RunEndRow) -> Result<(), JournalError> {
        let output = &end.output;
        let [stored, recording] = self.store_run_end(connection, end)?;
        // Calls that never started may have no row yet.
        for record in output
            .calls
            .iter()
            .filter(|call| call.status == CallStatus::NotStarted)
        {
            execute(
                connection,
                "INSERT INTO calls (run, id, tool, digest, read_only, line, state, started_ms)
                     VALUES (?1, ?2, ?3, ?4, 0, ?5, 'not started', ?6)
                     ON CONFLICT DO NOTHING",
                params![
                    output.id,
                    record.id,
                    record.tool,
                    record.args_digest,
                    record.line,
                    end.at_ms
                ],
            )?;
        }
        execute(
            connection,
            &format!(
                "UPDATE runs SET status = ?2, output = ?3, ended_ms = ?4, recording = ?5, {SET_CALL_COUNTS}
                 WHERE id = ?1"
            ),
            params![output.id, end.status(), stored, end.at_ms, recording],
        )
    }

    /// Must precede every write that changes the state of a run: its calls and its end. Checks the
    /// owner and deletes the suspension, because the write makes its state outdated. Returns
    /// whether the run is recorded.
    fn check_owner_and_delete_suspension(
        &self,
        connection: &Connection,
        run: &str,
    ) -> Result<bool, JournalError> {
        let is_recorded = self.check_run_owner(connection, run)?;
        self.close_inherited_approvals(connection, run)?;
        execute(
            connection,
            "DELETE FROM suspensions WHERE run = ?1",
            params![run],
        )?;
        Ok(is_recorded)
    }

    /// Closes approval requests that were open when this process claimed the run, because the
    /// restored script makes them again. They stay listed, because the transaction may be repeated:
    /// closing them again has no effect.
    fn close_inherited_approvals(
        &self,
        connection: &Connection,
        run: &str,
    ) -> Result<(), JournalError> {
        let requests = self
            .inherited_approvals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(run)
            .cloned();
        for request in requests.unwrap_or_default() {
            let sql = "UPDATE approvals SET answers = '[\"asked again\"]', answered_ms = ?2
                 WHERE id = ?1 AND answered_ms IS NULL";
            execute(connection, sql, params![request, now_ms()])?;
        }
        Ok(())
    }
}

#[async_trait]
impl Ledger for Journal {
    fn digest_key(&self) -> [u8; 32] {
        self.digest_key
    }

    async fn record_run_start(&self, run: RunStart<'_>) -> Result<(), LedgerError> {
        let row = NewRunRow::new(&run, self.claim_of(run.session), None);
        let insert = move |journal: &Self, connection: &_| journal.insert_run(connection, &row);
        Ok(self.write_async(insert).await?)
    }

    async fn record_call_start(&self, start: CallStart<'_>) -> Result<(), LedgerError> {
        let [run, id, tool, digest] =
            [start.run, start.id, start.tool, start.digest].map(str::to_owned);
        let args = serde_json::to_vec(start.args).map_err(JournalError::from)?;
        let (read_only, line) = (start.read_only, start.line);
        let prior_call = start.prior_call.map(str::to_owned);
        let queued_ms = start.queued_ms;
        let (began_ms, started_ns) = (now_ms(), next_ns());
        let insert = move |journal: &Self, connection: &Connection| {
            // A run is not recorded if its session was taken over before.
            if !journal.check_owner_and_delete_suspension(connection, &run)? {
                return Err(JournalError::RunNotFound(run.clone()));
            }
            let args = journal.payloads.put(connection, &args)?;
            execute(
                connection,
                "INSERT INTO calls
                     (run, id, tool, args, digest, read_only, line, state, started_ms, started_ns,
                     prior_call, queued_ms)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'started', ?8, ?9, ?10, ?11)",
                params![
                    run, id, tool, args, digest, read_only, line, began_ms, started_ns, prior_call,
                    queued_ms
                ],
            )
        };
        Ok(self.write_async(insert).await?)
    }

    async fn record_call_end(&self, end: CallEnd<'_>) -> Result<(), LedgerError> {
        let run = end.run.to_owned();
        let record = end.record.clone();
        let as_json = |value| serde_json::to_vec(value).map_err(JournalError::from);
        let value = end.value.map(as_json).transpose()?;
        let start = end.start_details;
        let args = start.map(|start| as_json(&start.args)).transpose()?;
        let read_only = start.is_some_and(|start| start.read_only);
        let prior_call = start.and_then(|start| start.prior_call.clone());
        let shown = end.shown.map(str::to_owned);
        let resume_as = end.resume_as.as_str();
        let (ended_ms, ended_ns) = (now_ms(), next_ns());
        let upsert = move |journal: &Self, connection: &Connection| {
            journal.check_owner_and_delete_suspension(connection, &run)?;
            let put = |bytes: Option<&[u8]>| {
                bytes
                    .map(|bytes| journal.payloads.put(connection, bytes))
                    .transpose()
            };
            let error = record.error.as_ref();
            let error = error
                .map(|error| journal.payloads.put_json(connection, error))
                .transpose()?;
            execute(
                connection,
                RECORD_CALL_END,
                params![
                    run,
                    record.id,
                    record.tool,
                    record.args_digest,
                    record.line,
                    record.status.as_str(),
                    put(value.as_deref())?,
                    error,
                    record.reused,
                    ended_ms,
                    record.duration_ms,
                    put(shown.as_deref().map(str::as_bytes))?,
                    read_only,
                    put(args.as_deref())?,
                    ended_ns,
                    resume_as,
                    prior_call
                ],
            )
        };
        Ok(self.write_async(upsert).await?)
    }

    async fn record_approval_request(
        &self,
        run: &str,
        request: &ApprovalRequest,
    ) -> Result<(), LedgerError> {
        let (run, request, asked_ms) = (run.to_owned(), request.clone(), now_ms());
        let insert = move |journal: &Self, connection: &Connection| {
            journal.check_run_owner(connection, &run)?;
            journal.close_inherited_approvals(connection, &run)?;
            let payload = journal.payloads.put_json(connection, &request)?;
            execute(
                connection,
                "INSERT INTO approvals (id, run, request, asked_ms) VALUES (?1, ?2, ?3, ?4)",
                params![request.id, run, payload, asked_ms],
            )
        };
        Ok(self.write_async(insert).await?)
    }

    async fn record_approval_answers(
        &self,
        request_id: &str,
        answers: &[String],
    ) -> Result<(), LedgerError> {
        let (id, answered_ms) = (request_id.to_owned(), now_ms());
        let answers = serde_json::to_string(answers).map_err(JournalError::from)?;
        let update = move |journal: &Self, connection: &Connection| {
            let run = "SELECT run FROM approvals WHERE id = ?1";
            if let Some(run) = query_first::<String>(connection, run, params![id])? {
                journal.check_run_owner(connection, &run)?;
            }
            execute(
                connection,
                "UPDATE approvals SET answers = ?2, answered_ms = ?3
                 WHERE id = ?1 AND answered_ms IS NULL",
                params![id, answers, answered_ms],
            )
        };
        Ok(self.write_async(update).await?)
    }

    async fn save_suspension(&self, run: &str, state: Vec<u8>) -> Result<(), LedgerError> {
        let (run, written_ms) = (run.to_owned(), now_ms());
        // Queued, because compressing the state takes long.
        let insert = move |journal: &Self| {
            // Not in `blobs`: the next state replaces this one.
            let state = journal.payloads.put_in_row(&state)?;
            journal.write(|connection| {
                journal.check_run_owner(connection, &run)?;
                execute(
                    connection,
                    "INSERT INTO suspensions (run, state, written_ms) VALUES (?1, ?2, ?3)
                     ON CONFLICT (run) DO UPDATE SET state = excluded.state,
                        written_ms = excluded.written_ms, claimed_by = NULL",
                    params![run, state, written_ms],
                )
            })
        };
        Ok(self.spawn_blocking(insert).await?)
    }

    async fn claim_run(&self, run: &str) -> Result<(), LedgerError> {
        let run = run.to_owned();
        let claim = move |journal: &Self, connection: &Connection| {
            journal.check_run_owner(connection, &run)?;
            execute(
                connection,
                "UPDATE suspensions SET claimed_by = ?2 WHERE run = ?1",
                params![run, journal.owner.id],
            )
        };
        Ok(self.write_async(claim).await?)
    }

    async fn is_cancel_requested(&self, run: &str) -> bool {
        // If the request cannot be read, the run continues.
        self.is_cancel_requested_at_last_poll(run)
            .await
            .unwrap_or(false)
    }

    async fn record_run_end(
        &self,
        output: &ScriptToolCallOutput,
        recording: Option<Vec<u8>>,
    ) -> Result<(), LedgerError> {
        let end = RunEndRow::new(output, recording);
        let update = move |journal: &Self, connection: &Connection| {
            journal.check_owner_and_delete_suspension(connection, &end.output.id)?;
            journal.update_run_end(connection, &end)
        };
        Ok(self.write_async(update).await?)
    }

    async fn record_run_start_and_end(
        &self,
        run: RunStart<'_>,
        output: &ScriptToolCallOutput,
        recording: Option<Vec<u8>>,
    ) -> Result<(), LedgerError> {
        let end = RunEndRow::new(output, recording);
        let row = NewRunRow::new(&run, self.claim_of(run.session), Some(end));
        let Some(row) = self.write_behind.push(row) else {
            return Ok(());
        };
        let insert = move |journal: &Self, connection: &_| journal.insert_run(connection, &row);
        Ok(self.write_async(insert).await?)
    }
}
