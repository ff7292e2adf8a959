//! Compares the parser with real shells: random scripts are split into commands and run by shells
//! whose programs only record how they were called.
#![cfg(unix)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use selvedge_toolbox::classify_command;

/// A program that records its name and its arguments in a new file, each followed by NUL.
const PROGRAM: &str = "#!/bin/sh\nprintf '%s\\0' \"${0##*/}\" \"$@\" > \"$RECORDS/$$\"\n";

const PROGRAMS: [&str; 4] = ["cat", "evil", "ls", "wc"];

/// The pieces of the scripts, separated by `·`. Simple pieces occur several times, so that enough
/// scripts can be parsed.
const PIECES: &str = concat!(
    "ls·cat·wc·evil·a·b·-l·x.y·ls · evil · · · · ·  ·\t·\n·\n·;·;·&&·&&·|·|·&·|&·;;·(·)·{·}·'·'·",
    "\"·\"·'a b'·",
    "\"a b\"·''·\"\"·\\·\\\n·\\ ·\\a·\\\\·#· #·$·$x·${x}·$(ls)·`ls`·$'a'·$\"a\"·=·a=b·!·2>&1·",
    "2>&1 ·",
    ">/dev/null ·2>/dev/null·&>/dev/null ·1>&2·>&2·22>&1·<f ·<·>·<<·<<<·<(ls)·\r·\u{b}·\u{a0}·é·,·",
    "{a,b}·{}·",
    "@{u}·1·2·[·]·[[·]]·if·then·fi·do·time·%·^·+·@·:·-·--",
);

#[test]
fn shells_run_exactly_the_commands_that_the_parser_found() {
    let shells: Vec<&str> = ["/bin/bash", "/bin/dash"]
        .into_iter()
        .filter(|path| Path::new(path).exists())
        .collect();
    if shells.is_empty() {
        return eprintln!("skipped: no shell is installed");
    }
    let dir = tempfile::tempdir().unwrap();
    for name in PROGRAMS {
        let path = dir.path().join("bin").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, PROGRAM).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    std::fs::write(dir.path().join("f"), "").unwrap();
    let mut random = CommandRandom(0x9e37_79b9_7f4a_7c15);
    let (mut compared, mut ran) = (0, 0);
    while compared < 150 {
        let script = random.script();
        let argv = ["bash", "-c", &script].map(str::to_owned);
        let commands = classify_command(&argv).commands;
        // Other programs would record nothing, and may do harm.
        if commands.is_empty()
            || !commands
                .iter()
                .all(|words| PROGRAMS.contains(&words[0].as_str()))
        {
            continue;
        }
        compared += 1;
        for shell in &shells {
            for words in run(shell, &script, dir.path()) {
                ran += 1;
                assert!(
                    commands.contains(&words),
                    "{shell} ran {words:?} of {script:?}, parsed as {commands:?}"
                );
            }
        }
    }
    assert!(ran > compared, "{ran} programs ran in {compared} scripts");
}

fn run(shell: &str, script: &str, dir: &Path) -> Vec<Vec<String>> {
    let records = tempfile::tempdir_in(dir).unwrap();
    let mut command = Command::new(shell);
    // `-f` disables globs: the parser does not expand them.
    command
        .args(["-f", "-c", script])
        .current_dir(dir)
        .env_clear()
        .stdin(Stdio::null());
    command
        .env("PATH", dir.join("bin"))
        .env("RECORDS", records.path())
        .output()
        .unwrap();
    let recorded = std::fs::read_dir(records.path())
        .unwrap()
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    recorded
        .map(|words| words.split_terminator('\0').map(str::to_owned).collect())
        .collect()
}

/// A generator with a fixed seed, so that every run tests the same scripts.
struct CommandRandom(u64);

impl CommandRandom {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    fn script(&mut self) -> String {
        let pieces: Vec<&str> = PIECES.split('·').collect();
        let mut script = ["ls", "cat ", "ls a", "'ls'"][self.below(4)].to_owned();
        for _ in 0..=self.below(10) {
            script.push_str(pieces[self.below(pieces.len())]);
        }
        script
    }
}
