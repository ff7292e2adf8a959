//! Descriptors of any kind as things to await.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Lets a descriptor be awaited. Must be called inside a runtime that watches descriptors.
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor is open and the same until it is dropped, which the wrapper does.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest)? })
}
