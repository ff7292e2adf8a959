//! Finds the origin of code that a command runs. Running downloaded or decoded code is dangerous,
//! because the approver cannot see it in the command.

use std::rc::Rc;

use super::flags::{find_flag, operands};
use super::shell_call::{ShellInvocation, is_stdin_path, shell_call};
use super::shell_script::ParsedShellScript;
use super::words::{CodeOrigin, ShellWord, SimpleCommand};
use super::wrappers::{InnerCommand, inner_commands};

/// Programs that download data.
const DOWNLOADERS: &[&str] = &[
    "curl", "wget", "wget2", "fetch", "aria2c", "http", "https", "xh", "lynx", "nc", "ncat",
    "netcat", "socat", "scp",
];

/// Programs that decode text, and the options with which they do. Empty: always.
const DECODERS: &[(&str, &str)] = &[
    ("base64", "-d -D --decode"),
    ("base32", "-d -D --decode"),
    ("basenc", "-d --decode"),
    ("xxd", "-r -revert"),
    ("openssl", "-d"),
    ("uudecode", ""),
];

/// Interpreters, and the letters of the options that take code as their value.
const INTERPRETERS: &[(&str, &str)] = &[
    ("python", "cm"),
    ("pypy", "cm"),
    ("perl", "eE"),
    ("ruby", "e"),
    ("node", "ep"),
    ("nodejs", "ep"),
    ("deno", "e"),
    ("bun", "ep"),
    ("php", "rBRE"),
    ("lua", "e"),
    ("tclsh", ""),
    ("rscript", "e"),
    ("osascript", "e"),
    ("pwsh", "cC"),
];

/// Maximum number of names of downloaded files that are tracked in one script.
const MAX_DOWNLOADED_FILES: usize = 64;

/// The deepest nesting of wrappers that is followed to find the origin of an output.
const MAX_ORIGIN_WRAPPERS: usize = 4;

/// Returns the origin of a command's output. `None` if it is neither downloaded nor decoded.
pub(super) fn output_origin(words: &[ShellWord]) -> Option<CodeOrigin> {
    output_origin_within(words, MAX_ORIGIN_WRAPPERS)
}

fn output_origin_within(words: &[ShellWord], wrappers: usize) -> Option<CodeOrigin> {
    let name = words.first()?.name();
    if DOWNLOADERS.contains(&name.as_str()) {
        return Some(CodeOrigin::Downloaded);
    }
    let decodes = |(program, flags): &&(&str, &str)| {
        *program == name && (flags.is_empty() || find_flag(&words[1..], flags).is_some())
    };
    if DECODERS.iter().any(|decoder| decodes(&decoder)) {
        return Some(CodeOrigin::Decoded);
    }
    if wrappers == 0 {
        return None;
    }
    inner_commands(words)
        .iter()
        .find_map(|inside| match inside {
            InnerCommand::Command(words) => output_origin_within(words, wrappers - 1),
            InnerCommand::Script(_) => None,
        })
}

/// Returns the output of `echo`, `printf`, `cat` and the like, computed without running them.
/// `None` for other programs.
pub(super) fn output_text(words: &[ShellWord], input: Option<&Rc<str>>) -> Option<Rc<str>> {
    let (program, arguments) = words.split_first()?;
    let words = || {
        let texts = arguments.iter().map(|word| word.text.as_str());
        texts.skip_while(|word| ["-n", "-e", "-E", "-ne", "-en", "--"].contains(word))
    };
    match program.name().as_str() {
        "echo" | "print" => Some(
            words()
                .collect::<Vec<_>>()
                .join(" ")
                .replace("\\n", "\n")
                .into(),
        ),
        // The text may be in the format or in the words after it.
        "printf" => {
            let rest = words().skip(1).collect::<Vec<_>>().join(" ");
            Some(
                format!("{}\n{rest}", words().next()?)
                    .replace("\\n", "\n")
                    .into(),
            )
        }
        "cat" | "tee" => input.cloned(),
        _ => None,
    }
}

/// Returns why a command is dangerous if it runs downloaded or decoded code.
pub(super) fn downloaded_code_danger(simple: &SimpleCommand) -> Option<&'static str> {
    let (program, arguments) = simple.words.split_first()?;
    let origin = program.origin.or_else(|| match program.name().as_str() {
        "source" | "."
            if arguments
                .first()
                .is_some_and(|word| is_stdin_path(&word.text)) =>
        {
            simple.input.origin
        }
        "eval" | "source" | "." => arguments.iter().find_map(|word| word.origin),
        _ => match code_source(&simple.words)? {
            CodeSource::Word(word) => word.origin,
            CodeSource::Stdin => simple.input.origin,
        },
    });
    origin.map(|origin| match origin {
        CodeOrigin::Downloaded => "runs downloaded code",
        CodeOrigin::Decoded => "runs decoded code",
    })
}

/// Returns whether a script runs a file that it has downloaded before.
pub(super) fn runs_downloaded_file(script: &ParsedShellScript) -> bool {
    let mut files: Vec<String> = Vec::new();
    for simple in &script.commands {
        let code = match code_source(&simple.words) {
            Some(CodeSource::Word(word)) => Some(word),
            _ if ["source", "."].contains(&simple.program()) => simple.words.get(1),
            _ => simple.words.first(),
        };
        if code.is_some_and(|word| {
            files
                .iter()
                .any(|file| *file == strip_dot_slash(&word.text))
        }) {
            return true;
        }
        if output_origin(&simple.words) == Some(CodeOrigin::Downloaded) {
            // Any word may name the file: that depends on the program.
            let named = simple.words[1..]
                .iter()
                .chain(&script.redirect_targets)
                .flat_map(|word| {
                    let last = word.text.rsplit(['/', '=']).next().unwrap_or_default();
                    [strip_dot_slash(&word.text).to_owned(), last.to_owned()]
                });
            files.extend(
                named
                    .filter(|file| !file.is_empty() && !is_stdin_path(file))
                    .take(MAX_DOWNLOADED_FILES),
            );
            files.truncate(MAX_DOWNLOADED_FILES);
        }
    }
    false
}

fn strip_dot_slash(path: &str) -> &str {
    path.strip_prefix("./").unwrap_or(path)
}

/// The source of the code that a shell or an interpreter runs.
enum CodeSource<'a> {
    /// The code itself, or the file that contains it.
    Word(&'a ShellWord),
    /// The standard input.
    Stdin,
}

fn code_source(words: &[ShellWord]) -> Option<CodeSource<'_>> {
    match shell_call(words) {
        Some(ShellInvocation::Script { script: word, .. } | ShellInvocation::File(word)) => {
            return Some(CodeSource::Word(word));
        }
        Some(ShellInvocation::Stdin) => return Some(CodeSource::Stdin),
        None => {}
    }
    let (program, arguments) = words.split_first()?;
    let name = program.name();
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let (_, letters) = INTERPRETERS
        .iter()
        .find(|(interpreter, _)| *interpreter == name)?;
    let given = |word: &&ShellWord| {
        word.text.starts_with("--eval")
            || word.text.starts_with("--print")
            || word.text.strip_prefix('-').is_some_and(|rest| {
                !rest.starts_with('-') && rest.contains(|c| letters.contains(c))
            })
    };
    if let Some(at) = arguments.iter().position(|word| given(&word)) {
        return arguments.get(at + 1).map(CodeSource::Word);
    }
    match operands(arguments, "")
        .into_iter()
        .find(|word| word.text != "run")
    {
        Some(file) if !is_stdin_path(&file.text) => Some(CodeSource::Word(file)),
        _ => Some(CodeSource::Stdin),
    }
}

/// Returns whether a program is an interpreter. A rule for its name alone would allow any code.
pub(super) fn is_interpreter(name: &str) -> bool {
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    INTERPRETERS
        .iter()
        .any(|(interpreter, _)| *interpreter == name)
}
