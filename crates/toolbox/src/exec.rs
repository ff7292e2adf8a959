//! The tool `exec`: runs a command and waits until it exits.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use selvedge_confine::{Child, Stdio};
use selvedge_protocol::{Event, OutputStream, Preview, ResumeAs, ToolSpec};
use selvedge_tools::{Again, Call, CallFuture, Risk, Tool, ToolError, ToolOutput, read_args};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::unix::pipe::Receiver;

use crate::aliases::spec;
use crate::blocking::blocking;
use crate::capture::{Capture, KEPT};
use crate::commands::{Commands, DEFAULT_TIMEOUT, LONGEST_TIMEOUT, Wanted};
use crate::ending::{Ending, Leaving};

/// A command and how to run it.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Program and arguments: `["npm", "test"]`. For shell syntax: `["bash", "-c", "ls | head"]`.
    command: Vec<String>,
    /// Working folder, relative to the workspace.
    cwd: Option<String>,
    /// Environment variables to add.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Time limit in milliseconds; default 120,000, at most 1,800,000.
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
pub(crate) struct Output {
    /// 0 on success, 124 after a timeout, 128 plus the signal number if a signal killed it.
    exit_code: i32,
    stdout: String,
    stderr: String,
    /// stdout and stderr in the order of arrival.
    aggregated_output: String,
    timed_out: bool,
    duration_ms: u64,
    /// Whether the middle of a long output was left out.
    truncated: bool,
    /// Whether the output suggests that the sandbox blocked the command.
    sandbox_denied: bool,
}

/// The largest capacity that an unprivileged user can give a pipe.
const MOST_IN_A_PIPE: usize = 1 << 20;

/// The exit code after a timeout, the same as that of the program `timeout`.
const TIMED_OUT: i32 = 124;

const DESCRIPTION: &str = "Runs a command in the sandbox and waits until it exits. \
    A nonzero exit code does not throw. \
    Processes left in the background are killed when the script ends.";

/// The tool `exec`.
pub(crate) struct Exec(pub(crate) Commands);

impl Tool for Exec {
    fn spec(&self) -> ToolSpec {
        spec::<Args, Output>("exec", &[], DESCRIPTION).judged_by_arguments()
    }

    fn risk(&self, args: &Value) -> Risk {
        self.0.risk(&wanted(args))
    }

    fn reads_only(&self, args: &Value) -> bool {
        self.0.reads_only(&wanted(args))
    }

    /// A command that failed or timed out runs again in a resumed run.
    fn resume_as(&self, value: &Value) -> ResumeAs {
        match value["exitCode"] == 0 && value["timedOut"] != true {
            true => ResumeAs::Answer,
            false => ResumeAs::Rerun,
        }
    }

    fn preview(&self, args: &Value) -> Preview {
        self.0.preview(&wanted(args))
    }

    fn agreement(&self, args: &Value) -> Option<String> {
        self.0.agreement(&wanted(args))
    }

    fn allow_always(&self, args: &Value) {
        self.0.allow_always(&wanted(args));
    }

    fn call(&self, args: Value, call: Call) -> CallFuture<'_> {
        Box::pin(async move {
            let output = run(&self.0, read_args(args.clone())?, &call).await?;
            Ok(ToolOutput {
                rendering: Some(render(&output)),
                again: again(&output, &args, self.0.are_confined()),
                ..ToolOutput::of(&output)?
            })
        })
    }
}

/// Reads the command from the arguments of a call, which may not fit the schema.
fn wanted(args: &Value) -> Wanted {
    let words = args["command"].as_array().into_iter().flatten();
    let argv = words.filter_map(Value::as_str).map(str::to_owned).collect();
    Wanted::from_args(argv, "cwd", args)
}

async fn run(commands: &Commands, args: Args, call: &Call) -> Result<Output, ToolError> {
    let started = Instant::now();
    let limit = args
        .timeout_ms
        .map_or(DEFAULT_TIMEOUT, Duration::from_millis)
        .min(LONGEST_TIMEOUT);
    let confined = commands.are_confined() && !args.with_escalated_permissions;
    let pipe_error =
        |error: io::Error| ToolError::new(format!("cannot create the command's streams: {error}"));
    let request = Wanted {
        argv: args.command,
        cwd: args.cwd,
        env: args.env,
        unconfined: args.with_escalated_permissions.then(String::new),
    };
    if let Some(patched) = commands.patched(&request, call).await {
        return Ok(as_a_program_would(patched, started));
    }
    let (stdout_reader, stdout_writer) = io::pipe().map_err(pipe_error)?;
    let (stderr_reader, stderr_writer) = io::pipe().map_err(pipe_error)?;
    let stdio = Stdio::Streams {
        stdin: std::fs::File::open("/dev/null").map_err(pipe_error)?.into(),
        stdout: stdout_writer.into(),
        stderr: stderr_writer.into(),
    };
    let runner = commands.clone();
    let child = blocking(move || runner.start(&request, stdio)).await?;
    let streams = [
        (
            OutputStream::Stdout,
            Receiver::from_owned_fd(stdout_reader.into()).map_err(pipe_error)?,
        ),
        (
            OutputStream::Stderr,
            Receiver::from_owned_fd(stderr_reader.into()).map_err(pipe_error)?,
        ),
    ];
    let mut reader = Writing {
        streams,
        captures: Default::default(),
        all: Capture::default(),
        call,
        leaving: commands.leaving(),
    };
    let (exit_code, timed_out) = reader.until_end(child, limit).await?;
    let [stdout, stderr] = &reader.captures;
    let mut output = Output {
        exit_code,
        stdout: stdout.text(),
        stderr: stderr.text(),
        aggregated_output: reader.all.text(),
        timed_out,
        duration_ms: started.elapsed().as_millis() as u64,
        truncated: stdout.is_cut() || stderr.is_cut() || reader.all.is_cut(),
        sandbox_denied: false,
    };
    output.sandbox_denied =
        confined && exit_code != 0 && !timed_out && looks_denied(&output.aggregated_output);
    Ok(output)
}

/// Returns the result of a patch as if a program had applied it.
fn as_a_program_would(patched: Result<String, ToolError>, started: Instant) -> Output {
    let (exit_code, stdout, stderr) = match patched {
        Ok(summary) => (0, summary, String::new()),
        Err(error) => {
            let hints = error
                .suggestions
                .iter()
                .map(|hint| format!("hint: {hint}\n"));
            (
                1,
                String::new(),
                format!("{}\n{}", error.message, hints.collect::<String>()),
            )
        }
    };
    Output {
        exit_code,
        aggregated_output: format!("{stdout}{stderr}"),
        stdout,
        stderr,
        timed_out: false,
        duration_ms: started.elapsed().as_millis() as u64,
        truncated: false,
        sandbox_denied: false,
    }
}

/// Reads the output of a running command and emits it as events.
struct Writing<'a> {
    streams: [(OutputStream, Receiver); 2],
    /// The output of each stream, in the order of `streams`.
    captures: [Capture; 2],
    /// The output of both streams in the order of arrival.
    all: Capture,
    call: &'a Call,
    leaving: &'a Leaving,
}

impl Writing<'_> {
    /// Reads until the command exits, times out or is cancelled. Returns the exit code and whether
    /// the command timed out.
    async fn until_end(&mut self, child: Child, limit: Duration) -> Result<(i32, bool), ToolError> {
        let command = Ending::of(child)?;
        let mut open = [true; 2];
        let mut buffers = [vec![0; 16 * 1024], vec![0; 16 * 1024]];
        let timeout = tokio::time::sleep(limit);
        tokio::pin!(timeout);
        loop {
            let [(_, stdout), (_, stderr)] = &mut self.streams;
            let [stdout_buffer, stderr_buffer] = &mut buffers;
            tokio::select! {
                () = self.call.cancel.cancelled() => {
                    command.kill().await;
                    return Err(ToolError::new("the command was cancelled"));
                }
                () = &mut timeout => {
                    command.kill().await;
                    self.drain();
                    return Ok((TIMED_OUT, true));
                }
                read = read(stdout, stdout_buffer), if open[0] => {
                    open[0] = self.take(0, &buffers[0][..read]);
                }
                read = read(stderr, stderr_buffer), if open[1] => {
                    open[1] = self.take(1, &buffers[1][..read]);
                }
                exited = command.wait() => {
                    // All output of the command is in the pipes by now. Later output of background
                    // processes is not waited for.
                    self.drain();
                    let end = exited?;
                    command.let_go(end, self.leaving, &self.call.belongings);
                    return Ok((end.exit.code(), false));
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
            for _ in 0..MOST_IN_A_PIPE / buffer.len() {
                match self.streams[stream].1.try_read(&mut buffer) {
                    Ok(read @ 1..) => _ = self.take(stream, &buffer[..read]),
                    _ => break,
                }
            }
        }
    }

    /// Stores output and emits it as an event. Returns false at the end of the stream.
    fn take(&mut self, stream: usize, bytes: &[u8]) -> bool {
        if !self.captures[stream].is_cut() && !bytes.is_empty() {
            self.call.events.emit(Event::CallOutput {
                parent_id: self.call.scope_id.clone(),
                call_id: self.call.id.clone(),
                stream: self.streams[stream].0,
                text: String::from_utf8_lossy(bytes).into_owned(),
            });
        }
        self.captures[stream].push(bytes);
        self.all.push(bytes);
        !bytes.is_empty()
    }
}

/// Reads from a stream and returns the number of bytes. 0 at the end of the stream or on an error.
async fn read(stream: &mut Receiver, buffer: &mut [u8]) -> usize {
    use tokio::io::AsyncReadExt;
    stream.read(buffer).await.unwrap_or(0)
}

/// Texts in the output of programs that were probably blocked by the sandbox. The errors inside a
/// child process are not visible from outside, so this is a heuristic.
const SIGNS_OF_DENIAL: [&str; 15] = [
    "operation not permitted",
    "permission denied",
    "read-only file system",
    "network is unreachable",
    "could not resolve host",
    "couldn't resolve host",
    "couldn't connect to server",
    "temporary failure in name resolution",
    "name or service not known",
    "failed to lookup address",
    "eai_again",
    "enetunreach",
    "erofs",
    "eacces",
    "eperm",
];

fn looks_denied(output: &str) -> bool {
    // Only the beginning and the end are searched: a long output has the error message there.
    let end = output.len().saturating_sub(KEPT / 8);
    let (start, end) = (
        output.floor_char_boundary(KEPT / 8),
        output.ceil_char_boundary(end),
    );
    let text = format!("{}{}", &output[..start], &output[end..]).to_lowercase();
    SIGNS_OF_DENIAL.iter().any(|sign| text.contains(sign))
}

/// Returns the same call without the sandbox if the sandbox probably blocked the command.
fn again(output: &Output, args: &Value, confined: bool) -> Option<Again> {
    let request = wanted(args);
    if !output.sandbox_denied || !confined || request.unconfined.is_some() {
        return None;
    }
    let mut args = args.clone();
    args["with_escalated_permissions"] = json!(true);
    let last = output
        .aggregated_output
        .trim_end()
        .lines()
        .last()
        .unwrap_or_default();
    let last: String = last.chars().take(200).collect();
    let line = request.in_one_line();
    let reason = format!(
        "`{line}` was probably blocked by the sandbox ({last}); run it without the sandbox?"
    );
    Some(Again { args, reason })
}

fn render(output: &Output) -> String {
    let seconds = output.duration_ms as f64 / 1000.0;
    let mut text = match output.timed_out {
        true => format!("timed out after {seconds:.1} s (set timeout_ms to allow more)\n"),
        false => format!("exit code {} after {seconds:.1} s\n", output.exit_code),
    };
    if output.sandbox_denied {
        text.push_str("probably blocked by the sandbox\n");
    }
    text.push_str(&output.aggregated_output);
    text
}
