//! Summarises the output of a command in one line, by its kind: a test run, a stack trace, a build,
//! a diff, JSON, a search, a listing. Pure functions, without I/O.

use serde_json::Value;

use crate::cleaning::{find_key_line, truncate_words};
use crate::diff_summary::{describe_changes, describe_counts, parse_diff};
use crate::error_places::{build, error_places, trace};
use crate::outcome_paths::{dedup, is_source_path, list, paths_in, plural, plural_entries};
use crate::test_runs::parse_test_run;

/// The kind of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputKind {
    TestRun,
    Trace,
    Build,
    Diff,
    Json,
    Search,
    Listing,
    Other,
}

/// The summary of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutputSummary {
    pub(crate) kind: OutputKind,
    /// One line, without the exit code. Empty for an empty output.
    pub(crate) text: String,
    /// The files and symbols that the output is about, the most important first.
    pub(crate) names: Vec<String>,
}

impl OutputSummary {
    pub(crate) fn new(kind: OutputKind, text: String, names: Vec<String>) -> Self {
        let text = truncate_words(&text, MAX_SUMMARY_CHARS).into_owned();
        Self { kind, text, names }
    }
}

/// Characters of a summary.
const MAX_SUMMARY_CHARS: usize = 160;
/// Names that a summary returns.
pub(crate) const MAX_NAMES: usize = 6;
/// Bytes of an output that are read: its beginning and its end.
const MAX_READ_BYTES: usize = 256 << 10;

/// Summarises an output by its kind. `command` is the command line, and may be empty.
pub(crate) fn summarise_output(command: &str, output: &str) -> OutputSummary {
    let output = strip_escapes(&shorten(output));
    let output = output.as_str();
    if output.trim().is_empty() {
        return OutputSummary::new(OutputKind::Other, String::new(), Vec::new());
    }
    test_run(output)
        .or_else(|| json(output))
        .or_else(|| diff(output))
        .or_else(|| build(command, output))
        .or_else(|| trace(output))
        .or_else(|| search(command, output))
        .or_else(|| listing(command, output))
        .unwrap_or_else(|| {
            let names = paths_in(output).into_iter().take(MAX_NAMES).collect();
            OutputSummary::new(OutputKind::Other, key_line(output), names)
        })
}

/// Returns the line that says most about an output of no known kind, and how many lines it has.
pub(crate) fn key_line(output: &str) -> String {
    let lines = output
        .lines()
        .filter(|line| !line.trim().is_empty())
        .count();
    let line = find_key_line(output);
    match lines {
        0 | 1 => line,
        more => format!(
            "{} ({more} lines)",
            truncate_words(&line, MAX_SUMMARY_CHARS - 15)
        ),
    }
}

/// Keeps the beginning and the end of a very long output.
fn shorten(output: &str) -> std::borrow::Cow<'_, str> {
    if output.len() <= MAX_READ_BYTES {
        return output.into();
    }
    let start = output.floor_char_boundary(MAX_READ_BYTES / 2);
    let end = output.ceil_char_boundary(output.len() - MAX_READ_BYTES / 2);
    format!("{}\n{}", &output[..start], &output[end..]).into()
}

/// Removes terminal escape sequences and carriage returns.
fn strip_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' if chars.peek() == Some(&'[') => {
                // A control sequence ends with a character from `@` to `~`.
                chars.next();
                for c in chars.by_ref() {
                    if ('@'..='~').contains(&c) {
                        break;
                    }
                }
            }
            '\r' | '\u{1b}' => {}
            c => out.push(c),
        }
    }
    out
}

fn test_run(output: &str) -> Option<OutputSummary> {
    let run = parse_test_run(output)?;
    let mut names: Vec<String> = Vec::new();
    if run.failed > 0 {
        // The files in which assertions failed, then the failed tests.
        names.extend(error_places(output).into_iter().map(|place| place.file));
        names.extend(run.failures.iter().filter_map(|name| {
            // The parameters of a test do not name it, and a sentence is no name.
            let name = name.split(['[', '(']).next().unwrap_or(name).trim_end();
            let name = name
                .rsplit(['/', ':', '#', '.'])
                .find(|part| !part.is_empty())?;
            (!name.contains(' ')).then(|| name.to_owned())
        }));
    }
    dedup(&mut names);
    names.truncate(MAX_NAMES);
    Some(OutputSummary::new(
        OutputKind::TestRun,
        run.describe(),
        names,
    ))
}

/// `+12 −3 in 2 files: a.rs, b.rs`, from a unified diff or the summary of `git diff --stat`.
fn diff(output: &str) -> Option<OutputSummary> {
    if let Some(changes) = parse_diff(output) {
        let mut names: Vec<String> = changes.iter().map(|change| change.path.clone()).collect();
        names.extend(changes.iter().flat_map(|change| change.symbols.clone()));
        dedup(&mut names);
        names.truncate(MAX_NAMES);
        return Some(OutputSummary::new(
            OutputKind::Diff,
            describe_changes(&changes),
            names,
        ));
    }
    // ` src/a.rs | 4 ++--` and ` 1 file changed, 2 insertions(+), 2 deletions(-)`.
    let line = output.lines().rfind(|line| {
        line.contains(" changed") && (line.contains(" file ") || line.contains(" files "))
    })?;
    let count = |word: &str| {
        let before = line.split_once(word)?.0;
        before.split_whitespace().next_back()?.parse::<u64>().ok()
    };
    let files: u64 = line.split_whitespace().next()?.parse().ok()?;
    let names: Vec<String> = output
        .lines()
        .filter_map(|line| Some(line.split_once(" | ")?.0.trim().to_owned()))
        .filter(|name| !name.is_empty() && !name.contains(' '))
        .take(MAX_NAMES)
        .collect();
    let (added, removed) = (
        count(" insertion").unwrap_or(0),
        count(" deletion").unwrap_or(0),
    );
    let text = describe_counts(added, removed, files as usize, &names);
    Some(OutputSummary::new(OutputKind::Diff, text, names))
}

/// `JSON with name, version, scripts`, `JSON list of 12`.
fn json(output: &str) -> Option<OutputSummary> {
    let trimmed = output.trim();
    if !trimmed.starts_with(['{', '[']) {
        return None;
    }
    let value: Value = serde_json::from_str(trimmed).ok()?;
    let text = match &value {
        Value::Object(fields) => {
            let names: Vec<String> = fields.keys().cloned().collect();
            match names.is_empty() {
                true => "empty JSON object".to_owned(),
                false => format!("JSON with {}", list(&names)),
            }
        }
        Value::Array(items) => format!("JSON list of {}", items.len()),
        _ => return None,
    };
    Some(OutputSummary::new(OutputKind::Json, text, Vec::new()))
}

/// `12 matches in 3 files: a.rs, b.rs, c.rs`.
fn search(command: &str, output: &str) -> Option<OutputSummary> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let is_search = words.iter().any(|word| {
        let program = word.rsplit('/').next().unwrap_or(word);
        matches!(program, "grep" | "rg" | "ag" | "ack" | "egrep" | "fgrep")
    });
    let mut matches = 0;
    let mut files: Vec<String> = Vec::new();
    let lines = output.lines().filter(|line| !line.trim().is_empty());
    let mut all = 0;
    for line in lines {
        all += 1;
        let Some((file, rest)) = line.split_once(':') else {
            continue;
        };
        let has_number = rest
            .split(':')
            .next()
            .is_some_and(|n| n.parse::<u64>().is_ok());
        if is_source_path(file) && (has_number || is_search) {
            matches += 1;
            files.push(file.trim_start_matches("./").to_owned());
        }
    }
    if !is_search && (matches < 3 || matches * 10 < all * 9) {
        return None;
    }
    dedup(&mut files);
    let text = match files.is_empty() {
        true if all == 1 => output.trim().to_owned(),
        true => plural(all, "match"),
        false => format!(
            "{} in {}: {}",
            plural(matches, "match"),
            plural(files.len(), "file"),
            list(&files)
        ),
    };
    files.truncate(MAX_NAMES);
    Some(OutputSummary::new(OutputKind::Search, text, files))
}

/// `14 entries: a, b, c, …`.
fn listing(command: &str, output: &str) -> Option<OutputSummary> {
    let program = command.split_whitespace().next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or(program);
    let is_listing = matches!(program, "ls" | "find" | "tree" | "fd" | "fdfind" | "dir")
        || command.starts_with("git ls-files");
    let lines: Vec<&str> = output
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("total "))
        .collect();
    let is_path = |line: &&&str| {
        !line.contains(' ') && (line.contains('/') || is_source_path(line)) && !line.contains("://")
    };
    let paths = lines.iter().filter(is_path).count();
    if !is_listing && (lines.len() < 3 || paths * 10 < lines.len() * 9) {
        return None;
    }
    let entries: Vec<String> = lines
        .iter()
        .filter_map(|line| line.split_whitespace().next_back())
        .map(|name| name.trim_start_matches("./").to_owned())
        .collect();
    let text = format!("{}: {}", plural_entries(entries.len()), list(&entries));
    Some(OutputSummary::new(OutputKind::Listing, text, Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each case: `%%% command`, the expected `kind | summary`, and the output.
    const CASES: &str = include_str!("outcome_cases.txt");

    #[test]
    fn outputs_are_summarised_by_their_kind() {
        let mut wrong = String::new();
        let mut cases = 0;
        for case in CASES.split("\n%%% ").skip(1) {
            let (command, rest) = case.split_once('\n').unwrap();
            let (expected, output) = rest.split_once('\n').unwrap();
            let found = summarise_output(command, &output.replace("\\t", "\t"));
            let found = format!("{:?} | {}", found.kind, found.text);
            if found != expected {
                wrong.push_str(&format!(
                    "{command}\n  expected {expected}\n  found    {found}\n"
                ));
            }
            cases += 1;
        }
        assert!(wrong.is_empty(), "{wrong}");
        assert!(cases >= 40, "{cases}");
    }

    #[test]
    fn a_very_long_output_is_summarised_in_linear_time() {
        let output = format!("{}\n3 passed in 0.1s\n", "x".repeat(5_000_000));
        let found = summarise_output("python -m pytest", &output);
        assert_eq!(found.text, "3 passed");
        let started = std::time::Instant::now();
        summarise_output("", &"a/b.rs:1: error: x ( ".repeat(100_000));
        for hostile in [
            "--- a\n@@ ",
            "Summary [ run: 1 passed\nFAIL [ x\n",
            "not ok 1 x\n# fail 1\n",
        ] {
            summarise_output("", &hostile.repeat(100_000));
            parse_diff(&hostile.repeat(100_000));
        }
        let places: String = (0..50_000)
            .map(|n| format!("f{n}.rs:1: error: x\n"))
            .collect();
        summarise_output("make", &places);
        assert!(started.elapsed().as_secs() < 20);
    }
}
