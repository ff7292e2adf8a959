//! Runs `tsc` on scripts with the generated declarations, and classifies what it reports.

use std::path::{Path, PathBuf};
use std::process::Command;

use oxc_allocator::Allocator;
use oxc_ast::ast::CallExpression;
use oxc_ast_visit::{Visit, walk};
use oxc_parser::{ParseOptions, Parser};
use oxc_span::{GetSpan, SourceType};
use selvedge_tools::Registry;

use crate::corpus::CorpusScript;

/// Lines before the script in the file for `tsc`.
const LINES_BEFORE: u32 = 2;

/// Error codes of `tsc` for the mistakes that the type check looks for. Besides those that
/// `classify` counts: 7053 is a property in brackets, 2349 a call of a value, 2769 a call that no
/// overload allows.
const MISTAKE_CODES: [u32; 25] = [
    2322, 2339, 2345, 2349, 2353, 2362, 2363, 2365, 2367, 2461, 2488, 2540, 2542, 2548, 2551, 2554,
    2559, 2561, 2704, 2739, 2740, 2741, 2769, 2801, 7053,
];

/// An error that `tsc` reports.
#[derive(Debug, Clone)]
pub struct TscDiagnostic {
    pub line: u32,
    pub code: u32,
    pub message: String,
    /// The kind of mistake, if it is one that the type check looks for.
    pub kind: Option<&'static str>,
    /// First and last line of the tool call with the error in its arguments.
    call: Option<(u32, u32)>,
}

impl TscDiagnostic {
    /// Whether a finding on this line is about the same mistake.
    pub fn confirms(&self, kind: &str, line: u32) -> bool {
        if !MISTAKE_CODES.contains(&self.code) {
            return false;
        }
        let (first, last) = self.call.unwrap_or((self.line, self.line));
        self.line == line || (kind == "argument" && (first..=last).contains(&line))
    }
}

fn tsc() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/node_modules/.bin/tsc")
}

/// Whether TypeScript is installed. Its absence is a failure in CI, and a note otherwise.
pub fn is_installed() -> bool {
    let installed = tsc().exists();
    if !installed {
        assert!(
            std::env::var_os("CI").is_none(),
            "TypeScript is not installed: run `make test`, which installs it"
        );
        eprintln!("skipped: TypeScript is not installed (`make test` installs it where npm is)");
    }
    installed
}

/// Returns what `tsc --strict` reports for each script, with the declarations of a registry. `None`
/// if the script is not valid TypeScript inside a function.
pub fn diagnostics(
    registry: &Registry,
    scripts: &[&CorpusScript],
) -> Vec<Option<Vec<TscDiagnostic>>> {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let globals = &*selvedge_script::GLOBAL_DECLARATIONS;
    write(
        "selvedge.d.ts",
        &format!("{}{globals}", selvedge_tools::declarations(registry)),
    );
    for (index, script) in scripts.iter().enumerate() {
        let text = format!(
            "export {{}};\nasync function script() {{\n{}\n}}\n",
            script.code
        );
        write(&format!("s{index}.ts"), &text);
    }
    let config = r#"{"compilerOptions": {"strict": true, "noEmit": true, "target": "esnext",
        "lib": ["esnext"], "types": [], "module": "esnext", "moduleDetection": "force"}}"#;
    write("tsconfig.json", config);
    let mut found = vec![Some(Vec::new()); scripts.len()];
    // If there is a syntax error, `tsc` reports nothing else about any file.
    let errors = loop {
        let errors = run_tsc(dir.path());
        if errors.is_empty()
            || errors
                .iter()
                .any(|error| (2000..8000).contains(&error.code))
        {
            break errors;
        }
        for error in errors {
            found[error.index] = None;
            write(&format!("s{}.ts", error.index), "export {};");
        }
    };
    let mut calls: Vec<Option<Vec<ToolCallSpan>>> = vec![None; scripts.len()];
    for error in errors {
        let TscError {
            index,
            line,
            column,
            code,
            message,
        } = error;
        let source = &scripts[index].code;
        let calls = calls[index].get_or_insert_with(|| tool_calls(source));
        let call = calls.iter().find(|call| call.contains(line, column));
        let kind = classify(code, &message, call.is_some(), source, (line, column));
        let call = call.map(|call| (call.start.0, call.end.0));
        found[index].as_mut().unwrap().push(TscDiagnostic {
            line,
            code,
            message,
            kind,
            call,
        });
    }
    found
}

/// A line of the output of `tsc`.
struct TscError {
    index: usize,
    line: u32,
    column: u32,
    code: u32,
    message: String,
}

fn run_tsc(dir: &Path) -> Vec<TscError> {
    let output = Command::new(tsc())
        .args(["-p", ".", "--pretty", "false"])
        .current_dir(dir)
        .output()
        .unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let errors = output.lines().filter_map(|line| {
        let (place, rest) = line.split_once("): error TS")?;
        let (file, position) = place.split_once('(')?;
        let index = file.strip_prefix('s').and_then(|it| it.strip_suffix(".ts"));
        let index = index.and_then(|index| index.parse().ok());
        let (line, column) = position.split_once(',')?;
        let (code, message) = rest.split_once(": ")?;
        Some(TscError {
            index: index.unwrap_or_else(|| panic!("tsc rejects the declarations: {rest}")),
            line: line.parse::<u32>().unwrap().saturating_sub(LINES_BEFORE),
            column: column.parse().unwrap(),
            code: code.parse().unwrap(),
            message: message.to_owned(),
        })
    });
    errors.collect()
}

/// Returns the kind of mistake that an error code of `tsc` stands for.
fn classify(
    code: u32,
    message: &str,
    in_call: bool,
    source: &str,
    (line, column): (u32, u32),
) -> Option<&'static str> {
    // A promise of another type is no missing `await`.
    let wants_promise = message.contains("to type 'Promise<")
        || message.contains("parameter of type 'Promise<")
        || message.contains("and 'Promise<");
    let about_promise = message.contains("'Promise<") && !wants_promise;
    match code {
        // A tool that does not exist is found by another check.
        2339 | 2551 if is_after_tools(source, line, column) => None,
        // A value of unknown type may have any property, and code that is not reached reads none.
        2339 if message.ends_with("on type 'unknown'.") => None,
        2339 if message.ends_with("on type 'never'.") => None,
        2339 | 2551 if about_promise => Some("await"),
        2339 | 2551 if message.contains("on type 'readonly ") => Some("readonly"),
        2339 | 2551 => Some("property"),
        2540 | 2542 | 2704 => Some("readonly"),
        2801 => Some("await"),
        2362 | 2363 | 2365 | 2367 | 2488 | 2461 | 2548 if about_promise => Some("await"),
        2345 | 2322 if about_promise => Some("await"),
        2345 | 2322 | 2353 | 2554 | 2559 | 2561 | 2739 | 2740 | 2741 if in_call => Some("argument"),
        _ => None,
    }
}

/// Whether a name stands directly after `tools.` or a namespace of tools.
fn is_after_tools(source: &str, line: u32, column: u32) -> bool {
    let text = source
        .lines()
        .nth((line as usize).saturating_sub(1))
        .unwrap_or_default();
    let before: String = text.chars().take(column as usize - 1).collect();
    let before = before.trim_end_matches(['.', '?']);
    let word = before
        .rsplit(|c: char| !c.is_alphanumeric() && c != '.' && c != '_')
        .next();
    word.is_some_and(|word| word == "tools" || word.starts_with("tools."))
}

/// The arguments of a call `tools.x(…)`: line and column of both ends.
#[derive(Debug, Clone)]
struct ToolCallSpan {
    start: (u32, u32),
    end: (u32, u32),
}

impl ToolCallSpan {
    fn contains(&self, line: u32, column: u32) -> bool {
        (self.start..self.end).contains(&(line, column))
    }
}

fn tool_calls(source: &str) -> Vec<ToolCallSpan> {
    struct Finder<'s>(&'s str, Vec<ToolCallSpan>);
    impl<'a> Visit<'a> for Finder<'_> {
        fn visit_call_expression(&mut self, it: &CallExpression<'a>) {
            // Inner calls come first: an error belongs to the innermost call.
            walk::walk_call_expression(self, it);
            let callee = &self.0[..it.callee.span().end as usize];
            let path = callee.rsplit(|c: char| !c.is_alphanumeric() && c != '.' && c != '_');
            if path
                .map(str::to_owned)
                .next()
                .is_some_and(|path| path.starts_with("tools."))
            {
                let position = |offset: u32| {
                    let before = &self.0[..offset as usize];
                    let line = before.matches('\n').count() as u32 + 1;
                    let column = before.rsplit('\n').next().unwrap().chars().count() as u32 + 1;
                    (line, column)
                };
                let (start, end) = (position(it.callee.span().start), position(it.span.end));
                self.1.push(ToolCallSpan { start, end });
            }
        }
    }
    let allocator = Allocator::default();
    let options = ParseOptions {
        allow_return_outside_function: true,
        ..ParseOptions::default()
    };
    let parsed = Parser::new(&allocator, source, SourceType::ts().with_module(true))
        .with_options(options)
        .parse();
    let mut finder = Finder(source, Vec::new());
    finder.visit_program(&parsed.program);
    finder.1
}
