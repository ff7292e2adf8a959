//! Random folders and edits, reproducible by seed.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::tree::{Entry, FolderTree};

/// A SplitMix64 generator.
pub struct TreeRandom(pub u64);

impl TreeRandom {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

const NAMES: &[&[u8]] = &[
    b"a.txt",
    b"b.rs",
    b"with space.txt",
    b"quo\"te.txt",
    b"back\\slash",
    b"tab\there",
    b"new\nline",
    b"trailing ",
    b" leading",
    b"-dash",
    b"\x01control",
    b"bell\x07\x7f",
    "\u{fc}n\u{ef}code \u{65e5}\u{672c}.md".as_bytes(),
    b"not\xffunicode",
    b"b b.txt",
    b"a b",
    b"null",
    b"Makefile",
    b".hidden",
    b"x",
];
const FOLDERS: &[&[u8]] = &[
    b"",
    b"",
    b"",
    b"src/",
    b"src/deep/er/",
    b"sp ace/",
    "\u{e9}/".as_bytes(),
    b"x/",
    b"a/b/",
];
const LINES: &[&[u8]] = &[
    b"",
    b"",
    b"}",
    b"{",
    b"one",
    b"two",
    b"    return;",
    b"\tindented",
    "caf\u{e9} \u{1f980}".as_bytes(),
    b"trailing  ",
    b"a\rb",
    b"--- a/x",
    b"+++ b/x",
    b"@@ -1 +1 @@",
    b"diff --git a/x b/x",
    b"-- ",
    b"++ b",
    b"\\ No newline at end of file",
    b"a longer line of text that is here to be longer than sixty-four bytes, \
      as some lines are in most files",
];

pub fn name(random: &mut TreeRandom) -> OsString {
    OsString::from_vec([random.pick(FOLDERS), random.pick(NAMES)].concat())
}

pub fn entry(random: &mut TreeRandom) -> Entry {
    match random.below(10) {
        0 => link(random),
        _ => Entry::File {
            content: content(random),
            executable: random.chance(20),
        },
    }
}

/// Returns a link with a target in UTF-8, because a diff replaces invalid UTF-8. The target does
/// not exist, because git fails on a folder that replaces a link to itself.
fn link(random: &mut TreeRandom) -> Entry {
    Entry::Link(format!("nowhere/{}", name(random).to_string_lossy()).into())
}

fn content(random: &mut TreeRandom) -> Vec<u8> {
    match random.below(10) {
        0 => Vec::new(),
        1 => (0..1 + random.below(300))
            .map(|_| random.below(256) as u8)
            .chain([0])
            .collect(),
        kind => {
            let end: &[&[u8]] = if kind == 2 { &[b"\r\n"] } else { &[b"\n"] };
            let mixed: &[&[u8]] = &[b"\n", b"\r\n"];
            let count = random.below(60);
            let mut text: Vec<u8> = Vec::new();
            for number in 0..count {
                text.extend(random.pick(LINES));
                if random.chance(50) {
                    text.extend(number.to_string().bytes());
                }
                text.extend(random.pick(if kind == 3 { mixed } else { end }));
            }
            if random.chance(25) {
                text.extend(b"no newline at the end");
            }
            text
        }
    }
}

/// Makes one random change in a folder, as a command might.
pub fn edit(random: &mut TreeRandom, folder: &Path) {
    let tree = FolderTree::read(folder);
    let names: Vec<&OsString> = tree.0.keys().collect();
    if names.is_empty() {
        return create(random, folder);
    }
    let chosen = names[random.below(names.len())];
    let (path, entry) = (folder.join(chosen), tree.0[chosen].clone());
    match random.below(16) {
        0 | 1 => create(random, folder),
        2 => fs::remove_file(path).unwrap(),
        3 => {
            // Replace a file by a folder.
            fs::remove_file(&path).unwrap();
            self::entry(random).write(&path.join("inside"));
        }
        4 => {
            if let Some(parent) = path.parent().filter(|parent| *parent != folder) {
                fs::remove_dir_all(parent).unwrap();
                self::entry(random).write(parent);
            }
        }
        5 | 6 => {
            if let Some(to) = free_path(random, folder) {
                fs::rename(path, to).unwrap();
            }
        }
        7 => {
            if let Some(to) = free_path(random, folder) {
                fs::rename(path, &to).unwrap();
                change_lines(random, entry).write(&to);
            }
        }
        8 => {
            let other = names[random.below(names.len())];
            tree.0[other].write(&path);
            entry.write(&folder.join(other));
        }
        9 => self::entry(random).write(&path),
        10 => {
            // Change a file and revert the change.
            create(random, folder);
            change_lines(random, entry.clone()).write(&path);
            entry.write(&path);
        }
        11 => {
            if let Entry::File {
                content,
                executable,
            } = entry
            {
                Entry::File {
                    content,
                    executable: !executable,
                }
                .write(&path);
            }
        }
        _ => change_lines(random, entry).write(&path),
    }
}

fn create(random: &mut TreeRandom, folder: &Path) {
    if let Some(path) = free_path(random, folder) {
        entry(random).write(&path);
    }
}

/// Returns an unused path whose parents are folders or do not exist; `None` if the random path is
/// not free.
fn free_path(random: &mut TreeRandom, folder: &Path) -> Option<PathBuf> {
    let path = folder.join(name(random));
    let blocked = path
        .ancestors()
        .take_while(|above| *above != folder)
        .any(|above| {
            above
                .symlink_metadata()
                .is_ok_and(|metadata| above == path || !metadata.is_dir())
        });
    if blocked {
        return None;
    }
    fs::create_dir_all(path.parent()?).unwrap();
    Some(path)
}

/// Changes some lines of a file, or the target of a link.
fn change_lines(random: &mut TreeRandom, entry: Entry) -> Entry {
    let Entry::File {
        content,
        executable,
    } = entry
    else {
        return link(random);
    };
    let mut lines: Vec<Vec<u8>> = content
        .split_inclusive(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect();
    for _ in 0..1 + random.below(4) {
        let at = random.below(lines.len() + 1);
        let line = [random.pick(LINES), random.pick(&[&b"\n"[..], b"\r\n"])].concat();
        match random.below(5) {
            0 | 1 => lines.insert(at, line),
            2 if at < lines.len() => _ = lines.remove(at),
            3 if at < lines.len() => lines[at] = line,
            _ => {
                // Add or remove the final newline.
                if let Some(last) = lines.last_mut() {
                    if last.ends_with(b"\n") {
                        _ = last.pop()
                    } else {
                        last.push(b'\n')
                    }
                }
            }
        }
    }
    let mut content = lines.concat();
    if std::str::from_utf8(&content).is_err() {
        // A NUL marks the content as binary.
        content.push(0);
    }
    Entry::File {
        content,
        executable,
    }
}
