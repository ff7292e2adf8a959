//! Confined commands in unusual layouts of folders, through the binary.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use support::Place;

#[test]
fn a_command_runs_when_the_home_folder_is_also_selvedges_own() {
    let place = Place::new();
    std::fs::create_dir(place.home().join(".aws")).unwrap();
    std::fs::write(place.home().join(".aws/credentials"), "hunter2").unwrap();
    std::fs::write(place.home().join("note"), "hunter2").unwrap();
    let script = "const run = await tools.exec({ command: ['sh', '-c', 'echo ok > made; cat made ~/.aws/credentials ~/note; ls -A ~; mkdir ~/.ssh'] });
        return run.aggregatedOutput";
    let output = place
        .command(&["run", "-q", "-e", script])
        .env("HOME", place.home())
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
        std::fs::read_to_string(place.work().join("made")).unwrap(),
        "ok\n"
    );
    assert!(!place.home().join(".ssh").exists(), "{seen}");
}

#[test]
fn a_workspace_inside_selvedges_own_folder_is_refused_with_the_reason() {
    let place = Place::new();
    let project = place.home().join("project");
    std::fs::create_dir(&project).unwrap();
    let output = place
        .command(&["run", "-q", "-e", "await tools.exec({ command: ['pwd'] })"])
        .env("HOME", place.home())
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
