//! Waiting for a command without holding a thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use selvedge_confine::{Child, End, watch};
use selvedge_tools::{Belongings, ToolError};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The end of a running command.
pub(crate) struct Ending {
    ended: AsyncFd<OwnedFd>,
    gone: AsyncFd<OwnedFd>,
    child: Mutex<Option<Child>>,
}

/// Commands that have ended and whose walls are being taken down, which takes longer than most commands.
#[derive(Clone, Default)]
pub(crate) struct Leaving(Arc<Mutex<Vec<Child>>>);

impl Leaving {
    /// Forgets those that are gone.
    pub(crate) fn forget_gone(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|child| !child.is_gone());
    }
}

/// Waits for all that are leaving when it is dropped.
struct WaitForAll(Leaving);

impl Drop for WaitForAll {
    fn drop(&mut self) {
        let all = std::mem::take(&mut *self.0.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(all);
    }
}

/// Killed processes are gone in a millisecond or two; what hangs in the kernel is not waited for.
const PATIENCE: Duration = Duration::from_secs(2);

impl Ending {
    pub(crate) fn of(child: Child) -> Result<Self, ToolError> {
        let watch = |fd: io::Result<OwnedFd>| watch(fd?, Interest::READABLE);
        let broken = |error: io::Error| {
            ToolError::new(format!("the command cannot be watched: {error}")).outcome_unknown()
        };
        let ended = watch(child.ended().try_clone_to_owned()).map_err(broken)?;
        let gone = watch(child.gone().try_clone_to_owned()).map_err(broken)?;
        Ok(Self {
            ended,
            gone,
            child: Mutex::new(Some(child)),
        })
    }

    /// Waits for the command. Processes it left behind may go on.
    pub(crate) async fn wait(&self) -> Result<End, ToolError> {
        let broken = |error: io::Error| {
            ToolError::new(format!("the command was lost: {error}")).outcome_unknown()
        };
        let _ready = self.ended.readable().await.map_err(broken)?;
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let child = child
            .as_mut()
            .ok_or_else(|| ToolError::new("the command was let go"))?;
        child.end().map_err(broken)
    }

    /// Ends the command and everything it started.
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

    /// The same, and returns when they are gone.
    pub(crate) async fn kill(&self) {
        self.kill_now();
        let _ = tokio::time::timeout(PATIENCE, self.gone.readable()).await;
    }

    /// After the end: what the command left behind lives as long as the scope. Where nothing is left, the wall is
    /// taken down while the script goes on, and is gone when the scope ends.
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
