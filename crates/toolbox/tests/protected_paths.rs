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
const CONFIGURATION: [&str; 13] = [
    ".claude",
    ".codex",
    ".cursor",
    ".devcontainer",
    ".envrc",
    ".fleet",
    ".gemini",
    ".husky",
    ".idea",
    ".mcp.json",
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
