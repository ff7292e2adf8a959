//! A `selvedge` process in a pseudo-terminal, whose output is read as plain text.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use selvedge_confine::{
    Child, ChildCommand, ChildStdio, ConfinementMode, ConfinementSupport, spawn,
};

/// A `selvedge` process in a pseudo-terminal.
pub struct PtyTerminal {
    master: File,
    child: Child,
    /// The output so far.
    pub output: String,
}

impl PtyTerminal {
    pub fn run(dir: &Path, args: &[&str]) -> Self {
        Self::run_with_term(dir, args, "dumb")
    }

    pub fn run_with_term(dir: &Path, args: &[&str], term: &str) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let tty: OwnedFd = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap()
            .into();
        let argv = [&[env!("CARGO_BIN_EXE_selvedge")], args].concat();
        let env = [
            ("SELVEDGE_HOME", dir.join("home").to_str().unwrap()),
            ("PATH", "/usr/bin:/bin"),
            ("TERM", term),
        ]
        .map(|(name, value)| (name.into(), value.into()));
        let command = ChildCommand {
            argv: argv.iter().map(Into::into).collect(),
            cwd: dir.join("work"),
            env: env.to_vec(),
            stdio: ChildStdio::Terminal(tty),
            keep_open_fd: None,
            lease: None,
        };
        let child = spawn(
            command,
            &ConfinementMode::Unconfined,
            &ConfinementSupport::probe(),
        )
        .unwrap();
        Self {
            master: File::from(master),
            child,
            output: String::new(),
        }
    }

    /// Reads until the output contains the text.
    pub fn wait_for(&mut self, text: &str) {
        while !self.output.contains(text) {
            assert!(self.read(), "{text:?} never came:\n{}", self.output);
        }
    }

    /// Waits for the next prompt, and types a line.
    pub fn answer(&mut self, line: &str) {
        self.wait_for("\n> ");
        self.output.clear();
        self.type_text(&format!("{line}\n"));
    }

    pub fn type_text(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// Waits for the process to exit, and returns its status and output.
    pub fn wait_for_exit(mut self) -> (i32, String) {
        while self.read() {}
        (self.child.wait_exit().unwrap().reason.code(), self.output)
    }

    /// Reads more output. Returns whether there was any.
    fn read(&mut self) -> bool {
        let mut chunk = [0; 4096];
        match self.master.read(&mut chunk) {
            Ok(read @ 1..) => {
                let text = String::from_utf8_lossy(&chunk[..read]);
                self.output.push_str(&text);
                true
            }
            _ => false,
        }
    }
}
