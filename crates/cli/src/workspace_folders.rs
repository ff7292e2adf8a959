//! Which folder a workspace of the agent server is. An agent of another workspace may be able to
//! put another folder in its place, if the folder above lies where commands may write.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use selvedge_files::{create_private_folder, lock_file, read_user_text};

use crate::private_file::replace_file;
use crate::problem::Problem;

/// The file in Selvedge's own folder that has the identity of each workspace.
const RECORDS: &str = "workspace-folders.json";
/// Largest size of that file, in bytes.
const MAX_RECORD_BYTES: usize = 16 << 20;

/// Age of the file from which its content is kept. Two changes of a newer file may have the same
/// time.
const MIN_CACHED_AGE: Duration = Duration::from_secs(2);

/// The folder of each workspace, by its path.
type FolderRecords = BTreeMap<String, String>;

/// The records of a file, and the size and the time that it had.
struct CachedRecords {
    path: PathBuf,
    size: u64,
    modified: SystemTime,
    records: Arc<FolderRecords>,
}

/// The records that were read last: each request reads them.
static CACHED_RECORDS: Mutex<Option<CachedRecords>> = Mutex::new(None);

/// What to do with a workspace that is recorded already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordedBefore {
    /// A person names the folder, and means the one that it is now.
    Replace,
    /// The server sees a workspace that it may know.
    Keep,
}

/// Records which folder each of these workspaces is now.
pub(crate) fn record_workspaces<'a>(
    workspaces: impl Iterator<Item = &'a Path>,
    before: RecordedBefore,
) -> Result<()> {
    let Some(home) = selvedge_config::home() else {
        return Ok(());
    };
    create_private_folder(&home)?;
    let _lock = lock_file(&home.join("workspace-folders.lock"))?;
    let mut records = read_records(&home)?;
    let old = records.clone();
    for workspace in workspaces {
        let key = workspace.display().to_string();
        let is_kept = before == RecordedBefore::Keep && records.contains_key(&key);
        if let Some(identity) = folder_identity(workspace).filter(|_| !is_kept) {
            records.insert(key, identity);
        }
    }
    if records != old {
        replace_file(&home.join(RECORDS), &serde_json::to_string(&records)?)?;
    }
    Ok(())
}

/// Fails if another folder is in the place of a workspace, or the records cannot be read. A folder
/// that is not recorded is no workspace of a token.
pub(crate) fn check_recorded(workspace: &Path) -> Result<(), Problem> {
    let records = match selvedge_config::home() {
        Some(home) => cached_records(&home).map_err(|error| Problem::from_error(&error))?,
        None => Arc::default(),
    };
    let shown = workspace.display().to_string();
    let recorded = records.get(&shown);
    // Without identities, nothing is recorded.
    if recorded.is_none_or(|identity| folder_identity(workspace).as_ref() == Some(identity)) {
        return Ok(());
    }
    let problem = Problem::new(format!("another folder is in the place of {shown}"));
    Err(problem.hint(format!(
        "restore the folder; if you replaced it yourself, run `selvedge serve token create \
         --workspace {shown}`"
    )))
}

/// Like [`check_recorded`], for requests. The log has why a workspace cannot be used.
pub(crate) fn is_recorded_folder(workspace: &Path) -> bool {
    let checked = check_recorded(workspace);
    let logged = checked.inspect_err(|problem| tracing::warn!(%problem, "refused a workspace"));
    logged.is_ok()
}

/// Returns the records of the file, which is read only if it has changed.
fn cached_records(home: &Path) -> Result<Arc<FolderRecords>> {
    let path = home.join(RECORDS);
    let Ok(metadata) = path.metadata() else {
        return read_records(home).map(Arc::new);
    };
    let modified = metadata.modified()?;
    let is_same = |cached: &&CachedRecords| {
        cached.path == path && cached.modified == modified && cached.size == metadata.len()
    };
    let lock = || {
        CACHED_RECORDS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    };
    if let Some(cached) = lock().as_ref().filter(is_same) {
        return Ok(cached.records.clone());
    }
    let records = Arc::new(read_records(home)?);
    if modified.elapsed().is_ok_and(|age| age >= MIN_CACHED_AGE) {
        *lock() = Some(CachedRecords {
            path,
            size: metadata.len(),
            modified,
            records: records.clone(),
        });
    }
    Ok(records)
}

fn read_records(home: &Path) -> Result<FolderRecords> {
    let path = home.join(RECORDS);
    match read_user_text(&path, MAX_RECORD_BYTES)? {
        Some(text) => {
            serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
        }
        None => Ok(BTreeMap::new()),
    }
}

/// Returns what tells a folder from a later one at the same path: its inode and when it was
/// created, or its device where the file system does not say. The device of a file system may
/// change when the machine starts, the number of a removed folder is used again.
#[cfg(unix)]
fn folder_identity(folder: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let metadata = folder.symlink_metadata().ok()?;
    let created = metadata.created().ok();
    let created = created.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    Some(match created {
        Some(created) => format!("inode {} created {}", metadata.ino(), created.as_nanos()),
        None => format!("inode {} device {}", metadata.ino(), metadata.dev()),
    })
}

#[cfg(not(unix))]
fn folder_identity(_: &Path) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_records_are_read_again_only_after_a_change_of_the_file() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(RECORDS);
        let write = |identity: &str, age: u64| {
            std::fs::write(&path, format!("{{\"/w\": \"{identity}\"}}")).unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - age);
            file.set_modified(time).unwrap();
        };
        let read = || cached_records(home.path()).unwrap()["/w"].clone();
        write("one", 100);
        assert_eq!(read(), "one");
        // The same size and time: the file was not read.
        write("two", 100);
        assert_eq!(read(), "one");
        write("two", 50);
        assert_eq!(read(), "two");
        // Two changes of a new file may have the same time.
        let now = SystemTime::now();
        for identity in ["six", "ten"] {
            write(identity, 0);
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(now).unwrap();
            assert_eq!(read(), identity);
        }
        std::fs::remove_file(&path).unwrap();
        assert!(cached_records(home.path()).unwrap().is_empty());
    }
}
