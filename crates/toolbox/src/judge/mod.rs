//! Classifies a command by its words before it runs: read-only, dangerous, or unknown. Also decides
//! which rule a person can add for it. Does not enforce anything: that is the confinement's task.

mod braces;
mod cut;
mod dangerous;
mod flags;
mod git;
mod grammar;
mod origins;
mod read_only;
mod rules;
mod shell;
mod shells;
mod shown;
mod unquote;
mod words;
mod wrappers;

pub use rules::{covered_by, prefix_of};
pub use shown::shown;

use std::collections::HashMap;
use std::rc::Rc;

use self::shell::Script;
use self::shells::{ShellCall, shell_call};
use self::words::{HOLE, Input, Simple, Word};
use self::wrappers::{Inside, inside};

/// The longest command that is classified, in bytes.
const MAX_BYTES: usize = 100 * 1024;

/// The deepest nesting of shells in shells.
const MAX_SHELLS: usize = 8;

/// The deepest nesting of wrappers, such as `env nice timeout 5 …`.
const MAX_WRAPPERS: usize = 32;

/// The most simple commands that are checked. A script that is used twice counts twice.
const MAX_COMMANDS: usize = 60_000;

/// The most scripts that are parsed for one command.
const MAX_SCRIPTS: usize = 256;
/// The most bytes of those scripts. Nested scripts count again.
const MAX_READ: usize = 3 * MAX_BYTES;

const TOO_DEEP: &str = "is nested too deeply";

/// The classification of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandView {
    /// The simple commands in order, as literal words. Empty if the command could not be parsed
    /// into simple commands.
    pub commands: Vec<Vec<String>>,
    /// How safe the command is.
    pub safety: Safety,
}

/// How safe a command is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Safety {
    /// The command is known to be read-only. It needs no approval under any policy.
    ReadOnly,
    /// The approval policy decides whether a person is asked.
    Unknown {
        /// Why the command is not known to be read-only, as a verb phrase such as "uses a
        /// variable".
        why: String,
    },
    /// A person is asked under every policy.
    Dangerous {
        /// What the command does, as a verb phrase such as "deletes files".
        why: String,
        /// The dangerous simple command in one line.
        command: String,
    },
}

/// Classifies a command.
pub fn judge_command(argv: &[String]) -> CommandView {
    let classified = Judged::new(argv);
    let texts = |words: Vec<Word>| words.into_iter().map(|word| word.text).collect();
    CommandView {
        commands: classified.commands.into_iter().map(texts).collect(),
        safety: classified.safety,
    }
}

/// A [`CommandView`] whose words are still marked as literal, pattern or dynamic.
struct Judged {
    commands: Vec<Vec<Word>>,
    safety: Safety,
}

impl Judged {
    fn new(argv: &[String]) -> Self {
        if argv.iter().map(String::len).sum::<usize>() > MAX_BYTES {
            let why = "is too long to classify".to_owned();
            return Self {
                commands: vec![],
                safety: Safety::Unknown { why },
            };
        }
        let words: Vec<Word> = argv.iter().map(Word::plain).collect();
        let mut search = Search::default();
        let danger = search.command(&Simple::new(words.clone()), 0, 0);
        // If a limit was exceeded, no rule must be derived from the part that was checked.
        let simple = search.take_apart(&words, 0);
        let simple = if search.gave_up {
            Err(TOO_DEEP)
        } else {
            simple
        };
        let safety = match (danger, &simple) {
            (Some(danger), _) => Safety::Dangerous {
                why: danger.why.to_owned(),
                command: danger.command,
            },
            (None, Err(why)) => Safety::Unknown {
                why: (*why).to_owned(),
            },
            (None, Ok(commands)) => match why_not_read_only(commands) {
                Some(why) => Safety::Unknown { why },
                None => Safety::ReadOnly,
            },
        };
        Self {
            commands: simple.unwrap_or_default(),
            safety,
        }
    }

    fn is_dangerous(&self) -> bool {
        matches!(self.safety, Safety::Dangerous { .. })
    }
}

/// Returns why these simple commands are not known to be read-only. `None` if they are.
fn why_not_read_only(commands: &[Vec<Word>]) -> Option<String> {
    let runs = |words: &Vec<Word>, program: &str| {
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
    commands.iter().find_map(|words| read_only::why_not(words))
}

/// The dangerous part of a command.
struct Danger {
    why: &'static str,
    /// The simple command or the script that is dangerous, in one line.
    command: String,
}

impl Danger {
    fn of(why: &'static str, words: &[Word]) -> Self {
        let words: Vec<String> = words
            .iter()
            .map(|word| word.text.replace(HOLE, "…"))
            .collect();
        Self {
            why,
            command: shown::in_one_line(&words.join(" ")),
        }
    }

    fn of_script(why: &'static str, script: &str) -> Self {
        Self {
            why,
            command: shown::in_one_line(script),
        }
    }
}

/// Programs other than shells that run their standard input as a script if they get no command.
const RUN_INPUT: &[&str] = &["ssh", "at", "batch"];

/// Searches a command and the scripts in it for danger, within limits.
#[derive(Default)]
struct Search {
    /// The scripts that have been parsed, by their text.
    scripts: HashMap<String, Rc<Script>>,
    /// Bytes of the scripts that have been parsed.
    bytes: usize,
    /// Simple commands that have been checked.
    looked_at: usize,
    /// Whether a limit was exceeded, so that part of the command was not checked.
    gave_up: bool,
}

impl Search {
    /// Returns the simple commands of a command, including those of nested shells, or why the
    /// command cannot be split into simple commands.
    fn take_apart(
        &mut self,
        words: &[Word],
        shells: usize,
    ) -> Result<Vec<Vec<Word>>, &'static str> {
        if let Some(ShellCall::Script {
            script,
            plain: true,
            ..
        }) = shell_call(words)
        {
            let script = self.read(&script.text, shells + 1).ok_or(TOO_DEEP)?;
            if let Some(why) = script.beyond {
                return Err(why);
            }
            let nested = script
                .commands
                .iter()
                .map(|simple| self.take_apart(&simple.words, shells + 1));
            return Ok(nested.collect::<Result<Vec<_>, _>>()?.concat());
        }
        match read_only::see_through(words) {
            Some(rest) if shells < MAX_SHELLS => self.take_apart(rest, shells + 1),
            _ => Ok(vec![words.to_vec()]),
        }
    }

    /// Returns why a command, or a command that it runs, is dangerous.
    fn command(&mut self, simple: &Simple, shells: usize, wrappers: usize) -> Option<Danger> {
        self.looked_at += 1;
        if wrappers > MAX_WRAPPERS || self.looked_at > MAX_COMMANDS {
            self.gave_up = true;
            return None;
        }
        let mut nested = inside(&simple.words);
        let script = match shell_call(&simple.words) {
            Some(ShellCall::Script { script, .. }) => Some(script.text.as_str()),
            Some(ShellCall::Input) => simple.input.text.as_deref(),
            None if nested.is_empty() && RUN_INPUT.contains(&simple.program()) => {
                simple.input.text.as_deref()
            }
            _ => None,
        };
        nested.extend(script.map(|script| Inside::Script(script.to_owned())));
        // The inner command has the better reason: for `sudo rm -rf x` it is the deletion.
        let inner = nested.into_iter().find_map(|nested| match nested {
            Inside::Command(words) => self.command(
                &Simple {
                    words,
                    input: simple.input.clone(),
                },
                shells,
                wrappers + 1,
            ),
            Inside::Script(script) => self.script(&script, &simple.input, shells + 1),
        });
        inner.or_else(|| dangerous::danger(simple).map(|why| Danger::of(why, &simple.words)))
    }

    /// Returns why a script is dangerous. `input` is the standard input of its commands.
    fn script(&mut self, text: &str, input: &Input, shells: usize) -> Option<Danger> {
        let script = self.read(text, shells)?;
        if script.fork_bomb {
            return Some(Danger::of_script("is a fork bomb", text));
        }
        let commands = script.commands.iter().find_map(|simple| {
            // `curl … | sh -c 'cd x; sh'`
            let origin = simple.input.origin.or(input.origin);
            let input = Input {
                origin,
                text: simple.input.text.clone(),
            };
            self.command(
                &Simple {
                    words: simple.words.clone(),
                    input,
                },
                shells,
                0,
            )
        });
        let files = || {
            let danger = |file| {
                Some(Danger::of(
                    dangerous::danger_of_file(file)?,
                    std::slice::from_ref(file),
                ))
            };
            script.files.iter().find_map(danger)
        };
        let downloads = || {
            let runs = origins::runs_downloaded_file(&script);
            runs.then(|| Danger::of_script("runs downloaded code", text))
        };
        commands.or_else(files).or_else(downloads)
    }

    /// Parses a script, or returns the cached result. `None` if a limit is exceeded.
    fn read(&mut self, text: &str, shells: usize) -> Option<Rc<Script>> {
        if let Some(script) = self.scripts.get(text).filter(|_| shells <= MAX_SHELLS) {
            return Some(script.clone());
        }
        self.bytes += text.len();
        if shells > MAX_SHELLS || self.scripts.len() == MAX_SCRIPTS || self.bytes > MAX_READ {
            self.gave_up = true;
            return None;
        }
        let script = Rc::new(Script::parse(text));
        self.scripts.insert(text.to_owned(), script.clone());
        Some(script)
    }
}
