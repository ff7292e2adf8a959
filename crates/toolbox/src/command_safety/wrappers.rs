//! Finds the commands that a wrapper such as `sudo`, `env` or `xargs` runs.

use super::tokenize::is_assignment;
use super::words::ShellWord;

/// A command that another command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InnerCommand {
    /// A command as words.
    Command(Vec<ShellWord>),
    /// A script for a shell.
    Script(String),
}

/// The meaning of the words after the options and operands of a wrapper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WrapperOperands {
    /// The words are a command.
    Command,
    /// The joined words are a script.
    Script,
    /// Each word is a script.
    Scripts,
    /// The words are not executed.
    Ignored,
}
use WrapperOperands::{Command, Ignored, Script, Scripts};

/// Name, options that take the next word as their value, options whose value is a script, number of
/// operands before the command, meaning of the words after these.
type WrapperSpec = (
    &'static str,
    &'static str,
    &'static str,
    usize,
    WrapperOperands,
);

const WRAPPERS: &[WrapperSpec] = &[
    (
        "sudo",
        "-u --user -g --group -C -D --chdir -h --host -p --prompt -r -t -T -U -R",
        "",
        0,
        Command,
    ),
    ("doas", "-u -C", "", 0, Command),
    ("su", "-s --shell -g -G -w", "-c --command", 0, Ignored),
    (
        "runuser",
        "-u --user -g -G -s --shell -w",
        "-c --command",
        0,
        Command,
    ),
    ("pkexec", "--user", "", 0, Command),
    ("run0", "-u --user -g --group", "", 0, Command),
    ("gosu", "", "", 1, Command),
    ("su-exec", "", "", 1, Command),
    (
        "env",
        "-u --unset -C --chdir",
        "-S --split-string",
        0,
        Command,
    ),
    ("nice", "-n --adjustment", "", 0, Command),
    ("ionice", "-c -n --class --classdata", "", 0, Command),
    ("chrt", "-T -P -D", "", 1, Command),
    ("taskset", "", "", 1, Command),
    ("nohup", "", "", 0, Command),
    ("setsid", "", "", 0, Command),
    (
        "stdbuf",
        "-i -o -e --input --output --error",
        "",
        0,
        Command,
    ),
    ("unbuffer", "", "", 0, Command),
    ("time", "-f --format -o --output", "", 0, Command),
    ("gtime", "-f --format -o --output", "", 0, Command),
    ("timeout", "-k --kill-after -s --signal", "", 1, Command),
    ("gtimeout", "-k --kill-after -s --signal", "", 1, Command),
    (
        "flock",
        "-w --wait --timeout -E --conflict-exit-code",
        "-c --command",
        1,
        Command,
    ),
    ("watch", "-n --interval", "", 0, Script),
    (
        "xargs",
        "-I -n -P -L -d -E -s -a -J -R --max-args --max-procs --delimiter --arg-file",
        "",
        0,
        Command,
    ),
    (
        "parallel",
        "-j --jobs -S --sshlogin -a --arg-file -I -N -n --delay --timeout --colsep",
        "",
        0,
        Script,
    ),
    ("command", "", "", 0, Command),
    ("builtin", "", "", 0, Command),
    ("exec", "-a", "", 0, Command),
    ("coproc", "", "", 0, Command),
    ("noglob", "", "", 0, Command),
    ("nocorrect", "", "", 0, Command),
    ("eval", "", "", 0, Script),
    ("trap", "", "", 0, Scripts),
    ("busybox", "", "", 0, Command),
    ("toybox", "", "", 0, Command),
    ("arch", "-arch -e -d", "", 0, Command),
    ("caffeinate", "-t -w", "", 0, Command),
    ("chroot", "", "", 1, Command),
    ("unshare", "-S -G -R -w --wd --root", "", 0, Command),
    ("nsenter", "-t --target -S -G", "", 0, Command),
    (
        "setpriv",
        "--reuid --regid --groups --inh-caps",
        "",
        0,
        Command,
    ),
    ("prlimit", "", "", 0, Command),
    (
        "systemd-run",
        "-p --property -u --unit -E --setenv -M -H",
        "",
        0,
        Command,
    ),
    ("script", "-I -O -B -T -o -E -m", "-c --command", 0, Ignored),
    (
        "strace",
        "-e -o -p -s -u -E -a -b -I -O -P -S -X",
        "",
        0,
        Command,
    ),
    ("ltrace", "-e -o -p -s -u -a -n -l", "", 0, Command),
    ("valgrind", "", "", 0, Command),
    ("fakeroot", "-l -s -i -b", "", 0, Command),
    (
        "ssh",
        "-B -b -c -D -E -e -F -I -i -J -L -l -m -O -o -P -p -Q -R -S -W -w",
        "",
        1,
        Script,
    ),
    (
        "hyperfine",
        "-w --warmup -r --runs -m -M -L -P -u --export-json --export-markdown",
        "-p --prepare -c --cleanup -s --setup",
        0,
        Scripts,
    ),
    ("entr", "", "", 0, Command),
    ("tmux", "-c -e -F -f -L -n -S -s -t -x -y", "", 0, Scripts),
    ("screen", "-c -e -h -p -S -s -T -t -dmS", "", 0, Command),
    ("direnv exec", "", "", 1, Command),
    ("mise exec", "", "", 0, Command),
    (
        "uv run",
        "--with -p --python --project --directory --extra --group",
        "",
        0,
        Command,
    ),
    ("poetry run", "", "", 0, Command),
    ("pipenv run", "", "", 0, Command),
    ("bundle exec", "", "", 0, Command),
    (
        "npx",
        "-p --package -w --workspace",
        "-c --call",
        0,
        Command,
    ),
    ("bunx", "", "", 0, Command),
    (
        "npm exec",
        "-p --package -w --workspace",
        "-c --call",
        0,
        Command,
    ),
    ("pnpm exec", "", "", 0, Command),
    ("pnpm dlx", "", "", 0, Command),
    ("yarn exec", "", "", 0, Command),
    ("nix-shell", "-p -I -A", "--run --command", 0, Ignored),
    (
        "docker exec",
        "-e --env -u --user -w --workdir --env-file",
        "",
        1,
        Command,
    ),
    (
        "podman exec",
        "-e --env -u --user -w --workdir --env-file",
        "",
        1,
        Command,
    ),
    ("git submodule foreach", "", "", 0, Script),
    ("git bisect run", "", "", 0, Command),
    (
        "git rebase",
        "--onto -s -X --strategy",
        "-x --exec",
        0,
        Ignored,
    ),
];

/// Returns the commands that a command runs. Does not handle shells: see `shell_call`.
pub(super) fn inner_commands(words: &[ShellWord]) -> Vec<InnerCommand> {
    let Some((program, arguments)) = words.split_first() else {
        return vec![];
    };
    match program.name().as_str() {
        "find" | "gfind" => commands_between(
            arguments,
            &["-exec", "-execdir", "-ok", "-okdir"],
            &[";", "+"],
        ),
        "fd" | "fdfind" => {
            commands_between(arguments, &["-x", "-X", "--exec", "--exec-batch"], &[";"])
        }
        "alias" => arguments
            .iter()
            .filter_map(|word| word.text.split_once('='))
            .map(|(_, to)| InnerCommand::Script(to.to_owned()))
            .collect(),
        name => {
            let mut found = Vec::new();
            if name == "git" {
                let aliases = arguments
                    .iter()
                    .filter_map(|word| word.text.split_once("=!"));
                found.extend(aliases.map(|(_, command)| InnerCommand::Script(command.to_owned())));
            }
            for wrapper in WRAPPERS {
                if let Some(rest) = strip_wrapper_name(wrapper.0, name, arguments) {
                    found.extend(unwrap_command(wrapper, rest));
                }
            }
            found
        }
    }
}

/// Returns whether a program is a wrapper, even if no command follows.
pub(super) fn is_wrapper(words: &[ShellWord]) -> bool {
    let Some((program, arguments)) = words.split_first() else {
        return false;
    };
    WRAPPERS
        .iter()
        .any(|wrapper| strip_wrapper_name(wrapper.0, &program.name(), arguments).is_some())
}

/// Returns the words after a wrapper's name, which may consist of several words. `None` if the
/// command is another program.
fn strip_wrapper_name<'a>(
    wrapper: &str,
    name: &str,
    mut arguments: &'a [ShellWord],
) -> Option<&'a [ShellWord]> {
    let mut parts = wrapper.strip_prefix(name)?.split(' ');
    if parts.next() != Some("") {
        return None;
    }
    for part in parts {
        let at = arguments
            .iter()
            .position(|word| !word.text.starts_with('-'))?;
        if arguments[at].text != part {
            return None;
        }
        arguments = &arguments[at + 1..];
    }
    Some(arguments)
}

/// Returns the commands in the words after a wrapper's name.
fn unwrap_command(
    &(name, valued, scripts, operands, rest): &WrapperSpec,
    words: &[ShellWord],
) -> Vec<InnerCommand> {
    let is_listed = |flags: &str, word: &str| flags.split(' ').any(|flag| flag == word);
    // `env -S` appends the words after its value to the command.
    let appended = |from: usize| {
        if name == "env" {
            join_words(words.get(from..).unwrap_or_default())
        } else {
            String::new()
        }
    };
    let mut found = Vec::new();
    let (mut at, mut left) = (0, operands);
    while let Some(word) = words.get(at) {
        let text = word.text.as_str();
        let belongs_to_wrapper =
            (text.starts_with('-') && text.len() > 1) || (rest == Command && is_assignment(text));
        if text == "--" && left == 0 {
            at += 1;
            break;
        } else if is_listed(scripts, text) {
            let script = words.get(at + 1).map_or("", |word| &word.text);
            found.push(InnerCommand::Script(format!(
                "{script} {}",
                appended(at + 2)
            )));
            at += 2;
        } else if let Some(script) = attached_value(scripts, text) {
            found.push(InnerCommand::Script(format!(
                "{script} {}",
                appended(at + 1)
            )));
            at += 1;
        } else if is_listed(valued, text) {
            at += 2;
        } else if belongs_to_wrapper {
            at += 1;
        } else if left > 0 {
            left -= 1;
            at += 1;
        } else {
            break;
        }
    }
    let words = words.get(at..).unwrap_or_default();
    match rest {
        _ if words.is_empty() => {}
        Command => found.push(InnerCommand::Command(words.to_vec())),
        Script => {
            let end = words
                .iter()
                .position(|word| word.text.starts_with(":::"))
                .unwrap_or(words.len());
            found.push(InnerCommand::Script(join_words(&words[..end])));
        }
        Scripts => found.extend(
            words
                .iter()
                .map(|word| InnerCommand::Script(word.text.clone())),
        ),
        Ignored => {}
    }
    found
}

/// Returns the value in `--option=value` or `-ovalue`.
fn attached_value<'a>(flags: &str, word: &'a str) -> Option<&'a str> {
    flags
        .split(' ')
        .filter(|flag| !flag.is_empty())
        .find_map(|flag| {
            let rest = word.strip_prefix(flag)?;
            if flag.starts_with("--") {
                rest.strip_prefix('=')
            } else {
                Some(rest)
            }
        })
}

/// Returns the commands between a start word such as `-exec` and an end word such as `;`.
fn commands_between(words: &[ShellWord], starts: &[&str], ends: &[&str]) -> Vec<InnerCommand> {
    let mut found = Vec::new();
    let mut rest = words;
    while let Some(at) = rest
        .iter()
        .position(|word| starts.contains(&word.text.as_str()))
    {
        let command = &rest[at + 1..];
        let end = command
            .iter()
            .position(|word| ends.contains(&word.text.as_str()))
            .unwrap_or(command.len());
        found.push(InnerCommand::Command(command[..end].to_vec()));
        rest = &command[end..];
    }
    found.retain(|inside| *inside != InnerCommand::Command(vec![]));
    found
}

fn join_words(words: &[ShellWord]) -> String {
    words
        .iter()
        .map(|word| word.text.as_str())
        .collect::<Vec<_>>()
        .join(" ")
}
