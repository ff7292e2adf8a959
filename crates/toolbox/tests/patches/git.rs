//! Random edits of random trees: real git says what changed, and the tool must make the one from the other.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::chance::Chance;
use crate::files;
use crate::place::{Node, Place, Tree};

/// Names git writes in all its ways: plain, with a tab after them, quoted, escaped, and like its own prefixes.
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

/// Few words, so that lines repeat and places are not unique.
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

pub fn rounds(count: u64) {
    if Command::new("git").arg("--version").output().is_err() {
        eprintln!("no git here");
        return;
    }
    let bench = Bench::new();
    let mut done = 0;
    for seed in 1u64.. {
        let mut chance = Chance::new(seed);
        let old = chance.tree();
        let new = chance.edited(&old);
        // A patch is text: a diff that shows bytes which are not cannot be given.
        let Some((diff, options)) = bench
            .diff(&mut chance, &old, &new)
            .filter(|(diff, _)| !diff.is_empty())
        else {
            continue;
        };
        let place = Place::new();
        for (path, node) in &old {
            place.put(path, node);
        }
        let result = place.apply_long(json!({"patch": diff}));
        assert!(
            result.is_ok(),
            "seed {seed} {options:?}: {}\n{diff}",
            result.unwrap_err()
        );
        let after: Tree = files(&place.tree()).into_iter().collect();
        assert_eq!(after, new, "seed {seed} {options:?}:\n{diff}");
        done += 1;
        if done == count {
            return;
        }
    }
}

/// A repository to make diffs in.
struct Bench {
    repository: Place,
}

impl Bench {
    fn new() -> Self {
        let bench = Self {
            repository: Place::new(),
        };
        bench.git(&["init", "-q"]);
        bench.git(&["config", "core.autocrlf", "false"]);
        bench.git(&["config", "core.fileMode", "true"]);
        bench
    }

    fn git(&self, args: &[&str]) -> Vec<u8> {
        let output = Command::new("git")
            .args(args)
            .current_dir(self.repository.path(""))
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

    /// Has git take in a tree; returns its id.
    fn record(&self, tree: &Tree) -> String {
        for entry in std::fs::read_dir(self.repository.path("")).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with(".git") {
                std::fs::remove_dir_all(path).unwrap();
            } else if path.is_file() {
                std::fs::remove_file(path).unwrap();
            }
        }
        for (path, node) in tree {
            self.repository.put(path, node);
        }
        self.git(&["add", "-A"]);
        String::from_utf8(self.git(&["write-tree"]))
            .unwrap()
            .trim()
            .to_owned()
    }

    fn diff(&self, chance: &mut Chance, old: &Tree, new: &Tree) -> Option<(String, Vec<String>)> {
        // Without context nobody can tell that a line without CR was meant among lines with it.
        let least = if chance.crs { 1 } else { 0 };
        let mut options = vec![format!("-U{}", [least, 1, 3, 5][chance.below(4)])];
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
                .filter(|_| chance.one_in(3))
                .map(|option| (*option).to_owned()),
        );
        let quote = format!("core.quotePath={}", chance.one_in(2));
        let (old, new) = (self.record(old), self.record(new));
        let mut args = vec!["-c", &quote, "diff"];
        args.extend(options.iter().map(String::as_str));
        args.extend([old.as_str(), new.as_str()]);
        Some((String::from_utf8(self.git(&args)).ok()?, options))
    }
}

impl Chance {
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
            _ if !self.crs => &[b"\n"],
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
            // Where no diff shows it, a file may hold anything.
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
                        self.slightly(node)
                    } else {
                        node
                    };
                    new.insert(free, node);
                }
                3 => {
                    let node = self.slightly(node.clone());
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
                    let node = self.slightly(node.clone());
                    new.insert(path.clone(), node);
                }
            }
        }
        if self.one_in(3) {
            let (name, node) = (self.free_name(&new), self.file());
            new.insert(name, node);
        }
        // Two files change places; a file becomes a folder.
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

    /// The same file with a few lines changed.
    fn slightly(&mut self, node: Node) -> Node {
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
            line.extend(if self.crs && self.one_in(4) {
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
