//! What this machine can enforce.

use std::path::PathBuf;

use crate::{ConfineError, WeakerWall};

/// What this machine can enforce.
#[derive(Debug, Clone)]
pub struct Support {
    /// Own user, mount, pid, network and IPC namespaces; or why not.
    pub namespaces: Feature,
    /// A /proc that shows the command's own processes alone, inside those.
    pub proc: Feature,
    /// Landlock, with its version.
    pub landlock: Feature,
    /// A `bwrap` that works, which some systems trust with namespaces when they do not trust us. Only looked for
    /// where it would be needed.
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
    /// The same but for /proc, which was accepted by name.
    SharedProc,
    /// `bwrap` and seccomp.
    Bubblewrap(PathBuf),
    /// Landlock and seccomp alone, accepted by name.
    Landlock,
}

impl Support {
    /// Tries what there is.
    pub fn probe() -> Self {
        let (namespaces, proc) = namespaces();
        let whole = matches!(
            (&namespaces, &proc),
            (Feature::Present(_), Feature::Present(_))
        );
        let bubblewrap = if whole { None } else { find_bubblewrap() };
        Self {
            namespaces,
            proc,
            landlock: landlock(),
            bubblewrap,
        }
    }

    /// The strongest wall that can be built, or why none can.
    pub fn strength(&self, accepted: Option<WeakerWall>) -> Result<Strength, ConfineError> {
        let why = match (&self.namespaces, &self.proc, &self.bubblewrap) {
            (Feature::Present(_), Feature::Present(_), _) => return Ok(Strength::Namespaces),
            (_, _, Some(bwrap)) => return Ok(Strength::Bubblewrap(bwrap.clone())),
            (Feature::Present(_), Feature::Missing(why), None) => {
                // Whoever accepts less accepts this.
                if accepted.is_some() {
                    return Ok(Strength::SharedProc);
                }
                why
            }
            (Feature::Missing(why), _, None) => why,
        };
        match (accepted, &self.landlock) {
            (Some(WeakerWall::Landlock), Feature::Present(_)) => Ok(Strength::Landlock),
            _ => Err(ConfineError::NotEnforceable { why: why.clone() }),
        }
    }
}

#[cfg(target_os = "linux")]
fn namespaces() -> (Feature, Feature) {
    use crate::linux::try_namespaces;
    use crate::mounts::Proc;
    let feature = |tried: Result<(), ConfineError>, words: &str| match tried {
        Ok(()) => Feature::Present(words.to_owned()),
        Err(ConfineError::NotEnforceable { why }) => Feature::Missing(why),
        Err(error) => Feature::Missing(error.to_string()),
    };
    const NAMESPACES: &str = "user, mount, pid, network and IPC";
    match feature(try_namespaces(Proc::Own), "its own") {
        proc @ Feature::Present(_) => (Feature::Present(NAMESPACES.to_owned()), proc),
        proc => (feature(try_namespaces(Proc::Shared), NAMESPACES), proc),
    }
}

#[cfg(target_os = "macos")]
fn namespaces() -> (Feature, Feature) {
    (
        Feature::Present("Seatbelt".into()),
        Feature::Present("there is none".into()),
    )
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn namespaces() -> (Feature, Feature) {
    let missing = || Feature::Missing("commands cannot be confined on this system".into());
    (missing(), missing())
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

#[cfg(target_os = "linux")]
fn find_bubblewrap() -> Option<PathBuf> {
    // Not through PATH: what stands there must be the system's.
    let places = ["/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap"];
    places
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.exists() && crate::linux::try_bubblewrap(path).is_ok())
}

#[cfg(not(target_os = "linux"))]
fn find_bubblewrap() -> Option<PathBuf> {
    None
}
