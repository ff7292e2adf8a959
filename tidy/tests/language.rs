//! Rules about names, comments and line width: one test per rule.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;

use selvedge_tidy::{assert_none, numbered_lines, sources};

/// The longest line of comments and prose, in characters.
const MAX_COLUMNS: usize = 100;

/// Pronouns that hide who does something. A sentence names the caller, the user or the process.
const BANNED_WORDS: &[&str] = &[
    concat!("who", "ever"),
    concat!("no", "body"),
    concat!("some", "body"),
    concat!("any", "body"),
];

/// Constant names that say neither unit nor purpose.
const BANNED_CONSTANTS: &[&str] = &[
    "PATIENCE", "MOST", "LEAST", "SOON", "MOMENT", "FAREWELL", "GRACE", "ENOUGH", "MANY",
];

#[test]
fn type_names_are_unique() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in rust_sources() {
        let tests = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
        for (number, line) in numbered_lines(&text[..tests]) {
            if let Some(name) = defined_type(line) {
                // A type may have several definitions in one file, for several platforms.
                let lines = places.entry(name.to_owned()).or_default();
                if !lines
                    .iter()
                    .any(|line| line.starts_with(&format!("{path}:")))
                {
                    lines.push(format!("{path}:{number}"));
                }
            }
        }
    }
    places.retain(|_, places| places.len() > 1);
    assert_none(
        places
            .into_iter()
            .map(|(name, places)| format!("`{name}` is defined in {}", places.join(" and "))),
    );
}

/// Returns the name of the type that a line defines. Associated types are not definitions.
fn defined_type(line: &str) -> Option<&str> {
    let rest = line.trim_start();
    let rest = match rest.strip_prefix("pub") {
        Some(visible) => visible
            .strip_prefix("(crate)")
            .or_else(|| visible.strip_prefix("(super)"))
            .unwrap_or(visible)
            .trim_start(),
        None => rest,
    };
    let (keyword, rest) = rest.split_once(' ')?;
    let defines = match keyword {
        "struct" | "enum" | "trait" | "union" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (defines && end > 0).then(|| &rest[..end])
}

#[test]
fn constants_are_named_after_unit_and_purpose() {
    let mut problems = Vec::new();
    for (path, text) in rust_sources() {
        for (number, line) in numbered_lines(&text) {
            let line = line.trim_start();
            let line = line.strip_prefix("pub ").unwrap_or(line);
            let line = line.strip_prefix("pub(crate) ").unwrap_or(line);
            let name = line
                .strip_prefix("const ")
                .and_then(|rest| rest.split(':').next());
            if let Some(name) = name.filter(|name| BANNED_CONSTANTS.contains(name)) {
                problems.push(format!(
                    "{path}:{number}: `{name}` names neither unit nor purpose"
                ));
            }
        }
    }
    assert_none(problems);
}

#[test]
fn sentences_name_who_acts() {
    let mut problems = Vec::new();
    for (path, text) in sources() {
        // Text that tests read, such as a web page.
        if path.ends_with(".txt") || path.ends_with(".html") {
            continue;
        }
        for (number, line) in numbered_lines(&text) {
            let mut words = line.split(|c: char| !c.is_alphanumeric());
            let found = words.find(|word| {
                BANNED_WORDS
                    .iter()
                    .any(|banned| word.eq_ignore_ascii_case(banned))
            });
            if let Some(word) = found {
                problems.push(format!(
                    "{path}:{number}: `{word}`: name the caller, the user or the process"
                ));
            }
        }
    }
    assert_none(problems);
}

#[test]
fn doc_comments_say_more_than_a_word() {
    let mut problems = Vec::new();
    for (path, text) in rust_sources() {
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        let is_doc = |index: usize| lines.get(index).is_some_and(|line| line.starts_with("///"));
        for (index, line) in lines.iter().enumerate() {
            let alone = !is_doc(index + 1) && !(index > 0 && is_doc(index - 1));
            if is_doc(index) && alone && line.split_whitespace().count() < 3 {
                problems.push(format!(
                    "{path}:{}: `{line}`: state role and contract, or delete the comment",
                    index + 1
                ));
            }
        }
    }
    assert_none(problems);
}

#[test]
fn comments_fit_the_line_width() {
    let mut problems = Vec::new();
    for (path, text) in sources() {
        if !path.ends_with(".rs") {
            continue;
        }
        for (number, line) in numbered_lines(&text) {
            let columns = line.chars().count();
            let comment = line.trim_start().starts_with("//");
            // rustfmt breaks code where it can be broken, but not comments.
            if columns > MAX_COLUMNS && comment {
                problems.push(format!("{path}:{number}: {columns} columns"));
            }
        }
    }
    assert_none(problems);
}

fn rust_sources() -> impl Iterator<Item = (String, String)> {
    sources().into_iter().filter(|(path, _)| {
        path.ends_with(".rs")
            && (path.starts_with("bench/src/")
                || path.starts_with("crates/") && path.contains("/src/"))
    })
}
