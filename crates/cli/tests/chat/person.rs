//! A person at a terminal: types, looks at the screen, and waits for what should be there.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use selvedge_confine::{Child, Command, Stdio, Support, Wall, spawn};
use tempfile::TempDir;

use super::server::{Asked, Reply, Server};

/// A home with a provider on loopback, and a project.
pub struct Desk {
    pub dir: TempDir,
    pub server: Server,
    runtime: tokio::runtime::Runtime,
}

impl Desk {
    pub fn new(script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(Server::start(script));
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::create_dir_all(dir.path().join("home")).unwrap();
        std::fs::create_dir_all(dir.path().join("work/src")).unwrap();
        std::fs::write(dir.path().join("work/a.txt"), "one\ntwo\n").unwrap();
        std::fs::write(dir.path().join("work/src/parser.rs"), "fn parse() {}\n").unwrap();
        let desk = Self {
            dir,
            server,
            runtime,
        };
        desk.configure("");
        desk
    }

    /// The configuration, with more at its end.
    pub fn configure(&self, more: &str) {
        let config = format!(
            "model = \"mock\"\nmodel_provider = \"mock\"\n[model_providers.mock]\nbase_url = \"{}\"\nwire_api = \"chat\"\n{more}",
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

    pub fn chat(&self) -> Person {
        self.sit_down(&[], 80, 24, &[])
    }

    /// Opens a chat in a window of this size.
    pub fn sit_down(&self, args: &[&str], width: u16, height: u16, env: &[(&str, &str)]) -> Person {
        Person::new(self.dir.path(), args, width, height, env)
    }

    /// What `selvedge` prints, without a terminal.
    pub fn selvedge(&self, args: &[&str]) -> std::process::Output {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_selvedge"));
        command
            .args(args)
            .current_dir(self.work())
            .env("SELVEDGE_HOME", self.home());
        command.stdin(std::process::Stdio::null()).output().unwrap()
    }

    /// Waits for so many requests.
    pub fn wait_for_requests(&self, many: usize) {
        self.runtime.block_on(async {
            let waited = async {
                while self.server.asked().len() < many {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(PATIENCE, waited)
                .await
                .expect("the request never came");
        });
    }
}

/// How long a person looks at a screen on which nothing happens.
const PATIENCE: Duration = Duration::from_secs(40);

pub struct Person {
    keyboard: File,
    pieces: Receiver<Vec<u8>>,
    pub child: Child,
    pub terminal: vt100::Parser,
    /// Every byte that came.
    pub raw: Vec<u8>,
}

fn size(n: u16) -> NonZeroU16 {
    NonZeroU16::new(n).unwrap()
}

impl Person {
    fn new(dir: &Path, args: &[&str], width: u16, height: u16, env: &[(&str, &str)]) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let window = Winsize {
            ws_row: height,
            ws_col: width,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, window).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let tty: OwnedFd = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap()
            .into();
        let argv = [&[env!("CARGO_BIN_EXE_selvedge")], args].concat();
        let home = dir.join("home");
        let usual = [
            ("SELVEDGE_HOME", home.to_str().unwrap()),
            ("PATH", "/usr/bin:/bin"),
            ("TERM", "xterm-256color"),
        ];
        let command = Command {
            argv: argv.iter().map(Into::into).collect(),
            cwd: dir.join("work"),
            env: usual
                .iter()
                .chain(env)
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
            stdio: Stdio::Terminal(tty),
            hold: None,
        };
        let child = spawn(command, &Wall::None, &Support::probe()).unwrap();
        let keyboard = File::from(master);
        let mut screen = keyboard.try_clone().unwrap();
        let (sender, pieces) = channel();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(read @ 1..) = screen.read(&mut piece) {
                if sender.send(piece[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        let terminal = vt100::Parser::new(size(height), size(width), 1000);
        Self {
            keyboard,
            pieces,
            child,
            terminal,
            raw: Vec::new(),
        }
    }

    /// What is on the screen, without trailing blanks.
    pub fn screen(&self) -> String {
        let text = self.terminal.screen().contents();
        text.lines()
            .map(str::trim_end)
            .collect::<Vec<_>>()
            .join("\n")
            .trim_end()
            .to_owned()
    }

    /// Everything there ever was above it, too.
    pub fn scrolled(&mut self) -> String {
        let (height, _) = self.terminal.screen().size();
        self.terminal.screen_mut().set_scrollback(usize::MAX);
        let mut above = self.terminal.screen().scrollback();
        let mut lines: Vec<String> = Vec::new();
        while above > 0 {
            self.terminal.screen_mut().set_scrollback(above);
            let page = self.terminal.screen().contents();
            let page: Vec<&str> = page.split('\n').collect();
            lines.extend(
                page.iter()
                    .take(above.min(height.get().into()))
                    .map(|line| line.trim_end().to_owned()),
            );
            above = above.saturating_sub(height.get().into());
        }
        self.terminal.screen_mut().set_scrollback(0);
        lines.push(self.screen());
        lines.join("\n")
    }

    /// The same with what differs from run to run taken out.
    pub fn steady(&self) -> String {
        steady(&self.screen())
    }

    /// Looks until this is so.
    pub fn wait(&mut self, what: &str, mut so: impl FnMut(&str) -> bool) {
        while !so(&self.screen()) {
            match self.pieces.recv_timeout(PATIENCE) {
                Ok(piece) => self.see(&piece),
                Err(why) => panic!("{what} never came ({why}):\n{}", self.screen()),
            }
        }
    }

    /// Looks until these words are on the screen.
    pub fn wait_for(&mut self, words: &str) {
        self.wait(&format!("{words:?}"), |screen| screen.contains(words));
    }

    /// Looks until these words are gone.
    pub fn wait_gone(&mut self, words: &str) {
        self.wait(&format!("the end of {words:?}"), |screen| {
            !screen.contains(words)
        });
    }

    /// Looks until the screen, but for what differs from run to run, is this.
    pub fn expect(&mut self, expected: &str) {
        let expected = expected.trim_matches('\n');
        while self.steady() != expected {
            match self.pieces.recv_timeout(PATIENCE) {
                Ok(piece) => self.see(&piece),
                Err(_) => {
                    assert_eq!(
                        self.steady(),
                        expected,
                        "the screen is not what it should be:\n{}",
                        self.screen()
                    );
                }
            }
        }
    }

    fn see(&mut self, piece: &[u8]) {
        self.raw.extend_from_slice(piece);
        self.terminal.process(piece);
    }

    pub fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Types a line where lines are typed, and sends it.
    pub fn asks(&mut self, text: &str) {
        self.wait_for("\n› ");
        self.types(text);
        self.wait_for(&format!("\n› {text}"));
        self.types("\r");
    }

    pub fn pastes(&mut self, text: &str) {
        self.types(&format!("\x1b[200~{}\x1b[201~", text.replace('\n', "\r")));
    }

    pub fn resizes(&mut self, width: u16, height: u16) {
        // What was drawn for the old size is seen in the old size.
        while let Ok(piece) = self.pieces.try_recv() {
            self.see(&piece);
        }
        self.terminal
            .screen_mut()
            .set_size(size(height), size(width));
        let window = Winsize {
            ws_row: height,
            ws_col: width,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.keyboard, window).unwrap();
    }

    /// Where the terminal's settings can be looked at.
    pub fn terminal_end(&self) -> &File {
        &self.keyboard
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let leader = rustix::termios::tcgetpgrp(&self.keyboard)
            .unwrap()
            .as_raw_nonzero()
            .to_string();
        let status = std::process::Command::new("kill")
            .args([&format!("-{name}"), &leader])
            .status();
        assert!(status.unwrap().success());
    }

    /// The exit status and the last screen.
    pub fn end(self) -> (i32, String) {
        let (status, screen, _) = self.end_with_terminal();
        (status, screen)
    }

    /// The same, with the terminal as it was left.
    pub fn end_with_terminal(mut self) -> (i32, String, vt100::Parser) {
        loop {
            match self.pieces.recv_timeout(PATIENCE) {
                Ok(piece) => self.see(&piece),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
                Err(_) => panic!("the chat does not end:\n{}", self.screen()),
            }
        }
        let screen = self.screen();
        (self.child.end().unwrap().exit.code(), screen, self.terminal)
    }
}

/// Ids, times and the folder are told as letters.
pub fn steady(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if line.starts_with("selvedge 0") {
            out.push_str("selvedge\n");
            continue;
        }
        let words: Vec<String> = line.split(' ').map(steady_word).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut line = String::new();
        for (at, word) in words.iter().enumerate() {
            // A number before a unit of time.
            let unit = words
                .get(at + 1)
                .map(|unit| unit.trim_end_matches(','))
                .unwrap_or_default();
            let number = !word.is_empty() && word.chars().all(|c| c.is_ascii_digit() || c == '.');
            if at > 0 {
                line.push(' ');
            }
            line.push_str(if number && matches!(unit, "ms" | "s") {
                "N"
            } else {
                word
            });
        }
        // What an answer took that did not end is an estimate.
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

fn steady_word(word: &str) -> String {
    for kind in ["ses_", "scr_", "trn_", "apr_"] {
        if let Some(at) = word.find(kind) {
            let rest = word[at + 4..].trim_start_matches(|c: char| c.is_ascii_alphanumeric());
            return format!("{}{kind}ID{rest}", &word[..at]);
        }
    }
    word.to_owned()
}
