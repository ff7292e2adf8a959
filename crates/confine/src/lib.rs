//! The wall around a child process.
//!
//! On Linux a command gets its own user, mount, pid, network and IPC namespaces, in which the file system is
//! read-only but for the folders it may write, what is secret is not there, and the network is its own
//! loopback; Landlock and seccomp stand behind that, and an init reaps what the command leaves behind and
//! ends with it. On macOS the wall is a Seatbelt profile. Where a wall cannot be built, [`spawn`] says so
//! and starts nothing.
//!
//! Nothing is allocated between fork and exec, and no binary of the embedder's is executed again.
// Standard streams belong to whoever runs this.
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

/// Starts a command behind its wall. Blocks for the millisecond or two that takes.
pub fn spawn(command: Command, wall: &Wall, support: &Support) -> Result<Child, ConfineError> {
    #[cfg(target_os = "linux")]
    return linux::spawn(command, wall, support);
    #[cfg(not(target_os = "linux"))]
    return elsewhere::spawn(command, wall, support);
}
