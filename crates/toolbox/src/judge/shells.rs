//! How a shell is called, and where it finds the commands it runs.

use super::words::{Sort, Word};

/// Shells whose scripts the grammar understands.
const UNDERSTOOD: &[&str] = &["bash", "sh", "zsh", "dash"];

/// Others that run a script given with `-c`, close enough to be searched for what is dangerous.
const OTHERS: &[&str] = &[
    "ash", "rbash", "ksh", "ksh93", "mksh", "fish", "csh", "tcsh",
];

/// Options that take the next word along.
const VALUED: &[&str] = &["--rcfile", "--init-file"];

/// Options that change nothing about what a script means.
const PLAIN_LETTERS: &str = "celou";
const PLAIN_SETTINGS: &[&str] = &["pipefail", "errexit", "nounset"];

/// A shell, and what it was told to run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ShellCall<'a> {
    /// `bash -c SCRIPT`. `plain` if nothing else about the call matters; `more` words become its `$0`, `$1` ….
    Script {
        script: &'a Word,
        plain: bool,
        more: bool,
    },
    /// A script in a file.
    File(&'a Word),
    /// Whatever it reads.
    Input,
}

/// Reads a call of a shell; `None` if it is none.
pub(super) fn shell_call(words: &[Word]) -> Option<ShellCall<'_>> {
    let (program, arguments) = words.split_first()?;
    let understood = program
        .trusted_name()
        .is_some_and(|name| UNDERSTOOD.contains(&name));
    let name = program.name();
    if !UNDERSTOOD.contains(&name.as_str()) && !OTHERS.contains(&name.as_str()) {
        return None;
    }
    let (mut inline, mut input, mut plain) = (false, false, understood);
    let mut rest = arguments.iter();
    let mut operand = None;
    while let Some(word) = rest.next() {
        let text = word.text.as_str();
        if text == "--" || text == "-" {
            operand = rest.next();
            break;
        } else if !text.starts_with(['-', '+']) {
            operand = Some(word);
            break;
        } else if text.starts_with("--") {
            plain &= text == "--login";
            inline |= text == "--command";
            if VALUED.contains(&text) {
                rest.next();
            }
        } else {
            plain &= text.starts_with('-');
            for letter in text[1..].chars() {
                inline |= letter == 'c';
                input |= letter == 's';
                plain &= PLAIN_LETTERS.contains(letter);
                // `-eo pipefail`
                if matches!(letter, 'o' | 'O') {
                    plain &= rest
                        .next()
                        .is_some_and(|setting| PLAIN_SETTINGS.contains(&setting.text.as_str()));
                }
            }
        }
    }
    Some(match operand {
        Some(script) if inline => ShellCall::Script {
            script,
            plain: plain && script.sort == Sort::Plain,
            more: rest.next().is_some(),
        },
        Some(file) if !input && !is_input(&file.text) => ShellCall::File(file),
        _ => ShellCall::Input,
    })
}

/// Names of what a program reads anyway.
pub(super) fn is_input(path: &str) -> bool {
    ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"].contains(&path)
}
