//! The lock for distilling: one process at a time distills a unit.
//!
//! A process locks a file, which the operating system unlocks when the process ends. Machines that
//! share a database do not see each other's files. There, the holder of the file also has a lease
//! in the database, by the clock of the database, and a thread renews it.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use selvedge_database::{Connection, params};
use selvedge_files::try_lock_file;
use selvedge_protocol::new_id;

use crate::distill_unit::DistillUnit;
use crate::store::{execute, query_first};
use crate::{Memory, MemoryError};

/// How long a process waits for the lock: another one that asks whether it is held, holds it for a
/// moment.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// The time between two attempts to take the lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);
/// How long a lease lasts after each renewal. Another machine continues the pass of one that died
/// after this time.
const LEASE_DURATION: Duration = Duration::from_secs(30);
/// How often a lease is renewed.
const LEASE_RENEWAL: Duration = Duration::from_secs(10);

/// The lock of a unit, which is held until this value is dropped.
pub(crate) struct DistillLock {
    /// The locked file, if there is no lease.
    _file: Option<File>,
    /// Ends the thread that has the locked file and renews the lease.
    _renewal: Option<Sender<()>>,
}

impl Memory {
    /// Takes the lock for distilling the unit of a session.
    pub(crate) fn lock_for_distilling(
        self: &Arc<Self>,
        session: &str,
    ) -> Result<DistillLock, MemoryError> {
        let unit = self.read(|reader| DistillUnit::load(&reader.connection, session))?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            if let Some(lock) = self.try_lock_unit(&unit.key)? {
                return Ok(lock);
            }
            if Instant::now() >= deadline {
                return Err(MemoryError::DistillLocked(session.to_owned()));
            }
            std::thread::sleep(LOCK_INTERVAL);
        }
    }

    /// Returns whether a process of this machine, or a task of this one, distills a unit. Processes
    /// that ask at the same time do not see each other.
    pub(crate) fn is_distilling_here(&self, unit: &str) -> bool {
        let file = File::open(self.lock_path(unit));
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    fn lock_path(&self, unit: &str) -> PathBuf {
        let folder = self.location.folder();
        folder.join(format!("live/memory-distill-{unit}"))
    }

    /// Takes the lock of a unit; `None` if another process, or another task of this one, holds it.
    fn try_lock_unit(self: &Arc<Self>, unit: &str) -> Result<Option<DistillLock>, MemoryError> {
        let Some(mut file) = self.lock_unit_file(unit)? else {
            return Ok(None);
        };
        if self.location.database().is_none() {
            return Ok(Some(DistillLock {
                _file: Some(file),
                _renewal: None,
            }));
        }
        let holder = lease_holder(&mut file).map_err(|error| self.lock_error(unit, error))?;
        let lease = UnitLease {
            unit: unit.to_owned(),
            holder,
        };
        if !self.write(|connection| lease.begin(connection))? {
            return Ok(None);
        }
        let (renewal, ended) = mpsc::channel();
        let memory = self.clone();
        let thread = std::thread::Builder::new().name("selvedge-distill".to_owned());
        let spawned = thread.spawn(move || {
            lease.renew_until(&memory, &ended);
            // The file is unlocked after the end of the lease: the next holder of the file has the
            // same name, and its lease must not be deleted.
            drop(file);
        });
        spawned.map_err(|error| self.lock_error(unit, error))?;
        Ok(Some(DistillLock {
            _file: None,
            _renewal: Some(renewal),
        }))
    }

    /// Locks the file of a unit; `None` if it is locked.
    fn lock_unit_file(&self, unit: &str) -> Result<Option<File>, MemoryError> {
        let path = self.lock_path(unit);
        let file_error = |error| self.lock_error(unit, error);
        std::fs::create_dir_all(self.location.folder().join("live")).map_err(file_error)?;
        try_lock_file(&path).map_err(file_error)
    }

    fn lock_error(&self, unit: &str, error: io::Error) -> MemoryError {
        MemoryError::File {
            path: self.lock_path(unit).display().to_string(),
            error,
        }
    }
}

/// Returns the name under which the holder of a lock file has its leases: the content of the file,
/// and this machine. Only one process at a time has it. So a lease with this name is left from a
/// process that died, and the next one need not wait for its end.
fn lease_holder(file: &mut File) -> io::Result<String> {
    let mut id = String::new();
    file.read_to_string(&mut id)?;
    if id.is_empty() {
        id = new_id("lck");
        file.write_all(id.as_bytes())?;
    }
    // The folder may be on a file system without locks between machines.
    let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Ok(format!("{id} {}", machine.trim()))
}

/// Returns whether a process of any machine has the lease of a unit.
pub(crate) fn is_leased(connection: &Connection, unit: &str) -> Result<bool, MemoryError> {
    let now = connection.database_now();
    let sql = format!("SELECT 1 FROM memory_locks WHERE unit = ?1 AND ends_ms > {now}");
    let found: Option<i64> = query_first(connection, &sql, params![unit], |row| row.get(0))?;
    Ok(found.is_some())
}

/// The lease of a unit in the database.
struct UnitLease {
    unit: String,
    holder: String,
}

impl UnitLease {
    /// Begins the lease. Returns `false` if another holder has one that has not ended.
    fn begin(&self, connection: &Connection) -> Result<bool, MemoryError> {
        let now = connection.database_now();
        let sql = format!(
            "INSERT INTO memory_locks (unit, holder, ends_ms) VALUES (?1, ?2, {now} + ?3)
             ON CONFLICT (unit) DO UPDATE SET holder = excluded.holder, ends_ms = excluded.ends_ms
             WHERE memory_locks.ends_ms <= {now} OR memory_locks.holder = excluded.holder"
        );
        let duration = LEASE_DURATION.as_millis() as i64;
        Ok(execute(connection, &sql, params![self.unit, self.holder, duration])? > 0)
    }

    /// Renews the lease until the sender of `ended` is dropped, and ends it then. If it was lost
    /// meanwhile, because the database was away, the pass continues: what another process distills
    /// at the same time is found when either of them writes.
    fn renew_until(&self, memory: &Memory, ended: &Receiver<()>) {
        while ended.recv_timeout(LEASE_RENEWAL) == Err(RecvTimeoutError::Timeout) {
            // After a failure, the next renewal is before the end.
            let _ = memory.write(|connection| {
                let now = connection.database_now();
                let sql = format!(
                    "UPDATE memory_locks SET ends_ms = {now} + ?3 WHERE unit = ?1 AND holder = ?2"
                );
                let duration = LEASE_DURATION.as_millis() as i64;
                execute(connection, &sql, params![self.unit, self.holder, duration])
            });
        }
        // If this fails, the lease ends by itself.
        let _ = memory.write(|connection| {
            let sql = "DELETE FROM memory_locks WHERE unit = ?1 AND holder = ?2";
            execute(connection, sql, params![self.unit, self.holder])
        });
    }
}
