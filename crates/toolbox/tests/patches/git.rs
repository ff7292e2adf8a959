//! Random edits of random trees: applying the diff that real git makes must produce the new tree.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::files;
use crate::random::Random;
use crate::workspace::{Node, PatchWorkspace, Tree};

/// Names that git writes in different ways: plain, followed by a tab, quoted, escaped, and names
/// that look like its prefixes.
const NAMES: [&str; 14] = [
    "a.txt",
    "src/lib.rs",
    "with space.txt",
    "two  spaces/and more.txt",
    "grüße.txt",
    "日本語/説明.md",
    "quo\"te.txt",
    "tab\tname",
    "back\\slash",
    "a/a.txt",
    "b/b.txt",
    "a b/a b",
    "-dash",
    "deep/er/and/deeper.c",
];

/// Few words, so that lines repeat and positions are ambiguous.
const WORDS: [&str; 12] = [
    "",
    "}",
    "{",
    "foo();",
    "    bar",
    "\tbaz",
    "return x;",
    "- list",
    "+ plus",
    "@@ -1 +1 @@",
    "-- ",
    "é – “x”",
];

/// Tests `count` random edits.
pub fn rounds(count: u64) {
    if Command::new("git").arg("--version").output().is_err() {
        eprintln!("skipped: git is not installed");
        return;
    }
    let repository = Repository::new();
    let mut done = 0;
    for seed in 1u64.. {
        let mut random = Random::new(seed);
        let old = random.tree();
        let new = random.edited(&old);
        // A patch is a string, so a diff that is not UTF-8 cannot be passed.
        let Some((diff, options)) = repository
            .diff(&mut random, &old, &new)
            .filter(|(diff, _)| !diff.is_empty())
        else {
            continue;
        };
        let workspace = PatchWorkspace::new();
        for (path, node) in &old {
            workspace.put(path, node);
        }
        let result = workspace.apply_long(json!({"patch": diff}));
        assert!(
            result.is_ok(),
            "seed {seed} {options:?}: {}\n{diff}",
            result.unwrap_err()
        );
        let after: Tree = files(&workspace.tree()).into_iter().collect();
        assert_eq!(after, new, "seed {seed} {options:?}:\n{diff}");
        done += 1;
        if done == count {
            return;
        }
    }
}

/// A git repository for making diffs.
struct Repository {
    folder: PatchWorkspace,
}

impl Repository {
    fn new() -> Self {
        let repository = Self {
            folder: PatchWorkspace::new(),
        };
        repository.git(&["init", "-q"]);
        repository.git(&["config", "core.autocrlf", "false"]);
        repository.git(&["config", "core.fileMode", "true"]);
        repository
    }

    fn git(&self, args: &[&str]) -> Vec<u8> {
        let output = Command::new("git")
            .args(args)
            .current_dir(self.folder.path(""))
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        output.stdout
    }

    /// Writes a tree to the repository; returns its object id.
    fn write_tree(&self, tree: &Tree) -> String {
        for entry in std::fs::read_dir(self.folder.path("")).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with(".git") {
                std::fs::remove_dir_all(path).unwrap();
            } else if path.is_file() {
                std::fs::remove_file(path).unwrap();
            }
        }
        for (path, node) in tree {
            self.folder.put(path, node);
        }
        self.git(&["add", "-A"]);
        String::from_utf8(self.git(&["write-tree"]))
            .unwrap()
            .trim()
            .to_owned()
    }

    fn diff(&self, random: &mut Random, old: &Tree, new: &Tree) -> Option<(String, Vec<String>)> {
        // Without context, a line without CR cannot be distinguished among lines with CR.
        let min_context = if random.allow_crlf { 1 } else { 0 };
        let mut options = vec![format!("-U{}", [min_context, 1, 3, 5][random.below(4)])];
        let possible = [
            "-M",
            "-C",
            "--find-copies-harder",
            "-B",
            "--no-prefix",
            "--patience",
            "--full-index",
            "--inter-hunk-context=2",
            "-W",
        ];
        options.extend(
            possible
                .iter()
                .filter(|_| random.one_in(3))
                .map(|option| (*option).to_owned()),
        );
        let quote = format!("core.quotePath={}", random.one_in(2));
        let (old, new) = (self.write_tree(old), self.write_tree(new));
        let mut args = vec!["-c", &quote, "diff"];
        args.extend(options.iter().map(String::as_str));
        args.extend([old.as_str(), new.as_str()]);
        Some((String::from_utf8(self.git(&args)).ok()?, options))
    }
}

impl Random {
    fn tree(&mut self) -> Tree {
        let mut tree = Tree::new();
        for _ in 0..self.between(1, 5) {
            let name = NAMES[self.below(NAMES.len())];
            let node = self.file();
            tree.insert(PathBuf::from(name), node);
        }
        tree
    }

    fn file(&mut self) -> Node {
        let endings: &[&[u8]] = match self.below(4) {
            _ if !self.allow_crlf => &[b"\n"],
            0 | 1 => &[b"\n"],
            2 => &[b"\r\n"],
            _ => &[b"\n", b"\r\n"],
        };
        let size = if self.one_in(8) {
            0
        } else {
            self.between(1, 40)
        };
        let mut bytes = Vec::new();
        for line in 0..size {
            bytes.extend(self.line());
            // Invalid UTF-8 is fine in lines that no diff shows.
            if line == 0 && self.one_in(10) {
                bytes.extend(b"\xff\xfe");
            }
            bytes.extend(endings[self.below(endings.len())]);
        }
        self.maybe_without_newline(&mut bytes);
        Node::File {
            bytes,
            mode: if self.one_in(4) { 0o755 } else { 0o644 },
        }
    }

    fn line(&mut self) -> Vec<u8> {
        let word = WORDS[self.below(WORDS.len())];
        if self.one_in(2) {
            format!("{word} {}", self.below(30)).into_bytes()
        } else {
            word.as_bytes().to_vec()
        }
    }

    fn maybe_without_newline(&mut self, bytes: &mut Vec<u8>) {
        if self.one_in(4) && bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
    }

    fn edited(&mut self, old: &Tree) -> Tree {
        let mut new = old.clone();
        for (path, node) in old {
            let free = self.free_name(&new);
            match self.below(10) {
                0 => _ = new.remove(path),
                1 | 2 => {
                    let node = new.remove(path).unwrap();
                    let node = if self.one_in(2) {
                        self.slightly_changed(node)
                    } else {
                        node
                    };
                    new.insert(free, node);
                }
                3 => {
                    let node = self.slightly_changed(node.clone());
                    new.insert(free, node);
                }
                4 => {
                    let Node::File { bytes, mode } = node.clone() else {
                        continue;
                    };
                    new.insert(
                        path.clone(),
                        Node::File {
                            bytes,
                            mode: mode ^ 0o111,
                        },
                    );
                }
                5 => {
                    _ = new.insert(
                        path.clone(),
                        Node::File {
                            bytes: Vec::new(),
                            mode: 0o644,
                        },
                    )
                }
                6 => _ = new.insert(path.clone(), self.file()),
                _ => {
                    let node = self.slightly_changed(node.clone());
                    new.insert(path.clone(), node);
                }
            }
        }
        if self.one_in(3) {
            let (name, node) = (self.free_name(&new), self.file());
            new.insert(name, node);
        }
        // Swap two files, or turn a file into a folder.
        let names: Vec<PathBuf> = new.keys().cloned().collect();
        if names.len() > 1 && self.one_in(4) {
            let (first, second) = (
                new.remove(&names[0]).unwrap(),
                new.remove(&names[1]).unwrap(),
            );
            new.insert(names[0].clone(), second);
            new.insert(names[1].clone(), first);
        } else if self.one_in(8)
            && let Some(name) = names.first()
        {
            let node = new.remove(name).unwrap();
            new.insert(name.join("below.txt"), node);
        }
        new
    }

    fn free_name(&mut self, tree: &Tree) -> PathBuf {
        let name = NAMES[self.below(NAMES.len())];
        let path = Path::new(name).with_file_name(format!(
            "new {}",
            Path::new(name).display().to_string().replace('/', "_")
        ));
        if tree.contains_key(&path) {
            path.with_extension(self.next().to_string())
        } else {
            path
        }
    }

    /// Changes a few lines of a file.
    fn slightly_changed(&mut self, node: Node) -> Node {
        let Node::File { bytes, mode } = node else {
            return node;
        };
        let mut lines: Vec<Vec<u8>> = bytes
            .split_inclusive(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        for _ in 0..self.between(1, 4) {
            let at = self.below(lines.len() + 1);
            let mut line = self.line();
            line.extend(if self.allow_crlf && self.one_in(4) {
                &b"\r\n"[..]
            } else {
                b"\n"
            });
            match self.below(3) {
                0 if at < lines.len() => _ = lines.remove(at),
                1 if at < lines.len() => lines[at] = line,
                _ => {
                    if at == lines.len()
                        && let Some(last) = lines.last_mut()
                        && !last.ends_with(b"\n")
                    {
                        last.push(b'\n');
                    }
                    lines.insert(at, line);
                }
            }
        }
        let mut bytes = lines.concat();
        self.maybe_without_newline(&mut bytes);
        Node::File { bytes, mode }
    }
}
