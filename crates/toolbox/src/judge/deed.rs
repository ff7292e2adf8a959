//! What a command does, however it is said: through a shell or without one, by a program's name or its path.

use super::shells::{ShellCall, shell_call};
use super::words::{Sort, Word};
use super::{MAX_BYTES, Search, read_only};

/// The one command that is run, as plain words; or the script, behind an empty word.
pub fn deed_of(argv: &[String]) -> Vec<String> {
    let words: Vec<Word> = argv.iter().map(Word::plain).collect();
    if argv.iter().map(String::len).sum::<usize>() > MAX_BYTES {
        return named(&words);
    }
    let mut inner = &words[..];
    while let Some(rest) = read_only::see_through(inner) {
        inner = rest;
    }
    let Some(ShellCall::Script { script, plain: true, more: false }) = shell_call(inner) else { return named(inner) };
    let mut search = Search::default();
    let taken = search.take_apart(inner, 0).unwrap_or_default();
    match &taken[..] {
        // What it reads and writes, and whether its end is turned round, the words do not tell.
        [command] if !search.gave_up && !script.text.contains(['<', '>', '!']) && command.iter().all(is_plain) => {
            named(command)
        }
        _ => vec![String::new(), script.text.trim().to_owned()],
    }
}

fn is_plain(word: &Word) -> bool {
    word.sort == Sort::Plain
}

fn named(words: &[Word]) -> Vec<String> {
    let mut named: Vec<String> = words.iter().map(|word| word.text.clone()).collect();
    if let (Some(first), Some(name)) = (named.first_mut(), words.first().and_then(Word::trusted_name)) {
        *first = name.to_owned();
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deed(argv: &[&str]) -> Vec<String> {
        deed_of(&argv.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
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
        ] {
            assert_eq!(deed(argv), ["./pay.sh", "5", "to me"], "{argv:?}");
        }
        assert_eq!(deed(&["/usr/bin/make", "all"]), deed(&["make", "all"]));
    }

    #[test]
    fn a_script_is_the_same_in_every_shell() {
        let script = "a=1; ./pay $a > log";
        for shell in [&["bash", "-c"][..], &["/bin/sh", "-c"], &["bash", "-lc"], &["env", "dash", "-c"]] {
            assert_eq!(deed(&[shell, &[script]].concat()), ["", script], "{shell:?}");
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
        ];
        for (at, one) in said.iter().enumerate() {
            for other in &said[at + 1..] {
                assert_ne!(deed(&["bash", "-c", one]), deed(&["bash", "-c", other]), "{one} and {other}");
            }
        }
        assert_ne!(deed(&["bash", "-c", "./pay $1", "", "5"]), deed(&["bash", "-c", "./pay $1", "", "6"]));
        assert_ne!(deed(&["/tmp/make"]), deed(&["make"]));
    }
}
