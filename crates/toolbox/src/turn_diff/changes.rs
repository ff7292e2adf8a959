//! Which files are not what they were. The system's word counts where it can be relied on, the content elsewhere:
//! what was changed and changed back does not show.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::sync::Arc;

use super::baseline::{Baseline, MAX_BYTES, MAX_FILES, Walked, contents, walk};
use super::file::{Held, Stat};
use super::{Baselined, Before};
use crate::Workspace;

/// One file that is not what it was.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) path: OsString,
    pub(super) renamed: Option<Renamed>,
    pub(super) before: Option<Arc<Held>>,
    pub(super) after: Option<Held>,
}

/// Where a renamed file comes from.
#[derive(Debug)]
pub(super) struct Renamed {
    pub(super) from: OsString,
    /// Percent of the content that is the same.
    pub(super) similarity: u8,
}

/// A path before the turn and now.
#[derive(Default)]
struct Sides {
    before: Option<Arc<Held>>,
    now: Option<Stat>,
}

/// What differs from `before`, in path order, and what could not be found out.
pub(super) fn changes(workspace: &Workspace, before: &Before) -> (Vec<Change>, Vec<String>) {
    let mut notes = Vec::new();
    let mut files: BTreeMap<OsString, Sides> = BTreeMap::new();
    match &before.baseline {
        Baselined::Not => {}
        Baselined::TooMany => notes.push(too_many()),
        Baselined::Taken(baseline) => match walk(workspace) {
            // Without both walks nothing can be said of files nobody named.
            None => notes.push(too_many()),
            Some(walked) => files = sides(baseline, walked, &mut notes),
        },
    }
    for (name, held) in &before.remembered {
        files.entry(name.clone()).or_default().before = held.clone();
    }
    let mut lost = 0;
    for (name, sides) in files.iter_mut().filter(|(_, sides)| sides.now.is_none()) {
        // The walk passes over what has come to be ignored: gone is only what the system says is not there.
        match workspace.root().join(name).symlink_metadata() {
            Ok(metadata) => sides.now = Stat::of(&metadata),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(_) => {
                sides.before = None;
                lost += 1;
            }
        }
    }
    if lost > 0 {
        notes.push(format!(
            "files that cannot be looked at any more are not shown: {lost}"
        ));
    }
    (compare(workspace, files), notes)
}

fn too_many() -> String {
    format!(
        "the workspace has more than {MAX_FILES} files: what commands changed in it is not shown"
    )
}

/// The files of both walks.
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
    let mut revealed = 0;
    for (name, stat) in walked.files {
        // With a `.gitignore` changed, files appear that may have been there all the time.
        if !files.contains_key(&name) && baseline.ignored(&name) {
            revealed += 1;
        } else {
            files.entry(name).or_default().now = Some(stat);
        }
    }
    if revealed > 0 {
        notes.push(format!(
            "files that were ignored when the turn began are not shown: {revealed}"
        ));
    }
    if walked.closed > 0 {
        notes.push(format!(
            "folders that cannot be read are not shown: {}",
            walked.closed
        ));
    }
    files
}

fn compare(workspace: &Workspace, files: BTreeMap<OsString, Sides>) -> Vec<Change> {
    let mut suspects = Vec::new();
    let mut there = Vec::new();
    for (name, Sides { before, now }) in files {
        match (&before, now) {
            (None, None) => {}
            (Some(before), Some(now)) if before.stat == now && !before.fresh => {}
            (_, None) => suspects.push((name, before, false)),
            (_, Some(now)) => {
                there.push((name.clone(), now));
                suspects.push((name, before, true));
            }
        }
    }
    // Twice the room, for files that may turn out to be what they were.
    let contents = contents(workspace, &there, 2 * MAX_BYTES);
    let mut held = there
        .into_iter()
        .zip(contents)
        .map(|((_, stat), content)| Held {
            stat,
            content,
            fresh: true,
        });
    let mut changes = Vec::new();
    for (path, before, is_there) in suspects {
        let after = if is_there { held.next() } else { None };
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

/// Whether nobody could tell the two apart, as far as git looks.
fn is_same(before: &Held, after: &Held) -> bool {
    before.stat.git_mode() == after.stat.git_mode() && before.same_content(after)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use selvedge_protocol::SandboxPolicy;

    use super::*;
    use crate::turn_diff::file::Content;

    /// Not every system has clocks coarse enough to come by this with real writes.
    #[test]
    fn a_time_is_believed_only_once_it_is_past() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(dir.path(), SandboxPolicy::WorkspaceWrite, &[]).unwrap();
        std::fs::write(dir.path().join("a.txt"), "new").unwrap();
        let stat = Stat::of(&dir.path().join("a.txt").symlink_metadata().unwrap()).unwrap();
        // Looked at when, the same size and time hide another content?
        for (later, seen) in [(0, true), (1, true), (3, false)] {
            let looked = SystemTime::now() + Duration::from_secs(later);
            let held = Held {
                fresh: stat.is_fresh(looked),
                stat: stat.clone(),
                content: Content::Known("old".into()),
            };
            let before = Before {
                remembered: [("a.txt".into(), Some(Arc::new(held)))].into(),
                ..Before::default()
            };
            assert_eq!(
                changes(&workspace, &before).0.len(),
                usize::from(seen),
                "{later} s later"
            );
        }
    }
}
