//! Loads the corpus of scripts. `README.md` describes its files.

use std::path::{Path, PathBuf};

/// Where a script comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScriptGroup {
    /// `cases/models.md`.
    Models,
    /// `cases/hostile.md`.
    Hostile,
    /// The documentation and `examples/`.
    Docs,
    /// Written for this corpus, without a mistake.
    Written,
    /// Written for this corpus, with one mistake.
    Seeded,
    /// Written without knowledge of the implementation.
    HeldOut,
    /// A written script with a change at one place, made by [`mutations`].
    Mutated,
}

/// What the corpus says about a script.
#[derive(Debug, Clone)]
pub enum Expectation {
    Unknown,
    Fine,
    Mistake { kind: String, line: u32 },
}

#[derive(Debug, Clone)]
pub struct CorpusScript {
    pub name: String,
    pub code: String,
    pub group: ScriptGroup,
    pub expectation: Expectation,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the files in a folder with an extension, sorted by name.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == extension));
    paths.sort();
    paths
}

/// Returns the code blocks of a Markdown text with their info strings and the heading above each.
fn blocks(text: &str) -> Vec<(String, String, String)> {
    let (mut found, mut heading) = (Vec::new(), String::new());
    let mut block: Option<(String, Vec<&str>)> = None;
    for line in text.lines() {
        match &mut block {
            Some((info, lines)) if line == "```" => {
                found.push((heading.clone(), info.clone(), lines.join("\n")));
                block = None;
            }
            Some((_, lines)) => lines.push(line),
            None => match line.strip_prefix("```") {
                Some(info) => block = Some((info.trim().to_owned(), Vec::new())),
                None if line.starts_with('#') => {
                    heading = line.trim_start_matches('#').trim().to_owned();
                }
                None => {}
            },
        }
    }
    found
}

/// Returns all scripts.
pub fn all() -> Vec<CorpusScript> {
    let here = root().join("crates/script/tests");
    let mut scripts = Vec::new();
    let unknown = Expectation::Unknown;
    for (file, group) in [
        ("models.md", ScriptGroup::Models),
        ("hostile.md", ScriptGroup::Hostile),
    ] {
        let text = std::fs::read_to_string(here.join("cases").join(file)).unwrap();
        push_blocks(&mut scripts, &text, file, group, &unknown);
    }
    let docs = files(&root().join("docs"), "md");
    for path in docs.into_iter().chain([root().join("README.md")]) {
        let text = std::fs::read_to_string(&path).unwrap();
        push_blocks(
            &mut scripts,
            &text,
            &file_name(&path),
            ScriptGroup::Docs,
            &unknown,
        );
    }
    for path in files(&root().join("examples"), "ts") {
        scripts.push(CorpusScript {
            name: file_name(&path),
            code: std::fs::read_to_string(&path).unwrap(),
            group: ScriptGroup::Docs,
            expectation: Expectation::Fine,
        });
    }
    for path in files(&here.join("typecheck"), "md") {
        if file_name(&path) != "README.md" {
            push_written(
                &mut scripts,
                &std::fs::read_to_string(&path).unwrap(),
                &path,
            );
        }
    }
    for path in files(&here.join("typecheck/heldout"), "ts") {
        scripts.push(held_out(&path));
    }
    scripts
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

fn push_blocks(
    scripts: &mut Vec<CorpusScript>,
    text: &str,
    file: &str,
    group: ScriptGroup,
    expectation: &Expectation,
) {
    for (index, (heading, info, code)) in blocks(text).into_iter().enumerate() {
        if info == "ts" && !code.starts_with("declare const tools") {
            scripts.push(CorpusScript {
                name: format!("{file}#{index} {heading}"),
                code,
                group,
                expectation: expectation.clone(),
            });
        }
    }
}

/// Adds the scripts of a file, and their variants with a mistake.
fn push_written(scripts: &mut Vec<CorpusScript>, text: &str, path: &Path) {
    let mut base = String::new();
    for (index, (heading, info, code)) in blocks(text).into_iter().enumerate() {
        let name = format!("{}#{index} {heading}", file_name(path));
        if info == "ts" {
            base = code.clone();
            scripts.push(CorpusScript {
                name,
                code,
                group: ScriptGroup::Written,
                expectation: Expectation::Fine,
            });
            continue;
        }
        let kind = info.strip_prefix("mistake ");
        let kind = kind.unwrap_or_else(|| panic!("{name}: unknown block `{info}`"));
        let part = |mark: &str| {
            let mut lines = code.lines().filter_map(|line| line.strip_prefix(mark));
            let only = lines
                .next()
                .unwrap_or_else(|| panic!("{name}: no line `{mark}`"));
            only.trim().to_owned()
        };
        let (old, new) = (part("-"), part("+"));
        let at = base
            .find(&old)
            .unwrap_or_else(|| panic!("{name}: `{old}` is not there"));
        let line = base[..at].matches('\n').count() as u32 + 1;
        scripts.push(CorpusScript {
            name,
            code: base.replacen(&old, &new, 1),
            group: ScriptGroup::Seeded,
            expectation: Expectation::Mistake {
                kind: kind.to_owned(),
                line,
            },
        });
    }
}

/// Reads a script whose first line is `// expect: ok` or `// expect: KIND LINE`.
fn held_out(path: &Path) -> CorpusScript {
    let code = std::fs::read_to_string(path).unwrap();
    let first = code.lines().next().unwrap_or_default();
    let expected = first.split("expect:").nth(1).map(str::trim).unwrap_or("ok");
    let expectation = match expected.split_once(' ') {
        None => Expectation::Fine,
        Some((kind, line)) => Expectation::Mistake {
            kind: kind.to_owned(),
            line: line.trim().parse().unwrap(),
        },
    };
    CorpusScript {
        name: file_name(path),
        code,
        group: ScriptGroup::HeldOut,
        expectation,
    }
}

/// Returns variants of the scripts without mistakes, each with one change: an `await` is removed,
/// or a property has another name. Not all of them are mistakes; `tsc` decides.
pub fn mutations(scripts: &[CorpusScript]) -> Vec<CorpusScript> {
    let written = scripts
        .iter()
        .filter(|script| script.group == ScriptGroup::Written);
    let mut mutated = Vec::new();
    for script in written {
        let code = &script.code;
        let mut push = |code: String, at: usize| {
            let line = code[..at].matches('\n').count() + 1;
            mutated.push(CorpusScript {
                name: format!("{} mutated in line {line} at {at}", script.name),
                code,
                group: ScriptGroup::Mutated,
                expectation: Expectation::Unknown,
            });
        };
        for (at, word) in code.match_indices("await ") {
            push(format!("{}{}", &code[..at], &code[at + word.len()..]), at);
        }
        for (at, _) in code.match_indices('.') {
            let name = &code[at + 1..];
            let end = name
                .find(|c: char| !c.is_alphanumeric())
                .unwrap_or(name.len());
            let is_name = name.starts_with(|c: char| c.is_ascii_lowercase());
            if is_name && !code[..at].ends_with("tools") && !code[..at].ends_with('.') {
                let end = at + 1 + end;
                push(format!("{}s{}", &code[..end], &code[end..]), at);
            }
        }
    }
    mutated
}
