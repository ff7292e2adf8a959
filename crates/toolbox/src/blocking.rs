//! Runs blocking work, such as disk access, outside the async threads.

use selvedge_tools::ToolError;

/// Runs `work` on a thread that may block. If it panics, the outcome of the call is unknown.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(ToolError::new(format!("the tool failed: {error}")).outcome_unknown()),
    }
}
