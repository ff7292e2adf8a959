//! Rules about files, dependencies and signatures: one test per rule.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use selvedge_tidy::{assert_none, numbered_lines, root, sources};

/// The maximum number of lines of a Rust file.
const MAX_LINES: usize = 600;

/// Files that were longer when the limit was introduced. Remove a file's line when it is shorter.
const LONG_FILES: &[&str] = &[
    "crates/agent/tests/turns.rs",
    "crates/cli/tests/commands.rs",
    "crates/cli/tests/exec.rs",
    "crates/confine/src/init_process.rs",
    "crates/confine/tests/confinement.rs",
    "crates/journal/tests/storage.rs",
    "crates/mcp/tests/faults.rs",
    "crates/models/tests/answers.rs",
    "crates/models/tests/requests.rs",
    "crates/script/src/analysis.rs",
    "crates/script/tests/functional.rs",
    "crates/toolbox/tests/approvals.rs",
    "crates/toolbox/tests/turn_diff.rs",
    "crates/toolbox/tests/web.rs",
    "crates/tools/src/orchestrator.rs",
];

/// Files that are used with `include!`, where `//!` is not allowed.
const INCLUDED_FILES: &[&str] = &["crates/protocol/src/error_codes.rs"];

/// Text that must not occur in certain files. To add a rule, add a row.
struct BannedText {
    /// The start of the paths the rule applies to.
    path_prefix: &'static str,
    /// The end of the paths the rule applies to.
    path_suffix: &'static str,
    /// Texts that no line may contain.
    texts: &'static [&'static str],
    reason: &'static str,
}

// Each text is written in two parts, so that this file does not contain it.
const BANNED_TEXTS: &[BannedText] = &[
    BannedText {
        path_prefix: "",
        path_suffix: "",
        texts: &[
            concat!("/ro", "ot/"),
            concat!("\"/wo", "rk/"),
            concat!(" /wo", "rk/"),
        ],
        reason: "a path of one machine does not belong in the repository",
    },
    BannedText {
        path_prefix: "",
        path_suffix: "",
        texts: &[
            concat!("arti", "factory"),
            concat!("index.", "crates.io"),
            concat!("static.", "crates.io"),
            concat!("registry.", "npmjs.org"),
            concat!("files.", "pythonhosted.org"),
            concat!("pypi.", "org/simple"),
        ],
        reason: "name the package, not the registry host",
    },
];

#[test]
fn forbidden_text_does_not_occur() {
    let mut problems = Vec::new();
    for (path, text) in sources() {
        for rule in BANNED_TEXTS {
            if !path.starts_with(rule.path_prefix) || !path.ends_with(rule.path_suffix) {
                continue;
            }
            for (number, line) in numbered_lines(&text) {
                for found in rule.texts.iter().filter(|text| line.contains(**text)) {
                    problems.push(format!("{path}:{number}: `{found}`: {}", rule.reason));
                }
            }
        }
    }
    assert_none(problems);
}

#[test]
fn every_rust_file_begins_with_a_description() {
    let without = sources().into_iter().filter(|(path, text)| {
        path.ends_with(".rs")
            && !path.ends_with("/tests.rs")
            && !INCLUDED_FILES.contains(&path.as_str())
            && !text.starts_with("//! ")
    });
    assert_none(without.map(|(path, _)| {
        format!("{path}:1: begin with `//! ` and one sentence that says what the file is for")
    }));
}

#[test]
fn rust_files_are_short_enough() {
    let mut problems = Vec::new();
    for (path, text) in sources() {
        if !path.ends_with(".rs") {
            continue;
        }
        let lines = text.lines().count();
        match LONG_FILES.contains(&path.as_str()) {
            false if lines > MAX_LINES => problems.push(format!(
                "{path}:{MAX_LINES}: {lines} lines, limit {MAX_LINES}: split the file by topic"
            )),
            true if lines <= MAX_LINES => problems.push(format!(
                "{path}:1: {lines} lines: remove the file from LONG_FILES in tidy/tests/structure.rs"
            )),
            _ => {}
        }
    }
    for path in LONG_FILES {
        if !root().join(path).exists() {
            problems.push(format!(
                "{path}:1: does not exist: remove it from LONG_FILES in tidy/tests/structure.rs"
            ));
        }
    }
    assert_none(problems);
}

/// Tools that the crate `tools` defines itself.
const TOOLS_OF_TOOLS: &[&str] = &["search", "spawn.exec", "spawn.wait", "spawn.cancel"];

/// Returns the documented names of tools, as in scripts and in snake_case.
fn documented_tools() -> BTreeSet<String> {
    let docs = fs::read_to_string(root().join("docs/tools.md")).unwrap();
    let headings = docs.lines().filter_map(|line| line.strip_prefix("### `"));
    let names = headings.filter_map(|rest| rest.strip_suffix('`'));
    let mut tools = BTreeSet::new();
    for name in names.filter(|name| !TOOLS_OF_TOOLS.contains(name)) {
        let snake = |c: char| match c.is_ascii_uppercase() {
            true => format!("_{}", c.to_ascii_lowercase()),
            false => c.to_string(),
        };
        tools.insert(name.chars().map(snake).collect());
        tools.insert(name.to_owned());
    }
    tools
}

/// Files that write to standard output and error, or draw progress there. They make hidden
/// characters of outside text visible on a terminal, so no other file may write there.
const TERMINAL_WRITERS: &[&str] = &[
    "crates/cli/src/chat/app.rs",
    "crates/cli/src/chat/terminal.rs",
    "crates/cli/src/memory/import.rs",
    "crates/cli/src/output.rs",
    "crates/cli/src/progress.rs",
];

/// The file that finds the path of the terminal through the descriptors of the streams.
const TERMINAL_FINDER: &str = "crates/cli/src/terminal_input.rs";

#[test]
fn only_a_few_files_write_to_the_terminal() {
    let mut problems = Vec::new();
    for (path, text) in sources() {
        let is_source = path.starts_with("crates/") && path.contains("/src/");
        if !is_source || !path.ends_with(".rs") || TERMINAL_WRITERS.contains(&path.as_str()) {
            continue;
        }
        for (number, line) in numbered_lines(&text) {
            let code = line.split("//").next().unwrap_or_default();
            let writes = [
                "io::stdout()",
                "io::stderr()",
                "println!(",
                "print!(",
                "indicatif::{",
            ]
            .into_iter()
            .find(|text| code.contains(text));
            let is_question = code.contains("is_terminal()")
                || path == TERMINAL_FINDER && code.contains(".as_fd()");
            if let Some(found) = writes
                && !is_question
            {
                problems.push(format!(
                    "{path}:{number}: `{found}`: write with crates/cli/src/output.rs"
                ));
            }
        }
    }
    assert_none(problems);
}

#[test]
fn the_tools_crate_names_no_built_in_tool() {
    let tools = documented_tools();
    assert!(tools.contains("read_file") && tools.contains("agents.launch.sync"));
    let mut problems = Vec::new();
    for (path, text) in sources() {
        if !path.starts_with("crates/tools/src/") {
            continue;
        }
        for (number, line) in numbered_lines(&text) {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            let dotted = tools
                .iter()
                .find(|name| name.contains('.') && line.contains(*name));
            let named = words.find(|word| tools.contains(*word));
            if let Some(name) = named.or(dotted.map(String::as_str)) {
                problems.push(format!("{path}:{number}: names the tool `{name}`"));
            }
        }
    }
    assert_none(problems);
}

#[test]
fn public_functions_return_error_types() {
    let mut problems = Vec::new();
    for (path, text) in sources() {
        if !path.starts_with("crates/") || !path.contains("/src/") || !path.ends_with(".rs") {
            continue;
        }
        let strings = public_signatures(&text).filter(|(_, signature)| {
            signature.contains("Result<") && signature.trim_end().ends_with(", String>")
        });
        problems.extend(strings.map(|(number, _)| {
            format!("{path}:{number}: return an error type instead of `String`")
        }));
    }
    assert_none(problems);
}

/// Returns the signatures of public functions, each joined to one line, with its line number.
fn public_signatures(text: &str) -> impl Iterator<Item = (usize, String)> {
    let starts = numbered_lines(text).filter(|(_, line)| {
        let line = line.trim_start();
        line.starts_with("pub fn ") || line.starts_with("pub async fn ")
    });
    starts.map(|(number, _)| {
        let rest = text.lines().skip(number - 1).collect::<Vec<_>>().join(" ");
        let end = rest.find(['{', ';']).unwrap_or(rest.len());
        (number, rest[..end].to_owned())
    })
}

/// Compares the dependency table of ARCHITECTURE.md with the manifests, in both directions.
#[test]
fn crates_depend_on_each_other_as_documented() {
    let documented = documented_dependencies();
    let mut problems = Vec::new();
    for (name, manifest) in manifests() {
        let path = format!("crates/{name}/Cargo.toml");
        match documented.get(&name) {
            None => problems.push(format!("{path}:1: `{name}` has no row in ARCHITECTURE.md")),
            Some(row) if row.0 != manifest => problems.push(format!(
                "{path}:1: uses {manifest:?}, but ARCHITECTURE.md:{} says {:?}",
                row.1, row.0
            )),
            Some(_) => {}
        }
    }
    for (name, (_, number)) in &documented {
        if !root().join("crates").join(name).is_dir() {
            problems.push(format!(
                "ARCHITECTURE.md:{number}: there is no crate `{name}`"
            ));
        }
    }
    assert_none(problems);
}

/// The crates of this workspace that a crate depends on.
#[derive(Debug, Default, PartialEq, Eq)]
struct Dependencies {
    uses: Vec<String>,
    /// Additional dependencies of its tests.
    tests: Vec<String>,
}

/// Reads the rows `| crate | uses | in tests also |` below the heading "Who may use whom", with
/// their line numbers.
fn documented_dependencies() -> BTreeMap<String, (Dependencies, usize)> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let names = |cell: &str| sorted(cell.split('`').skip(1).step_by(2));
    let rows = numbered_lines(&text)
        .skip_while(|(_, line)| *line != "### Who may use whom")
        .skip_while(|(_, line)| !line.starts_with('|'))
        .take_while(|(_, line)| line.starts_with('|'))
        .skip(2);
    rows.map(|(number, line)| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        assert_eq!(
            cells.len(),
            3,
            "ARCHITECTURE.md:{number}: a row has three cells"
        );
        let name = names(cells[0]).join("");
        let (uses, tests) = (names(cells[1]), names(cells[2]));
        (name, (Dependencies { uses, tests }, number))
    })
    .collect()
}

/// Reads the dependencies on crates of this workspace from each manifest below `crates/`.
fn manifests() -> Vec<(String, Dependencies)> {
    let mut all = Vec::new();
    for (path, text) in sources() {
        let Some(name) = path
            .strip_prefix("crates/")
            .and_then(|rest| rest.strip_suffix("/Cargo.toml"))
        else {
            continue;
        };
        let (mut uses, mut tests) = (Vec::new(), Vec::new());
        let mut section = "";
        for line in text.lines() {
            if line.starts_with('[') {
                section = line.trim_matches(['[', ']']);
            } else if let Some(rest) = line.strip_prefix("selvedge-") {
                let used = rest.split(['.', ' ', '=']).next().unwrap_or_default();
                if section.ends_with("dev-dependencies") {
                    tests.push(used);
                } else if section.ends_with("dependencies") {
                    uses.push(used);
                }
            }
        }
        all.push((
            name.to_owned(),
            Dependencies {
                uses: sorted(uses),
                tests: sorted(tests),
            },
        ));
    }
    all
}

fn sorted<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<String> = names.into_iter().map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}
