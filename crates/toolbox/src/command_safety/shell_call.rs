//! Recognises calls of shells, and where the shell gets its script from.

use super::words::{ShellWord, WordKind};

/// Shells whose scripts the grammar can parse.
const PARSED_SHELLS: &[&str] = &["bash", "sh", "zsh", "dash"];

/// Other shells. Their scripts are similar enough to be searched for dangerous commands.
const OTHER_SHELLS: &[&str] = &[
    "ash", "rbash", "ksh", "ksh93", "mksh", "fish", "csh", "tcsh",
];

/// Options that take the next word as their value.
const OPTIONS_WITH_VALUE: &[&str] = &["--rcfile", "--init-file"];

/// Letters of short options that do not change what a script does.
const HARMLESS_LETTERS: &str = "celou";
/// Values of `-o` that do not change which commands a script runs.
const HARMLESS_SETTINGS: &[&str] = &["pipefail", "errexit", "nounset"];

/// The source of the script that a shell runs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ShellInvocation<'a> {
    /// `bash -c SCRIPT`.
    Script {
        script: &'a ShellWord,
        /// Whether the shell and its options are known not to change the meaning of the script.
        is_plain: bool,
        /// Whether words follow the script, which become `$0`, `$1` ….
        has_arguments: bool,
    },
    /// A script file.
    File(&'a ShellWord),
    /// The standard input.
    Stdin,
}

/// Parses a call of a shell. `None` if the program is not a shell.
pub(super) fn shell_call(words: &[ShellWord]) -> Option<ShellInvocation<'_>> {
    let (program, arguments) = words.split_first()?;
    let understood = program
        .trusted_name()
        .is_some_and(|name| PARSED_SHELLS.contains(&name));
    let name = program.name();
    if !PARSED_SHELLS.contains(&name.as_str()) && !OTHER_SHELLS.contains(&name.as_str()) {
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
            if OPTIONS_WITH_VALUE.contains(&text) {
                rest.next();
            }
        } else {
            plain &= text.starts_with('-');
            for letter in text[1..].chars() {
                inline |= letter == 'c';
                input |= letter == 's';
                plain &= HARMLESS_LETTERS.contains(letter);
                // `-eo pipefail`
                if matches!(letter, 'o' | 'O') {
                    plain &= rest
                        .next()
                        .is_some_and(|setting| HARMLESS_SETTINGS.contains(&setting.text.as_str()));
                }
            }
        }
    }
    Some(match operand {
        Some(script) if inline => ShellInvocation::Script {
            script,
            is_plain: plain && script.kind == WordKind::Literal,
            has_arguments: rest.next().is_some(),
        },
        Some(file) if !input && !is_stdin_path(&file.text) => ShellInvocation::File(file),
        _ => ShellInvocation::Stdin,
    })
}

/// Returns whether a path means the standard input.
pub(super) fn is_stdin_path(path: &str) -> bool {
    ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"].contains(&path)
}
