//! Limits of the connections to an HTTP server.
//!
//! A connection is pending until its client has sent a request that was accepted. The number of
//! pending connections is limited, in all and per address. At the limit a new connection replaces
//! an old pending one, so that connections on which nothing is sent do not keep other clients out.
//! An accepted connection takes one of a limited number of permits. The connections of one client
//! are at most as many as are still free, so that one client leaves some to others.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

/// How many connections a server has at once. Accepted connections have at most half of the files
/// that the process may open, and pending ones an eighth; the rest is for scripts and stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpConnectionLimits {
    /// Maximum number of pending connections. One address may have half of them.
    pub max_pending: usize,
    /// Maximum number of accepted connections.
    pub max_accepted: usize,
    /// Maximum number of accepted connections of one client.
    pub max_per_client: usize,
}

impl Default for HttpConnectionLimits {
    fn default() -> Self {
        Self {
            max_pending: 256,
            max_accepted: 1024,
            max_per_client: usize::MAX,
        }
    }
}

impl HttpConnectionLimits {
    /// Returns the limits for a process that may open so many files.
    fn within(self, files: Option<usize>) -> Self {
        let files = files.unwrap_or(usize::MAX);
        Self {
            max_pending: self.max_pending.min(files / 8),
            max_accepted: self.max_accepted.min(files / 2),
            ..self
        }
    }
}

/// The connections of a server.
pub(crate) struct HttpConnections {
    pending: Mutex<PendingConnections>,
    max_pending: usize,
    accepted: Arc<Semaphore>,
    max_per_client: usize,
    /// Number of accepted connections by client.
    clients: Mutex<HashMap<String, usize>>,
}

#[derive(Default)]
struct PendingConnections {
    /// Sorted by age, the oldest first.
    list: VecDeque<PendingConnection>,
    next_id: u64,
}

struct PendingConnection {
    id: u64,
    address: IpAddr,
    /// Whether the client has sent nothing yet.
    is_silent: bool,
    /// Cancelled when another connection replaces this one.
    replaced: CancellationToken,
}

impl PendingConnections {
    /// Returns the index of the connection to replace among those that match: the oldest that has
    /// sent nothing if these are at least half, else the oldest.
    fn least_useful(&self, matches: impl Fn(&PendingConnection) -> bool) -> Option<usize> {
        let indexed = self.list.iter().enumerate();
        let matching: Vec<_> = indexed.filter(|(_, other)| matches(other)).collect();
        let mut silent = matching.iter().filter(|(_, other)| other.is_silent);
        let oldest = match silent.clone().count() * 2 >= matching.len() {
            true => silent.next(),
            false => matching.first(),
        };
        oldest.map(|(index, _)| *index)
    }
}

/// One connection. It gives up its place or its permit when its last clone is dropped.
#[derive(Clone)]
pub struct HttpConnection(Arc<HttpConnectionInner>);

struct HttpConnectionInner {
    connections: Arc<HttpConnections>,
    id: u64,
    address: IpAddr,
    replaced: CancellationToken,
    /// Set when the connection is accepted.
    accepted: Mutex<Option<AcceptedConnection>>,
}

/// What an accepted connection takes.
struct AcceptedConnection {
    _permit: OwnedSemaphorePermit,
    /// The client whose request was the last one; `None` if the server does not tell them apart.
    client: Option<String>,
}

/// Why a connection is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooManyConnections {
    /// All permits are taken.
    OfServer,
    /// The client has as many connections as it may.
    OfClient,
}

impl HttpConnections {
    /// Creates the limits.
    pub(crate) fn new(limits: HttpConnectionLimits) -> Arc<Self> {
        Self::with_limits(limits.within(open_file_limit()))
    }

    fn with_limits(limits: HttpConnectionLimits) -> Arc<Self> {
        Arc::new(Self {
            pending: Mutex::default(),
            max_pending: limits.max_pending.max(2),
            accepted: Arc::new(Semaphore::new(limits.max_accepted.max(1))),
            max_per_client: limits.max_per_client,
            clients: Mutex::default(),
        })
    }

    /// Adds a pending connection. At a limit it replaces another: one of its address if that has
    /// half of the places, else one of all. If most of these have sent nothing, it replaces the
    /// oldest of those, else the oldest of all; so a request that arrives slowly survives a flood
    /// of silent connections, and a connection that was just opened survives one of others.
    pub(crate) fn add(self: &Arc<Self>, address: IpAddr) -> HttpConnection {
        let mut pending = self.lock_pending();
        let of_address = |other: &PendingConnection| other.address == address;
        let from_address = pending
            .list
            .iter()
            .filter(|other| of_address(other))
            .count();
        let replaced = if from_address >= self.max_pending / 2 {
            pending.least_useful(of_address)
        } else if pending.list.len() >= self.max_pending {
            pending.least_useful(|_| true)
        } else {
            None
        };
        if let Some(replaced) = replaced.and_then(|index| pending.list.remove(index)) {
            replaced.replaced.cancel();
        }
        let id = pending.next_id;
        pending.next_id += 1;
        let replaced = CancellationToken::new();
        pending.list.push_back(PendingConnection {
            id,
            address,
            is_silent: true,
            replaced: replaced.clone(),
        });
        HttpConnection(Arc::new(HttpConnectionInner {
            connections: self.clone(),
            id,
            address,
            replaced,
            accepted: Mutex::default(),
        }))
    }

    /// Counts a connection for a client, unless it has as many as are free, or as the limit allows.
    fn add_to_client(&self, client: &str) -> Result<(), TooManyConnections> {
        let mut clients = self.lock_clients();
        let own = clients.get(client).copied().unwrap_or(0);
        if own > 0 && own >= self.accepted.available_permits().min(self.max_per_client) {
            return Err(TooManyConnections::OfClient);
        }
        clients.insert(client.to_owned(), own + 1);
        Ok(())
    }

    fn remove_from_client(&self, client: &str) {
        let mut clients = self.lock_clients();
        match clients.get_mut(client) {
            Some(own) if *own > 1 => *own -= 1,
            _ => _ = clients.remove(client),
        }
    }

    fn lock_clients(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_pending(&self) -> MutexGuard<'_, PendingConnections> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpConnection {
    /// Records that a request was accepted. Has no effect on later requests of the same connection.
    pub fn accept(&self) -> Result<(), TooManyConnections> {
        let mut accepted = self.0.lock_accepted();
        if accepted.is_none() {
            *accepted = Some(self.0.take_permit()?);
            self.0.leave_pending();
        }
        Ok(())
    }

    /// Records that a request of a client was accepted. The connection counts for the client of its
    /// last request, because a proxy may use one for several clients. A connection that is refused
    /// stays pending.
    pub fn accept_from(&self, client: &str) -> Result<(), TooManyConnections> {
        let connections = &self.0.connections;
        let mut accepted = self.0.lock_accepted();
        if let Some(accepted) = &mut *accepted {
            if accepted.client.as_deref() != Some(client) {
                connections.add_to_client(client)?;
                if let Some(last) = accepted.client.replace(client.to_owned()) {
                    connections.remove_from_client(&last);
                }
            }
            return Ok(());
        }
        let mut new = self.0.take_permit()?;
        connections.add_to_client(client)?;
        new.client = Some(client.to_owned());
        *accepted = Some(new);
        self.0.leave_pending();
        Ok(())
    }

    /// Returns the address from which the connection came.
    pub fn peer_address(&self) -> IpAddr {
        self.0.address
    }

    /// Records that the client has sent something.
    pub(crate) fn mark_as_sending(&self) {
        let mut pending = self.0.connections.lock_pending();
        let mut own = pending
            .list
            .iter_mut()
            .filter(|other| other.id == self.0.id);
        if let Some(own) = own.next() {
            own.is_silent = false;
        }
    }

    /// Waits until another connection replaces this one. Never returns once it is accepted.
    pub(crate) async fn wait_until_replaced(&self) {
        self.0.replaced.cancelled().await;
    }
}

impl HttpConnectionInner {
    fn leave_pending(&self) {
        let mut pending = self.connections.lock_pending();
        pending.list.retain(|other| other.id != self.id);
    }

    fn take_permit(&self) -> Result<AcceptedConnection, TooManyConnections> {
        let permit = self.connections.accepted.clone().try_acquire_owned();
        Ok(AcceptedConnection {
            _permit: permit.map_err(|_| TooManyConnections::OfServer)?,
            client: None,
        })
    }

    fn lock_accepted(&self) -> MutexGuard<'_, Option<AcceptedConnection>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HttpConnectionInner {
    fn drop(&mut self) {
        self.leave_pending();
        let accepted = self.lock_accepted().take();
        if let Some(client) = accepted.and_then(|accepted| accepted.client) {
            self.connections.remove_from_client(&client);
        }
    }
}

/// A stream that records on its connection that the client has sent something, and fails if the
/// client receives nothing for a while.
pub(crate) struct ObservedStream {
    stream: TcpStream,
    /// `None` as soon as this is recorded.
    silent: Option<HttpConnection>,
    write_timeout: Duration,
    /// Ends when the client has received nothing for too long; `None` while it receives.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl ObservedStream {
    pub(crate) fn new(
        stream: TcpStream,
        connection: HttpConnection,
        write_timeout: Duration,
    ) -> Self {
        Self {
            stream,
            silent: Some(connection),
            write_timeout,
            stalled: None,
        }
    }

    /// Returns the outcome of a write, or an error if none has succeeded for too long.
    fn limit_stall(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let timeout = self.write_timeout;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        stalled.as_mut().poll(context).map(|()| {
            let error = "the client receives nothing";
            Err(io::Error::new(io::ErrorKind::TimedOut, error))
        })
    }
}

impl AsyncRead for ObservedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before
            && let Some(connection) = self.silent.take()
        {
            connection.mark_as_sending();
        }
        read
    }
}

impl AsyncWrite for ObservedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limit_stall(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.limit_stall(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Returns the number of files that the process may open; `None` if it is not limited.
#[cfg(unix)]
pub fn open_file_limit() -> Option<usize> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    usize::try_from(limit.current?).ok()
}

/// Returns the number of files that the process may open; `None` if it is not limited.
#[cfg(not(unix))]
pub fn open_file_limit() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::AsyncWriteExt;

    use super::*;

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    fn connections(max_pending: usize, max_accepted: usize) -> Arc<HttpConnections> {
        HttpConnections::with_limits(HttpConnectionLimits {
            max_pending,
            max_accepted,
            max_per_client: usize::MAX,
        })
    }

    fn is_replaced(connection: &HttpConnection) -> bool {
        connection.0.replaced.is_cancelled()
    }

    #[test]
    fn a_new_connection_replaces_the_oldest_of_a_crowded_address() {
        let connections = connections(4, 4);
        let other = connections.add(address(1));
        let crowd = [2; 3].map(|last| connections.add(address(last)));
        assert_eq!(crowd.each_ref().map(is_replaced), [true, false, false]);
        assert!(!is_replaced(&other));
        // All places are taken, by addresses that have less than half of them each.
        let third = connections.add(address(3));
        let fourth = connections.add(address(4));
        assert!(is_replaced(&other) && !is_replaced(&third) && !is_replaced(&fourth));
    }

    #[test]
    fn a_slow_request_survives_a_flood_of_silent_connections() {
        let connections = connections(8, 4);
        let slow = connections.add(address(1));
        slow.mark_as_sending();
        let silent: Vec<_> = (0..100).map(|_| connections.add(address(1))).collect();
        assert!(!is_replaced(&slow));
        assert_eq!(silent.iter().filter(|one| !is_replaced(one)).count(), 3);
    }

    #[test]
    fn a_new_connection_survives_a_flood_of_started_requests() {
        let connections = connections(8, 4);
        let started = || {
            let connection = connections.add(address(1));
            connection.mark_as_sending();
            connection
        };
        let _flood: Vec<_> = (0..100).map(|_| started()).collect();
        let new = connections.add(address(1));
        let _flood: Vec<_> = (0..2).map(|_| started()).collect();
        assert!(!is_replaced(&new));
    }

    #[test]
    #[allow(clippy::unwrap_used)]
    fn a_client_that_receives_nothing_is_disconnected() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let _client = TcpStream::connect(listener.local_addr().unwrap())
                .await
                .unwrap();
            let (stream, address) = listener.accept().await.unwrap();
            let connection = connections(2, 2).add(address.ip());
            let timeout = Duration::from_millis(50);
            let mut stream = ObservedStream::new(stream, connection, timeout);
            let bytes = vec![0; 1 << 16];
            let error = loop {
                if let Err(error) = stream.write_all(&bytes).await {
                    break error;
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn an_accepted_connection_is_not_replaced_and_holds_a_permit() {
        let connections = connections(2, 1);
        let accepted = connections.add(address(1));
        assert_eq!((accepted.accept(), accepted.accept()), (Ok(()), Ok(())));
        let pending = [1; 3].map(|last| connections.add(address(last)));
        assert!(!is_replaced(&accepted));
        let refused = pending[2].accept();
        assert_eq!(refused, Err(TooManyConnections::OfServer));
        drop(accepted);
        assert_eq!(pending[2].accept(), Ok(()));
        drop(pending);
        assert_eq!(connections.lock_pending().list.len(), 0);
    }

    #[test]
    fn half_of_the_files_are_for_accepted_connections() {
        let limits = HttpConnectionLimits {
            max_pending: 1024,
            max_accepted: 16_384,
            max_per_client: 16_384,
        };
        let of_files = |files| {
            let limits = limits.within(files);
            (limits.max_pending, limits.max_accepted)
        };
        assert_eq!(of_files(Some(1024)), (128, 512));
        assert_eq!(of_files(Some(65_536)), (1024, 16_384));
        assert_eq!(of_files(None), (1024, 16_384));
        // 20,000 files are enough for 5,000 connections of a few clients.
        let limits = limits.within(Some(20_000));
        let connections = HttpConnections::with_limits(limits);
        let open = |number: usize| {
            let connection = connections.add(address(1));
            let accepted = connection.accept_from(&format!("client {}", number % 8));
            accepted.map(|()| connection)
        };
        let all: Result<Vec<_>, _> = (0..5001).map(open).collect();
        assert!(all.is_ok());
    }

    #[test]
    fn one_client_leaves_connections_to_others() {
        let connections = connections(32, 16);
        let open = |client: &str| {
            let connection = connections.add(address(1));
            connection.accept_from(client).map(|()| connection)
        };
        let take_all = |client: &str| {
            let all = std::iter::from_fn(|| open(client).ok());
            all.collect::<Vec<_>>()
        };
        let mut first = take_all("a");
        assert_eq!(first.len(), 8);
        let second = take_all("b");
        assert_eq!(second.len(), 4);
        assert!(open("c").is_ok());
        // A connection counts for the client that used it last.
        assert_eq!(first[0].accept_from("b"), Err(TooManyConnections::OfClient));
        assert_eq!(first[0].accept_from("c"), Ok(()));
        first.clear();
        assert_eq!(connections.lock_clients().get("a"), None);
        assert!(open("b").is_ok());
        drop(second);
        assert_eq!(connections.lock_clients().len(), 0);
    }
}
