//! Work that waits for the disk, off the threads that run everything else.

use selvedge_tools::ToolError;

/// Runs `work` on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(ToolError::new(format!("the tool broke: {error}")).outcome_unknown()),
    }
}
