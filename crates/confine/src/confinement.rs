//! Describes what a command may do. Enforcement is in the modules for each operating system.

use selvedge_protocol::{CommandLimits, WeakerConfinement};
use std::path::PathBuf;

/// Whether a command is confined, and how.
#[derive(Debug, Clone)]
pub enum ConfinementMode {
    /// The command has all rights of its user. It is still killed when its parent exits.
    Unconfined,
    /// The command may do only what this policy allows.
    Confined(Confinement),
}

/// The policy for a confined command. It can read everything except hidden paths, and write nothing
/// except writable folders.
#[derive(Debug, Clone, Default)]
pub struct Confinement {
    /// Folders that may be written, as canonical paths.
    pub writable: Vec<PathBuf>,
    /// Folders and files below the writable folders that stay read-only. A missing one appears as
    /// an empty folder while the command runs.
    pub protected: Vec<PathBuf>,
    /// Folders and files that cannot be read. They look empty.
    pub hidden: Vec<PathBuf>,
    /// Folders for locks, which no command may be able to read: missing protected paths exist as
    /// long as a command holds one. The first that this user may write is used, else one of the
    /// system. Processes of one user should have the same first folder, because they share the
    /// protected paths.
    pub lock_folders: Vec<PathBuf>,
    /// Whether the command can reach the network.
    pub network: NetworkAccess,
    /// Whether the command can create Unix sockets that have a path.
    pub unix_sockets: UnixSocketAccess,
    /// Limits on processes, file size and memory.
    pub limits: CommandLimits,
    /// The weakest confinement to accept where the full one is not available. `None` accepts only
    /// the full one.
    pub accepted_weaker: Option<WeakerConfinement>,
}

/// Network access of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum NetworkAccess {
    /// Only a private loopback interface.
    #[default]
    Off,
    /// The network of the host.
    On,
}

/// Whether a command can create Unix sockets that have a path. Programs that listen on such sockets
/// may run commands for their clients (a container engine, a terminal multiplexer, a signing
/// agent), and a socket that is covered by a mount can still be moved to another path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum UnixSocketAccess {
    /// No Unix sockets, except connected pairs between the command's own processes.
    #[default]
    Off,
    /// Any Unix socket. Sockets that other programs listen on when the command starts are covered.
    On,
}
