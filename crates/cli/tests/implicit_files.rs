//! Files that no command names, through the binary: instructions, configuration, ignore files.
#![cfg(unix)]
#![allow(clippy::unwrap_used, missing_docs)]

#[allow(dead_code)]
#[path = "../../agent/tests/support/answer_encoding.rs"]
mod answer_encoding;

#[allow(dead_code)]
#[path = "../../agent/tests/support/server.rs"]
mod server;

#[path = "support/mod.rs"]
mod support;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use answer_encoding::text;
use selvedge_config::Project;
use selvedge_files::ProjectFiles;
use server::Server;
use support::TestWorkspace;

/// Runs `selvedge exec` and returns the request that the model received, and standard error.
fn prompt_of(workspace: &TestWorkspace, change: impl FnOnce(&mut Command)) -> (String, String) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let server = runtime.block_on(Server::saying(vec![vec![text("Done.")]]));
    workspace.config(&format!(
        "model = \"mock\"\nmodel_provider = \"mock\"\n[model_providers.mock]\n\
         base_url = \"{}\"\nwire_api = \"chat\"\n",
        server.url
    ));
    let mut command = workspace.command(&["exec", "-q", "Say done."]);
    command
        .env("IMPLICIT_CANARY", "canary-of-the-environment")
        .stdin(Stdio::null());
    change(&mut command);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    (server.asked()[0].raw.clone(), stderr)
}

fn make_pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
}

#[test]
fn instructions_outside_of_the_project_do_not_reach_the_prompt() {
    let workspace = TestWorkspace::new();
    let secret = workspace.dir.path().join("secret");
    std::fs::write(&secret, "canary-of-a-file").unwrap();
    let file = workspace.work().join("AGENTS.md");
    for target in [
        secret.as_path(),
        Path::new("/proc/self/environ"),
        Path::new("/dev/zero"),
    ] {
        symlink(target, &file).unwrap();
        let (prompt, stderr) = prompt_of(&workspace, |_| {});
        assert!(!prompt.contains("canary"), "{}: {prompt}", target.display());
        let warning = "AGENTS.md is not read: it is a link that leaves the project\n";
        assert!(
            stderr.starts_with("warning: ") && stderr.contains(warning),
            "{stderr}"
        );
        std::fs::remove_file(&file).unwrap();
    }
    make_pipe(&file);
    let (_, stderr) = prompt_of(&workspace, |_| {});
    assert!(
        stderr.contains("it is a pipe, not a regular file"),
        "{stderr}"
    );
}

#[test]
fn credentials_in_the_home_folder_do_not_reach_the_prompt() {
    let workspace = TestWorkspace::new();
    std::fs::create_dir(workspace.work().join(".ssh")).unwrap();
    std::fs::write(workspace.work().join(".ssh/id_rsa"), "canary-of-a-key").unwrap();
    symlink(".ssh/id_rsa", workspace.work().join("AGENTS.md")).unwrap();
    let (prompt, stderr) = prompt_of(&workspace, |command| {
        command.env("HOME", workspace.work());
    });
    assert!(!prompt.contains("canary"), "{prompt}");
    assert!(
        stderr.contains("AGENTS.md is not read: it holds credentials"),
        "{stderr}"
    );
}

#[test]
fn instructions_are_followed_from_the_repository_down_and_cut_at_the_limit() {
    let workspace = TestWorkspace::new();
    let sub = workspace.work().join("sub");
    std::fs::create_dir_all(workspace.work().join(".git")).unwrap();
    std::fs::write(workspace.work().join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    std::fs::create_dir_all(&sub).unwrap();
    std::fs::write(workspace.work().join("RULES.md"), "rule one\n").unwrap();
    symlink("RULES.md", workspace.work().join("AGENTS.md")).unwrap();
    let long = format!("rule two\n{}end-of-rules", "x".repeat(40 << 10));
    std::fs::write(sub.join("AGENTS.md"), long).unwrap();
    let (prompt, stderr) = prompt_of(&workspace, |command| {
        command.current_dir(&sub);
    });
    assert!(stderr.is_empty(), "{stderr}");
    let first = prompt.find("rule one").unwrap();
    assert!(prompt[first..].contains("rule two"), "{prompt}");
    assert!(!prompt.contains("end-of-rules"));
    let notice = "[sub/AGENTS.md continues: instructions are cut after 32 KB]";
    assert!(prompt.contains(notice), "{prompt}");
}

#[test]
fn instructions_of_a_declined_folder_are_not_followed() {
    let workspace = TestWorkspace::new();
    std::fs::write(workspace.work().join("AGENTS.md"), "rule one\n").unwrap();
    std::fs::write(workspace.work().join(".mcp.json"), "{}").unwrap();
    let (prompt, _) = prompt_of(&workspace, |_| {});
    assert!(prompt.contains("rule one"), "{prompt}");
    let files = ProjectFiles::of_folder(&workspace.work(), Default::default());
    let (project, _) = Project::read(&files, None);
    selvedge_config::distrust(&workspace.home(), &project).unwrap();
    let (prompt, stderr) = prompt_of(&workspace, |_| {});
    assert!(!prompt.contains("rule one"), "{prompt}");
    assert!(
        stderr.contains("AGENTS.md is ignored: this folder is not trusted\n"),
        "{stderr}"
    );
}

#[test]
fn commands_work_without_project_files_that_are_not_used() {
    let workspace = TestWorkspace::new();
    let work = workspace.work();
    std::fs::create_dir(work.join(".selvedge")).unwrap();
    make_pipe(&work.join(".gitignore"));
    make_pipe(&work.join(".mcp.json"));
    symlink("/dev/zero", work.join(".selvedge/config.toml")).unwrap();
    std::fs::write(work.join("script.ts"), "return 1").unwrap();
    for args in [
        &["run", "-e", "return 1"][..],
        &["check", "script.ts"],
        &["tools"],
        &["doctor"],
        &["mcp", "list"],
        &["mcp", "serve"],
        &["run", "-e", "return 1", "-C", work.to_str().unwrap()],
    ] {
        let mut command = workspace.command(args);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let shown = [output.stdout, output.stderr].concat();
        let shown = String::from_utf8_lossy(&shown);
        assert!(output.status.success(), "{args:?}: {shown}");
        for warning in [
            ".gitignore: the file is not used: it is a pipe, not a regular file",
            ".mcp.json: the file is not used: it is a pipe, not a regular file",
            ".selvedge/config.toml: the file is not used: it is a link that leaves the project",
        ] {
            assert!(shown.contains(warning), "{args:?}: {shown}");
        }
    }
    // Installing would write the text of the file again.
    let output = workspace
        .command(&["mcp", "install", "--client", "claude-code", "--write"])
        .output();
    let output = output.unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && stderr.contains("is not read: it is a pipe"),
        "{stderr}"
    );
}

#[test]
fn the_users_own_files_may_be_links_but_not_pipes() {
    let workspace = TestWorkspace::new();
    let elsewhere = workspace.dir.path().join("dotfiles.toml");
    std::fs::write(&elsewhere, "[script_harness.limits]\nmemory_mb = 12\n").unwrap();
    let config = workspace.home().join("config.toml");
    symlink(&elsewhere, &config).unwrap();
    let args = ["run", "-q", "-e", "return context.sandbox.memoryMb"];
    let output = workspace.command(&args).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "12\n");
    std::fs::remove_file(&config).unwrap();
    make_pipe(&config);
    let output = workspace.command(&args).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2)
            && stderr.contains("cannot read the file: it is a pipe, not a regular file"),
        "{stderr}"
    );
}
