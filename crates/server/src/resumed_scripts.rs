//! Scripts that clients resumed in sessions and that still run, so that they can be stopped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// How long scripts may take to stop before their session is deleted.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The resumed scripts of all sessions.
#[derive(Debug, Default)]
pub(crate) struct ResumedScripts {
    running: Mutex<HashMap<String, Vec<ResumedScript>>>,
}

#[derive(Debug, Clone)]
struct ResumedScript {
    cancel: CancellationToken,
    /// Cancelled when the script has ended.
    ended: CancellationToken,
}

impl ResumedScripts {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<ResumedScript>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a script of a session until the result is dropped. `cancel` stops it.
    pub(crate) fn enter(
        self: &Arc<Self>,
        session: &str,
        cancel: CancellationToken,
    ) -> RegisteredScript {
        let ended = CancellationToken::new();
        let script = ResumedScript {
            cancel,
            ended: ended.clone(),
        };
        let mut running = self.lock();
        running.entry(session.to_owned()).or_default().push(script);
        RegisteredScript {
            scripts: self.clone(),
            session: session.to_owned(),
            ended,
        }
    }

    /// Stops the scripts of a session. Returns whether one runs.
    pub(crate) fn stop(&self, session: &str) -> bool {
        let running = self.lock();
        let scripts = running.get(session).into_iter().flatten();
        scripts.inspect(|script| script.cancel.cancel()).count() > 0
    }

    /// Stops the scripts of a session, and waits until they have ended. Returns whether they have.
    pub(crate) async fn stop_and_wait(&self, session: &str) -> bool {
        self.stop(session);
        let scripts = self.lock().get(session).cloned().unwrap_or_default();
        let ended = async {
            for script in scripts {
                script.ended.cancelled().await;
            }
        };
        tokio::time::timeout(STOP_TIMEOUT, ended).await.is_ok()
    }
}

/// A script that runs.
#[derive(Debug)]
pub(crate) struct RegisteredScript {
    scripts: Arc<ResumedScripts>,
    session: String,
    ended: CancellationToken,
}

impl Drop for RegisteredScript {
    fn drop(&mut self) {
        self.ended.cancel();
        let mut running = self.scripts.lock();
        if let Some(scripts) = running.get_mut(&self.session) {
            scripts.retain(|script| !script.ended.is_cancelled());
            if scripts.is_empty() {
                running.remove(&self.session);
            }
        }
    }
}
