//! The thread that drives all connections to PostgreSQL.
//!
//! The interface of this crate is synchronous, and its callers may be tasks of an asynchronous
//! runtime, in which another one cannot be entered. So one thread with a runtime of its own sends
//! and receives for all connections, and callers wait for its answers.

use std::sync::{OnceLock, mpsc};

use tokio::runtime::Handle;

use crate::{DatabaseError, DatabaseErrorKind};

/// Runs a future on the thread, and waits for its result.
pub(crate) fn wait_for<T: Send + 'static>(
    future: impl Future<Output = Result<T, DatabaseError>> + Send + 'static,
) -> Result<T, DatabaseError> {
    let (sender, result) = mpsc::sync_channel(1);
    handle()?.spawn(async move {
        // The caller waits, unless its thread has panicked.
        let _ = sender.send(future.await);
    });
    result.recv().unwrap_or_else(|_| {
        Err(DatabaseError::new(
            DatabaseErrorKind::Other,
            "the thread of the connections to PostgreSQL has ended",
        ))
    })
}

/// Returns a handle to the runtime, and starts its thread at the first call.
pub(crate) fn handle() -> Result<&'static Handle, DatabaseError> {
    static RUNTIME: OnceLock<Result<Handle, DatabaseError>> = OnceLock::new();
    RUNTIME.get_or_init(start).as_ref().map_err(Clone::clone)
}

fn start() -> Result<Handle, DatabaseError> {
    let failed = |error: std::io::Error| {
        let message = format!("cannot start the thread of the connections: {error}");
        DatabaseError::new(DatabaseErrorKind::Other, message)
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(failed)?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("selvedge-postgres".to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .map_err(failed)?;
    Ok(handle)
}
