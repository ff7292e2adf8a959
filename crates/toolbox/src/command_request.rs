//! A command as a call describes it, and the result of a command that is a patch.

use std::collections::BTreeMap;

use selvedge_tools::ToolError;
use serde_json::Value;

use crate::command_safety::display_command;

/// Returns a program and arguments that run a command line: `bash -c`, or `sh -c` if bash is not
/// installed.
pub(crate) fn shell_argv(shell: Option<&str>, login: bool, line: String) -> Vec<String> {
    let shell = shell.unwrap_or_else(|| {
        if std::path::Path::new("/bin/bash").exists() {
            "bash"
        } else {
            "sh"
        }
    });
    vec![
        shell.to_owned(),
        if login { "-lc" } else { "-c" }.to_owned(),
        line,
    ]
}

/// A command to check or to run.
#[derive(Debug, Clone)]
pub(crate) struct CommandRequest {
    pub(crate) argv: Vec<String>,
    /// Relative to the workspace. `None` is its root.
    pub(crate) cwd: Option<String>,
    /// Variables that the call adds to the environment.
    pub(crate) env: BTreeMap<String, String>,
    /// Whether the call asks to run the command without confinement.
    pub(crate) run_unconfined: bool,
}

impl CommandRequest {
    /// Reads everything except `argv` from the arguments of a call.
    pub(crate) fn from_args(argv: Vec<String>, cwd_field: &str, args: &Value) -> Self {
        let text = |name: &str| args[name].as_str().map(str::to_owned);
        let env = args["env"].as_object().into_iter().flatten();
        Self {
            argv,
            cwd: text(cwd_field),
            env: env
                .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
                .collect(),
            run_unconfined: args["with_escalated_permissions"] == true,
        }
    }

    /// Returns the command in one line, truncated to 120 characters.
    pub(crate) fn to_line(&self) -> String {
        let line = display_command(&self.argv)
            .lines()
            .collect::<Vec<_>>()
            .join(" ");
        selvedge_text::truncate_chars(&line, 120).into_owned()
    }

    /// Returns lines for the working folder and the added variables, each after a newline. Empty if
    /// the call sets neither.
    pub(crate) fn cwd_and_env_lines(&self) -> String {
        let mut text = String::new();
        if let Some(cwd) = &self.cwd {
            text.push_str(&format!("\nin {cwd}"));
        }
        for (name, value) in &self.env {
            text.push_str(&format!("\nwith {name}={value}"));
        }
        text
    }
}

/// The output of a command that was applied as a patch.
pub(crate) struct PatchedCommand {
    pub(crate) exit_code: i32,
    /// The list of changed files.
    pub(crate) stdout: String,
    /// The error and its hints.
    pub(crate) stderr: String,
}

impl PatchedCommand {
    pub(crate) fn new(patched: Result<String, ToolError>) -> Self {
        match patched {
            Ok(summary) => Self {
                exit_code: 0,
                stdout: summary,
                stderr: String::new(),
            },
            Err(error) => {
                let hints = error.suggestions.iter();
                let hints: String = hints.map(|hint| format!("hint: {hint}\n")).collect();
                Self {
                    exit_code: 1,
                    stdout: String::new(),
                    stderr: format!("{}\n{hints}", error.message),
                }
            }
        }
    }
}
