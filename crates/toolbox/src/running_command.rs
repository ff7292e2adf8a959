//! Waits for running commands asynchronously, and keeps exited ones until their namespaces are
//! gone.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use selvedge_confine::{Child, CommandExit, async_fd};
use selvedge_tools::{ScopeResources, ToolError};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A running command that can be awaited and killed.
pub(crate) struct RunningCommand {
    exit_fd: AsyncFd<OwnedFd>,
    tree_exit_fd: AsyncFd<OwnedFd>,
    child: Mutex<Option<Child>>,
}

/// Commands that have exited while the kernel still removes their namespaces, which takes longer
/// than most commands.
#[derive(Clone, Default)]
pub(crate) struct ExitedCommands(Arc<Mutex<Vec<Child>>>);

impl ExitedCommands {
    /// Drops the commands whose processes and namespaces are gone.
    pub(crate) fn drop_finished(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|child| !child.has_tree_exited());
    }
}

/// Waits for all exited commands when it is dropped.
struct WaitForExited(ExitedCommands);

impl Drop for WaitForExited {
    fn drop(&mut self) {
        let all = std::mem::take(&mut *self.0.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(all);
    }
}

/// How long to wait for killed processes. Usually they exit in one or two milliseconds; a process
/// that hangs in the kernel is not waited for any longer.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

impl RunningCommand {
    pub(crate) fn new(child: Child) -> Result<Self, ToolError> {
        let watch = |fd: io::Result<OwnedFd>| async_fd(fd?, Interest::READABLE);
        let watch_error = |error: io::Error| {
            ToolError::new(format!("cannot wait for the command: {error}")).outcome_unknown()
        };
        let ended = watch(child.exit_fd().try_clone_to_owned()).map_err(watch_error)?;
        let tree_exit_fd = watch(child.tree_exit_fd().try_clone_to_owned()).map_err(watch_error)?;
        Ok(Self {
            exit_fd: ended,
            tree_exit_fd,
            child: Mutex::new(Some(child)),
        })
    }

    /// Waits until the command exits. Its background processes may still run.
    pub(crate) async fn wait(&self) -> Result<CommandExit, ToolError> {
        let wait_error = |error: io::Error| {
            ToolError::new(format!("cannot get the command's exit status: {error}"))
                .outcome_unknown()
        };
        let _ready = self.exit_fd.readable().await.map_err(wait_error)?;
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let child = child
            .as_mut()
            .ok_or_else(|| ToolError::new("the command has already been released"))?;
        child.wait_exit().map_err(wait_error)
    }

    /// Starts killing the command and everything it started.
    pub(crate) fn start_kill(&self) {
        if let Some(child) = self
            .child
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_mut()
        {
            child.kill();
        }
    }

    /// Kills the command and everything it started, and waits until they have exited.
    pub(crate) async fn kill_and_wait(&self) {
        self.start_kill();
        let _ = tokio::time::timeout(KILL_TIMEOUT, self.tree_exit_fd.readable()).await;
    }

    /// Hands over a command that has exited. If it has background processes, the scope owns them
    /// and kills them at its end. If not, the kernel removes its namespaces in the background, and
    /// the end of the scope waits for that.
    pub(crate) fn release(
        self,
        end: CommandExit,
        exited: &ExitedCommands,
        resources: &ScopeResources,
    ) {
        let child = self
            .child
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        match child {
            Some(child) if end.has_background_processes => resources.add(child),
            Some(child) => {
                exited
                    .0
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(child);
                resources.add(WaitForExited(exited.clone()));
            }
            None => {}
        }
    }
}
