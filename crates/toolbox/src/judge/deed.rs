//! What a command does, however it is said: through a shell or without one, by a program's name or its path.

use std::path::PathBuf;

use super::shells::{ShellCall, shell_call};
use super::words::{Sort, Word};
use super::wrappers::{Inside, inside};
use super::{MAX_BYTES, Search, read_only};
use crate::patch::after_cd;

/// What a command does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deed {
    /// Where it goes first, from where it is run.
    pub folder: PathBuf,
    /// The one command that is run, as plain words; or the script, behind an empty word.
    pub words: Vec<String>,
}

/// What these words do.
pub fn deed_of(argv: &[String]) -> Deed {
    let words: Vec<Word> = argv.iter().map(Word::plain).collect();
    let plainly = |words: &[Word]| Deed {
        folder: PathBuf::new(),
        words: named(words),
    };
    if argv.iter().map(String::len).sum::<usize>() > MAX_BYTES {
        return plainly(&words);
    }
    let inner = &peeled(words)[..];
    let script = match shell_call(inner) {
        Some(ShellCall::Script {
            script,
            plain: true,
            more: false,
        }) => script.text.as_str(),
        // `bash ./pay 5`
        Some(ShellCall::File(file)) => {
            let at = inner
                .iter()
                .position(|word| std::ptr::eq(word, file))
                .unwrap_or(0);
            // `bash -n` runs nothing.
            if !inner[1..at].iter().all(|option| {
                option
                    .text
                    .trim_start_matches('-')
                    .chars()
                    .all(|c| "elux".contains(c))
            }) {
                return plainly(inner);
            }
            let mut words: Vec<String> = inner[at..].iter().map(|word| word.text.clone()).collect();
            if !words[0].contains('/') {
                words[0].insert_str(0, "./");
            }
            return Deed {
                folder: PathBuf::new(),
                words,
            };
        }
        _ => return plainly(inner),
    };
    let (folder, script) = after_cd(script)
        .filter(is_said_plainly)
        .unwrap_or((None, script));
    let script = script.trim_matches([' ', '\t', '\n']);
    let mut search = Search::default();
    let mut taken = search
        .take_apart(&["sh", "-c", script].map(Word::plain), 0)
        .unwrap_or_default();
    while taken.last().is_some_and(|command| is_true(command)) {
        taken.pop();
    }
    taken.retain(|command| !sets_how_it_fails(command));
    let words = match &taken[..] {
        [command]
            if !search.gave_up && all_is_in_the_words(script) && command.iter().all(is_plain) =>
        {
            named(&peeled(command.clone()))
        }
        _ => vec![String::new(), script.to_owned()],
    };
    Deed {
        folder: folder.unwrap_or_default(),
        words,
    }
}

/// Programs that run the command after them and do nothing else to the world.
const AROUND: [&str; 8] = [
    "command", "exec", "ionice", "nice", "nohup", "stdbuf", "time", "timeout",
];
/// Unless they are asked about themselves, or about it.
const ASKED: [&str; 4] = ["-v", "-V", "--version", "--help"];

/// The command inside of others that only run it.
fn peeled(mut words: Vec<Word>) -> Vec<Word> {
    loop {
        if let Some(rest) = read_only::see_through(&words) {
            words = rest.to_vec();
            continue;
        }
        let around = words
            .first()
            .and_then(Word::trusted_name)
            .is_some_and(|name| AROUND.contains(&name));
        let asked = words
            .get(1)
            .is_some_and(|word| ASKED.contains(&word.text.as_str()));
        match inside(&words).pop().filter(|_| !asked) {
            Some(Inside::Command(inner))
                if around && !inner.is_empty() && inner.len() < words.len() =>
            {
                words = inner
            }
            _ => return words,
        }
    }
}

/// Whether a folder is the one that its name says.
fn is_said_plainly((folder, _): &(Option<PathBuf>, &str)) -> bool {
    let plain = |folder: &PathBuf| {
        !folder
            .to_string_lossy()
            .contains(['$', '~', '*', '?', '[', '{', '`', '<', '>', '('])
    };
    folder.as_ref().is_none_or(plain)
}

/// Whether the words of its command tell all that a script does: not what it reads and writes, not whether its end is
/// turned round, not whose home a path begins at.
fn all_is_in_the_words(script: &str) -> bool {
    const WHERE_IT_IS_TOLD: [&str; 4] = ["2>&1", "&>/dev/null", "2>/dev/null", ">/dev/null"];
    let script = script.replace("> /dev/null", ">/dev/null");
    let script = WHERE_IT_IS_TOLD
        .iter()
        .fold(script, |script, part| script.replace(part, ""));
    !script.contains(['<', '>', '!', '~'])
}

/// `./pay || true`
fn is_true(command: &[Word]) -> bool {
    command.len() == 1 && matches!(command[0].trusted_name(), Some("true" | ":"))
}

/// `set -euo pipefail`
fn sets_how_it_fails(command: &[Word]) -> bool {
    const SETTINGS: [&str; 7] = ["-e", "-u", "-x", "-eu", "-euo", "-o", "pipefail"];
    command.first().and_then(Word::trusted_name) == Some("set")
        && command
            .iter()
            .skip(1)
            .all(|word| SETTINGS.contains(&word.text.as_str()))
}

fn is_plain(word: &Word) -> bool {
    word.sort == Sort::Plain
}

fn named(words: &[Word]) -> Vec<String> {
    let mut named: Vec<String> = words.iter().map(|word| word.text.clone()).collect();
    if let (Some(first), Some(name)) = (
        named.first_mut(),
        words.first().and_then(Word::trusted_name),
    ) {
        *first = name.to_owned();
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its words, behind the folder it goes to.
    fn deed(argv: &[&str]) -> Vec<String> {
        let Deed { folder, words } = deed_of(
            &argv
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>(),
        );
        let folder = folder
            .to_str()
            .filter(|folder| !folder.is_empty())
            .map(str::to_owned);
        folder.into_iter().chain(words).collect()
    }

    #[test]
    fn one_command_is_the_same_by_every_road() {
        for argv in [
            &["bash", "-c", "./pay.sh  5 'to me'"][..],
            &["sh", "-c", "./pay.sh 5 \"to me\"\n"],
            &["/bin/bash", "-lc", "./pay.sh 5 to\\ me"],
            &["/usr/bin/env", "./pay.sh", "5", "to me"],
            &["timeout", "5", "./pay.sh", "5", "to me"],
            &["bash", "-c", "bash -c './pay.sh 5 \"to me\"'"],
            &["nohup", "nice", "-n", "10", "./pay.sh", "5", "to me"],
            &[
                "timeout",
                "-k",
                "1",
                "--signal=KILL",
                "5",
                "./pay.sh",
                "5",
                "to me",
            ],
            &["bash", "-c", "exec ./pay.sh 5 'to me'"],
            &["bash", "-ec", "./pay.sh 5 'to me' 2>&1"],
            &["bash", "-c", "./pay.sh 5 'to me' >/dev/null 2>&1 || true"],
            &[
                "bash",
                "-c",
                "./pay.sh 5 'to me' 2> /dev/null > /dev/null; true",
            ],
            &["bash", "-c", "./pay.sh 5 'to me' # again"],
            &["bash", "-c", "set -euo pipefail; ./pay.sh 5 'to me'"],
            &["sh", "-x", "./pay.sh", "5", "to me"],
        ] {
            assert_eq!(deed(argv), ["./pay.sh", "5", "to me"], "{argv:?}");
        }
        assert_eq!(deed(&["/usr/bin/make", "all"]), deed(&["make", "all"]));
        assert_eq!(deed(&["bash", "pay", "5"]), ["./pay", "5"]);
        assert_eq!(
            deed(&["bash", "-c", "cd below/it && ./pay 5"]),
            ["below/it", "./pay", "5"]
        );
        assert_eq!(
            deed(&["bash", "-c", "cd below; a=1; ./pay 5"]),
            ["below", "", "a=1; ./pay 5"]
        );
    }

    #[test]
    fn a_script_is_the_same_in_every_shell() {
        let script = "a=1; ./pay $a > log";
        for shell in [
            &["bash", "-c"][..],
            &["/bin/sh", "-c"],
            &["bash", "-lc"],
            &["env", "dash", "-c"],
        ] {
            assert_eq!(
                deed(&[shell, &[script]].concat()),
                ["", script],
                "{shell:?}"
            );
        }
    }

    #[test]
    fn what_does_something_else_is_something_else() {
        let said = [
            "./pay 5",
            "./pay 6",
            "./pay 5 > log",
            "./pay 5 >> log",
            "./pay 5 < list",
            "./pay 5 < other",
            "./pay 5 | tee log",
            "./pay 5; ./pay 5",
            "./pay 5 & ./pay 5",
            "A=1 ./pay 5",
            "cd below; ./pay 5",
            "if ./test; then ./pay 5; fi",
            "./pay $(date)",
            "./pay *",
            "./pay '*'",
            "./pay 5 <<< x",
            "(cd x && ./pay 5)",
            "for i in 1 2; do ./pay 5; done",
            "./pay 5 &",
            "{ ./pay 5; }",
            "! ./pay 5",
            "./pay ~/a",
            "./pay '~/a'",
            "./pay {a,b}",
            "./pay '{a,b}'",
            "./pay 5 &> log",
            "./pay 5 > log\r",
            "cd $there && ./pay 5",
            "cd below || ./pay 5",
            "env A=2 ./pay 5",
            "sudo ./pay 5",
            "xargs ./pay 5",
            "timeout 5",
            "true || ./pay 5",
            "set -n; ./pay 5",
            "command -v ./pay 5",
            "timeout --version ./pay 5",
            "nohup",
        ];
        for (at, one) in said.iter().enumerate() {
            for other in &said[at + 1..] {
                assert_ne!(
                    deed(&["bash", "-c", one]),
                    deed(&["bash", "-c", other]),
                    "{one} and {other}"
                );
            }
        }
        assert_ne!(
            deed(&["bash", "-c", "./pay $1", "", "5"]),
            deed(&["bash", "-c", "./pay $1", "", "6"])
        );
        assert_ne!(deed(&["/tmp/make"]), deed(&["make"]));
        assert_ne!(
            deed(&["mkdir", "~/out"]),
            deed(&["bash", "-c", "mkdir ~/out"])
        );
        assert_ne!(
            deed(&["mkdir", "{a,b}"]),
            deed(&["bash", "-c", "mkdir {a,b}"])
        );
        assert_ne!(
            deed(&["./pay", "$HOME"]),
            deed(&["bash", "-c", "./pay $HOME"])
        );
        assert_ne!(deed(&["bash", "pay", "5"]), deed(&["bash", "pay", "6"]));
        assert_ne!(
            deed(&["bash", "-n", "pay", "5"]),
            deed(&["bash", "pay", "5"])
        );
    }
}
