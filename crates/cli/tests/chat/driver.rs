//! Drives the chat in a pseudo-terminal: types, reads the screen through a terminal emulator, and
//! waits for expected text.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use selvedge_confine::{
    Child, ChildCommand, ChildStdio, ConfinementMode, ConfinementSupport, spawn,
};
use tempfile::TempDir;

use super::server::{Asked, Reply, Server};

/// A home with a provider on loopback, and a project folder.
pub struct ChatFixture {
    pub dir: TempDir,
    pub server: Server,
    runtime: tokio::runtime::Runtime,
}

impl ChatFixture {
    /// Starts a model server that answers requests with `model`.
    pub fn new(model: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(Server::start(model));
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::create_dir_all(dir.path().join("home")).unwrap();
        std::fs::create_dir_all(dir.path().join("work/src")).unwrap();
        std::fs::write(dir.path().join("work/a.txt"), "one\ntwo\n").unwrap();
        std::fs::write(dir.path().join("work/src/parser.rs"), "fn parse() {}\n").unwrap();
        let fixture = Self {
            dir,
            server,
            runtime,
        };
        fixture.configure("");
        fixture
    }

    /// Writes the configuration, with `more` at its end.
    pub fn configure(&self, more: &str) {
        let config = format!(
            "model = \"mock\"\nmodel_provider = \"mock\"\n\
             [model_providers.mock]\nbase_url = \"{}\"\nwire_api = \"chat\"\n{more}",
            self.server.url
        );
        std::fs::write(self.dir.path().join("home/config.toml"), config).unwrap();
    }

    pub fn work(&self) -> std::path::PathBuf {
        self.dir.path().join("work")
    }

    pub fn home(&self) -> std::path::PathBuf {
        self.dir.path().join("home")
    }

    pub fn chat(&self) -> ChatTerminal {
        self.open(&[], 80, 24, &[])
    }

    /// Runs `selvedge` in a terminal of this size.
    pub fn open(
        &self,
        args: &[&str],
        width: u16,
        height: u16,
        env: &[(&str, &str)],
    ) -> ChatTerminal {
        let argv = [&[env!("CARGO_BIN_EXE_selvedge")], args].concat();
        ChatTerminal::new(self.dir.path(), &argv, width, height, env)
    }

    /// Runs a shell with job control in a terminal.
    pub fn open_shell(&self) -> ChatTerminal {
        let argv = ["/bin/bash", "--norc", "--noprofile", "-i"];
        ChatTerminal::new(self.dir.path(), &argv, 80, 24, &[("PS1", "shell> ")])
    }

    /// Runs `selvedge` without a terminal.
    pub fn run(&self, args: &[&str]) -> std::process::Output {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_selvedge"));
        command
            .args(args)
            .current_dir(self.work())
            .env("SELVEDGE_HOME", self.home());
        command.stdin(std::process::Stdio::null()).output().unwrap()
    }

    /// Waits until the model has received `count` requests in all.
    pub fn wait_for_requests(&self, count: usize) {
        self.runtime.block_on(async {
            let received = async {
                while self.server.asked().len() < count {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(OUTPUT_TIMEOUT, received)
                .await
                .expect("the request never came");
        });
    }
}

/// How long a test waits for output.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(40);

/// A `selvedge` process in a pseudo-terminal.
pub struct ChatTerminal {
    master: File,
    output: Receiver<Vec<u8>>,
    pub child: Child,
    pub emulator: vt100::Parser,
    /// All bytes of the output so far.
    pub raw_output: Vec<u8>,
    /// How many bytes of the output are on the screen.
    shown: usize,
}

fn size(n: u16) -> NonZeroU16 {
    NonZeroU16::new(n).unwrap()
}

impl ChatTerminal {
    fn new(dir: &Path, argv: &[&str], width: u16, height: u16, env: &[(&str, &str)]) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let winsize = Winsize {
            ws_row: height,
            ws_col: width,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, winsize).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let tty: OwnedFd = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap()
            .into();
        let home = dir.join("home");
        let default_env = [
            ("SELVEDGE_HOME", home.to_str().unwrap()),
            ("PATH", "/usr/bin:/bin"),
            ("TERM", "xterm-256color"),
        ];
        let command = ChildCommand {
            argv: argv.iter().map(Into::into).collect(),
            cwd: dir.join("work"),
            env: default_env
                .iter()
                .filter(|(name, _)| env.iter().all(|(changed, _)| changed != name))
                .chain(env)
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
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
        let master = File::from(master);
        let mut reader = master.try_clone().unwrap();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut chunk) {
                if sender.send(chunk[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        let emulator = vt100::Parser::new(size(height), size(width), 1000);
        Self {
            master,
            output,
            child,
            emulator,
            raw_output: Vec::new(),
            shown: 0,
        }
    }

    /// Returns the text on the screen as it stands there, row by row, without trailing blanks. A
    /// line that the terminal wrapped has several rows.
    pub fn screen(&self) -> String {
        self.rows().join("\n").trim_end().to_owned()
    }

    /// Returns the text on the screen, with the lines that the terminal wrapped in one piece.
    fn joined_screen(&self) -> String {
        let text = self.emulator.screen().contents();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        lines.join("\n").trim_end().to_owned()
    }

    fn rows(&self) -> Vec<String> {
        let screen = self.emulator.screen();
        let rows = screen.rows(0, screen.size().1.get());
        rows.map(|row| row.trim_end().to_owned()).collect()
    }

    /// Returns the scrollback and the text on the screen.
    pub fn with_scrollback(&mut self) -> String {
        let (height, _) = self.emulator.screen().size();
        self.emulator.screen_mut().set_scrollback(usize::MAX);
        let mut above = self.emulator.screen().scrollback();
        let mut lines: Vec<String> = Vec::new();
        while above > 0 {
            self.emulator.screen_mut().set_scrollback(above);
            let page = self.rows().into_iter();
            lines.extend(page.take(above.min(height.get().into())));
            above = above.saturating_sub(height.get().into());
        }
        self.emulator.screen_mut().set_scrollback(0);
        lines.push(self.screen());
        lines.join("\n")
    }

    /// Waits until the text on the screen meets the condition.
    pub fn wait_until(&mut self, description: &str, mut condition: impl FnMut(&str) -> bool) {
        self.wait(description, |terminal| condition(&terminal.screen()));
    }

    fn wait(&mut self, description: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        // Also for a program that never stops drawing.
        let deadline = Instant::now() + OUTPUT_TIMEOUT;
        while !condition(self) {
            let rest = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(rest) {
                Ok(chunk) => self.process(&chunk),
                Err(error) => panic!("{description} never came ({error}):\n{}", self.screen()),
            }
        }
    }

    /// Waits until the text is on the screen, also in a line that the terminal wrapped.
    pub fn wait_for(&mut self, text: &str) {
        self.wait(&format!("{text:?}"), |terminal| {
            terminal.screen().contains(text) || terminal.joined_screen().contains(text)
        });
    }

    /// Waits until the text is on the screen or in the scrollback: in a short terminal, later rows
    /// can move it off the screen before the test sees it.
    pub fn wait_for_printed(&mut self, text: &str) {
        self.wait(&format!("{text:?}"), |terminal| {
            terminal.with_scrollback().contains(text)
        });
    }

    /// Waits until the text is no longer on the screen.
    pub fn wait_gone(&mut self, text: &str) {
        self.wait_until(&format!("the end of {text:?}"), |screen| {
            !screen.contains(text)
        });
    }

    /// Waits until the normalized screen equals `expected`.
    pub fn expect_screen(&mut self, expected: &str) {
        let expected = expected.trim_matches('\n');
        let deadline = Instant::now() + OUTPUT_TIMEOUT;
        while normalize(&self.screen()) != expected {
            let rest = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(rest) {
                Ok(chunk) => self.process(&chunk),
                Err(_) => {
                    assert_eq!(
                        normalize(&self.screen()),
                        expected,
                        "the screen is not what it should be:\n{}",
                        self.screen()
                    );
                }
            }
        }
    }

    /// Waits until the normalized screen equals the file `chat/screens/NAME.txt`. With
    /// `UPDATE_SCREENS=1`, writes the file instead.
    pub fn expect_screen_file(&mut self, name: &str) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat/screens");
        let file = folder.join(format!("{name}.txt"));
        if std::env::var_os("UPDATE_SCREENS").is_none() {
            let expected = std::fs::read_to_string(&file).unwrap_or_default();
            return self.expect_screen(&expected);
        }
        // The screen is complete when nothing more comes.
        while let Ok(chunk) = self.output.recv_timeout(Duration::from_secs(2)) {
            self.process(&chunk);
        }
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(file, format!("{}\n", normalize(&self.screen()))).unwrap();
    }

    /// Shows output on the screen; a synchronized update when all of it has arrived, as a terminal
    /// does.
    fn process(&mut self, chunk: &[u8]) {
        self.raw_output.extend_from_slice(chunk);
        let last = |marker: &[u8]| {
            let mut parts = self.raw_output.windows(marker.len());
            parts.rposition(|part| part == marker)
        };
        let open_update = last(b"\x1b[?2026h").filter(|begin| last(b"\x1b[?2026l") < Some(*begin));
        let complete = open_update.unwrap_or(self.raw_output.len());
        if complete > self.shown {
            self.emulator
                .process(&self.raw_output[self.shown..complete]);
            self.shown = complete;
        }
    }

    pub fn type_text(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// Types a line into the input of the chat and sends it.
    pub fn send(&mut self, text: &str) {
        self.wait_for("\n› ");
        self.type_text(text);
        self.wait_for(&format!("\n› {text}"));
        self.type_text("\r");
    }

    /// Chooses an option of the question on the screen by its number.
    pub fn choose(&mut self, number: usize) {
        self.wait_for(&format!("\n  {number}. "));
        self.type_text(&number.to_string());
        self.wait_for(&format!("❯ {number}. "));
        self.type_text("\r");
    }

    pub fn paste(&mut self, text: &str) {
        self.type_text(&format!("\x1b[200~{}\x1b[201~", text.replace('\n', "\r")));
    }

    pub fn resize(&mut self, width: u16, height: u16) {
        // Output for the old size must be processed before the emulator changes its size.
        while let Ok(chunk) = self.output.try_recv() {
            self.process(&chunk);
        }
        self.emulator
            .screen_mut()
            .set_size(size(height), size(width));
        let winsize = Winsize {
            ws_row: height,
            ws_col: width,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.master, winsize).unwrap();
    }

    /// Returns the master side of the pseudo-terminal.
    pub fn master(&self) -> &File {
        &self.master
    }

    /// Sends a signal by its name to the process.
    pub fn signal(&self, name: &str) {
        let leader = rustix::termios::tcgetpgrp(&self.master)
            .unwrap()
            .as_raw_nonzero()
            .to_string();
        let status = std::process::Command::new("kill")
            .args([&format!("-{name}"), &leader])
            .status();
        assert!(status.unwrap().success());
    }

    /// Waits for the process to exit, and returns its status and the last screen.
    pub fn wait_for_exit(self) -> (i32, String) {
        let (status, screen, _) = self.wait_for_exit_and_emulator();
        (status, screen)
    }

    /// Like `wait_for_exit`, and returns the emulator as the process left it.
    pub fn wait_for_exit_and_emulator(mut self) -> (i32, String, vt100::Parser) {
        let deadline = Instant::now() + OUTPUT_TIMEOUT;
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(rest) {
                Ok(chunk) => self.process(&chunk),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
                Err(_) => panic!("the chat does not end:\n{}", self.screen()),
            }
        }
        let screen = self.screen();
        (
            self.child.wait_exit().unwrap().reason.code(),
            screen,
            self.emulator,
        )
    }
}

/// Replaces ids, times, the version and the folder, which differ from run to run.
fn normalize(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if line.starts_with("selvedge 0") {
            out.push_str("selvedge\n");
            continue;
        }
        let words: Vec<String> = line.split(' ').map(normalize_word).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut line = String::new();
        for (index, word) in words.iter().enumerate() {
            // A number before a unit of time is a duration.
            let unit = words
                .get(index + 1)
                .map(|unit| unit.trim_end_matches(','))
                .unwrap_or_default();
            let number = !word.is_empty() && word.chars().all(|c| c.is_ascii_digit() || c == '.');
            if index > 0 {
                line.push(' ');
            }
            line.push_str(if number && matches!(unit, "ms" | "s") {
                "N"
            } else {
                word
            });
        }
        // The tokens of an answer that was stopped are an estimate.
        let line = match (line.find("k in, "), line.find(" out · ")) {
            (Some(_), Some(end)) if line.starts_with("  mock · ") => {
                format!("  mock · SPENT{}", &line[end + 4..])
            }
            _ => line,
        };
        out.push_str(&line.replace("N ms", "N s"));
        out.push('\n');
    }
    out.trim_end().to_owned()
}

fn normalize_word(word: &str) -> String {
    for prefix in ["ses_", "scr_", "trn_", "apr_"] {
        if let Some(start) = word.find(prefix) {
            let rest = word[start + 4..].trim_start_matches(|c: char| c.is_ascii_alphanumeric());
            return format!("{}{prefix}ID{rest}", &word[..start]);
        }
    }
    word.to_owned()
}
