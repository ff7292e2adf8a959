//! Diffs that show a person what a call would change, before the approval. A diff is never
//! shortened: a person must see all of what they approve.

use std::time::Duration;

use similar::TextDiff;

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
