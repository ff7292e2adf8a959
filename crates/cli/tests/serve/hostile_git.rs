//! Repositories whose configuration, hooks and files want git to run a program: git of the server
//! creates, compares, applies and deletes the worktrees of sessions there, and runs none.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::fixture::ServeFixture;
use crate::isolation::{run_script, runs_scripts};
use crate::support::api::{ApiClient, ApiServer};
use crate::support::folder_without_commands;

fn git(folder: &Path, args: &[&str]) {
    let mut command = Command::new("git");
    command
        .args(["-c", "user.name=a", "-c", "user.email=a@b"])
        .args(args);
    let output = command.current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
}

/// Makes the folder a new repository with attributes that name a filter.
fn new_repository(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() && !path.is_symlink() {
            true => std::fs::remove_dir_all(path).unwrap(),
            false => std::fs::remove_file(path).unwrap(),
        }
    }
    git(folder, &["init", "-q"]);
    std::fs::write(folder.join("a.txt"), "one\n").unwrap();
    let attributes = "*.txt filter=evil diff=evil merge=evil\n*.dat filter=evil\n";
    std::fs::write(folder.join(".gitattributes"), attributes).unwrap();
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-q", "-m", "x"]);
}

/// Uses everything that makes the server run git. Returns whether the turn was answered.
fn use_worktree(client: &ApiClient) -> bool {
    let session = client.session(json!({"worktree": true}));
    let command = json!([
        "sh",
        "-c",
        "echo two >> a.txt; echo new > b.txt; echo d > c.dat"
    ]);
    let code = format!("await tools.exec({{ command: {command} }}); return 'changed it'");
    let answer = run_script(client, &session, &code);
    client.get(&format!("/api/v1/sessions/{session}/diff"));
    for action in ["apply", "discard"] {
        client.post(&format!("/api/v1/sessions/{session}/{action}"), json!({}));
    }
    client.request(&format!("DELETE /api/v1/sessions/{session}"), &[], "");
    answer.contains("changed it")
}

/// A program outside of the workspace that leaves a mark, and the mark.
fn evil_program(folder: &Path) -> (PathBuf, PathBuf) {
    let (program, mark) = (folder.join("evil.sh"), folder.join("mark"));
    let text = format!("#!/bin/sh\necho \"$0 $@\" >> {}\ncat\n", mark.display());
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    (program, mark)
}

#[test]
fn no_configuration_of_a_repository_runs_a_program() {
    let fixture = ServeFixture::new(runs_scripts);
    let work = fixture.workspace.work().canonicalize().unwrap();
    let outside = folder_without_commands();
    let outside = outside.path().canonicalize().unwrap();
    let (program, mark) = evil_program(&outside);
    let hooks = outside.join("hooks");
    std::fs::create_dir(&hooks).unwrap();
    let names = [
        "post-checkout",
        "pre-commit",
        "reference-transaction",
        "post-index-change",
    ];
    for name in names {
        std::fs::copy(&program, hooks.join(name)).unwrap();
    }
    let (evil, hooks) = (program.to_str().unwrap(), hooks.to_str().unwrap());
    let included = outside.join("included");
    let text = format!("[filter \"evil\"]\n\tclean = {evil}\n[core]\n\tfsmonitor = {evil}\n");
    std::fs::write(&included, text).unwrap();
    let attributes = outside.join("attributes");
    std::fs::write(&attributes, "* filter=evil\n").unwrap();
    let (included, attributes) = (included.to_str().unwrap(), attributes.to_str().unwrap());
    let alias = format!("!{evil}");
    let remote = format!("ext::{evil}");
    new_repository(&work);
    let (_server, client) = fixture.start();
    assert!(use_worktree(&client), "a plain repository works");
    let cases: &[&[(&str, &str)]] = &[
        &[("core.fsmonitor", evil)],
        &[("core.hooksPath", hooks)],
        &[("filter.evil.clean", evil)],
        &[("filter.evil.smudge", evil)],
        &[("filter.evil.process", evil)],
        &[("diff.external", evil)],
        &[("diff.evil.textconv", evil)],
        &[("diff.evil.command", evil)],
        &[("merge.evil.driver", evil)],
        &[("core.sshCommand", evil)],
        &[("core.pager", evil)],
        &[("core.editor", evil)],
        &[("gpg.program", evil), ("commit.gpgSign", "true")],
        &[
            ("core.attributesFile", attributes),
            ("filter.evil.clean", evil),
        ],
        &[("include.path", included)],
        &[("includeIf.gitdir:/.path", included)],
        &[("core.worktree", "/")],
        &[("core.alternateRefsCommand", evil)],
        &[("core.gitProxy", evil)],
        &[("core.askPass", evil)],
        &[("credential.helper", evil)],
        &[("alias.diff-tree", &alias), ("alias.worktree", &alias)],
        &[("uploadpack.packObjectsHook", evil)],
        &[
            ("extensions.partialClone", "origin"),
            ("remote.origin.url", &remote),
        ],
        &[
            ("remote.origin.promisor", "true"),
            ("core.sshCommand", evil),
        ],
        &[("core.excludesFile", evil)],
        &[("trace2.eventTarget", mark.to_str().unwrap())],
        &[("init.templateDir", hooks)],
        &[("interactive.diffFilter", evil), ("sequence.editor", evil)],
        &[("submodule.recurse", "true")],
    ];
    for case in cases {
        new_repository(&work);
        for (key, value) in *case {
            git(&work, &["config", key, value]);
        }
        use_worktree(&client);
        let ran = std::fs::read_to_string(&mark).unwrap_or_default();
        assert_eq!(ran, "", "{case:?}");
    }
    // The configuration of the main worktree only.
    new_repository(&work);
    git(&work, &["config", "extensions.worktreeConfig", "true"]);
    let own = format!("[core]\n\tfsmonitor = {evil}\n");
    std::fs::write(work.join(".git/config.worktree"), own).unwrap();
    use_worktree(&client);
    assert!(!mark.exists());
    // Hooks of the repository itself.
    new_repository(&work);
    for name in names {
        std::fs::copy(&program, work.join(".git/hooks").join(name)).unwrap();
    }
    assert!(use_worktree(&client));
    assert!(!mark.exists());
}

/// An agent names a filter of the user's own configuration in its worktree, and a person deletes
/// the folder of the worktree.
#[test]
fn filters_of_the_user_do_not_run_for_files_of_an_agent() {
    let fixture = ServeFixture::new(runs_scripts);
    let work = fixture.workspace.work().canonicalize().unwrap();
    let outside = folder_without_commands();
    let outside = outside.path().canonicalize().unwrap();
    let (program, mark) = evil_program(&outside);
    let config = outside.join("gitconfig");
    let program = program.display();
    let text = format!("[filter \"mine\"]\n\tsmudge = {program}\n\tclean = cat\n");
    std::fs::write(&config, text).unwrap();
    git(&work, &["init", "-q"]);
    std::fs::write(work.join("a.txt"), "one\n").unwrap();
    git(&work, &["add", "-A"]);
    git(&work, &["commit", "-q", "-m", "x"]);
    let mut command = fixture
        .workspace
        .command(&["serve", "--addr", "127.0.0.1:0"]);
    command.env("GIT_CONFIG_GLOBAL", &config);
    let server = ApiServer::listen(command);
    let client = server.client(&fixture.secret);
    let session = client.session(json!({"worktree": true}));
    let write = "await tools.writeFile({ path: '.gitattributes', content: '* filter=mine\\n' }); \
        await tools.writeFile({ path: 'evil.txt', content: 'zebra\\n' }); return 'written'";
    let answer = run_script(&client, &session, write);
    assert!(answer.contains("written"), "{answer}");
    // The changes are a commit of the branch after that.
    let applied = client.post(&format!("/api/v1/sessions/{session}/apply"), json!({}));
    assert_eq!(applied.status, 200, "{applied:?}");
    assert!(!mark.exists());
    let home = fixture.workspace.home();
    let worktree = home.with_file_name("home-worktrees").join(&session);
    for _ in 0..2 {
        std::fs::remove_dir_all(&worktree).unwrap();
        let read = "return JSON.stringify(await tools.readFile({ path: 'evil.txt' }))";
        let answer = run_script(&client, &session, read);
        assert!(answer.contains("zebra"), "{answer}");
        assert!(worktree.join("a.txt").exists());
        let ran = std::fs::read_to_string(&mark).unwrap_or_default();
        assert_eq!(ran, "");
    }
    let diff = client.get(&format!("/api/v1/sessions/{session}/diff"));
    assert_eq!(diff.body["diff"], "", "{diff:?}");
}

/// The folder of a token came from an archive with a `.git` of its own.
#[test]
fn a_repository_of_another_workspace_stays_as_it_is() {
    let fixture = ServeFixture::new(runs_scripts);
    let work = fixture.workspace.work().canonicalize().unwrap();
    let (other, _) = fixture.other_workspace("other");
    new_repository(&other);
    let (_server, client) = fixture.start();
    for is_link in [true, false] {
        new_repository(&work);
        std::fs::remove_dir_all(work.join(".git")).unwrap();
        let target = other.join(".git");
        match is_link {
            true => std::os::unix::fs::symlink(&target, work.join(".git")).unwrap(),
            false => {
                let text = format!("gitdir: {}\n", target.display());
                std::fs::write(work.join(".git"), text).unwrap();
            }
        }
        use_worktree(&client);
        // What remains after the session is deleted: no file, branch or worktree.
        let head = std::fs::read_to_string(other.join("a.txt")).unwrap();
        assert_eq!(head, "one\n", "{is_link}");
        let branches = Command::new("git")
            .args(["branch", "--list", "--format=%(refname)"])
            .current_dir(&other)
            .output()
            .unwrap();
        let branches = String::from_utf8(branches.stdout).unwrap();
        assert_eq!(branches.lines().count(), 1, "{is_link}: {branches}");
        assert!(!other.join(".git/worktrees").exists(), "{is_link}");
    }
}
