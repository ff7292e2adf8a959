//! The npm peers: one Node process that measures itself.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};

/// The process in which the peers run.
pub(crate) struct Peers {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

impl Peers {
    pub(crate) fn start() -> Result<Self> {
        let mut child = Command::new("node")
            .arg("peers.mjs")
            .current_dir(folder())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start node: install it, then run `make bench`")?;
        let ask = child.stdin.take().context("no pipe to node")?;
        let answers = BufReader::new(child.stdout.take().context("no pipe from node")?);
        Ok(Self {
            child,
            ask,
            answers,
        })
    }

    /// Milliseconds of `times` repetitions.
    pub(crate) fn measure(&mut self, work: &str, times: u32) -> Result<Vec<f64>> {
        writeln!(
            self.ask,
            "{}",
            serde_json::json!({"work": work, "times": times})
        )?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| {
            format!("the peers did not answer {work}: run `npm install` in bench/")
        })
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // It ends by itself when its input does; this only hurries it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
