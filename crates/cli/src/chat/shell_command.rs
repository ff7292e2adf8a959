//! `!command` in the chat: runs a command of the user, outside of the sandbox, and gives its output
//! to the model with the next message.

use std::io::Read;
use std::process::{Command, Stdio};

use super::app::Chat;
use super::rows::{StyledRow, fold_expandable_rows, sanitize};
use super::updates::ChatUpdate;
use crate::problem::Problem;

/// Bytes of a command's output, per stream, that are kept.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;
/// Lines of the output that are shown.
const MAX_SHOWN_LINES: usize = 40;

/// The command of the user that runs.
#[derive(Debug)]
pub(crate) struct ShellCommand {
    process_id: u32,
}

impl ShellCommand {
    /// Kills the command and what it started.
    pub(crate) fn kill(&self) {
        #[cfg(unix)]
        if let Some(group) = i32::try_from(self.process_id)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
        {
            // Fails only if the command has ended.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

/// How a command of the user ended.
struct ShellResult {
    /// `exit 0`, or the signal that ended it.
    end: String,
    output: String,
}

impl Chat {
    /// Runs a command line in the user's shell, in the folder of the chat.
    pub(super) fn run_shell_command(&mut self, line: &str) {
        let line = line.trim().to_owned();
        self.print_rows([StyledRow::dim(format!("! {}", sanitize(&line)))]);
        if line.is_empty() || self.shell_command.is_some() {
            let problem = match line.is_empty() {
                true => Problem::new("missing a command").hint("type ! and a command: !git status"),
                false => Problem::new("another command is running").hint("press Ctrl-C to stop it"),
            };
            return self.print_problem(&problem);
        }
        let shell = std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
        let mut command = Command::new(shell);
        command
            .arg("-c")
            .arg(&line)
            .current_dir(&self.setup.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                let problem = Problem::new(format!("cannot run the shell: {error}"));
                return self.print_problem(&problem.hint("set SHELL to a program"));
            }
        };
        self.shell_command = Some(ShellCommand {
            process_id: child.id(),
        });
        self.notice = Some("running; Ctrl-C stops it".to_owned());
        let (sender, session) = (self.sender.clone(), self.session_state.number);
        tokio::task::spawn_blocking(move || {
            let errors = child.stderr.take();
            let errors = std::thread::spawn(move || errors.map(read_bounded).unwrap_or_default());
            let mut output = child.stdout.take().map(read_bounded).unwrap_or_default();
            output.push_str(&errors.join().unwrap_or_default());
            let end = match child.wait() {
                Ok(status) => match status.code() {
                    Some(code) => format!("exit {code}"),
                    None => "stopped".to_owned(),
                },
                Err(error) => error.to_string(),
            };
            let result = ShellResult { end, output };
            let show =
                Box::new(move |chat: &mut Chat| chat.show_shell_result(session, &line, &result));
            // Sending fails only if the chat has ended.
            let _ = sender.send(ChatUpdate::JournalRead(show));
        });
    }

    /// Shows the result of a command. `session` is the number of the session in which it started,
    /// the only one whose model learns of it.
    fn show_shell_result(&mut self, session: u64, line: &str, result: &ShellResult) {
        self.shell_command = None;
        self.notice = None;
        let ShellResult { end, output } = result;
        let all = output_rows(output);
        let rows = fold_expandable_rows(all, MAX_SHOWN_LINES).into_iter();
        let style = match end == "exit 0" {
            true => self.theme.dim(),
            false => self.theme.error(),
        };
        let last = StyledRow::styled(end.clone(), style);
        self.print_block(rows.chain([last]).map(|row| row.indented(2)));
        if session != self.session_state.number {
            return;
        }
        self.session_state.last_shell_output = Some((line.to_owned(), output.clone()));
        self.session_state.context_for_model.push(format!(
            "I ran `{line}` ({end}):\n```\n{}\n```",
            output.trim_end()
        ));
    }
}

/// Returns the output of a command as rows.
pub(super) fn output_rows(output: &str) -> Vec<StyledRow> {
    let text = sanitize(output.trim_end());
    let rows = text.lines().map(StyledRow::text);
    rows.collect()
}

/// Reads a stream to its end, and returns its first [`MAX_OUTPUT_BYTES`] bytes.
fn read_bounded(mut stream: impl Read) -> String {
    let mut kept = Vec::new();
    // An error ends the output.
    let _ = (&mut stream).take(MAX_OUTPUT_BYTES).read_to_end(&mut kept);
    let omitted = std::io::copy(&mut stream, &mut std::io::sink()).unwrap_or(0);
    let mut text = String::from_utf8_lossy(&kept).into_owned();
    if omitted > 0 {
        text.push_str(&format!("\n… {omitted} bytes omitted\n"));
    }
    text
}
