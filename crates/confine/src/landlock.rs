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
const KNOWN: ABI = ABI::V6;

/// Creates a ruleset that allows writes only below `writable`. `None` if the kernel does not
/// support Landlock.
pub(crate) fn ruleset(writable: &[PathBuf]) -> Result<Option<OwnedFd>, ConfineError> {
    build(writable).map_err(|error| ConfineError::NotEnforceable {
        why: format!("cannot create Landlock rules: {error}"),
    })
}

fn build(writable: &[PathBuf]) -> Result<Option<OwnedFd>, RulesetError> {
    let everything = AccessFs::from_all(KNOWN);
    let mut rules = Ruleset::default()
        .handle_access(everything)?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    rules = allow(rules, Path::new("/"), AccessFs::from_read(KNOWN))?;
    // The mounts below /dev decide what can be written there.
    rules = allow(rules, Path::new("/dev"), everything)?;
    for folder in writable {
        rules = allow(rules, folder, everything)?;
    }
    Ok(rules.into())
}

fn allow(
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
pub(crate) fn version() -> Option<i64> {
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
