//! The changes of a turn are recorded with their contents, and can be reverted.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use selvedge_protocol::SandboxPolicy;
use selvedge_toolbox::{RevertError, Toolbox, Workspace, WorkspacePaths, revert_changes};

/// Begins a turn in a folder with some files, and takes the baseline.
fn begin(folder: &Path) -> Toolbox {
    fs::write(folder.join("a"), "1").unwrap();
    fs::write(folder.join("b"), [0, 159, 146, 150]).unwrap();
    symlink("a", folder.join("link")).unwrap();
    let workspace = Workspace::open(folder, SandboxPolicy::WorkspaceWrite, &[]).unwrap();
    let toolbox = Toolbox::new(workspace);
    toolbox.turn_diff.begin_turn();
    toolbox.turn_diff.before_command();
    toolbox
}

#[test]
fn every_kind_of_change_is_reverted() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| dir.path().join(name);
    let toolbox = begin(dir.path());
    fs::write(path("a"), "2").unwrap();
    fs::set_permissions(path("a"), Permissions::from_mode(0o755)).unwrap();
    fs::remove_file(path("b")).unwrap();
    fs::remove_file(path("link")).unwrap();
    symlink("elsewhere", path("link")).unwrap();
    fs::create_dir_all(path("new/deep")).unwrap();
    fs::write(path("new/deep/c"), "c").unwrap();
    let changes = toolbox.turn_diff.changed_files();
    assert_eq!((changes.files.len(), changes.unrecorded.len()), (4, 0));

    fs::write(path("new/deep/c"), "later").unwrap();
    let error = revert_changes(&changes, None).unwrap_err();
    assert_eq!(error.to_string(), "1 file changed since: new/deep/c");
    assert_eq!(fs::read(path("a")).unwrap(), b"2");
    fs::write(path("new/deep/c"), "c").unwrap();

    assert_eq!(revert_changes(&changes, None).unwrap().len(), 4);
    assert_eq!(fs::read(path("a")).unwrap(), b"1");
    let mode = path("a").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o111, 0);
    assert_eq!(fs::read(path("b")).unwrap(), [0, 159, 146, 150]);
    assert_eq!(fs::read_link(path("link")).unwrap(), Path::new("a"));
    assert!(!path("new").exists());
    assert!(revert_changes(&changes, None).unwrap().is_empty());
}

#[test]
fn a_protected_file_is_reverted_for_a_person_only() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let toolbox = begin(dir.path());
    fs::write(dir.path().join(".envrc"), "new").unwrap();
    let changes = toolbox.turn_diff.changed_files();
    let paths = WorkspacePaths::default();
    let error = revert_changes(&changes, Some(&paths)).unwrap_err();
    assert!(matches!(error, RevertError::Protected { .. }), "{error}");
    assert_eq!(fs::read(dir.path().join(".envrc")).unwrap(), b"new");
    assert_eq!(revert_changes(&changes, None).unwrap().len(), 1);
}

#[test]
fn a_turn_with_a_file_that_is_too_large_is_not_reverted() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let toolbox = begin(dir.path());
    fs::write(dir.path().join("a"), "2").unwrap();
    fs::write(dir.path().join("large"), vec![b'x'; 2_000_000]).unwrap();
    let changes = toolbox.turn_diff.changed_files();
    let error = revert_changes(&changes, None).unwrap_err();
    assert!(matches!(error, RevertError::NotRecorded(_)), "{error}");
    assert!(error.to_string().ends_with("large"), "{error}");
    assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"2");
}
