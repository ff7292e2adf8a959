//! Applies operations in memory: all paths are checked and all contents computed before anything is
//! written.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::fs::Dir;
use selvedge_text::group_digits;
use selvedge_tools::ToolError;

use super::{
    FileTransfer, Hunk, HunkLineRole, OverwritePolicy, Patch, PatchAction, PatchOperation,
    PatchTarget, hunk, text,
};
use crate::Workspace;
use crate::commit::{FileWrite, commit};
use crate::target_file::{FileMode, LinkMode, TargetFile};

/// The planned contents of the files that a patch changes.
pub(crate) struct PatchDraft<'a> {
    workspace: &'a Workspace,
    /// Folder that paths of the patch are relative to; itself relative to the workspace.
    base: PathBuf,
    files: Vec<DraftFile>,
    /// Index into `files` by resolved path.
    by_path: HashMap<PathBuf, usize>,
    /// Open folders, shared between files to limit the number of file descriptors.
    folders: HashMap<PathBuf, Arc<Dir>>,
}

/// A file that an operation names.
struct DraftFile {
    target_file: TargetFile,
    on_disk: Option<DraftContent>,
    /// Content before the current step of operations.
    before_step: Option<DraftContent>,
    /// Planned content; `None` if the file is deleted or does not exist.
    planned: Option<DraftContent>,
    /// Whether the current step set the content.
    written_in_step: bool,
    /// Whether an operation changed the file.
    touched: bool,
    /// Whether the file was moved to another path.
    moved_away: bool,
    /// The path that the file was moved from.
    moved_from: Option<String>,
    added: usize,
    removed: usize,
}

/// The bytes and mode of a file.
#[derive(Clone, PartialEq)]
struct DraftContent {
    bytes: Arc<[u8]>,
    mode: FileMode,
}

/// The total change of one file by a patch.
pub(crate) struct NetChange<'a> {
    pub(crate) path: &'a str,
    /// The earlier path, if the file was moved.
    pub(crate) from: Option<&'a str>,
    /// Content on disk; `None` for a new file.
    pub(crate) old: Option<&'a [u8]>,
    /// Planned content; `None` for a deleted file.
    pub(crate) new: Option<&'a [u8]>,
    /// The new executable bit, if it changes.
    pub(crate) executable: Option<bool>,
    pub(crate) added: usize,
    pub(crate) removed: usize,
}

impl<'a> PatchDraft<'a> {
    /// Creates an empty draft for paths relative to `base`.
    pub(crate) fn new(workspace: &'a Workspace, base: &Path) -> Self {
        Self {
            workspace,
            base: base.to_owned(),
            files: Vec::new(),
            by_path: HashMap::new(),
            folders: HashMap::new(),
        }
    }

    /// Applies a patch to the draft.
    pub(crate) fn with_patch(mut self, patch: &Patch) -> Result<Self, ToolError> {
        if let Some(folder) = &patch.folder {
            self.base.push(folder);
        }
        for step in patch.operations.chunk_by(|a, b| a.step == b.step) {
            for file in &mut self.files {
                (file.before_step, file.written_in_step) = (file.planned.clone(), false);
            }
            // Sources of moves are removed first, because a diff may swap two files.
            for operation in step {
                if let PatchAction::Update {
                    target:
                        Some(PatchTarget {
                            transfer: FileTransfer::Move,
                            ..
                        }),
                    ..
                } = &operation.action
                {
                    self.remove_move_source(operation)?;
                }
            }
            for operation in step {
                self.apply_operation(operation)?;
            }
        }
        Ok(self)
    }

    /// Replaces the content of a file. Fails if the file does not have exactly the `original`
    /// content.
    pub(crate) fn with_replacement(
        mut self,
        path: &str,
        original: &str,
        updated: &str,
    ) -> Result<Self, ToolError> {
        let file = self.file_index(Path::new(path), LinkMode::Follow)?;
        let current = self.files[file]
            .planned
            .as_ref()
            .map_or(&[][..], |content| &content.bytes);
        if current != original.as_bytes() {
            return Err(content_mismatch_error(
                &self.files[file].target_file.display_path,
                current,
                original.as_bytes(),
            ));
        }
        let (old, new) = (
            text::split_lines(current),
            text::split_lines(updated.as_bytes()),
        );
        let count_equal =
            |pairs: &mut dyn Iterator<Item = (&text::TextLine<'_>, &text::TextLine<'_>)>| {
                pairs
                    .take_while(|(a, b)| a.text == b.text && a.ending == b.ending)
                    .count()
            };
        let head = count_equal(&mut old.iter().zip(&new));
        let tail = count_equal(&mut old[head..].iter().rev().zip(new[head..].iter().rev()));
        let counts = (new.len() - head - tail, old.len() - head - tail);
        let mode = self.files[file]
            .planned
            .as_ref()
            .map_or(FileMode::New { executable: false }, |content| content.mode);
        self.set_content(file, updated.as_bytes().into(), mode, counts)?;
        Ok(self)
    }

    /// Writes all changed files to disk, or none of them.
    pub(crate) fn write_to_disk(&self) -> Result<(), ToolError> {
        let changed = self
            .files
            .iter()
            .filter(|file| file.touched && file.planned != file.on_disk);
        let writes: Vec<FileWrite<'_>> = changed
            .map(|file| FileWrite {
                target_file: &file.target_file,
                content: file
                    .planned
                    .as_ref()
                    .map(|content| (&content.bytes[..], content.mode)),
            })
            .collect();
        commit(&writes)
    }

    /// Returns the total change of each file, in the order of the patch.
    pub(crate) fn net_changes(&self) -> impl Iterator<Item = NetChange<'_>> {
        let by_name = |name: &str| {
            self.files
                .iter()
                .find(|file| file.target_file.display_path == name)
        };
        self.files.iter().filter_map(move |file| {
            let has_no_net_change =
                file.planned.is_none() && (file.on_disk.is_none() || file.moved_away);
            if !file.touched || has_no_net_change {
                return None;
            }
            let from = file.moved_from.as_deref();
            let origin = from.and_then(by_name).unwrap_or(file);
            let (before, after) = (origin.on_disk.as_ref(), file.planned.as_ref());
            let old = before.map(|content| &content.bytes[..]);
            let new = after.map(|content| &content.bytes[..]);
            let was_executable = before.is_some_and(|content| content.mode.is_executable());
            let executable = after
                .map(|content| content.mode.is_executable())
                .filter(|executable| *executable != was_executable);
            let lines = |bytes: &[u8]| text::split_lines(bytes).len();
            let (added, removed) = match (old, new) {
                (None, Some(new)) => (lines(new), 0),
                (Some(old), None) => (0, lines(old)),
                _ => (file.added, file.removed),
            };
            Some(NetChange {
                path: &file.target_file.display_path,
                from,
                old,
                new,
                executable,
                added,
                removed,
            })
        })
    }

    fn apply_operation(&mut self, operation: &PatchOperation) -> Result<(), ToolError> {
        match &operation.action {
            PatchAction::Add {
                content,
                executable,
                overwrite: over,
            } => {
                let file = self.file_index(operation.path(), LinkMode::Follow)?;
                self.check_overwrite(file, *over)?;
                let old = self.files[file].planned.as_ref();
                let mode = old.map_or(FileMode::New { executable: false }, |old| old.mode);
                let mode = if *executable {
                    mode.with_executable(true)
                } else {
                    mode
                };
                let counts = (
                    text::split_lines(content).len(),
                    old.map_or(0, |old| text::split_lines(&old.bytes).len()),
                );
                self.set_content(file, content.as_slice().into(), mode, counts)
            }
            PatchAction::Delete { hunks } => {
                let path = self.find_existing(operation)?;
                if !hunks.is_empty() {
                    let file = self.file_index(&path, LinkMode::Follow)?;
                    let remaining = self.apply_hunks(file, hunks, DraftContentVersion::Latest)?;
                    if !remaining.is_empty() {
                        let lines = text::split_lines(&remaining).len();
                        let shown = &self.files[file].target_file.display_path;
                        return Err(ToolError::new(format!(
                            "{shown} cannot be deleted: {lines} of its lines are not in the patch"
                        )));
                    }
                }
                let file = self.file_index(&path, LinkMode::NoFollow)?;
                let file = &mut self.files[file];
                (file.planned, file.touched, file.written_in_step) = (None, true, true);
                Ok(())
            }
            PatchAction::Update {
                hunks,
                target: to,
                executable,
            } => self.apply_update(operation, hunks, to.as_ref(), *executable),
        }
    }

    fn apply_update(
        &mut self,
        operation: &PatchOperation,
        hunks: &[Hunk],
        to: Option<&PatchTarget>,
        executable: Option<bool>,
    ) -> Result<(), ToolError> {
        let existing = self.find_existing(operation);
        if existing.is_err() && to.is_none() && matches!(hunks, [hunk] if hunk.creates_file()) {
            let file = self.file_index(operation.path(), LinkMode::Follow)?;
            let mode = FileMode::New {
                executable: executable == Some(true),
            };
            return self.set_content(
                file,
                hunks[0].added_text().into(),
                mode,
                (hunks[0].lines.len(), 0),
            );
        }
        let source = self.file_index(&existing?, LinkMode::Follow)?;
        let read = if to.is_some() {
            DraftContentVersion::BeforeBatch
        } else {
            DraftContentVersion::Latest
        };
        let bytes = self.apply_hunks(source, hunks, read)?;
        let mode = self.files[source]
            .content(read)
            .map_or(FileMode::New { executable: false }, |content| content.mode);
        let mode = executable.map_or(mode, |executable| mode.with_executable(executable));
        let sum = |role| hunks.iter().map(|hunk| hunk.count_lines(role)).sum();
        let counts = (sum(HunkLineRole::Add), sum(HunkLineRole::Remove));
        let Some(to) = to else {
            return self.set_content(source, bytes.into(), mode, counts);
        };
        let target = self.file_index(&to.path, LinkMode::Follow)?;
        self.check_overwrite(target, to.overwrite)?;
        if to.transfer == FileTransfer::Move {
            // If an earlier step moved the file here, its origin is the path of that move.
            let origin = &self.files[source];
            let earlier = if origin.written_in_step {
                (0, 0)
            } else {
                (origin.added, origin.removed)
            };
            let from = origin
                .moved_from
                .clone()
                .filter(|_| !origin.written_in_step)
                .unwrap_or_else(|| origin.target_file.display_path.clone());
            let target = &mut self.files[target];
            target.moved_from = Some(from).filter(|from| *from != target.target_file.display_path);
            (target.added, target.removed) = earlier;
        }
        self.set_content(target, bytes.into(), mode, counts)
    }

    /// Removes the source of a move from its old path.
    fn remove_move_source(&mut self, operation: &PatchOperation) -> Result<(), ToolError> {
        let path = self.find_existing(operation)?;
        let file = self.file_index(&path, LinkMode::NoFollow)?;
        let file = &mut self.files[file];
        (file.planned, file.touched, file.moved_away) = (None, true, true);
        Ok(())
    }

    /// Returns the content of a file after applying hunks to it.
    fn apply_hunks(
        &self,
        file: usize,
        hunks: &[Hunk],
        read: DraftContentVersion,
    ) -> Result<Vec<u8>, ToolError> {
        let file = &self.files[file];
        let content = file.content(read).map_or(&[][..], |content| &content.bytes);
        hunk::apply(content, hunks).map_err(|report| {
            ToolError::new(format!("{}: {report}", file.target_file.display_path))
                .suggest("read the file again and rewrite the hunk to match it")
        })
    }

    /// Sets the planned content of a file. Fails if the file is not writable.
    fn set_content(
        &mut self,
        file: usize,
        bytes: Arc<[u8]>,
        mode: FileMode,
        counts: (usize, usize),
    ) -> Result<(), ToolError> {
        let file = &mut self.files[file];
        file.target_file.check_writable()?;
        file.planned = Some(DraftContent { bytes, mode });
        (file.touched, file.written_in_step, file.moved_away) = (true, true, false);
        file.added += counts.0;
        file.removed += counts.1;
        Ok(())
    }

    /// Fails if the file exists and may not be overwritten.
    fn check_overwrite(&self, file: usize, over: OverwritePolicy) -> Result<(), ToolError> {
        let file = &self.files[file];
        match &file.planned {
            Some(content) if over == OverwritePolicy::DenyNonEmpty && !content.bytes.is_empty() => {
                Err(ToolError::new(format!(
                    "{} already exists",
                    file.target_file.display_path
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns the first path of an operation that exists.
    fn find_existing(&mut self, operation: &PatchOperation) -> Result<PathBuf, ToolError> {
        for (index, path) in operation.paths.iter().enumerate() {
            match self.file_index(path, LinkMode::NoFollow) {
                Ok(file)
                    if self.files[file]
                        .content(DraftContentVersion::Latest)
                        .is_some() =>
                {
                    return Ok(path.clone());
                }
                Ok(_) => {}
                // The other paths are guesses, so their errors are ignored.
                Err(error) if index == 0 => return Err(error),
                Err(_) => {}
            }
        }
        let shown = self
            .workspace
            .display_path(&self.absolute(operation.path()));
        Err(ToolError::new(format!("{shown} does not exist"))
            .suggest("find the file with fileSearch"))
    }

    fn absolute(&self, path: &Path) -> PathBuf {
        self.workspace.absolute(self.base.join(path), None)
    }

    /// Returns the index of a file in the draft. Reads the file from disk the first time.
    fn file_index(&mut self, path: &Path, links: LinkMode) -> Result<usize, ToolError> {
        let mut target_file = self.workspace.target_file(&self.absolute(path), links)?;
        let real = target_file.real_path();
        if let Some(file) = self.by_path.get(&real) {
            return Ok(*file);
        }
        target_file.dir = self
            .folders
            .entry(target_file.dir_path.clone())
            .or_insert(target_file.dir)
            .clone();
        let on_disk = match target_file.is_link() {
            true => Some((Vec::new(), FileMode::New { executable: false })),
            false => target_file.read()?,
        };
        let on_disk = on_disk.map(|(bytes, mode)| DraftContent {
            bytes: bytes.into(),
            mode,
        });
        self.files.push(DraftFile {
            target_file,
            before_step: on_disk.clone(),
            planned: on_disk.clone(),
            on_disk,
            written_in_step: false,
            touched: false,
            moved_away: false,
            moved_from: None,
            added: 0,
            removed: 0,
        });
        self.by_path.insert(real, self.files.len() - 1);
        Ok(self.files.len() - 1)
    }
}

/// The content of a file that an operation starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DraftContentVersion {
    /// For copies and moves, which do not see other changes of their step.
    BeforeBatch,
    /// For updates and deletions, which see the earlier changes of their step.
    Latest,
}

impl DraftFile {
    fn content(&self, read: DraftContentVersion) -> Option<&DraftContent> {
        match read {
            DraftContentVersion::Latest if self.written_in_step => self.planned.as_ref(),
            _ => self.before_step.as_ref(),
        }
    }
}

/// Returns the error for a file that differs from `originalContent`, with the first different line.
fn content_mismatch_error(shown: &str, current: &[u8], original: &[u8]) -> ToolError {
    let at = current
        .iter()
        .zip(original)
        .take_while(|(a, b)| a == b)
        .count();
    let line = current[..at].iter().filter(|byte| **byte == b'\n').count();
    let shown_line = |bytes: &[u8]| match text::split_lines(bytes).get(line) {
        Some(line) => {
            let bytes = [line.text, line.ending.bytes()].concat();
            format!(
                "{:?}",
                selvedge_text::truncate_chars(&String::from_utf8_lossy(&bytes), 120)
            )
        }
        None => "nothing".to_owned(),
    };
    let part = memchr::memmem::find(current, original).filter(|_| !original.is_empty());
    let part = part.map(|at| {
        let newlines = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
        let first = newlines(&current[..at]) + 1;
        let last = first + newlines(original.strip_suffix(b"\n").unwrap_or(original));
        let numbers = [first, last, text::split_lines(current).len()];
        let [first, last, total] = numbers.map(group_digits);
        format!("; it is lines {first} to {last} of {total}")
    });
    ToolError::new(format!(
        "{shown} differs from `originalContent` at line {}: the file has {}, \
         `originalContent` has {}; `originalContent` must be the whole file{}",
        line + 1,
        shown_line(current),
        shown_line(original),
        part.unwrap_or_default()
    ))
    .suggest(format!(
        "to replace a part of the file, use tools.editFile({{ path: {shown:?}, old: …, new: … }})"
    ))
    .suggest("or read the whole file again")
}
