//! Detects which confinement features this machine supports.

use std::path::PathBuf;

use crate::{ConfineError, WeakerWall};

/// The confinement features of this machine.
#[derive(Debug, Clone)]
pub struct Support {
    /// User, mount, PID, network and IPC namespaces.
    pub namespaces: Feature,
    /// A private /proc inside those namespaces, which shows only the command's own processes.
    pub proc: Feature,
    /// Landlock, with its version.
    pub landlock: Feature,
    /// A working `bwrap`. Some systems allow namespaces only to this program. `None` also if it is
    /// not needed, because namespaces and a private /proc are available.
    pub bubblewrap: Option<PathBuf>,
}

/// Whether this machine has a feature, with a short description for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Feature {
    /// The feature works. The text says which variant or version.
    Present(String),
    /// The feature does not work. The text is the reason.
    Missing(String),
}

/// The mechanism that confines a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strength {
    /// Namespaces, Landlock and seccomp.
    Namespaces,
    /// As `Namespaces`, but with the /proc of the host. Only used if the configuration accepts it.
    SharedProc,
    /// The `bwrap` program at this path, and seccomp.
    Bubblewrap(PathBuf),
    /// Landlock and seccomp without namespaces. Only used if the configuration accepts it.
    Landlock,
}

impl Support {
    /// Detects the features by trying to use them.
    pub fn probe() -> Self {
        let (namespaces, proc) = namespaces();
        let complete = matches!(
            (&namespaces, &proc),
            (Feature::Present(_), Feature::Present(_))
        );
        let bubblewrap = if complete { None } else { find_bubblewrap() };
        Self {
            namespaces,
            proc,
            landlock: landlock(),
            bubblewrap,
        }
    }

    /// Returns the strongest mechanism that is available and at least as strong as `accepted`
    /// (`None`: only full confinement), or [`ConfineError::NotEnforceable`].
    pub fn strength(&self, accepted: Option<WeakerWall>) -> Result<Strength, ConfineError> {
        let why = match (&self.namespaces, &self.proc, &self.bubblewrap) {
            (Feature::Present(_), Feature::Present(_), _) => return Ok(Strength::Namespaces),
            (_, _, Some(bwrap)) => return Ok(Strength::Bubblewrap(bwrap.clone())),
            (Feature::Present(_), Feature::Missing(why), None) => {
                // Every weaker confinement that can be accepted includes this one.
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
    let feature = |tried: Result<(), ConfineError>, description: &str| match tried {
        Ok(()) => Feature::Present(description.to_owned()),
        Err(ConfineError::NotEnforceable { why }) => Feature::Missing(why),
        Err(error) => Feature::Missing(error.to_string()),
    };
    const NAMESPACES: &str = "user, mount, PID, network and IPC";
    match feature(try_namespaces(Proc::Own), "private") {
        proc @ Feature::Present(_) => (Feature::Present(NAMESPACES.to_owned()), proc),
        proc => (feature(try_namespaces(Proc::Shared), NAMESPACES), proc),
    }
}

#[cfg(target_os = "macos")]
fn namespaces() -> (Feature, Feature) {
    (
        Feature::Present("Seatbelt".into()),
        Feature::Present("macOS has no /proc".into()),
    )
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn namespaces() -> (Feature, Feature) {
    let missing = || Feature::Missing("not supported on this operating system".into());
    (missing(), missing())
}

#[cfg(target_os = "linux")]
fn landlock() -> Feature {
    match crate::landlock::version() {
        Some(version) => Feature::Present(format!("version {version}")),
        None => Feature::Missing("not enabled in this kernel".into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn landlock() -> Feature {
    Feature::Missing("only available on Linux".into())
}

#[cfg(target_os = "linux")]
fn find_bubblewrap() -> Option<PathBuf> {
    // Not through PATH, which may name a program that is not the system's.
    let paths = ["/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap"];
    paths
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.exists() && crate::linux::try_bubblewrap(path).is_ok())
}

#[cfg(not(target_os = "linux"))]
fn find_bubblewrap() -> Option<PathBuf> {
    None
}
