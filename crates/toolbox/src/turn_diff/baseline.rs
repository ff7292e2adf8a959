//! The baseline of a workspace: all files at one moment except those ignored by `.gitignore`, with
//! their contents up to a size limit.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use ignore::WalkState;

use super::file::{
    FileStat, MAX_FILE_BYTES, TrackedContent, TrackedFile, TrackedFileKind, UnknownContentReason,
};
use crate::Workspace;
use crate::ignore_rules::IgnoreRules;
use crate::walk::{WalkCollector, thread_count, walk_like_git};

/// Maximum number of files whose contents are stored.
const MAX_STORED_FILES: usize = 50_000;

/// Maximum bytes of all stored contents.
pub(super) const MAX_CONTENT_BYTES: u64 = 64_000_000;

/// Maximum number of files of a workspace for which a baseline is taken.
pub(super) const MAX_WORKSPACE_FILES: usize = 500_000;

/// How long listing the files of a workspace may take: the first command waits for it.
const MAX_LISTING_TIME: Duration = Duration::from_secs(10);

/// The files of a workspace at one moment.
#[derive(Debug)]
pub(super) struct Baseline {
    /// By path relative to the workspace.
    pub(super) files: BTreeMap<OsString, Arc<TrackedFile>>,
    /// The ignore rules at that moment, independent of later changes to `.gitignore` files.
    ignore_rules: Arc<IgnoreRules>,
    root: PathBuf,
}

/// The result of a walk over the workspace.
pub(super) struct WorkspaceListing {
    pub(super) files: Vec<(OsString, FileStat)>,
    /// Number of folders that could not be read.
    pub(super) unreadable_folders: usize,
    pub(super) ignore_rules: Arc<IgnoreRules>,
}

impl Baseline {
    /// Takes the baseline of a workspace; `None` if it has more than `MAX_WORKSPACE_FILES` files,
    /// or listing them takes too long.
    pub(super) fn take(workspace: &Workspace) -> Option<Self> {
        let taken = SystemTime::now();
        let listing = list_files(workspace)?;
        listing.ignore_rules.freeze();
        let files = listing.files;
        let contents = read_contents(workspace, &files, MAX_CONTENT_BYTES);
        let to_entry = |((name, stat), content): ((OsString, FileStat), TrackedContent)| {
            (
                name,
                Arc::new(TrackedFile {
                    recently_modified: stat.is_recently_modified(taken),
                    stat,
                    content,
                }),
            )
        };
        Some(Self {
            files: files.into_iter().zip(contents).map(to_entry).collect(),
            ignore_rules: listing.ignore_rules,
            root: workspace.root().to_owned(),
        })
    }

    /// Whether the ignore rules of the baseline exclude a path.
    pub(super) fn is_ignored(&self, name: &OsStr) -> bool {
        self.ignore_rules
            .is_ignored_below(&self.root, &self.root.join(name))
    }
}

/// Lists all files and links of the workspace; `None` if there are more than `MAX_WORKSPACE_FILES`,
/// or it takes longer than `MAX_LISTING_TIME`.
pub(super) fn list_files(workspace: &Workspace) -> Option<WorkspaceListing> {
    let files = Mutex::new(Vec::new());
    let (count, unreadable) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let deadline = Instant::now() + MAX_LISTING_TIME;
    let (walk, ignore_rules) = walk_like_git(workspace);
    walk.run(|| {
        let (root, count, unreadable) = (workspace.root(), &count, &unreadable);
        let mut local = WalkCollector::new(&files);
        Box::new(move |entry| {
            if Instant::now() > deadline {
                return WalkState::Quit;
            }
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    let reason = error.io_error().map(io::Error::kind);
                    unreadable.fetch_add(
                        usize::from(reason == Some(ErrorKind::PermissionDenied)),
                        Ordering::Relaxed,
                    );
                    return WalkState::Continue;
                }
            };
            let stat = entry
                .metadata()
                .ok()
                .and_then(|metadata| FileStat::from_metadata(&metadata));
            if let (Some(stat), Ok(name)) = (stat, entry.path().strip_prefix(root)) {
                local.items.push((name.as_os_str().to_owned(), stat));
                if count.fetch_add(1, Ordering::Relaxed) >= MAX_WORKSPACE_FILES {
                    return WalkState::Quit;
                }
            }
            WalkState::Continue
        })
    });
    let files = files.into_inner().unwrap_or_default();
    let is_complete = files.len() <= MAX_WORKSPACE_FILES && Instant::now() <= deadline;
    is_complete.then_some(WorkspaceListing {
        files,
        unreadable_folders: unreadable.into_inner(),
        ignore_rules,
    })
}

/// Reads the contents of files, in the order of `files`. The smallest files are read first, until
/// `max_bytes` is reached, so that as many files as possible are covered.
pub(super) fn read_contents(
    workspace: &Workspace,
    files: &[(OsString, FileStat)],
    max_bytes: u64,
) -> Vec<TrackedContent> {
    let content_size = |stat: &FileStat| {
        if stat.kind == TrackedFileKind::Link {
            0
        } else {
            stat.size
        }
    };
    let mut chosen: Vec<usize> = (0..files.len())
        .filter(|&index| content_size(&files[index].1) <= MAX_FILE_BYTES)
        .collect();
    chosen.sort_by_key(|&index| content_size(&files[index].1));
    let mut total = 0;
    let fits = |&index: &usize| {
        total += content_size(&files[index].1);
        total <= max_bytes
    };
    let chosen: Vec<usize> = chosen
        .into_iter()
        .take(MAX_STORED_FILES)
        .take_while(fits)
        .collect();
    let next = AtomicUsize::new(0);
    let read_chosen = || {
        let mut read = Vec::new();
        while let Some(&index) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (name, stat) = &files[index];
            read.push((
                index,
                TrackedContent::read(workspace, &workspace.root().join(name), stat),
            ));
        }
        read
    };
    let reason = |(_, stat): &(OsString, FileStat)| {
        if content_size(stat) > MAX_FILE_BYTES {
            UnknownContentReason::TooLarge
        } else {
            UnknownContentReason::TotalLimitReached
        }
    };
    let mut contents: Vec<TrackedContent> = files
        .iter()
        .map(|file| TrackedContent::Unknown(reason(file)))
        .collect();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..thread_count().min(chosen.len()))
            .map(|_| scope.spawn(read_chosen))
            .collect();
        for (index, content) in readers
            .into_iter()
            .flat_map(|reader| reader.join().unwrap_or_default())
        {
            contents[index] = content;
        }
    });
    contents
}
