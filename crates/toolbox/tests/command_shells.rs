//! What was read is what runs: scripts made at random, taken apart, and given to real shells whose programs only note
//! how they were called.
#![cfg(unix)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use selvedge_toolbox::judge_command;

/// Notes its name and its words, each ended by NUL, in a file of its own.
const PROGRAM: &str = "#!/bin/sh\nprintf '%s\\0' \"${0##*/}\" \"$@\" > \"$NOTES/$$\"\n";

const PROGRAMS: [&str; 4] = ["cat", "evil", "ls", "wc"];

/// What scripts are made of, parted by `·`. Plain pieces are there more often, so that enough of them can be taken apart.
const PIECES: &str = concat!(
    "ls·cat·wc·evil·a·b·-l·x.y·ls · evil · · · · ·  ·\t·\n·\n·;·;·&&·&&·|·|·&·|&·;;·(·)·{·}·'·'·\"·\"·'a b'·",
    "\"a b\"·''·\"\"·\\·\\\n·\\ ·\\a·\\\\·#· #·$·$x·${x}·$(ls)·`ls`·$'a'·$\"a\"·=·a=b·!·2>&1·2>&1 ·",
    ">/dev/null ·2>/dev/null·&>/dev/null ·1>&2·>&2·22>&1·<f ·<·>·<<·<<<·<(ls)·\r·\u{b}·\u{a0}·é·,·{a,b}·{}·",
    "@{u}·1·2·[·]·[[·]]·if·then·fi·do·time·%·^·+·@·:·-·--",
);

#[test]
fn shells_run_the_words_that_were_read_and_no_others() {
    let shells: Vec<&str> = ["/bin/bash", "/bin/dash"]
        .into_iter()
        .filter(|path| Path::new(path).exists())
        .collect();
    if shells.is_empty() {
        return eprintln!("no shell here: nothing to compare with");
    }
    let dir = tempfile::tempdir().unwrap();
    for name in PROGRAMS {
        let path = dir.path().join("bin").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, PROGRAM).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    std::fs::write(dir.path().join("f"), "").unwrap();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut compared, mut ran) = (0, 0);
    while compared < 150 {
        let script = random.script();
        let argv = ["bash", "-c", &script].map(str::to_owned);
        let commands = judge_command(&argv).commands;
        // With other programs it would say nothing, and who knows what they do.
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
                    "{shell} ran {words:?} of {script:?}, read as {commands:?}"
                );
            }
        }
    }
    assert!(ran > compared, "{ran} programs ran in {compared} scripts");
}

fn run(shell: &str, script: &str, dir: &Path) -> Vec<Vec<String>> {
    let notes = tempfile::tempdir_in(dir).unwrap();
    let mut command = Command::new(shell);
    // No patterns: what they stand for is not what was read.
    command
        .args(["-f", "-c", script])
        .current_dir(dir)
        .env_clear()
        .stdin(Stdio::null());
    command
        .env("PATH", dir.join("bin"))
        .env("NOTES", notes.path())
        .output()
        .unwrap();
    let noted = std::fs::read_dir(notes.path())
        .unwrap()
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    noted
        .map(|words| words.split_terminator('\0').map(str::to_owned).collect())
        .collect()
}

/// The same scripts every time.
struct Random(u64);

impl Random {
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
