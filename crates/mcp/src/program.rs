//! A server that is a program of the user's: started in a process group of its own, listened to within bounds.

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

use crate::link::lock;
use crate::settings::Reach;

/// Bytes one message may have.
pub(crate) const MAX_MESSAGE: usize = 16 << 20;
/// Bytes in a row that are no message, after which it is no MCP server.
const MAX_GARBAGE: usize = 64 << 20;
/// Lines of its standard error that are kept.
const TAIL_LINES: usize = 20;
/// Bytes kept of both ends of a message that is too large, to see which request it answers.
const ENDS: usize = 512;
/// How long it may take to end by itself when its input is closed, and again when it is told to.
const GRACE: Duration = Duration::from_millis(800);

/// Variables a program cannot do without.
const CORE_VARIABLES: &str = "HOME LANG LC_ALL LC_CTYPE LOGNAME PATH SHELL TERM TMPDIR TZ USER \
    XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_RUNTIME_DIR SSL_CERT_FILE SSL_CERT_DIR \
    NODE_EXTRA_CA_CERTS SYSTEMROOT APPDATA LOCALAPPDATA USERPROFILE";

/// The variable that tells a program that it was started from scripts.
pub const NESTED: &str = "SELVEDGE_MCP_NESTED";

/// A running server. Dropped, it is killed with everything it started.
pub(crate) struct Program {
    child: Child,
    #[cfg(unix)]
    group: Option<rustix::process::Pid>,
    heard: Arc<Mutex<Heard>>,
    listening: Vec<AbortHandle>,
}

/// What a program said besides messages.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    stderr: VecDeque<String>,
    /// Lines on standard output that are no messages, and the first of them.
    pub(crate) garbage: usize,
    first_garbage: Option<String>,
    /// Messages that were too large.
    pub(crate) oversized: usize,
}

impl Program {
    /// Starts it. The pair is what to read from and write to: only whole messages come through.
    pub(crate) fn start(reach: &Reach) -> std::io::Result<(Self, DuplexStream, ChildStdin)> {
        let Reach::Program {
            command,
            args,
            env,
            env_vars,
            cwd,
        } = reach
        else {
            return Err(std::io::Error::other("it is no program"));
        };
        let mut program = Command::new(command);
        program
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        program.env_clear();
        let handed_on = CORE_VARIABLES.split_whitespace();
        let handed_on = handed_on.chain(env_vars.iter().map(String::as_str));
        program.envs(handed_on.filter_map(|name| Some((name, std::env::var_os(name)?))));
        program.env(NESTED, "1").envs(env);
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
            return Err(std::io::Error::other("its pipes are missing"));
        };
        let heard = Arc::new(Mutex::new(Heard::default()));
        let (near, far) = tokio::io::duplex(64 << 10);
        let messages = tokio::spawn(pass_messages(stdout, far, heard.clone()));
        let complaints = tokio::spawn(keep_tail(stderr, heard.clone()));
        let listening = vec![messages.abort_handle(), complaints.abort_handle()];
        let program = Self {
            child,
            #[cfg(unix)]
            group,
            heard,
            listening,
        };
        Ok((program, near, stdin))
    }

    /// What it said last, and how it ended, in one line.
    pub(crate) fn last_words(&mut self) -> String {
        let status = self.child.try_wait().ok().flatten();
        let status = status.map(|status| status.to_string());
        let heard = lock(&self.heard);
        let mut lines = heard.stderr.iter().rev();
        let said = lines.find(|line| !line.trim().is_empty());
        let said = said.map(|line| format!("it said: {line}"));
        let garbage = heard.first_garbage.as_ref().filter(|_| said.is_none());
        let printed = garbage.map(|line| format!("it printed `{line}` instead of messages"));
        let words: Vec<_> = [status, said, printed].into_iter().flatten().collect();
        words.join("; ")
    }

    /// What it does that it should not, for `mcp list`.
    pub(crate) fn notes(&self) -> Vec<String> {
        let heard = lock(&self.heard);
        let (garbage, oversized, most) = (heard.garbage, heard.oversized, MAX_MESSAGE >> 20);
        let garbage = heard.first_garbage.as_ref().map(|line| {
            format!("{garbage} lines on standard output are no messages, such as `{line}`")
        });
        let oversized =
            (oversized > 0).then(|| format!("{oversized} answers had more than {most} MB"));
        garbage.into_iter().chain(oversized).collect()
    }

    /// Waits for its end after its input was closed, then tells it to end, then ends it.
    pub(crate) async fn stop(mut self) {
        let ended = tokio::time::timeout(GRACE, self.child.wait()).await;
        if ended.is_err() {
            #[cfg(unix)]
            self.signal(rustix::process::Signal::TERM);
            let _ = tokio::time::timeout(GRACE, self.child.wait()).await;
        }
    }

    #[cfg(unix)]
    fn signal(&self, signal: rustix::process::Signal) {
        if let Some(group) = self.group {
            // A group that is gone needs no signal.
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        #[cfg(unix)]
        self.signal(rustix::process::Signal::KILL);
        self.listening.iter().for_each(AbortHandle::abort);
    }
}

/// What stands in the error that is told instead of an answer that is too large.
pub(crate) fn too_large() -> Value {
    json!({"largest": MAX_MESSAGE})
}

/// Passes whole lines that look like messages; says of the others that they were there.
async fn pass_messages(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    heard: Arc<Mutex<Heard>>,
) {
    let mut from = BufReader::with_capacity(64 << 10, from);
    let mut line = Vec::new();
    let mut garbage = 0;
    loop {
        line.clear();
        let read = (&mut from)
            .take(MAX_MESSAGE as u64 + 1)
            .read_until(b'\n', &mut line)
            .await;
        if !matches!(read, Ok(1..)) {
            return;
        }
        if line.last() != Some(&b'\n') {
            if line.len() <= MAX_MESSAGE {
                return;
            }
            lock(&heard).oversized += 1;
            let Some(tail) = skip_line(&mut from).await else {
                return;
            };
            let Some(id) = answered(&line[..ENDS], &tail) else {
                continue;
            };
            let message = format!("it has more than {} MB", MAX_MESSAGE >> 20);
            let error = json!({"code": -32000, "message": message, "data": too_large()});
            let error = json!({"jsonrpc": "2.0", "id": id, "error": error});
            line = format!("{error}\n").into_bytes();
        }
        let text = line.trim_ascii();
        if text.is_empty() {
            continue;
        }
        if !(text.starts_with(b"{") && text.ends_with(b"}")) {
            garbage += line.len();
            let mut heard = lock(&heard);
            heard.garbage += 1;
            heard.first_garbage.get_or_insert_with(|| shown(text));
            if garbage > MAX_GARBAGE {
                return;
            }
            continue;
        }
        garbage = 0;
        if to.write_all(&line).await.is_err() {
            return;
        }
    }
}

/// Reads to the end of a line, keeping its last bytes.
async fn skip_line(from: &mut (impl AsyncBufReadExt + Unpin)) -> Option<Vec<u8>> {
    let mut tail: Vec<u8> = Vec::new();
    loop {
        let piece = from.fill_buf().await.ok();
        let piece = piece.filter(|piece| !piece.is_empty())?;
        let end = piece.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(piece.len(), |end| end + 1);
        tail.extend_from_slice(&piece[used.saturating_sub(ENDS)..used]);
        let more = tail.len().saturating_sub(ENDS);
        tail.drain(..more);
        from.consume(used);
        if end.is_some() {
            return Some(tail);
        }
    }
}

/// The request that a message too large to read answers: its id stands before the result or after it.
fn answered(head: &[u8], tail: &[u8]) -> Option<serde_json::Value> {
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

async fn keep_tail(from: impl AsyncRead + Unpin, heard: Arc<Mutex<Heard>>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line without end is cut into pieces.
        let mut piece = (&mut from).take(4096);
        if !matches!(piece.read_until(b'\n', &mut line).await, Ok(1..)) {
            return;
        }
        let mut heard = lock(&heard);
        if heard.stderr.len() >= TAIL_LINES {
            heard.stderr.pop_front();
        }
        heard.stderr.push_back(shown(line.trim_ascii()));
    }
}

/// Foreign bytes in one harmless line.
fn shown(bytes: &[u8]) -> String {
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
    async fn only_messages_come_through_and_large_ones_become_errors() {
        let large = format!(
            "{{\"result\":{{\"x\":\"{}\"}},\"jsonrpc\":\"2.0\",\"id\":7}}\n",
            "y".repeat(MAX_MESSAGE)
        );
        let input = format!("hello\n{{\"a\":1}}\n\n[1]\n{large}{{\"b\":2}}\n");
        let heard = Arc::new(Mutex::new(Heard::default()));
        let (mut near, far) = tokio::io::duplex(1 << 20);
        pass_messages(input.as_bytes(), far, heard.clone()).await;
        let mut out = String::new();
        near.read_to_string(&mut out).await.unwrap();
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(
            (lines[0], lines[2], lines.len()),
            ("{\"a\":1}", "{\"b\":2}", 3)
        );
        assert!(
            lines[1].contains("\"id\":7") && lines[1].contains("more than 16 MB"),
            "{}",
            lines[1]
        );
        let heard = heard.lock().unwrap();
        assert_eq!(
            (
                heard.garbage,
                heard.oversized,
                heard.first_garbage.as_deref()
            ),
            (2, 1, Some("hello"))
        );
    }

    #[test]
    fn the_request_of_a_large_answer_is_found() {
        let id = |head: &str, tail: &str| answered(head.as_bytes(), tail.as_bytes());
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
