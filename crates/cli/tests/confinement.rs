//! Confined commands in unusual folder layouts, through the binary.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use support::TestWorkspace;

#[test]
fn a_command_runs_if_home_is_also_selvedge_home() {
    let workspace = TestWorkspace::new();
    std::fs::create_dir(workspace.home().join(".aws")).unwrap();
    std::fs::write(workspace.home().join(".aws/credentials"), "hunter2").unwrap();
    std::fs::write(workspace.home().join("note"), "hunter2").unwrap();
    let script = "const run = await tools.exec({ command: ['sh', '-c', 'exec 2>&1; echo ok > made; cat made ~/.aws/credentials ~/note; ls -A ~; mkdir ~/.ssh'] });
        return run.aggregatedOutput";
    let output = workspace
        .command(&["run", "-q", "-e", script])
        .env("HOME", workspace.home())
        .output()
        .unwrap();
    let seen = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{seen}{errors}");
    assert!(
        seen.starts_with("ok\n") && !seen.contains("hunter2") && !seen.contains("journal"),
        "{seen}"
    );
    assert_eq!(
        std::fs::read_to_string(workspace.work().join("made")).unwrap(),
        "ok\n"
    );
    assert!(!workspace.home().join(".ssh").exists(), "{seen}");
}

#[test]
fn a_workspace_inside_selvedge_home_is_rejected_with_the_reason() {
    let workspace = TestWorkspace::new();
    let project = workspace.home().join("project");
    std::fs::create_dir(&project).unwrap();
    let output = workspace
        .command(&["run", "-q", "-e", "await tools.exec({ command: ['pwd'] })"])
        .env("HOME", workspace.home())
        .current_dir(project)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("project: it is hidden from commands")
            && errors.contains("hint: set SELVEDGE_HOME to a separate folder"),
        "{errors}"
    );
}
