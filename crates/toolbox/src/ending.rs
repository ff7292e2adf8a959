//! Waits for running commands asynchronously, and keeps exited ones until their namespaces are
//! gone.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use selvedge_confine::{Child, End, watch};
use selvedge_tools::{Belongings, ToolError};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A running command that can be awaited and killed.
pub(crate) struct Ending {
    ended: AsyncFd<OwnedFd>,
    gone: AsyncFd<OwnedFd>,
    child: Mutex<Option<Child>>,
}

/// Commands that have exited while the kernel still removes their namespaces, which takes longer
/// than most commands.
#[derive(Clone, Default)]
pub(crate) struct Leaving(Arc<Mutex<Vec<Child>>>);

impl Leaving {
    /// Drops the commands whose processes and namespaces are gone.
    pub(crate) fn forget_gone(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|child| !child.is_gone());
    }
}

/// Waits for all exited commands when it is dropped.
struct WaitForAll(Leaving);

impl Drop for WaitForAll {
    fn drop(&mut self) {
        let all = std::mem::take(&mut *self.0.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(all);
    }
}

/// How long to wait for killed processes. Usually they exit in one or two milliseconds; a process
/// that hangs in the kernel is not waited for any longer.
const PATIENCE: Duration = Duration::from_secs(2);

impl Ending {
    pub(crate) fn of(child: Child) -> Result<Self, ToolError> {
        let watch = |fd: io::Result<OwnedFd>| watch(fd?, Interest::READABLE);
        let watch_error = |error: io::Error| {
            ToolError::new(format!("cannot wait for the command: {error}")).outcome_unknown()
        };
        let ended = watch(child.ended().try_clone_to_owned()).map_err(watch_error)?;
        let gone = watch(child.gone().try_clone_to_owned()).map_err(watch_error)?;
        Ok(Self {
            ended,
            gone,
            child: Mutex::new(Some(child)),
        })
    }

    /// Waits until the command exits. Its background processes may still run.
    pub(crate) async fn wait(&self) -> Result<End, ToolError> {
        let wait_error = |error: io::Error| {
            ToolError::new(format!("cannot get the command's exit status: {error}"))
                .outcome_unknown()
        };
        let _ready = self.ended.readable().await.map_err(wait_error)?;
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let child = child
            .as_mut()
            .ok_or_else(|| ToolError::new("the command has already been released"))?;
        child.end().map_err(wait_error)
    }

    /// Starts killing the command and everything it started.
    pub(crate) fn kill_now(&self) {
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
    pub(crate) async fn kill(&self) {
        self.kill_now();
        let _ = tokio::time::timeout(PATIENCE, self.gone.readable()).await;
    }

    /// Releases a command that has exited. Its background processes live as long as the scope. If
    /// it has none, its namespaces are removed while the script continues, at the latest when the
    /// scope ends.
    pub(crate) fn let_go(self, end: End, leaving: &Leaving, belongings: &Belongings) {
        let child = self
            .child
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        match child {
            Some(child) if end.left_behind => belongings.keep(child),
            Some(child) => {
                leaving
                    .0
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(child);
                belongings.keep(WaitForAll(leaving.clone()));
            }
            None => {}
        }
    }
}
