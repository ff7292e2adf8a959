//! Enforces the file system policy a second time with Landlock, in case a mount is missing.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope,
};

use crate::ConfineError;

/// The newest Landlock version that this module uses. An older kernel enforces the part it
/// supports.
const LANDLOCK_ABI: ABI = ABI::V6;

/// Creates a ruleset that allows writes only below `writable`. `None` if the kernel does not
/// support Landlock.
pub(crate) fn ruleset(writable: &[PathBuf]) -> Result<Option<OwnedFd>, ConfineError> {
    build_ruleset(writable).map_err(|error| ConfineError::Unsupported {
        reason: format!("cannot create Landlock rules: {error}"),
    })
}

fn build_ruleset(writable: &[PathBuf]) -> Result<Option<OwnedFd>, RulesetError> {
    let everything = AccessFs::from_all(LANDLOCK_ABI);
    let mut rules = Ruleset::default()
        .handle_access(everything)?
        .scope(Scope::from_all(LANDLOCK_ABI))?
        .create()?;
    rules = allow_path(rules, Path::new("/"), AccessFs::from_read(LANDLOCK_ABI))?;
    // The mounts below /dev decide what can be written there.
    rules = allow_path(rules, Path::new("/dev"), everything)?;
    for folder in writable {
        rules = allow_path(rules, folder, everything)?;
    }
    Ok(rules.into())
}

fn allow_path(
    rules: landlock::RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<landlock::RulesetCreated, RulesetError> {
    match PathFd::new(path) {
        Ok(fd) => rules.add_rule(PathBeneath::new(fd, access)),
        // A missing path needs no rule.
        Err(_) => Ok(rules),
    }
}

/// Returns the Landlock version of this kernel. `None` if it does not support Landlock.
pub(crate) fn abi_version() -> Option<i64> {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: with this flag the kernel reads no memory.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    (version > 0).then_some(version)
}
