//! The tools `exec_command` and `write_stdin`: commands in terminals that keep running between
//! calls.

use std::time::Duration;

use schemars::JsonSchema;
use selvedge_protocol::{CallReach, Preview, PreviewContent, ResumeAs, RuleScope, ToolSpec};
use selvedge_text::truncate_chars;
use selvedge_tools::{CallContext, CallFuture, Risk, Tool, ToolError, ToolOutput, parse_args};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::built_in_spec;
use crate::command_request::{CommandRequest, shell_argv};
use crate::command_safety::{CommandSafety, classify_command};
use crate::commands::CommandRunner;
use crate::one_or_many::OneOrMany;
use crate::terminals::{TerminalRead, Terminals};

/// A shell command and how to run it.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ExecCommandArgs {
    /// Shell command line, or program and arguments.
    cmd: OneOrMany,
    /// Working folder, relative to the workspace.
    workdir: Option<String>,
    /// Shell to use; default `bash`, or `sh` if bash is not installed.
    shell: Option<String>,
    /// Whether to start a login shell.
    #[serde(default)]
    login: bool,
    /// Milliseconds to wait for the exit; default 10,000, at most 30,000. Then it keeps running.
    yield_time_ms: Option<u64>,
    /// Whether to run without the sandbox. A person must approve it.
    #[serde(default)]
    with_escalated_permissions: bool,
    /// Why the command needs to run without the sandbox; shown to the person who approves it.
    #[allow(dead_code)]
    justification: Option<String>,
    /// Reason shown to the person who approves the call.
    #[allow(dead_code)]
    approval_context: Option<String>,
}

/// A terminal and the text to type.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct WriteStdinArgs {
    /// The `sessionId` that `execCommand` returned.
    session_id: u32,
    /// Text to type; `\n` is Enter, `\u0003` is Ctrl-C. If empty, only reads the output.
    #[serde(default)]
    chars: String,
    /// Milliseconds to wait for output; default 250, at most 30,000.
    yield_time_ms: Option<u64>,
}

/// The output and the state of a terminal.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TerminalOutput {
    /// Output since the last call.
    output: String,
    /// Id for `writeStdin`, while the command runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<u32>,
    /// Exit code, after the command has exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
}

/// The longest `yield_time_ms`.
const MAX_YIELD_TIME: Duration = Duration::from_secs(30);

const DESCRIPTION: &str = "Runs a shell command in a terminal. If it does not exit in time, \
    it keeps running until the script (or turn) ends; type into it with write_stdin.";

/// The tool `exec_command`.
pub(crate) struct ExecCommand(pub(crate) CommandRunner, pub(crate) Terminals);

impl Tool for ExecCommand {
    fn spec(&self) -> ToolSpec {
        built_in_spec::<ExecCommandArgs, TerminalOutput>("exec_command", &[], DESCRIPTION)
            .approval_by_arguments()
            .with_reach(CallReach::Command)
    }

    fn canonical_args(&self, mut args: Value) -> Value {
        if args["cmd"].is_array() {
            args["cmd"] = line_of(&args).into();
        }
        args
    }

    fn risk(&self, args: &Value) -> Risk {
        self.0.risk(&command_request(args))
    }

    fn is_read_only(&self, args: &Value) -> bool {
        self.0.is_read_only(&command_request(args))
    }

    /// Without an exit code the command was left running, and how it ended is not known.
    fn resume_as(&self, value: &Value) -> ResumeAs {
        match value["exitCode"].as_i64() {
            Some(0) => ResumeAs::Reuse,
            Some(_) => ResumeAs::Rerun,
            None => ResumeAs::Undecided,
        }
    }

    fn preview(&self, args: &Value) -> Preview {
        self.0.preview(&command_request(args))
    }

    fn approval_key(&self, args: &Value) -> Option<String> {
        self.0.approval_key(&command_request(args))
    }

    fn add_rule(&self, args: &Value, scope: RuleScope) {
        self.0.add_rule(&command_request(args), scope);
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let Self(commands, terminals) = self;
        Box::pin(async move {
            let output = run(commands, terminals, parse_args(args)?, &call).await?;
            tool_output(&output)
        })
    }
}

/// The tool `write_stdin`.
pub(crate) struct WriteStdin(pub(crate) Terminals);

impl Tool for WriteStdin {
    fn spec(&self) -> ToolSpec {
        let description = "Types into a terminal of exec_command, and returns its new output.";
        built_in_spec::<WriteStdinArgs, TerminalOutput>(
            "write_stdin",
            &["session_id", "chars"],
            description,
        )
        .approval_by_arguments()
        .with_reach(CallReach::Command)
    }

    fn risk(&self, args: &Value) -> Risk {
        typing_risk(args)
    }

    fn preview(&self, args: &Value) -> Preview {
        let id = args["session_id"].as_u64();
        let id = id.and_then(|id| u32::try_from(id).ok());
        let place = match id.and_then(|id| self.0.is_confined(id)) {
            Some(true) => " in the sandbox",
            Some(false) => " outside the sandbox",
            None => "",
        };
        let chars = args["chars"].as_str().unwrap_or_default();
        let view = format!("types into a terminal{place}:\n{chars}");
        Preview {
            view: Some(PreviewContent::Text(view)),
            rule: None,
        }
    }

    /// Terminals are closed when their script ends, so a resumed run must type into a new one.
    fn resume_as(&self, _: &Value) -> ResumeAs {
        ResumeAs::Rerun
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        Box::pin(async move {
            let output = write_stdin(&self.0, parse_args(args)?, &call).await?;
            tool_output(&output)
        })
    }
}

async fn run(
    commands: &CommandRunner,
    terminals: &Terminals,
    args: ExecCommandArgs,
    call: &CallContext,
) -> Result<TerminalOutput, ToolError> {
    let yield_time = yield_time(args.yield_time_ms, Duration::from_secs(10));
    let request = CommandRequest {
        argv: shell_argv(args.shell.as_deref(), args.login, args.cmd.into_line()),
        cwd: args.workdir,
        env: [("TERM".to_owned(), "dumb".to_owned())].into(),
        run_unconfined: args.with_escalated_permissions,
    };
    if let Some(patched) = commands.apply_if_patch(&request, call).await {
        return Ok(TerminalOutput {
            output: patched.stdout + &patched.stderr,
            session_id: None,
            exit_code: Some(patched.exit_code),
        });
    }
    let (id, terminal) = terminals.open(commands, request, call).await?;
    Ok(terminal_output(
        terminals,
        id,
        terminal.wait_output(yield_time, call).await?,
    ))
}

async fn write_stdin(
    terminals: &Terminals,
    args: WriteStdinArgs,
    call: &CallContext,
) -> Result<TerminalOutput, ToolError> {
    let terminal = terminals.get(args.session_id, &call.scope_id)?;
    terminal.write(args.chars.as_bytes()).await?;
    let yield_time = yield_time(args.yield_time_ms, Duration::from_millis(250));
    Ok(terminal_output(
        terminals,
        args.session_id,
        terminal.wait_output(yield_time, call).await?,
    ))
}

fn yield_time(requested_ms: Option<u64>, default: Duration) -> Duration {
    requested_ms
        .map_or(default, Duration::from_millis)
        .min(MAX_YIELD_TIME)
}

/// Returns the result of a call, and closes the terminal if its command has exited.
fn terminal_output(terminals: &Terminals, id: u32, read: TerminalRead) -> TerminalOutput {
    if read.exit_code.is_some() {
        terminals.close(id);
    }
    let session_id = read.exit_code.is_none().then_some(id);
    TerminalOutput {
        output: read.output,
        session_id,
        exit_code: read.exit_code,
    }
}

/// Returns the result with the text for models, and the exit code of a command that failed.
fn tool_output(output: &TerminalOutput) -> Result<ToolOutput, ToolError> {
    let failed = output.exit_code.filter(|code| *code != 0);
    Ok(ToolOutput {
        model_text: Some(render(output)),
        failure: failed.map(|code| format!("exit {code}")),
        ..ToolOutput::from_value(output)?
    })
}

fn render(output: &TerminalOutput) -> String {
    let state = match (output.exit_code, output.session_id) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(id)) => format!("still running, session {id}"),
        (None, None) => String::new(),
    };
    format!("{state}\n{}", output.output)
}

/// Reads the command from the arguments of a call, which may not fit the schema.
fn command_request(args: &Value) -> CommandRequest {
    let text = |name: &str| args[name].as_str().map(str::to_owned);
    let argv = shell_argv(
        text("shell").as_deref(),
        args["login"] == true,
        line_of(args),
    );
    CommandRequest::from_args(argv, "workdir", args)
}

/// Returns the command line of a call: words of a list are quoted.
fn line_of(args: &Value) -> String {
    let command: Option<OneOrMany> = serde_json::from_value(args["cmd"].clone()).ok();
    command.map_or_else(String::new, OneOrMany::into_line)
}

/// Returns the risk of typing. The text is classified as a shell script, because the program in the
/// terminal may be a shell.
fn typing_risk(args: &Value) -> Risk {
    let chars = args["chars"].as_str().unwrap_or_default();
    let typed: String = truncate_chars(chars, 80)
        .chars()
        .flat_map(char::escape_debug)
        .collect();
    match classify_command(&["bash".to_owned(), "-c".to_owned(), chars.to_owned()]).safety {
        _ if chars.is_empty() => Risk::Harmless,
        CommandSafety::Dangerous {
            reason: why,
            command,
        } if !typed.contains(&command) => Risk::NeedsApproval {
            reason: format!("types `{command}`: {why}, in `{typed}`"),
        },
        CommandSafety::Dangerous { reason: why, .. } => Risk::NeedsApproval {
            reason: format!("types `{typed}`: {why}"),
        },
        _ => Risk::Moderate {
            reason: format!("types `{typed}`"),
        },
    }
}
