//! Confinement of child processes.
//!
//! On Linux a command gets its own user, mount, PID, network and IPC namespaces. In these, the file
//! system is read-only except for the writable folders, secrets are hidden, and the network is a
//! private loopback interface. Landlock and seccomp enforce the same policy a second time. An init
//! process reaps the processes that the command leaves behind, and kills them when the parent drops
//! the [`Child`] or exits. On macOS the confinement is a Seatbelt profile. If the requested
//! confinement is not available, [`spawn`] returns an error and starts nothing.
//!
//! Nothing is allocated between fork and exec, and the embedder's binary is not executed again.
// Standard streams belong to the program that uses this crate.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod child;
mod command;
mod confinement;
mod error;
mod lease;

#[cfg(target_os = "linux")]
mod bubblewrap;
#[cfg(target_os = "linux")]
mod filter;
#[cfg(target_os = "linux")]
mod init_process;
#[cfg(target_os = "linux")]
mod landlock;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod mounts;
#[cfg(target_os = "linux")]
mod network_counters;
#[cfg(target_os = "linux")]
mod plan;
#[cfg(target_os = "linux")]
mod sockets;
#[cfg(target_os = "linux")]
mod stack;
#[cfg(target_os = "linux")]
mod syscall;

mod async_fd;
#[cfg(target_os = "linux")]
mod placeholder;
mod seatbelt;
mod support;
#[cfg(any(not(target_os = "linux"), test))]
mod unix_fallback;

pub use async_fd::async_fd;
pub use child::{Child, CommandExit, ExitReason};
pub use command::{ChildCommand, ChildStdio};
pub use confinement::{Confinement, ConfinementMode, NetworkAccess, UnixSocketAccess};
pub use error::ConfineError;
pub use lease::CommandLease;
pub use selvedge_protocol::{CommandLimits, WeakerConfinement};
pub use support::{ConfinementBackend, ConfinementSupport, FeatureSupport};

/// Starts a command with the given confinement. Blocks until the program runs, usually for one or
/// two milliseconds.
pub fn spawn(
    command: ChildCommand,
    mode: &ConfinementMode,
    support: &ConfinementSupport,
) -> Result<Child, ConfineError> {
    if command.lease.is_some_and(CommandLease::has_ended) {
        return Err(ConfineError::LeaseEnded);
    }
    #[cfg(target_os = "linux")]
    return linux::spawn(command, mode, support);
    #[cfg(not(target_os = "linux"))]
    return unix_fallback::spawn(command, mode, support);
}
