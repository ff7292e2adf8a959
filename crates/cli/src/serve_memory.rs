//! Distills lessons from sessions of the agent server that have been idle for a while. An agent of
//! the server ends with its turn, so the server waits instead of the agent.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::memory_setup::small_model;
use crate::serve_host::JournalHost;

/// How often the server looks for sessions that have been idle.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// When the last turn of each session ended whose turns are not distilled yet.
#[derive(Default)]
pub(crate) struct IdleSessions(Mutex<HashMap<String, Instant>>);

impl IdleSessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a session is not idle.
    pub(crate) fn begin_turn(&self, session: &str) {
        self.lock().remove(session);
    }

    /// Records that a session is idle from now on.
    pub(crate) fn end_turn(&self, session: &str) {
        self.lock().insert(session.to_owned(), Instant::now());
    }

    /// Returns the sessions, and since when they are idle.
    fn list(&self) -> Vec<(String, Instant)> {
        let sessions = self.lock();
        sessions.iter().map(|(id, at)| (id.clone(), *at)).collect()
    }

    /// Removes a session if it has been idle since then. Returns whether it was.
    fn take(&self, session: &str, since: Instant) -> bool {
        let mut sessions = self.lock();
        let is_idle = sessions.get(session) == Some(&since);
        if is_idle {
            sessions.remove(session);
        }
        is_idle
    }
}

/// Distills sessions that have been idle for `memory.distill_idle_minutes`, until it is aborted.
pub(crate) async fn distill_idle_sessions(host: Arc<JournalHost>) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        for (session, since) in host.idle_sessions().list() {
            if let Err(error) = distill_if_idle(&host, &session, since).await {
                let error = format!("{error:#}");
                tracing::warn!(target: "selvedge::memory", session, error, "lessons are not distilled");
            }
        }
    }
}

async fn distill_if_idle(host: &Arc<JournalHost>, session: &str, since: Instant) -> Result<()> {
    let directory = host.session_directory(session).await?;
    let config = host.configuration(Path::new(&directory))?.config;
    let idle_time = Duration::from_secs(60 * u64::from(config.memory.distill_idle_minutes));
    if since.elapsed() < idle_time || !host.idle_sessions().take(session, since) {
        return Ok(());
    }
    // Zero minutes turn it off.
    if idle_time.is_zero() {
        return Ok(());
    }
    let (memory, model) = (host.memory()?, small_model(&config, None).await?);
    while memory
        .distill(session, model.as_deref())
        .await?
        .remaining_turns
        > 0
    {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_taken_once_and_only_if_no_turn_began() {
        let idle = IdleSessions::default();
        idle.end_turn("a");
        idle.end_turn("b");
        let since: HashMap<String, Instant> = idle.list().into_iter().collect();
        idle.begin_turn("b");
        assert!(idle.take("a", since["a"]));
        assert!(!idle.take("a", since["a"]));
        assert!(!idle.take("b", since["b"]));
        idle.end_turn("b");
        assert_eq!(idle.list().len(), 1);
    }
}
