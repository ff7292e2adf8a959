//! Remembers how much of each file the calls of a run have read, so that a file that was read
//! incompletely is not overwritten as a whole.

use std::path::Path;
use std::time::UNIX_EPOCH;

use selvedge_text::group_digits;
use selvedge_tools::{CallContext, ToolError};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::target_file::TargetFile;
use crate::workspace::real_path;

/// Identity and version of a file that is about to be read.
pub(crate) struct OpenedFile {
    /// Key of the note about the file.
    key: String,
    version: FileVersion,
}

/// Length and modification time of a file: both are equal as long as it was not changed.
type FileVersion = (u64, u64);

/// What a call read of a file.
pub(crate) struct FileRead {
    /// Numbers of the first and the last line. `None` if no line was read.
    pub(crate) lines: Option<(u64, u64)>,
    pub(crate) total_lines: u64,
    /// Whether invalid bytes were replaced.
    pub(crate) lossy: bool,
    /// Whether a line was cut.
    pub(crate) has_cut_line: bool,
}

/// The note about a file that was read incompletely.
#[derive(Debug, Serialize, Deserialize)]
struct PartialRead {
    /// Id of the last call that read the file.
    call: String,
    version: FileVersion,
    /// The lines that calls have read of this version, as ranges in order.
    lines: Vec<(u64, u64)>,
    total_lines: u64,
    lossy: bool,
    has_cut_line: bool,
}

impl OpenedFile {
    pub(crate) fn new(file: &std::fs::File, path: &Path) -> Self {
        let metadata = file.metadata().ok();
        let modified = metadata.as_ref().and_then(|data| data.modified().ok());
        let modified = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Self {
            key: note_key(&real_path(file, path)),
            version: (
                metadata.map_or(0, |data| data.len()),
                modified.map_or(0, |time| time.as_nanos() as u64),
            ),
        }
    }
}

/// Notes that a call has read a file. Several reads of the same version count together.
pub(crate) fn note_read(call: &CallContext, file: OpenedFile, read: &FileRead) {
    let mut partial = PartialRead {
        call: call.id.clone(),
        version: file.version,
        lines: read.lines.into_iter().collect(),
        total_lines: read.total_lines,
        lossy: read.lossy,
        has_cut_line: read.has_cut_line,
    };
    let earlier = call.notes.get(&file.key);
    let earlier = earlier.and_then(|note| serde_json::from_value::<PartialRead>(note).ok());
    if let Some(earlier) = earlier.filter(|earlier| {
        partial.lines_read() < partial.total_lines && earlier.version == partial.version
    }) {
        partial.lines = merge_ranges(earlier.lines, partial.lines);
        partial.lossy |= earlier.lossy;
        partial.has_cut_line |= earlier.has_cut_line;
    }
    let note = (!partial.is_complete()).then(|| json!(partial));
    call.notes.set(file.key, note);
}

/// Fails if the file exists and the run has read it incompletely.
pub(crate) fn refuse_overwriting(call: &CallContext, file: &TargetFile) -> Result<(), ToolError> {
    let note = call.notes.get(&note_key(&file.real_path()));
    let read = note.and_then(|note| serde_json::from_value::<PartialRead>(note).ok());
    match read {
        Some(read) if file.existing_mode()?.is_some() => Err(read.error(&file.display_path)),
        _ => Ok(()),
    }
}

impl PartialRead {
    fn lines_read(&self) -> u64 {
        self.lines
            .iter()
            .map(|(first, last)| last - first + 1)
            .sum()
    }

    fn is_complete(&self) -> bool {
        self.lines_read() >= self.total_lines && !self.lossy && !self.has_cut_line
    }

    fn first_unread_line(&self) -> u64 {
        match self.lines.first() {
            Some((1, last)) => last + 1,
            _ => 1,
        }
    }

    fn error(&self, display_path: &str) -> ToolError {
        let (read, total) = (self.lines_read(), self.total_lines);
        let call = &self.call;
        let reason = if read < total {
            let [read, total] = [read, total].map(group_digits);
            format!("{call} read only {read} of its {total} lines")
        } else if self.lossy {
            format!("{call} replaced bytes of it that are not UTF-8")
        } else {
            format!("{call} cut one of its lines")
        };
        let mut error = ToolError::new(format!("{display_path} was not written: {reason}"))
            .suggest("change parts of it with editFile or with a patch that has hunks");
        if read < total {
            error = error.suggest(format!(
                "or read the rest of it first, from line {}",
                self.first_unread_line()
            ));
        }
        error.metadata.insert("readCallId".into(), json!(call));
        error.metadata.insert("linesRead".into(), json!(read));
        error.metadata.insert("totalLines".into(), json!(total));
        error
    }
}

fn note_key(path: &Path) -> String {
    format!("read {}", path.display())
}

/// Joins two lists of ranges. Ranges that touch become one.
fn merge_ranges(mut ranges: Vec<(u64, u64)>, more: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.extend(more);
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(previous) if first <= previous.1 + 1 => previous.1 = previous.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}
