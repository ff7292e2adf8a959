//! Closed standard streams, full disks and file size limits.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(unix)]

use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

struct StreamsWorkspace {
    dir: TempDir,
}

impl StreamsWorkspace {
    fn new() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::create_dir_all(dir.path().join("work")).unwrap();
        Self { dir }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
        command
            .args(args)
            .env("SELVEDGE_HOME", self.dir.path().join("home"))
            .current_dir(self.dir.path().join("work"));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// Returns the write end of a pipe whose read end is closed.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn parts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn a_closed_stderr_changes_nothing_else() {
    let workspace = StreamsWorkspace::new();
    // Printed to stderr: a log line, a line per call, a warning, an error, a note.
    let cases: [(&[&str], i32, &str); 5] = [
        (
            &[
                "run",
                "-e",
                "console.log('logged'); await tools.listDir({path: '.'}); return 1",
            ],
            0,
            "1\n",
        ),
        (
            &["run", "-e", "tools.listDir({path: '.'}); return 2"],
            0,
            "2\n",
        ),
        (
            &[
                "run",
                "-e",
                "await tools.listDir({path: '.'}); throw new Error('no')",
            ],
            1,
            "",
        ),
        (&["run", "no-such-file.ts"], 2, ""),
        (&["sessions", "list"], 0, ""),
    ];
    for (args, status, out) in cases {
        let output = workspace
            .command(args)
            .stderr(closed_pipe())
            .output()
            .unwrap();
        assert_eq!(
            parts(&output),
            (Some(status), out.to_owned(), String::new()),
            "{args:?}"
        );
        if let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") {
            let output = workspace.command(args).stderr(full).output().unwrap();
            assert_eq!(
                parts(&output),
                (Some(status), out.to_owned(), String::new()),
                "{args:?}, on a full disk"
            );
        }
    }
}

#[test]
fn a_closed_stdout_is_not_an_error() {
    let workspace = StreamsWorkspace::new();
    let cases: [&[&str]; 6] = [
        &["run", "-q", "-e", "text('x'.repeat(200000)); return {a: 1}"],
        &["run", "--json", "-e", "return 'x'.repeat(2000)"],
        &["runs", "list"],
        &["tools", "--ts"],
        &["memory", "export"],
        &["--help"],
    ];
    for args in cases {
        let output = workspace
            .command(args)
            .stdout(closed_pipe())
            .output()
            .unwrap();
        let (status, _, err) = parts(&output);
        assert_eq!(status, Some(0), "{args:?}: {err}");
        assert!(
            !err.contains("error") && !err.contains("panic"),
            "{args:?}: {err}"
        );
    }
}

/// Returns the command with a file size limit, in blocks of 512 bytes.
fn with_file_size_limit(command: &Command, blocks: u32) -> Command {
    let mut limited = Command::new("sh");
    limited
        .arg("-c")
        .arg(format!("ulimit -f {blocks}; exec \"$0\" \"$@\""))
        .arg(command.get_program());
    limited
        .args(command.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    limited.current_dir(command.get_current_dir().unwrap());
    command
        .get_envs()
        .for_each(|(name, value)| _ = limited.env(name, value.unwrap()));
    limited
}

#[test]
fn writes_beyond_the_file_size_limit_are_reported() {
    let workspace = StreamsWorkspace::new();
    // The journal cannot be written: one error and a hint.
    let run = workspace.command(&["run", "-e", "return 1"]);
    let (status, _, err) = parts(&with_file_size_limit(&run, 4).output().unwrap());
    assert_eq!(status, Some(2), "{err}");
    let cannot_write = format!(
        "error: cannot write the journal {}: no space left on the disk",
        workspace.dir.path().join("home/journal.sqlite").display()
    );
    assert!(
        err.starts_with(&cannot_write)
            && err.contains("\nhint: free disk space, or pass --ephemeral\n"),
        "{err}"
    );
    // What is in the journal cannot be continued without it.
    let resume = workspace.command(&["run", "--resume", "scr_x", "-e", "return 1"]);
    let (_, _, err) = parts(&with_file_size_limit(&resume, 4).output().unwrap());
    assert!(err.ends_with("\nhint: free disk space\n"), "{err}");
    for list in ["runs", "sessions"] {
        let list = workspace.command(&[list, "list"]);
        let (status, _, err) = parts(&with_file_size_limit(&list, 4).output().unwrap());
        assert_eq!(status, Some(2), "{err}");
        assert!(
            err.starts_with(&cannot_write) && err.contains("\nhint: free disk space\n"),
            "{err}"
        );
    }
    // The memory of the sandbox is a file, too.
    let run = workspace.command(&["run", "--ephemeral", "-e", "return 1"]);
    let (status, _, err) = parts(&with_file_size_limit(&run, 4).output().unwrap());
    assert_eq!(status, Some(1), "{err}");
    assert!(err.contains("File too large"), "{err}");
    // Standard output is a file that has nearly reached the limit.
    std::fs::write(workspace.dir.path().join("out"), vec![b'.'; 16000 * 512]).unwrap();
    let full = std::fs::File::options()
        .append(true)
        .open(workspace.dir.path().join("out"))
        .unwrap();
    let run = workspace.command(&[
        "run",
        "-q",
        "--ephemeral",
        "-e",
        "text('x'); throw new Error('of its own')",
    ]);
    let (status, _, err) = parts(
        &with_file_size_limit(&run, 16000)
            .stdout(full)
            .output()
            .unwrap(),
    );
    assert_eq!(status, Some(1), "{err}");
    assert!(err.contains("of its own"), "{err}");
    assert!(
        err.contains("error: cannot write to standard output: File too large"),
        "{err}"
    );
}

/// Runs a script until the journal is full, in a new workspace for each limit in blocks, until the
/// error begins with one of these texts. It depends on the sizes of single writes whether the start
/// or the end of a call finds no space, so the first limit may give the other error.
fn run_until_journal_is_full(code: &str, beginnings: [&str; 2]) -> (StreamsWorkspace, String) {
    for blocks in (10_000..10_200).step_by(8) {
        let workspace = StreamsWorkspace::new();
        let folder = workspace.command(&[]).get_current_dir().unwrap().to_owned();
        std::fs::write(folder.join("s.ts"), code).unwrap();
        let run = workspace.command(&["run", "-q", "--max-calls", "500", "s.ts"]);
        let (status, _, err) = parts(&with_file_size_limit(&run, blocks).output().unwrap());
        assert_eq!(status, Some(1), "{err}");
        let kind = beginnings.iter().position(|text| err.starts_with(text));
        assert!(kind.is_some(), "{err}");
        assert_eq!(err.matches("cannot write the journal").count(), 1, "{err}");
        assert_eq!(err.matches("hint: ").count(), 1, "{err}");
        if kind == Some(0) {
            return (workspace, err);
        }
    }
    panic!("no run ended with {}", beginnings[0]);
}

/// Runs the command of a hint.
fn follow_hint(workspace: &StreamsWorkspace, err: &str) -> (Option<i32>, String, String) {
    let hint = "hint: free disk space and run it with `selvedge ";
    let command = err.split_once(hint).unwrap_or_else(|| panic!("{err}")).1;
    let command = command.split('`').next().unwrap();
    let words: Vec<&str> = command
        .split(' ')
        .chain(["-q", "--max-calls", "500"])
        .collect();
    parts(&workspace.command(&words).output().unwrap())
}

/// How the error of a call begins whose start, or whose outcome, found no space.
fn beginnings(tool: &str) -> [String; 2] {
    ["did not run", "ran, but its outcome could not be recorded"].map(|what| {
        format!("error: HarnessInternalError: {tool} {what}: cannot write the journal ")
    })
}

#[test]
fn a_run_whose_journal_is_full_can_be_resumed_as_the_hint_says() {
    // Random, so that it cannot be compressed. The arguments are stored before the call.
    let code = "let text = '';
    while (text.length < 100_000) text += Math.random().toString(36).slice(2);
    for (let i = 0; i < 200; i++) {
        await tools.writeFile({ path: `f${i}`, content: `${i}${text}` });
    }
    return 'done'";
    let [not_run, not_recorded] = beginnings("write_file");
    let (workspace, err) = run_until_journal_is_full(code, [&not_run, &not_recorded]);
    let (status, out, err) = follow_hint(&workspace, &err);
    assert_eq!((status, out.as_str()), (Some(0), "done\n"), "{err}");
}

#[test]
fn a_call_whose_outcome_found_no_space_is_not_repeated() {
    // The output is stored after the call.
    let code = "for (let i = 0; i < 400; i++) {
        await tools.exec({ command: ['sh', '-c', 'echo >> ran; head -c 60000 /dev/urandom | base64'] });
    }";
    let [not_run, not_recorded] = beginnings("exec");
    let (workspace, err) = run_until_journal_is_full(code, [&not_recorded, &not_run]);
    let (status, _, err) = follow_hint(&workspace, &err);
    assert_eq!(status, Some(1), "{err}");
    assert!(err.contains("OutcomeUnknownError"), "{err}");
    assert!(
        err.contains("resume.repeat(") && err.contains("resume.skip("),
        "{err}"
    );
}

#[test]
fn commands_keep_the_default_signal_handlers() {
    let workspace = StreamsWorkspace::new();
    let code = "const { stdout } = await tools.exec({ command: ['sh', '-c',
        'ulimit -f 1; head -c 100000 /dev/zero > zeros; echo $?'] }); return stdout.trim()";
    let (status, out, err) = parts(
        &workspace
            .command(&["run", "-q", "-e", code])
            .output()
            .unwrap(),
    );
    assert_eq!(status, Some(0), "{err}");
    // 153 is the status of a process that SIGXFSZ ended.
    assert_eq!(out, "153\n", "{err}");
}
