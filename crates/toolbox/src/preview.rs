//! Diffs that show a person what a call would change, before the approval.

use std::time::Duration;

use similar::TextDiff;

/// The most bytes of a preview.
pub(crate) const MAX_PREVIEW_BYTES: usize = 64 << 10;

/// Returns the unified diff of one file. `None` as content means that the file does not exist.
pub(crate) fn file_diff(
    old_path: &str,
    new_path: &str,
    before: Option<&[u8]>,
    after: Option<&[u8]>,
) -> String {
    let name = |side: &str, path: &str, content: Option<&[u8]>| match content {
        Some(_) => format!("{side}/{path}"),
        None => "/dev/null".to_owned(),
    };
    let (old, new) = (name("a", old_path, before), name("b", new_path, after));
    let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
    if before == after {
        return format!("--- {old}\n+++ {new}\n");
    }
    let (before, after) = (
        String::from_utf8_lossy(before),
        String::from_utf8_lossy(after),
    );
    let diff = TextDiff::configure()
        .timeout(Duration::from_millis(500))
        .diff_lines(&*before, &*after);
    diff.unified_diff().header(&old, &new).to_string()
}

/// Bytes at the end that are kept if the preview is too long.
const TAIL_BYTES: usize = MAX_PREVIEW_BYTES / 4;

/// The most files that are listed for the omitted middle.
const MAX_LISTED_FILES: usize = 100;
/// The most bytes of one line in that list.
const MAX_FILE_LINE_BYTES: usize = 80;

/// Bytes at the beginning that are kept, with room for the end and the list of files.
const HEAD_BYTES: usize =
    MAX_PREVIEW_BYTES - TAIL_BYTES - MAX_LISTED_FILES * (MAX_FILE_LINE_BYTES + 1) - 200;

/// Joins diffs. If the result is too long, replaces the middle with the names of its files. The end
/// is kept, because a change that a reader should overlook would come last.
pub(crate) fn join_truncated(diffs: impl IntoIterator<Item = String>) -> String {
    let (mut head, mut tail, mut length) = (String::new(), String::new(), 0);
    let mut names: Vec<(usize, String)> = Vec::new();
    for diff in diffs {
        names.extend(file_header(&diff).map(|name| (length, name)));
        length += diff.len();
        let fits = diff.floor_char_boundary(MAX_PREVIEW_BYTES - head.len());
        let fits = if tail.is_empty() { fits } else { 0 };
        head.push_str(&diff[..fits]);
        tail.push_str(&diff[fits..]);
        tail.drain(..tail.ceil_char_boundary(tail.len().saturating_sub(TAIL_BYTES)));
    }
    if tail.is_empty() {
        return head;
    }
    // Keep whole lines.
    let end = head[..head.floor_char_boundary(HEAD_BYTES)]
        .rfind('\n')
        .map_or(0, |end| end + 1);
    let start = tail.find('\n').map_or(0, |start| start + 1);
    let tail = &tail[start..];
    names.retain(|(at, _)| (end..length - tail.len()).contains(at));
    let more = names.len().saturating_sub(MAX_LISTED_FILES);
    let mut gap = "… more than can be shown here; files in the omitted part:\n".to_owned();
    names
        .iter()
        .take(MAX_LISTED_FILES)
        .for_each(|(_, name)| gap.push_str(&format!("{name}\n")));
    gap.push_str(&if more > 0 {
        format!("… and {more} more files\n")
    } else {
        "…\n".to_owned()
    });
    format!("{}{gap}{tail}", &head[..end])
}

/// Returns the header line of a diff that names its file, truncated.
fn file_header(diff: &str) -> Option<String> {
    let names_file = |line: &&str| {
        (line.starts_with("--- ") || line.starts_with("+++ ")) && !line.ends_with(" /dev/null")
    };
    let name = diff.lines().take(3).filter(names_file).last()?;
    Some(name[..name.floor_char_boundary(MAX_FILE_LINE_BYTES)].to_owned())
}
