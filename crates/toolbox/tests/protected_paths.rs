//! Paths that stay read-only in writable folders, and paths that are hidden: the default lists and
//! their configuration, for tools and for confined commands.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use selvedge_protocol::SandboxPolicy;
use selvedge_script::Harness;
use selvedge_toolbox::{Toolbox, Workspace, WorkspacePaths};
use serde_json::json;
use support::{TestToolbox, Way, both_ways};

/// Names that editors, agents, hooks and shells execute later.
const CONFIGURATION: [&str; 17] = [
    ".claude",
    ".codex",
    ".cursor",
    ".devcontainer",
    ".envrc",
    ".fleet",
    ".gemini",
    ".hg",
    ".husky",
    ".idea",
    ".jj",
    ".kiro",
    ".mcp.json",
    ".opencode",
    ".vscode",
    ".windsurf",
    ".zed",
];

#[test]
fn configuration_that_is_executed_later_is_protected() {
    let script = CONFIGURATION.map(|name| {
        format!(
            "echo x > {name}; mkdir -p {name}; echo x > {name}/f; mkdir x{name}; \
             mv -T x{name} {name};"
        )
    });
    let args =
        |_: &TestToolbox| json!({"command": ["sh", "-c", script.concat() + "echo x > fine"]});
    let is_empty = |fixture: &TestToolbox, name: &str| !fixture.path("work").join(name).exists();
    both_ways(TestToolbox::new, "exec", args, |fixture, ran| {
        assert!(fixture.path("work/fine").exists(), "{ran:?}");
        for name in CONFIGURATION {
            assert!(is_empty(fixture, name), "{name}: {ran:?}");
        }
    });
    // An existing file or folder keeps its content, and can be read.
    let existing = || {
        let fixture = TestToolbox::new();
        fixture.write("work/.vscode/tasks.json", "before");
        fixture.write("work/.envrc", "before");
        fixture
    };
    let script = "cat .envrc .vscode/tasks.json; echo x > .envrc; echo x > .vscode/tasks.json
        rm -r .vscode .envrc; mv .vscode y; mv .envrc z; ln -f .envrc w && echo x > w";
    let args = |_: &TestToolbox| json!({"command": ["sh", "-c", script]});
    both_ways(existing, "exec", args, |fixture, ran| {
        let value = ran.value.as_ref().unwrap();
        assert_eq!(value["stdout"], "beforebefore", "{value}");
        let files = ["work/.vscode/tasks.json", "work/.envrc"];
        assert!(
            files.iter().all(|file| fixture.read(file) == "before"),
            "{value}"
        );
    });
    for name in CONFIGURATION {
        for path in [
            name.to_owned(),
            format!("{name}/file"),
            format!("deep/er/{name}/file"),
            name.to_ascii_uppercase(),
        ] {
            let args = |_: &TestToolbox| json!({"path": path, "content": "x"});
            let ran =
                TestToolbox::new().call(Way::Structured, "write_file", &args(&TestToolbox::new()));
            assert!(
                ran.error
                    .as_ref()
                    .is_some_and(|(_, message)| message.contains("is protected")),
                "{path}: {ran:?}"
            );
        }
    }
}

#[test]
fn the_lists_of_protected_and_hidden_paths_can_be_changed() {
    let fixture = TestToolbox::new();
    fixture.write("work/vault/key", "hunter3");
    fixture.write("work/plain", "text");
    let paths = WorkspacePaths {
        protected: vec!["deploy.sh".into(), "ci/release".into()],
        unprotected: vec![".vscode".into(), ".git".into()],
        hidden: vec!["vault".into()],
        ..WorkspacePaths::default()
    };
    std::fs::create_dir(fixture.path("work/ci")).unwrap();
    let toolbox = Toolbox::new(
        Workspace::open_with_paths(&fixture.path("work"), SandboxPolicy::WorkspaceWrite, &paths)
            .unwrap(),
    );
    let harness = Harness::new(fixture.orchestrator(&toolbox)).unwrap();
    let source = "const tried = {};
        const attempt = async (name, call) => {
            try { const done = await call(); tried[name] = done.exitCode ?? 0 }
            catch (error) { tried[name] = error.message }
        };
        for (const path of ['deploy.sh', 'sub/deploy.sh', 'ci/release', '.vscode/a', '.git/a']) {
            await attempt(path, () => tools.writeFile({ path, content: 'x' }));
            const command = ['sh', '-c', `echo x > ${path}`];
            await attempt(`sh ${path}`, () => tools.exec({ command }));
        }
        await attempt('vault', () => tools.readFile({ path: 'vault/key' }));
        await attempt('sh vault', () => tools.exec({ command: ['cat', 'vault/key'] }));
        return tried";
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let output = runtime.block_on(harness.run(source));
    let tried = output.value().unwrap_or_else(|| panic!("{output:?}"));
    for refused in [
        "deploy.sh",
        "sub/deploy.sh",
        "ci/release",
        ".git/a",
        "vault",
    ] {
        assert!(tried[refused].is_string(), "{refused}: {tried}");
    }
    for failed in ["sh deploy.sh", "sh ci/release", "sh .git/a", "sh vault"] {
        assert_ne!(tried[failed], 0, "{failed}: {tried}");
    }
    for done in [".vscode/a", "sh .vscode/a"] {
        assert_eq!(tried[done], 0, "{done}: {tried}");
    }
}

/// Files outside of `.git` that git executes or obeys: how they come about, and the file.
const EXECUTED_OUTSIDE: &[(&str, &str)] = &[
    (
        "rm -r .git; git init -q --bare .bare; echo 'gitdir: ./.bare' > .git",
        ".bare/config",
    ),
    (
        "rm -r .git; git init -q --bare .bare; echo 'gitdir: ./.bare' > .git",
        ".bare/hooks/pre-commit",
    ),
    (
        "rm -r .git; git init -q --bare .bare; mkdir main; echo 'gitdir: ../.bare' > main/.git",
        ".bare/hooks/pre-commit",
    ),
    (
        "rm -r .git; git init -q --separate-git-dir repo . && mv repo 'repo '
         printf 'gitdir: ./repo \\n' > .git",
        "repo /hooks/pre-commit",
    ),
    (
        "rm -r .git; mkdir repo; printf 'gitdir: ./repo\\r\\n' > .git",
        "repo/config",
    ),
    ("rm -r .git; echo 'gitdir: ./later' > .git", "later/config"),
    (
        "rm -r .git; mkdir common link; echo ../common > link/commondir
         echo 'gitdir: ./link' > .git",
        "common/hooks/pre-commit",
    ),
    (
        "rm -r .git; git init -q .; git config core.hooksPath tools/hooks; mkdir -p tools/hooks",
        "tools/hooks/pre-commit",
    ),
    (
        "rm -r .git; git init -q .; git config core.hooksPath .",
        "pre-commit",
    ),
    (
        "rm -r .git; git init -q .; git config include.path ../shared.gitconfig
         touch shared.gitconfig",
        "shared.gitconfig",
    ),
    (
        "rm -r .git; git init -q .; git config include.path ../one; git config -f one \\
         core.hooksPath later/hooks",
        "later/hooks/pre-commit",
    ),
    (
        "mkdir hooks; touch hooks/x; ln -s ../../hooks/x .git/hooks/pre-commit",
        "hooks/x",
    ),
    (
        "mkdir .vscode tools; touch tools/t.json; ln -s ../tools/t.json .vscode/tasks.json",
        "tools/t.json",
    ),
    (
        "mkdir -p .claude/a tools; ln -s ../../tools .claude/a/b",
        "tools/t.json",
    ),
];

/// Runs a shell script in the folder `work`, without confinement.
fn prepare(fixture: &TestToolbox, script: &str) {
    let done = std::process::Command::new("sh")
        .args(["-c", script])
        .current_dir(fixture.path("work"))
        .output()
        .unwrap();
    assert!(done.status.success(), "{script}: {done:?}");
}

#[test]
fn files_that_git_and_protected_folders_refer_to_are_protected() {
    let mut written = Vec::new();
    for (setup, file) in EXECUTED_OUTSIDE {
        for way in ["write_file", "exec"] {
            let fixture = TestToolbox::new();
            prepare(&fixture, setup);
            let path = fixture.path("work").join(file);
            let script =
                format!("mkdir -p \"$(dirname '{file}')\"; echo evil > '{file}'; echo x > fine");
            let args = match way {
                "write_file" => json!({"path": file, "content": "evil"}),
                _ => json!({"command": ["sh", "-c", script]}),
            };
            let ran = fixture.call(Way::Structured, way, &args);
            let changed = std::fs::read_to_string(&path).is_ok_and(|text| text.contains("evil"));
            if changed {
                written.push(format!("{way}: {file} after {setup}: {ran:?}"));
            }
            if way == "exec" {
                assert!(fixture.path("work/fine").exists(), "{setup}: {ran:?}");
            }
        }
    }
    assert!(written.is_empty(), "{}", written.join("\n"));
}

#[test]
fn a_repository_above_the_workspace_protects_what_it_refers_to() {
    let mut fixture = TestToolbox::new();
    std::fs::create_dir_all(fixture.path("work/part/hooks")).unwrap();
    fixture.workspace = "work/part";
    let setup = "rm -r .git; git init -q .; git config core.hooksPath part/hooks
        git config include.path ../part/gitconfig; touch part/gitconfig part/check
        ln -s ../../part/check .git/hooks/pre-push";
    prepare(&fixture, setup);
    let script = "echo evil > hooks/pre-commit; echo evil >> gitconfig; echo evil >> check
        echo x > fine";
    let args = json!({"command": ["sh", "-c", script]});
    let ran = fixture.call(Way::Structured, "exec", &args);
    assert!(fixture.path("work/part/fine").exists(), "{ran:?}");
    for file in ["hooks/pre-commit", "gitconfig", "check"] {
        let path = fixture.path("work/part").join(file);
        let text = std::fs::read_to_string(path).unwrap_or_default();
        assert!(!text.contains("evil"), "{file}: {ran:?}");
    }
}

#[test]
fn a_workspace_that_is_a_folder_of_hooks_protects_them() {
    let mut fixture = TestToolbox::new();
    std::fs::create_dir_all(fixture.path("work/part")).unwrap();
    fixture.workspace = "work/part";
    let setup = "rm -r .git; git init -q .; git config core.hooksPath part";
    prepare(&fixture, setup);
    let script = "echo evil > pre-commit; echo x > fine";
    let args = json!({"command": ["sh", "-c", script]});
    let ran = fixture.call(Way::Structured, "exec", &args);
    assert!(fixture.path("work/part/fine").exists(), "{ran:?}");
    assert!(!fixture.path("work/part/pre-commit").exists(), "{ran:?}");
}

#[test]
fn a_git_file_with_a_name_that_is_not_utf_8_is_followed() {
    use std::os::unix::ffi::OsStrExt;
    let fixture = TestToolbox::new();
    let work = fixture.path("work");
    std::fs::remove_dir_all(work.join(".git")).unwrap();
    let repository = work.join(std::ffi::OsStr::from_bytes(b"b\xff"));
    std::fs::create_dir_all(repository.join("hooks")).unwrap();
    std::fs::write(work.join(".git"), b"gitdir: ./b\xff\n").unwrap();
    let script = "echo evil > b*/hooks/pre-commit; echo x > fine";
    let ran = fixture.call(
        Way::Structured,
        "exec",
        &json!({"command": ["sh", "-c", script]}),
    );
    assert!(work.join("fine").exists(), "{ran:?}");
    assert!(!repository.join("hooks/pre-commit").exists(), "{ran:?}");
}

/// Files that editors, agents and hook managers obey, and that exist rarely.
const RARE_CONFIGURATION: &[&str] = &[
    ".pre-commit-config.yaml",
    "lefthook.yml",
    ".githooks/pre-commit",
    "opencode.json",
    ".qwen/settings.json",
    ".continue/config.yaml",
    ".aider.conf.yml",
    ".exrc",
    ".dir-locals.el",
    "my.code-workspace",
];

#[test]
fn rare_configuration_is_protected_from_tools_and_if_it_exists_from_commands() {
    for file in RARE_CONFIGURATION {
        let fixture = TestToolbox::new();
        let args = json!({"path": file, "content": "evil"});
        let ran = fixture.call(Way::Structured, "write_file", &args);
        assert!(!fixture.path("work").join(file).exists(), "{file}: {ran:?}");
        fixture.write(&format!("work/{file}"), "before");
        let script = format!("echo evil > {file}; rm -rf {file}; echo x > fine");
        let args = json!({"command": ["sh", "-c", format!("eval '{script}'")]});
        let ran = fixture.call(Way::Structured, "exec", &args);
        assert_eq!(
            fixture.read(&format!("work/{file}")),
            "before",
            "{file}: {ran:?}"
        );
    }
}

#[test]
fn the_target_of_a_protected_link_is_protected() {
    let fixture = TestToolbox::new();
    fixture.write("work/conf/tasks.json", "before");
    std::os::unix::fs::symlink("conf", fixture.path("work/.vscode")).unwrap();
    for path in ["conf/tasks.json", "conf/new.json", ".vscode/tasks.json"] {
        let args = json!({"path": path, "content": "evil"});
        let ran = fixture.call(Way::Structured, "write_file", &args);
        assert!(!fixture.path("work/conf/new.json").exists(), "{ran:?}");
        assert_eq!(fixture.read("work/conf/tasks.json"), "before", "{ran:?}");
    }
}

#[test]
fn a_folder_of_hooks_can_be_excepted() {
    let fixture = TestToolbox::new();
    fixture.write("work/.git/config", "[core]\n\thooksPath = tools/hooks\n");
    let paths = WorkspacePaths {
        unprotected: vec!["tools/hooks".into(), "lefthook.yml".into()],
        ..WorkspacePaths::default()
    };
    let workspace =
        Workspace::open_with_paths(&fixture.path("work"), SandboxPolicy::WorkspaceWrite, &paths)
            .unwrap();
    let harness = Harness::new(fixture.orchestrator(&Toolbox::new(workspace))).unwrap();
    let source = "for (const path of ['tools/hooks/pre-commit', 'lefthook.yml'])
        await tools.writeFile({ path, content: 'x' })";
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let output = runtime.block_on(harness.run(source));
    assert!(output.error.is_none(), "{:?}", output.error);
}
