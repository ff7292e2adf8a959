//! `git` without approval: in which repositories it runs, and that no program of a repository runs
//! with it. Uses the real git.
#![cfg(unix)]
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use selvedge_protocol::{ApprovalPolicy, CallDecision, SandboxPolicy};
use selvedge_toolbox::{CommandRules, CommandSettings};
use serde_json::json;
use support::{Person, TestToolbox, Way};

/// Commands that look at a repository.
const COMMANDS: [&[&str]; 6] = [
    &["git", "status"],
    &["git", "diff"],
    &["git", "log", "-p"],
    &["git", "show"],
    &["git", "blame", "b.evil"],
    &["bash", "-c", "git diff | head -5"],
];

/// Returns a workspace with a commit and a change, in which the attacker's commands were run.
/// `$EVIL` is a program that leaves a mark.
fn repository(sandbox: SandboxPolicy, setup: &str) -> TestToolbox {
    let mut fixture = TestToolbox::new();
    fixture.sandbox = sandbox;
    fixture.policy = ApprovalPolicy::Untrusted;
    fixture.person = Person::who_says(CallDecision::Deny(None));
    let mark = fixture.path("outside/mark");
    fixture.write(
        "outside/evil",
        format!("#!/bin/sh\necho evil; echo x > '{}'\n", mark.display()),
    );
    let evil = fixture.path("outside/evil");
    std::fs::set_permissions(&evil, std::fs::Permissions::from_mode(0o755)).unwrap();
    let script = format!(
        "set -e; git init -q -b main .; git config user.name a; git config user.email a
         echo a > a.txt; echo b > b.evil; git add .; git commit -qm first; echo c > b.evil
         {setup}"
    );
    let ran = Command::new("sh")
        .args(["-c", &script])
        .current_dir(fixture.path("work"))
        .env("EVIL", &evil)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let _ = std::fs::remove_file(mark);
    fixture
}

#[test]
fn git_runs_without_approval_in_an_ordinary_repository() {
    for sandbox in [
        SandboxPolicy::DangerFullAccess,
        SandboxPolicy::WorkspaceWrite,
        SandboxPolicy::ReadOnly,
    ] {
        let fixture = repository(
            sandbox,
            "git config branch.main.remote origin; git config remote.origin.url https://x.invalid/y
             git config core.hooksPath .husky/_; git config alias.st status",
        );
        for command in COMMANDS {
            let ran = fixture.call(Way::Structured, "exec", &json!({"command": command}));
            assert!(ran.asked.is_empty(), "{sandbox:?} {command:?}: {ran:?}");
            let value = ran.value.unwrap();
            assert_eq!(value["exitCode"], 0, "{command:?}: {value}");
            assert_ne!(value["stdout"], "", "{command:?}: {value}");
        }
    }
}

#[test]
fn a_repository_that_configures_programs_needs_approval() {
    for setup in [
        "git config filter.x.clean $EVIL; echo '*.evil filter=x' > .gitattributes",
        "git config filter.x.process $EVIL; echo '*.evil filter=x' > .git/info/attributes",
        "git config diff.x.textconv $EVIL; echo '*.evil diff=x' > .gitattributes",
        "git config diff.x.command $EVIL; echo '*.evil diff=x' > .gitattributes",
        "git config diff.external $EVIL",
        "git config gpg.program $EVIL; git config format.pretty %G?",
        "printf '[diff]\\nexternal = %s\\n' $EVIL > more; git config include.path ../more",
        "git config extensions.worktreeConfig true; git config --worktree diff.external $EVIL",
        "git init -q \"$(printf 'sub\\377')\"; git -C sub* -c user.name=a -c user.email=a commit -q \
         --allow-empty -m x; git add sub* 2>/dev/null; git commit -qm sub
         git -C sub* config diff.external $EVIL",
        "git init -q sub; git -C sub -c user.name=a -c user.email=a commit -q --allow-empty -m x
         git add sub 2>/dev/null; git commit -qm sub; git -C sub config diff.external $EVIL",
    ] {
        for sandbox in [
            SandboxPolicy::DangerFullAccess,
            SandboxPolicy::WorkspaceWrite,
        ] {
            let fixture = repository(sandbox, setup);
            for command in COMMANDS {
                let ran = fixture.call(Way::Structured, "exec", &json!({"command": command}));
                assert_eq!(ran.asked.len(), 1, "{setup}: {command:?}: {ran:?}");
                assert!(
                    !fixture.path("outside/mark").exists(),
                    "{setup}: {command:?}"
                );
            }
        }
    }
}

#[test]
fn programs_that_the_environment_can_turn_off_do_not_run() {
    for setup in [
        "git config core.fsmonitor $EVIL",
        "git config core.pager $EVIL",
        "git config log.showSignature true",
        "cp $EVIL .git/hooks/post-index-change; touch a.txt",
        "mkdir hooks; cp $EVIL hooks/post-index-change; git config core.hooksPath hooks
         touch a.txt",
    ] {
        for sandbox in [
            SandboxPolicy::DangerFullAccess,
            SandboxPolicy::WorkspaceWrite,
        ] {
            let fixture = repository(sandbox, setup);
            for command in COMMANDS {
                let ran = fixture.call(Way::Structured, "exec", &json!({"command": command}));
                assert!(ran.asked.is_empty(), "{setup}: {command:?}: {ran:?}");
                let value = ran.value.unwrap();
                assert_eq!(value["exitCode"], 0, "{setup}: {command:?}: {value}");
                let has_run = fixture.path("outside/mark").exists()
                    || value.to_string().contains("evil; echo");
                assert!(!has_run, "{setup}: {command:?}: {value}");
            }
        }
    }
}

#[test]
fn a_folder_that_looks_like_a_repository_is_not_one() {
    let fixture = repository(
        SandboxPolicy::DangerFullAccess,
        "mv .git/* .; rm -r .git; git config --file config core.bare false
         git config --file config core.worktree .; git config --file config diff.external $EVIL",
    );
    for command in COMMANDS {
        fixture.call(Way::Structured, "exec", &json!({"command": command}));
        assert!(!fixture.path("outside/mark").exists(), "{command:?}");
    }
}

#[test]
fn git_next_to_a_command_with_a_rule_is_checked_too() {
    for (setup, asked) in [("", 0), ("git config diff.external $EVIL", 1)] {
        let fixture = repository(SandboxPolicy::WorkspaceWrite, setup);
        *fixture.settings.lock().unwrap() = Some(CommandSettings {
            rules: CommandRules {
                confined: vec![vec!["make".into()]],
                unconfined: vec![],
            },
            ..CommandSettings::default()
        });
        let command = json!({"command": ["bash", "-c", "make; git diff"]});
        let ran = fixture.call(Way::Structured, "exec", &command);
        assert_eq!(ran.asked.len(), asked, "{setup}: {ran:?}");
    }
}

/// The confinement enforces the class: even a wrong one would change nothing.
#[test]
fn a_command_that_counts_as_read_only_gets_a_read_only_confinement() {
    let fixture = repository(SandboxPolicy::WorkspaceWrite, "");
    let mounts = |argv: &[&str]| {
        let ran = fixture.call(Way::Structured, "exec", &json!({"command": argv}));
        let value = ran.value.unwrap_or_else(|| panic!("{:?}", ran.error));
        value["stdout"].as_str().unwrap().to_owned()
    };
    let work = fixture
        .path("work")
        .canonicalize()
        .unwrap()
        .display()
        .to_string();
    let is_writable = |mounts: &str| {
        mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(1))
            .any(|path| path == work)
    };
    assert!(!is_writable(&mounts(&["cat", "/proc/mounts"])));
    let mut fixture = fixture;
    fixture.policy = ApprovalPolicy::OnRequest;
    let full = fixture.call(
        Way::Structured,
        "exec",
        &json!({"command": ["sh", "-c", "x=/proc/mounts; cat $x"]}),
    );
    let full = full.value.unwrap();
    assert!(is_writable(full["stdout"].as_str().unwrap()), "{full}");
}

#[test]
fn a_pipe_in_the_repository_delays_nothing() {
    for setup in [
        "rm .git/config; mkfifo .git/config",
        "rm .git/index; mkfifo .git/index",
        "mkfifo .git/commondir",
        "mkfifo more; git config include.path ../more",
    ] {
        let fixture = repository(SandboxPolicy::WorkspaceWrite, setup);
        let started = std::time::Instant::now();
        let ran = fixture.call(
            Way::Structured,
            "exec",
            &json!({"command": ["git", "status"]}),
        );
        assert_eq!(ran.asked.len(), 1, "{setup}: {ran:?}");
        assert!(
            started.elapsed() < std::time::Duration::from_secs(5),
            "{setup}: {:?}",
            started.elapsed()
        );
    }
}
