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

#[cfg(target_os = "linux")]
mod bubblewrap;
#[cfg(target_os = "linux")]
mod filter;
#[cfg(target_os = "linux")]
mod inside;
#[cfg(target_os = "linux")]
mod landlock;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod mounts;
#[cfg(target_os = "linux")]
mod plan;
#[cfg(target_os = "linux")]
mod raw;
#[cfg(target_os = "linux")]
mod sockets;
#[cfg(target_os = "linux")]
mod stack;

#[cfg(any(not(target_os = "linux"), test))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod placeholder;
mod seatbelt;
mod support;
mod watched;

pub use child::{Child, End, Exit};
pub use command::{Command, Stdio};
pub use confinement::{Confinement, NamedSockets, Network, Wall};
pub use error::ConfineError;
pub use selvedge_protocol::{CommandLimits, WeakerWall};
pub use support::{Feature, Strength, Support};
pub use watched::watch;

/// Starts a command with the given confinement. Blocks until the program runs, usually for one or
/// two milliseconds.
pub fn spawn(command: Command, wall: &Wall, support: &Support) -> Result<Child, ConfineError> {
    #[cfg(target_os = "linux")]
    return linux::spawn(command, wall, support);
    #[cfg(not(target_os = "linux"))]
    return elsewhere::spawn(command, wall, support);
}
