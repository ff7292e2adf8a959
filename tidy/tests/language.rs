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
    concat!("some", "one"),
    concat!("any", "one"),
];

/// Constant names that say neither unit nor purpose.
const BANNED_CONSTANTS: &[&str] = &[
    "PATIENCE", "MOST", "LEAST", "SOON", "MOMENT", "FAREWELL", "GRACE", "ENOUGH", "MANY",
];

/// Words of an earlier vocabulary, each with the term that replaced it. They are not used anywhere,
/// also not as a part of an identifier.
const RETIRED_WORDS: &[(&str, &str)] = &[
    ("belongings", "resources"),
    ("circumstances", "context"),
    ("companion", "hook"),
    ("deed", "canonical form"),
    ("onlooker", "read-only"),
    ("pump", "step"),
    ("standing", "scope snapshot"),
    ("tape", "recording"),
    ("thaw", "restore"),
    ("told", "event, entry or result"),
    ("traffic", "calls in flight"),
    ("unsaid", "omitted"),
    ("untold", "held answers"),
    ("walls", "isolation layers, or confinement"),
];

/// Words that stored names do not contain: names in `serde(rename)`, and tables and columns. As
/// ordinary English they may occur in comments and documents.
const RETIRED_STORED_WORDS: &[&str] = &[
    "agreed", "ask", "cut", "given", "kept", "later", "no", "on", "ring", "said", "stops", "wall",
    "wire",
];

/// Phrases of the earlier vocabulary, which documents do not contain.
const RETIRED_PHRASES: &[(&str, &str)] = &[
    ("came to", "returned"),
    ("go on", "continue"),
    ("goes on", "continues"),
    ("gone on", "continued"),
    ("leaves out", "redacts or omits"),
    ("played again", "replayed"),
    ("the wall ", "the sandbox, or the confinement"),
    ("where it lies", "in place"),
    ("without a look", "without a check"),
    ("without a word", "without a message"),
    ("written down", "recorded"),
];

#[test]
fn type_names_are_unique() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    // Also in tests, except in the modules of unit tests inside another file.
    let sources = sources().into_iter();
    for (path, text) in sources.filter(|(path, _)| path.ends_with(".rs")) {
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
fn retired_words_do_not_come_back() {
    let mut problems = Vec::new();
    for (path, text) in sources() {
        // The lists above, and lists of English words.
        let lists_words =
            path == "tidy/tests/language.rs" || path.starts_with("crates/memory/src/");
        let extension = path.rsplit('.').next().unwrap_or_default();
        let is_checked = ["c", "js", "md", "rs", "sql", "toml", "ts"].contains(&extension);
        if lists_words || !is_checked {
            continue;
        }
        for (number, line) in numbered_lines(&text) {
            for word in lower_case_words(line) {
                if let Some((_, instead)) = RETIRED_WORDS.iter().find(|(old, _)| word == *old) {
                    problems.push(format!("{path}:{number}: `{word}`: write {instead}"));
                }
            }
        }
    }
    assert_none(problems);
}

#[test]
fn stored_names_are_plain() {
    let mut problems = Vec::new();
    for (path, text) in sources() {
        for (number, line) in numbered_lines(&text) {
            let stored = if path.ends_with(".sql") {
                line.split("--").next()
            } else if path.ends_with(".rs") && path.contains("/src/") {
                let renamed = line.trim_start().strip_prefix("#[serde(rename = \"");
                renamed.and_then(|rest| rest.split('"').next())
            } else {
                None
            };
            // Keywords of SQL are upper case.
            let words = stored.unwrap_or_default().split_whitespace();
            let names = words.filter(|word| !word.chars().all(|c| c.is_uppercase() || c == ','));
            for word in names.flat_map(lower_case_words) {
                if RETIRED_STORED_WORDS.contains(&word.as_str())
                    || RETIRED_WORDS.iter().any(|(old, _)| word == *old)
                {
                    problems.push(format!("{path}:{number}: `{word}` in a stored name"));
                }
            }
        }
    }
    assert_none(problems);
}

#[test]
fn documents_use_plain_phrases() {
    let mut problems = Vec::new();
    for (path, text) in sources() {
        let is_document = path.starts_with("docs/") || !path.contains('/');
        if !is_document || !path.ends_with(".md") {
            continue;
        }
        // A phrase may continue on the next line.
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let next = lines.get(index + 1).map_or("", |next| next.trim_start());
            let (line, both) = (line.to_lowercase(), format!("{line} {next}").to_lowercase());
            for (phrase, instead) in RETIRED_PHRASES {
                if both.find(phrase).is_some_and(|at| at < line.len()) {
                    let number = index + 1;
                    problems.push(format!("{path}:{number}: `{phrase}`: write {instead}"));
                }
            }
        }
    }
    assert_none(problems);
}

/// Returns the words of a line in lower case. Identifiers are split: `HeldAnswers`, `held_answers`.
fn lower_case_words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower_case = false;
    for c in line.chars() {
        if !c.is_alphabetic() || c.is_uppercase() && was_lower_case {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_alphabetic()) {
            word.extend(c.to_lowercase());
        }
        was_lower_case = c.is_lowercase();
    }
    words
}

#[test]
fn doc_comments_say_more_than_two_words() {
    let mut problems = Vec::new();
    for (path, text) in rust_sources() {
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        let is_doc = |index: usize| lines.get(index).is_some_and(|line| line.starts_with("///"));
        for (index, line) in lines.iter().enumerate() {
            let continues = is_doc(index + 1) || (index > 0 && is_doc(index - 1));
            if is_doc(index) && !continues && line.split_whitespace().count() < 4 {
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
