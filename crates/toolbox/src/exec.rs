//! The tool `exec`: runs a command and waits until it exits.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use selvedge_confine::{Child, ChildStdio, CommandExit};
use selvedge_protocol::{
    CallReach, CallTimeout, OutputStream, Preview, ResumeAs, RuleScope, RuntimeEvent, ToolSpec,
};
use selvedge_text::group_digits;
use selvedge_tools::{
    CallContext, CallFuture, Risk, Tool, ToolError, ToolOutput, UnconfinedRetry, parse_args,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::unix::pipe::Receiver;

use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::capture::OutputCapture;
use crate::command_access::CommandAccess;
use crate::command_request::{CommandRequest, PatchedCommand, shell_argv};
use crate::commands::CommandRunner;
use crate::one_or_many::OneOrMany;
use crate::running_command::{ExitedCommands, RunningCommand};
use crate::sandbox_denial::find_denial;

/// A command and how to run it.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ExecToolArgs {
    /// Command line for bash, `"ls | head"`, or program and arguments, `["npm", "test"]`.
    command: OneOrMany,
    /// Working folder, relative to the workspace.
    cwd: Option<String>,
    /// Environment variables to add.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Time limit in milliseconds; default 120,000, at most 1,800,000.
    #[allow(dead_code)]
    timeout_ms: Option<u64>,
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

/// The exit code and the output of the command.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExecToolOutput {
    /// 0 on success, 124 after a timeout, 128 plus the signal number if a signal killed it.
    exit_code: i32,
    stdout: String,
    stderr: String,
    /// stdout and stderr in the order of arrival.
    aggregated_output: String,
    timed_out: bool,
    duration_ms: u64,
    /// Whether the middle of a long output was omitted.
    truncated: bool,
    /// Whether the sandbox blocked the command.
    sandbox_denied: bool,
    /// What the sandbox blocked, and whether that is a guess.
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox_reason: Option<String>,
}

/// The largest capacity that an unprivileged user can give a pipe.
const MAX_PIPE_BYTES: usize = 1 << 20;

/// The time limit of commands. `exec` kills the command and returns what it wrote.
const COMMAND_TIMEOUT: CallTimeout = CallTimeout::new(CallReach::Command.default_timeout())
    .or_requested(Duration::from_secs(30 * 60))
    .enforced_by_tool(Duration::from_secs(5));

/// The exit code after a timeout, the same as that of the program `timeout`.
const TIMEOUT_EXIT_CODE: i32 = 124;

const DESCRIPTION: &str = "Runs a command in the sandbox and waits until it exits. \
    A nonzero exit code does not throw. \
    Processes left in the background are killed when the script ends.";

/// The tool `exec`.
pub(crate) struct Exec(pub(crate) CommandRunner);

impl Tool for Exec {
    fn spec(&self) -> ToolSpec {
        built_in_spec::<ExecToolArgs, ExecToolOutput>("exec", &[], DESCRIPTION)
            .approval_by_arguments()
            .with_reach(CallReach::Command)
            .with_timeout(COMMAND_TIMEOUT)
    }

    /// A command line is the call of a shell, and is judged, shown and recorded as one.
    fn canonical_args(&self, mut args: Value) -> Value {
        if args["command"].is_string() {
            args["command"] = json!(argv_of(&args));
        }
        args
    }

    fn risk(&self, args: &Value) -> Risk {
        self.0.risk(&command_request(args))
    }

    fn is_read_only(&self, args: &Value) -> bool {
        self.0.is_read_only(&command_request(args))
    }

    /// A command that failed or timed out runs again in a resumed run.
    fn resume_as(&self, value: &Value) -> ResumeAs {
        match value["exitCode"] == 0 && value["timedOut"] != true {
            true => ResumeAs::Reuse,
            false => ResumeAs::Rerun,
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
        Box::pin(async move {
            let args = self.canonical_args(args);
            let output = run(&self.0, parse_args(args.clone())?, &call).await?;
            Ok(ToolOutput {
                model_text: Some(render(&output)),
                failure: failure(&output, call.time_limit),
                unconfined_retry: unconfined_retry(&output, &args, self.0.confines_commands()),
                ..ToolOutput::from_value(&output)?
            })
        })
    }
}

/// Reads the command from the arguments of a call, which may not fit the schema.
fn command_request(args: &Value) -> CommandRequest {
    CommandRequest::from_args(argv_of(args), "cwd", args)
}

/// Returns the program and arguments of a call: a command line is run by a shell.
fn argv_of(args: &Value) -> Vec<String> {
    if let Some(line) = args["command"].as_str() {
        return shell_argv(None, false, line.to_owned());
    }
    let words = args["command"].as_array().into_iter().flatten();
    words.filter_map(Value::as_str).map(str::to_owned).collect()
}

async fn run(
    commands: &CommandRunner,
    args: ExecToolArgs,
    call: &CallContext,
) -> Result<ExecToolOutput, ToolError> {
    let started = Instant::now();
    let confined = commands.confines_commands() && !args.with_escalated_permissions;
    let request = CommandRequest {
        argv: args.command.into_vec(),
        cwd: args.cwd,
        env: args.env,
        run_unconfined: args.with_escalated_permissions,
    };
    if let Some(patched) = commands.apply_if_patch(&request, call).await {
        return Ok(patch_output(patched, started));
    }
    let cwd = request.cwd.clone();
    let (child, streams) = spawn_with_pipes(commands, request, call).await?;
    let mut reader = OutputReader {
        streams,
        captures: Default::default(),
        aggregated: OutputCapture::default(),
        call,
        exited: commands.exited(),
    };
    let end = reader.read_until_exit(child, call.time_limit).await?;
    let (exit_code, timed_out) = match end {
        Some(exit) => (exit.reason.code(), false),
        None => (TIMEOUT_EXIT_CODE, true),
    };
    let [stdout, stderr] = &reader.captures;
    warn_about_omitted(call, [("stdout", stdout), ("stderr", stderr)]);
    let mut output = ExecToolOutput {
        exit_code,
        stdout: stdout.text(),
        stderr: stderr.text(),
        aggregated_output: reader.aggregated.text(),
        timed_out,
        duration_ms: started.elapsed().as_millis() as u64,
        truncated: stdout.is_truncated()
            || stderr.is_truncated()
            || reader.aggregated.is_truncated(),
        sandbox_denied: false,
        sandbox_reason: None,
    };
    if let Some(exit) = end
        && confined
        && exit_code != 0
    {
        let refused = |path: &str| commands.is_refused_by_sandbox(cwd.as_deref(), path);
        let hidden = |path: &str| commands.is_hidden_by_sandbox(cwd.as_deref(), path);
        let denial = find_denial(
            &output.aggregated_output,
            exit.network_denied,
            refused,
            hidden,
        );
        output.sandbox_denied = denial.is_some();
        output.sandbox_reason = denial.map(|denial| denial.reason());
    }
    Ok(output)
}

/// Starts a command. Returns it with the streams that read its output.
async fn spawn_with_pipes(
    commands: &CommandRunner,
    request: CommandRequest,
    call: &CallContext,
) -> Result<(Child, [(OutputStream, Receiver); 2]), ToolError> {
    let pipe_error =
        |error: io::Error| ToolError::new(format!("cannot create the command's streams: {error}"));
    let (stdout_reader, stdout_writer) = io::pipe().map_err(pipe_error)?;
    let (stderr_reader, stderr_writer) = io::pipe().map_err(pipe_error)?;
    let stdio = ChildStdio::Streams {
        stdin: std::fs::File::open("/dev/null").map_err(pipe_error)?.into(),
        stdout: stdout_writer.into(),
        stderr: stderr_writer.into(),
    };
    let (runner, access) = (commands.clone(), CommandAccess::of_call(call));
    let child = run_blocking(move || runner.spawn(&request, access, stdio)).await?;
    let stdout = Receiver::from_owned_fd(stdout_reader.into()).map_err(pipe_error)?;
    let stderr = Receiver::from_owned_fd(stderr_reader.into()).map_err(pipe_error)?;
    let streams = [
        (OutputStream::Stdout, stdout),
        (OutputStream::Stderr, stderr),
    ];
    Ok((child, streams))
}

/// Warns about output that was omitted.
fn warn_about_omitted(call: &CallContext, captures: [(&str, &OutputCapture); 2]) {
    for (name, capture) in captures {
        if capture.is_truncated() {
            let omitted = group_digits(capture.omitted_bytes());
            call.warn(format!(
                "{omitted} bytes in the middle of {name} were omitted"
            ));
        }
    }
}

/// Returns the result of a patch as if a program had applied it.
fn patch_output(patched: PatchedCommand, started: Instant) -> ExecToolOutput {
    let PatchedCommand {
        exit_code,
        stdout,
        stderr,
    } = patched;
    ExecToolOutput {
        exit_code,
        aggregated_output: format!("{stdout}{stderr}"),
        stdout,
        stderr,
        timed_out: false,
        duration_ms: started.elapsed().as_millis() as u64,
        truncated: false,
        sandbox_denied: false,
        sandbox_reason: None,
    }
}

/// Reads the output of a running command and emits it as events.
struct OutputReader<'a> {
    streams: [(OutputStream, Receiver); 2],
    /// The output of each stream, in the order of `streams`.
    captures: [OutputCapture; 2],
    /// The output of both streams in the order of arrival.
    aggregated: OutputCapture,
    call: &'a CallContext,
    exited: &'a ExitedCommands,
}

impl OutputReader<'_> {
    /// Reads until the command exits, times out or is cancelled. Returns how it ended; `None` if it
    /// timed out.
    async fn read_until_exit(
        &mut self,
        child: Child,
        limit: Duration,
    ) -> Result<Option<CommandExit>, ToolError> {
        let command = RunningCommand::new(child)?;
        let mut open = [true; 2];
        let mut buffers = [vec![0; 16 * 1024], vec![0; 16 * 1024]];
        let timeout = tokio::time::sleep(limit);
        tokio::pin!(timeout);
        loop {
            let [(_, stdout), (_, stderr)] = &mut self.streams;
            let [stdout_buffer, stderr_buffer] = &mut buffers;
            tokio::select! {
                () = self.call.cancel.cancelled() => {
                    command.kill_and_wait().await;
                    self.drain();
                    let written = Some(self.aggregated.text()).filter(|text| !text.is_empty());
                    return Err(ToolError {
                        partial_output: written,
                        ..ToolError::new("the command was cancelled")
                    });
                }
                () = &mut timeout => {
                    command.kill_and_wait().await;
                    self.drain();
                    return Ok(None);
                }
                read = read_chunk(stdout, stdout_buffer), if open[0] => {
                    open[0] = self.record_chunk(0, &buffers[0][..read]);
                }
                read = read_chunk(stderr, stderr_buffer), if open[1] => {
                    open[1] = self.record_chunk(1, &buffers[1][..read]);
                }
                exited = command.wait() => {
                    // All output of the command is in the pipes by now. Later output of background
                    // processes is not waited for.
                    self.drain();
                    let end = exited?;
                    command.release(end, self.exited, &self.call.resources);
                    return Ok(Some(end));
                }
            }
        }
    }

    /// Reads the output that is already in the pipes.
    fn drain(&mut self) {
        let mut buffer = vec![0; 16 * 1024];
        for stream in 0..2 {
            // Bounded by the capacity of a pipe: a background process may write faster than this
            // reads.
            for _ in 0..MAX_PIPE_BYTES / buffer.len() {
                match self.streams[stream].1.try_read(&mut buffer) {
                    Ok(read @ 1..) => _ = self.record_chunk(stream, &buffer[..read]),
                    _ => break,
                }
            }
        }
    }

    /// Stores output and emits it as an event. Returns false at the end of the stream.
    fn record_chunk(&mut self, stream: usize, bytes: &[u8]) -> bool {
        if !self.captures[stream].is_truncated() && !bytes.is_empty() {
            self.call.events.emit(RuntimeEvent::CallOutput {
                parent_id: self.call.scope_id.clone(),
                call_id: self.call.id.clone(),
                stream: self.streams[stream].0,
                text: String::from_utf8_lossy(bytes).into_owned(),
            });
        }
        self.captures[stream].push(bytes);
        self.aggregated.push(bytes);
        !bytes.is_empty()
    }
}

/// Reads from a stream and returns the number of bytes. 0 at the end of the stream or on an error.
async fn read_chunk(stream: &mut Receiver, buffer: &mut [u8]) -> usize {
    use tokio::io::AsyncReadExt;
    stream.read(buffer).await.unwrap_or(0)
}

/// Returns the same call without confinement if the confinement probably blocked the command.
fn unconfined_retry(
    output: &ExecToolOutput,
    args: &Value,
    confined: bool,
) -> Option<UnconfinedRetry> {
    let request = command_request(args);
    if !output.sandbox_denied || !confined || request.run_unconfined {
        return None;
    }
    let mut args = args.clone();
    args["with_escalated_permissions"] = json!(true);
    let line = request.to_line();
    let why = output.sandbox_reason.as_deref().unwrap_or_default();
    let reason =
        format!("`{line}` was blocked by the sandbox ({why}); run it without the sandbox?");
    Some(UnconfinedRetry { args, reason })
}

/// Describes a command that failed, for people who watch the calls.
fn failure(output: &ExecToolOutput, time_limit: Duration) -> Option<String> {
    if output.timed_out {
        let limit = match time_limit.as_millis() {
            ms @ 0..1000 => format!("{ms} ms"),
            _ => format!("{} s", time_limit.as_secs_f64()),
        };
        return Some(format!("stopped at its time limit of {limit}"));
    }
    if let Some(reason) = &output.sandbox_reason {
        return Some(format!("blocked by the sandbox: {reason}"));
    }
    (output.exit_code != 0).then(|| format!("exit {}", output.exit_code))
}

fn render(output: &ExecToolOutput) -> String {
    let seconds = output.duration_ms as f64 / 1000.0;
    let mut text = match output.timed_out {
        true => format!("timed out after {seconds:.1} s (set timeout_ms to allow more)\n"),
        false => format!("exit code {} after {seconds:.1} s\n", output.exit_code),
    };
    if let Some(reason) = &output.sandbox_reason {
        text.push_str(&format!("blocked by the sandbox: {reason}\n"));
    }
    text.push_str(&output.aggregated_output);
    text
}
