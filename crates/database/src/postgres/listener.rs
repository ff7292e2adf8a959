//! Notices of other processes that have written, with LISTEN and NOTIFY.
//!
//! A notice only says that it is worth to read. It can be lost, so that its receivers also poll.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::{AsyncMessage, Client, NoTls};

use super::connect::LOGIN_TIMEOUT;
use super::tls::PostgresTls;
use super::{PostgresUrl, errors, runtime};
use crate::DatabaseError;

/// The channel of all notices. Their text is the schema, the process that has written, and a topic.
pub(super) const CHANNEL: &str = "selvedge";
/// How many notices are kept for a receiver that is late. A later one counts all as changed.
const MAX_KEPT_NOTICES: usize = 1024;
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Returns a text that identifies this process. It knows itself what it has written, so that its
/// own notices have no effect.
pub(super) fn process_name() -> &'static str {
    use std::hash::{BuildHasher, RandomState};
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| format!("{:016x}", RandomState::new().hash_one(std::process::id())))
}

/// Receives notices on a connection of its own, until it is dropped.
#[derive(Debug)]
pub struct NoticeListener {
    notices: Arc<Notices>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Notices {
    kept: Mutex<KeptNotices>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct KeptNotices {
    /// The number of all notices so far.
    count: u64,
    /// The last ones. An empty topic means that any may have changed.
    topics: VecDeque<String>,
}

impl NoticeListener {
    /// Listens to a database.
    pub fn start(url: &PostgresUrl) -> Result<Self, DatabaseError> {
        let notices = Arc::<Notices>::default();
        let task = runtime::handle()?.spawn(listen(url.clone(), notices.clone()));
        Ok(Self { notices, task })
    }

    /// Waits until there is a notice about a topic after the first `seen` notices, and sets `seen`.
    pub async fn changed(&self, topic: &str, seen: &mut u64) {
        loop {
            let arrived = self.notices.arrived.notified();
            if self.notices.lock().has_changed(topic, seen) {
                return;
            }
            arrived.await;
        }
    }
}

impl Drop for NoticeListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Notices {
    fn lock(&self) -> MutexGuard<'_, KeptNotices> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, topic: &str) {
        let mut kept = self.lock();
        kept.count += 1;
        kept.topics.push_back(topic.to_owned());
        if kept.topics.len() > MAX_KEPT_NOTICES {
            kept.topics.pop_front();
        }
        drop(kept);
        self.arrived.notify_waiters();
    }
}

impl KeptNotices {
    fn has_changed(&self, topic: &str, seen: &mut u64) -> bool {
        let new = (self.count - *seen) as usize;
        *seen = self.count;
        let last = self.topics.iter().rev().take(new);
        new > self.topics.len()
            || last
                .into_iter()
                .any(|other| other.is_empty() || other == topic)
    }
}

/// Connects again and again, and adds the notices that arrive.
async fn listen(url: PostgresUrl, notices: Arc<Notices>) {
    loop {
        // Without a connection, receivers poll.
        let _ = listen_once(&url, &notices).await;
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

/// Returns when the connection was lost.
async fn listen_once(url: &PostgresUrl, notices: &Arc<Notices>) -> Result<(), DatabaseError> {
    let no_answer = |_| errors::no_answer();
    if url.config.get_ssl_mode() == SslMode::Disable {
        let connected = tokio::time::timeout(LOGIN_TIMEOUT, url.config.connect(NoTls));
        let (client, connection) = connected.await.map_err(no_answer)??;
        receive(client, connection, notices).await
    } else {
        let connect = url.config.connect(PostgresTls::new(url)?);
        let connected = tokio::time::timeout(LOGIN_TIMEOUT, connect);
        let (client, connection) = connected.await.map_err(no_answer)??;
        receive(client, connection, notices).await
    }
}

async fn receive<S, T>(
    client: Client,
    mut connection: tokio_postgres::Connection<S, T>,
    notices: &Arc<Notices>,
) -> Result<(), DatabaseError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut messages = poll_fn(move |context| connection.poll_message(context));
    let setup = async {
        let sql = format!("LISTEN {CHANNEL}; SELECT current_schema()");
        let answer = client.simple_query(&sql).await?;
        let schema = answer.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        Ok::<_, DatabaseError>(schema.unwrap_or_default())
    };
    let mut setup = std::pin::pin!(setup);
    // The answers to the statements arrive while messages are received.
    let schema = loop {
        tokio::select! {
            schema = &mut setup => break schema?,
            message = messages.next() => drop(message.transpose()?),
        }
    };
    // Something may have been written while there was no connection.
    notices.add("");
    let prefix = format!("{schema}/");
    while let Some(message) = messages.next().await {
        if let AsyncMessage::Notification(notice) = message?
            && let Some(text) = notice.payload().strip_prefix(&prefix)
            && let Some((process, topic)) = text.split_once('/')
            && process != process_name()
        {
            notices.add(topic);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_receiver_misses_no_notice() {
        let notices = Notices::default();
        let mut seen = 0;
        assert!(!notices.lock().has_changed("a", &mut seen));
        notices.add("b");
        notices.add("a");
        assert!(notices.lock().has_changed("a", &mut seen));
        assert!(!notices.lock().has_changed("a", &mut seen));
        notices.add("b");
        assert!(!notices.lock().has_changed("a", &mut seen));
        // After a new connection, anything may have changed.
        notices.add("");
        assert!(notices.lock().has_changed("a", &mut seen));
        // More notices than are kept.
        (0..=MAX_KEPT_NOTICES).for_each(|_| notices.add("b"));
        assert!(notices.lock().has_changed("a", &mut seen));
    }
}
