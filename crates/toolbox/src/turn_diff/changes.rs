//! Finds the files that changed since the start of a turn. Files with equal, reliable metadata
//! count as unchanged; others are compared by content, so a change that was reverted does not show.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::sync::Arc;

use super::baseline::{
    Baseline, MAX_CONTENT_BYTES, MAX_WORKSPACE_FILES, WorkspaceListing, list_files, read_contents,
};
use super::file::{FileStat, TrackedFile};
use super::{BaselineState, DiffStartState};
use crate::Workspace;

/// One changed file.
#[derive(Debug)]
pub(super) struct FileChange {
    pub(super) path: OsString,
    pub(super) rename_origin: Option<RenameOrigin>,
    /// `None` if the file is new.
    pub(super) before: Option<Arc<TrackedFile>>,
    /// `None` if the file was deleted.
    pub(super) after: Option<TrackedFile>,
}

/// The origin of a renamed file.
#[derive(Debug)]
pub(super) struct RenameOrigin {
    pub(super) from: OsString,
    /// Percentage of the content that is equal.
    pub(super) similarity: u8,
}

/// The file at a path at the start of the turn and now.
#[derive(Default)]
struct FileStates {
    before: Option<Arc<TrackedFile>>,
    now: Option<FileStat>,
}

/// Returns the changes since `before` in path order, and notes about changes that could not be
/// found.
pub(super) fn find_changes(
    workspace: &Workspace,
    before: &DiffStartState,
) -> (Vec<FileChange>, Vec<String>) {
    let mut notes = Vec::new();
    let mut files: BTreeMap<OsString, FileStates> = BTreeMap::new();
    match &before.baseline {
        BaselineState::NotTaken => {}
        BaselineState::TooManyFiles => notes.push(too_many_files_note()),
        BaselineState::Taken(baseline) => match list_files(workspace) {
            // Without a second walk, only files that tools reported can be compared.
            None => notes.push(too_many_files_note()),
            Some(walked) => files = combine_by_path(baseline, walked, &mut notes),
        },
    }
    for (name, held) in &before.recorded_files {
        files.entry(name.clone()).or_default().before = held.clone();
    }
    let mut unreadable = 0;
    for (name, sides) in files.iter_mut().filter(|(_, sides)| sides.now.is_none()) {
        // The walk skips newly ignored files, so a file counts as deleted only if the file system
        // says so.
        match workspace.root().join(name).symlink_metadata() {
            Ok(metadata) => sides.now = FileStat::from_metadata(&metadata),
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
    (compare_contents(workspace, files), notes)
}

fn too_many_files_note() -> String {
    format!(
        "changes by commands are not shown: the workspace has more than {MAX_WORKSPACE_FILES} files, \
         or listing them takes too long"
    )
}

/// Combines the files of the baseline and of the current walk by path.
fn combine_by_path(
    baseline: &Baseline,
    walked: WorkspaceListing,
    notes: &mut Vec<String>,
) -> BTreeMap<OsString, FileStates> {
    let mut files: BTreeMap<OsString, FileStates> = BTreeMap::new();
    for (name, held) in &baseline.files {
        files.insert(
            name.clone(),
            FileStates {
                before: Some(held.clone()),
                now: None,
            },
        );
    }
    let mut formerly_ignored = 0;
    for (name, stat) in walked.files {
        // After a change to `.gitignore`, the walk finds files that may have existed before.
        if !files.contains_key(&name) && baseline.is_ignored(&name) {
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
    for refusal in walked.ignore_rules.take_refused() {
        notes.push(format!("ignore rules not used: {refusal}"));
    }
    if walked.unreadable_folders > 0 {
        notes.push(format!(
            "folders not shown because they cannot be read: {}",
            walked.unreadable_folders
        ));
    }
    files
}

/// Compares the contents of files whose metadata differs or is unreliable; returns the changed
/// files.
fn compare_contents(
    workspace: &Workspace,
    files: BTreeMap<OsString, FileStates>,
) -> Vec<FileChange> {
    let mut candidates = Vec::new();
    let mut existing = Vec::new();
    for (name, FileStates { before, now }) in files {
        match (&before, now) {
            (None, None) => {}
            (Some(before), Some(now)) if before.stat == now && !before.recently_modified => {}
            (_, None) => candidates.push((name, before, false)),
            (_, Some(now)) => {
                existing.push((name.clone(), now));
                candidates.push((name, before, true));
            }
        }
    }
    // Twice the limit, because some of these files will turn out to be unchanged.
    let contents = read_contents(workspace, &existing, 2 * MAX_CONTENT_BYTES);
    let mut current = existing
        .into_iter()
        .zip(contents)
        .map(|((_, stat), content)| TrackedFile {
            stat,
            content,
            recently_modified: true,
        });
    let mut changes = Vec::new();
    for (path, before, exists) in candidates {
        let after = if exists { current.next() } else { None };
        if !before
            .as_ref()
            .zip(after.as_ref())
            .is_some_and(|(before, after)| is_unchanged(before, after))
        {
            changes.push(FileChange {
                path,
                rename_origin: None,
                before,
                after,
            });
        }
    }
    changes
}

/// Whether git would see no difference: same mode and content.
fn is_unchanged(before: &TrackedFile, after: &TrackedFile) -> bool {
    before.stat.git_mode() == after.stat.git_mode() && before.has_same_content(after)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use selvedge_protocol::SandboxPolicy;

    use super::*;
    use crate::turn_diff::file::TrackedContent;

    /// Tests with made-up times, because few file systems have clocks coarse enough to test it with
    /// real writes.
    #[test]
    fn recent_modification_times_are_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(dir.path(), SandboxPolicy::WorkspaceWrite, &[]).unwrap();
        std::fs::write(dir.path().join("a.txt"), "new").unwrap();
        let stat =
            FileStat::from_metadata(&dir.path().join("a.txt").symlink_metadata().unwrap()).unwrap();
        // A change of content with equal size and time is found unless the file was read so much
        // later that its time is trusted.
        for (later, is_found) in [(0, true), (1, true), (3, false)] {
            let read_at = SystemTime::now() + Duration::from_secs(later);
            let held = TrackedFile {
                recently_modified: stat.is_recently_modified(read_at),
                stat: stat.clone(),
                content: TrackedContent::Known("old".into()),
            };
            let before = DiffStartState {
                recorded_files: [("a.txt".into(), Some(Arc::new(held)))].into(),
                ..DiffStartState::default()
            };
            assert_eq!(
                find_changes(&workspace, &before).0.len(),
                usize::from(is_found),
                "{later} s later"
            );
        }
    }
}
