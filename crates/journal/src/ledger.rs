//! Records runs, calls and approvals: the implementation of [`Ledger`].

use std::sync::PoisonError;

use rusqlite::{Connection, params};
use selvedge_protocol::{
    ApprovalRequest, CallStatus, Intent, Ledger, LedgerError, RunStart, RunStatus,
    ScriptToolCallOutput, Settled,
};

use crate::connection::{execute, first};
use crate::sum::SUM;
use crate::time::{next_ns, now_ms};
use crate::{Journal, JournalError};

/// The end of a run.
#[derive(Clone, Copy)]
pub(crate) struct RunEnd<'a> {
    pub(crate) output: &'a ScriptToolCallOutput,
    /// The host's inputs to the script, for replay.
    pub(crate) recording: Option<&'a [u8]>,
    pub(crate) at_ms: i64,
}

impl Journal {
    /// Claims a suspended run so that this process can resume it. If several processes try at the
    /// same time, one succeeds and the others fail with [`JournalError::TakenOver`].
    pub fn take_over(&self, run: &str) -> Result<(), JournalError> {
        self.write(|connection| {
            let sql = "SELECT claimed_by FROM suspensions WHERE run = ?1";
            let claimed: Option<Option<String>> = first(connection, sql, params![run])?;
            match claimed {
                None => return Err(JournalError::NotSuspended(run.to_owned())),
                // A claim of a process that no longer runs does not count.
                Some(Some(other)) if other != self.owner.id && self.is_alive(&other) => {
                    return Err(JournalError::TakenOver);
                }
                Some(_) => {}
            }
            // An earlier stop request was meant for the process that suspended the run.
            execute(connection, "DELETE FROM stops WHERE run = ?1", params![run])?;
            for sql in [
                "UPDATE suspensions SET claimed_by = ?2 WHERE run = ?1",
                "UPDATE runs SET owner = ?2 WHERE id = ?1",
            ] {
                execute(connection, sql, params![run, self.owner.id])?;
            }
            Ok(())
        })
    }

    /// Ends a suspended run that this process has claimed, and cancels its open approvals.
    pub fn give_up(&self, run: &str) -> Result<(), JournalError> {
        self.write(|connection| {
            self.goes_on(connection, run)?;
            let over = "UPDATE approvals SET answers = '[\"cancelled\"]', answered_ms = ?2
                 WHERE run = ?1 AND answered_ms IS NULL";
            execute(connection, over, params![run, now_ms()])?;
            let ended =
                format!("UPDATE runs SET status = 'error', ended_ms = ?2, {SUM} WHERE id = ?1");
            execute(connection, &ended, params![run, now_ms()])
        })
    }

    /// Fails if the run belongs to another process. An id without a row (the structured calls of a
    /// turn) belongs to this process.
    fn must_be_ours(&self, connection: &Connection, run: &str) -> Result<(), JournalError> {
        let sql = "SELECT owner FROM runs WHERE id = ?1";
        let owner: Option<String> = first(connection, sql, params![run])?;
        match owner.is_none_or(|owner| owner == self.owner.id) {
            true => Ok(()),
            false => Err(JournalError::TakenOver),
        }
    }

    /// Inserts a run that begins, or one that made no call and has ended.
    pub(crate) fn insert_run(
        &self,
        connection: &Connection,
        run: &RunStart<'_>,
        ended: Option<RunEnd<'_>>,
    ) -> Result<(), JournalError> {
        if let Some(earlier) = run.resumes {
            // Only one run may resume another: a second would repeat its remaining work.
            let sql = "SELECT id FROM runs WHERE resumes = ?1 LIMIT 1";
            if let Some(by) = first(connection, sql, params![earlier])? {
                return Err(JournalError::AlreadyResumed {
                    run: earlier.to_owned(),
                    by,
                });
            }
        }
        let source = self.payloads.put(connection, run.source.as_bytes())?;
        let setting = self
            .payloads
            .put_shared(connection, run.setting.as_bytes())?;
        let ended_ms = ended.map(|end| end.at_ms);
        let took = ended.map_or(0.0, |end| end.output.metadata.duration_ms) as i64;
        let status = ended.map_or_else(
            || "running".to_owned(),
            |end| status_word(end.output.status),
        );
        let kept = ended
            .map(|end| self.put_ended(connection, end.output, end.recording))
            .transpose()?;
        let (output, recording) = kept.map_or((None, None), |(output, recording)| {
            (Some(output), recording)
        });
        execute(
            connection,
            "INSERT INTO runs (id, session, resumes, source, directory, seed, owner, status,
                 started_ms, setting, output, ended_ms, recording, calls, tools)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
            params![
                run.id,
                run.session,
                run.resumes,
                source,
                run.directory,
                run.seed,
                self.owner.id,
                status,
                ended_ms.unwrap_or_else(now_ms) - took,
                setting,
                output,
                ended_ms,
                recording,
                ended.map(|_| 0),
                ended.map(|_| "[]")
            ],
        )
    }

    fn put_ended(
        &self,
        connection: &Connection,
        output: &ScriptToolCallOutput,
        recording: Option<&[u8]>,
    ) -> Result<(Vec<u8>, Option<Vec<u8>>), JournalError> {
        let recording = recording
            .map(|recording| self.payloads.put(connection, recording))
            .transpose()?;
        Ok((self.payloads.put_json(connection, output)?, recording))
    }

    fn end_run(
        &self,
        connection: &Connection,
        output: &ScriptToolCallOutput,
        recording: Option<&[u8]>,
    ) -> Result<(), JournalError> {
        let (stored, recording) = self.put_ended(connection, output, recording)?;
        // Calls that were never recorded as intended are part of the run, too.
        for record in output
            .calls
            .iter()
            .filter(|call| call.status == CallStatus::NotStarted)
        {
            execute(
                connection,
                "INSERT OR IGNORE INTO calls
                     (run, id, tool, digest, read_only, line, state, started_ms)
                     VALUES (?1, ?2, ?3, ?4, 0, ?5, 'not started', ?6)",
                params![
                    output.id,
                    record.id,
                    record.tool,
                    record.args_digest,
                    record.line,
                    now_ms()
                ],
            )?;
        }
        execute(
            connection,
            &format!(
                "UPDATE runs SET status = ?2, output = ?3, ended_ms = ?4, recording = ?5, {SUM}
                 WHERE id = ?1"
            ),
            params![
                output.id,
                status_word(output.status),
                stored,
                now_ms(),
                recording
            ],
        )
    }

    /// Must precede every write for a run. Checks the owner and deletes the suspension, because the
    /// write makes its state outdated.
    fn goes_on(&self, connection: &Connection, run: &str) -> Result<(), JournalError> {
        self.must_be_ours(connection, run)?;
        self.close_asked_before(connection, run)?;
        execute(
            connection,
            "DELETE FROM suspensions WHERE run = ?1",
            params![run],
        )
    }

    /// Closes approvals that were open when this process claimed the run, because the resumed
    /// script asks for them again.
    fn close_asked_before(&self, connection: &Connection, run: &str) -> Result<(), JournalError> {
        let questions = self
            .asked_before
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(run);
        for question in questions.unwrap_or_default() {
            let over = "UPDATE approvals SET answers = '[\"asked anew\"]', answered_ms = ?2
                 WHERE id = ?1 AND answered_ms IS NULL";
            execute(connection, over, params![question, now_ms()])?;
        }
        Ok(())
    }
}

impl Ledger for Journal {
    fn digest_key(&self) -> [u8; 32] {
        self.key
    }

    fn begin(&self, run: &RunStart<'_>) -> Result<(), LedgerError> {
        Ok(self.write(|connection| self.insert_run(connection, run, None))?)
    }

    fn intend(&self, intent: &Intent<'_>) -> Result<(), LedgerError> {
        Ok(self.write(|connection| {
            self.goes_on(connection, intent.run)?;
            let args = self.payloads.put_json(connection, intent.args)?;
            execute(
                connection,
                "INSERT INTO calls
                     (run, id, tool, args, digest, read_only, line, state, started_ms, began_ns,
                     origin)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'intended', ?8, ?9, ?10)",
                params![
                    intent.run,
                    intent.id,
                    intent.tool,
                    args,
                    intent.digest,
                    intent.read_only,
                    intent.line,
                    now_ms(),
                    next_ns(),
                    intent.origin
                ],
            )
        })?)
    }

    fn settle(&self, settled: &Settled<'_>) -> Result<(), LedgerError> {
        let Settled {
            run,
            record,
            value,
            shown,
            resume_as,
            answered,
        } = settled;
        Ok(self.write(|connection| {
            self.goes_on(connection, run)?;
            let value = value
                .map(|value| self.payloads.put_json(connection, value))
                .transpose()?;
            let shown = shown
                .map(|shown| self.payloads.put(connection, shown.as_bytes()))
                .transpose()?;
            let error = record
                .error
                .as_ref()
                .map(|error| self.payloads.put_json(connection, error))
                .transpose()?;
            let args = answered.map(|answered| self.payloads.put_json(connection, &answered.args));
            execute(
                connection,
                "INSERT INTO calls (run, id, tool, digest, read_only, line, state, value, error,
                     reused, started_ms, duration_ms, shown, args, began_ns, resume_as, origin)
                     VALUES (?1, ?2, ?3, ?4, ?13, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?14, ?15,
                     ?16, ?17)
                     ON CONFLICT (run, id) DO UPDATE SET state = ?6, value = ?7, error = ?8,
                     reused = ?9, duration_ms = ?11, shown = ?12, resume_as = ?16
                     WHERE calls.state = 'intended'",
                params![
                    run,
                    record.id,
                    record.tool,
                    record.args_digest,
                    record.line,
                    record.status.as_str(),
                    value,
                    error,
                    record.reused,
                    now_ms(),
                    record.duration_ms,
                    shown,
                    answered.is_some_and(|answered| answered.read_only),
                    args.transpose()?,
                    next_ns(),
                    resume_as.as_str(),
                    answered.and_then(|answered| answered.origin.as_deref())
                ],
            )
        })?)
    }

    fn ask(&self, run: &str, request: &ApprovalRequest) -> Result<(), LedgerError> {
        Ok(self.write(|connection| {
            self.must_be_ours(connection, run)?;
            self.close_asked_before(connection, run)?;
            let payload = self.payloads.put_json(connection, request)?;
            execute(
                connection,
                "INSERT INTO approvals (id, run, request, asked_ms) VALUES (?1, ?2, ?3, ?4)",
                params![request.id, run, payload, now_ms()],
            )
        })?)
    }

    fn answer(&self, request_id: &str, answers: &[String]) -> Result<(), LedgerError> {
        Ok(self.write(|connection| {
            let answers = serde_json::to_string(answers).map_err(JournalError::from)?;
            execute(
                connection,
                "UPDATE approvals SET answers = ?2, answered_ms = ?3
                 WHERE id = ?1 AND answered_ms IS NULL",
                params![request_id, answers, now_ms()],
            )
        })?)
    }

    fn suspend(&self, run: &str, state: &[u8]) -> Result<(), LedgerError> {
        Ok(self.write(|connection| {
            self.must_be_ours(connection, run)?;
            // Not in `blobs`: the next state replaces this one.
            let state = self.payloads.put_here(state)?;
            execute(
                connection,
                "INSERT OR REPLACE INTO suspensions (run, state, written_ms) VALUES (?1, ?2, ?3)",
                params![run, state, now_ms()],
            )
        })?)
    }

    fn go_on(&self, run: &str) -> Result<(), LedgerError> {
        Ok(self.write(|connection| {
            self.must_be_ours(connection, run)?;
            execute(
                connection,
                "UPDATE suspensions SET claimed_by = ?2 WHERE run = ?1",
                params![run, self.owner.id],
            )
        })?)
    }

    fn is_to_stop(&self, run: &str) -> bool {
        // If the request cannot be read, the run goes on.
        self.is_asked_to_stop(run).unwrap_or(false)
    }

    fn end(
        &self,
        output: &ScriptToolCallOutput,
        recording: Option<&[u8]>,
    ) -> Result<(), LedgerError> {
        Ok(self.write(|connection| {
            self.goes_on(connection, &output.id)?;
            self.end_run(connection, output, recording)
        })?)
    }

    fn begin_and_end(
        &self,
        run: &RunStart<'_>,
        output: &ScriptToolCallOutput,
        recording: Option<&[u8]>,
    ) -> Result<(), LedgerError> {
        let end = RunEnd {
            output,
            recording,
            at_ms: now_ms(),
        };
        if self.behind.push(run, end) {
            return Ok(());
        }
        Ok(self.write(|connection| self.insert_run(connection, run, Some(end)))?)
    }
}

fn status_word(status: RunStatus) -> String {
    serde_json::to_value(status)
        .ok()
        .and_then(|word| word.as_str().map(str::to_owned))
        .unwrap_or_default()
}
