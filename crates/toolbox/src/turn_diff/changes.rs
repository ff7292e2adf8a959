//! Finds the files that changed since the start of a turn. Files with equal, reliable metadata
//! count as unchanged; others are compared by content, so a change that was reverted does not show.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::sync::Arc;

use super::baseline::{Baseline, MAX_BYTES, MAX_FILES, Walked, contents, walk};
use super::file::{Held, Stat};
use super::{Baselined, Before};
use crate::Workspace;

/// One changed file.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) path: OsString,
    pub(super) renamed: Option<Renamed>,
    /// `None` if the file is new.
    pub(super) before: Option<Arc<Held>>,
    /// `None` if the file was deleted.
    pub(super) after: Option<Held>,
}

/// The origin of a renamed file.
#[derive(Debug)]
pub(super) struct Renamed {
    pub(super) from: OsString,
    /// Percentage of the content that is equal.
    pub(super) similarity: u8,
}

/// The file at a path at the start of the turn and now.
#[derive(Default)]
struct Sides {
    before: Option<Arc<Held>>,
    now: Option<Stat>,
}

/// Returns the changes since `before` in path order, and notes about changes that could not be
/// found.
pub(super) fn changes(workspace: &Workspace, before: &Before) -> (Vec<Change>, Vec<String>) {
    let mut notes = Vec::new();
    let mut files: BTreeMap<OsString, Sides> = BTreeMap::new();
    match &before.baseline {
        Baselined::Not => {}
        Baselined::TooMany => notes.push(too_many()),
        Baselined::Taken(baseline) => match walk(workspace) {
            // Without a second walk, only files that tools reported can be compared.
            None => notes.push(too_many()),
            Some(walked) => files = sides(baseline, walked, &mut notes),
        },
    }
    for (name, held) in &before.remembered {
        files.entry(name.clone()).or_default().before = held.clone();
    }
    let mut unreadable = 0;
    for (name, sides) in files.iter_mut().filter(|(_, sides)| sides.now.is_none()) {
        // The walk skips newly ignored files, so a file counts as deleted only if the file system
        // says so.
        match workspace.root().join(name).symlink_metadata() {
            Ok(metadata) => sides.now = Stat::of(&metadata),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(_) => {
                sides.before = None;
                unreadable += 1;
            }
        }
    }
    if unreadable > 0 {
        notes.push(format!(
            "files not shown because their metadata cannot be read: {unreadable}"
        ));
    }
    (compare(workspace, files), notes)
}

fn too_many() -> String {
    format!("changes by commands are not shown: the workspace has more than {MAX_FILES} files")
}

/// Combines the files of the baseline and of the current walk by path.
fn sides(
    baseline: &Baseline,
    walked: Walked,
    notes: &mut Vec<String>,
) -> BTreeMap<OsString, Sides> {
    let mut files: BTreeMap<OsString, Sides> = BTreeMap::new();
    for (name, held) in &baseline.files {
        files.insert(
            name.clone(),
            Sides {
                before: Some(held.clone()),
                now: None,
            },
        );
    }
    let mut formerly_ignored = 0;
    for (name, stat) in walked.files {
        // After a change to `.gitignore`, the walk finds files that may have existed before.
        if !files.contains_key(&name) && baseline.ignored(&name) {
            formerly_ignored += 1;
        } else {
            files.entry(name).or_default().now = Some(stat);
        }
    }
    if formerly_ignored > 0 {
        notes.push(format!(
            "files not shown because they were ignored when the turn began: {formerly_ignored}"
        ));
    }
    if walked.closed > 0 {
        notes.push(format!(
            "folders not shown because they cannot be read: {}",
            walked.closed
        ));
    }
    files
}

/// Compares the contents of files whose metadata differs or is unreliable; returns the changed
/// files.
fn compare(workspace: &Workspace, files: BTreeMap<OsString, Sides>) -> Vec<Change> {
    let mut candidates = Vec::new();
    let mut existing = Vec::new();
    for (name, Sides { before, now }) in files {
        match (&before, now) {
            (None, None) => {}
            (Some(before), Some(now)) if before.stat == now && !before.fresh => {}
            (_, None) => candidates.push((name, before, false)),
            (_, Some(now)) => {
                existing.push((name.clone(), now));
                candidates.push((name, before, true));
            }
        }
    }
    // Twice the limit, because some of these files will turn out to be unchanged.
    let contents = contents(workspace, &existing, 2 * MAX_BYTES);
    let mut current = existing
        .into_iter()
        .zip(contents)
        .map(|((_, stat), content)| Held {
            stat,
            content,
            fresh: true,
        });
    let mut changes = Vec::new();
    for (path, before, exists) in candidates {
        let after = if exists { current.next() } else { None };
        if !before
            .as_ref()
            .zip(after.as_ref())
            .is_some_and(|(before, after)| is_same(before, after))
        {
            changes.push(Change {
                path,
                renamed: None,
                before,
                after,
            });
        }
    }
    changes
}

/// Whether git would see no difference: same mode and content.
fn is_same(before: &Held, after: &Held) -> bool {
    before.stat.git_mode() == after.stat.git_mode() && before.same_content(after)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use selvedge_protocol::SandboxPolicy;

    use super::*;
    use crate::turn_diff::file::Content;

    /// Tests with made-up times, because few file systems have clocks coarse enough to test it with
    /// real writes.
    #[test]
    fn recent_modification_times_are_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(dir.path(), SandboxPolicy::WorkspaceWrite, &[]).unwrap();
        std::fs::write(dir.path().join("a.txt"), "new").unwrap();
        let stat = Stat::of(&dir.path().join("a.txt").symlink_metadata().unwrap()).unwrap();
        // A change of content with equal size and time is found unless the file was read so much
        // later that its time is trusted.
        for (later, is_found) in [(0, true), (1, true), (3, false)] {
            let read_at = SystemTime::now() + Duration::from_secs(later);
            let held = Held {
                fresh: stat.is_fresh(read_at),
                stat: stat.clone(),
                content: Content::Known("old".into()),
            };
            let before = Before {
                remembered: [("a.txt".into(), Some(Arc::new(held)))].into(),
                ..Before::default()
            };
            assert_eq!(
                changes(&workspace, &before).0.len(),
                usize::from(is_found),
                "{later} s later"
            );
        }
    }
}
