//! The process of an MCP server that is a local program.
//!
//! It runs in a process group of its own. Of its standard output, only lines that look like
//! messages and are not too large are passed on.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, DuplexStream,
};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::AbortHandle;

use crate::connection::lock;
use crate::settings::{McpTransport, ServerProgram, ServerSettings};

/// Largest message of a server, in bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Most values of a message. A parsed value takes about fifty times the memory of its two bytes, so
/// the size alone does not limit what a message costs.
pub(crate) const MAX_MESSAGE_VALUES: usize = 1_000_000;
/// Bytes of consecutive lines that are not messages, after which reading stops.
const MAX_NON_MESSAGE_BYTES: usize = 64 << 20;
/// Number of lines of standard error that are kept.
const STDERR_TAIL_LINES: usize = 20;
/// Bytes at the start and at the end of an oversized message that are searched for its id.
const OVERSIZED_SAMPLE_BYTES: usize = 512;
/// How long a server may take to exit after its standard input was closed, and again after SIGTERM.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(800);

/// Environment variables that every server inherits.
const INHERITED_VARIABLES: &str = "HOME LANG LC_ALL LC_CTYPE LOGNAME PATH SHELL TERM TMPDIR TZ USER \
    XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_RUNTIME_DIR SSL_CERT_FILE SSL_CERT_DIR \
    NODE_EXTRA_CA_CERTS SYSTEMROOT APPDATA LOCALAPPDATA USERPROFILE";

/// Hint for a server that prints other lines than messages on its standard output.
pub(crate) const LOG_TO_STDERR_HINT: &str = "make the server write its log to standard error";

/// Environment variable that is set for every MCP server that Selvedge starts. A Selvedge that
/// finds it set offers no MCP servers of its own.
pub const NESTED_ENV_VAR: &str = "SELVEDGE_MCP_NESTED";

/// A running server process. Dropping it kills the whole process group.
pub(crate) struct ServerProcess {
    child: Child,
    #[cfg(unix)]
    process_group: Option<rustix::process::Pid>,
    output_log: Arc<Mutex<ServerOutputLog>>,
    /// Tasks that read standard output and standard error.
    reader_tasks: Vec<AbortHandle>,
}

/// Output of a server that is not a message.
#[derive(Debug, Default)]
pub(crate) struct ServerOutputLog {
    /// Last lines of standard error.
    stderr_tail: VecDeque<String>,
    /// Number of lines on standard output that are not messages.
    pub(crate) non_message_lines: usize,
    first_non_message_line: Option<String>,
    /// Number of messages that were too large.
    pub(crate) oversized_messages: usize,
}

impl ServerOutputLog {
    /// Describes the lines on standard output that are not MCP messages; `None` without any.
    pub(crate) fn describe_non_messages(&self) -> Option<String> {
        let first = self.first_non_message_line.as_ref()?;
        Some(match self.non_message_lines {
            1 => format!("it printed a line that is not an MCP message: `{first}`"),
            count => {
                format!("it printed {count} lines that are not MCP messages, the first: `{first}`")
            }
        })
    }
}

impl ServerProcess {
    /// Starts the program that was found, or else the command as it is. Returns it with the stream
    /// to read messages from and the pipe to write messages to.
    pub(crate) fn spawn(
        settings: &ServerSettings,
        found: Option<ServerProgram>,
        output_log: Arc<Mutex<ServerOutputLog>>,
    ) -> std::io::Result<(Self, DuplexStream, ChildStdin)> {
        let McpTransport::Stdio {
            command,
            args,
            env,
            env_vars,
            cwd,
        } = &settings.transport
        else {
            return Err(std::io::Error::other("not a local program"));
        };
        let (mut program, search_path) = match found {
            None => (Command::new(command), None),
            Some(ServerProgram::Found { path, search_path }) => {
                (Command::new(path), Some(search_path))
            }
            Some(ServerProgram::Missing) => return Err(std::io::ErrorKind::NotFound.into()),
        };
        program
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        program.env_clear();
        let inherited = INHERITED_VARIABLES.split_whitespace();
        let inherited = inherited.chain(env_vars.iter().map(String::as_str));
        program.envs(inherited.filter_map(|name| Some((name, std::env::var_os(name)?))));
        program.env(NESTED_ENV_VAR, "1").envs(env);
        if let Some(search_path) = search_path {
            program.env("PATH", search_path);
        }
        if let Some(cwd) = cwd {
            program.current_dir(cwd);
        }
        #[cfg(unix)]
        program.process_group(0);
        let mut child = program.spawn()?;
        #[cfg(unix)]
        let group = child
            .id()
            .and_then(|id| rustix::process::Pid::from_raw(id as i32));
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(std::io::Error::other("a standard stream is not a pipe"));
        };
        let (messages, sender) = tokio::io::duplex(64 << 10);
        let stdout_task = tokio::spawn(forward_messages(stdout, sender, output_log.clone()));
        let stderr_task = tokio::spawn(collect_stderr(stderr, output_log.clone()));
        let reader_tasks = vec![stdout_task.abort_handle(), stderr_task.abort_handle()];
        let program = Self {
            child,
            #[cfg(unix)]
            process_group: group,
            output_log,
            reader_tasks,
        };
        Ok((program, messages, stdin))
    }

    /// Returns the exit status and the last output of the server, in one line.
    pub(crate) fn exit_reason(&mut self) -> String {
        let status = self.child.try_wait().ok().flatten();
        let status = status.map(|status| match status.code() {
            Some(code) => format!("it exited with status {code}"),
            None => format!("it was ended by {status}"),
        });
        let output_log = lock(&self.output_log);
        let mut lines = output_log.stderr_tail.iter().rev();
        let stderr = lines.find(|line| !line.trim().is_empty());
        let stderr = stderr.map(|line| format!("stderr: {line}"));
        let stdout = output_log.describe_non_messages();
        let stdout = stdout.filter(|_| stderr.is_none());
        let parts: Vec<_> = [status, stderr, stdout].into_iter().flatten().collect();
        parts.join("; ")
    }

    /// Whether the program still runs, and has printed lines that are not messages.
    pub(crate) fn prints_non_messages(&mut self) -> bool {
        lock(&self.output_log).non_message_lines > 0 && matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns protocol violations of the server, for `mcp list`.
    pub(crate) fn notes(&self) -> Vec<String> {
        let output_log = lock(&self.output_log);
        let non_messages = output_log.describe_non_messages();
        let limit = MAX_MESSAGE_BYTES >> 20;
        let oversized = match output_log.oversized_messages {
            0 => None,
            1 => Some(format!("1 message was larger than {limit} MB")),
            count => Some(format!("{count} messages were larger than {limit} MB")),
        };
        non_messages.into_iter().chain(oversized).collect()
    }

    /// Waits until the server exits after its standard input was closed. Sends SIGTERM if it does
    /// not, and SIGKILL if that does not help.
    pub(crate) async fn stop(mut self) {
        let ended = tokio::time::timeout(SHUTDOWN_TIMEOUT, self.child.wait()).await;
        if ended.is_err() {
            #[cfg(unix)]
            self.signal(rustix::process::Signal::TERM);
            let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, self.child.wait()).await;
        }
    }

    #[cfg(unix)]
    fn signal(&self, signal: rustix::process::Signal) {
        if let Some(group) = self.process_group {
            // Fails if the group has already ended.
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        #[cfg(unix)]
        self.signal(rustix::process::Signal::KILL);
        self.reader_tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Code of the JSON-RPC error that replaces an oversized response.
pub(crate) const OVERSIZED_CODE: i32 = -32000;

/// Returns why a message of too many bytes was replaced.
pub(crate) fn too_large_message() -> String {
    format!("it is larger than {} MB", MAX_MESSAGE_BYTES >> 20)
}

/// Returns why a message of too many values was replaced.
pub(crate) fn too_many_values_message() -> String {
    format!("it has more than {MAX_MESSAGE_VALUES} values")
}

/// Returns the `data` of the JSON-RPC error that replaces an oversized response. It distinguishes
/// this error from errors of the server.
pub(crate) fn oversized_error_data() -> Value {
    json!({"largest": MAX_MESSAGE_BYTES})
}

/// Copies lines that look like messages, and counts the others in `output_log`.
///
/// An oversized response is replaced by an error for the request it answers.
async fn forward_messages(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    output_log: Arc<Mutex<ServerOutputLog>>,
) {
    let mut from = BufReader::with_capacity(64 << 10, from);
    let mut line = Vec::new();
    let mut non_message_bytes = 0;
    loop {
        line.clear();
        let read = (&mut from)
            .take(MAX_MESSAGE_BYTES as u64 + 1)
            .read_until(b'\n', &mut line)
            .await;
        if !matches!(read, Ok(1..)) {
            return;
        }
        let is_complete = line.last() == Some(&b'\n');
        if !is_complete && line.len() <= MAX_MESSAGE_BYTES {
            return;
        }
        if !is_complete || has_too_many_values(&line) {
            lock(&output_log).oversized_messages += 1;
            let tail = match is_complete {
                true => line[line.len().saturating_sub(OVERSIZED_SAMPLE_BYTES)..].to_vec(),
                false => match skip_line(&mut from).await {
                    Some(tail) => tail,
                    None => return,
                },
            };
            let Some(id) = find_response_id(&line[..OVERSIZED_SAMPLE_BYTES], &tail) else {
                continue;
            };
            let message = match is_complete {
                true => too_many_values_message(),
                false => too_large_message(),
            };
            let data = oversized_error_data();
            let error = json!({"code": OVERSIZED_CODE, "message": message, "data": data});
            let error = json!({"jsonrpc": "2.0", "id": id, "error": error});
            line = format!("{error}\n").into_bytes();
        }
        let text = line.trim_ascii();
        if text.is_empty() {
            continue;
        }
        if !(text.starts_with(b"{") && text.ends_with(b"}")) {
            non_message_bytes += line.len();
            let mut output_log = lock(&output_log);
            output_log.non_message_lines += 1;
            output_log
                .first_non_message_line
                .get_or_insert_with(|| printable_line(text));
            if non_message_bytes > MAX_NON_MESSAGE_BYTES {
                return;
            }
            continue;
        }
        non_message_bytes = 0;
        if to.write_all(&line).await.is_err() {
            return;
        }
    }
}

/// Whether a JSON text has more than [`MAX_MESSAGE_VALUES`] values. Counts what begins a list or an
/// object or precedes a further value.
pub(crate) fn has_too_many_values(text: &[u8]) -> bool {
    if text.len() <= MAX_MESSAGE_VALUES {
        return false;
    }
    let (mut values, mut in_string, mut escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => values += 1,
            _ => {}
        }
    }
    values > MAX_MESSAGE_VALUES
}

/// Reads to the end of a line and returns its last bytes; `None` at the end of the stream.
async fn skip_line(from: &mut (impl AsyncBufReadExt + Unpin)) -> Option<Vec<u8>> {
    let mut tail: Vec<u8> = Vec::new();
    loop {
        let chunk = from.fill_buf().await.ok();
        let chunk = chunk.filter(|chunk| !chunk.is_empty())?;
        let newline = chunk.iter().position(|byte| *byte == b'\n');
        let used = newline.map_or(chunk.len(), |index| index + 1);
        tail.extend_from_slice(&chunk[used.saturating_sub(OVERSIZED_SAMPLE_BYTES)..used]);
        let excess = tail.len().saturating_sub(OVERSIZED_SAMPLE_BYTES);
        tail.drain(..excess);
        from.consume(used);
        if newline.is_some() {
            return Some(tail);
        }
    }
}

/// Returns the id of an oversized response, from its start or its end. The `result` in between may
/// contain other fields named `id`.
pub(crate) fn find_response_id(head: &[u8], tail: &[u8]) -> Option<serde_json::Value> {
    let id = |text: &str| {
        let rest = text.trim_start().strip_prefix(':')?.trim_start();
        serde_json::Deserializer::from_str(rest)
            .into_iter()
            .next()?
            .ok()
    };
    let head = String::from_utf8_lossy(head);
    let before = head.split("\"result\"").next().unwrap_or_default();
    let first = before.split_once("\"id\"").and_then(|(_, rest)| id(rest));
    let tail = String::from_utf8_lossy(tail);
    first.or_else(|| tail.rsplit_once("\"id\"").and_then(|(_, rest)| id(rest)))
}

async fn collect_stderr(from: impl AsyncRead + Unpin, output_log: Arc<Mutex<ServerOutputLog>>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A longer line is split.
        let mut limited = (&mut from).take(4096);
        if !matches!(limited.read_until(b'\n', &mut line).await, Ok(1..)) {
            return;
        }
        let mut output_log = lock(&output_log);
        if output_log.stderr_tail.len() >= STDERR_TAIL_LINES {
            output_log.stderr_tail.pop_front();
        }
        output_log
            .stderr_tail
            .push_back(printable_line(line.trim_ascii()));
    }
}

/// Converts output of a server to one line of at most 200 characters without control characters.
fn printable_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(800)]);
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(200)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_messages_are_passed_on_and_oversized_ones_become_errors() {
        let large = format!(
            "{{\"result\":{{\"x\":\"{}\"}},\"jsonrpc\":\"2.0\",\"id\":7}}\n",
            "y".repeat(MAX_MESSAGE_BYTES)
        );
        let input = format!("hello\n{{\"a\":1}}\n\n[1]\n{large}{{\"b\":2}}\n");
        let output_log = Arc::new(Mutex::new(ServerOutputLog::default()));
        let (mut messages, sender) = tokio::io::duplex(1 << 20);
        forward_messages(input.as_bytes(), sender, output_log.clone()).await;
        let mut out = String::new();
        messages.read_to_string(&mut out).await.unwrap();
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(
            (lines[0], lines[2], lines.len()),
            ("{\"a\":1}", "{\"b\":2}", 3)
        );
        assert!(
            lines[1].contains("\"id\":7") && lines[1].contains("larger than 16 MB"),
            "{}",
            lines[1]
        );
        let output_log = output_log.lock().unwrap();
        assert_eq!(
            (
                output_log.non_message_lines,
                output_log.oversized_messages,
                output_log.first_non_message_line.as_deref()
            ),
            (2, 1, Some("hello"))
        );
    }

    #[test]
    fn values_are_counted_outside_of_strings() {
        let list = |item: &str| format!("{{\"a\": [{}0]}}", format!("{item},").repeat(1_000_000));
        assert!(has_too_many_values(list("0").as_bytes()));
        assert!(has_too_many_values("[".repeat(1_000_001).as_bytes()));
        let text = format!("{{\"a\": \"{}\"}}", ",\\\"[".repeat(1_000_000));
        assert!(!has_too_many_values(text.as_bytes()));
    }

    #[test]
    fn the_id_of_an_oversized_response_is_found() {
        let id = |head: &str, tail: &str| find_response_id(head.as_bytes(), tail.as_bytes());
        assert_eq!(
            id("{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{\"id\":9", "}}"),
            Some(3.into())
        );
        assert_eq!(
            id(
                "{\"result\":{\"id\":9",
                "},\"jsonrpc\":\"2.0\",\"id\": \"x\"}\n"
            ),
            Some("x".into())
        );
        assert_eq!(id("{\"method\":\"x\"", "}"), None);
    }
}
