//! Sessions that work in git worktrees of their own, and turns that are reverted.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::answer_encoding::{block, text};
use super::{MessageFixture, last_text};

/// A workspace in a git repository. Its model writes a text to a file when it is asked to `please
/// write FILE TEXT`.
fn fixture() -> MessageFixture {
    let fixture = MessageFixture::new(|asked| {
        let last = last_text(asked);
        let Some((_, task)) = last.split_once("please write ") else {
            return vec![text("Written.")].into();
        };
        let mut words = task.split([' ', '"', '\\']);
        let (file, content) = (words.next().unwrap(), words.next().unwrap());
        let code = match content {
            // A command can write to the worktree and ask git about it.
            "two" => format!(
                "const {{ exitCode }} = await tools.exec({{ command: 'echo two > {file} && git diff' }});
                 if (exitCode !== 0) throw new Error('exec failed')"
            ),
            _ => format!("await tools.writeFile({{ path: '{file}', content: '{content}\\n' }})"),
        };
        vec![text(&block(&code))].into()
    });
    let work = fixture.workspace.work();
    std::fs::write(work.join("a.txt"), "a\n").unwrap();
    std::fs::write(work.join("b.txt"), "b\n").unwrap();
    for args in [
        &["init", "-q", "-b", "main"][..],
        &["add", "--all"],
        &["commit", "-q", "-m", "Start"],
    ] {
        git(&work, args);
    }
    fixture
}

fn git(folder: &Path, args: &[&str]) -> String {
    let identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"];
    let output = Command::new("git")
        .args(identity)
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {args:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn read(fixture: &MessageFixture, name: &str) -> String {
    std::fs::read_to_string(fixture.workspace.work().join(name)).unwrap()
}

fn create(fixture: &MessageFixture, options: &str) -> String {
    let code = format!("return (await sessions.create({options})).id");
    let (status, out, err) = fixture.run(&["run", "-q", "-e", &code]);
    assert_eq!(status, 0, "{err}");
    out.trim().to_owned()
}

fn send(fixture: &MessageFixture, session: &str, message: &str) {
    let (status, out, err) = fixture.run(&["sessions", "send", session, message, "--wait"]);
    assert_eq!((status, out.as_str()), (0, "Written.\n"), "{err}");
}

fn worktree(fixture: &MessageFixture, session: &str) -> PathBuf {
    let home = fixture.workspace.home();
    home.with_file_name("home-worktrees").join(session)
}

#[test]
fn two_sessions_change_one_repository_in_worktrees() {
    let fixture = fixture();
    fixture.configure("[environments.own]\nworktree = true\n");
    let one = create(&fixture, "{ worktree: true }");
    let two = create(&fixture, "{ env: 'own' }");
    let (status, _, err) = fixture.run(&["sessions", "diff", &one]);
    assert_eq!(status, 2);
    assert!(
        err.contains("has no worktree yet\nhint: run `selvedge sessions send"),
        "{err}"
    );
    send(&fixture, &one, "please write a.txt one");
    send(&fixture, &two, "please write a.txt two");
    assert_eq!(read(&fixture, "a.txt"), "a\n");
    let (_, shown, _) = fixture.run(&["sessions", "show", &two]);
    assert!(shown.contains("returned no value"), "{shown}");
    let (status, diff, err) = fixture.run(&["sessions", "diff", &one]);
    assert_eq!(status, 0, "{err}");
    assert!(diff.contains("-a\n+one\n"), "{diff}");
    let (_, listed, _) = fixture.run(&["sessions", "list"]);
    assert_eq!(listed.matches("own worktree").count(), 2, "{listed}");

    let (status, out, err) = fixture.run(&["sessions", "apply", &one]);
    assert_eq!((status, out.as_str()), (0, "a.txt\n"), "{err}");
    assert_eq!(read(&fixture, "a.txt"), "one\n");
    let (status, _, err) = fixture.run(&["sessions", "apply", &two]);
    assert_eq!(status, 2);
    assert!(
        err.starts_with("error: conflicting changes in a.txt\nhint: "),
        "{err}"
    );
    assert_eq!(read(&fixture, "a.txt"), "one\n");

    let (status, _, err) = fixture.run(&["sessions", "discard", &two]);
    assert_eq!(status, 2);
    assert!(
        err.contains(&format!("hint: run `selvedge sessions discard {two} -y`")),
        "{err}"
    );
    assert!(worktree(&fixture, &two).exists());
    let (status, _, err) = fixture.run(&["sessions", "discard", &two, "-y"]);
    assert_eq!(status, 0, "{err}");
    assert!(!worktree(&fixture, &two).exists());
    send(&fixture, &two, "please write b.txt again");
    let (_, diff, _) = fixture.run(&["sessions", "diff", &two]);
    assert!(diff.contains("+again") && !diff.contains("a.txt"), "{diff}");
}

#[test]
fn a_chat_does_not_work_beside_the_worktree_of_its_session() {
    let fixture = fixture();
    let id = create(&fixture, "{ worktree: true }");
    send(&fixture, &id, "please write a.txt one");
    let (status, _, err) = fixture.run(&["exec", "--continue", &id, "please write b.txt two"]);
    assert_eq!(status, 2);
    let folder = worktree(&fixture, &id);
    assert!(err.contains("works in a worktree of its own"), "{err}");
    assert!(
        err.contains(&format!("hint: pass -C {}", folder.display())),
        "{err}"
    );
    let folder = folder.display().to_string();
    let args = [
        "exec",
        "-q",
        "--continue",
        &id,
        "-C",
        &folder,
        "please write b.txt two",
    ];
    let (status, _, err) = fixture.run(&args);
    assert_eq!(status, 0, "{err}");
    assert_eq!(read(&fixture, "b.txt"), "b\n");
}

#[test]
fn a_forgotten_session_leaves_no_worktree() {
    let fixture = fixture();
    let id = create(&fixture, "{ worktree: true }");
    send(&fixture, &id, "please write a.txt one");
    let work = fixture.workspace.work();
    assert!(git(&work, &["branch", "--list"]).contains(&id));
    let (status, _, err) = fixture.run(&["memory", "forget", "-y", "--session", &id]);
    assert_eq!(status, 0, "{err}");
    assert!(!worktree(&fixture, &id).exists());
    assert!(!git(&work, &["branch", "--list"]).contains(&id));
}

#[test]
fn a_folder_without_a_repository_is_an_error_with_a_hint() {
    let fixture = MessageFixture::new(|_| vec![text("Hello")].into());
    // As while a command is confined.
    std::fs::create_dir(fixture.workspace.work().join(".git")).unwrap();
    let code = "await sessions.create({ worktree: true })";
    let (status, _, err) = fixture.run(&["run", "-e", code]);
    assert_eq!(status, 1);
    assert!(err.contains("is not in a git repository"), "{err}");
    assert!(err.contains("hint: run `git init`"), "{err}");
    let id = create(&fixture, "{}");
    for command in ["apply", "discard"] {
        let (status, _, err) = fixture.run(&["sessions", command, &id]);
        assert_eq!(status, 2);
        assert!(err.contains("has no worktree\nhint: "), "{err}");
    }
    // A session without a worktree shows its last turn that changed files.
    let (status, out, err) = fixture.run(&["sessions", "diff", &id]);
    assert_eq!((status, out.as_str()), (0, ""));
    assert!(err.contains("has changed no file"), "{err}");
}

#[test]
fn a_turn_is_reverted_unless_its_files_changed_since() {
    let fixture = fixture();
    let id = create(&fixture, "{}");
    let revert = |more: &[&str]| fixture.run(&[&["sessions", "revert", &id][..], more].concat());
    let (status, _, err) = revert(&[]);
    assert_eq!(status, 2);
    assert!(
        err.contains("no changed files are recorded for session"),
        "{err}"
    );
    send(&fixture, &id, "please write a.txt one");
    send(&fixture, &id, "please write new.txt two");
    send(&fixture, &id, "please write a.txt three");
    let (status, _, err) = revert(&["--turn", "1"]);
    assert_eq!(status, 2);
    assert!(
        err.starts_with("error: cannot revert turn 1: 1 file changed since: a.txt\nhint: "),
        "{err}"
    );
    let (status, out, err) = revert(&[]);
    assert_eq!((status, out.as_str()), (0, "a.txt\n"), "{err}");
    assert_eq!(read(&fixture, "a.txt"), "one\n");
    let (status, out, err) = revert(&[]);
    assert_eq!((status, out.as_str()), (0, ""), "{err}");
    assert!(err.contains("note: turn 3 was reverted before"), "{err}");
    let (_, out, _) = revert(&["--turn", "2", "--json"]);
    let out: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(out, serde_json::json!({"turn": 2, "reverted": ["new.txt"]}));
    assert!(!fixture.workspace.work().join("new.txt").exists());
    let (status, _, err) = revert(&["--turn", "1"]);
    assert_eq!(status, 0, "{err}");
    assert_eq!(read(&fixture, "a.txt"), "a\n");
}
