//! An encoder that is another program: it reads a JSON list of texts from each line, and prints a
//! JSON list of vectors.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use selvedge_memory::{Encoder, MemoryError};

/// The running program. It ends when its standard input is closed.
#[derive(Debug)]
pub struct ProgramEncoder {
    name: String,
    streams: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    _child: Child,
}

impl ProgramEncoder {
    /// Starts a command line, whose words are separated by spaces.
    pub fn start(command: &str) -> std::io::Result<Self> {
        let mut words = command.split_whitespace();
        let mut child = Command::new(words.next().unwrap_or_default())
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let streams = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = streams.ok_or(std::io::ErrorKind::BrokenPipe)?;
        Ok(Self {
            name: command.to_owned(),
            streams: Mutex::new((stdin, BufReader::new(stdout))),
            _child: child,
        })
    }
}

impl Encoder for ProgramEncoder {
    fn name(&self) -> &str {
        &self.name
    }

    fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, MemoryError> {
        let failed = |error: String| MemoryError::Encoder(error);
        let mut streams = self.streams.lock().unwrap();
        let (stdin, stdout) = &mut *streams;
        let question = serde_json::to_string(texts).map_err(|error| failed(error.to_string()))?;
        let mut answer = String::new();
        writeln!(stdin, "{question}")
            .and_then(|()| stdin.flush())
            .and_then(|()| stdout.read_line(&mut answer))
            .map_err(|error| failed(error.to_string()))?;
        serde_json::from_str(&answer).map_err(|error| failed(error.to_string()))
    }
}
