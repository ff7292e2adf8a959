//! Questions at a real terminal, and none where there is none.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use selvedge_confine::{Child, Command, Stdio, Support, Wall, spawn};

struct Terminal {
    screen: File,
    child: Child,
    seen: String,
}

impl Terminal {
    fn run(dir: &Path, args: &[&str]) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let tty: OwnedFd = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap()
            .into();
        let argv = [&[env!("CARGO_BIN_EXE_selvedge")], args].concat();
        let env = [
            ("SELVEDGE_HOME", dir.join("home").to_str().unwrap()),
            ("PATH", "/usr/bin:/bin"),
            ("TERM", "dumb"),
        ]
        .map(|(name, value)| (name.into(), value.into()));
        let command = Command {
            argv: argv.iter().map(Into::into).collect(),
            cwd: dir.join("work"),
            env: env.to_vec(),
            stdio: Stdio::Terminal(tty),
            hold: None,
        };
        let child = spawn(command, &Wall::None, &Support::probe()).unwrap();
        Self {
            screen: File::from(master),
            child,
            seen: String::new(),
        }
    }

    /// Reads until the words are on the screen.
    fn wait_for(&mut self, words: &str) {
        while !self.seen.contains(words) {
            assert!(self.read(), "{words:?} never came:\n{}", self.seen);
        }
    }

    fn type_in(&mut self, text: &str) {
        self.screen.write_all(text.as_bytes()).unwrap();
    }

    /// Everything on the screen and the exit status, at the end.
    fn end(mut self) -> (i32, String) {
        while self.read() {}
        (self.child.end().unwrap().exit.code(), self.seen)
    }

    fn read(&mut self) -> bool {
        let mut piece = [0; 4096];
        match self.screen.read(&mut piece) {
            Ok(read @ 1..) => {
                self.seen.push_str(&String::from_utf8_lossy(&piece[..read]));
                true
            }
            _ => false,
        }
    }
}

fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::create_dir_all(dir.path().join("work/doomed")).unwrap();
    dir
}

const DOOM: &str = "// first\nawait tools.exec({ command: ['rm', '-rf', 'doomed'], approvalContext: 'old build' });\nreturn 'gone'";

#[test]
fn a_question_shows_what_is_asked_and_yes_lets_it_run() {
    let dir = place();
    let mut terminal = Terminal::run(dir.path(), &["run", "-e", DOOM]);
    terminal.wait_for("\n> ");
    for words in [
        "rm -rf doomed",
        "deletes files by force",
        ">   2 | await tools.exec",
        "it says: old build",
        "n: no",
    ] {
        assert!(
            terminal.seen.contains(words),
            "{words:?} is not in\n{}",
            terminal.seen
        );
    }
    assert!(dir.path().join("work/doomed").exists());
    terminal.type_in("what\n");
    terminal.type_in("y\n");
    let (status, seen) = terminal.end();
    assert_eq!(status, 0, "{seen}");
    assert!(
        !dir.path().join("work/doomed").exists() && seen.contains("gone"),
        "{seen}"
    );
}

#[test]
fn no_with_words_reaches_the_script() {
    let dir = place();
    let mut terminal = Terminal::run(dir.path(), &["run", "-e", DOOM]);
    terminal.wait_for("\n> ");
    terminal.type_in("n use the trash\n");
    let (status, seen) = terminal.end();
    assert_eq!(status, 1, "{seen}");
    assert!(
        seen.contains("ApprovalDeniedError: exec was denied: use the trash"),
        "{seen}"
    );
    assert!(dir.path().join("work/doomed").exists());
}

#[test]
fn always_is_saved_and_holds_the_next_time() {
    let dir = place();
    let script = "return (await tools.exec({ command: ['touch', 'made'] })).exitCode";
    let args = ["run", "--approval", "untrusted", "-e", script];
    let mut terminal = Terminal::run(dir.path(), &args);
    terminal.wait_for("\n> ");
    assert!(
        terminal.seen.contains("a: always, for `touch made …`"),
        "{}",
        terminal.seen
    );
    terminal.type_in("a\n");
    assert_eq!(terminal.end().0, 0);
    let rules = std::fs::read_to_string(dir.path().join("home/rules.toml")).unwrap();
    assert!(rules.contains("[\"touch\", \"made\"]"), "{rules}");
    let (status, seen) = Terminal::run(dir.path(), &args).end();
    assert!(status == 0 && !seen.contains("\n> "), "{seen}");
}

#[test]
fn several_calls_can_be_answered_one_by_one() {
    let dir = place();
    let script = "const all = await Promise.allSettled(['a', 'b'].map(f => tools.exec({ command: ['touch', f] }))); return all.map(r => r.status)";
    let mut terminal = Terminal::run(
        dir.path(),
        &["run", "--approval", "untrusted", "-e", script],
    );
    terminal.wait_for("these 2 calls");
    terminal.wait_for("\n> ");
    terminal.type_in("e\n");
    terminal.type_in("y\n");
    terminal.type_in("n\n");
    let (_, seen) = terminal.end();
    assert!(
        dir.path().join("work/a").exists() && !dir.path().join("work/b").exists(),
        "{seen}"
    );
}

#[test]
fn without_a_terminal_nothing_waits() {
    let dir = place();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_selvedge"))
        .args(["run", "-e", DOOM])
        .current_dir(dir.path().join("work"))
        .env("SELVEDGE_HOME", dir.path().join("home"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(
        talk.contains("exec was denied: there is no terminal to ask at"),
        "{talk}"
    );
    assert!(dir.path().join("work/doomed").exists());
}

/// The id of the one run there is.
fn only_run(dir: &Path) -> String {
    let listed = selvedge(dir, &["runs", "list", "--json"]).stdout;
    let runs: serde_json::Value = serde_json::from_slice(&listed).unwrap();
    runs[0]["id"].as_str().unwrap().to_owned()
}

fn selvedge(dir: &Path, args: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_selvedge"));
    command
        .args(args)
        .env("SELVEDGE_HOME", dir.join("home"))
        .current_dir(dir.join("work"));
    command.stdin(std::process::Stdio::null()).output().unwrap()
}

/// Waits until the script is written down as it stands.
fn wait_until_suspended(dir: &Path) -> String {
    loop {
        let id = only_run(dir);
        let shown = selvedge(dir, &["runs", "show", &id]).stdout;
        if String::from_utf8(shown).unwrap().contains("suspended") {
            return id;
        }
    }
}

#[test]
fn killed_at_the_question_it_is_answered_later() {
    let dir = place();
    let mut terminal = Terminal::run(dir.path(), &["run", "-e", DOOM]);
    terminal.wait_for("\n> ");
    let id = wait_until_suspended(dir.path());
    drop(terminal);
    let output = selvedge(dir.path(), &["runs", "answer", &id, "--approve"]);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "gone\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!dir.path().join("work/doomed").exists());
}

#[test]
fn answered_elsewhere_the_terminal_does_nothing() {
    let dir = place();
    let mut terminal = Terminal::run(dir.path(), &["run", "-e", DOOM]);
    terminal.wait_for("\n> ");
    let id = wait_until_suspended(dir.path());
    let output = selvedge(dir.path(), &["runs", "answer", &id, "--approve"]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::create_dir(dir.path().join("work/doomed")).unwrap();
    terminal.type_in("y\n");
    let (status, seen) = terminal.end();
    assert!(status == 1 && seen.contains("answered elsewhere"), "{seen}");
    assert!(dir.path().join("work/doomed").exists(), "it was done once");
}

/// Two questions, so that a terminal that is late meets a script that has gone on.
const TWICE: &str =
    "await tools.exec({ command: ['sh', '-c', 'rm -f nothing; echo one >> effects'] });
await tools.exec({ command: ['sh', '-c', 'rm -f nothing; echo two >> effects'] }); return 'all'";

#[test]
fn a_terminal_that_is_late_changes_nothing_of_a_script_that_has_gone_on() {
    for late in ["n\n", "y\n", "\u{3}"] {
        let dir = place();
        let mut terminal =
            Terminal::run(dir.path(), &["run", "--approval", "untrusted", "-e", TWICE]);
        terminal.wait_for("\n> ");
        let id = wait_until_suspended(dir.path());
        // Elsewhere it is answered, and the script asks the second question.
        let output = selvedge(dir.path(), &["runs", "answer", &id, "--approve"]);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        terminal.type_in(late);
        let (_, seen) = terminal.end();
        let output = selvedge(dir.path(), &["runs", "answer", &id, "--approve"]);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{late:?}: {}{seen}",
            String::from_utf8_lossy(&output.stderr)
        );
        let effects = std::fs::read_to_string(dir.path().join("work/effects")).unwrap();
        assert_eq!(effects, "one\ntwo\n", "{late:?}");
    }
}

#[test]
fn a_question_can_be_answered_at_another_terminal() {
    let dir = place();
    let output = selvedge(dir.path(), &["run", "--suspend", "-e", DOOM]);
    assert_eq!(output.status.code(), Some(1));
    let id = only_run(dir.path());
    let mut terminal = Terminal::run(dir.path(), &["runs", "answer", &id]);
    terminal.wait_for("\n> ");
    assert!(terminal.seen.contains("rm -rf doomed"), "{}", terminal.seen);
    terminal.type_in("y\n");
    let (status, seen) = terminal.end();
    assert!(status == 0 && seen.contains("gone"), "{seen}");
}

#[test]
fn a_host_is_asked_for_with_its_address_and_always_is_saved() {
    let dir = place();
    // Nobody listens there: what counts is who is asked, and when.
    let script = "try { await tools.fetchUrl('http://127.0.0.1:1/page?q=1') } catch (error) { return error.name }";
    let mut terminal = Terminal::run(dir.path(), &["run", "-e", script]);
    terminal.wait_for("\n> ");
    for words in [
        "fetches http://127.0.0.1:1/page?q=1 (a private address)",
        "a: always, for requests to 127.0.0.1:1",
    ] {
        assert!(
            terminal.seen.contains(words),
            "{words:?} is not in\n{}",
            terminal.seen
        );
    }
    terminal.type_in("a\n");
    let (_, seen) = terminal.end();
    assert!(seen.contains("ToolExecutionError"), "{seen}");
    let rules = std::fs::read_to_string(dir.path().join("home/rules.toml")).unwrap();
    assert!(
        rules.contains("allow_hosts = [\n  \"127.0.0.1:1\",\n]"),
        "{rules}"
    );
    let (_, seen) = Terminal::run(dir.path(), &["run", "-e", script]).end();
    assert!(
        seen.contains("ToolExecutionError") && !seen.contains("? the script asks"),
        "{seen}"
    );
}
