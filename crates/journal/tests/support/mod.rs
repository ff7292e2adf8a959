//! Helpers for the tests of the journal.

/// Blocks the thread until a future is done.
pub trait WaitForResult: Future + Sized {
    fn wait(self) -> Self::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(self)
    }
}

impl<F: Future> WaitForResult for F {}
