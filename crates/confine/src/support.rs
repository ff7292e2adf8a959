//! What this machine can enforce.

use std::path::PathBuf;

use crate::{ConfineError, WeakerWall};

/// What this machine can enforce.
#[derive(Debug, Clone)]
pub struct Support {
    /// Own user, mount, pid, network and IPC namespaces; or why not.
    pub namespaces: Feature,
    /// Landlock, with its version.
    pub landlock: Feature,
    /// `bwrap`, which some systems trust with namespaces when they do not trust us.
    pub bubblewrap: Option<PathBuf>,
}

/// Something this machine has or lacks, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Feature {
    /// It is there; the words say which.
    Present(String),
    /// It is not there; the words say why.
    Missing(String),
}

/// How a wall is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strength {
    /// Namespaces, Landlock and seccomp.
    Namespaces,
    /// `bwrap` and seccomp.
    Bubblewrap(PathBuf),
    /// The weaker wall that was accepted by name.
    Landlock,
}

impl Support {
    /// Tries what there is.
    pub fn probe() -> Self {
        Self { namespaces: namespaces(), landlock: landlock(), bubblewrap: find_bubblewrap() }
    }

    /// The strongest wall that can be built, or why none can.
    pub fn strength(&self, accepted: Option<WeakerWall>) -> Result<Strength, ConfineError> {
        let why = match (&self.namespaces, &self.bubblewrap) {
            (Feature::Present(_), _) => return Ok(Strength::Namespaces),
            (Feature::Missing(_), Some(bwrap)) => return Ok(Strength::Bubblewrap(bwrap.clone())),
            (Feature::Missing(why), None) => why,
        };
        match (accepted, &self.landlock) {
            (Some(WeakerWall::Landlock), Feature::Present(_)) => Ok(Strength::Landlock),
            _ => Err(ConfineError::NotEnforceable { why: why.clone() }),
        }
    }
}

#[cfg(target_os = "linux")]
fn namespaces() -> Feature {
    match crate::linux::try_namespaces() {
        Ok(()) => Feature::Present("user, mount, pid, network and IPC".into()),
        Err(ConfineError::NotEnforceable { why }) => Feature::Missing(why),
        Err(error) => Feature::Missing(error.to_string()),
    }
}

#[cfg(target_os = "macos")]
fn namespaces() -> Feature {
    Feature::Present("Seatbelt".into())
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn namespaces() -> Feature {
    Feature::Missing("commands cannot be confined on this system".into())
}

#[cfg(target_os = "linux")]
fn landlock() -> Feature {
    match crate::landlock::version() {
        Some(version) => Feature::Present(format!("version {version}")),
        None => Feature::Missing("this kernel was built or started without it".into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn landlock() -> Feature {
    Feature::Missing("it is a part of Linux".into())
}

fn find_bubblewrap() -> Option<PathBuf> {
    // Not through PATH: what stands there must be the system's.
    ["/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap"].into_iter().map(PathBuf::from).find(|path| path.exists())
}
