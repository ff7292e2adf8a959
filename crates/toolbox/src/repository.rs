//! Decides whether `git` may run without approval in a repository. The configuration of a
//! repository comes with it, and can name programs that even `git status` runs: filters, text
//! conversions, external diffs, signature checks. Only keys that are known to run nothing are
//! accepted.

use std::ffi::OsStr;
use std::io::{PipeReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::git_files::irregular_file;

/// Keys of a repository's own configuration that make no read-only command run a program. A key is
/// given in full, as `section.` for a whole section, or as `section.*.variable`.
const HARMLESS_KEYS: &[&str] = &[
    "advice.",
    // No alias replaces a command of git.
    "alias.",
    "author.",
    "branch.",
    "color.",
    "column.",
    "commit.cleanup",
    "commit.gpgsign",
    "commit.template",
    "committer.",
    "core.abbrev",
    "core.autocrlf",
    "core.bare",
    "core.checkstat",
    "core.commitgraph",
    "core.compression",
    "core.editor",
    "core.eol",
    "core.filemode",
    "core.fscache",
    // The environment of the command overrides these two and `core.pager`.
    "core.fsmonitor",
    "core.hookspath",
    "core.ignorecase",
    "core.logallrefupdates",
    "core.longpaths",
    "core.multipackindex",
    "core.pager",
    "core.precomposeunicode",
    "core.preloadindex",
    "core.protecthfs",
    "core.protectntfs",
    "core.quotepath",
    "core.repositoryformatversion",
    "core.safecrlf",
    "core.sharedrepository",
    "core.sparsecheckout",
    "core.sparsecheckoutcone",
    "core.splitindex",
    // No read-only command connects to a remote.
    "core.sshcommand",
    "core.symlinks",
    "core.trustctime",
    "core.untrackedcache",
    "core.whitespace",
    "credential.",
    "diff.algorithm",
    "diff.colormoved",
    "diff.context",
    "diff.ignoresubmodules",
    "diff.indentheuristic",
    "diff.interhunkcontext",
    "diff.mnemonicprefix",
    "diff.noprefix",
    "diff.renamelimit",
    "diff.renames",
    "diff.tool",
    "extensions.noop",
    "extensions.objectformat",
    "extensions.refstorage",
    "extensions.relativeworktrees",
    "extensions.worktreeconfig",
    "feature.",
    "fetch.",
    "gc.",
    "gpg.format",
    "gui.",
    "http.",
    "i18n.",
    "index.",
    "init.",
    "lfs.*.access",
    "lfs.*.locksverify",
    "lfs.repositoryformatversion",
    "log.abbrevcommit",
    "log.date",
    "log.decorate",
    "log.follow",
    "log.mailmap",
    // The environment of the command overrides it.
    "log.showsignature",
    "maintenance.",
    "merge.conflictstyle",
    "merge.ff",
    "merge.tool",
    "pack.",
    "pull.",
    "push.",
    "rebase.",
    "receive.",
    "remote.*.fetch",
    "remote.*.gh-resolved",
    "remote.*.mirror",
    "remote.*.prune",
    "remote.*.prunetags",
    "remote.*.push",
    "remote.*.pushurl",
    "remote.*.skipdefaultupdate",
    "remote.*.tagopt",
    "remote.*.url",
    "remote.pushdefault",
    "rerere.",
    "status.",
    "submodule.",
    "tag.gpgsign",
    "tag.sort",
    "transfer.",
    "url.",
    "user.",
];

/// Arguments of `git` that list the keys of the configuration with their scopes.
const LIST_CONFIGURATION: &[&str] = &["config", "--list", "--show-scope", "--name-only", "-z"];
/// Arguments of `git` that list all files of the index with their modes.
const LIST_INDEX: &[&str] = &["ls-files", "--stage", "-z", "--", ":/"];

/// How long the result of a check is used. One command is classified several times.
const MAX_CHECK_AGE: Duration = Duration::from_millis(500);
/// How long the result of a slow check is used: the call waits for the check.
const MAX_SLOW_CHECK_AGE: Duration = Duration::from_secs(60);
/// Duration from which a check is slow.
const SLOW_CHECK_DURATION: Duration = Duration::from_secs(1);
/// The most output of `git` that is read.
const MAX_GIT_OUTPUT_BYTES: u64 = 64 << 20;
/// How long a check waits for `git`.
const GIT_TIMEOUT: Duration = Duration::from_secs(2);

/// The check of the repository of a workspace, with its last result.
#[derive(Debug, Default)]
pub(crate) struct RepositoryCheck {
    last: Mutex<Option<CheckResult>>,
}

#[derive(Debug)]
struct CheckResult {
    expires: Instant,
    reason: Option<String>,
}

impl RepositoryCheck {
    /// Returns why `git` may run a program in the folder `cwd`. `None` if it runs none. `git` runs
    /// git with the given arguments in that folder and returns its output, or `None` if it fails.
    pub(crate) fn why_it_may_run_programs(
        &self,
        cwd: &Path,
        git: impl Fn(&[&str]) -> Option<Vec<u8>>,
    ) -> Option<String> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last
            .as_ref()
            .is_none_or(|last| last.expires <= Instant::now())
        {
            let started = Instant::now();
            let reason = why_git_may_run_programs(cwd, SubmoduleUse::Entered, git);
            // A harmless result is never used for long: the repository may change.
            let age = match reason.is_some() && started.elapsed() > SLOW_CHECK_DURATION {
                true => MAX_SLOW_CHECK_AGE,
                false => MAX_CHECK_AGE,
            };
            *last = Some(CheckResult {
                expires: Instant::now() + age,
                reason,
            });
        }
        last.as_ref().and_then(|last| last.reason.clone())
    }
}

/// Whether commands of git enter the submodules of a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubmoduleUse {
    /// They may, so that the configuration of a submodule counts, too.
    Entered,
    /// They do not.
    NotEntered,
}

/// Returns why `git` may run a program in the folder `cwd`. `None` if it runs none. `git` runs git
/// with the given arguments in that folder and returns its output, or `None` if it fails.
pub(crate) fn why_git_may_run_programs(
    cwd: &Path,
    submodules: SubmoduleUse,
    git: impl Fn(&[&str]) -> Option<Vec<u8>>,
) -> Option<String> {
    if let Some(name) = irregular_file(cwd) {
        return Some(format!("the repository's `{name}` is not a regular file"));
    }
    let Some(configuration) = git(LIST_CONFIGURATION) else {
        return Some("the repository's configuration is not readable".to_owned());
    };
    let reason = check_configuration(&configuration);
    if reason.is_some() || submodules == SubmoduleUse::NotEntered {
        return reason;
    }
    match git(LIST_INDEX) {
        Some(index) => check_submodules(&index, cwd),
        // Outside of a repository there is no index.
        None if !has_own_keys(&configuration) => None,
        None => Some("the repository's index is not readable".to_owned()),
    }
}

/// Reads what `git` prints. `None` if it prints too much or takes too long.
pub(crate) fn read_git_output(reader: PipeReader) -> Option<Vec<u8>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut output = Vec::new();
        let read = reader.take(MAX_GIT_OUTPUT_BYTES).read_to_end(&mut output);
        // The receiver is gone if the time limit is over.
        let _ = sender.send(read.is_ok().then_some(output));
    });
    let output = receiver.recv_timeout(GIT_TIMEOUT).ok().flatten();
    output.filter(|output| (output.len() as u64) < MAX_GIT_OUTPUT_BYTES)
}

/// Returns why `git` may run a program that the configuration of the repository names, given the
/// output of [`LIST_CONFIGURATION`]. The user's own configuration is trusted.
fn check_configuration(listing: &[u8]) -> Option<String> {
    let Ok(text) = std::str::from_utf8(listing) else {
        return Some("the repository's configuration is not readable".to_owned());
    };
    let key = own_keys(text).find(|key| !is_harmless_key(key))?;
    let key: String = key.chars().take(60).flat_map(char::escape_debug).collect();
    Some(format!(
        "the repository's configuration sets `{key}`, which may run a program"
    ))
}

/// Returns the keys that the repository itself sets.
fn own_keys(listing: &str) -> impl Iterator<Item = &str> {
    let mut parts = listing.split_terminator('\0');
    let pairs = std::iter::from_fn(move || Some((parts.next()?, parts.next()?)));
    pairs
        .filter(|(scope, _)| !matches!(*scope, "system" | "global" | "command"))
        .map(|(_, key)| key)
}

fn has_own_keys(listing: &[u8]) -> bool {
    std::str::from_utf8(listing).is_ok_and(|text| own_keys(text).next().is_some())
}

/// Returns why `git` may run a program that the configuration of a submodule names, given the
/// output of [`LIST_INDEX`] in the folder `cwd`.
fn check_submodules(listing: &[u8], cwd: &Path) -> Option<String> {
    let submodules = listing
        .split(|byte| *byte == 0)
        .filter(|entry| entry.starts_with(b"160000 "));
    for entry in submodules {
        let path = entry
            .splitn(2, |byte| *byte == b'\t')
            .nth(1)
            .unwrap_or_default();
        let path = Path::new(OsStr::from_bytes(path));
        // Without a repository in it, git does not enter a submodule.
        if cwd.join(path).join(".git").symlink_metadata().is_ok() {
            return Some("`git` may run programs configured in a submodule".to_owned());
        }
    }
    None
}

fn is_harmless_key(key: &str) -> bool {
    let (section, rest) = key.split_once('.').unwrap_or((key, ""));
    let variable = rest.rsplit('.').next().unwrap_or_default();
    HARMLESS_KEYS.iter().any(|harmless| {
        let whole_section = harmless.strip_suffix('.');
        let any_name = harmless.split_once(".*.");
        key == *harmless
            || whole_section == Some(section)
            || any_name.is_some_and(|(name, last)| {
                name == section && last == variable && rest.contains('.')
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_keys_of_the_repository_are_harmless() {
        for key in [
            "core.filemode",
            "branch.a.b.merge",
            "remote.o.url",
            "user.name",
        ] {
            let listing = format!("local\0{key}\0");
            assert_eq!(check_configuration(listing.as_bytes()), None, "{key}");
        }
        for key in [
            "filter.x.clean",
            "diff.external",
            "diff.x.textconv",
            "remote.o.uploadpack",
            "remote.o.promisor",
            "remote.url",
            "gpg.program",
            "include.path",
            "core.worktree",
            "new.key",
        ] {
            let listing = format!("global\0{key}\0local\0{key}\0");
            assert!(check_configuration(listing.as_bytes()).is_some(), "{key}");
            let trusted = format!("global\0{key}\0system\0{key}\0");
            assert_eq!(check_configuration(trusted.as_bytes()), None, "{key}");
        }
    }
}
