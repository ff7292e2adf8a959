//! Attacks by a project's configuration: starting a program, changing a setting or sending a secret
//! before the user trusts the folder, or without the question naming it.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::attempt::{Attempt, Verdict};
use crate::lab::{ATTACK_TIMEOUT, Lab, observe};

/// Text at the end of the question.
const QUESTION_END: &str = "Trust this folder from now on? [y/N] ";

/// A project's server that leaves a mark when it is started.
const MARKING_SERVER: &str =
    r#"{"mcpServers": {"mark": {"command": "sh", "args": ["-c", "touch marked"]}}}"#;

/// Answers that do not mean yes.
const NO_ANSWERS: [&str; 12] = [
    "",
    "n",
    "no",
    "yes please",
    "yy",
    "y n",
    "ye",
    "1",
    " ",
    "stop it",
    "\u{1b}[A",
    "\u{202e}y",
];

/// Commands that could start a project's servers, besides the chat.
const COMMANDS: [&[&str]; 7] = [
    &["run", "-e", "return await tools.mcp.mark.x()"],
    &["check", "script.ts"],
    &["tools"],
    &["tools", "--json"],
    &["doctor"],
    &["mcp", "list"],
    &["mcp", "serve"],
];

/// Returns the attempts of this class. Each row of `data/trust.tsv` is a file of a project, and a
/// text that the question must contain.
pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    let mut attempts = Vec::new();
    for row in include_str!("../data/trust.tsv").lines().skip(1) {
        let cells: Vec<String> = row.split('\t').map(str::to_owned).collect();
        let [name, file, content, shown] = <[String; 4]>::try_from(cells)
            .map_err(|cells| anyhow::anyhow!("a row has four cells: {cells:?}"))?;
        attempts.push(Attempt::new(format!("not named: {name}"), move |lab| {
            lab.write(&file, content.replace("\\n", "\n"))?;
            let mut terminal = TrustTerminal::start(lab, &["tools"])?;
            terminal.wait_for_question()?;
            terminal.answer("n")?;
            let output = terminal.finish()?;
            let question = output.split(QUESTION_END).next().unwrap_or_default();
            Ok(Verdict::held_if(question.contains(&shown), output))
        }));
    }
    for args in COMMANDS {
        attempts.push(Attempt::new(
            format!("untrusted: {}", args.join(" ")),
            move |lab| {
                lab.write(".mcp.json", MARKING_SERVER)?;
                lab.write("script.ts", "return await tools.mcp.mark.x()")?;
                let seen = lab.run(args)?;
                Ok(not_marked(lab, &seen.output()))
            },
        ));
    }
    for answer in NO_ANSWERS {
        attempts.push(Attempt::new(format!("answered {answer:?}"), move |lab| {
            lab.write(".mcp.json", MARKING_SERVER)?;
            let mut terminal = TrustTerminal::start(lab, &["mcp", "list"])?;
            terminal.wait_for_question()?;
            terminal.answer(answer)?;
            let output = terminal.finish()?;
            Ok(not_marked(lab, &output))
        }));
    }
    attempts.push(Attempt::new("replaced while the question is open", |lab| {
        lab.write(
            ".mcp.json",
            r#"{"mcpServers": {"shown": {"command": "true"}}}"#,
        )?;
        let mut terminal = TrustTerminal::start(lab, &["mcp", "list"])?;
        terminal.wait_for_question()?;
        lab.write(".mcp.json", MARKING_SERVER)?;
        terminal.answer("y")?;
        let output = terminal.finish()?;
        // The changed file needs a decision of its own.
        let later = lab.run(&["mcp", "list"])?;
        Ok(not_marked(lab, &format!("{output}{}", later.output())))
    }));
    attempts.push(Attempt::new("answered before the question", |lab| {
        lab.write(".mcp.json", MARKING_SERVER)?;
        let mut terminal = TrustTerminal::start_after_typing(lab, &["mcp", "list"], "y\n")?;
        terminal.wait_for_question()?;
        terminal.answer("n")?;
        let output = terminal.finish()?;
        Ok(not_marked(lab, &output))
    }));
    attempts.push(Attempt::new("changed after it was trusted", |lab| {
        lab.write(
            ".mcp.json",
            r#"{"mcpServers": {"shown": {"command": "true"}}}"#,
        )?;
        lab.run(&["tools", "--trust"])?;
        lab.write(".mcp.json", MARKING_SERVER)?;
        let seen = lab.run(&["mcp", "list"])?;
        Ok(not_marked(lab, &seen.output()))
    }));
    attempts.push(Attempt::new("a trusted file in another folder", |lab| {
        lab.write(".mcp.json", MARKING_SERVER)?;
        lab.write("sub/.mcp.json", MARKING_SERVER)?;
        let mut trusting = lab.selvedge(&["tools", "--trust"]);
        trusting.current_dir(lab.work().join("sub"));
        observe(trusting, "")?;
        let _ = std::fs::remove_file(lab.work().join("sub/marked"));
        let seen = lab.run(&["mcp", "list"])?;
        Ok(not_marked(lab, &seen.output()))
    }));
    Ok(attempts)
}

fn not_marked(lab: &Lab, output: &str) -> Verdict {
    Verdict::held_if(!lab.work().join("marked").exists(), output)
}

/// A process whose standard streams are a terminal.
struct TrustTerminal {
    master: File,
    child: Child,
    chunks: Receiver<Vec<u8>>,
    output: String,
}

impl TrustTerminal {
    fn start(lab: &Lab, args: &[&str]) -> Result<Self> {
        Self::start_after_typing(lab, args, "")
    }

    /// Starts the process in a terminal in which a text has already been typed.
    fn start_after_typing(lab: &Lab, args: &[&str], typed: &str) -> Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let tty = File::options()
            .read(true)
            .write(true)
            .open(name.to_str()?)?;
        rustix::io::write(&master, typed.as_bytes())?;
        let mut command: Command = lab.selvedge(args);
        let child = command
            .env("TERM", "dumb")
            .stdin(Stdio::from(tty.try_clone()?))
            .stdout(Stdio::from(tty.try_clone()?))
            .stderr(Stdio::from(tty))
            .spawn()?;
        // The copies of the terminal in `command` would keep it open.
        drop(command);
        let mut reader = File::from(master.try_clone()?);
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
            master: File::from(master),
            child,
            chunks,
            output: String::new(),
        })
    }

    fn wait_for_question(&mut self) -> Result<()> {
        let deadline = Instant::now() + ATTACK_TIMEOUT;
        while !self.output.contains(QUESTION_END) {
            let left = deadline.saturating_duration_since(Instant::now());
            let chunk = self.chunks.recv_timeout(left);
            let chunk = chunk.with_context(|| format!("no question came: {}", self.output))?;
            self.output.push_str(&String::from_utf8_lossy(&chunk));
        }
        Ok(())
    }

    fn answer(&mut self, text: &str) -> Result<()> {
        Ok(self.master.write_all(format!("{text}\n").as_bytes())?)
    }

    /// Waits for the end of the process, and returns its whole output.
    fn finish(mut self) -> Result<String> {
        let deadline = Instant::now() + ATTACK_TIMEOUT;
        while self.child.try_wait()?.is_none() {
            ensure!(
                Instant::now() < deadline,
                "it does not end: {}",
                self.output
            );
            if let Ok(chunk) = self.chunks.recv_timeout(Duration::from_millis(20)) {
                self.output.push_str(&String::from_utf8_lossy(&chunk));
            }
        }
        while let Ok(chunk) = self.chunks.recv_timeout(Duration::from_millis(100)) {
            self.output.push_str(&String::from_utf8_lossy(&chunk));
        }
        Ok(self.output)
    }
}
