//! The npm peers, in one Node process (`peers.mjs`) that measures them.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};

/// The Node process in which the peers run. It takes one JSON request per line.
pub(crate) struct Peers {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

/// Returns the folder `bench/`.
pub(crate) fn bench_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

impl Peers {
    pub(crate) fn start() -> Result<Self> {
        let mut child = Command::new("node")
            .arg("peers.mjs")
            .current_dir(bench_folder())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start node: install Node.js and run `make bench`")?;
        let ask = child.stdin.take().context("no pipe to node")?;
        let answers = BufReader::new(child.stdout.take().context("no pipe from node")?);
        Ok(Self {
            child,
            stdin: ask,
            stdout: answers,
        })
    }

    /// Runs a benchmark of `peers.mjs` and returns the milliseconds of each repetition.
    pub(crate) fn measure(&mut self, work: &str, times: u32) -> Result<Vec<f64>> {
        writeln!(
            self.stdin,
            "{}",
            serde_json::json!({"work": work, "times": times})
        )?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| {
            format!("no result of {work} from peers.mjs: run `npm install` in bench/")
        })
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // The process also ends when its input is closed; killing it is faster.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
