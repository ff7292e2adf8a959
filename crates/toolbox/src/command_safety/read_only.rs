//! The commands that are known to be read-only. They need no approval under any policy.

use super::display::inline_word;
use super::flags::{find_flag, operands, possible_options};
use super::git;
use super::words::{ShellWord, WordKind};
use crate::credentials::HOME_CREDENTIALS;

/// With which arguments a program is read-only.
enum AllowedArguments {
    Anything,
    /// All arguments except these options, in any spelling.
    Except(&'static str),
    /// Only these arguments.
    Only(&'static str),
    /// The arguments for which the function returns `None`, not a reason.
    Check(fn(&[ShellWord]) -> Option<&'static str>),
}
use AllowedArguments::{Anything, Check, Except, Only};

/// Programs that are read-only with the allowed arguments.
const READ_ONLY_PROGRAMS: &[(&str, AllowedArguments)] = &[
    (":", Anything),
    ("[", Check(check_test)),
    ("arch", Only("")),
    ("b2sum", Anything),
    ("base64", Except("-o --output")),
    ("basename", Anything),
    ("cat", Anything),
    ("cd", Anything),
    ("cksum", Anything),
    ("cmp", Anything),
    ("column", Anything),
    ("comm", Anything),
    ("command", Check(check_command)),
    ("cut", Anything),
    ("date", Check(check_date)),
    ("df", Anything),
    // Starts another program for the pages.
    ("diff", Except("-l --paginate")),
    ("dirname", Anything),
    ("du", Anything),
    ("echo", Anything),
    ("egrep", Anything),
    ("expr", Anything),
    ("false", Anything),
    ("fd", Except("-x -X --exec --exec-batch")),
    ("fgrep", Anything),
    // Writes files, changes times, or starts other programs.
    (
        "file",
        Except(
            "-C --compile -p --preserve-date -S --no-sandbox -z -Z --uncompress \
             --uncompress-noreport",
        ),
    ),
    ("find", Check(check_find)),
    ("fold", Anything),
    ("free", Anything),
    ("git", Check(git::check_git)),
    ("grep", Anything),
    ("groups", Anything),
    ("head", Anything),
    (
        "hostname",
        Only("-s -f -i -I -d -A --short --fqdn --long --ip-address --all-ip-addresses --domain"),
    ),
    ("id", Anything),
    ("join", Anything),
    ("jq", Check(check_jq)),
    ("ls", Anything),
    ("md5sum", Anything),
    ("nl", Anything),
    ("nproc", Anything),
    ("numfmt", Anything),
    ("od", Anything),
    ("paste", Anything),
    ("printf", Check(check_printf)),
    // `ps e` shows the environment of other processes.
    ("ps", Only("aux ax -e -f -ef -A")),
    ("pwd", Anything),
    ("readlink", Anything),
    ("realpath", Anything),
    ("rev", Anything),
    // Starts other programs.
    ("rg", Except("--pre --hostname-bin -z --search-zip")),
    ("sed", Check(check_sed)),
    ("seq", Anything),
    ("sha1sum", Anything),
    ("sha256sum", Anything),
    ("sha512sum", Anything),
    (
        "sort",
        Except("-o --output -T --temporary-directory --compress-program"),
    ),
    ("stat", Anything),
    ("tac", Anything),
    ("tail", Anything),
    ("test", Check(check_test)),
    ("tr", Anything),
    // `-R` writes files without being asked to.
    ("tree", Except("-o -R")),
    ("true", Anything),
    ("type", Anything),
    ("uname", Anything),
    ("uniq", Check(check_uniq)),
    ("uptime", Anything),
    ("wc", Anything),
    ("which", Anything),
    ("whoami", Anything),
];

/// Programs that, without options, only run the command after them, and the number of words before
/// that command.
const TRANSPARENT_WRAPPERS: &[(&str, usize)] =
    &[("env", 1), ("nice", 1), ("time", 1), ("timeout", 2)];

/// Returns why a simple command is not known to be read-only. `None` if it is.
pub(super) fn why_not_read_only(words: &[ShellWord]) -> Option<String> {
    let Some((program, arguments)) = words.split_first() else {
        return Some("is empty".to_owned());
    };
    let shown = inline_word(&program.text);
    let listed = program.trusted_name().and_then(|name| {
        READ_ONLY_PROGRAMS
            .iter()
            .find(|(program, _)| *program == name)
    });
    let Some((_, allowed)) = listed else {
        return Some(format!("`{shown}` is not known to be read-only"));
    };
    if arguments.iter().any(names_secret) {
        return Some("may show secrets".to_owned());
    }
    let mut options = possible_options(arguments).iter();
    if !matches!(allowed, Anything | Check(_)) && options.any(ShellWord::may_become_option) {
        return Some(format!("a file name may act as an option of `{shown}`"));
    }
    match allowed {
        Anything => None,
        Except(flags) => {
            find_flag(arguments, flags).map(|flag| format!("`{shown} {flag}` is not read-only"))
        }
        Only(known) => {
            let other = arguments
                .iter()
                .find(|word| !known.split(' ').any(|known| known == word.text))?;
            Some(format!(
                "`{shown} {}` is not known to be read-only",
                inline_word(&other.text)
            ))
        }
        Check(check) => check(arguments).map(|why| format!("`{shown}` {why}")),
    }
}

/// Returns whether a program can be read-only.
pub(super) fn is_listed(program: &ShellWord) -> bool {
    let name = program.name();
    let mut programs = READ_ONLY_PROGRAMS.iter();
    // Wrappers and programs that run others are checked elsewhere.
    name != "git" && programs.any(|(listed, _)| *listed == name)
}

/// Files in `/proc` that describe the machine. The others describe processes and their environment.
pub(crate) const HARMLESS_PROC: &[&str] = &[
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/uptime",
    "/proc/version",
    "/proc/mounts",
];

/// Returns whether a word names a path that the built-in tools do not read either. A path can be
/// written in too many ways for this to be complete: it decides only whether a person is asked.
pub(super) fn names_secret(word: &ShellWord) -> bool {
    // `//proc` and `/./proc` are `/proc`.
    let is_absolute = word.text.starts_with('/');
    let parts = word
        .text
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".");
    let mut text = parts.collect::<Vec<_>>().join("/");
    if is_absolute {
        text.insert(0, '/');
    }
    let text = text.as_str();
    let bounded = format!("/{text}/");
    let has_part = |path: &str| {
        bounded.match_indices(path).any(|(at, _)| {
            bounded[..at].ends_with('/') && bounded[at + path.len()..].starts_with('/')
        })
    };
    let names_process = text.starts_with("/proc")
        || has_part("proc/self")
        || has_part("../proc")
        || text.ends_with("/environ");
    // `/pro?/self/…`
    let first = text
        .strip_prefix('/')
        .and_then(|rest| rest.split('/').next())
        .unwrap_or_default();
    let matches_root = word.kind == WordKind::Glob && first.contains(['*', '?', '[']);
    HOME_CREDENTIALS.iter().any(|path| has_part(path))
        || (names_process && !HARMLESS_PROC.contains(&text))
        || matches_root
}

/// Returns the command after a program that only runs it. `None` if there is no such program.
pub(super) fn strip_transparent_wrapper(words: &[ShellWord]) -> Option<&[ShellWord]> {
    let name = words.first()?.trusted_name()?;
    let (_, skipped) = TRANSPARENT_WRAPPERS
        .iter()
        .find(|(program, _)| *program == name)?;
    let rest = words.get(*skipped..).filter(|rest| !rest.is_empty())?;
    let plain = |word: &ShellWord| {
        word.kind == WordKind::Literal && !word.text.starts_with('-') && !word.text.contains('=')
    };
    let duration = |word: &ShellWord| {
        word.kind == WordKind::Literal && word.text.starts_with(|c: char| c.is_ascii_digit())
    };
    (words[1..*skipped].iter().all(duration) && plain(&rest[0])).then_some(rest)
}

/// Operators of `test` that look at files and texts. Not listed are `-v` and `-R`, with which
/// shells evaluate the subscript in `a[PATH=1]`, and `-w`, whose answer depends on the confinement.
const TEST_OPERATORS: &str = "! ( ) -a -o -e -f -d -r -x -s -h -L -p -S -b -c -g -k -u -O -G -N -z \
    -n = == != < > -nt -ot -ef";
/// Operators of `test` that compare numbers.
const NUMBER_OPERATORS: &str = "-eq -ne -lt -le -gt -ge";

/// Checks `test`: every option must be a known operator. Some shells evaluate the operands of
/// numeric comparisons, in which `PATH=1` is an assignment.
fn check_test(words: &[ShellWord]) -> Option<&'static str> {
    let is_listed = |list: &str, word: &ShellWord| list.split(' ').any(|known| known == word.text);
    let is_known = |word: &ShellWord| {
        !word.text.starts_with('-')
            || is_listed(TEST_OPERATORS, word)
            || is_listed(NUMBER_OPERATORS, word)
            || is_number(word)
    };
    let compared = words
        .iter()
        .enumerate()
        .filter(|(_, word)| is_listed(NUMBER_OPERATORS, word))
        .flat_map(|(at, _)| {
            [
                at.checked_sub(1).and_then(|at| words.get(at)),
                words.get(at + 1),
            ]
        });
    let safe = words
        .iter()
        .all(|word| has_no_expansion(word) && is_known(word))
        && compared.flatten().all(is_number);
    (!safe).then_some("may evaluate its arguments")
}

/// Checks `printf`, which can set a variable and evaluate its arguments.
fn check_printf(words: &[ShellWord]) -> Option<&'static str> {
    let (format, rest) = words.split_first()?;
    if format.text.starts_with('-') {
        return Some("has an option, and `-v` sets a variable");
    }
    let safe = words.iter().all(has_no_expansion)
        && (takes_only_text(&format.text) || rest.iter().all(is_number));
    (!safe).then_some("may evaluate its arguments")
}

/// Returns whether a word stays the same even if the shell expands it a second time.
fn has_no_expansion(word: &ShellWord) -> bool {
    word.kind == WordKind::Literal && !word.text.contains(['$', '`'])
}

fn is_number(word: &ShellWord) -> bool {
    let digits = word.text.strip_prefix('-').unwrap_or(&word.text);
    !digits.is_empty()
        && digits
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// Returns whether a format of `printf` takes no numbers, which some shells evaluate.
fn takes_only_text(format: &str) -> bool {
    let mut rest = format;
    while let Some((_, after)) = rest.split_once('%') {
        let after = after.trim_start_matches(|c: char| c.is_ascii_digit() || "-+ #.".contains(c));
        let Some(after) = after.strip_prefix(['s', 'b', 'q', '%']) else {
            return false;
        };
        rest = after;
    }
    true
}

/// Checks `command`. `command -v NAME` only looks up a name.
fn check_command(words: &[ShellWord]) -> Option<&'static str> {
    let looks_up = words
        .first()
        .is_some_and(|word| ["-v", "-V"].contains(&word.text.as_str()));
    (!looks_up).then_some("runs another command")
}

/// Checks `date`, which can set the clock.
fn check_date(words: &[ShellWord]) -> Option<&'static str> {
    const DISPLAY_OPTIONS: &str =
        "-u -R -d -r --utc --universal --iso-8601 --rfc-3339 --rfc-email --date --reference";
    let only_displays = |word: &ShellWord| {
        let name = word.text.split('=').next().unwrap_or_default();
        !word.text.starts_with('-')
            || DISPLAY_OPTIONS.split(' ').any(|option| option == name)
            || ["-I", "-d", "-r"].iter().any(|flag| name.starts_with(flag))
    };
    let formats = operands(words, "-d --date -r --reference")
        .iter()
        .all(|word| word.text.starts_with('+'));
    let safe = formats
        && words
            .iter()
            .all(|word| only_displays(word) && !word.may_become_option());
    (!safe).then_some("may set the clock")
}

/// Checks `find`, which can delete files and run commands.
fn check_find(words: &[ShellWord]) -> Option<&'static str> {
    const ACTIONS: &[&str] = &[
        "-exec",
        "-execdir",
        "-ok",
        "-okdir",
        "-delete",
        "-fls",
        "-fprint",
        "-fprint0",
        "-fprintf",
        // Its answer depends on the confinement.
        "-writable",
    ];
    let acts = |word: &ShellWord| match word.kind {
        WordKind::Literal => ACTIONS.contains(&word.text.as_str()),
        _ => ACTIONS
            .iter()
            .any(|action| glob_may_match(&word.text, action)),
    };
    words
        .iter()
        .any(acts)
        .then_some("may change files or run commands")
}

/// Returns whether a pattern could match a name, judged by the fixed text at its start and end.
fn glob_may_match(pattern: &str, name: &str) -> bool {
    let special = |c: char| "*?[]".contains(c);
    let begin = pattern.split(special).next().unwrap_or_default();
    let end = pattern.rsplit(special).next().unwrap_or_default();
    name.starts_with(begin) && name.ends_with(end)
}

/// Checks `jq`. `env` and `$ENV` show the environment, which may contain secrets. Code in files may
/// use them too.
fn check_jq(words: &[ShellWord]) -> Option<&'static str> {
    let uses_environment = |word: &ShellWord| {
        word.text
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .any(|part| ["env", "ENV", "import", "include"].contains(&part))
    };
    let may_show = words
        .iter()
        .any(|word| uses_environment(word) || word.may_become_option());
    (may_show || find_flag(words, "-f --from-file -L --library-path").is_some())
        .then_some("may show the environment")
}

/// Checks `sed`. Only `sed -n 5p` and `sed -n 1,5p` with files are read-only.
fn check_sed(words: &[ShellWord]) -> Option<&'static str> {
    let line = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let prints = |script: &str| {
        let lines = script.strip_suffix('p').unwrap_or_default();
        line(lines)
            || lines
                .split_once(',')
                .is_some_and(|(from, to)| line(from) && (line(to) || to == "$"))
    };
    let safe = match words {
        [quiet, script, files @ ..] => {
            let file = |word: &ShellWord| !word.text.starts_with('-') && !word.may_become_option();
            quiet.text == "-n" && prints(&script.text) && files.iter().all(file)
        }
        _ => false,
    };
    (!safe).then_some("does more than print lines")
}

/// Checks `uniq`, which writes to its second operand.
fn check_uniq(words: &[ShellWord]) -> Option<&'static str> {
    let patterns = words.iter().any(|word| word.kind == WordKind::Glob);
    let operands = operands(words, "-f -s -w --skip-fields --skip-chars --check-chars");
    (operands.len() > 1 || patterns).then_some("writes to its second file")
}
