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

/// The diffs one after the other, as far as they fit.
pub(crate) fn bounded(diffs: impl IntoIterator<Item = String>) -> String {
    let mut text = String::new();
    for diff in diffs {
        text.push_str(&diff);
        if text.len() > MAX_PREVIEW {
            let rest = "\n… and more than can be shown here\n";
            text.truncate(text.floor_char_boundary(MAX_PREVIEW - rest.len()));
            text.push_str(rest);
            break;
        }
    }
    text
}
