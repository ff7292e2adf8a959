//! What a call would change, as a diff for the person who is asked.

use std::time::Duration;

use similar::TextDiff;

/// Bytes of a preview at most.
pub(crate) const MAX_PREVIEW: usize = 64 << 10;

/// One file before and after; nothing where it is not there.
pub(crate) fn file_diff(old_path: &str, new_path: &str, before: Option<&[u8]>, after: Option<&[u8]>) -> String {
    let name = |side: &str, path: &str, content: Option<&[u8]>| match content {
        Some(_) => format!("{side}/{path}"),
        None => "/dev/null".to_owned(),
    };
    let (old, new) = (name("a", old_path, before), name("b", new_path, after));
    let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
    if before == after {
        return format!("--- {old}\n+++ {new}\n");
    }
    let (before, after) = (String::from_utf8_lossy(before), String::from_utf8_lossy(after));
    let diff = TextDiff::configure().timeout(Duration::from_millis(500)).diff_lines(&*before, &*after);
    diff.unified_diff().header(&old, &new).to_string()
}

/// Bytes of the end of a preview that are kept where it is too long.
const TAIL: usize = MAX_PREVIEW / 4;

/// Names of files in what is left out, at most.
const MAX_NAMED: usize = 100;

/// The diffs one after the other. Where they are too long, the middle is left out, but for the names of the files in
/// it: what is to be overlooked would stand last.
pub(crate) fn bounded(diffs: impl IntoIterator<Item = String>) -> String {
    let (mut head, mut tail, mut names) = (String::new(), String::new(), Vec::new());
    for diff in diffs {
        let room = (MAX_PREVIEW - head.len()).min(diff.len());
        let fits = if tail.is_empty() { diff.floor_char_boundary(room) } else { 0 };
        head.push_str(&diff[..fits]);
        if fits == diff.len() {
            continue;
        }
        if names.len() <= MAX_NAMED {
            names.extend(diff.lines().take(3).filter(|line| line.starts_with("+++ ")).map(str::to_owned));
        }
        tail.push_str(&diff[fits..]);
        let start = tail.ceil_char_boundary(tail.len().saturating_sub(TAIL));
        tail.drain(..start);
    }
    if tail.is_empty() {
        return head;
    }
    // Room for the end and for the names, in whole lines.
    names.truncate(MAX_NAMED);
    names.iter_mut().for_each(|name| name.truncate(name.floor_char_boundary(80)));
    let gap = format!("… more than can be shown here, and in it\n{}\n…\n", names.join("\n"));
    let most = MAX_PREVIEW.saturating_sub(gap.len() + tail.len());
    let end = head[..head.floor_char_boundary(most)].rfind('\n').map_or(0, |end| end + 1);
    let start = tail.find('\n').map_or(0, |start| start + 1);
    format!("{}{gap}{}", &head[..end], &tail[start..])
}
