//! Classifies a command by its words before it runs: read-only, dangerous, or unknown. Also decides
//! which rule a person can add for it. Does not enforce anything: that is the confinement's task.

mod braces;
mod dangerous;
mod display;
mod flags;
mod git;
mod grammar;
mod origins;
mod read_only;
mod rules;
mod scanner;
mod shell_call;
mod shell_script;
mod tokenize;
mod words;
mod wrappers;

pub(crate) use display::command_line;
pub use display::display_command;
pub(crate) use flags::has_option;
pub(crate) use read_only::HARMLESS_PROC;
pub(crate) use rules::consists_of_ruled_commands;
pub use rules::{is_covered_by_rules, rule_prefix};

use std::collections::HashMap;
use std::rc::Rc;

use self::shell_call::{ShellInvocation, shell_call};
use self::shell_script::ParsedShellScript;
use self::words::{CommandInput, ShellWord, SimpleCommand, UNKNOWN_TEXT};
use self::wrappers::{InnerCommand, inner_commands, is_wrapper};

/// The longest command that is classified, in bytes.
const MAX_COMMAND_BYTES: usize = 100 * 1024;

/// The deepest nesting of shells in shells.
const MAX_SHELL_DEPTH: usize = 8;

/// The deepest nesting of wrappers, such as `env nice timeout 5 …`.
const MAX_WRAPPER_DEPTH: usize = 32;

/// Maximum number of simple commands that are checked. A script that is used twice counts twice.
const MAX_SIMPLE_COMMANDS: usize = 60_000;

/// Maximum number of shell scripts that are parsed for one command.
const MAX_SHELL_SCRIPTS: usize = 256;
/// Maximum size of those scripts, in bytes. Nested scripts count again.
const MAX_SHELL_SCRIPT_BYTES: usize = 3 * MAX_COMMAND_BYTES;

/// Words that are no programs. A script in which one starts a simple command does not run.
const SHELL_KEYWORDS: &[&str] = &[
    "case", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select",
    "then", "until", "while",
];

/// Maximum number of arguments of an unknown program that are tried as the start of a command.
const MAX_ARGUMENT_STARTS: usize = 64;

const TOO_DEEP: &str = "is too large or nested too deeply to check";

/// The classification of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandClassification {
    /// The simple commands in order, as literal words. Empty if the command could not be parsed
    /// into simple commands.
    pub commands: Vec<Vec<String>>,
    /// The words of all commands without the programs, nested shells included. What only a running
    /// shell knows of a word is replaced by U+FFFC.
    pub words: Vec<String>,
    /// Files that the command reads through redirections, nested shells included. Parts of a
    /// name that depend on the running shell are replaced by U+FFFC.
    pub input_files: Vec<String>,
    /// Files that the command may write through redirections, in the same form.
    pub output_files: Vec<String>,
    /// How safe the command is.
    pub safety: CommandSafety,
}

/// How safe a command is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandSafety {
    /// The command is known to be read-only. It needs no approval under any policy.
    ReadOnly,
    /// The approval policy decides whether a person is asked.
    Unknown {
        /// Why the command is not known to be read-only, as a verb phrase such as "uses a
        /// variable".
        reason: String,
    },
    /// A person is asked under every policy.
    Dangerous {
        /// What the command does, as a verb phrase such as "deletes files".
        reason: String,
        /// The dangerous simple command in one line.
        command: String,
    },
}

/// Classifies a command.
pub fn classify_command(argv: &[String]) -> CommandClassification {
    let classified = WordClassification::new(argv);
    let texts = |words: Vec<ShellWord>| words.into_iter().map(|word| word.text).collect();
    CommandClassification {
        commands: classified.commands.into_iter().map(texts).collect(),
        words: classified.words,
        input_files: classified.input_files,
        output_files: classified.output_files,
        safety: classified.safety,
    }
}

/// A [`CommandClassification`] that keeps the [`WordKind`](words::WordKind) of each word.
struct WordClassification {
    commands: Vec<Vec<ShellWord>>,
    words: Vec<String>,
    input_files: Vec<String>,
    output_files: Vec<String>,
    safety: CommandSafety,
}

impl WordClassification {
    fn new(argv: &[String]) -> Self {
        if argv.iter().map(String::len).sum::<usize>() > MAX_COMMAND_BYTES {
            let why = "is too long to classify".to_owned();
            return Self {
                commands: vec![],
                words: vec![],
                input_files: vec![],
                output_files: vec![],
                safety: CommandSafety::Unknown { reason: why },
            };
        }
        let words: Vec<ShellWord> = argv.iter().map(ShellWord::literal).collect();
        let mut search = DangerSearch::default();
        let danger = search.command_danger(&SimpleCommand::new(words.clone()), 0, 0);
        // If a limit was exceeded, no rule must be derived from the part that was checked.
        let simple = search.simple_commands(&words, 0);
        let simple = if search.limit_exceeded {
            Err(TOO_DEEP)
        } else {
            simple
        };
        let safety = match (danger, &simple) {
            (Some(danger), _) => CommandSafety::Dangerous {
                reason: danger.reason.to_owned(),
                command: danger.command,
            },
            (None, Err(why)) => CommandSafety::Unknown {
                reason: (*why).to_owned(),
            },
            (None, Ok(commands)) => match why_not_read_only(commands) {
                Some(why) => CommandSafety::Unknown { reason: why },
                None => CommandSafety::ReadOnly,
            },
        };
        Self {
            commands: simple.unwrap_or_default(),
            words: search.all_words(&words),
            input_files: search.redirect_targets(|script| &script.input_files),
            output_files: search.redirect_targets(|script| &script.output_files),
            safety,
        }
    }

    fn is_dangerous(&self) -> bool {
        matches!(self.safety, CommandSafety::Dangerous { .. })
    }
}

/// Returns why these simple commands are not known to be read-only. `None` if they are.
fn why_not_read_only(commands: &[Vec<ShellWord>]) -> Option<String> {
    let runs = |words: &Vec<ShellWord>, program: &str| {
        words
            .first()
            .is_some_and(|word| word.trusted_name() == Some(program))
    };
    if commands.is_empty() {
        return Some("is empty".to_owned());
    }
    if commands.iter().any(|words| runs(words, "cd"))
        && commands.iter().any(|words| runs(words, "git"))
    {
        // The configuration of a repository can name programs that even `git status` runs.
        return Some("`git` may run programs configured in another repository".to_owned());
    }
    commands
        .iter()
        .find_map(|words| read_only::why_not_read_only(words))
}

/// The dangerous part of a command.
struct DangerousPart {
    reason: &'static str,
    /// The simple command or the script that is dangerous, in one line.
    command: String,
}

impl DangerousPart {
    fn in_words(why: &'static str, words: &[ShellWord]) -> Self {
        let words: Vec<String> = words
            .iter()
            .map(|word| word.text.replace(UNKNOWN_TEXT, "…"))
            .collect();
        Self {
            reason: why,
            command: display::inline_command(&words.join(" ")),
        }
    }

    fn in_script(why: &'static str, script: &str) -> Self {
        Self {
            reason: why,
            command: display::inline_command(script),
        }
    }
}

/// Programs other than shells that run their standard input as a script if they get no command.
const STDIN_RUNNERS: &[&str] = &["ssh", "at", "batch"];

/// Searches a command and the scripts in it for danger, within limits.
#[derive(Default)]
struct DangerSearch {
    /// The scripts that have been parsed, by their text.
    scripts: HashMap<String, Rc<ParsedShellScript>>,
    /// Bytes of the scripts that have been parsed.
    parsed_bytes: usize,
    /// Simple commands that have been checked.
    checked_commands: usize,
    /// Whether a limit was exceeded, so that part of the command was not checked.
    limit_exceeded: bool,
}

impl DangerSearch {
    /// Returns the simple commands of a command, including those of nested shells, or why the
    /// command cannot be split into simple commands.
    fn simple_commands(
        &mut self,
        words: &[ShellWord],
        shell_depth: usize,
    ) -> Result<Vec<Vec<ShellWord>>, &'static str> {
        if let Some(ShellInvocation::Script {
            script,
            is_plain: true,
            ..
        }) = shell_call(words)
        {
            let script = self.parse(&script.text, shell_depth + 1).ok_or(TOO_DEEP)?;
            if let Some(why) = script.not_plain_reason {
                return Err(why);
            }
            let nested = script
                .commands
                .iter()
                .map(|simple| self.simple_commands(&simple.words, shell_depth + 1));
            return Ok(nested.collect::<Result<Vec<_>, _>>()?.concat());
        }
        match read_only::strip_transparent_wrapper(words) {
            Some(rest) if shell_depth < MAX_SHELL_DEPTH => {
                self.simple_commands(rest, shell_depth + 1)
            }
            _ => Ok(vec![words.to_vec()]),
        }
    }

    /// Returns why a command, or a command that it runs, is dangerous.
    fn command_danger(
        &mut self,
        simple: &SimpleCommand,
        shell_depth: usize,
        wrapper_depth: usize,
    ) -> Option<DangerousPart> {
        self.checked_commands += 1;
        if wrapper_depth > MAX_WRAPPER_DEPTH || self.checked_commands > MAX_SIMPLE_COMMANDS {
            self.limit_exceeded = true;
            return None;
        }
        let mut nested = inner_commands(&simple.words);
        let script = match shell_call(&simple.words) {
            Some(ShellInvocation::Script { script, .. }) => Some(script.text.as_str()),
            Some(ShellInvocation::Stdin) => simple.input.text.as_deref(),
            None if nested.is_empty() && STDIN_RUNNERS.contains(&simple.program()) => {
                simple.input.text.as_deref()
            }
            _ => None,
        };
        nested.extend(script.map(|script| InnerCommand::Script(script.to_owned())));
        // The inner command has the better reason: for `sudo rm -rf x` it is the deletion.
        let inner = nested.into_iter().find_map(|nested| match nested {
            InnerCommand::Command(words) => self.command_danger(
                &SimpleCommand {
                    words,
                    input: simple.input.clone(),
                },
                shell_depth,
                wrapper_depth + 1,
            ),
            InnerCommand::Script(script) => {
                self.script_danger(&script, &simple.input, shell_depth + 1)
            }
        });
        inner
            .or_else(|| {
                dangerous::danger(simple).map(|why| DangerousPart::in_words(why, &simple.words))
            })
            .or_else(|| self.argument_danger(simple, shell_depth))
    }

    /// Returns why the arguments of an unknown program are dangerous, if it runs them as a command:
    /// `setarch x86_64 rm -rf x`, `op run -- sh -c 'rm -rf x'`.
    fn argument_danger(
        &mut self,
        simple: &SimpleCommand,
        shell_depth: usize,
    ) -> Option<DangerousPart> {
        let words = &simple.words;
        let is_known = words.first().is_none_or(|program| {
            SHELL_KEYWORDS.contains(&program.text.as_str())
                || read_only::is_listed(program)
                || shell_call(words).is_some()
                || is_wrapper(words)
        });
        if is_known {
            return None;
        }
        (1..words.len().min(MAX_ARGUMENT_STARTS)).find_map(|start| {
            let command = &words[start..];
            match shell_call(command) {
                Some(ShellInvocation::Script { script, .. }) => {
                    self.script_danger(&script.text, &simple.input, shell_depth + 1)
                }
                _ => dangerous::argument_danger(command)
                    .map(|why| DangerousPart::in_words(why, words)),
            }
        })
    }

    /// Returns why a script is dangerous. `input` is the standard input of its commands.
    fn script_danger(
        &mut self,
        text: &str,
        input: &CommandInput,
        shell_depth: usize,
    ) -> Option<DangerousPart> {
        let script = self.parse(text, shell_depth)?;
        if script.is_fork_bomb {
            return Some(DangerousPart::in_script("is a fork bomb", text));
        }
        let commands = script.commands.iter().find_map(|simple| {
            // `curl … | sh -c 'cd x; sh'`
            let origin = simple.input.origin.or(input.origin);
            let input = CommandInput {
                origin,
                text: simple.input.text.clone(),
            };
            self.command_danger(
                &SimpleCommand {
                    words: simple.words.clone(),
                    input,
                },
                shell_depth,
                0,
            )
        });
        let files = || {
            let danger = |file| {
                Some(DangerousPart::in_words(
                    dangerous::redirect_danger(file)?,
                    std::slice::from_ref(file),
                ))
            };
            script.redirect_targets.iter().find_map(danger)
        };
        let downloads = || {
            let runs = origins::runs_downloaded_file(&script);
            runs.then(|| DangerousPart::in_script("runs downloaded code", text))
        };
        commands.or_else(files).or_else(downloads)
    }

    /// Returns the words of a command and of the commands in all scripts that have been parsed,
    /// without the programs.
    fn all_words(&self, outer: &[ShellWord]) -> Vec<String> {
        let inner = self.scripts.values().flat_map(|script| &script.commands);
        let inner = inner.map(|simple| simple.words.as_slice());
        let words = inner.chain([outer]).flat_map(|words| words.iter().skip(1));
        let mut texts: Vec<String> = words.map(|word| word.text.clone()).collect();
        texts.sort();
        texts.dedup();
        texts
    }

    /// Returns targets of redirections in all scripts that have been parsed.
    fn redirect_targets(&self, targets: fn(&ParsedShellScript) -> &Vec<ShellWord>) -> Vec<String> {
        let words = self.scripts.values().flat_map(|script| targets(script));
        let mut texts: Vec<String> = words.map(|word| word.text.clone()).collect();
        texts.sort();
        texts.dedup();
        texts
    }

    /// Parses a script, or returns the cached result. `None` if a limit is exceeded.
    fn parse(&mut self, text: &str, shell_depth: usize) -> Option<Rc<ParsedShellScript>> {
        if let Some(script) = self
            .scripts
            .get(text)
            .filter(|_| shell_depth <= MAX_SHELL_DEPTH)
        {
            return Some(script.clone());
        }
        self.parsed_bytes += text.len();
        if shell_depth > MAX_SHELL_DEPTH
            || self.scripts.len() == MAX_SHELL_SCRIPTS
            || self.parsed_bytes > MAX_SHELL_SCRIPT_BYTES
        {
            self.limit_exceeded = true;
            return None;
        }
        let script = Rc::new(ParsedShellScript::parse(text));
        self.scripts.insert(text.to_owned(), script.clone());
        Some(script)
    }
}
