//! The workspace at one moment: every file that `.gitignore` does not name, with as many contents as there is
//! room for.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use ignore::{IncrementalIgnore, WalkState};

use super::file::{Content, Held, Kind, MAX_FILE, Stat, Why};
use crate::Workspace;
use crate::walk::{Gather, threads, walk_like_git};

/// Files whose contents are kept.
const MAX_KEPT: usize = 50_000;

/// Bytes of them in all.
pub(super) const MAX_BYTES: u64 = 64_000_000;

/// Files in a workspace that is looked at as a whole.
pub(super) const MAX_FILES: usize = 500_000;

/// Where the rules of a folder are.
const RULES: &str = ".gitignore";

/// What was there.
#[derive(Debug)]
pub(super) struct Baseline {
    pub(super) files: BTreeMap<OsString, Arc<Held>>,
    /// What was ignored, whatever has become of the `.gitignore` files since.
    rules: Mutex<IncrementalIgnore>,
}

/// The files a walk came by.
pub(super) struct Walked {
    pub(super) files: Vec<(OsString, Stat)>,
    /// Folders that could not be entered.
    pub(super) closed: usize,
}

impl Baseline {
    /// The workspace as it is now; `None` if it has too many files.
    pub(super) fn take(workspace: &Workspace) -> Option<Self> {
        let taken = SystemTime::now();
        let files = walk(workspace)?.files;
        let mut rules = walk_like_git(workspace).build_matchers().pop()?;
        // It reads a `.gitignore` when it is first asked about something beside it.
        rules.matched(RULES, false);
        for (name, _) in files
            .iter()
            .filter(|(name, _)| Path::new(name).ends_with(RULES))
        {
            rules.matched(name, false);
        }
        let contents = contents(workspace, &files, MAX_BYTES);
        let held = |((name, stat), content): ((OsString, Stat), Content)| {
            (
                name,
                Arc::new(Held {
                    fresh: stat.is_fresh(taken),
                    stat,
                    content,
                }),
            )
        };
        Some(Self {
            files: files.into_iter().zip(contents).map(held).collect(),
            rules: Mutex::new(rules),
        })
    }

    /// Whether a file of this path would have been passed over.
    pub(super) fn ignored(&self, name: &OsStr) -> bool {
        self.rules
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .matched(name, false)
            .is_ignore()
    }
}

/// Every file and link in the workspace; `None` if there are too many.
pub(super) fn walk(workspace: &Workspace) -> Option<Walked> {
    let files = Mutex::new(Vec::new());
    let (count, closed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    walk_like_git(workspace).build_parallel().run(|| {
        let (root, count, closed) = (workspace.root(), &count, &closed);
        let mut mine = Gather::into(&files);
        Box::new(move |entry| {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    let reason = error.io_error().map(io::Error::kind);
                    closed.fetch_add(
                        usize::from(reason == Some(ErrorKind::PermissionDenied)),
                        Ordering::Relaxed,
                    );
                    return WalkState::Continue;
                }
            };
            let stat = entry
                .metadata()
                .ok()
                .and_then(|metadata| Stat::of(&metadata));
            if let (Some(stat), Ok(name)) = (stat, entry.path().strip_prefix(root)) {
                mine.found.push((name.as_os_str().to_owned(), stat));
                if count.fetch_add(1, Ordering::Relaxed) >= MAX_FILES {
                    return WalkState::Quit;
                }
            }
            WalkState::Continue
        })
    });
    let files = files.into_inner().unwrap_or_default();
    (files.len() <= MAX_FILES).then_some(Walked {
        files,
        closed: closed.into_inner(),
    })
}

/// What the files hold, in the same order; the smallest first until `room` is full, so that most have a place.
pub(super) fn contents(
    workspace: &Workspace,
    files: &[(OsString, Stat)],
    room: u64,
) -> Vec<Content> {
    let weight = |stat: &Stat| {
        if stat.kind == Kind::Link {
            0
        } else {
            stat.size
        }
    };
    let mut chosen: Vec<usize> = (0..files.len())
        .filter(|&index| weight(&files[index].1) <= MAX_FILE)
        .collect();
    chosen.sort_by_key(|&index| weight(&files[index].1));
    let mut filled = 0;
    let fits = |&index: &usize| {
        filled += weight(&files[index].1);
        filled <= room
    };
    let chosen: Vec<usize> = chosen.into_iter().take(MAX_KEPT).take_while(fits).collect();
    let next = AtomicUsize::new(0);
    let read = || {
        let mut mine = Vec::new();
        while let Some(&index) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (name, stat) = &files[index];
            mine.push((
                index,
                Content::read(workspace, &workspace.root().join(name), stat),
            ));
        }
        mine
    };
    let why = |(_, stat): &(OsString, Stat)| {
        if weight(stat) > MAX_FILE {
            Why::TooLarge
        } else {
            Why::NoRoom
        }
    };
    let mut contents: Vec<Content> = files
        .iter()
        .map(|file| Content::Unknown(why(file)))
        .collect();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads().min(chosen.len()))
            .map(|_| scope.spawn(read))
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
