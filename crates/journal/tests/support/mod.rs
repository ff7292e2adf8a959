//! What tests of the journal have in common.

/// Waits for a future.
pub trait Wait: Future + Sized {
    fn wait(self) -> Self::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(self)
    }
}

impl<F: Future> Wait for F {}
