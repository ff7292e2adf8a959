//! Recognises names of files in text, and formats lists and counts for summaries.

use std::collections::HashSet;

/// Extensions of files that count as sources and documents of a project.
const EXTENSIONS: &str = "rs py js mjs cjs ts mts cts tsx jsx go java kt kts scala rb php cs c h cc \
    cpp cxx hpp hh m mm swift zig ml mli hs ex exs erl clj lua pl pm r sql sh bash ps1 html css \
    scss vue svelte md mdx rst txt toml yaml yml json jsonl jsonc xml proto graphql lock cfg ini \
    gradle cmake make dockerfile tf csv tsv ipynb snap env";

/// Returns whether a word is the path of a file of a project.
pub(crate) fn is_source_path(word: &str) -> bool {
    let name = word.rsplit('/').next().unwrap_or(word);
    let is_named = matches!(
        name,
        "Makefile" | "Dockerfile" | "Rakefile" | "Gemfile" | "Procfile"
    );
    let Some((stem, extension)) = name.rsplit_once('.') else {
        return is_named;
    };
    let plain = |c: char| c.is_alphanumeric() || "_-./@+~[]$".contains(c);
    let extension = extension.to_ascii_lowercase();
    !stem.is_empty()
        && word.len() < 200
        && word.chars().all(plain)
        && !word.starts_with('-')
        && EXTENSIONS
            .split_whitespace()
            .any(|known| known == extension)
}

/// Returns the paths of files in a text, in order, each once.
pub(crate) fn paths_in(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let is_end = |c: char| c.is_whitespace() || "\"'`(),;:<>{}=|".contains(c);
    for word in text.split(is_end) {
        let word = word.trim_end_matches('.').trim_start_matches("./");
        if is_source_path(word) && !is_library_path(word) {
            found.push(word.to_owned());
            if found.len() >= 64 {
                break;
            }
        }
    }
    dedup(&mut found);
    found
}

/// Removes repeated names; the first stays.
pub(crate) fn dedup(names: &mut Vec<String>) {
    let mut seen = HashSet::new();
    names.retain(|name| !name.is_empty() && seen.insert(name.clone()));
}

/// Names that a list shows.
const MAX_LISTED: usize = 4;

/// Lists the first names, separated by commas.
pub(crate) fn list(names: &[String]) -> String {
    let shown = names[..names.len().min(MAX_LISTED)].join(", ");
    if names.len() > MAX_LISTED {
        format!("{shown}, …")
    } else {
        shown
    }
}

/// `1 match`, `2 matches`.
pub(crate) fn plural(count: usize, word: &str) -> String {
    match (count, word) {
        (1, word) => format!("1 {word}"),
        (count, word) if word.ends_with('h') => format!("{count} {word}es"),
        (count, word) => format!("{count} {word}s"),
    }
}

pub(crate) fn plural_entries(count: usize) -> String {
    match count {
        1 => "1 entry".to_owned(),
        count => format!("{count} entries"),
    }
}

/// Returns whether a path is that of installed code rather than of the project.
pub(crate) fn is_library_path(path: &str) -> bool {
    [
        "node_modules/",
        "site-packages/",
        "/.cargo/",
        "/rustc/",
        "node:",
        "/usr/lib",
        "lib/python",
        "internal/",
        "<",
    ]
    .iter()
    .any(|part| path.contains(part))
}
