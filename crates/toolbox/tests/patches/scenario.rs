//! Parses and runs scenarios. A scenario starts with `######## title`; its parts are
//!
//! ```text
//! === input path      a file before the patch
//! === patch           the patch
//! === args            further arguments, as JSON
//! === expected path   a file after the patch; all files must be listed, except if the patch fails
//! === stdout          the expected `stdout`
//! === error           expected parts of the error message, one per line; no file may change
//! ```
//!
//! Options in parentheses after a part: `crlf` (line endings), `no newline` (at the end), `escaped`
//! (`\r`, `\t`, `\s` for a space, `\xff`, `\\`), `755` (file mode), `unchanged` (same as the
//! input).

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::random::Random;
use crate::workspace::{Node, PatchWorkspace, Tree};

#[derive(Default)]
pub struct Scenario {
    name: String,
    input: Tree,
    expected: Tree,
    args: Value,
    stdout: Option<String>,
    error: Vec<String>,
}

pub fn read(text: &str) -> Vec<Scenario> {
    let (_, text) = text.split_once("######## ").unwrap();
    text.split("\n######## ").map(parse).collect()
}

fn parse(text: &str) -> Scenario {
    let (name, body) = text.split_once('\n').unwrap();
    let mut scenario = Scenario {
        name: name.to_owned(),
        args: json!({}),
        ..Scenario::default()
    };
    for part in format!("\n{body}").split("\n=== ").skip(1) {
        let (head, body) = part.split_once('\n').unwrap_or((part, ""));
        let (head, options) = head.split_once(" (").unwrap_or((head, ""));
        let (part, path) = head.split_once(' ').unwrap_or((head, ""));
        let options: Vec<&str> = options.trim_end_matches(')').split(", ").collect();
        let content = content(body, &options);
        let text = || String::from_utf8(content.clone()).unwrap();
        let mode = if options.contains(&"755") {
            0o755
        } else {
            0o644
        };
        let path = PathBuf::from(path);
        match part {
            "input" => {
                _ = scenario.input.insert(
                    path,
                    Node::File {
                        bytes: content,
                        mode,
                    },
                )
            }
            "expected" if options.contains(&"unchanged") => {
                let same = scenario.input[&path].clone();
                scenario.expected.insert(path, same);
            }
            "expected" => {
                _ = scenario.expected.insert(
                    path,
                    Node::File {
                        bytes: content,
                        mode,
                    },
                )
            }
            "patch" => scenario.args["patch"] = json!(text()),
            "args" => {
                let more: serde_json::Map<String, Value> = serde_json::from_str(&text()).unwrap();
                scenario.args.as_object_mut().unwrap().extend(more);
            }
            "stdout" => scenario.stdout = Some(text()),
            "error" => scenario.error = text().lines().map(str::to_owned).collect(),
            other => panic!("{name}: unknown part `{other}`"),
        }
    }
    scenario
}

fn content(body: &str, options: &[&str]) -> Vec<u8> {
    let mut text = body.trim_end_matches('\n').to_owned();
    if !text.is_empty() && !options.contains(&"no newline") {
        text.push('\n');
    }
    if options.contains(&"crlf") {
        text = text.replace('\n', "\r\n");
    }
    if options.contains(&"escaped") {
        unescape(&text)
    } else {
        text.into_bytes()
    }
}

fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.push(match bytes.next().unwrap() {
            b'r' => b'\r',
            b't' => b'\t',
            b's' => b' ',
            b'x' => {
                let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            other => other,
        });
    }
    out
}

impl Scenario {
    /// Applies the patch and compares the result with the expected one.
    pub fn check(&self) -> Result<(), String> {
        let workspace = PatchWorkspace::new();
        for (path, node) in &self.input {
            workspace.put(path, node);
        }
        let before = workspace.tree();
        let result = workspace.apply(&self.args);
        let after = workspace.tree();
        let fail = |what: String| Err(format!("{}: {what}", self.name));
        match &result {
            Ok(value) if self.error.is_empty() => {
                if self
                    .stdout
                    .as_deref()
                    .is_some_and(|stdout| value["stdout"] != json!(stdout))
                {
                    return fail(format!("stdout is {}", value["stdout"]));
                }
                let files: Tree = after
                    .into_iter()
                    .filter(|(_, node)| *node != Node::Folder)
                    .collect();
                if files != self.expected {
                    return fail(format!("expected {:#?}\nfound {files:#?}", self.expected));
                }
                Ok(())
            }
            Ok(value) => fail(format!("should fail, but returned {value}")),
            Err(error) if self.error.is_empty() => fail(format!("failed: {error}")),
            Err(error) => match self.error.iter().find(|part| !error.contains(*part)) {
                Some(part) => fail(format!("expected `{part}` in the error: {error}")),
                None if after != before => fail(format!("failed, but changed files: {after:#?}")),
                None => Ok(()),
            },
        }
    }
}

impl Scenario {
    /// Applies the patch with a few corrupted lines. It may fail, but must not panic, and then must
    /// not change any file.
    pub fn survives(&self, random: &mut Random) {
        let Some(patch) = self.args["patch"].as_str() else {
            return;
        };
        let mut lines: Vec<String> = patch.lines().map(str::to_owned).collect();
        for _ in 0..random.between(1, 3) {
            let (at, other) = (random.below(lines.len()), random.below(lines.len()));
            match random.below(7) {
                0 => _ = lines.remove(at),
                1 => lines.insert(at, lines[other].clone()),
                2 => lines.swap(at, other),
                3 => lines[at] = lines[at].chars().skip(1).collect(),
                4 => {
                    lines[at] = lines[at]
                        .chars()
                        .map(|c| if c.is_ascii_digit() { '9' } else { c })
                        .collect()
                }
                5 => lines[at].insert_str(0, ["+", "-", " ", "@@ ", "*** ", "\\"][random.below(6)]),
                _ => lines.truncate(at),
            }
            if lines.is_empty() {
                return;
            }
        }
        let workspace = PatchWorkspace::new();
        for (path, node) in &self.input {
            workspace.put(path, node);
        }
        let before = workspace.tree();
        let mut args = self.args.clone();
        args["patch"] = json!(lines.join("\n"));
        if let Err(error) = workspace.apply_long(args) {
            assert!(
                !error.contains("broke"),
                "{}: {error}\n{}",
                self.name,
                lines.join("\n")
            );
            assert_eq!(
                workspace.tree(),
                before,
                "{}: {error}\n{}",
                self.name,
                lines.join("\n")
            );
        }
    }
}
