//! Waits for any kind of file descriptor in an async runtime.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the tokio runtime. Must be called inside a runtime whose I/O driver
/// is enabled.
pub fn async_fd(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor stays open and unchanged until it is dropped, and the wrapper
    // drops it.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest)? })
}
