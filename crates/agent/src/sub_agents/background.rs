//! Sub-agents that run in the background: their results, and when they are stopped.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use selvedge_protocol::EventSink;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::arguments::LaunchAgentOutput;
use super::lock;

/// How long agents may take to stop after they were cancelled.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// What happens to the agents that still run in the background when the turn that launched them
/// ends. If the turn is interrupted or fails, they are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackgroundPolicy {
    /// The turn waits for them.
    #[default]
    Wait,
    /// They continue to run until
    /// [`SubAgents::stop_background_agents`](super::SubAgents::stop_background_agents).
    Detach,
}

/// Receives the result of an agent; holds `None` while the agent runs.
pub(super) type AgentResultReceiver = watch::Receiver<Option<LaunchAgentOutput>>;

/// An agent that runs or has run in the background.
#[derive(Debug, Clone)]
pub(super) struct BackgroundAgent {
    /// The session of the agent that launched it.
    pub(super) parent_session_id: String,
    pub(super) cancel: CancellationToken,
    pub(super) abort: AbortHandle,
    pub(super) result: AgentResultReceiver,
}

impl BackgroundAgent {
    fn is_running(&self) -> bool {
        self.result.borrow().is_none() && !self.abort.is_finished()
    }
}

/// The background agents of all turns, by their ids.
#[derive(Debug, Default)]
pub(super) struct BackgroundAgents {
    agents: Mutex<HashMap<String, BackgroundAgent>>,
    /// Cancels all of them.
    pub(super) cancel: CancellationToken,
}

impl BackgroundAgents {
    pub(super) fn add(&self, id: String, agent: BackgroundAgent) {
        lock(&self.agents).insert(id, agent);
    }

    /// Returns the result of an agent that was launched in this session.
    pub(super) fn result_of(&self, id: &str, session: &str) -> Option<AgentResultReceiver> {
        let agents = lock(&self.agents);
        let agent = agents
            .get(id)
            .filter(|agent| agent.parent_session_id == session)?;
        Some(agent.result.clone())
    }

    /// Cancels all agents and waits a limited time. Returns how many were running.
    pub(super) async fn stop(&self) -> usize {
        let running: Vec<_> = lock(&self.agents)
            .values()
            .filter(|agent| agent.is_running())
            .cloned()
            .collect();
        self.cancel.cancel();
        stop_agents(&running).await;
        running.len()
    }
}

/// The background agents that one turn launched. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct TurnBackgroundAgents(Arc<TurnBackgroundAgentsState>);

#[derive(Debug, Default)]
struct TurnBackgroundAgentsState {
    agents: Mutex<Vec<BackgroundAgent>>,
    /// Whether the turn has ended, and its agents continue.
    detached: AtomicBool,
}

impl TurnBackgroundAgents {
    pub(super) fn add(&self, agent: BackgroundAgent) {
        lock(&self.0.agents).push(agent);
    }

    /// Returns a sink that forwards events until the turn ends. Later turns have their own
    /// observers.
    pub(super) fn events_of_turn(&self, events: EventSink) -> EventSink {
        let state = self.0.clone();
        EventSink::new(move |event| {
            if !state.detached.load(Ordering::Relaxed) {
                events.emit(event);
            }
        })
    }

    fn running(&self) -> Vec<BackgroundAgent> {
        let mut agents = lock(&self.0.agents);
        agents.retain(BackgroundAgent::is_running);
        agents.clone()
    }

    /// Waits until all agents have ended. Stops them if `cancel` is cancelled.
    pub(crate) async fn wait(&self, cancel: &CancellationToken) {
        loop {
            let running = self.running();
            if running.is_empty() {
                return;
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => return self.stop().await,
                () = all_ended(&running) => {}
            }
        }
    }

    /// Cancels all agents, waits a limited time, and aborts those that have not ended by then.
    pub(crate) async fn stop(&self) {
        stop_agents(&self.running()).await;
    }

    /// Cancels all agents without waiting.
    pub(crate) fn cancel(&self) {
        self.running()
            .iter()
            .for_each(|agent| agent.cancel.cancel());
    }

    /// Lets the agents continue after the turn.
    pub(crate) fn detach(&self) {
        self.0.detached.store(true, Ordering::Relaxed);
        lock(&self.0.agents).clear();
    }
}

async fn all_ended(agents: &[BackgroundAgent]) {
    let ended = agents.iter().map(|agent| {
        let mut result = agent.result.clone();
        async move { _ = result.wait_for(Option::is_some).await }
    });
    join_all(ended).await;
}

async fn stop_agents(agents: &[BackgroundAgent]) {
    agents.iter().for_each(|agent| agent.cancel.cancel());
    if tokio::time::timeout(STOP_TIMEOUT, all_ended(agents))
        .await
        .is_err()
    {
        agents.iter().for_each(|agent| agent.abort.abort());
    }
}
