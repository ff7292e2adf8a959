//! The contents of changed files, as they are recorded to revert a turn.

use std::path::{Path, PathBuf};

use selvedge_protocol::{FileSnapshot, FileSnapshotKind, TurnFileChange, TurnFileChanges};

use super::changes::FileChange;
use super::file::TrackedFile;

/// Maximum bytes of all recorded contents of a turn.
const MAX_RECORDED_BYTES: usize = 16_000_000;

/// Returns the changes with their contents. A file is not recorded if one of its contents is
/// unknown, or the limit on all contents together is reached.
pub(super) fn record_contents(root: &Path, changes: Vec<FileChange>) -> TurnFileChanges {
    let mut bytes_left = MAX_RECORDED_BYTES;
    let mut recorded = TurnFileChanges {
        directory: root.to_owned(),
        ..TurnFileChanges::default()
    };
    for change in changes {
        let path = PathBuf::from(change.path);
        let before = change.before.as_deref().map(snapshot);
        let after = change.after.as_ref().map(snapshot);
        let known = |side: &Option<Option<FileSnapshot>>| !matches!(side, Some(None));
        let size = |side: &Option<Option<FileSnapshot>>| {
            let snapshot = side.as_ref().and_then(Option::as_ref);
            snapshot.map_or(0, |snapshot| snapshot.content.len())
        };
        let needed = size(&before) + size(&after);
        if !known(&before) || !known(&after) || needed > bytes_left {
            recorded.unrecorded.push(path);
            continue;
        }
        bytes_left -= needed;
        recorded.files.push(TurnFileChange {
            path,
            before: before.flatten(),
            after: after.flatten(),
        });
    }
    recorded
}

/// Returns a file with its content. `None` if the content is unknown.
fn snapshot(file: &TrackedFile) -> Option<FileSnapshot> {
    Some(FileSnapshot {
        kind: match file.stat.git_mode() {
            "120000" => FileSnapshotKind::Link,
            "100755" => FileSnapshotKind::Executable,
            _ => FileSnapshotKind::File,
        },
        content: file.content.bytes()?.to_vec(),
    })
}
