//! The place where an attack runs: a home, a workspace, a secret outside of both, and the binary
//! under attack.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

/// Content of the file outside the workspace that no attack may read.
pub(crate) const SECRET: &str = "canary-5b1f-outside-the-workspace";

/// A process that runs longer than this is killed, and its attack has succeeded.
pub(crate) const ATTACK_TIMEOUT: Duration = Duration::from_secs(60);

/// A process that uses more memory than this is killed, and its attack has succeeded.
const MAX_MEMORY_KB: u64 = 4_000_000;

/// A fresh home and workspace.
pub(crate) struct Lab {
    dir: tempfile::TempDir,
    binary: PathBuf,
}

/// What a process did.
pub(crate) struct Observation {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) exit_code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) elapsed: Duration,
    pub(crate) timed_out: bool,
    /// The most memory that the process itself used at once, in kilobytes.
    pub(crate) peak_memory_kb: u64,
}

impl Observation {
    /// Returns everything the process printed.
    pub(crate) fn output(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    /// Whether the process ended by itself, without a panic and without a signal.
    pub(crate) fn ended_cleanly(&self) -> bool {
        !self.timed_out
            && self.signal.is_none()
            && self.exit_code != Some(101)
            && !self.stderr.contains("panicked at")
    }
}

impl Lab {
    pub(crate) fn new(binary: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        for folder in ["work", "home", "outside"] {
            std::fs::create_dir(dir.path().join(folder))?;
        }
        std::fs::write(dir.path().join("outside/secret"), SECRET)?;
        Ok(Self {
            dir,
            binary: binary.to_owned(),
        })
    }

    /// The workspace.
    pub(crate) fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    /// Selvedge's home.
    pub(crate) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// A folder that the workspace does not contain. Its file `secret` contains [`SECRET`].
    pub(crate) fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    /// Writes a file of the workspace, with its folders.
    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) -> Result<()> {
        let path = self.work().join(path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&path, content).with_context(|| path.display().to_string())
    }

    /// Returns a command that runs `selvedge` in the workspace.
    pub(crate) fn selvedge(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(args)
            .env("SELVEDGE_HOME", self.home())
            .env("HOME", self.home())
            .current_dir(self.work());
        command
    }

    /// Runs `selvedge` to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Result<Observation> {
        observe(self.selvedge(args), "")
    }

    /// Runs a script. Returns its `script_tool_call_output` item and what the process did. Fails
    /// as [`script_item`] does.
    pub(crate) fn script(&self, source: &str, args: &[&str]) -> Result<(Value, Observation)> {
        let all = [&["run", "--json", "-"], args].concat();
        let seen = observe(self.selvedge(&all), source)?;
        Ok((script_item(&seen)?, seen))
    }
}

/// Returns the item of a script; `Null` if the process crashed, which is for the attack to judge.
/// Fails if the script never ran: then the attack was not tried.
pub(crate) fn script_item(seen: &Observation) -> Result<Value> {
    let item: Value = serde_json::from_str(&seen.stdout).unwrap_or(Value::Null);
    let has_run = item["type"] == "script_tool_call_output" && item["status"] != "rejected";
    anyhow::ensure!(
        has_run || !seen.ended_cleanly(),
        "the script did not run: {}",
        seen.output()
    );
    Ok(item)
}

/// Runs a command to its end, with `input` on its standard input. Kills it after
/// [`ATTACK_TIMEOUT`], and when it uses more than [`MAX_MEMORY_KB`].
pub(crate) fn observe(mut command: Command, input: &str) -> Result<Observation> {
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A process that does not read its input is not an error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let (output, timed_out, peak_memory_kb) = wait_with_timeout(child)?;
    Ok(Observation {
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        exit_code: output.status.code(),
        signal: output.status.signal(),
        elapsed: started.elapsed(),
        timed_out,
        peak_memory_kb,
    })
}

/// Waits for a process. Returns its output, whether it was killed, and its peak memory in
/// kilobytes.
fn wait_with_timeout(child: Child) -> Result<(Output, bool, u64)> {
    const MEASURE_INTERVAL: Duration = Duration::from_millis(10);
    let pid = child.id().to_string();
    let deadline = Instant::now() + ATTACK_TIMEOUT;
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(child.wait_with_output()));
    let mut peak = 0;
    loop {
        match receive.recv_timeout(MEASURE_INTERVAL) {
            Ok(output) => return Ok((output?, false, peak)),
            Err(_) if Instant::now() < deadline && peak < MAX_MEMORY_KB => {
                peak = peak.max(peak_memory_kb(&pid));
            }
            Err(_) => {
                Command::new("kill").args(["-9", &pid]).status()?;
                return Ok((receive.recv()??, true, peak));
            }
        }
    }
}

/// Returns the most memory that a running process has used, or 0 if it has ended.
fn peak_memory_kb(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse().ok())
        .unwrap_or(0)
}
