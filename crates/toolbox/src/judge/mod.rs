//! Judging a command from its words before it runs: what needs no question, what is asked about under every policy,
//! and which rule a person could make of it.

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

/// Longest command that is judged, in bytes.
const MAX_BYTES: usize = 100 * 1024;

/// Shells inside shells.
const MAX_SHELLS: usize = 8;

/// Wrappers around wrappers: `env nice timeout 5 …`.
const MAX_WRAPPERS: usize = 32;

/// Simple commands that are looked at, those of a script that runs twice counted twice.
const MAX_COMMANDS: usize = 60_000;

/// Scripts that are read for one command, and their bytes, those inside others counted again.
const MAX_SCRIPTS: usize = 256;
const MAX_READ: usize = 3 * MAX_BYTES;

const TOO_DEEP: &str = "it is nested too deeply";

/// What a command would do, as far as its words tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandView {
    /// The simple commands in it, in order, as plain words; empty when it could not be taken apart.
    pub commands: Vec<Vec<String>>,
    /// What may be said of it without running it.
    pub safety: Safety,
}

/// Whether a person has to be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Safety {
    /// Known to only read: needs no question under any policy.
    ReadOnly,
    /// Asked about where the policy says so.
    Unknown {
        /// Why it is not known to only read.
        why: String,
    },
    /// Asked about under every policy.
    Dangerous {
        /// What it would do.
        why: String,
        /// The command in it that would, in one line.
        command: String,
    },
}

/// Judges a command.
pub fn judge_command(argv: &[String]) -> CommandView {
    let judged = Judged::new(argv);
    let plain = |words: Vec<Word>| words.into_iter().map(|word| word.text).collect();
    CommandView {
        commands: judged.commands.into_iter().map(plain).collect(),
        safety: judged.safety,
    }
}

/// A [`CommandView`] whose words still know what a shell would make of them.
struct Judged {
    commands: Vec<Vec<Word>>,
    safety: Safety,
}

impl Judged {
    fn new(argv: &[String]) -> Self {
        if argv.iter().map(String::len).sum::<usize>() > MAX_BYTES {
            let why = "it is too long to be judged".to_owned();
            return Self {
                commands: vec![],
                safety: Safety::Unknown { why },
            };
        }
        let words: Vec<Word> = argv.iter().map(Word::plain).collect();
        let mut search = Search::default();
        let danger = search.command(&Simple::new(words.clone()), 0, 0);
        // Where not all of it was looked at, nobody shall make a rule of the part that was.
        let taken = search.take_apart(&words, 0);
        let taken = if search.gave_up { Err(TOO_DEEP) } else { taken };
        let safety = match (danger, &taken) {
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
            commands: taken.unwrap_or_default(),
            safety,
        }
    }

    fn is_dangerous(&self) -> bool {
        matches!(self.safety, Safety::Dangerous { .. })
    }
}

fn why_not_read_only(commands: &[Vec<Word>]) -> Option<String> {
    let begins = |words: &Vec<Word>, program: &str| {
        words
            .first()
            .is_some_and(|word| word.trusted_name() == Some(program))
    };
    if commands.is_empty() {
        return Some("there is no command".to_owned());
    }
    if commands.iter().any(|words| begins(words, "cd"))
        && commands.iter().any(|words| begins(words, "git"))
    {
        // Its configuration can name programs that even `git status` runs.
        return Some("`git` may run what another folder's repository says".to_owned());
    }
    commands.iter().find_map(|words| read_only::why_not(words))
}

/// What is dangerous in a command.
struct Danger {
    why: &'static str,
    /// The simple command, or the part of a script, that it is.
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

/// Programs besides shells that run what they read, where no command is given.
const RUN_INPUT: &[&str] = &["ssh", "at", "batch"];

/// The search through a command, and through the scripts in it.
#[derive(Default)]
struct Search {
    scripts: HashMap<String, Rc<Script>>,
    bytes: usize,
    looked_at: usize,
    gave_up: bool,
}

impl Search {
    /// The simple commands of a command, those of shells inside it included; or why that cannot be told.
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
            let inner = script
                .commands
                .iter()
                .map(|simple| self.take_apart(&simple.words, shells + 1));
            return Ok(inner.collect::<Result<Vec<_>, _>>()?.concat());
        }
        match read_only::see_through(words) {
            Some(rest) if shells < MAX_SHELLS => self.take_apart(rest, shells + 1),
            _ => Ok(vec![words.to_vec()]),
        }
    }

    /// Why a command is dangerous, by itself or by what it runs.
    fn command(&mut self, simple: &Simple, shells: usize, wrappers: usize) -> Option<Danger> {
        self.looked_at += 1;
        if wrappers > MAX_WRAPPERS || self.looked_at > MAX_COMMANDS {
            self.gave_up = true;
            return None;
        }
        let mut insides = inside(&simple.words);
        let script = match shell_call(&simple.words) {
            Some(ShellCall::Script { script, .. }) => Some(script.text.as_str()),
            Some(ShellCall::Input) => simple.input.text.as_deref(),
            None if insides.is_empty() && RUN_INPUT.contains(&simple.program()) => {
                simple.input.text.as_deref()
            }
            _ => None,
        };
        insides.extend(script.map(|script| Inside::Script(script.to_owned())));
        // What is inside says more than what is around it: `sudo rm -rf` removes files by force.
        let inner = insides.into_iter().find_map(|inside| match inside {
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

    fn script(&mut self, text: &str, input: &Input, shells: usize) -> Option<Danger> {
        let script = self.read(text, shells)?;
        if script.fork_bomb {
            return Some(Danger::of_script(
                "it starts itself again without end",
                text,
            ));
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
            runs.then(|| Danger::of_script("it runs what it downloads", text))
        };
        commands.or_else(files).or_else(downloads)
    }

    /// Takes a script apart, once; `None` if there is too much of it.
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
