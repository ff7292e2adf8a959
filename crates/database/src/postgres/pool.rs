//! The connections of this process to a database, of which there are only so many.
//!
//! The pool is hand-written, because those of crates such as `deadpool` are asynchronous, and this
//! one also decides when a database that was restarted counts as lost.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::connect::LoggedInClient;
use super::runtime::wait_for;
use super::{ANSWER_TIMEOUT, PostgresUrl, Statements, connect, errors};
use crate::{DatabaseError, DatabaseErrorKind};

/// How long a lost connection is tried to be made again. After that, attempts fail at once until
/// one succeeds.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const MIN_RECONNECT_PAUSE: Duration = Duration::from_millis(20);
const MAX_RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// The connections of this process to a database. A [`Connection`](crate::Connection) takes one of
/// them for each transaction, and for each statement outside of a transaction, and gives it back
/// afterwards. If all are taken, it waits.
#[derive(Clone)]
pub struct PostgresPool(Arc<SharedPool>);

struct SharedPool {
    url: PostgresUrl,
    max_connections: usize,
    state: Mutex<PoolState>,
    /// Notified when a connection is given back or closed.
    freed: Condvar,
}

#[derive(Default)]
struct PoolState {
    idle: Vec<ServerConnection>,
    /// The number of connections, idle and taken.
    open: usize,
    /// Whether the last attempt to connect succeeded.
    was_connected: bool,
}

/// The pools of this process.
static POOLS: Mutex<Vec<Weak<SharedPool>>> = Mutex::new(Vec::new());

/// A connection to the server, with the statements that it has prepared.
struct ServerConnection {
    client: Arc<Client>,
    has_notices: bool,
    statements: Statements,
}

/// A connection that was taken from a pool. It is closed when it is dropped.
pub(super) struct TakenConnection {
    pool: Arc<SharedPool>,
    /// `None` until it is connected, and after it was given back.
    server: Option<ServerConnection>,
    /// Whether the pool counts it as open.
    is_counted: bool,
}

impl PostgresPool {
    /// Returns the pool that all users of a database in this process share. The first one decides
    /// how many connections it has.
    pub fn of_process(url: &PostgresUrl, max_connections: usize) -> Self {
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        let mut open = pools.iter().filter_map(Weak::upgrade);
        if let Some(pool) = open.find(|pool| pool.url == *url) {
            return Self(pool);
        }
        let pool = Self::new(url, max_connections);
        pools.push(Arc::downgrade(&pool.0));
        pool
    }

    /// Returns a pool that nothing else uses.
    pub(super) fn new(url: &PostgresUrl, max_connections: usize) -> Self {
        Self(Arc::new(SharedPool {
            url: url.clone(),
            max_connections: max_connections.max(1),
            state: Mutex::default(),
            freed: Condvar::new(),
        }))
    }

    /// Returns the address of the database.
    pub fn url(&self) -> &PostgresUrl {
        &self.0.url
    }

    /// Returns how many connections there are at most.
    pub fn max_connections(&self) -> usize {
        self.0.max_connections
    }

    /// Takes a connection that is not used, or makes one. Waits if there are too many.
    pub(super) fn take(&self) -> Result<TakenConnection, DatabaseError> {
        let pool = &self.0;
        let taken = |server| TakenConnection {
            pool: pool.clone(),
            server,
            is_counted: true,
        };
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut state = pool.lock();
        loop {
            while let Some(server) = state.idle.pop() {
                if !server.client.is_closed() {
                    return Ok(taken(Some(server)));
                }
                state.open -= 1;
            }
            if state.open < pool.max_connections {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(errors::no_free_connection(pool.max_connections));
            }
            let waited = pool.freed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.open += 1;
        drop(state);
        let mut taken = taken(None);
        let connected = pool.connect()?;
        taken.server = Some(ServerConnection {
            client: Arc::new(connected.client),
            has_notices: connected.has_notices,
            statements: Statements::new(),
        });
        Ok(taken)
    }
}

impl SharedPool {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects. If there was a connection before, it tries again for some time, because the
    /// database may be starting again.
    fn connect(&self) -> Result<LoggedInClient, DatabaseError> {
        let deadline = Instant::now() + RECONNECT_TIMEOUT;
        let mut pause = MIN_RECONNECT_PAUSE;
        loop {
            let url = self.url.clone();
            match wait_for(async move { connect::connect(&url).await }) {
                Err(error)
                    if error.kind() == DatabaseErrorKind::Unavailable
                        && Instant::now() < deadline
                        && self.lock().was_connected =>
                {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(MAX_RECONNECT_PAUSE);
                }
                connected => {
                    self.lock().was_connected = connected.is_ok();
                    return connected;
                }
            }
        }
    }
}

impl TakenConnection {
    /// Returns the client; `None` if the connection is lost.
    pub(super) fn client(&self) -> Option<&Arc<Client>> {
        let client = self.server.as_ref().map(|server| &server.client);
        client.filter(|client| !client.is_closed())
    }

    /// Returns whether the server can send notices.
    pub(super) fn has_notices(&self) -> bool {
        self.server
            .as_ref()
            .is_some_and(|server| server.has_notices)
    }

    /// Returns the statements that the server has prepared for this connection.
    pub(super) fn statements(&mut self) -> Option<&mut Statements> {
        self.server.as_mut().map(|server| &mut server.statements)
    }

    /// Gives the connection back. It must not be in a transaction.
    pub(super) fn give_back(mut self) {
        if self.client().is_none() {
            return;
        }
        let mut state = self.pool.lock();
        state.idle.extend(self.server.take());
        self.is_counted = false;
        drop(state);
        self.pool.freed.notify_one();
    }

    /// Closes the connection and all that are idle, because the database may have been restarted.
    pub(super) fn close_with_idle(self) {
        let idle = {
            let mut state = self.pool.lock();
            state.open -= state.idle.len();
            std::mem::take(&mut state.idle)
        };
        drop(idle);
        self.pool.freed.notify_all();
    }
}

impl Drop for TakenConnection {
    fn drop(&mut self) {
        if self.is_counted {
            self.pool.lock().open -= 1;
            self.pool.freed.notify_one();
        }
    }
}

impl fmt::Debug for PostgresPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.0.lock().open;
        write!(f, "PostgresPool({open} of {})", self.0.max_connections)
    }
}
