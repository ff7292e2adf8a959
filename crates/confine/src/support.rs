//! Detects which confinement features this machine supports.

use std::path::PathBuf;

use crate::{ConfineError, WeakerConfinement};

/// The confinement features of this machine.
#[derive(Debug, Clone)]
pub struct ConfinementSupport {
    /// User, mount, PID, network and IPC namespaces.
    pub namespaces: FeatureSupport,
    /// A private /proc inside those namespaces, which shows only the command's own processes.
    pub private_proc: FeatureSupport,
    /// Landlock, with its version.
    pub landlock: FeatureSupport,
    /// A working `bwrap`. Some systems allow namespaces only to this program. `None` also if it is
    /// not needed, because namespaces and a private /proc are available.
    pub bubblewrap: Option<PathBuf>,
}

/// Whether this machine has a feature, with a short description for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeatureSupport {
    /// The feature works. The text says which variant or version.
    Present(String),
    /// The feature does not work. The text is the reason.
    Missing(String),
}

/// The mechanism that confines a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfinementBackend {
    /// The full confinement: namespaces, Landlock and seccomp on Linux, Seatbelt on macOS.
    Namespaces,
    /// As `Namespaces`, but with the /proc of the host. Only used if the configuration accepts it.
    SharedProc,
    /// The `bwrap` program at this path, and seccomp.
    Bubblewrap(PathBuf),
    /// Landlock and seccomp without namespaces. Only used if the configuration accepts it.
    Landlock,
}

impl ConfinementSupport {
    /// Detects the features by trying to use them.
    pub fn probe() -> Self {
        let (namespaces, proc) = probe_namespaces();
        let complete = matches!(
            (&namespaces, &proc),
            (FeatureSupport::Present(_), FeatureSupport::Present(_))
        );
        let bubblewrap = if complete { None } else { find_bubblewrap() };
        Self {
            namespaces,
            private_proc: proc,
            landlock: probe_landlock(),
            bubblewrap,
        }
    }

    /// Returns the strongest available mechanism. Fails with [`ConfineError::Unsupported`] if it is
    /// weaker than `accepted`, or not the full confinement if `accepted` is `None`.
    pub fn strongest_backend(
        &self,
        accepted: Option<WeakerConfinement>,
    ) -> Result<ConfinementBackend, ConfineError> {
        let why = match (&self.namespaces, &self.private_proc, &self.bubblewrap) {
            (FeatureSupport::Present(_), FeatureSupport::Present(_), _) => {
                return Ok(ConfinementBackend::Namespaces);
            }
            (_, _, Some(bwrap)) => return Ok(ConfinementBackend::Bubblewrap(bwrap.clone())),
            (FeatureSupport::Present(_), FeatureSupport::Missing(why), None) => {
                // Every weaker confinement that can be accepted includes this one.
                if accepted.is_some() {
                    return Ok(ConfinementBackend::SharedProc);
                }
                why
            }
            (FeatureSupport::Missing(why), _, None) => why,
        };
        match (accepted, &self.landlock) {
            (Some(WeakerConfinement::Landlock), FeatureSupport::Present(_)) => {
                Ok(ConfinementBackend::Landlock)
            }
            _ => Err(ConfineError::Unsupported {
                reason: why.clone(),
            }),
        }
    }
}

#[cfg(target_os = "linux")]
fn probe_namespaces() -> (FeatureSupport, FeatureSupport) {
    use crate::linux::try_namespaces;
    use crate::mounts::ProcMount;
    let feature = |tried: Result<(), ConfineError>, description: &str| match tried {
        Ok(()) => FeatureSupport::Present(description.to_owned()),
        Err(ConfineError::Unsupported { reason: why }) => FeatureSupport::Missing(why),
        Err(error) => FeatureSupport::Missing(error.to_string()),
    };
    const NAMESPACES: &str = "user, mount, PID, network and IPC";
    match feature(try_namespaces(ProcMount::Private), "private") {
        proc @ FeatureSupport::Present(_) => (FeatureSupport::Present(NAMESPACES.to_owned()), proc),
        proc => (feature(try_namespaces(ProcMount::Shared), NAMESPACES), proc),
    }
}

#[cfg(target_os = "macos")]
fn probe_namespaces() -> (FeatureSupport, FeatureSupport) {
    (
        FeatureSupport::Present("Seatbelt".into()),
        FeatureSupport::Present("macOS has no /proc".into()),
    )
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn probe_namespaces() -> (FeatureSupport, FeatureSupport) {
    let missing = || FeatureSupport::Missing("not supported on this operating system".into());
    (missing(), missing())
}

#[cfg(target_os = "linux")]
fn probe_landlock() -> FeatureSupport {
    match crate::landlock::abi_version() {
        Some(version) => FeatureSupport::Present(format!("version {version}")),
        None => FeatureSupport::Missing("not enabled in this kernel".into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn probe_landlock() -> FeatureSupport {
    FeatureSupport::Missing("only available on Linux".into())
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
