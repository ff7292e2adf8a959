//! Counts the changes in a diff, and finds the symbols it changes.

use crate::outcome_paths::{list, plural};

/// The changes of one file.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct DiffFileChange {
    pub(crate) path: String,
    pub(crate) added: u64,
    pub(crate) removed: u64,
    /// The functions and types that the headers of its hunks name.
    pub(crate) symbols: Vec<String>,
}

/// Describes changes: `+12 −3 in a.rs`, `+12 −3 in 2 files: a.rs, b.rs`.
pub(crate) fn describe_changes(changes: &[DiffFileChange]) -> String {
    let names: Vec<String> = changes.iter().map(|change| change.path.clone()).collect();
    let added = changes.iter().map(|change| change.added).sum();
    let removed = changes.iter().map(|change| change.removed).sum();
    describe_counts(added, removed, changes.len(), &names)
}

pub(crate) fn describe_counts(added: u64, removed: u64, files: usize, names: &[String]) -> String {
    let of = match names {
        [name] => name.clone(),
        names => format!("{}: {}", plural(files, "file"), list(names)),
    };
    format!("+{added} −{removed} in {}", of.trim_end_matches(": "))
}

/// Parses a unified diff, or a patch with `*** Update File:` headers. `None` without a changed
/// file.
pub(crate) fn parse_diff(text: &str) -> Option<Vec<DiffFileChange>> {
    let mut changes: Vec<DiffFileChange> = Vec::new();
    let is_diff = text.contains("\n@@") || text.starts_with("@@") || text.contains("*** ");
    if !is_diff && !text.contains("diff --git ") {
        return None;
    }
    let deletes_files = text.contains("\n+++ /dev/null");
    let mut in_hunk = false;
    for line in text.lines() {
        let new_path = line
            .strip_prefix("+++ ")
            .or_else(|| line.strip_prefix("*** Update File: "))
            .or_else(|| line.strip_prefix("*** Add File: "))
            .or_else(|| line.strip_prefix("*** Delete File: "));
        if let Some(path) = new_path {
            let path = path.split('\t').next().unwrap_or(path).trim();
            let path = path.strip_prefix("b/").unwrap_or(path);
            // A deleted file keeps the name of the line before.
            if path != "/dev/null" || changes.last().is_none_or(|change| !change.path.is_empty()) {
                if changes.last().is_some_and(|change| change.path.is_empty()) {
                    changes.pop();
                }
                changes.push(DiffFileChange {
                    path: path.to_owned(),
                    ..DiffFileChange::default()
                });
            }
            in_hunk = line.starts_with("*** ");
        } else if let Some(path) = line.strip_prefix("--- ") {
            let path = path.strip_prefix("a/").unwrap_or(path);
            in_hunk = false;
            if path != "/dev/null" && !path.is_empty() && deletes_files {
                changes.push(DiffFileChange {
                    path: path.to_owned(),
                    ..DiffFileChange::default()
                });
            }
        } else if let Some(rest) = line.strip_prefix("@@") {
            in_hunk = true;
            let context = rest.rsplit("@@").next().unwrap_or_default().trim_start();
            if let (Some(change), Some(symbol)) = (changes.last_mut(), symbol_in(context))
                && !change.symbols.contains(&symbol)
            {
                change.symbols.push(symbol);
            }
        } else if line.starts_with("diff --git ") {
            in_hunk = false;
        } else if in_hunk && let Some(change) = changes.last_mut() {
            change.added += u64::from(line.starts_with('+'));
            change.removed += u64::from(line.starts_with('-'));
        }
    }
    changes.dedup_by(|b, a| a.path == b.path);
    (!changes.is_empty()).then_some(changes)
}

/// Words before the name of a symbol in source code.
const DEFINING_WORDS: &[&str] = &[
    "fn",
    "def",
    "class",
    "struct",
    "enum",
    "trait",
    "impl",
    "function",
    "func",
    "const",
    "let",
    "var",
    "interface",
    "type",
    "module",
    "mod",
    "macro_rules!",
    "package",
    "object",
    "record",
];

/// Returns the name of the symbol that a line of source code defines. Indented variables are local.
pub(crate) fn symbol_in(line: &str) -> Option<String> {
    let is_local = line.starts_with([' ', '\t'])
        && ["let ", "const ", "var "]
            .iter()
            .any(|word| line.trim_start().starts_with(word));
    if is_local {
        return None;
    }
    let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '!'));
    while let Some(word) = words.next() {
        if DEFINING_WORDS.contains(&word) {
            let name = words.find(|word| !word.is_empty())?;
            return (name.len() > 1 && !name.chars().all(|c| c.is_ascii_digit()))
                .then(|| name.to_owned());
        }
    }
    None
}
