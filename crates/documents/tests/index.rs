//! The index over real files: changes, limits, ignored and hostile files.
#![allow(clippy::unwrap_used, missing_docs)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use selvedge_documents::{
    DocumentAccess, DocumentGlobs, DocumentIndex, DocumentQuery, FoundDocuments, ScanFilter,
    SortKey,
};
use selvedge_files::{CredentialFiles, FileRefusal, ProjectFiles};
use serde_json::{Value, json};

/// Counts what the index does.
#[derive(Default)]
struct Activity {
    reads: AtomicUsize,
    scans: AtomicUsize,
}

/// Leaves out the names that the file `.ignore` lists, and a credential.
struct TestAccess {
    root: PathBuf,
    files: ProjectFiles,
    activity: Arc<Activity>,
}

impl DocumentAccess for TestAccess {
    fn scan_filter(&self) -> ScanFilter {
        self.activity.scans.fetch_add(1, Ordering::Relaxed);
        let ignored = std::fs::read_to_string(self.root.join(".ignore")).unwrap_or_default();
        Box::new(move |path, _| {
            let name = path.file_name().unwrap_or_default();
            ignored.lines().any(|line| name == line)
        })
    }

    fn is_rule_file(&self, name: &OsStr) -> bool {
        name == ".ignore"
    }

    fn read_text(&self, path: &Path, max_bytes: usize) -> Result<Option<String>, FileRefusal> {
        self.activity.reads.fetch_add(1, Ordering::Relaxed);
        self.files.read_text(path, max_bytes)
    }
}

struct IndexFixture {
    dir: tempfile::TempDir,
    root: PathBuf,
    index: DocumentIndex,
    activity: Arc<Activity>,
}

impl IndexFixture {
    fn new(files: &[(&str, &str)], globs: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("work");
        std::fs::create_dir(&root).unwrap();
        let secret = dir.path().canonicalize().unwrap().join("secret.md");
        std::fs::write(&secret, "---\nkind: secret\n---\n").unwrap();
        let activity = Arc::new(Activity::default());
        let files_of_root =
            ProjectFiles::of_folder(&root, CredentialFiles::new(move || vec![secret]));
        let access = TestAccess {
            root: root.clone(),
            files: files_of_root.with_root(&root).unwrap(),
            activity: activity.clone(),
        };
        let globs = DocumentGlobs::new(globs.iter().copied()).unwrap();
        let fixture = Self {
            index: DocumentIndex::new(&root, globs, access),
            dir,
            root,
            activity,
        };
        for (path, text) in files {
            fixture.write(path, text);
        }
        fixture
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn found(&self, fields: Value) -> FoundDocuments {
        let query = DocumentQuery {
            fields: fields.as_object().cloned().unwrap(),
            limit: 100,
            ..DocumentQuery::default()
        };
        self.index.query(&query).unwrap()
    }

    fn paths(&self, fields: Value) -> Vec<String> {
        let found = self.found(fields).documents;
        found.iter().map(|document| document.path.clone()).collect()
    }

    fn reads(&self) -> usize {
        self.activity.reads.load(Ordering::Relaxed)
    }

    fn scans(&self) -> usize {
        self.activity.scans.load(Ordering::Relaxed)
    }
}

const OPEN: &str = "---\nkind: issue\nstatus: open\n---\n# One\n\nThe first text.\n";
const CLOSED: &str = "---\nkind: issue\nstatus: closed\n---\n# Two\n\nAnother text.\n";

#[test]
fn a_query_finds_documents_by_field_and_text() {
    let files = [
        ("issues/1.md", OPEN),
        ("issues/deep/er/2.md", CLOSED),
        (
            "docs/guide.md",
            "# Guide\n\nHow to write the first issue.\n",
        ),
        ("README.md", "# Not selected\n"),
        ("issues/3.txt", OPEN),
    ];
    let fixture = IndexFixture::new(&files, &["issues/**/*.md", "docs/*.md"]);
    assert_eq!(
        fixture.paths(json!({})),
        ["docs/guide.md", "issues/1.md", "issues/deep/er/2.md"]
    );
    assert_eq!(
        fixture.paths(json!({"kind": "issue", "status": "open"})),
        ["issues/1.md"]
    );
    let query = DocumentQuery {
        text: Some("first".to_owned()),
        sort: vec![SortKey::parse("-title")],
        limit: 1,
        ..DocumentQuery::default()
    };
    let found = fixture.index.query(&query).unwrap();
    assert_eq!((found.total, found.documents[0].title.as_str()), (2, "One"));
}

#[test]
fn changes_are_seen_by_the_next_query_and_only_changed_files_are_read() {
    let fixture = IndexFixture::new(&[("a.md", OPEN), ("sub/b.md", OPEN)], &["**/*.md"]);
    let open = || fixture.paths(json!({"status": "open"}));
    assert_eq!(open(), ["a.md", "sub/b.md"]);
    let before = fixture.reads();
    assert_eq!(open(), ["a.md", "sub/b.md"]);
    if cfg!(target_os = "linux") {
        assert_eq!((fixture.reads(), fixture.scans()), (before, 1));
    }
    fixture.write("a.md", CLOSED);
    assert_eq!(open(), ["sub/b.md"]);
    if cfg!(target_os = "linux") {
        assert_eq!((fixture.reads(), fixture.scans()), (before + 1, 1));
    }
    // The same size, within the same tick of the clock.
    fixture.write("a.md", &OPEN.replace("open", "done"));
    assert_eq!(fixture.paths(json!({"status": "done"})), ["a.md"]);
    fixture.write("a.md", OPEN);
    fixture.write("sub/new.md", OPEN);
    assert_eq!(open(), ["a.md", "sub/b.md", "sub/new.md"]);
    fixture.write("fresh/folder/c.md", OPEN);
    assert_eq!(open().len(), 4);
    fixture.write("fresh/folder/d.md", OPEN);
    assert_eq!(open().len(), 5);
    std::fs::rename(fixture.root.join("fresh"), fixture.root.join("moved")).unwrap();
    fixture.write("moved/folder/e.md", OPEN);
    let moved = [
        "moved/folder/c.md",
        "moved/folder/d.md",
        "moved/folder/e.md",
    ];
    assert_eq!(fixture.paths(json!({"path": "moved"})), moved);
    assert!(fixture.paths(json!({"path": "fresh"})).is_empty());
    std::fs::remove_file(fixture.root.join("a.md")).unwrap();
    std::fs::remove_dir_all(fixture.root.join("moved")).unwrap();
    assert_eq!(open(), ["sub/b.md", "sub/new.md"]);
    std::fs::rename(
        fixture.root.join("sub/b.md"),
        fixture.root.join("sub/b.txt"),
    )
    .unwrap();
    assert_eq!(open(), ["sub/new.md"]);
}

#[test]
fn text_search_follows_changes() {
    let fixture = IndexFixture::new(&[("a.md", "apples\n"), ("b.md", "pears\n")], &["*.md"]);
    let search = |text: &str| {
        let query = DocumentQuery {
            text: Some(text.to_owned()),
            limit: 10,
            ..DocumentQuery::default()
        };
        let found = fixture.index.query(&query).unwrap();
        let paths = found.documents.iter().map(|document| document.path.clone());
        paths.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        (search("apple"), search("pear")),
        ("a.md".into(), "b.md".into())
    );
    fixture.write("a.md", "pears, plums, cherries, figs, grapes\n");
    assert_eq!(search("apple"), "");
    assert_eq!(search("pear"), "b.md a.md");
    std::fs::remove_file(fixture.root.join("b.md")).unwrap();
    assert_eq!(search("pear"), "a.md");
}

#[test]
fn ignore_rules_are_read_again_when_they_change() {
    let files = [
        ("a.md", OPEN),
        ("vendor/b.md", OPEN),
        (".ignore", "vendor\n"),
    ];
    let fixture = IndexFixture::new(&files, &["**/*.md"]);
    assert_eq!(fixture.paths(json!({})), ["a.md"]);
    fixture.write(".ignore", "a.md\n");
    assert_eq!(fixture.paths(json!({})), ["vendor/b.md"]);
    fixture.write("vendor/c.md", OPEN);
    fixture.write("a.md", CLOSED);
    assert_eq!(fixture.paths(json!({})), ["vendor/b.md", "vendor/c.md"]);
}

#[test]
fn malformed_files_are_reported_and_do_not_break_a_query() {
    let files = [
        ("a.md", OPEN),
        ("bad.md", "---\nkind: issue\ntitle: a: b\n---\ntext\n"),
        ("open.md", "---\nkind: issue\n"),
    ];
    let fixture = IndexFixture::new(&files, &["**/*.md"]);
    std::fs::write(fixture.root.join("binary.md"), [0xff, 0xfe, 0x00, 0xd8]).unwrap();
    let large = std::fs::File::create(fixture.root.join("large.md")).unwrap();
    large.set_len(10 << 30).unwrap();
    let found = fixture.found(json!({"kind": "issue"}));
    assert_eq!(found.documents.len(), 1);
    let problems: Vec<(&str, &str)> = found
        .problems
        .iter()
        .map(|(path, problem)| (path.as_str(), problem.as_str()))
        .collect();
    assert_eq!(
        problems,
        [
            (
                "bad.md",
                "line 3: mapping values are not allowed in this context"
            ),
            ("binary.md", "it is not UTF-8 text"),
            ("large.md", "it is larger than 1024 KB"),
            (
                "open.md",
                "the front matter has no end: write a line `---` after it"
            ),
        ]
    );
    let bad = fixture.found(json!({"path": "bad.md"}));
    assert_eq!(bad.problems.len(), 1);
    assert!(bad.documents[0].markdown.starts_with("---\nkind"));
}

#[cfg(unix)]
#[test]
fn links_pipes_devices_and_credentials_are_no_documents() {
    use std::os::unix::fs::symlink;
    let fixture = IndexFixture::new(&[("a.md", OPEN), ("real/b.md", OPEN)], &["**/*.md"]);
    let root = &fixture.root;
    let outside = fixture.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("x.md"), OPEN).unwrap();
    symlink(outside.join("x.md"), root.join("link.md")).unwrap();
    symlink(&outside, root.join("folder")).unwrap();
    symlink(root, root.join("loop")).unwrap();
    symlink("real", root.join("inside")).unwrap();
    symlink("/dev/zero", root.join("zero.md")).unwrap();
    std::fs::hard_link(fixture.dir.path().join("secret.md"), root.join("hard.md")).unwrap();
    let pipe = root.join("pipe.md");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    std::os::unix::net::UnixListener::bind(root.join("socket.md")).unwrap();
    std::fs::create_dir(root.join("folder.md")).unwrap();
    assert_eq!(fixture.paths(json!({})), ["a.md", "real/b.md"]);
    // A file that becomes a link, and one that becomes a pipe, are removed.
    std::fs::remove_file(root.join("a.md")).unwrap();
    symlink(outside.join("x.md"), root.join("a.md")).unwrap();
    std::fs::rename(&pipe, root.join("real/b.md")).unwrap();
    assert!(fixture.paths(json!({})).is_empty());
}

#[test]
fn a_deep_tree_and_a_missing_workspace_are_no_problem() {
    let deep = format!("{}a.md", "d/".repeat(100));
    let fixture = IndexFixture::new(&[("a.md", OPEN), (&deep, OPEN)], &["**/*.md"]);
    assert_eq!(fixture.paths(json!({})), ["a.md"]);
    std::fs::remove_dir_all(&fixture.root).unwrap();
    assert!(fixture.paths(json!({})).is_empty());
    fixture.write("again/a.md", OPEN);
    assert_eq!(fixture.paths(json!({})), ["again/a.md"]);
}

#[test]
fn many_changes_at_once_are_seen() {
    let fixture = IndexFixture::new(&[("a.md", OPEN)], &["**/*.md"]);
    assert_eq!(fixture.paths(json!({})).len(), 1);
    for number in 0..3_000 {
        fixture.write(&format!("n{number}.md"), OPEN);
    }
    assert_eq!(fixture.found(json!({"status": "open"})).total, 3_001);
    assert_eq!(fixture.index.paths().len(), 3_001);
}
