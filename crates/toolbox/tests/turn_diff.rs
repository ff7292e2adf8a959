//! The diff of a turn, checked with git: `git apply` of the diff must turn a copy of the old folder
//! into the new one, and `git apply -R` must undo it.
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
use selvedge_toolbox::{ChangeKind, Toolbox, Workspace, WorkspaceDiff};
use selvedge_tools::{Orchestrator, Registry};
use tempfile::TempDir;

use random::TreeRandom;
use tree::FolderTree;

struct DiffWorkspace {
    dir: TempDir,
    toolbox: Toolbox,
}

impl DiffWorkspace {
    fn new() -> Self {
        // Not in /tmp, which is always writable.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (work, private) = (dir.path().join("work"), dir.path().join("work/private"));
        fs::create_dir_all(&private).unwrap();
        let workspace = Workspace::open(&work, SandboxPolicy::WorkspaceWrite, &[private]).unwrap();
        let toolbox = Toolbox::new(workspace);
        toolbox.turn_diff.begin_turn();
        Self { dir, toolbox }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("work").join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    /// Takes the baseline: changes that the test makes afterwards count as changes by a command.
    fn before_command(&self) {
        self.toolbox.turn_diff.before_command();
    }

    /// Calls the tool `write_file` from a script.
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

    fn diff(&self) -> WorkspaceDiff {
        self.toolbox.turn_diff.diff()
    }

    fn text(&self) -> String {
        self.diff().text
    }
}

#[test]
fn git_applies_and_reverts_random_diffs() {
    for seed in 0..200 {
        let mut random = TreeRandom(seed);
        let workspace = DiffWorkspace::new();
        let before = FolderTree::random(&mut random);
        before.write(&workspace.path(""));
        workspace.before_command();
        for _ in 0..1 + random.below(12) {
            random::edit(&mut random, &workspace.path(""));
        }
        let after = FolderTree::read(&workspace.path(""));
        let diff = workspace.diff();
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
            let copy = tempfile::tempdir_in(workspace.dir.path()).unwrap();
            from.write(copy.path());
            tree::apply(&diff, copy.path(), to, reverse)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{}", diff.text));
            assert_eq!(
                FolderTree::read(copy.path()),
                *to,
                "seed {seed}, reverse {reverse}\n{}",
                diff.text
            );
        }
    }
}

#[test]
fn session_diff_covers_all_turns() {
    let workspace = DiffWorkspace::new();
    workspace.write("a.txt", "a\n");
    workspace.write("c.txt", "c\n");
    let tracker = &workspace.toolbox.turn_diff;
    tracker.begin_session();
    let names = |diff: WorkspaceDiff| {
        diff.files
            .into_iter()
            .map(|file| file.path)
            .collect::<Vec<_>>()
    };
    workspace.write_file("a.txt", "first\n");
    workspace.before_command();
    workspace.write("b.txt", "b\n");
    assert_eq!(names(tracker.diff()), ["a.txt", "b.txt"]);
    tracker.begin_turn();
    assert_eq!(names(tracker.diff()), [""; 0]);
    workspace.write_file("a.txt", "second\n");
    workspace.write_file("c.txt", "changed\n");
    assert_eq!(names(tracker.diff()), ["a.txt", "c.txt"]);
    let whole = tracker.session_diff();
    assert!(
        whole.text.contains("-a\n+second\n") && !whole.text.contains("first"),
        "{}",
        whole.text
    );
    assert_eq!(names(whole), ["a.txt", "b.txt", "c.txt"]);
    // A reverted change does not show.
    workspace.write_file("c.txt", "c\n");
    assert_eq!(names(tracker.session_diff()), ["a.txt", "b.txt"]);
}

#[test]
fn diff_has_the_format_of_git() {
    let workspace = DiffWorkspace::new();
    let long: String = (0..40).map(|n| format!("line {n}\n")).collect();
    workspace.write("long.txt", &long);
    workspace.write("moved.txt", long.replace("line", "row"));
    workspace.write("with space.txt", "a\n");
    workspace.write("b\u{fc}ro \"x\"\\\t.txt", "a\nb\n");
    workspace.write("gone.txt", "a\nb");
    workspace.write("empty", "");
    workspace.write("run.sh", "#!/bin/sh\n");
    workspace.write("image.png", b"\x89PNG\0\0");
    workspace.write("becomes-link", "text\n");
    symlink("gone.txt", workspace.path("link")).unwrap();
    git(&workspace, &["init", "-q"]);
    git(&workspace, &["add", "-A"]);
    let old = git(&workspace, &["write-tree"]);
    workspace.before_command();
    workspace.write(
        "long.txt",
        long.replace("line 5\n", "line five\n")
            .replace("line 30\n", "")
            + "end",
    );
    fs::create_dir(workspace.path("sub dir")).unwrap();
    fs::rename(
        workspace.path("moved.txt"),
        workspace.path("sub dir/moved \u{e9}.txt"),
    )
    .unwrap();
    workspace.write(
        "sub dir/moved \u{e9}.txt",
        long.replace("line", "row")
            .replace("row 20\n", "row twenty\n"),
    );
    workspace.write("with space.txt", "b\n");
    workspace.write("b\u{fc}ro \"x\"\\\t.txt", "a\nB\n");
    fs::remove_file(workspace.path("gone.txt")).unwrap();
    workspace.write("made", "");
    workspace.write("made too.txt", "one\r\ntwo");
    Command::new("chmod")
        .arg("755")
        .arg(workspace.path("run.sh"))
        .status()
        .unwrap();
    workspace.write("image.png", b"\x89PNG\0\x01");
    fs::remove_file(workspace.path("becomes-link")).unwrap();
    symlink("long.txt", workspace.path("becomes-link")).unwrap();
    fs::remove_file(workspace.path("link")).unwrap();
    symlink("long.txt", workspace.path("link")).unwrap();
    git(&workspace, &["add", "-A"]);
    let theirs = git(&workspace, &["diff", "-M", "--cached", old.trim()]);
    let ours = workspace.text();
    // Our diff has no object ids and no function context in hunk headers, and computes similarity
    // differently.
    let normalize = |text: &str| -> Vec<String> {
        let lines = text.split('\n').filter(|line| !line.starts_with("index "));
        let normalize_line = |line: &str| match line
            .strip_prefix("@@ ")
            .and_then(|rest| rest.split_once(" @@"))
        {
            Some((range, _)) => format!("@@ {range} @@"),
            None if line.starts_with("similarity index") => "similarity index".to_owned(),
            None => line.to_owned(),
        };
        lines.map(normalize_line).collect()
    };
    assert_eq!(
        normalize(&ours),
        normalize(&theirs),
        "\nours:\n{ours}\ntheirs:\n{theirs}"
    );
}

fn git(workspace: &DiffWorkspace, args: &[&str]) -> String {
    let output = tree::git(&workspace.path(""), args).output().unwrap();
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn diff_is_empty_without_changes() {
    let workspace = DiffWorkspace::new();
    workspace.write("a.txt", "a\n");
    assert_eq!(workspace.diff(), WorkspaceDiff::default());
    workspace.before_command();
    assert_eq!(workspace.diff(), WorkspaceDiff::default());
    // Written with the same content, and with a mode that git does not distinguish.
    workspace.write("a.txt", "a\n");
    Command::new("chmod")
        .arg("600")
        .arg(workspace.path("a.txt"))
        .status()
        .unwrap();
    assert_eq!(workspace.diff(), WorkspaceDiff::default());
}

#[test]
fn changes_reverted_in_the_turn_are_not_shown() {
    let workspace = DiffWorkspace::new();
    workspace.write("a.txt", "a\n");
    workspace.write("b.txt", "b\n");
    workspace.before_command();
    workspace.write("a.txt", "changed\n");
    fs::rename(workspace.path("b.txt"), workspace.path("c.txt")).unwrap();
    workspace.write("d.txt", "d\n");
    assert_eq!(workspace.diff().files.len(), 3);
    fs::remove_file(workspace.path("a.txt")).unwrap();
    workspace.write("a.txt", "a\n");
    fs::rename(workspace.path("c.txt"), workspace.path("b.txt")).unwrap();
    fs::remove_file(workspace.path("d.txt")).unwrap();
    assert_eq!(workspace.diff(), WorkspaceDiff::default());
}

#[test]
fn a_new_turn_starts_from_the_current_files() {
    let workspace = DiffWorkspace::new();
    workspace.before_command();
    workspace.write("a.txt", "a\n");
    workspace.write_file("b.txt", "b\n");
    assert_eq!(workspace.diff().files.len(), 2);
    workspace.toolbox.turn_diff.begin_turn();
    assert_eq!(workspace.diff(), WorkspaceDiff::default());
    workspace.before_command();
    workspace.write("a.txt", "A\n");
    assert_eq!(
        workspace.text(),
        "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-a\n+A\n"
    );
}

#[test]
fn a_change_with_the_same_size_and_time_is_found() {
    let workspace = DiffWorkspace::new();
    for round in 0..100 {
        workspace.write("a.txt", "old");
        workspace.toolbox.turn_diff.begin_turn();
        workspace.before_command();
        let modified = workspace
            .path("a.txt")
            .metadata()
            .unwrap()
            .modified()
            .unwrap();
        workspace.write("a.txt", "new");
        fs::File::options()
            .write(true)
            .open(workspace.path("a.txt"))
            .unwrap()
            .set_modified(modified)
            .unwrap();
        assert_eq!(workspace.diff().files.len(), 1, "round {round}");
    }
    // An old modification time is restored after the write: only the inode's change time differs.
    let yesterday = SystemTime::now() - Duration::from_secs(86_400);
    let set_old_time = || {
        fs::File::options()
            .write(true)
            .open(workspace.path("a.txt"))
            .unwrap()
            .set_modified(yesterday)
            .unwrap()
    };
    set_old_time();
    workspace.toolbox.turn_diff.begin_turn();
    workspace.before_command();
    workspace.write("a.txt", "old");
    set_old_time();
    assert_eq!(workspace.diff().files.len(), 1);
}

#[test]
fn files_written_by_tools_need_no_baseline() {
    let workspace = DiffWorkspace::new();
    workspace.write("a.txt", "one\n");
    workspace.write_file("a.txt", "two\n");
    workspace.write_file("a.txt", "three\n");
    workspace.write_file("new/b.txt", "b");
    // Not reported by a tool, and no baseline was taken.
    workspace.write("c.txt", "c\n");
    assert_eq!(
        workspace.text(),
        "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+three\n\
         diff --git a/new/b.txt b/new/b.txt\nnew file mode 100644\n--- /dev/null\n+++ b/new/b.txt\n\
         @@ -0,0 +1 @@\n+b\n\\ No newline at end of file\n"
    );
    let files = workspace.diff().files;
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
fn commands_and_tools_combine_in_any_order() {
    let workspace = DiffWorkspace::new();
    workspace.write("a.txt", "one\n");
    // A tool writes before the first command: the diff is relative to the content before the tool,
    // not to the baseline.
    workspace.write_file("a.txt", "two\n");
    workspace.write_file("b.txt", "b\n");
    workspace.before_command();
    workspace.write("b.txt", "B\n");
    workspace.write("made.txt", "by a command\n");
    workspace.write("passing.txt", "by a command\n");
    workspace.before_command();
    // A tool overwrites files that a command created.
    workspace.write_file("made.txt", "by a tool\n");
    workspace.write_file("passing.txt", "by a tool\n");
    fs::remove_file(workspace.path("passing.txt")).unwrap();
    assert_eq!(
        workspace.text(),
        "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+two\n\
         diff --git a/b.txt b/b.txt\nnew file mode 100644\n--- /dev/null\n+++ b/b.txt\n\
         @@ -0,0 +1 @@\n+B\n\
         diff --git a/made.txt b/made.txt\nnew file mode 100644\n\
         --- /dev/null\n+++ b/made.txt\n@@ -0,0 +1 @@\n+by a tool\n"
    );
}

#[test]
fn ignored_files_are_shown_only_if_a_tool_wrote_them() {
    for baseline_first in [true, false] {
        let workspace = DiffWorkspace::new();
        workspace.write(".gitignore", "target/\n*.log\n");
        workspace.write(".ignore", "*.gen\n");
        for name in ["target/a", "target/b", "a.log", "a.gen"] {
            workspace.write(name, "old\n");
        }
        if baseline_first {
            workspace.before_command();
        }
        workspace.write_file("target/b", "new\n");
        workspace.write_file("target/c", "new\n");
        workspace.before_command();
        for name in ["target/a", "target/d", "a.log", "b.log", "a.gen"] {
            workspace.write(name, "new\n");
        }
        let files: Vec<_> = workspace
            .diff()
            .files
            .into_iter()
            .map(|file| (file.path, file.kind))
            .collect();
        // `.ignore` applies to searches, not to version control.
        let expected = [
            ("a.gen".to_owned(), ChangeKind::Modified),
            ("target/b".to_owned(), ChangeKind::Modified),
            ("target/c".to_owned(), ChangeKind::Added),
        ];
        assert_eq!(files, expected);
    }
}

#[test]
fn a_changed_gitignore_neither_deletes_nor_adds_files() {
    let workspace = DiffWorkspace::new();
    workspace.write(".gitignore", "old/\n");
    workspace.write("old/a", "there all the time\n");
    workspace.write("new/a", "there all the time\n");
    workspace.write("new/b", "old\n");
    workspace.before_command();
    workspace.write(".gitignore", "new/\n");
    workspace.write("new/b", "new\n");
    workspace.write("new/c", "ignored from the start\n");
    let diff = workspace.diff();
    let names: Vec<_> = diff.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(names, [".gitignore", "new/b"]);
    assert_eq!(
        diff.notes,
        ["files not shown because they were ignored when the turn began: 1"]
    );
}

#[test]
fn private_protected_and_outside_files_are_not_shown() {
    let workspace = DiffWorkspace::new();
    workspace.write("private/key", "old\n");
    let elsewhere = tempfile::tempdir().unwrap();
    workspace.before_command();
    for name in [
        "private/key",
        "private/new",
        ".git/config",
        "sub/.git/config",
        ".selvedge/config.toml",
    ] {
        workspace.write(name, "new\n");
    }
    workspace.write_file(elsewhere.path().join("a.txt").to_str().unwrap(), "outside");
    assert_eq!(workspace.diff(), WorkspaceDiff::default());
}

#[test]
fn links_are_shown_as_in_git() {
    let workspace = DiffWorkspace::new();
    workspace.write("real/a.txt", "one\n");
    symlink("real", workspace.path("folder")).unwrap();
    symlink("real/a.txt", workspace.path("link")).unwrap();
    // Writing through a link changes its target.
    workspace.write_file("folder/b.txt", "b\n");
    workspace.write_file("link", "two\n");
    let names: Vec<_> = workspace
        .diff()
        .files
        .into_iter()
        .map(|file| file.path)
        .collect();
    assert_eq!(names, ["real/a.txt", "real/b.txt"]);
    workspace.toolbox.turn_diff.begin_turn();
    workspace.before_command();
    fs::remove_file(workspace.path("link")).unwrap();
    symlink("real/b.txt", workspace.path("link")).unwrap();
    fs::remove_file(workspace.path("folder")).unwrap();
    assert_eq!(
        workspace.text(),
        "diff --git a/folder b/folder\ndeleted file mode 120000\n--- a/folder\n+++ /dev/null\n\
         @@ -1 +0,0 @@\n-real\n\\ No newline at end of file\n\
         diff --git a/link b/link\n--- a/link\n+++ b/link\n\
         @@ -1 +1 @@\n-real/a.txt\n\\ No newline at end of file\n\
         +real/b.txt\n\\ No newline at end of file\n"
    );
}

#[test]
fn files_that_are_too_large_are_named() {
    let workspace = DiffWorkspace::new();
    let large = "x".repeat(1_000_001);
    workspace.write("fits.txt", &large[1..]);
    workspace.write("grows.txt", "small\n");
    for name in ["changed.txt", "moved.txt", "deleted.txt", "kept.txt"] {
        workspace.write(name, &large);
    }
    workspace.before_command();
    workspace.write("fits.txt", "small\n");
    for name in ["changed.txt", "grows.txt", "made.txt"] {
        workspace.write(name, large.replace('x', "yy"));
    }
    fs::rename(workspace.path("moved.txt"), workspace.path("to.txt")).unwrap();
    Command::new("chmod")
        .arg("755")
        .arg(workspace.path("kept.txt"))
        .status()
        .unwrap();
    fs::remove_file(workspace.path("deleted.txt")).unwrap();
    let diff = workspace.diff();
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
        format!(
            "{}deleted file mode 100644\nFiles a/deleted.txt and /dev/null are",
            section("deleted.txt")
        ),
        format!(
            "{}new file mode 100644\nFiles /dev/null and b/made.txt are",
            section("made.txt")
        ),
        format!("-{}\n\\ No newline at end of file\n+small\n", &large[1..]),
        format!(
            "{}old mode 100644\nnew mode 100755\ndiff --git",
            section("kept.txt")
        ),
        "diff --git a/moved.txt b/to.txt\nsimilarity index 100%\n\
         rename from moved.txt\nrename to to.txt\n"
            .to_owned(),
    ] {
        assert!(diff.text.contains(&part), "{part}");
    }
    assert_eq!(diff.files.len(), 7);
    assert_eq!(diff.notes.len(), 4);
    assert_eq!(
        diff.notes[0],
        "changed.txt changed but is not shown: larger than 1 MB"
    );
    // The number of notes is limited.
    for n in 0..30 {
        fs::File::create(workspace.path(&format!("{n}.bin")))
            .unwrap()
            .set_len(1_000_001)
            .unwrap();
    }
    let diff = workspace.diff();
    assert_eq!((diff.files.len(), diff.notes.len()), (37, 21));
    assert_eq!(diff.notes[20], "further changed files not shown: 14");
}

#[test]
fn in_a_large_workspace_small_files_are_stored_first() {
    let workspace = DiffWorkspace::new();
    workspace.write("small.txt", "old\n");
    let grow = |size| {
        for n in 0..70 {
            fs::File::create(workspace.path(&format!("{n}.bin")))
                .unwrap()
                .set_len(size)
                .unwrap();
        }
    };
    grow(1_000_000);
    workspace.before_command();
    grow(10);
    workspace.write("small.txt", "new\n");
    let diff = workspace.diff();
    assert!(diff.text.ends_with("-old\n+new\n"));
    assert_eq!(diff.text.matches("\nBinary files ").count(), 63);
    assert_eq!(
        diff.text
            .matches(" are too large to show and differ\n")
            .count(),
        7
    );
    assert!(
        diff.notes[0].ends_with("is not shown: the workspace is too large to store all of it"),
        "{:?}",
        diff.notes
    );
}

#[test]
fn text_with_invalid_utf8_is_shown_as_text() {
    let workspace = DiffWorkspace::new();
    workspace.write("a.txt", b"caf\xe9\nb\n");
    workspace.write("late.bin", [vec![b'x'; 8000], vec![0]].concat());
    workspace.before_command();
    workspace.write("a.txt", b"caf\xe9\nc\n");
    workspace.write("late.bin", "x");
    let text = workspace.text();
    assert!(
        text.contains("@@ -1,2 +1,2 @@\n caf\u{fffd}\n-b\n+c\n"),
        "{text}"
    );
    // Only the first 8000 bytes are checked for NUL.
    assert!(text.contains("--- a/late.bin\n"), "{text}");
}

#[test]
fn an_expensive_diff_ends_in_bounded_time() {
    let workspace = DiffWorkspace::new();
    let mut random = TreeRandom(1);
    let mut noise = || -> String {
        (0..250_000)
            .map(|_| ["a\n", "b\n", "c\n"][random.below(3)])
            .collect()
    };
    for n in 0..15 {
        workspace.write(&format!("{n}.txt"), noise());
    }
    workspace.before_command();
    let before = FolderTree::read(&workspace.path(""));
    for n in 0..15 {
        workspace.write(&format!("{n}.txt"), noise());
    }
    let started = Instant::now();
    let diff = workspace.diff();
    assert!(
        started.elapsed() < Duration::from_secs(60),
        "{:?}",
        started.elapsed()
    );
    // The diff need not be the shortest, but it must be correct.
    let copy = tempfile::tempdir_in(workspace.dir.path()).unwrap();
    let after = FolderTree::read(&workspace.path(""));
    before.write(copy.path());
    tree::apply(&diff, copy.path(), &after, false).unwrap();
    assert!(FolderTree::read(copy.path()) == after);
}
