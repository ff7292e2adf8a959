//! Rows that may follow their answer: runs that did nothing but compute.
//!
//! Such a run changed nothing, and nobody goes on from what it did: its row is there to be read. It is written a moment
//! later and with others that came meanwhile, in one transaction instead of many; whoever reads or writes through this
//! journal finds it written. A process that is killed in that moment loses the row, and nothing that was done.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rusqlite::Connection;
use selvedge_protocol::{RunStart, ScriptToolCallOutput};

use crate::Durability;
use crate::JournalError;
use crate::journal::{Journal, RunEnd, in_one_piece};

/// The moment.
const A_MOMENT: Duration = Duration::from_millis(5);
/// Rows that may wait; one more is written at once, and they with it.
const MOST: usize = 64;

/// Rows that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    waiting: Mutex<Waiting>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    rows: Vec<Computed>,
    /// Somebody writes them.
    has_writer: bool,
    /// The journal is closed.
    over: bool,
}

/// A run that computed.
#[derive(Debug)]
struct Computed {
    source: String,
    directory: String,
    session: String,
    seed: String,
    setting: String,
    output: ScriptToolCallOutput,
    recording: Option<Vec<u8>>,
    ended_ms: i64,
}

impl Computed {
    fn start(&self) -> RunStart<'_> {
        RunStart {
            id: &self.output.id,
            source: &self.source,
            directory: &self.directory,
            session: &self.session,
            seed: &self.seed,
            resumes: None,
            setting: &self.setting,
        }
    }

    fn end(&self) -> RunEnd<'_> {
        RunEnd {
            output: &self.output,
            recording: self.recording.as_deref(),
            at_ms: self.ended_ms,
        }
    }
}

impl Behind {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a row to be written soon; `false` where it must be written now.
    pub(crate) fn take(&self, run: &RunStart<'_>, end: RunEnd<'_>) -> bool {
        let mut waiting = self.waiting();
        if !waiting.has_writer || run.resumes.is_some() || waiting.rows.len() >= MOST {
            return false;
        }
        waiting.rows.push(Computed {
            source: run.source.to_owned(),
            directory: run.directory.to_owned(),
            session: run.session.to_owned(),
            seed: run.seed.to_owned(),
            setting: run.setting.to_owned(),
            output: end.output.clone(),
            recording: end.recording.map(<[u8]>::to_vec),
            ended_ms: end.at_ms,
        });
        if waiting.rows.len() == 1 {
            self.news.notify_one();
        }
        true
    }

    /// The journal is closed.
    pub(crate) fn end(&self) {
        self.waiting().over = true;
        self.news.notify_one();
    }

    /// Waits until there are rows to write; `false` when there will be none any more.
    fn wait(&self) -> bool {
        let empty = |waiting: &mut Waiting| waiting.rows.is_empty() && !waiting.over;
        let waiting = self
            .news
            .wait_while(self.waiting(), empty)
            .unwrap_or_else(PoisonError::into_inner);
        !waiting.over
    }
}

impl Journal {
    /// From now on, runs that only compute are written a moment after they ended; not where writing survives the loss
    /// of power.
    pub fn write_behind(self: &Arc<Self>) {
        if self.durability == Durability::Full
            || std::mem::replace(&mut self.behind.waiting().has_writer, true)
        {
            return;
        }
        let (behind, journal) = (self.behind.clone(), Arc::downgrade(self));
        let writer = std::thread::Builder::new().name("selvedge-journal".to_owned());
        if writer.spawn(move || write_on(&behind, &journal)).is_err() {
            // Then everything is written when it happens.
            self.behind.waiting().has_writer = false;
        }
    }

    /// Writes what waits to be written.
    pub fn catch_up(&self) -> Result<(), JournalError> {
        self.write_what_waits(&self.connection())
    }

    pub(crate) fn write_what_waits(&self, connection: &Connection) -> Result<(), JournalError> {
        let rows = std::mem::take(&mut self.behind.waiting().rows);
        if rows.is_empty() {
            return Ok(());
        }
        let written = in_one_piece(connection, |connection| {
            rows.iter()
                .try_for_each(|row| self.insert_run(connection, &row.start(), Some(row.end())))
        });
        if written.is_err() {
            // Tried again by whoever comes next; what ends from now on is written at once, and says why it cannot be.
            let mut waiting = self.behind.waiting();
            waiting.has_writer = false;
            waiting.rows.splice(..0, rows);
        }
        written
    }
}

fn write_on(behind: &Behind, journal: &Weak<Journal>) {
    while behind.wait() {
        // Others may come meanwhile.
        std::thread::sleep(A_MOMENT);
        match journal.upgrade().map(|journal| journal.catch_up()) {
            Some(Ok(())) => {}
            Some(Err(_)) | None => return,
        }
    }
}
