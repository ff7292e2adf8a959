//! The index: all documents of a workspace in memory, brought up to date before each query.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use selvedge_files::RefusalReason;

use crate::access::{DocumentAccess, ScanFilter};
use crate::globs::{DocumentGlobs, GlobError};
use crate::query::{DocumentQuery, FoundDocuments, PreparedQuery};
use crate::scan::{FileStamp, MAX_DOCUMENTS, scan};
use crate::text_index::TextIndex;
use crate::watch::{FolderChanges, FolderWatch};
use crate::{MAX_DOCUMENT_BYTES, WorkspaceDocument};

/// Maximum size of all documents, in bytes.
const MAX_TOTAL_BYTES: u64 = 128 << 20;
/// Maximum number of field names that documents share.
const MAX_SHARED_NAMES: usize = 10_000;
/// Maximum number of threads that read documents.
const MAX_READERS: usize = 8;
/// Number of files that one thread reads at least.
const MIN_FILES_PER_READER: usize = 64;

/// The documents of one workspace. Nothing is read before the first query.
///
/// On Linux, events of the kernel say which files changed: a query without changes reads no file.
/// On other systems, and on file systems without events, each query compares the stamps of all
/// files.
pub struct DocumentIndex {
    root: PathBuf,
    globs: DocumentGlobs,
    access: Box<dyn DocumentAccess>,
    state: Mutex<Option<IndexState>>,
}

/// A document in the index.
struct IndexEntry {
    document: Arc<WorkspaceDocument>,
    /// Stamp of the file that was read. `None` if the file may have changed without changing it.
    stamp: Option<FileStamp>,
    bytes: u64,
    /// Number in the text index, if there is one.
    slot: u32,
}

/// What the index knows.
struct IndexState {
    documents: BTreeMap<PathBuf, IndexEntry>,
    is_left_out: ScanFilter,
    watch: Option<FolderWatch>,
    /// Built by the first query with a text.
    text: Option<TextIndex>,
    /// Names of fields, which documents share: comparing them stays in the processor's cache.
    field_names: HashSet<Arc<str>>,
    total_bytes: u64,
    is_incomplete: bool,
}

impl DocumentIndex {
    /// Creates the index of a workspace, whose path is canonical.
    pub fn new(root: &Path, globs: DocumentGlobs, access: impl DocumentAccess + 'static) -> Self {
        Self {
            root: root.to_owned(),
            globs,
            access: Box::new(access),
            state: Mutex::new(None),
        }
    }

    /// Returns the globs that select documents.
    pub fn globs(&self) -> &DocumentGlobs {
        &self.globs
    }

    /// Returns the documents that match a query. Reads files that changed, so it may block.
    pub fn query(&self, query: &DocumentQuery) -> Result<FoundDocuments, GlobError> {
        let prepared = PreparedQuery::new(query)?;
        let mut state = self.lock();
        let state = self.refreshed(&mut state);
        let scores = query
            .text
            .as_deref()
            .map(|text| state.text_index().search(text));
        let mut result = FoundDocuments {
            is_incomplete: state.is_incomplete,
            ..FoundDocuments::default()
        };
        let mut found = Vec::new();
        for entry in state.documents.values() {
            let document = &entry.document;
            if let Some(problem) = &document.problem
                && prepared.selects_path(&document.path)
            {
                result
                    .problems
                    .push((document.path.clone(), problem.clone()));
            }
            let score = match &scores {
                Some(scores) => scores.get(entry.slot as usize).copied().flatten(),
                None => Some(0.0),
            };
            if let Some(score) = score
                && prepared.matches(document)
            {
                found.push((score, document));
            }
        }
        result.total = found.len();
        result.documents = prepared.order(&found);
        Ok(result)
    }

    /// Returns the paths of all documents, relative to the workspace.
    pub fn paths(&self) -> Vec<String> {
        let mut state = self.lock();
        let documents = &self.refreshed(&mut state).documents;
        let paths = documents.values().map(|entry| entry.document.path.clone());
        paths.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Option<IndexState>> {
        self.state.lock().unwrap_or_else(|poisoned| {
            // A refresh that panicked may have left the state half-changed.
            self.state.clear_poison();
            let mut state = poisoned.into_inner();
            *state = None;
            state
        })
    }

    /// Brings the state up to date.
    fn refreshed<'s>(&self, state: &'s mut Option<IndexState>) -> &'s mut IndexState {
        let changes = match state {
            Some(IndexState {
                watch: Some(watch), ..
            }) => watch.take_changes(),
            _ => FolderChanges::Unknown,
        };
        let current = state.get_or_insert_with(|| IndexState {
            documents: BTreeMap::new(),
            is_left_out: Box::new(|_, _| true),
            watch: None,
            text: None,
            field_names: HashSet::new(),
            total_bytes: 0,
            is_incomplete: false,
        });
        match changes {
            FolderChanges::Known(changes) if !self.changes_rules(&changes.files) => {
                let mut files = changes.files;
                files.retain(|path| self.is_selected(path, current));
                for folder in &changes.new_folders {
                    self.add_folder(current, folder, &mut files);
                }
                self.update_files(current, &files);
                // A new folder may have had no watch left.
                current.watch = current.watch.take().filter(FolderWatch::is_complete);
            }
            _ => self.rescan(current),
        }
        current
    }

    fn changes_rules(&self, files: &BTreeSet<PathBuf>) -> bool {
        let mut names = files.iter().filter_map(|path| path.file_name());
        names.any(|name| self.access.is_rule_file(name))
    }

    /// Whether a changed file is or was a document.
    fn is_selected(&self, path: &Path, state: &IndexState) -> bool {
        let relative = path.strip_prefix(&self.root);
        let is_match = relative.is_ok_and(|relative| self.globs.is_match(relative));
        state.documents.contains_key(path) || (is_match && !(state.is_left_out)(path, false))
    }

    /// Watches a new folder, and adds the documents in it to `files`.
    fn add_folder(&self, state: &mut IndexState, folder: &Path, files: &mut BTreeSet<PathBuf>) {
        let is_folder = folder
            .symlink_metadata()
            .is_ok_and(|metadata| metadata.is_dir());
        let relative = folder.strip_prefix(&self.root);
        let is_entered = relative.is_ok_and(|relative| self.globs.may_contain(relative));
        if is_folder && is_entered && !(state.is_left_out)(folder, true) {
            let watch = state.watch.as_mut();
            let found = scan(&self.root, folder, &self.globs, &state.is_left_out, watch);
            files.extend(found.files.into_iter().map(|(path, _)| path));
            state.is_incomplete |= found.is_incomplete;
        }
    }

    /// Looks at files that changed one by one.
    fn update_files(&self, state: &mut IndexState, files: &BTreeSet<PathBuf>) {
        for path in files {
            // The folders above are watched, so they are not links.
            let metadata = path.symlink_metadata();
            let metadata = metadata.ok().filter(std::fs::Metadata::is_file);
            match metadata.map(|metadata| FileStamp::of(&metadata)) {
                Some(stamp) => {
                    let known = state.documents.get(path);
                    let others = state.total_bytes - known.map_or(0, |entry| entry.bytes);
                    let is_full = known.is_none() && state.documents.len() >= MAX_DOCUMENTS;
                    if is_full || others + stamp.indexed_bytes() > MAX_TOTAL_BYTES {
                        state.is_incomplete = true;
                        state.remove(path);
                        continue;
                    }
                    let read = self.read(path, stamp);
                    state.insert(path, stamp, read);
                }
                None => state.remove(path),
            }
        }
    }

    /// Looks at the names and stamps of all files, and reads those that changed.
    fn rescan(&self, state: &mut IndexState) {
        state.is_left_out = self.access.scan_filter();
        // Everything that changes after a folder is watched is an event, also during the scan.
        let mut watch = FolderWatch::new();
        let is_left_out = &state.is_left_out;
        let mut scanned = scan(
            &self.root,
            &self.root,
            &self.globs,
            is_left_out,
            watch.as_mut(),
        );
        state.watch = watch.filter(FolderWatch::is_complete);
        let mut total_bytes = 0;
        let fitting = scanned.files.iter().take_while(|(_, stamp)| {
            total_bytes += stamp.indexed_bytes();
            total_bytes <= MAX_TOTAL_BYTES
        });
        let fitting = fitting.count();
        state.is_incomplete = scanned.is_incomplete || fitting < scanned.files.len();
        scanned.files.truncate(fitting);
        let known = |path: &PathBuf| {
            scanned
                .files
                .binary_search_by(|file| file.0.cmp(path))
                .is_ok()
        };
        let gone: Vec<PathBuf> = state
            .documents
            .keys()
            .filter(|path| !known(path))
            .cloned()
            .collect();
        gone.iter().for_each(|path| state.remove(path));
        let changed: Vec<(PathBuf, FileStamp)> = scanned
            .files
            .into_iter()
            .filter(|(path, stamp)| {
                let known = state.documents.get(path);
                known.is_none_or(|entry| entry.stamp != Some(*stamp))
            })
            .collect();
        for (path, stamp, read) in self.read_all(changed) {
            state.insert(&path, stamp, read);
        }
    }

    /// Reads files on several threads.
    fn read_all(
        &self,
        files: Vec<(PathBuf, FileStamp)>,
    ) -> Vec<(PathBuf, FileStamp, Option<WorkspaceDocument>)> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads
            .min(MAX_READERS)
            .min(files.len() / MIN_FILES_PER_READER);
        let read_part = |part: &[(PathBuf, FileStamp)]| {
            let read = part.iter().map(|(path, stamp)| {
                let document = self.read(path, *stamp);
                (path.clone(), *stamp, document)
            });
            read.collect::<Vec<_>>()
        };
        if threads < 2 {
            return read_part(&files);
        }
        let mut all = Vec::with_capacity(files.len());
        std::thread::scope(|scope| {
            let parts = files.chunks(files.len().div_ceil(threads));
            let readers: Vec<_> = parts.map(|part| scope.spawn(|| read_part(part))).collect();
            for reader in readers {
                match reader.join() {
                    Ok(part) => all.extend(part),
                    // The caller panics with the same payload, and reports it.
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
        all
    }

    /// Reads a document. Returns `None` if it must not be part of the index.
    fn read(&self, path: &Path, stamp: FileStamp) -> Option<WorkspaceDocument> {
        let relative = path.strip_prefix(&self.root).ok()?;
        let name = relative.to_string_lossy();
        if stamp.size > MAX_DOCUMENT_BYTES as u64 {
            let reason = RefusalReason::TooLarge {
                max_bytes: MAX_DOCUMENT_BYTES,
            };
            return Some(WorkspaceDocument::unreadable(&name, reason.to_string()));
        }
        match self.access.read_text(path, MAX_DOCUMENT_BYTES) {
            Ok(text) => Some(WorkspaceDocument::from_text(&name, &text?)),
            Err(refusal) => match refusal.reason {
                RefusalReason::LeavesProject
                | RefusalReason::NotRegular(_)
                | RefusalReason::Credentials
                | RefusalReason::ProcFile => None,
                reason => Some(WorkspaceDocument::unreadable(&name, reason.to_string())),
            },
        }
    }
}

impl IndexState {
    fn insert(&mut self, path: &Path, stamp: FileStamp, document: Option<WorkspaceDocument>) {
        self.remove(path);
        let Some(mut document) = document else {
            return;
        };
        for (name, _) in &mut document.fields {
            if let Some(shared) = self.field_names.get(name) {
                *name = shared.clone();
            } else if self.field_names.len() < MAX_SHARED_NAMES {
                self.field_names.insert(name.clone());
            }
        }
        let slot = self.text.as_mut().map_or(0, |text| text.add(&document));
        let bytes = stamp.indexed_bytes();
        let is_recent = stamp.is_recent(SystemTime::now());
        self.total_bytes += bytes;
        let entry = IndexEntry {
            document: Arc::new(document),
            // With a watch, a later change is an event.
            stamp: Some(stamp).filter(|_| self.watch.is_some() || !is_recent),
            bytes,
            slot,
        };
        self.documents.insert(path.to_owned(), entry);
        // The next query with a text builds it again.
        if self.text.as_ref().is_some_and(TextIndex::is_sparse) {
            self.text = None;
        }
    }

    fn remove(&mut self, path: &Path) {
        if let Some(entry) = self.documents.remove(path) {
            self.total_bytes -= entry.bytes;
            if let Some(text) = &mut self.text {
                text.remove(entry.slot);
            }
        }
    }

    /// Returns the text index, and builds it on first use.
    fn text_index(&mut self) -> &TextIndex {
        let documents = &mut self.documents;
        self.text.get_or_insert_with(|| {
            let mut text = TextIndex::default();
            for entry in documents.values_mut() {
                entry.slot = text.add(&entry.document);
            }
            text
        })
    }
}
