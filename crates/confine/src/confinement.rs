//! What a command may do.

use selvedge_protocol::{CommandLimits, WeakerWall};
use std::path::PathBuf;

/// Whether there is a wall, and which.
#[derive(Debug, Clone)]
pub enum Wall {
    /// None: the command may do what its user may. It still ends with its parent.
    None,
    /// Only this.
    Confined(Confinement),
}

/// What a confined command may do. Everything can be read but what is hidden; nothing can be written but
/// what is writable.
#[derive(Debug, Clone, Default)]
pub struct Confinement {
    /// Folders that may be written, as canonical paths.
    pub writable: Vec<PathBuf>,
    /// Folders and files below those that may not. One that is missing is an empty folder while the command runs.
    pub protected: Vec<PathBuf>,
    /// Folders and files that are not to be read. They look empty.
    pub hidden: Vec<PathBuf>,
    /// What it may talk to.
    pub network: Network,
    /// Whether it may make sockets that have a name in the file system.
    pub named_sockets: NamedSockets,
    /// How much it may use.
    pub limits: CommandLimits,
    /// A weaker wall that will do where the whole one cannot be built.
    pub weaker: Option<WeakerWall>,
}

/// What a command may talk to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Network {
    /// Itself, over its own loopback.
    #[default]
    Off,
    /// Everything.
    On,
}

/// Sockets that have a name in the file system. Behind those of others may sit programs that do what they are told: a
/// container engine, a terminal multiplexer, an agent that signs; and a name cannot be kept from being moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum NamedSockets {
    /// None. Pairs between its own processes are no such sockets.
    #[default]
    Off,
    /// Any, but those that others listen on when it starts are covered.
    On,
}
