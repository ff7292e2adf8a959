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
fn credentials_are_hidden_unless_the_configuration_makes_them_visible() {
    let workspace = TestWorkspace::new();
    let user_home = workspace.home().parent().unwrap().join("user");
    std::fs::create_dir_all(user_home.join(".aws")).unwrap();
    std::fs::write(user_home.join(".aws/credentials"), "hunter2").unwrap();
    let read = || {
        let path = user_home.join(".aws/credentials");
        let script = format!(
            "const path = {path:?};
             const file = await tools.readFile({{ path }}).then((r) => r.text, () => 'refused');
             const run = await tools.exec({{ command: ['cat', path] }});
             return [file, run.stdout]"
        );
        let command = workspace
            .command(&["run", "-q", "--json", "-e", &script])
            .env("HOME", &user_home)
            .output();
        String::from_utf8_lossy(&command.unwrap().stdout).into_owned()
    };
    let hidden = read();
    assert!(
        hidden.contains("refused") && !hidden.contains("hunter2"),
        "{hidden}"
    );
    let config = "[sandbox]\nvisible_paths = [\"~/.aws\"]\n";
    std::fs::write(workspace.home().join("config.toml"), config).unwrap();
    let visible = read();
    assert!(visible.matches("hunter2").count() >= 2, "{visible}");
}

#[test]
fn dot_files_of_a_home_folder_that_is_the_workspace_are_protected() {
    let workspace = TestWorkspace::new();
    std::fs::write(workspace.work().join(".profile"), "before").unwrap();
    let script = "const write = (path) => tools.writeFile({ path, content: 'evil' })
            .then(() => 'written', (e) => e.message);
        const refused = [await write('.profile'), await write('.config/new')];
        await tools.exec({ command: 'echo evil > .profile; echo x > fine' });
        return [...refused, await write('note.txt')]";
    let output = workspace
        .command(&["run", "-q", "--json", "-e", script])
        .env("HOME", workspace.work())
        .output()
        .unwrap();
    let seen = String::from_utf8_lossy(&output.stdout);
    assert!(
        seen.contains("dot files of the home folder are protected"),
        "{seen}"
    );
    let read = |name: &str| std::fs::read_to_string(workspace.work().join(name)).ok();
    assert_eq!(read(".profile").as_deref(), Some("before"), "{seen}");
    assert_eq!(read(".config/new"), None, "{seen}");
    assert_eq!(read("note.txt").as_deref(), Some("evil"), "{seen}");
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
