//! Applies operations in memory: all paths are checked and all contents computed before anything is
//! written.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::fs::Dir;
use selvedge_tools::ToolError;

use super::{Action, Hunk, Operation, Over, Patch, Role, Source, Target, hunk, text};
use crate::Workspace;
use crate::commit::{Write, commit};
use crate::slot::{Links, Mode, Slot};

/// The planned contents of the files that a patch changes.
pub(crate) struct Draft<'a> {
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
    slot: Slot,
    on_disk: Option<Content>,
    /// Content before the current batch of operations.
    before: Option<Content>,
    /// Planned content; `None` if the file is deleted or does not exist.
    now: Option<Content>,
    /// Whether the current batch set the content.
    written: bool,
    /// Whether an operation changed the file.
    touched: bool,
    /// Whether the file was moved to another path.
    moved: bool,
    /// The path that the file was moved from.
    from: Option<String>,
    added: usize,
    removed: usize,
}

/// The bytes and mode of a file.
#[derive(Clone, PartialEq)]
struct Content {
    bytes: Arc<[u8]>,
    mode: Mode,
}

/// The total change of one file by a patch.
pub(crate) struct Net<'a> {
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

impl<'a> Draft<'a> {
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
    pub(crate) fn patch(mut self, patch: &Patch) -> Result<Self, ToolError> {
        if let Some(folder) = &patch.folder {
            self.base.push(folder);
        }
        for batch in patch.operations.chunk_by(|a, b| a.batch == b.batch) {
            for file in &mut self.files {
                (file.before, file.written) = (file.now.clone(), false);
            }
            // Sources of moves are removed first, because a diff may swap two files.
            for operation in batch {
                if let Action::Update {
                    to:
                        Some(Target {
                            source: Source::Goes,
                            ..
                        }),
                    ..
                } = &operation.action
                {
                    self.leave(operation)?;
                }
            }
            for operation in batch {
                self.operation(operation)?;
            }
        }
        Ok(self)
    }

    /// Replaces the content of a file. Fails if the file does not have exactly the `original`
    /// content.
    pub(crate) fn replace(
        mut self,
        path: &str,
        original: &str,
        updated: &str,
    ) -> Result<Self, ToolError> {
        let file = self.file(Path::new(path), Links::Follow)?;
        let current = self.files[file]
            .now
            .as_ref()
            .map_or(&[][..], |content| &content.bytes);
        if current != original.as_bytes() {
            return Err(differs(
                &self.files[file].slot.shown,
                current,
                original.as_bytes(),
            ));
        }
        let (old, new) = (text::split(current), text::split(updated.as_bytes()));
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
            .now
            .as_ref()
            .map_or(Mode::New { executable: false }, |content| content.mode);
        self.put(file, updated.as_bytes().into(), mode, counts)?;
        Ok(self)
    }

    /// Writes all changed files to disk, or none of them.
    pub(crate) fn carry_out(&self) -> Result<(), ToolError> {
        let changed = self
            .files
            .iter()
            .filter(|file| file.touched && file.now != file.on_disk);
        let writes: Vec<Write<'_>> = changed
            .map(|file| Write {
                slot: &file.slot,
                content: file
                    .now
                    .as_ref()
                    .map(|content| (&content.bytes[..], content.mode)),
            })
            .collect();
        commit(&writes)
    }

    /// Returns the total change of each file, in the order of the patch.
    pub(crate) fn net(&self) -> impl Iterator<Item = Net<'_>> {
        let by_name = |name: &str| self.files.iter().find(|file| file.slot.shown == name);
        self.files.iter().filter_map(move |file| {
            let has_no_net_change = file.now.is_none() && (file.on_disk.is_none() || file.moved);
            if !file.touched || has_no_net_change {
                return None;
            }
            let from = file.from.as_deref();
            let origin = from.and_then(by_name).unwrap_or(file);
            let (before, after) = (origin.on_disk.as_ref(), file.now.as_ref());
            let old = before.map(|content| &content.bytes[..]);
            let new = after.map(|content| &content.bytes[..]);
            let was_executable = before.is_some_and(|content| content.mode.is_executable());
            let executable = after
                .map(|content| content.mode.is_executable())
                .filter(|executable| *executable != was_executable);
            let lines = |bytes: &[u8]| text::split(bytes).len();
            let (added, removed) = match (old, new) {
                (None, Some(new)) => (lines(new), 0),
                (Some(old), None) => (0, lines(old)),
                _ => (file.added, file.removed),
            };
            Some(Net {
                path: &file.slot.shown,
                from,
                old,
                new,
                executable,
                added,
                removed,
            })
        })
    }

    fn operation(&mut self, operation: &Operation) -> Result<(), ToolError> {
        match &operation.action {
            Action::Add {
                content,
                executable,
                over,
            } => {
                let file = self.file(operation.path(), Links::Follow)?;
                self.refuse_over(file, *over)?;
                let old = self.files[file].now.as_ref();
                let mode = old.map_or(Mode::New { executable: false }, |old| old.mode);
                let mode = if *executable {
                    mode.with_executable(true)
                } else {
                    mode
                };
                let counts = (
                    text::split(content).len(),
                    old.map_or(0, |old| text::split(&old.bytes).len()),
                );
                self.put(file, content.as_slice().into(), mode, counts)
            }
            Action::Delete { hunks } => {
                let path = self.existing(operation)?;
                if !hunks.is_empty() {
                    let file = self.file(&path, Links::Follow)?;
                    let remaining = self.applied(file, hunks, Read::Latest)?;
                    if !remaining.is_empty() {
                        let lines = text::split(&remaining).len();
                        let shown = &self.files[file].slot.shown;
                        return Err(ToolError::new(format!(
                            "{shown} cannot be deleted: {lines} of its lines are not in the patch"
                        )));
                    }
                }
                let file = self.file(&path, Links::Keep)?;
                let file = &mut self.files[file];
                (file.now, file.touched, file.written) = (None, true, true);
                Ok(())
            }
            Action::Update {
                hunks,
                to,
                executable,
            } => self.update(operation, hunks, to.as_ref(), *executable),
        }
    }

    fn update(
        &mut self,
        operation: &Operation,
        hunks: &[Hunk],
        to: Option<&Target>,
        executable: Option<bool>,
    ) -> Result<(), ToolError> {
        let existing = self.existing(operation);
        if existing.is_err() && to.is_none() && matches!(hunks, [hunk] if hunk.makes_a_file()) {
            let file = self.file(operation.path(), Links::Follow)?;
            let mode = Mode::New {
                executable: executable == Some(true),
            };
            return self.put(
                file,
                hunks[0].added().into(),
                mode,
                (hunks[0].lines.len(), 0),
            );
        }
        let source = self.file(&existing?, Links::Follow)?;
        let read = if to.is_some() {
            Read::BeforeBatch
        } else {
            Read::Latest
        };
        let bytes = self.applied(source, hunks, read)?;
        let mode = self.files[source]
            .content(read)
            .map_or(Mode::New { executable: false }, |content| content.mode);
        let mode = executable.map_or(mode, |executable| mode.with_executable(executable));
        let sum = |role| hunks.iter().map(|hunk| hunk.count(role)).sum();
        let counts = (sum(Role::Add), sum(Role::Remove));
        let Some(to) = to else {
            return self.put(source, bytes.into(), mode, counts);
        };
        let target = self.file(&to.path, Links::Follow)?;
        self.refuse_over(target, to.over)?;
        if to.source == Source::Goes {
            // If an earlier batch moved the file here, its origin is the path of that move.
            let origin = &self.files[source];
            let earlier = if origin.written {
                (0, 0)
            } else {
                (origin.added, origin.removed)
            };
            let from = origin
                .from
                .clone()
                .filter(|_| !origin.written)
                .unwrap_or_else(|| origin.slot.shown.clone());
            let target = &mut self.files[target];
            target.from = Some(from).filter(|from| *from != target.slot.shown);
            (target.added, target.removed) = earlier;
        }
        self.put(target, bytes.into(), mode, counts)
    }

    /// Removes the source of a move from its old path.
    fn leave(&mut self, operation: &Operation) -> Result<(), ToolError> {
        let path = self.existing(operation)?;
        let file = self.file(&path, Links::Keep)?;
        let file = &mut self.files[file];
        (file.now, file.touched, file.moved) = (None, true, true);
        Ok(())
    }

    /// Returns the content of a file after applying hunks to it.
    fn applied(&self, file: usize, hunks: &[Hunk], read: Read) -> Result<Vec<u8>, ToolError> {
        let file = &self.files[file];
        let content = file.content(read).map_or(&[][..], |content| &content.bytes);
        hunk::apply(content, hunks).map_err(|report| {
            ToolError::new(format!("{}: {report}", file.slot.shown))
                .suggest("read the file again and rewrite the hunk to match it")
        })
    }

    /// Sets the planned content of a file. Fails if the file is not writable.
    fn put(
        &mut self,
        file: usize,
        bytes: Arc<[u8]>,
        mode: Mode,
        counts: (usize, usize),
    ) -> Result<(), ToolError> {
        let file = &mut self.files[file];
        file.slot.check_writable()?;
        file.now = Some(Content { bytes, mode });
        (file.touched, file.written, file.moved) = (true, true, false);
        file.added += counts.0;
        file.removed += counts.1;
        Ok(())
    }

    /// Fails if the file exists and may not be overwritten.
    fn refuse_over(&self, file: usize, over: Over) -> Result<(), ToolError> {
        let file = &self.files[file];
        match &file.now {
            Some(content) if over == Over::Nothing && !content.bytes.is_empty() => Err(
                ToolError::new(format!("{} already exists", file.slot.shown)),
            ),
            _ => Ok(()),
        }
    }

    /// Returns the first path of an operation that exists.
    fn existing(&mut self, operation: &Operation) -> Result<PathBuf, ToolError> {
        for (index, path) in operation.paths.iter().enumerate() {
            match self.file(path, Links::Keep) {
                Ok(file) if self.files[file].content(Read::Latest).is_some() => {
                    return Ok(path.clone());
                }
                Ok(_) => {}
                // The other paths are guesses, so their errors are ignored.
                Err(error) if index == 0 => return Err(error),
                Err(_) => {}
            }
        }
        let shown = self.workspace.shown(&self.absolute(operation.path()));
        Err(ToolError::new(format!("{shown} does not exist"))
            .suggest("find the file with fileSearch"))
    }

    fn absolute(&self, path: &Path) -> PathBuf {
        self.workspace.absolute(self.base.join(path), None)
    }

    /// Returns the index of a file in the draft. Reads the file from disk the first time.
    fn file(&mut self, path: &Path, links: Links) -> Result<usize, ToolError> {
        let mut slot = self.workspace.slot(&self.absolute(path), links)?;
        let real = slot.real();
        if let Some(file) = self.by_path.get(&real) {
            return Ok(*file);
        }
        slot.folder = self
            .folders
            .entry(slot.place.clone())
            .or_insert(slot.folder)
            .clone();
        let on_disk = match slot.is_link() {
            true => Some((Vec::new(), Mode::New { executable: false })),
            false => slot.read()?,
        };
        let on_disk = on_disk.map(|(bytes, mode)| Content {
            bytes: bytes.into(),
            mode,
        });
        self.files.push(DraftFile {
            slot,
            before: on_disk.clone(),
            now: on_disk.clone(),
            on_disk,
            written: false,
            touched: false,
            moved: false,
            from: None,
            added: 0,
            removed: 0,
        });
        self.by_path.insert(real, self.files.len() - 1);
        Ok(self.files.len() - 1)
    }
}

/// The content of a file that an operation starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    /// For copies and moves, which do not see other changes of their batch.
    BeforeBatch,
    /// For updates and deletions, which see the earlier changes of their batch.
    Latest,
}

impl DraftFile {
    fn content(&self, read: Read) -> Option<&Content> {
        match read {
            Read::Latest if self.written => self.now.as_ref(),
            _ => self.before.as_ref(),
        }
    }
}

/// Returns the error for a file that differs from `original_content`, with the first different
/// line.
fn differs(shown: &str, current: &[u8], original: &[u8]) -> ToolError {
    let at = current
        .iter()
        .zip(original)
        .take_while(|(a, b)| a == b)
        .count();
    let line = current[..at].iter().filter(|byte| **byte == b'\n').count();
    let shown_line = |bytes: &[u8]| match text::split(bytes).get(line) {
        Some(line) => {
            let bytes = [line.text, line.ending.bytes()].concat();
            format!(
                "{:?}",
                selvedge_text::with_ellipsis(&String::from_utf8_lossy(&bytes), 120)
            )
        }
        None => "nothing".to_owned(),
    };
    ToolError::new(format!(
        "{shown} differs from `original_content` at line {}: the file has {}, \
         `original_content` has {}",
        line + 1,
        shown_line(current),
        shown_line(original)
    ))
    .suggest("read the file again")
}
