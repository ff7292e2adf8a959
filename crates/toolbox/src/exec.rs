//! `exec`: a command, run to its end.

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

/// What to run.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Program and arguments, one word each; `["bash", "-c", "…"]` for a shell script.
    command: Vec<String>,
    /// Folder to run in, relative to the workspace.
    cwd: Option<String>,
    /// Variables to add to its environment.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Time it may take; 120,000 where it is not said, at most 1,800,000.
    timeout_ms: Option<u64>,
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

/// How it ended and what it wrote.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Output {
    /// 0 where all went well; 124 after a time-out, 128 and the signal where one killed it.
    exit_code: i32,
    stdout: String,
    stderr: String,
    /// Both, in the order they arrived.
    aggregated_output: String,
    timed_out: bool,
    duration_ms: u64,
    /// Whether the middle of a long output was left out.
    truncated: bool,
    /// A guess from what it wrote: the sandbox seems to have stopped it.
    sandbox_denied: bool,
}

/// The largest pipe a user may make.
const MOST_IN_A_PIPE: usize = 1 << 20;

/// The status that `timeout` gives.
const TIMED_OUT: i32 = 124;

const DESCRIPTION: &str = "Runs a command in the sandbox and waits for its end, whatever its exit status. \
    Processes it leaves in the background end with the script.";

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

    /// A command that failed or was stopped at its time limit runs again in a resumed run.
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

/// The command in a call's arguments.
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
    let broken = |error: io::Error| ToolError::new(format!("the command's streams broke: {error}"));
    let wanted = Wanted {
        argv: args.command,
        cwd: args.cwd,
        env: args.env,
        unconfined: args.with_escalated_permissions.then(String::new),
    };
    if let Some(patched) = commands.patched(&wanted, call).await {
        return Ok(as_a_program_would(patched, started));
    }
    let (stdout, stdout_there) = io::pipe().map_err(broken)?;
    let (stderr, stderr_there) = io::pipe().map_err(broken)?;
    let stdio = Stdio::Streams {
        stdin: std::fs::File::open("/dev/null").map_err(broken)?.into(),
        stdout: stdout_there.into(),
        stderr: stderr_there.into(),
    };
    let spawning = commands.clone();
    let child = blocking(move || spawning.start(&wanted, stdio)).await?;
    let streams = [
        (
            OutputStream::Stdout,
            Receiver::from_owned_fd(stdout.into()).map_err(broken)?,
        ),
        (
            OutputStream::Stderr,
            Receiver::from_owned_fd(stderr.into()).map_err(broken)?,
        ),
    ];
    let mut writing = Writing {
        streams,
        captures: Default::default(),
        all: Capture::default(),
        call,
        leaving: commands.leaving(),
    };
    let (exit_code, timed_out) = writing.until_end(child, limit).await?;
    let [stdout, stderr] = &writing.captures;
    let mut output = Output {
        exit_code,
        stdout: stdout.text(),
        stderr: stderr.text(),
        aggregated_output: writing.all.text(),
        timed_out,
        duration_ms: started.elapsed().as_millis() as u64,
        truncated: stdout.is_cut() || stderr.is_cut() || writing.all.is_cut(),
        sandbox_denied: false,
    };
    output.sandbox_denied =
        confined && exit_code != 0 && !timed_out && looks_denied(&output.aggregated_output);
    Ok(output)
}

/// What became of a patch, told as if a program had applied it.
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

/// What a command writes, as it writes it.
struct Writing<'a> {
    streams: [(OutputStream, Receiver); 2],
    captures: [Capture; 2],
    all: Capture,
    call: &'a Call,
    leaving: &'a Leaving,
}

impl Writing<'_> {
    /// Reads until the command has ended, its time is up, or it is told to stop.
    async fn until_end(&mut self, child: Child, limit: Duration) -> Result<(i32, bool), ToolError> {
        let ending = Ending::of(child)?;
        let mut open = [true; 2];
        let mut buffers = [vec![0; 16 * 1024], vec![0; 16 * 1024]];
        let too_late = tokio::time::sleep(limit);
        tokio::pin!(too_late);
        loop {
            let [(_, stdout), (_, stderr)] = &mut self.streams;
            let [for_stdout, for_stderr] = &mut buffers;
            tokio::select! {
                () = self.call.cancel.cancelled() => {
                    ending.kill().await;
                    return Err(ToolError::new("the command was stopped"));
                }
                () = &mut too_late => {
                    ending.kill().await;
                    self.drain();
                    return Ok((TIMED_OUT, true));
                }
                read = read(stdout, for_stdout), if open[0] => open[0] = self.take(0, &buffers[0][..read]),
                read = read(stderr, for_stderr), if open[1] => open[1] = self.take(1, &buffers[1][..read]),
                ended = ending.wait() => {
                    // All it wrote is in the pipes by now; what runs on in the background is not waited for.
                    self.drain();
                    let end = ended?;
                    ending.let_go(end, self.leaving, &self.call.belongings);
                    return Ok((end.exit.code(), false));
                }
            }
        }
    }

    /// Takes what lies in the pipes already.
    fn drain(&mut self) {
        let mut buffer = vec![0; 16 * 1024];
        for stream in 0..2 {
            // A pipe holds no more than this; what comes faster than it can be read is from others.
            for _ in 0..MOST_IN_A_PIPE / buffer.len() {
                match self.streams[stream].1.try_read(&mut buffer) {
                    Ok(read @ 1..) => _ = self.take(stream, &buffer[..read]),
                    _ => break,
                }
            }
        }
    }

    /// Keeps and tells what was written; false at the end of a stream.
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

/// How much was read; nothing at the end, by whatever cause.
async fn read(stream: &mut Receiver, buffer: &mut [u8]) -> usize {
    use tokio::io::AsyncReadExt;
    stream.read(buffer).await.unwrap_or(0)
}

/// What programs write when something was refused. Inside a child such errors cannot be seen, so this is a guess.
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
    // The reason stands at the beginning or at the end, never only in the middle of a long output.
    let end = output.len().saturating_sub(KEPT / 8);
    let (start, end) = (
        output.floor_char_boundary(KEPT / 8),
        output.ceil_char_boundary(end),
    );
    let text = format!("{}{}", &output[..start], &output[end..]).to_lowercase();
    SIGNS_OF_DENIAL.iter().any(|sign| text.contains(sign))
}

/// The same without the sandbox, where that seems to be what it wants.
fn again(output: &Output, args: &Value, confined: bool) -> Option<Again> {
    let wanted = wanted(args);
    if !output.sandbox_denied || !confined || wanted.unconfined.is_some() {
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
    let what = wanted.in_one_line();
    let reason =
        format!("`{what}`: it seems that the sandbox stopped it ({last}); run it again without?");
    Some(Again { args, reason })
}

fn render(output: &Output) -> String {
    let seconds = output.duration_ms as f64 / 1000.0;
    let mut text = match output.timed_out {
        true => format!("stopped after {seconds:.1} s: its time was up (timeout_ms allows more)\n"),
        false => format!("exit code {} after {seconds:.1} s\n", output.exit_code),
    };
    if output.sandbox_denied {
        text.push_str("it seems that the sandbox stopped it\n");
    }
    text.push_str(&output.aggregated_output);
    text
}
