//! `exec_command` and `write_stdin`: a command in a terminal that goes on between calls.

use std::time::Duration;

use schemars::JsonSchema;
use selvedge_tools::{Call, Tool, ToolError, tool_with_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::aliases_of;
use crate::commands::{Commands, Start, escalation};
use crate::terminals::{Glance, Terminals};

/// What to run.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// A line for the shell.
    cmd: String,
    /// Folder to run in, relative to the workspace.
    workdir: Option<String>,
    /// The shell; `bash` where it is not said, `sh` where there is none.
    shell: Option<String>,
    /// Whether the shell reads its login files first.
    #[serde(default)]
    login: bool,
    /// Time to wait for its end before it is left running; 10,000 where it is not said, at most 30,000.
    yield_time_ms: Option<u64>,
    /// Runs it without the sandbox, if a person agrees.
    #[serde(default)]
    with_escalated_permissions: bool,
    /// Told to that person: why.
    #[allow(dead_code)]
    justification: Option<String>,
    /// Told to the person who is asked.
    #[allow(dead_code)]
    approval_context: Option<String>,
}

/// What to type.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Input {
    /// The terminal, from `execCommand`.
    session_id: u32,
    /// What to type; `\n` is the return key, `\u0003` is Ctrl-C. Nothing only looks.
    #[serde(default)]
    chars: String,
    /// Time to wait for an answer; 250 where it is not said, at most 30,000.
    yield_time_ms: Option<u64>,
}

/// What the terminal showed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Output {
    /// Since the last look.
    output: String,
    /// The terminal, while the command runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<u32>,
    /// How the command ended, once it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
}

const LONGEST_WAIT: Duration = Duration::from_secs(30);

pub(crate) fn exec_command(commands: &Commands, terminals: &Terminals) -> impl Tool + use<> {
    let [running, judging, showing, allowing] = [(); 4].map(|()| commands.clone());
    let terminals = terminals.clone();
    let description = "Runs a shell command in a terminal. Where it has not ended in time, it goes on and can be \
        typed to with write_stdin, until the script ends.";
    tool_with_call("exec_command", description, move |args: Args, call| {
        let (commands, terminals) = (running.clone(), terminals.clone());
        async move { run(&commands, &terminals, args, &call).await }
    })
    .risk(move |args| judging.risk(&shell_words(args), args["workdir"].as_str(), escalation(args)))
    .preview(move |args| showing.preview(&shell_words(args)))
    .allow_always(move |args| allowing.allow_always(&shell_words(args), escalation(args).is_some()))
    .render(render)
    .aliases(aliases_of("exec_command"))
    .positional(&["cmd"])
}

pub(crate) fn write_stdin(terminals: &Terminals) -> impl Tool + use<> {
    let terminals = terminals.clone();
    let description = "Types into a terminal that exec_command opened, and shows what it answered.";
    tool_with_call("write_stdin", description, move |args: Input, call| {
        let terminals = terminals.clone();
        async move { type_in(&terminals, args, &call).await }
    })
    .render(render)
    .aliases(aliases_of("write_stdin"))
}

async fn run(commands: &Commands, terminals: &Terminals, args: Args, call: &Call) -> Result<Output, ToolError> {
    let patience = wait(args.yield_time_ms, Duration::from_secs(10));
    let start = Start {
        argv: words(args.shell.as_deref(), args.login, args.cmd),
        cwd: args.workdir,
        env: [("TERM".to_owned(), "dumb".to_owned())].into(),
        unconfined: args.with_escalated_permissions,
    };
    let (id, terminal) = terminals.open(commands, start, call).await?;
    Ok(shown(terminals, id, terminal.look(patience, call).await?))
}

async fn type_in(terminals: &Terminals, args: Input, call: &Call) -> Result<Output, ToolError> {
    let terminal = terminals.get(args.session_id)?;
    terminal.write(args.chars.as_bytes()).await?;
    let patience = wait(args.yield_time_ms, Duration::from_millis(250));
    Ok(shown(terminals, args.session_id, terminal.look(patience, call).await?))
}

fn wait(asked: Option<u64>, default: Duration) -> Duration {
    asked.map_or(default, Duration::from_millis).min(LONGEST_WAIT)
}

fn shown(terminals: &Terminals, id: u32, glance: Glance) -> Output {
    if glance.exit_code.is_some() {
        terminals.close(id);
    }
    let session_id = glance.exit_code.is_none().then_some(id);
    Output { output: glance.output, session_id, exit_code: glance.exit_code }
}

fn render(output: &Output) -> String {
    let state = match (output.exit_code, output.session_id) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(id)) => format!("still running, session {id}"),
        (None, None) => String::new(),
    };
    format!("{state}\n{}", output.output)
}

/// What the shell is told, as words, judged before it runs.
fn shell_words(args: &Value) -> Vec<String> {
    let text = |name: &str| args[name].as_str().map(str::to_owned);
    words(text("shell").as_deref(), args["login"] == true, text("cmd").unwrap_or_default())
}

fn words(shell: Option<&str>, login: bool, line: String) -> Vec<String> {
    let shell = shell.unwrap_or_else(|| if std::path::Path::new("/bin/bash").exists() { "bash" } else { "sh" });
    vec![shell.to_owned(), if login { "-lc" } else { "-c" }.to_owned(), line]
}
