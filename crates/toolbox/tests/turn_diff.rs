//! What a turn changed, as a diff. Git is the judge: whatever was done to a folder, `git apply` of the diff must do
//! it to a copy of the old folder, and undo it in the new one.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "turn_diff/random.rs"]
mod random;
#[path = "turn_diff/tree.rs"]
mod tree;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use selvedge_protocol::SandboxPolicy;
use selvedge_script::Harness;
use selvedge_toolbox::{ChangeKind, Diff, Toolbox, Workspace};
use selvedge_tools::{Orchestrator, Registry};
use tempfile::TempDir;

use random::Random;
use tree::Tree;

struct Place {
    dir: TempDir,
    toolbox: Toolbox,
}

impl Place {
    fn new() -> Self {
        // Not below /tmp, which may be written whatever the workspace is.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (work, private) = (dir.path().join("work"), dir.path().join("work/private"));
        fs::create_dir_all(&private).unwrap();
        let workspace = Workspace::open(&work, SandboxPolicy::WorkspaceWrite, &[private]).unwrap();
        let toolbox = Toolbox::new(workspace);
        toolbox.turn_diff.begin();
        Self { dir, toolbox }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("work").join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    /// The folder is remembered; what the test does next is what a command did.
    fn before_command(&self) {
        self.toolbox.turn_diff.before_command();
    }

    /// The tool, as a script calls it.
    fn write_file(&self, name: &str, content: &str) {
        let mut registry = Registry::new();
        self.toolbox.register(&mut registry).unwrap();
        let harness = Harness::new(Orchestrator::new(registry)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let script = format!("await tools.writeFile({{path: {name:?}, content: {content:?}}})");
        assert_eq!(runtime.block_on(harness.run(&script)).error, None);
    }

    fn diff(&self) -> Diff {
        self.toolbox.turn_diff.diff()
    }

    fn text(&self) -> String {
        self.diff().text
    }
}

#[test]
fn git_does_and_undoes_what_the_diff_says() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let place = Place::new();
        let before = Tree::random(&mut random);
        before.write(&place.path(""));
        place.before_command();
        for _ in 0..1 + random.below(12) {
            random::edit(&mut random, &place.path(""));
        }
        let after = Tree::read(&place.path(""));
        let diff = place.diff();
        assert_eq!(diff.notes, [""; 0], "seed {seed}");
        let named = diff
            .files
            .iter()
            .map(|file| &file.path)
            .chain(diff.files.iter().filter_map(|file| file.from.as_ref()));
        let mut named: Vec<String> = named.cloned().collect();
        named.sort();
        assert_eq!(
            named,
            before.differing(&after),
            "seed {seed}\n{}",
            diff.text
        );
        for (from, to, reverse) in [(&before, &after, false), (&after, &before, true)] {
            let copy = tempfile::tempdir_in(place.dir.path()).unwrap();
            from.write(copy.path());
            tree::apply(&diff, copy.path(), to, reverse)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{}", diff.text));
            assert_eq!(
                Tree::read(copy.path()),
                *to,
                "seed {seed}, reverse {reverse}\n{}",
                diff.text
            );
        }
    }
}

#[test]
fn a_session_is_all_its_turns() {
    let place = Place::new();
    place.write("a.txt", "a\n");
    place.write("c.txt", "c\n");
    let tracker = &place.toolbox.turn_diff;
    tracker.begin_session();
    let names = |diff: Diff| {
        diff.files
            .into_iter()
            .map(|file| file.path)
            .collect::<Vec<_>>()
    };
    place.write_file("a.txt", "first\n");
    place.before_command();
    place.write("b.txt", "b\n");
    assert_eq!(names(tracker.diff()), ["a.txt", "b.txt"]);
    tracker.begin();
    assert_eq!(names(tracker.diff()), [""; 0]);
    place.write_file("a.txt", "second\n");
    place.write_file("c.txt", "changed\n");
    assert_eq!(names(tracker.diff()), ["a.txt", "c.txt"]);
    let whole = tracker.session_diff();
    assert!(
        whole.text.contains("-a\n+second\n") && !whole.text.contains("first"),
        "{}",
        whole.text
    );
    assert_eq!(names(whole), ["a.txt", "b.txt", "c.txt"]);
    // What was changed and changed back is no change.
    place.write_file("c.txt", "c\n");
    assert_eq!(names(tracker.session_diff()), ["a.txt", "b.txt"]);
}

#[test]
fn the_words_are_gits() {
    let place = Place::new();
    let long: String = (0..40).map(|n| format!("line {n}\n")).collect();
    place.write("long.txt", &long);
    place.write("moved.txt", long.replace("line", "row"));
    place.write("with space.txt", "a\n");
    place.write("b\u{fc}ro \"x\"\\\t.txt", "a\nb\n");
    place.write("gone.txt", "a\nb");
    place.write("empty", "");
    place.write("run.sh", "#!/bin/sh\n");
    place.write("image.png", b"\x89PNG\0\0");
    place.write("becomes-link", "text\n");
    symlink("gone.txt", place.path("link")).unwrap();
    git(&place, &["init", "-q"]);
    git(&place, &["add", "-A"]);
    let old = git(&place, &["write-tree"]);
    place.before_command();
    place.write(
        "long.txt",
        long.replace("line 5\n", "line five\n")
            .replace("line 30\n", "")
            + "end",
    );
    fs::create_dir(place.path("sub dir")).unwrap();
    fs::rename(
        place.path("moved.txt"),
        place.path("sub dir/moved \u{e9}.txt"),
    )
    .unwrap();
    place.write(
        "sub dir/moved \u{e9}.txt",
        long.replace("line", "row")
            .replace("row 20\n", "row twenty\n"),
    );
    place.write("with space.txt", "b\n");
    place.write("b\u{fc}ro \"x\"\\\t.txt", "a\nB\n");
    fs::remove_file(place.path("gone.txt")).unwrap();
    place.write("made", "");
    place.write("made too.txt", "one\r\ntwo");
    Command::new("chmod")
        .arg("755")
        .arg(place.path("run.sh"))
        .status()
        .unwrap();
    place.write("image.png", b"\x89PNG\0\x01");
    fs::remove_file(place.path("becomes-link")).unwrap();
    symlink("long.txt", place.path("becomes-link")).unwrap();
    fs::remove_file(place.path("link")).unwrap();
    symlink("long.txt", place.path("link")).unwrap();
    git(&place, &["add", "-A"]);
    let theirs = git(&place, &["diff", "-M", "--cached", old.trim()]);
    let ours = place.text();
    // Left out by us: object ids, and the line above a hunk. The measure of likeness is our own.
    let plain = |text: &str| -> Vec<String> {
        let lines = text.split('\n').filter(|line| !line.starts_with("index "));
        let plain = |line: &str| match line
            .strip_prefix("@@ ")
            .and_then(|rest| rest.split_once(" @@"))
        {
            Some((range, _)) => format!("@@ {range} @@"),
            None if line.starts_with("similarity index") => "similarity index".to_owned(),
            None => line.to_owned(),
        };
        lines.map(plain).collect()
    };
    assert_eq!(
        plain(&ours),
        plain(&theirs),
        "\nours:\n{ours}\ntheirs:\n{theirs}"
    );
}

fn git(place: &Place, args: &[&str]) -> String {
    let output = tree::git(&place.path(""), args).output().unwrap();
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn nothing_changed_is_nothing_said() {
    let place = Place::new();
    place.write("a.txt", "a\n");
    assert_eq!(place.diff(), Diff::default());
    place.before_command();
    assert_eq!(place.diff(), Diff::default());
    // Touched, written with the same content, and of another mode that git does not know.
    place.write("a.txt", "a\n");
    Command::new("chmod")
        .arg("600")
        .arg(place.path("a.txt"))
        .status()
        .unwrap();
    assert_eq!(place.diff(), Diff::default());
}

#[test]
fn what_is_undone_within_the_turn_is_not_shown() {
    let place = Place::new();
    place.write("a.txt", "a\n");
    place.write("b.txt", "b\n");
    place.before_command();
    place.write("a.txt", "changed\n");
    fs::rename(place.path("b.txt"), place.path("c.txt")).unwrap();
    place.write("d.txt", "d\n");
    assert_eq!(place.diff().files.len(), 3);
    fs::remove_file(place.path("a.txt")).unwrap();
    place.write("a.txt", "a\n");
    fs::rename(place.path("c.txt"), place.path("b.txt")).unwrap();
    fs::remove_file(place.path("d.txt")).unwrap();
    assert_eq!(place.diff(), Diff::default());
}

#[test]
fn a_new_turn_begins_with_what_is_there() {
    let place = Place::new();
    place.before_command();
    place.write("a.txt", "a\n");
    place.write_file("b.txt", "b\n");
    assert_eq!(place.diff().files.len(), 2);
    place.toolbox.turn_diff.begin();
    assert_eq!(place.diff(), Diff::default());
    place.before_command();
    place.write("a.txt", "A\n");
    assert_eq!(
        place.text(),
        "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-a\n+A\n"
    );
}

#[test]
fn a_change_of_the_same_size_at_the_same_time_is_seen() {
    let place = Place::new();
    for round in 0..100 {
        place.write("a.txt", "old");
        place.toolbox.turn_diff.begin();
        place.before_command();
        let modified = place.path("a.txt").metadata().unwrap().modified().unwrap();
        place.write("a.txt", "new");
        fs::File::options()
            .write(true)
            .open(place.path("a.txt"))
            .unwrap()
            .set_modified(modified)
            .unwrap();
        assert_eq!(place.diff().files.len(), 1, "round {round}");
    }
    // The time is long gone, and set back after the write: only the inode knows.
    let long_ago = SystemTime::now() - Duration::from_secs(86_400);
    let age = || {
        fs::File::options()
            .write(true)
            .open(place.path("a.txt"))
            .unwrap()
            .set_modified(long_ago)
            .unwrap()
    };
    age();
    place.toolbox.turn_diff.begin();
    place.before_command();
    place.write("a.txt", "old");
    age();
    assert_eq!(place.diff().files.len(), 1);
}

#[test]
fn tools_that_say_what_they_write_need_no_baseline() {
    let place = Place::new();
    place.write("a.txt", "one\n");
    place.write_file("a.txt", "two\n");
    place.write_file("a.txt", "three\n");
    place.write_file("new/b.txt", "b");
    // Nobody told of this one.
    place.write("c.txt", "c\n");
    assert_eq!(
        place.text(),
        "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+three\n\
         diff --git a/new/b.txt b/new/b.txt\nnew file mode 100644\n--- /dev/null\n+++ b/new/b.txt\n\
         @@ -0,0 +1 @@\n+b\n\\ No newline at end of file\n"
    );
    let files = place.diff().files;
    assert_eq!(
        (files[0].kind, files[0].added, files[0].removed),
        (ChangeKind::Modified, 1, 1)
    );
    assert_eq!(
        (files[1].kind, files[1].added, files[1].removed),
        (ChangeKind::Added, 1, 0)
    );
}

#[test]
fn commands_and_tools_in_any_order() {
    let place = Place::new();
    place.write("a.txt", "one\n");
    // A tool before the first command: the baseline has what the tool wrote, the diff what was there before.
    place.write_file("a.txt", "two\n");
    place.write_file("b.txt", "b\n");
    place.before_command();
    place.write("b.txt", "B\n");
    place.write("made.txt", "by a command\n");
    place.write("passing.txt", "by a command\n");
    place.before_command();
    // A tool that writes what a command has made.
    place.write_file("made.txt", "by a tool\n");
    place.write_file("passing.txt", "by a tool\n");
    fs::remove_file(place.path("passing.txt")).unwrap();
    assert_eq!(
        place.text(),
        "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+two\n\
         diff --git a/b.txt b/b.txt\nnew file mode 100644\n--- /dev/null\n+++ b/b.txt\n@@ -0,0 +1 @@\n+B\n\
         diff --git a/made.txt b/made.txt\nnew file mode 100644\n--- /dev/null\n+++ b/made.txt\n@@ -0,0 +1 @@\n+by a tool\n"
    );
}

#[test]
fn ignored_files_are_shown_only_if_a_tool_wrote_them() {
    for baseline_first in [true, false] {
        let place = Place::new();
        place.write(".gitignore", "target/\n*.log\n");
        place.write(".ignore", "*.gen\n");
        for name in ["target/a", "target/b", "a.log", "a.gen"] {
            place.write(name, "old\n");
        }
        if baseline_first {
            place.before_command();
        }
        place.write_file("target/b", "new\n");
        place.write_file("target/c", "new\n");
        place.before_command();
        for name in ["target/a", "target/d", "a.log", "b.log", "a.gen"] {
            place.write(name, "new\n");
        }
        let files: Vec<_> = place
            .diff()
            .files
            .into_iter()
            .map(|file| (file.path, file.kind))
            .collect();
        // `.ignore` speaks to searches, not to version control.
        let expected = [
            ("a.gen".to_owned(), ChangeKind::Modified),
            ("target/b".to_owned(), ChangeKind::Modified),
            ("target/c".to_owned(), ChangeKind::Added),
        ];
        assert_eq!(files, expected);
    }
}

#[test]
fn a_changed_gitignore_neither_deletes_nor_makes_files() {
    let place = Place::new();
    place.write(".gitignore", "old/\n");
    place.write("old/a", "there all the time\n");
    place.write("new/a", "there all the time\n");
    place.write("new/b", "old\n");
    place.before_command();
    place.write(".gitignore", "new/\n");
    place.write("new/b", "new\n");
    place.write("new/c", "ignored from the start\n");
    let diff = place.diff();
    let names: Vec<_> = diff.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(names, [".gitignore", "new/b"]);
    assert_eq!(
        diff.notes,
        ["files that were ignored when the turn began are not shown: 1"]
    );
}

#[test]
fn what_is_private_or_elsewhere_is_not_shown() {
    let place = Place::new();
    place.write("private/key", "old\n");
    let elsewhere = tempfile::tempdir().unwrap();
    place.before_command();
    for name in [
        "private/key",
        "private/new",
        ".git/config",
        "sub/.git/config",
        ".selvedge/config.toml",
    ] {
        place.write(name, "new\n");
    }
    place.write_file(elsewhere.path().join("a.txt").to_str().unwrap(), "outside");
    assert_eq!(place.diff(), Diff::default());
}

#[test]
fn links_are_shown_as_git_shows_them() {
    let place = Place::new();
    place.write("real/a.txt", "one\n");
    symlink("real", place.path("folder")).unwrap();
    symlink("real/a.txt", place.path("link")).unwrap();
    // Written through links: it is the files that change.
    place.write_file("folder/b.txt", "b\n");
    place.write_file("link", "two\n");
    let names: Vec<_> = place
        .diff()
        .files
        .into_iter()
        .map(|file| file.path)
        .collect();
    assert_eq!(names, ["real/a.txt", "real/b.txt"]);
    place.toolbox.turn_diff.begin();
    place.before_command();
    fs::remove_file(place.path("link")).unwrap();
    symlink("real/b.txt", place.path("link")).unwrap();
    fs::remove_file(place.path("folder")).unwrap();
    assert_eq!(
        place.text(),
        "diff --git a/folder b/folder\ndeleted file mode 120000\n--- a/folder\n+++ /dev/null\n\
         @@ -1 +0,0 @@\n-real\n\\ No newline at end of file\n\
         diff --git a/link b/link\n--- a/link\n+++ b/link\n\
         @@ -1 +1 @@\n-real/a.txt\n\\ No newline at end of file\n+real/b.txt\n\\ No newline at end of file\n"
    );
}

#[test]
fn what_is_too_large_is_named() {
    let place = Place::new();
    let large = "x".repeat(1_000_001);
    place.write("fits.txt", &large[1..]);
    place.write("grows.txt", "small\n");
    for name in ["changed.txt", "moved.txt", "deleted.txt", "kept.txt"] {
        place.write(name, &large);
    }
    place.before_command();
    place.write("fits.txt", "small\n");
    for name in ["changed.txt", "grows.txt", "made.txt"] {
        place.write(name, large.replace('x', "yy"));
    }
    fs::rename(place.path("moved.txt"), place.path("to.txt")).unwrap();
    Command::new("chmod")
        .arg("755")
        .arg(place.path("kept.txt"))
        .status()
        .unwrap();
    fs::remove_file(place.path("deleted.txt")).unwrap();
    let diff = place.diff();
    let section = |name: &str| format!("diff --git a/{name} b/{name}\n");
    let too_large = |name: &str| {
        format!(
            "{}Files a/{name} and b/{name} are too large to show and differ\n",
            section(name)
        )
    };
    assert!(
        diff.text.starts_with(&too_large("changed.txt")),
        "{}",
        &diff.text[..1000]
    );
    for part in [
        too_large("grows.txt"),
        format!("{}deleted file mode 100644\nFiles a/deleted.txt and /dev/null are", section("deleted.txt")),
        format!("{}new file mode 100644\nFiles /dev/null and b/made.txt are", section("made.txt")),
        format!("-{}\n\\ No newline at end of file\n+small\n", &large[1..]),
        format!("{}old mode 100644\nnew mode 100755\ndiff --git", section("kept.txt")),
        "diff --git a/moved.txt b/to.txt\nsimilarity index 100%\nrename from moved.txt\nrename to to.txt\n".to_owned(),
    ] {
        assert!(diff.text.contains(&part), "{part}");
    }
    assert_eq!(diff.files.len(), 7);
    assert_eq!(diff.notes.len(), 4);
    assert_eq!(
        diff.notes[0],
        "changed.txt changed, and is not shown: it has more than 1 MB"
    );
    // Not one by one without end.
    for n in 0..30 {
        fs::File::create(place.path(&format!("{n}.bin")))
            .unwrap()
            .set_len(1_000_001)
            .unwrap();
    }
    let diff = place.diff();
    assert_eq!((diff.files.len(), diff.notes.len()), (37, 21));
    assert_eq!(diff.notes[20], "more files changed, and are not shown: 14");
}

#[test]
fn of_a_large_workspace_the_small_files_are_remembered() {
    let place = Place::new();
    place.write("small.txt", "old\n");
    let grow = |size| {
        for n in 0..70 {
            fs::File::create(place.path(&format!("{n}.bin")))
                .unwrap()
                .set_len(size)
                .unwrap();
        }
    };
    grow(1_000_000);
    place.before_command();
    grow(10);
    place.write("small.txt", "new\n");
    let diff = place.diff();
    assert!(diff.text.ends_with("-old\n+new\n"));
    assert_eq!(diff.text.matches("\nBinary files ").count(), 63);
    assert_eq!(
        diff.text
            .matches(" are too large to show and differ\n")
            .count(),
        7
    );
    assert!(
        diff.notes[0].ends_with("is not shown: the workspace is too large to remember all of it"),
        "{:?}",
        diff.notes
    );
}

#[test]
fn text_that_is_not_unicode_is_text_all_the_same() {
    let place = Place::new();
    place.write("a.txt", b"caf\xe9\nb\n");
    place.write("late.bin", [vec![b'x'; 8000], vec![0]].concat());
    place.before_command();
    place.write("a.txt", b"caf\xe9\nc\n");
    place.write("late.bin", "x");
    let text = place.text();
    assert!(
        text.contains("@@ -1,2 +1,2 @@\n caf\u{fffd}\n-b\n+c\n"),
        "{text}"
    );
    // The first 8000 bytes decide.
    assert!(text.contains("--- a/late.bin\n"), "{text}");
}

#[test]
fn a_hard_case_ends() {
    let place = Place::new();
    let mut random = Random(1);
    let mut noise = || -> String {
        (0..250_000)
            .map(|_| ["a\n", "b\n", "c\n"][random.below(3)])
            .collect()
    };
    for n in 0..15 {
        place.write(&format!("{n}.txt"), noise());
    }
    place.before_command();
    let before = Tree::read(&place.path(""));
    for n in 0..15 {
        place.write(&format!("{n}.txt"), noise());
    }
    let started = Instant::now();
    let diff = place.diff();
    assert!(
        started.elapsed() < Duration::from_secs(60),
        "{:?}",
        started.elapsed()
    );
    // Not the shortest way, but the right one.
    let copy = tempfile::tempdir_in(place.dir.path()).unwrap();
    let after = Tree::read(&place.path(""));
    before.write(copy.path());
    tree::apply(&diff, copy.path(), &after, false).unwrap();
    assert!(Tree::read(copy.path()) == after);
}
