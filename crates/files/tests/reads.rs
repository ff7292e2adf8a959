//! Which files are read, and which are refused and why.
#![cfg(unix)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use selvedge_files::{CredentialFiles, ProjectFiles, TextStart, read_user_file, read_user_text};

/// A project folder with a repository, a secret outside of it, and a credential.
struct Folders {
    _dir: tempfile::TempDir,
    project: PathBuf,
    secret: PathBuf,
    credential: PathBuf,
    files: ProjectFiles,
}

impl Folders {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let [project, secret, keys] = ["project", "secret", "keys"].map(|name| base.join(name));
        fs::create_dir_all(project.join(".git")).unwrap();
        fs::write(project.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::create_dir_all(project.join("sub")).unwrap();
        fs::create_dir_all(keys.join("deep")).unwrap();
        fs::write(&secret, "secret").unwrap();
        let credential = keys.join("deep/key");
        fs::write(&credential, "key").unwrap();
        let paths = vec![keys, project.join("sub/key")];
        let protected = CredentialFiles::new(move || paths);
        Self {
            files: ProjectFiles::of_folder(&project.join("sub"), protected),
            _dir: dir,
            project,
            secret,
            credential,
        }
    }

    /// Returns the text of a file, or the reason why it is not read.
    fn read(&self, name: &str) -> String {
        let path = self.project.join(name);
        match self.files.read_text(&path, 1000) {
            Ok(text) => text.unwrap_or("(none)".to_owned()),
            Err(refusal) => refusal.reason.to_string(),
        }
    }

    fn make_pipe(&self, name: &str) -> PathBuf {
        let path = self.project.join(name);
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        path
    }
}

#[test]
fn the_project_is_the_repository_or_the_folder_alone() {
    let folders = Folders::new();
    assert_eq!(folders.files.root(), folders.project);
    assert_eq!(
        folders.files.folders(),
        [folders.project.as_path(), &folders.project.join("sub")]
    );
    // An empty folder is not a repository, a file that names one is.
    fs::remove_file(folders.project.join(".git/HEAD")).unwrap();
    let alone = ProjectFiles::of_folder(&folders.project.join("sub"), Default::default());
    assert_eq!(alone.root(), folders.project.join("sub"));
    assert_eq!(alone.folders(), [alone.root()]);
    fs::remove_dir(folders.project.join(".git")).unwrap();
    fs::write(folders.project.join(".git"), "gitdir: elsewhere").unwrap();
    let linked = ProjectFiles::of_folder(&folders.project.join("sub"), Default::default());
    assert_eq!(linked.root(), folders.project);
}

#[test]
fn a_repository_of_another_user_is_not_the_project() {
    let folders = Folders::new();
    let git = folders.project.join(".git");
    // Only root can give a folder away.
    if std::os::unix::fs::chown(&git, Some(54321), None).is_ok() {
        let files = ProjectFiles::of_folder(&folders.project.join("sub"), Default::default());
        assert_eq!(files.root(), folders.project.join("sub"));
        // Unless the working folder is that user's, too.
        std::os::unix::fs::chown(folders.project.join("sub"), Some(54321), None).unwrap();
        let files = ProjectFiles::of_folder(&folders.project.join("sub"), Default::default());
        assert_eq!(files.root(), folders.project);
    }
}

#[test]
fn links_inside_the_project_are_followed() {
    let folders = Folders::new();
    fs::write(folders.project.join("target"), "inside").unwrap();
    symlink("target", folders.project.join("relative")).unwrap();
    symlink(
        folders.project.join("target"),
        folders.project.join("absolute"),
    )
    .unwrap();
    symlink("../target", folders.project.join("sub/up")).unwrap();
    symlink("sub", folders.project.join("folder")).unwrap();
    for name in ["target", "relative", "absolute", "sub/up", "folder/up"] {
        assert_eq!(folders.read(name), "inside", "{name}");
    }
    assert_eq!(folders.read("missing"), "(none)");
    assert_eq!(folders.read("target/below"), "(none)");
}

#[test]
fn links_that_leave_the_project_are_refused() {
    let folders = Folders::new();
    let leaves = "it is a link that leaves the project";
    symlink(&folders.secret, folders.project.join("absolute")).unwrap();
    symlink("../secret", folders.project.join("relative")).unwrap();
    symlink("absolute", folders.project.join("twice")).unwrap();
    symlink("..", folders.project.join("folder")).unwrap();
    symlink("/proc/self/environ", folders.project.join("environ")).unwrap();
    symlink("/dev/zero", folders.project.join("zero")).unwrap();
    for name in [
        "absolute",
        "relative",
        "twice",
        "folder/secret",
        "environ",
        "zero",
    ] {
        assert_eq!(folders.read(name), leaves, "{name}");
    }
    symlink("loop", folders.project.join("loop")).unwrap();
    assert!(folders.read("loop").contains("symbolic link"));
}

#[test]
fn only_regular_files_are_read_and_pipes_do_not_block() {
    let folders = Folders::new();
    fs::create_dir_all(folders.project.join("folder/inner")).unwrap();
    let _socket = UnixListener::bind(folders.project.join("socket")).unwrap();
    let pipe = folders.make_pipe("pipe");
    symlink("pipe", folders.project.join("link")).unwrap();
    for (name, kind) in [
        ("folder", "a folder"),
        ("socket", "a socket"),
        ("pipe", "a pipe"),
        ("link", "a pipe"),
    ] {
        assert_eq!(
            folders.read(name),
            format!("it is {kind}, not a regular file")
        );
    }
    // An empty folder keeps a confined command from creating the file.
    assert_eq!(folders.read("folder/inner"), "(none)");
    assert!(read_user_file(&pipe, 1000).is_err());
    assert!(read_user_file(Path::new("/dev/zero"), 1000).is_err());
}

#[test]
fn credentials_are_refused_by_path_and_as_hard_links() {
    let folders = Folders::new();
    fs::write(folders.project.join("sub/key"), "key").unwrap();
    symlink("sub/key", folders.project.join("link")).unwrap();
    fs::hard_link(&folders.credential, folders.project.join("hard")).unwrap();
    for name in ["sub/key", "link", "hard"] {
        assert_eq!(folders.read(name), "it holds credentials", "{name}");
    }
    // Other hard links are ordinary files.
    fs::write(folders.project.join("one"), "text").unwrap();
    fs::hard_link(folders.project.join("one"), folders.project.join("two")).unwrap();
    assert_eq!(folders.read("two"), "text");
}

#[test]
fn files_of_proc_are_refused() {
    let files = ProjectFiles::of_folder(Path::new("/proc/self"), Default::default());
    if cfg!(target_os = "linux") {
        let refusal = files
            .read_text(Path::new("/proc/self/environ"), 1000)
            .unwrap_err();
        assert!(
            refusal
                .to_string()
                .ends_with("it exposes processes and their environment"),
            "{refusal}"
        );
        assert!(read_user_file(Path::new("/proc/self/environ"), 1 << 20).is_err());
    }
}

#[test]
fn large_files_are_refused_or_cut() {
    let folders = Folders::new();
    let path = folders.project.join("large");
    fs::write(&path, "ab\u{fc}\u{fc}").unwrap();
    let start = |bytes| folders.files.read_start(&path, bytes).unwrap().unwrap();
    let cut = |text: &str, is_cut| TextStart {
        text: text.to_owned(),
        is_cut,
    };
    assert_eq!(start(6), cut("ab\u{fc}\u{fc}", false));
    assert_eq!(start(5), cut("ab\u{fc}", true));
    assert_eq!(start(2), cut("ab", true));
    assert!(folders.files.read_text(&path, 6).is_ok());
    assert!(folders.files.read_text(&path, 5).is_err());
    // A sparse file has a size but takes no time.
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(start(5).text.len(), 5);
    let refusal = folders.files.read_text(&path, 64 << 10).unwrap_err();
    assert!(
        refusal.to_string().ends_with("it is larger than 64 KB"),
        "{refusal}"
    );
    fs::write(&path, b"\xff").unwrap();
    assert_eq!(folders.read("large"), "it is not UTF-8 text");
}

#[test]
fn files_of_the_user_may_be_links() {
    let folders = Folders::new();
    let link = folders.project.join("link");
    symlink(&folders.secret, &link).unwrap();
    assert_eq!(read_user_text(&link, 100).unwrap().unwrap(), "secret");
    assert!(read_user_text(&link, 5).is_err());
    assert!(
        read_user_text(&folders.project.join("missing"), 5)
            .unwrap()
            .is_none()
    );
}

#[test]
fn the_credentials_are_searched_for_hard_links_only_once() {
    let folders = Folders::new();
    let keys = folders.credential.parent().unwrap();
    for at in 0..4_000 {
        fs::write(keys.join(format!("key{at}")), "").unwrap();
    }
    fs::write(folders.project.join("one"), "text").unwrap();
    fs::hard_link(folders.project.join("one"), folders.project.join("two")).unwrap();
    let started = std::time::Instant::now();
    for _ in 0..2_000 {
        assert_eq!(folders.read("two"), "text");
    }
    let elapsed = started.elapsed();
    assert!(elapsed < std::time::Duration::from_secs(5), "{elapsed:?}");
}
