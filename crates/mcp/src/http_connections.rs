//! Limits of the connections to the HTTP server.
//!
//! A connection is pending until its client has sent a request that was accepted. The number of
//! pending connections is limited, in all and per address. At the limit a new connection replaces
//! the oldest pending one, so that connections on which nothing is sent do not keep other clients
//! out. An accepted connection takes one of a limited number of permits.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Maximum number of pending connections. One address may have half of them.
const MAX_PENDING: usize = 256;
/// Maximum number of accepted connections.
const MAX_ACCEPTED: usize = 1024;

/// The connections of a server.
pub(crate) struct HttpConnections {
    pending: Mutex<PendingConnections>,
    max_pending: usize,
    accepted: Arc<Semaphore>,
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
    /// Cancelled when another connection replaces this one.
    replaced: CancellationToken,
}

/// One connection. It gives up its place or its permit when its last clone is dropped.
#[derive(Clone)]
pub(crate) struct HttpConnection(Arc<HttpConnectionInner>);

struct HttpConnectionInner {
    connections: Arc<HttpConnections>,
    id: u64,
    replaced: CancellationToken,
    /// Set when the connection is accepted.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

/// All permits for accepted connections are taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooManyConnections;

impl HttpConnections {
    /// Creates the limits. Pending and accepted connections may each use a quarter of the files
    /// that the process may open; the rest is for scripts.
    pub(crate) fn new() -> Arc<Self> {
        let share = open_file_limit().map_or(usize::MAX, |limit| limit / 4);
        Self::with_limits(MAX_PENDING.min(share), MAX_ACCEPTED.min(share))
    }

    fn with_limits(max_pending: usize, max_accepted: usize) -> Arc<Self> {
        Arc::new(Self {
            pending: Mutex::default(),
            max_pending: max_pending.max(2),
            accepted: Arc::new(Semaphore::new(max_accepted.max(1))),
        })
    }

    /// Adds a pending connection. At a limit it replaces the oldest one: of its address if that has
    /// half of the places, else of all.
    pub(crate) fn add(self: &Arc<Self>, address: IpAddr) -> HttpConnection {
        let mut pending = self.lock_pending();
        let of_address = |other: &PendingConnection| other.address == address;
        let from_address = pending
            .list
            .iter()
            .filter(|other| of_address(other))
            .count();
        let oldest = if from_address >= self.max_pending / 2 {
            pending.list.iter().position(of_address)
        } else {
            (pending.list.len() >= self.max_pending).then_some(0)
        };
        if let Some(oldest) = oldest.and_then(|index| pending.list.remove(index)) {
            oldest.replaced.cancel();
        }
        let id = pending.next_id;
        pending.next_id += 1;
        let replaced = CancellationToken::new();
        pending.list.push_back(PendingConnection {
            id,
            address,
            replaced: replaced.clone(),
        });
        HttpConnection(Arc::new(HttpConnectionInner {
            connections: self.clone(),
            id,
            replaced,
            permit: Mutex::default(),
        }))
    }

    fn lock_pending(&self) -> MutexGuard<'_, PendingConnections> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpConnection {
    /// Records that a request of the client was accepted. Has no effect on later requests of the
    /// same connection.
    pub(crate) fn accept(&self) -> Result<(), TooManyConnections> {
        let inner = &self.0;
        let mut permit = inner.permit.lock().unwrap_or_else(PoisonError::into_inner);
        if permit.is_none() {
            let accepted = inner.connections.accepted.clone();
            *permit = Some(
                accepted
                    .try_acquire_owned()
                    .map_err(|_| TooManyConnections)?,
            );
            inner.leave_pending();
        }
        Ok(())
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
}

impl Drop for HttpConnectionInner {
    fn drop(&mut self) {
        self.leave_pending();
    }
}

/// Returns the number of files that the process may open; `None` if it is not limited.
#[cfg(unix)]
fn open_file_limit() -> Option<usize> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    usize::try_from(limit.current?).ok()
}

#[cfg(not(unix))]
fn open_file_limit() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    fn is_replaced(connection: &HttpConnection) -> bool {
        connection.0.replaced.is_cancelled()
    }

    #[test]
    fn a_new_connection_replaces_the_oldest_of_a_crowded_address() {
        let connections = HttpConnections::with_limits(4, 4);
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
    fn an_accepted_connection_is_not_replaced_and_holds_a_permit() {
        let connections = HttpConnections::with_limits(2, 1);
        let accepted = connections.add(address(1));
        assert_eq!((accepted.accept(), accepted.accept()), (Ok(()), Ok(())));
        let pending = [1; 3].map(|last| connections.add(address(last)));
        assert!(!is_replaced(&accepted));
        assert_eq!(pending[2].accept(), Err(TooManyConnections));
        drop(accepted);
        assert_eq!(pending[2].accept(), Ok(()));
        drop(pending);
        assert_eq!(connections.lock_pending().list.len(), 0);
    }
}
