//! The file tools on a real folder, called from scripts.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "files/images.rs"]
mod images;
#[path = "files/indentation.rs"]
mod indentation;

use std::path::Path;

use selvedge_protocol::{SandboxPolicy, ScriptToolCallOutput};
use selvedge_script::Harness;
use selvedge_toolbox::{Toolbox, Workspace};
use selvedge_tools::{Orchestrator, Registry};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder with a workspace in `work`, and folders `outside` and `private` beside it.
struct FilesWorkspace {
    dir: TempDir,
    policy: SandboxPolicy,
}

impl FilesWorkspace {
    fn new() -> Self {
        // Not in /tmp, which is always writable.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for folder in ["work/src", "work/.git/hooks", "outside", "private"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let workspace = Self {
            dir,
            policy: SandboxPolicy::WorkspaceWrite,
        };
        workspace.write(
            "work/src/main.rs",
            "fn main() {\n    if true {\n        run();\n    }\n}\n\nfn other() {}\n",
        );
        workspace.write("work/src/lib.rs", "pub fn run() {}\n// TODO: more\n");
        workspace.write("work/.gitignore", "ignored.txt\n");
        workspace.write("work/ignored.txt", "TODO: never seen\n");
        workspace.write("outside/secret.txt", "outside\n");
        workspace.write("private/journal", "mine\n");
        workspace
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, source: &str) -> ScriptToolCallOutput {
        let workspace =
            Workspace::open(&self.path("work"), self.policy, &[self.path("private")]).unwrap();
        let mut registry = Registry::new();
        Toolbox::new(workspace).register(&mut registry).unwrap();
        let harness = Harness::new(Orchestrator::new(registry)).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(harness.run(source))
    }

    fn value(&self, source: &str) -> Value {
        let output = self.run(source);
        assert_eq!(output.error, None, "{source}");
        output.value().unwrap_or(Value::Null)
    }

    fn error(&self, source: &str) -> String {
        self.run(source)
            .error
            .unwrap_or_else(|| panic!("no error: {source}"))
            .message
    }
}

#[test]
fn read_file_returns_a_range_of_lines() {
    let workspace = FilesWorkspace::new();
    let value =
        workspace.value("return await tools.readFile({path: 'src/main.rs', offset: 2, limit: 2})");
    assert_eq!(value["text"], json!("    if true {\n        run();\n"));
    assert_eq!(value["content"], value["text"]);
    assert_eq!(value["firstLine"], json!(2));
    assert_eq!(
        (&value["totalLines"], &value["truncated"]),
        (&json!(7), &json!(true))
    );
    let whole = workspace.value("return await tools.readFile({filePath: 'src/lib.rs'})");
    assert_eq!(
        (
            &whole["totalLines"],
            &whole["truncated"],
            &whole["encoding"]
        ),
        (&json!(2), &json!(false), &json!("utf-8"))
    );
    assert_eq!(
        workspace
            .value("return (await tools.read_file({path: 'src/main.rs', start_line: 7})).text"),
        json!("fn other() {}\n")
    );
}

#[test]
fn read_file_errors_state_the_reason() {
    let workspace = FilesWorkspace::new();
    workspace.write("work/data.bin", b"a\0b");
    workspace.write("work/wide.txt", b"\xff\xfeh\0i\0\n\0");
    workspace.write("work/latin1.txt", b"caf\xe9\n");
    for (args, part) in [
        ("{path: 'missing.txt'}", "missing.txt does not exist"),
        ("{path: 'src'}", "src is a folder"),
        ("{path: 'data.bin'}", "data.bin is a binary file"),
        (
            "{path: 'src/lib.rs', offset: 0}",
            "offset is 0, but line numbers start at 1",
        ),
        (
            "{path: 'src/lib.rs', offset: 9}",
            "past the end: src/lib.rs has 2 lines",
        ),
    ] {
        let error = workspace.error(&format!("await tools.readFile({args})"));
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(
        workspace.value(
            "const f = await tools.readFile({path: 'wide.txt'}); return [f.text, f.encoding]"
        ),
        json!(["hi\n", "utf-16le"])
    );
    assert_eq!(
        workspace.value(
            "const f = await tools.readFile({path: 'latin1.txt'}); return [f.text, f.lossy]"
        ),
        json!(["caf\u{fffd}\n", true])
    );
}

#[test]
fn private_folders_and_proc_cannot_be_read() {
    let workspace = FilesWorkspace::new();
    std::os::unix::fs::symlink(
        workspace.path("private/journal"),
        workspace.path("work/link"),
    )
    .unwrap();
    let private = workspace.path("private/journal").display().to_string();
    for path in [private.as_str(), "../private/journal", "link"] {
        let error = workspace.error(&format!("await tools.readFile({{path: {path:?}}})"));
        assert!(error.contains("holds secrets"), "{path}: {error}");
    }
    let error =
        workspace.error("return await tools.grepFiles({pattern: 'mine', path: '../private'})");
    assert!(error.contains("holds secrets"), "{error}");
    assert!(
        workspace
            .error("await tools.listDir({path: '../private'})")
            .contains("holds secrets")
    );

    // Files in /proc, which show the environment of processes with their keys.
    std::os::unix::fs::symlink("/proc/self/environ", workspace.path("work/environ")).unwrap();
    let open = std::fs::File::open(workspace.path("outside/secret.txt")).unwrap();
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .env("KEY", "hunter2".repeat(3000))
        .spawn()
        .unwrap();
    let child_environ = format!("/proc/{}/environ", child.id());
    let descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
    for path in [
        "/proc/self/environ",
        "/proc/thread-self/environ",
        &child_environ,
        "environ",
        "/proc/self/status",
        &descriptor,
    ] {
        for call in [
            format!("readFile({{path: {path:?}}})"),
            format!("saveToFc({{path: {path:?}}})"),
            format!("viewImage({{path: {path:?}}})"),
        ] {
            let error = workspace.error(&format!("await tools.{call}"));
            let is_fd_link = path.contains("/fd/") && error.contains("cannot be read");
            assert!(
                error.contains("exposes processes") || is_fd_link,
                "{call}: {error}"
            );
        }
        if path != descriptor {
            let error = workspace.error(&format!(
                "await tools.grepFiles({{pattern: '.', path: {path:?}}})"
            ));
            assert!(error.contains("exposes processes"), "{path}: {error}");
        }
    }
    for call in [
        "listDir({path: '/proc/self'})",
        "fileSearch({pattern: '*', searchDirectory: '/proc/self'})",
    ] {
        let error = workspace.error(&format!("await tools.{call}"));
        assert!(error.contains("exposes processes"), "{call}: {error}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn writing_a_file_clears_setuid_and_setgid() {
    use std::os::unix::fs::PermissionsExt;
    let workspace = FilesWorkspace::new();
    let mode = |name: &str| {
        workspace
            .path(name)
            .metadata()
            .unwrap()
            .permissions()
            .mode()
            & 0o7777
    };
    for call in [
        "writeFile({path: 'tool', content: 'new\\n'})",
        "applyPatch('*** Begin Patch\\n*** Update File: tool\\n@@\\n-old\\n+new\\n*** End Patch')",
    ] {
        workspace.write("work/tool", "old\n");
        std::fs::set_permissions(
            workspace.path("work/tool"),
            std::fs::Permissions::from_mode(0o6755),
        )
        .unwrap();
        assert_eq!(mode("work/tool"), 0o6755, "the file cannot be created");
        workspace.value(&format!("await tools.{call}"));
        assert_eq!(
            std::fs::read_to_string(workspace.path("work/tool")).unwrap(),
            "new\n"
        );
        assert_eq!(mode("work/tool"), 0o755, "{call}");
    }
}

#[test]
fn very_long_lines_are_read_with_bounded_memory() {
    let workspace = FilesWorkspace::new();
    // A line of one gigabyte in a sparse file, and a line after it.
    let file = std::fs::File::create(workspace.path("work/long")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[b'a'; 9000], 0).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"\nsecond\n", 1 << 30).unwrap();
    let read = "const f = await tools.readFile({path: 'long', limit: 1}); \
                return [f.text.length, f.cut, f.totalLines, f.truncated]";
    let value = workspace.value(read);
    let length = value[0].as_u64().unwrap();
    assert!((500_000..=8 << 20).contains(&length), "{value}");
    assert_eq!(
        (&value[1], &value[2], &value[3]),
        (&json!(true), &json!(2), &json!(true)),
        "{value}"
    );
    let peak = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = peak
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 600 << 10, "{peak} kB were used");
    assert_eq!(
        workspace.value(
            "const f = await tools.readFile({path: 'long', offset: 2}); \
             return [f.text, f.cut, f.truncated]"
        ),
        json!(["second\n", false, false])
    );
    // A character at the truncation point is not split.
    workspace.write("work/wide", "ä".repeat(5 << 20) + "\n");
    let value = workspace.value(
        "const f = await tools.readFile({path: 'wide'}); \
             return [f.lossy, f.cut, f.text.endsWith('ä')]",
    );
    assert_eq!(value, json!([false, true, true]));
}

#[test]
fn reading_a_long_file_stops_on_cancellation() {
    let workspace = FilesWorkspace::new();
    let file = std::fs::File::create(workspace.path("work/endless")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[b'a'; 9000], 0).unwrap();
    file.set_len(1 << 42).unwrap();
    // The call is still running when the script ends. If it did not stop, the runtime would wait
    // for it for an hour.
    let output = workspace.run("tools.readFile({path: 'endless'}); return 'done'");
    assert_eq!(output.value(), Some(json!("done")));
}

#[test]
fn a_large_utf16_file_is_read_to_its_end() {
    let workspace = FilesWorkspace::new();
    let line = "a line of wide characters, as some editors write it\n";
    let count = (70 << 20) / (2 * line.len()) + 1;
    let mut bytes = vec![0xff, 0xfe];
    let encoded: Vec<u8> = line.encode_utf16().flat_map(u16::to_le_bytes).collect();
    bytes.extend(encoded.repeat(count));
    workspace.write("work/wide.txt", bytes);
    let value = workspace.value(&format!(
        "const f = await tools.readFile({{path: 'wide.txt', offset: {count}}}); \
         return [f.totalLines, f.text, f.encoding, f.lossy]"
    ));
    assert_eq!(value, json!([count, line, "utf-16le", false]));
}

#[test]
fn list_dir_returns_entries_and_a_tree() {
    let workspace = FilesWorkspace::new();
    let value = workspace.value("return await tools.listDir({path: '.', depth: 2})");
    let entries = value["entries"].as_array().unwrap();
    let has = |path: &str, kind: &str| {
        let mut entries = entries.iter();
        entries.any(|entry| entry["path"] == path && entry["kind"] == kind)
    };
    assert!(has("src/main.rs", "file") && has("src", "dir"));
    assert!(
        value["content"]
            .as_str()
            .unwrap()
            .contains("  src/\n    lib.rs\n    main.rs\n")
    );
    let first = workspace.value("return await tools.listDir({dirPath: '.', limit: 1})");
    assert_eq!(
        (
            first["entries"].as_array().unwrap().len(),
            &first["truncated"]
        ),
        (1, &json!(true))
    );
}

#[test]
fn grep_files_finds_matching_lines() {
    let workspace = FilesWorkspace::new();
    let todo = json!([{"path": "src/lib.rs", "line": 2, "text": "// TODO: more"}]);
    assert_eq!(
        workspace.value("return await tools.grepFiles({pattern: 'TODO'})"),
        todo
    );
    assert_eq!(
        workspace.value(
            "return await tools.grepFiles({pattern: 'todo', caseSensitive: false, include: '*.rs'})"
        ),
        todo
    );
    assert_eq!(
        workspace.value("return await tools.grepFiles({pattern: 'todo'})"),
        json!([])
    );
    assert_eq!(
        workspace.value("return await tools.grepFiles({pattern: 'TODO', filePattern: '*.md'})"),
        json!([])
    );
    assert_eq!(
        workspace.value(
            "return (await tools.grepFiles({pattern: '^fn', path: 'src/main.rs'})).map(m => m.line)"
        ),
        json!([1, 7])
    );
    assert!(
        workspace
            .error("await tools.grepFiles({pattern: '('})")
            .contains("not a regular expression")
    );
}

#[test]
fn grep_files_rejects_regular_expressions_that_need_much_memory() {
    let workspace = FilesWorkspace::new();
    for pattern in ["(a{1,991}){1,1000}", "(\\\\w{100}){100}"] {
        let error = workspace.error(&format!("await tools.grepFiles({{pattern: '{pattern}'}})"));
        assert!(error.contains("is too large when compiled"), "{error:?}");
    }
}

#[test]
fn grep_files_reports_incompletely_searched_files() {
    let workspace = FilesWorkspace::new();
    workspace.write(
        "work/long.txt",
        format!("TODO: first\n{}\nTODO: last\n", "x".repeat(40 << 20)),
    );
    let found = workspace.value("return await tools.grepFiles({pattern: 'TODO'})");
    let skipped = json!({
        "path": "long.txt", "line": 0, "text": "", "skipped": "a line is longer than 16 MB"
    });
    assert_eq!(found.as_array().unwrap().last(), Some(&skipped), "{found}");
    assert!(
        found
            .as_array()
            .unwrap()
            .contains(&json!({"path": "src/lib.rs", "line": 2, "text": "// TODO: more"}))
    );
}

#[test]
fn file_search_finds_files_by_glob_and_fuzzy_name() {
    let workspace = FilesWorkspace::new();
    assert_eq!(
        workspace.value("return (await tools.fileSearch({pattern: '*.rs'})).map(f => f.path)"),
        json!(["src/lib.rs", "src/main.rs"])
    );
    let fuzzy = workspace.value("return await tools.fileSearch({pattern: 'smain'})");
    assert_eq!(fuzzy[0]["path"], json!("src/main.rs"));
    assert_eq!(fuzzy[0]["indices"].as_array().unwrap().len(), 5);
    assert_eq!(
        workspace
            .value("return (await tools.fileSearch({pattern: '*.rs', exclude: ['lib*']})).length"),
        json!(1)
    );
    assert_eq!(
        workspace.value("return await tools.fileSearch({pattern: 'ignored.txt'})"),
        json!([])
    );
}

#[test]
fn files_can_only_be_written_inside_the_workspace() {
    let mut workspace = FilesWorkspace::new();
    let value =
        workspace.value("return await tools.writeFile({path: 'new/deep/a.txt', content: 'hello'})");
    assert_eq!(
        value,
        json!({"path": "new/deep/a.txt", "bytes": 5, "created": true})
    );
    assert_eq!(
        std::fs::read_to_string(workspace.path("work/new/deep/a.txt")).unwrap(),
        "hello"
    );
    std::os::unix::fs::symlink(workspace.path("outside"), workspace.path("work/out")).unwrap();
    std::os::unix::fs::symlink(
        workspace.path("outside/secret.txt"),
        workspace.path("work/file"),
    )
    .unwrap();
    let absolute = workspace.path("outside/secret.txt").display().to_string();
    for path in [
        "../outside/secret.txt",
        absolute.as_str(),
        "out/secret.txt",
        "file",
        ".git/hooks/pre-commit",
        ".GIT/config",
        ".selvedge/config.toml",
    ] {
        let error = workspace.error(&format!(
            "await tools.writeFile({{path: {path:?}, content: 'bad'}})"
        ));
        assert!(
            error.contains("outside the workspace") || error.contains("protected"),
            "{path}: {error}"
        );
    }
    assert_eq!(
        std::fs::read_to_string(workspace.path("outside/secret.txt")).unwrap(),
        "outside\n"
    );
    assert!(!Path::new(&workspace.path("work/.git/hooks/pre-commit")).exists());
    workspace.policy = SandboxPolicy::ReadOnly;
    assert!(
        workspace
            .error("await tools.writeFile({path: 'b.txt', content: ''})")
            .contains("read-only")
    );
}

#[test]
fn update_plan_allows_one_step_in_progress() {
    let workspace = FilesWorkspace::new();
    let step = |status: &str| format!("{{step: 'x', status: '{status}'}}");
    let plan =
        |steps: String| format!("return (await tools.updatePlan({{plan: [{steps}]}})).content");
    assert_eq!(
        workspace.value(&plan(format!(
            "{}, {}",
            step("completed"),
            step("in_progress")
        ))),
        json!("plan updated: 1 of 2 done")
    );
    assert!(
        workspace
            .error(&plan(format!("{0}, {0}", step("in_progress"))))
            .contains("at most one")
    );
}

#[test]
fn links_to_secrets_are_not_searched() {
    let workspace = FilesWorkspace::new();
    std::os::unix::fs::symlink(workspace.path("private"), workspace.path("work/link")).unwrap();
    for call in [
        "grepFiles({pattern: '.', path: 'link'})",
        "fileSearch({pattern: '*', searchDirectory: 'link'})",
    ] {
        let error = workspace.error(&format!("return await tools.{call}"));
        assert!(error.contains("holds secrets"), "{call}: {error}");
    }
    let found = workspace.value(
        "return [await tools.grepFiles({pattern: 'mine'}), \
             await tools.fileSearch({pattern: 'journal'})]",
    );
    assert_eq!(found, json!([[], []]));
}

#[test]
fn pipes_and_devices_are_not_read() {
    let workspace = FilesWorkspace::new();
    let status = std::process::Command::new("mkfifo")
        .arg(workspace.path("work/pipe"))
        .status()
        .unwrap();
    assert!(status.success());
    let error = workspace.error("return await tools.readFile({path: 'pipe'})");
    assert!(error.contains("is not a file but a pipe"), "{error}");
    let error = workspace.error("return await tools.readFile({path: '/dev/zero'})");
    assert!(
        error.contains("is not a file but a pipe, a socket or a device"),
        "{error}"
    );
    assert_eq!(
        workspace.value("return (await tools.grepFiles({pattern: 'TODO'})).length"),
        json!(1)
    );
}

#[test]
fn a_hard_link_to_a_hidden_file_is_refused() {
    let workspace = FilesWorkspace::new();
    std::fs::hard_link(
        workspace.path("private/journal"),
        workspace.path("work/hard"),
    )
    .unwrap();
    std::fs::hard_link(
        workspace.path("work/src/lib.rs"),
        workspace.path("work/same"),
    )
    .unwrap();
    let patch = "*** Begin Patch\\n*** Update File: hard\\n@@\\n-mine\\n+x\\n*** End Patch";
    for call in [
        "readFile({ path: 'hard' })".to_owned(),
        "viewImage({ path: 'hard' })".to_owned(),
        "writeFile({ path: 'hard', content: 'x' })".to_owned(),
        format!("applyPatch({{ patch: '{patch}' }})"),
    ] {
        let output = workspace.run(&format!("return await tools.{call}"));
        let message = output.error.map(|error| error.message).unwrap_or_default();
        assert!(
            message.contains("hard link to a file that holds secrets"),
            "{call}: {message}"
        );
    }
    let found = workspace.run("return await tools.grepFiles({ pattern: 'mine', path: '.' })");
    assert!(!format!("{found:?}").contains("hard"), "{found:?}");
    // Other hard links are ordinary files.
    let read = workspace.run("return (await tools.readFile({ path: 'same' })).text");
    assert!(format!("{read:?}").contains("pub fn run"), "{read:?}");
}
