//! How long rules last, and how the ends of calls are shown, in `run` and `runs show`.

use super::pty::PtyTerminal;
use super::{only_run, selvedge, temp_dir};

#[test]
fn always_in_this_folder_counts_in_no_other() {
    let dir = temp_dir();
    let script = "return (await tools.exec({ command: ['touch', 'made'] })).exitCode";
    let args = ["run", "--approval", "untrusted", "-e", script];
    let mut terminal = PtyTerminal::run(dir.path(), &args);
    terminal.wait_for("3. Approve `touch made …` always in this folder");
    terminal.wait_for("\n> ");
    // The bell rings while the question is open.
    assert!(terminal.output.contains('\x07'), "{:?}", terminal.output);
    terminal.answer("3");
    assert_eq!(terminal.wait_for_exit().0, 0);
    let (status, output) = PtyTerminal::run(dir.path(), &args).wait_for_exit();
    assert!(status == 0 && !output.contains("\n> "), "{output}");
    std::fs::create_dir(dir.path().join("work/below")).unwrap();
    let below = [&args[..], &["-C", "below"]].concat();
    let mut terminal = PtyTerminal::run(dir.path(), &below);
    terminal.wait_for("always in this folder");
    terminal.wait_for("\n> ");
    terminal.answer("5");
    assert_eq!(terminal.wait_for_exit().0, 1);
}

#[test]
fn a_question_notifies_and_restores_the_title() {
    let dir = temp_dir();
    let args = ["run", "-e", super::DOOM];
    let mut terminal = PtyTerminal::run_with_term(dir.path(), &args, "xterm");
    terminal.wait_for("\n> ");
    let notice = "\x07\x1b]9;selvedge asks a question\x1b\\";
    let title = "\x1b]2;? selvedge asks a question\x1b\\";
    let restored = "\x1b]2;selvedge\x1b\\\x1b[23;2t";
    for part in [notice, title] {
        assert!(terminal.output.contains(part), "{:?}", terminal.output);
    }
    assert!(!terminal.output.contains(restored), "{:?}", terminal.output);
    terminal.answer("3");
    let (_, output) = terminal.wait_for_exit();
    assert!(output.contains(restored), "{output:?}");
}

#[test]
fn a_failed_command_a_reused_call_and_a_denial_are_not_check_marks() {
    let dir = temp_dir();
    let script = "await tools.exec({ command: ['false'], timeoutMs: 60000 });\n\
                  await tools.exec({ command: ['touch', 'made'] });\n\
                  await tools.exec({ command: ['rm', '-rf', 'x'] }).catch(() => 0);\n\
                  if (context.args.length) throw new Error('stop'); return 1";
    let mut terminal = PtyTerminal::run(dir.path(), &["run", "-e", script, "--", "fail"]);
    terminal.wait_for("\n> ");
    let before = terminal.output.clone();
    terminal.answer("3");
    let (_, after) = terminal.wait_for_exit();
    assert!(
        before.contains("✗ exec false · timeout 60 s  exit 1")
            && after.contains("✗ exec rm -rf x  denied"),
        "{before}{after}"
    );
    let id = only_run(dir.path());
    let shown = selvedge(dir.path(), &["runs", "show", &id]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("✗ exec           exit 1  false · timeout 60 s")
            && shown.contains("✓ exec           done  touch made")
            && shown.contains("✗ exec           denied  rm -rf x\n"),
        "{shown}"
    );
    let mut terminal = PtyTerminal::run(
        dir.path(),
        &["run", "--resume", &id, "-e", script, "--", "fail"],
    );
    terminal.wait_for("↺ exec");
    terminal.wait_for("\n> ");
    assert!(
        terminal.output.contains("↺ exec touch made  reused"),
        "{}",
        terminal.output
    );
}
