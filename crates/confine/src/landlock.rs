//! The same file system policy a second time, kept by Landlock: it holds even where a mount was forgotten.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope,
};

use crate::ConfineError;

/// The newest version that is understood here; an older kernel enforces what it knows.
const KNOWN: ABI = ABI::V6;

/// A ruleset that can be entered; `None` where the kernel has no Landlock.
pub(crate) fn ruleset(writable: &[PathBuf]) -> Result<Option<OwnedFd>, ConfineError> {
    build(writable).map_err(|error| ConfineError::NotEnforceable {
        why: format!("Landlock refused the rules: {error}"),
    })
}

fn build(writable: &[PathBuf]) -> Result<Option<OwnedFd>, RulesetError> {
    let everything = AccessFs::from_all(KNOWN);
    let mut rules = Ruleset::default()
        .handle_access(everything)?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    rules = allow(rules, Path::new("/"), AccessFs::from_read(KNOWN))?;
    // What can be written below these is decided by their own mounts.
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
        // What is not there needs no permission.
        Err(_) => Ok(rules),
    }
}

/// The version of Landlock this kernel has.
pub(crate) fn version() -> Option<i64> {
    const ASK_FOR_THE_VERSION: u32 = 1;
    // SAFETY: with this flag the kernel reads no memory.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0usize,
            ASK_FOR_THE_VERSION,
        )
    };
    (version > 0).then_some(version)
}
