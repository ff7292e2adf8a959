//! Worktrees of sessions: created from a commit, shown as a diff, merged into the folder, removed.
#![allow(clippy::unwrap_used, missing_docs)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use selvedge_toolbox::{SessionWorktree, WorktreeError, WorktreeRules, remove_session_worktree};

/// A repository with a commit, and a folder for worktrees.
struct WorktreeFixture {
    dir: tempfile::TempDir,
}

impl WorktreeFixture {
    fn new() -> Self {
        let fixture = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        std::fs::create_dir_all(fixture.repository().join("web")).unwrap();
        fixture.git(&["init", "-q", "-b", "main"]);
        fixture.write("a.txt", "1\n2\n3\n4\n5\n6\n7\n8\n9\n");
        fixture.write("web/b.txt", "b\n");
        fixture.write(".gitignore", "*.log\n");
        fixture.commit();
        fixture
    }

    fn repository(&self) -> PathBuf {
        self.dir.path().join("repository")
    }

    fn worktrees(&self) -> PathBuf {
        self.dir.path().join("worktrees")
    }

    fn git(&self, args: &[&str]) -> String {
        let output = Command::new("git")
            .args(args)
            .current_dir(self.repository())
            .envs([
                ("GIT_CONFIG_GLOBAL", "/dev/null"),
                ("GIT_AUTHOR_NAME", "Ada"),
                ("GIT_AUTHOR_EMAIL", "ada@example.org"),
                ("GIT_COMMITTER_NAME", "Ada"),
                ("GIT_COMMITTER_EMAIL", "ada@example.org"),
            ])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {args:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "-q", "-m", "Change"]);
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.repository().join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.repository().join(name)).ok()
    }

    fn find(&self, folder: &str) -> Result<SessionWorktree, WorktreeError> {
        let directory = self.repository().join(folder);
        SessionWorktree::find(&self.worktrees(), "ses_1", &directory)
    }

    /// Creates the worktree, and returns it with its folder.
    fn create(&self) -> (SessionWorktree, PathBuf) {
        let worktree = self.find("").unwrap();
        worktree.create_if_missing().unwrap();
        let folder = worktree.working_folder();
        (worktree, folder)
    }
}

fn put(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

#[test]
fn a_worktree_starts_with_the_commit_and_shows_its_changes() {
    let fixture = WorktreeFixture::new();
    fixture.write("a.txt", "not committed");
    let worktree = fixture.find("web").unwrap();
    let error = worktree.diff(&WorktreeRules::default()).unwrap_err();
    assert!(matches!(error, WorktreeError::NotCreated(_)), "{error}");
    worktree.create_if_missing().unwrap();
    let folder = worktree.working_folder();
    assert!(folder.ends_with("ses_1/web"), "{folder:?}");
    assert_eq!(worktree.diff(&WorktreeRules::default()).unwrap(), "");
    put(&folder, "b.txt", "changed\n");
    put(&folder, "new.txt", "new\n");
    put(&folder, "x.log", "ignored\n");
    worktree.create_if_missing().unwrap();
    let diff = worktree.diff(&WorktreeRules::default()).unwrap();
    assert!(diff.contains("-b\n+changed\n"), "{diff}");
    assert!(diff.contains("+++ b/web/new.txt"), "{diff}");
    assert!(!diff.contains("x.log") && !diff.contains("a.txt"), "{diff}");
    assert_eq!(fixture.read("web/b.txt").as_deref(), Some("b\n"));
    assert_eq!(
        fixture
            .git(&["branch", "--list", "selvedge/*"])
            .lines()
            .count(),
        1
    );
}

#[test]
fn changes_are_merged_into_the_folder() {
    let fixture = WorktreeFixture::new();
    let (worktree, folder) = fixture.create();
    put(&folder, "a.txt", "1\n2\n3\n4\n5\n6\n7\n8\nnine\n");
    put(&folder, "run.sh", "#!/bin/sh\n");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.join("run.sh"), mode).unwrap();
    std::os::unix::fs::symlink("a.txt", folder.join("link")).unwrap();
    std::fs::remove_file(folder.join("web/b.txt")).unwrap();
    fixture.write("a.txt", "one\n2\n3\n4\n5\n6\n7\n8\n9\n");
    fixture.write("mine.txt", "mine\n");
    let changed = worktree.apply(&WorktreeRules::default()).unwrap();
    let names: Vec<_> = changed
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    assert_eq!(names, ["a.txt", "link", "run.sh", "web/b.txt"]);
    assert_eq!(
        fixture.read("a.txt").as_deref(),
        Some("one\n2\n3\n4\n5\n6\n7\n8\nnine\n")
    );
    let run = fixture.repository().join("run.sh").metadata().unwrap();
    assert_eq!(run.permissions().mode() & 0o111, 0o111);
    assert!(fixture.repository().join("link").is_symlink());
    assert!(!fixture.repository().join("web").exists());
    assert_eq!(fixture.read("mine.txt").as_deref(), Some("mine\n"));
    assert_eq!(
        worktree.diff(&WorktreeRules::default()).unwrap(),
        "",
        "what was applied is the base"
    );
    put(&folder, "a.txt", "1\n2\n3\n4\n5\n6\n7\nEIGHT\nnine\n");
    assert_eq!(worktree.apply(&WorktreeRules::default()).unwrap().len(), 1);
    assert_eq!(
        fixture.read("a.txt").as_deref(),
        Some("one\n2\n3\n4\n5\n6\n7\nEIGHT\nnine\n")
    );
    assert!(
        worktree
            .apply(&WorktreeRules::default())
            .unwrap()
            .is_empty()
    );
}

#[test]
fn a_conflict_changes_nothing() {
    let fixture = WorktreeFixture::new();
    let (worktree, folder) = fixture.create();
    put(&folder, "a.txt", "session\n");
    put(&folder, "both.txt", "session\n");
    put(&folder, "web/b.txt", "session\n");
    fixture.write("a.txt", "person\n");
    fixture.write("both.txt", "person\n");
    let error = worktree.apply(&WorktreeRules::default()).unwrap_err();
    assert_eq!(error.to_string(), "conflicting changes in a.txt, both.txt");
    assert!(error.hint().is_some());
    assert_eq!(fixture.read("a.txt").as_deref(), Some("person\n"));
    assert_eq!(fixture.read("web/b.txt").as_deref(), Some("b\n"));
    assert!(
        worktree
            .diff(&WorktreeRules::default())
            .unwrap()
            .contains("+session"),
        "nothing is lost"
    );
    fixture.write("a.txt", "session\n");
    std::fs::remove_file(fixture.repository().join("both.txt")).unwrap();
    assert_eq!(worktree.apply(&WorktreeRules::default()).unwrap().len(), 2);
}

#[test]
fn a_discarded_worktree_leaves_no_trace() {
    let fixture = WorktreeFixture::new();
    for remove in [
        |worktree: &SessionWorktree, _: &WorktreeFixture| worktree.discard().unwrap(),
        |_: &SessionWorktree, fixture: &WorktreeFixture| {
            remove_session_worktree(&fixture.worktrees(), "ses_1").unwrap();
        },
    ] {
        let (worktree, folder) = fixture.create();
        put(&folder, "a.txt", "x");
        remove(&worktree, &fixture);
        assert!(!folder.exists());
        assert_eq!(fixture.git(&["branch", "--list", "selvedge/*"]), "");
        assert_eq!(fixture.git(&["for-each-ref", "refs/selvedge"]), "");
        assert_eq!(fixture.git(&["worktree", "list"]).lines().count(), 1);
    }
    fixture.find("").unwrap().discard().unwrap();
    remove_session_worktree(&fixture.worktrees(), "ses_1").unwrap();
    remove_session_worktree(&fixture.worktrees(), "../repository").unwrap();
    assert!(fixture.repository().exists());
}

#[test]
fn an_incomplete_worktree_is_created_again() {
    let fixture = WorktreeFixture::new();
    let (worktree, folder) = fixture.create();
    // As if the process was killed during the checkout.
    fixture.git(&["update-ref", "-d", "refs/selvedge/ses_1"]);
    std::fs::remove_file(folder.join("a.txt")).unwrap();
    let error = worktree.apply(&WorktreeRules::default()).unwrap_err();
    assert!(matches!(error, WorktreeError::NotCreated(_)), "{error}");
    worktree.create_if_missing().unwrap();
    assert!(folder.join("a.txt").exists());
    std::fs::remove_dir_all(&folder).unwrap();
    worktree.create_if_missing().unwrap();
    assert_eq!(worktree.diff(&WorktreeRules::default()).unwrap(), "");
    // As if the process was killed before git restored the files of a deleted worktree.
    std::fs::remove_dir_all(&folder).unwrap();
    fixture.git(&["worktree", "prune"]);
    let path = folder.to_str().unwrap();
    fixture.git(&[
        "worktree",
        "add",
        "-q",
        "--no-checkout",
        path,
        "selvedge/ses_1",
    ]);
    assert!(folder.join(".git").exists() && !folder.join("a.txt").exists());
    worktree.create_if_missing().unwrap();
    assert!(folder.join("a.txt").exists());
    assert_eq!(worktree.diff(&WorktreeRules::default()).unwrap(), "");
}

#[test]
fn no_program_of_the_repository_runs() {
    let fixture = WorktreeFixture::new();
    let marker = fixture.dir.path().join("marker");
    let hooks = fixture.repository().join(".git/hooks");
    std::fs::create_dir_all(&hooks).unwrap();
    for name in [
        "post-checkout",
        "reference-transaction",
        "post-index-change",
    ] {
        let hook = hooks.join(name);
        std::fs::write(&hook, format!("#!/bin/sh\ntouch {}\n", marker.display())).unwrap();
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let (worktree, folder) = fixture.create();
    put(&folder, "a.txt", "x\n");
    worktree.apply(&WorktreeRules::default()).unwrap();
    worktree.discard().unwrap();
    assert!(!marker.exists(), "a hook ran");
    let evil = format!("touch {}", marker.display());
    for key in ["filter.x.smudge", "filter.x.clean", "merge.x.driver"] {
        fixture.git(&["config", key, &evil]);
        let error = fixture.find("").unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
        fixture.git(&["config", "--unset", key]);
    }
    fixture.find("").unwrap().create_if_missing().unwrap();
    put(&folder, "sub", "x");
    std::fs::remove_file(folder.join("sub")).unwrap();
    assert!(!marker.exists(), "a configured program ran");
}

#[test]
fn a_folder_without_a_commit_has_no_worktree() {
    let dir = tempfile::tempdir().unwrap();
    let find = || SessionWorktree::find(&dir.path().join("w"), "ses_1", dir.path());
    let error = find().unwrap_err();
    assert!(matches!(error, WorktreeError::NotARepository(_)), "{error}");
    assert!(error.hint().unwrap().contains("git init"));
    let init = Command::new("git")
        .args(["init", "-q"])
        .current_dir(dir.path())
        .status();
    assert!(init.unwrap().success());
    let error = find().unwrap().create_if_missing().unwrap_err();
    assert!(matches!(error, WorktreeError::NoCommit(_)), "{error}");
}

/// A submodule whose repository an agent replaces with one that runs a program.
#[test]
fn git_does_not_enter_submodules() {
    let fixture = WorktreeFixture::new();
    let lib = fixture.dir.path().join("lib");
    let shell = |folder: &Path, script: &str| {
        let ran = Command::new("sh")
            .args(["-c", script])
            .current_dir(folder)
            .output()
            .unwrap();
        assert!(ran.status.success(), "{ran:?}");
    };
    std::fs::create_dir(&lib).unwrap();
    let identity = "git config user.name Ada; git config user.email ada@example.org";
    shell(
        &lib,
        &format!("git init -q; {identity}; echo 1 > l.txt; git add .; git commit -qm L"),
    );
    let lib = lib.display().to_string();
    let add = ["-c", "protocol.file.allow=always", "submodule", "add"];
    fixture.git(&[&add[..], &["-q", &lib, "lib"]].concat());
    fixture.commit();
    let (worktree, folder) = fixture.create();
    std::fs::write(folder.join("a.txt"), "changed\n").unwrap();
    let ran = fixture.dir.path().join("ran");
    let evil = format!(
        "git init -q .; git fetch -q {lib} HEAD; git reset -q --hard FETCH_HEAD
         echo '*.txt filter=evil' > .gitattributes; echo 2 > l.txt
         git config filter.evil.clean 'touch {}; cat'",
        ran.display()
    );
    shell(&folder.join("lib"), &evil);
    let diff = worktree.diff(&WorktreeRules::default()).unwrap();
    assert!(diff.contains("+changed") && !diff.contains("lib"), "{diff}");
    let applied = worktree.apply(&WorktreeRules::default()).unwrap();
    assert_eq!(applied, [Path::new("a.txt")]);
    assert!(!ran.exists());
}

#[test]
fn files_that_the_folder_protects_are_not_applied() {
    let fixture = WorktreeFixture::new();
    for file in ["hooks/pre-commit", "deploy/key"] {
        let path = fixture.repository().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "old\n").unwrap();
    }
    fixture.commit();
    let hooks = fixture.repository().join("hooks").display().to_string();
    let (worktree, folder) = fixture.create();
    let mut rules = WorktreeRules::default();
    rules.paths.protected = vec![fixture.repository().join("deploy")];
    fixture.git(&["config", "core.hooksPath", &hooks]);
    for file in ["hooks/pre-commit", "deploy/key"] {
        std::fs::write(folder.join(file), "evil\n").unwrap();
        std::fs::write(folder.join("a.txt"), "changed\n").unwrap();
        let error = worktree.apply(&rules).unwrap_err();
        assert!(
            matches!(&error, WorktreeError::Protected { path, .. } if path == Path::new(file)),
            "{error:?}"
        );
        assert_eq!(fixture.read(file).unwrap(), "old\n");
        assert!(!fixture.read("a.txt").unwrap().contains("changed"));
        std::fs::write(folder.join(file), "old\n").unwrap();
    }
    assert_eq!(worktree.apply(&rules).unwrap().len(), 1);
}

#[test]
fn a_link_is_not_applied_in_the_place_of_a_folder_above_a_protected_path() {
    let fixture = WorktreeFixture::new();
    let (worktree, folder) = fixture.create();
    let hooks = fixture.repository().join("tools/hooks");
    fixture.git(&["config", "core.hooksPath", &hooks.display().to_string()]);
    std::fs::create_dir_all(folder.join("evil/hooks")).unwrap();
    std::fs::write(folder.join("evil/hooks/pre-commit"), "evil\n").unwrap();
    std::os::unix::fs::symlink("evil", folder.join("tools")).unwrap();
    let error = worktree.apply(&WorktreeRules::default()).unwrap_err();
    assert!(
        matches!(&error, WorktreeError::Protected { path, .. } if path == Path::new("tools")),
        "{error:?}"
    );
    assert!(!fixture.repository().join("evil").exists());
}

#[test]
fn files_that_the_sessions_folder_protects_are_not_applied() {
    let fixture = WorktreeFixture::new();
    let repository = fixture.repository();
    std::fs::create_dir_all(repository.join("web/editor")).unwrap();
    std::fs::write(repository.join("web/editor/tasks.json"), "old\n").unwrap();
    std::fs::write(repository.join(".gitignore"), ".vscode\n*.log\n").unwrap();
    fixture.commit();
    std::fs::create_dir_all(repository.join("web/.vscode")).unwrap();
    let link = repository.join("web/.vscode/tasks.json");
    std::os::unix::fs::symlink("../editor/tasks.json", link).unwrap();
    let worktree = fixture.find("web").unwrap();
    worktree.create_if_missing().unwrap();
    put(&worktree.working_folder(), "editor/tasks.json", "evil\n");
    let error = worktree.apply(&WorktreeRules::default()).unwrap_err();
    assert!(
        matches!(error, WorktreeError::Protected { .. }),
        "{error:?}"
    );
    assert_eq!(fixture.read("web/editor/tasks.json").unwrap(), "old\n");
}

/// Git reads the files of a worktree with the rights of the agent's commands.
#[test]
fn git_does_not_read_hidden_files_of_a_worktree() {
    let fixture = WorktreeFixture::new();
    let (worktree, folder) = fixture.create();
    std::fs::create_dir(folder.join("keys")).unwrap();
    std::fs::write(folder.join("keys/id"), "SECRET\n").unwrap();
    std::fs::write(folder.join("secret"), "SECRET\n").unwrap();
    std::fs::write(folder.join("new.txt"), "new\n").unwrap();
    // The same happens if a link takes the place of a folder while git reads it.
    let mut rules = WorktreeRules::default();
    rules.paths.hidden = vec![
        folder.join("keys"),
        folder.join("web"),
        folder.join("secret"),
    ];
    let diff = worktree.diff(&rules).unwrap();
    assert!(diff.contains("+new") && !diff.contains("SECRET"), "{diff}");
    // Hidden files that are in the repository stay as they are.
    assert!(!diff.contains("web/b.txt"), "{diff}");
    let applied = worktree.apply(&rules).unwrap();
    assert_eq!(applied, [Path::new("new.txt")]);
    assert_eq!(fixture.read("web/b.txt").as_deref(), Some("b\n"));
    assert_eq!(worktree.diff(&rules).unwrap(), "");
    let left: Vec<_> = std::fs::read_dir(fixture.worktrees())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["ses_1"], "scratch folders are removed");
}

/// The folder's own files count as well: they are in memory until all files are written.
#[test]
fn files_that_are_too_large_in_all_are_not_applied() {
    let fixture = WorktreeFixture::new();
    let lines = "1\n2\n3\n4\n5\n6\n7\n8\n";
    let names = ["one.txt", "two.txt"];
    for name in names {
        fixture.write(name, lines);
    }
    fixture.commit();
    let (worktree, folder) = fixture.create();
    let appended = format!("{}\n", "a".repeat(99)).repeat(400_000);
    for name in names {
        put(&folder, name, &lines.replace('1', "one"));
        fixture.write(name, &format!("{lines}{appended}"));
    }
    let rules = WorktreeRules::default();
    let error = worktree.apply(&rules).unwrap_err();
    assert!(matches!(error, WorktreeError::TooLarge), "{error}");
    assert!(fixture.read("one.txt").unwrap().starts_with("1\n"));
    // One of them is small enough.
    fixture.write("two.txt", lines);
    worktree.apply(&rules).unwrap();
    assert!(fixture.read("one.txt").unwrap().starts_with("one\n"));
}
