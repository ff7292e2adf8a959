//! Sessions of a server with clients that follow their events, and the loads on them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::api_client::{ApiConnection, EventConnection};
use super::scripted_model::{CALL_MESSAGE, STREAM_MESSAGE, ScriptedModel, now_us};
use super::target::{MeasuredServer, ServerKind};
use crate::measure::{ResidentMemory, Samples};

/// Connections that create sessions and send messages.
const REQUEST_CONNECTIONS: usize = 8;
/// How long all sessions of a load may take to send their first delta.
const START_TIMEOUT: Duration = Duration::from_secs(90);
/// How long turns may take to end after a load.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between the start of a load and its measurement.
const WARM_UP: Duration = Duration::from_secs(3);
/// How long a load is measured.
const MEASURED_TIME: Duration = Duration::from_secs(10);
/// How long deltas of the measured time may be late.
const LATE_TIME: Duration = Duration::from_secs(3);
/// Deltas per second of each stream, as the model sends them.
const DELTAS_PER_SECOND: f64 = 10.0;
/// Share of the deltas that must arrive, else the server does not take the load.
const MIN_RECEIVED: f64 = 0.95;
/// Longest time that a delta may take, 99th percentile, else the server does not take the load, in
/// milliseconds.
const MAX_TAKEN_MS: f64 = 1000.0;

/// What the client of a session saw. Times are those of [`now_us`].
#[derive(Debug, Clone, Copy)]
enum SeenEvent {
    Delta {
        session: usize,
        sent_us: u64,
        received_us: u64,
    },
    TurnEnded {
        session: usize,
        at_us: u64,
    },
    TurnFailed,
}

/// Memory and processor time of a server under a load.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerCost {
    pub(super) memory: ResidentMemory,
    /// Processor time per time: 1 is one core.
    pub(super) cores: f64,
}

/// Times of a load, in milliseconds, and what it costs.
pub(super) struct LoadResult {
    pub(super) times: Samples,
    pub(super) cost: ServerCost,
    /// Measured events per second: deltas that arrived, or turns that ended.
    pub(super) per_second: f64,
}

/// Sessions of a server whose events are followed.
pub(super) struct FollowedSessions<'a> {
    server: &'a MeasuredServer,
    ids: Vec<String>,
    observations: UnboundedReceiver<SeenEvent>,
    connections: Arc<Mutex<Vec<ApiConnection>>>,
    _followers: JoinSet<()>,
}

impl<'a> FollowedSessions<'a> {
    /// Creates sessions, and opens their event streams. The peer has one stream for all sessions.
    pub(super) async fn create(server: &'a MeasuredServer, count: usize) -> Result<Self> {
        let mut connections = Vec::new();
        for _ in 0..REQUEST_CONNECTIONS {
            connections.push(ApiConnection::open(&server.api).await?);
        }
        let share = count.div_ceil(REQUEST_CONNECTIONS);
        let creating = connections.iter_mut().enumerate().map(|(at, connection)| {
            let own = share.min(count.saturating_sub(at * share));
            async move {
                let mut ids = Vec::new();
                for _ in 0..own {
                    ids.push(server.create_session(connection).await?);
                }
                anyhow::Ok(ids)
            }
        });
        let mut ids = Vec::new();
        for created in futures_util::future::join_all(creating).await {
            ids.extend(created?);
        }
        // The server has places for a limited number of connections.
        drop(connections);
        let (sender, observations) = unbounded_channel();
        let mut followers = JoinSet::new();
        match server.kind {
            ServerKind::Selvedge => {
                for (session, id) in ids.iter().enumerate() {
                    let path = format!("/api/v1/sessions/{id}/events");
                    let events = EventConnection::open(&server.api, &path).await?;
                    followers.spawn(follow(events, sender.clone(), move |_| Some(session)));
                }
            }
            ServerKind::Opencode => {
                let events = EventConnection::open(&server.api, "/event").await?;
                let numbers: HashMap<String, usize> = ids.iter().cloned().zip(0..).collect();
                let find = move |event: &str| {
                    let (_, id) = event.split_once("\"sessionID\":\"")?;
                    numbers.get(id.split('"').next()?).copied()
                };
                followers.spawn(follow(events, sender, find));
            }
        }
        Ok(Self {
            server,
            ids,
            observations,
            connections: Arc::default(),
            _followers: followers,
        })
    }

    /// Sends a message to a session in the background.
    fn send(&self, session: usize, text: &str) -> tokio::task::JoinHandle<Result<()>> {
        let (path, body) = self.server.message(&self.ids[session], text);
        let connections = self.connections.clone();
        let api = self.server.api.clone();
        let lock = |connections: &Mutex<Vec<ApiConnection>>| {
            let mut connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.pop()
        };
        tokio::spawn(async move {
            let mut connection = match lock(&connections) {
                Some(connection) => connection,
                None => ApiConnection::open(&api).await?,
            };
            let sent = connection.request("POST", &path, &body.to_string()).await;
            sent?;
            let mut connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.push(connection);
            Ok(())
        })
    }

    /// Lets all sessions stream at once, and measures the time from a delta of the provider to the
    /// delta of the client. Fails if the server does not take the load.
    pub(super) async fn stream(&mut self, model: &ScriptedModel) -> Result<LoadResult> {
        let count = self.ids.len();
        // A request at a time, so that a slow server is not asked for everything at once.
        for session in 0..count {
            self.send(session, STREAM_MESSAGE).await??;
        }
        let mut silent: HashSet<usize> = (0..count).collect();
        let deadline = tokio::time::Instant::now() + START_TIMEOUT;
        while !silent.is_empty() {
            match tokio::time::timeout_at(deadline, self.observations.recv()).await {
                Ok(Some(SeenEvent::Delta { session, .. })) => _ = silent.remove(&session),
                Ok(Some(SeenEvent::TurnEnded { .. })) => {}
                Ok(Some(SeenEvent::TurnFailed)) => bail!("a turn failed"),
                Ok(None) => bail!("the event streams ended"),
                Err(_) => bail!("{} of {count} sessions do not stream", silent.len()),
            }
        }
        tokio::time::sleep(WARM_UP).await;
        let (begin, cpu) = (now_us(), self.server.cpu_seconds());
        tokio::time::sleep(MEASURED_TIME).await;
        let (end, cpu) = (now_us(), self.server.cpu_seconds() - cpu);
        let memory = self.server.memory();
        tokio::time::sleep(LATE_TIME).await;
        model.end_streams();
        let mut times = Samples::default();
        let mut received = 0_usize;
        let mut ended = 0;
        while ended < count {
            let next = tokio::time::timeout(END_TIMEOUT, self.observations.recv()).await;
            match next
                .context("turns do not end")?
                .context("the streams ended")?
            {
                SeenEvent::Delta {
                    sent_us,
                    received_us,
                    ..
                } if (begin..end).contains(&sent_us) => {
                    received += 1;
                    times.extend([received_us.saturating_sub(sent_us) as f64 / 1e3]);
                }
                SeenEvent::Delta { .. } => {}
                SeenEvent::TurnEnded { .. } => ended += 1,
                SeenEvent::TurnFailed => bail!("a turn failed"),
            }
        }
        let seconds = (end - begin) as f64 / 1e6;
        let per_second = received as f64 / seconds;
        let expected = count as f64 * DELTAS_PER_SECOND;
        ensure!(
            per_second >= expected * MIN_RECEIVED,
            "{per_second:.0} of {expected:.0} deltas per second arrive"
        );
        ensure!(
            times.p99() <= MAX_TAKEN_MS,
            "deltas arrive {:.0} ms later (p99 {:.0})",
            times.p50(),
            times.p99()
        );
        Ok(LoadResult {
            times,
            cost: ServerCost {
                memory,
                cores: cpu / seconds,
            },
            per_second,
        })
    }

    /// Runs one turn with one call in the first session.
    pub(super) async fn run_turn(&mut self) -> Result<()> {
        self.send(0, CALL_MESSAGE).await??;
        loop {
            let next = tokio::time::timeout(START_TIMEOUT, self.observations.recv()).await;
            match next
                .context("the turn does not end")?
                .context("the streams ended")?
            {
                SeenEvent::TurnEnded { .. } => return Ok(()),
                SeenEvent::TurnFailed => bail!("the turn failed"),
                SeenEvent::Delta { .. } => {}
            }
        }
    }

    /// Starts turns with one call each, in sessions that are idle: at this rate, or as soon as a
    /// session is idle. Measures the time of a turn, from its request to its last event.
    pub(super) async fn run_turns(&mut self, per_second: Option<f64>) -> Result<LoadResult> {
        let mut idle: Vec<usize> = (0..self.ids.len()).collect();
        let mut started: HashMap<usize, u64> = HashMap::new();
        let mut sending = JoinSet::new();
        let begin = Instant::now();
        let (mut measured, mut due) = (None, begin);
        let mut times = Samples::default();
        let mut ended = 0_usize;
        loop {
            let now = Instant::now();
            if measured.is_none() && now >= begin + WARM_UP {
                measured = Some((now_us(), self.server.cpu_seconds()));
            }
            if now >= begin + WARM_UP + MEASURED_TIME {
                break;
            }
            while Instant::now() >= due
                && let Some(session) = idle.pop()
            {
                started.insert(session, now_us());
                sending.spawn(self.send(session, CALL_MESSAGE));
                due +=
                    per_second.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(1.0 / rate));
            }
            let next = match idle.is_empty() {
                true => begin + WARM_UP + MEASURED_TIME,
                false => due,
            };
            let observation = tokio::select! {
                observation = self.observations.recv() => observation,
                () = tokio::time::sleep_until(next.into()) => continue,
                Some(sent) = sending.join_next() => {
                    sent??.context("cannot send a message")?;
                    continue;
                }
            };
            match observation.context("the event streams ended")? {
                SeenEvent::TurnEnded { session, at_us } => {
                    idle.insert(0, session);
                    let from = started.remove(&session).unwrap_or(at_us);
                    // Turns count that ended in the measured time.
                    if measured.is_some() {
                        times.extend([at_us.saturating_sub(from) as f64 / 1e3]);
                        ended += 1;
                    }
                }
                SeenEvent::TurnFailed => bail!("a turn failed"),
                SeenEvent::Delta { .. } => {}
            }
        }
        let (from, cpu) = measured.context("nothing was measured")?;
        let seconds = (now_us() - from) as f64 / 1e6;
        Ok(LoadResult {
            times,
            cost: ServerCost {
                memory: self.server.memory(),
                cores: (self.server.cpu_seconds() - cpu) / seconds,
            },
            per_second: ended as f64 / seconds,
        })
    }

    /// Does nothing with the sessions, and measures how long the server takes to say that it is
    /// healthy.
    pub(super) async fn stay_idle(&mut self) -> Result<LoadResult> {
        tokio::time::sleep(WARM_UP).await;
        let mut connection = ApiConnection::open(&self.server.api).await?;
        let (begin, cpu) = (now_us(), self.server.cpu_seconds());
        let mut times = Samples::default();
        let end = Instant::now() + MEASURED_TIME;
        while Instant::now() < end {
            let start = now_us();
            connection.request("GET", "/healthz", "").await?;
            times.extend([(now_us() - start) as f64 / 1e3]);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let seconds = (now_us() - begin) as f64 / 1e6;
        Ok(LoadResult {
            times,
            cost: ServerCost {
                memory: self.server.memory(),
                cores: (self.server.cpu_seconds() - cpu) / seconds,
            },
            per_second: 0.0,
        })
    }
}

/// Reports what a stream of events says about turns, until it ends.
async fn follow(
    mut events: EventConnection,
    sender: UnboundedSender<SeenEvent>,
    session_of: impl Fn(&str) -> Option<usize>,
) {
    let take = |event: &str| {
        let Some(session) = session_of(event) else {
            return;
        };
        let received_us = now_us();
        // The receiver lives as long as the load.
        let report = |observation| _ = sender.send(observation);
        if let Some((_, delta)) = event.split_once("\"delta\":\"") {
            let delta = delta.split('"').next().unwrap_or_default();
            let times = delta
                .split(' ')
                .filter_map(|word| word.strip_prefix('d')?.parse().ok());
            for sent_us in times {
                report(SeenEvent::Delta {
                    session,
                    sent_us,
                    received_us,
                });
            }
        } else if ["\"turn.completed\"", "\"session.idle\""]
            .iter()
            .any(|kind| event.contains(kind))
        {
            report(SeenEvent::TurnEnded {
                session,
                at_us: received_us,
            });
        } else if ["\"turn.failed\"", "\"session.error\""]
            .iter()
            .any(|kind| event.contains(kind))
        {
            report(SeenEvent::TurnFailed);
        }
    };
    while events.next_events(take).await.is_some() {}
}
