//! A `selvedge` process in a pseudo-terminal: types into it and reads what it prints.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use selvedge_confine::{
    Child, ChildCommand, ChildStdio, ConfinementMode, ConfinementSupport, spawn,
};

use crate::lab::{ATTACK_TIMEOUT, Lab};

/// The process and its output so far.
pub(crate) struct Pty {
    master: File,
    child: Child,
    chunks: Receiver<Vec<u8>>,
    output: Vec<u8>,
}

impl Pty {
    /// Starts `selvedge` in the workspace, in a terminal of 100 columns and 50 lines.
    pub(crate) fn start(lab: &Lab, args: &[&str]) -> Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let size = Winsize {
            ws_row: 50,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size)?;
        let name = ptsname(&master, Vec::new())?;
        let tty = File::options()
            .read(true)
            .write(true)
            .open(name.to_str()?)?;
        let program = lab.selvedge(&[]).get_program().to_owned();
        let env = [
            ("SELVEDGE_HOME", lab.home().into_os_string()),
            ("HOME", lab.home().into_os_string()),
            ("PATH", OsString::from("/usr/local/bin:/usr/bin:/bin")),
            ("TERM", OsString::from("xterm-256color")),
        ];
        let command = ChildCommand {
            argv: std::iter::once(program)
                .chain(args.iter().map(Into::into))
                .collect(),
            cwd: lab.work(),
            env: env.map(|(name, value)| (name.into(), value)).to_vec(),
            stdio: ChildStdio::Terminal(OwnedFd::from(tty)),
            keep_open_fd: None,
            lease: None,
        };
        let support = ConfinementSupport::probe();
        let child = spawn(command, &ConfinementMode::Unconfined, &support)?;
        let master = File::from(master);
        let mut reader = master.try_clone()?;
        let (sender, chunks) = channel();
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut chunk) {
                if sender.send(chunk[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            master,
            child,
            chunks,
            output: Vec::new(),
        })
    }

    pub(crate) fn type_text(&mut self, text: &str) -> Result<()> {
        Ok(self.master.write_all(text.as_bytes())?)
    }

    /// Returns all output so far.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    /// Waits until one of the texts was printed, counted from the end of `seen` bytes.
    pub(crate) fn wait_for(&mut self, seen: usize, texts: &[&str]) -> Result<()> {
        let found = |output: &[u8]| {
            let output = String::from_utf8_lossy(&output[seen.min(output.len())..]).into_owned();
            texts.iter().any(|text| output.contains(text))
        };
        let deadline = Instant::now() + ATTACK_TIMEOUT;
        while !found(&self.output) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.chunks.recv_timeout(left) {
                Ok(chunk) => self.output.extend(chunk),
                Err(_) => bail!("{texts:?} never came: {}", self.output()),
            }
        }
        Ok(())
    }

    /// Returns the number of bytes printed so far.
    pub(crate) fn position(&self) -> usize {
        self.output.len()
    }

    /// Waits for the end of the process, and returns its whole output.
    pub(crate) fn finish(mut self) -> Result<String> {
        let deadline = Instant::now() + ATTACK_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.chunks.recv_timeout(left.max(Duration::from_millis(1))) {
                Ok(chunk) => self.output.extend(chunk),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => bail!("it does not end: {}", self.output()),
            }
        }
        self.child.wait_exit().context("cannot wait for selvedge")?;
        Ok(self.output())
    }
}
