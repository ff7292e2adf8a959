//! Rules about Markdown files: line width, and links that lead somewhere.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};

use selvedge_tidy::{assert_none, numbered_lines, root, sources};

/// The longest line of prose, in characters.
const MAX_COLUMNS: usize = 100;

#[test]
fn prose_fits_the_line_width() {
    let mut problems = Vec::new();
    for (path, text) in pages() {
        for (number, line) in prose(&text) {
            let columns = line.chars().count();
            // A table row or a link cannot be broken.
            let breakable = !line.starts_with('|') && line.trim().contains(' ');
            if columns > MAX_COLUMNS && breakable {
                problems.push(format!("{path}:{number}: {columns} columns"));
            }
        }
    }
    assert_none(problems);
}

#[test]
fn links_lead_to_files_and_headings() {
    let anchors: BTreeMap<String, BTreeSet<String>> =
        pages().map(|(path, text)| (path, anchors(&text))).collect();
    let mut problems = Vec::new();
    for (path, text) in pages() {
        for (number, line) in prose(&text) {
            for target in targets(line) {
                if target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
                let file = match file {
                    "" => path.clone(),
                    file => resolved(&path, file),
                };
                if !root().join(&file).exists() {
                    problems.push(format!("{path}:{number}: there is no file `{file}`"));
                } else if !anchor.is_empty()
                    && !anchors
                        .get(&file)
                        .is_some_and(|known| known.contains(anchor))
                {
                    problems.push(format!(
                        "{path}:{number}: `{file}` has no heading `#{anchor}`"
                    ));
                }
            }
        }
    }
    assert_none(problems);
}

#[test]
fn names_in_the_architecture_page_exist() {
    let sources = sources();
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for (path, text) in &sources {
        if !path.ends_with(".md") {
            known.extend(path.split(['/', '.']));
            known.extend(text.split(|c: char| !c.is_alphanumeric() && c != '_'));
        }
    }
    let (_, page) = sources
        .iter()
        .find(|(path, _)| path == "ARCHITECTURE.md")
        .unwrap();
    let mut problems = Vec::new();
    for (number, line) in prose(page) {
        for name in line.split('`').skip(1).step_by(2) {
            let is_path = name.split("::").all(|part| {
                !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_')
            });
            let missing = name.split("::").find(|part| !known.contains(part));
            if let Some(part) = missing.filter(|_| is_path) {
                problems.push(format!("ARCHITECTURE.md:{number}: `{part}` does not exist"));
            }
        }
    }
    assert_none(problems);
}

/// Markdown written for people. Test suites and the sample project are data.
fn pages() -> impl Iterator<Item = (String, String)> {
    sources().into_iter().filter(|(path, _)| {
        path.ends_with(".md") && (!path.contains('/') || path.starts_with("docs/"))
    })
}

/// Iterates over the lines outside of code fences, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    numbered_lines(text).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Returns the targets of inline links in a line. Code between backticks has no links.
fn targets(line: &str) -> Vec<String> {
    let prose: String = line.split('`').step_by(2).collect();
    let links = prose.split("](").skip(1);
    links
        .filter_map(|rest| rest.split(')').next())
        .map(str::to_owned)
        .collect()
}

/// Returns the anchors that GitHub makes of the headings of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter_map(|(_, line)| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len()).then(|| title.trim().to_lowercase())
    });
    headings
        .map(|title| {
            let kept = title
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// Returns the path from the root of a link that stands in a page.
fn resolved(page: &str, link: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}
