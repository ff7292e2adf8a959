//! Rules that a person can add: prefixes of commands that run without approval.

use super::origins::is_interpreter;
use super::shell_call::shell_call;
use super::words::{ShellWord, WordKind};
use super::wrappers::is_wrapper;
use super::{WordClassification, read_only};

/// Commands that need a third word in their rule, separated by `, `.
const THREE_WORD_COMMANDS: &str = "npm run, npm run-script, pnpm run, yarn run, bun run, deno task, docker \
    compose, docker image, docker container, go mod, git stash, git remote, git worktree, git \
    submodule, gh pr, gh issue, gh run, gh repo, kubectl config, cargo xtask, cargo make, uv pip";

/// Programs that need a subcommand, so that a rule for the name alone would allow too much.
const NEEDS_SUBCOMMAND: &str = "apt apt-get aws az brew bun bundle cargo composer deno docker \
    dotnet gcloud gem gh git go gradle helm just kubectl make mvn nix npm pip pip3 pnpm podman \
    poetry pulumi rails rake rustup swift systemctl task terraform tofu uv yarn";

/// Programs that can do too many things for a rule.
const PROGRAMS_WITHOUT_RULE: &str = ". alias at awk batch cd chmod chown cp crontab curl dd ed emacs enable ex \
    expect export fd find gawk gdb hash install kill ln mawk mv nawk nc ncat netcat rm rmdir rsync \
    scp sed set sftp socat source tar tee unlink vi vim wget";

/// Subcommands that can do too many things for a rule, separated by `, `.
const SUBCOMMANDS_WITHOUT_RULE: &str = "bun x, deno eval, deno run, docker create, docker run, \
    gh alias, gh api, git config, go generate, go run, kubectl exec, kubectl run, npm config, \
    npm x, podman create, podman run, yarn dlx";

/// Wrappers that select where a program comes from, separated by `, `. They are part of the rule.
const RUNNERS: &str = "npx, bunx, npm exec, pnpm exec, pnpm dlx, yarn exec, uv run, poetry run, \
    pipenv run, bundle exec";

/// Returns the prefix of a command that a person can allow, usually the program and its subcommand,
/// such as `npm test` or `git commit`. `None` if the rule would allow too much.
pub fn rule_prefix(argv: &[String]) -> Option<Vec<String>> {
    let classified = WordClassification::new(argv);
    if classified.is_dangerous() {
        return None;
    }
    let mut uncovered = classified
        .commands
        .iter()
        .filter(|words| !needs_no_rule(words));
    let prefix = words_prefix(uncovered.next().or(classified.commands.first())?)?;
    uncovered
        .all(|words| starts_with_rule(words, &prefix))
        .then_some(prefix)
}

/// Returns whether every simple command of a command starts with one of the rules or is read-only,
/// and at least one starts with a rule. A command that is dangerous, writes to files or cannot be
/// split into literal words is never covered.
pub fn is_covered_by_rules(argv: &[String], rules: &[Vec<String>]) -> bool {
    let classified = WordClassification::new(argv);
    let ruled = |words: &Vec<ShellWord>| rules.iter().any(|rule| starts_with_rule(words, rule));
    !classified.is_dangerous()
        && classified.commands.iter().any(ruled)
        && classified
            .commands
            .iter()
            .all(|words| ruled(words) || needs_no_rule(words))
}

/// Returns whether every simple command of a command starts with one of the rules. Without the
/// confinement, even a read-only command next to a ruled one could show secrets.
pub(crate) fn consists_of_ruled_commands(argv: &[String], rules: &[Vec<String>]) -> bool {
    let classified = WordClassification::new(argv);
    let ruled = |words: &Vec<ShellWord>| rules.iter().any(|rule| starts_with_rule(words, rule));
    !classified.is_dangerous()
        && !classified.commands.is_empty()
        && classified.commands.iter().all(ruled)
        && classified.input_files.is_empty()
}

fn starts_with_rule(words: &[ShellWord], rule: &[String]) -> bool {
    let same =
        |(word, rule): (&ShellWord, &String)| word.kind == WordKind::Literal && word.text == *rule;
    !rule.is_empty() && words.len() >= rule.len() && words.iter().zip(rule).all(same)
}

/// Returns whether a simple command may run next to commands that a rule covers. It may if it is
/// read-only: `npm test | tail` is covered by `npm test`. `cd` is not, because it selects the
/// project whose tests run.
fn needs_no_rule(words: &[ShellWord]) -> bool {
    words.first().is_some_and(|word| word.text != "cd")
        && read_only::why_not_read_only(words).is_none()
}

fn words_prefix(words: &[ShellWord]) -> Option<Vec<String>> {
    let name = words.first()?.name();
    if let Some(length) = RUNNERS
        .split(", ")
        .find_map(|runner| runner_length(runner, words))
    {
        let program = words_prefix(&words[length..])?;
        return Some(
            words[..length]
                .iter()
                .map(|word| word.text.clone())
                .chain(program)
                .collect(),
        );
    }
    let arguments: Vec<&str> = words[1..].iter().map(|word| word.text.as_str()).collect();
    let two_words = arguments
        .first()
        .map(|first| format!("{name} {first}"))
        .unwrap_or_default();
    let too_wide = list_contains(PROGRAMS_WITHOUT_RULE, " ", &name)
        || list_contains(SUBCOMMANDS_WITHOUT_RULE, ", ", &two_words);
    if too_wide
        || shell_call(words).is_some()
        || is_wrapper(words)
        || name.is_empty()
        || name.starts_with('-')
    {
        return None;
    }
    let length = match arguments[..] {
        [_, second, ..]
            if list_contains(THREE_WORD_COMMANDS, ", ", &two_words)
                && looks_like_subcommand(second) =>
        {
            2
        }
        _ if list_contains(THREE_WORD_COMMANDS, ", ", &two_words) => return None,
        ["-m", module, ..] if is_interpreter(&name) && looks_like_subcommand(module) => 2,
        [file, ..] if is_interpreter(&name) && !file.starts_with('-') => 1,
        _ if is_interpreter(&name) => return None,
        [first, ..] if looks_like_subcommand(first) => 1,
        _ if list_contains(NEEDS_SUBCOMMAND, " ", &name) => return None,
        _ => 0,
    };
    let prefix = &words[..=length];
    prefix
        .iter()
        .all(|word| word.kind == WordKind::Literal)
        .then(|| prefix.iter().map(|word| word.text.clone()).collect())
}

fn list_contains(list: &str, separator: &str, item: &str) -> bool {
    list.split(separator).any(|listed| listed == item)
}

/// Returns the number of words of a runner if the command starts with it and a program follows.
fn runner_length(runner: &str, words: &[ShellWord]) -> Option<usize> {
    let length = runner.split(' ').count();
    let same = runner
        .split(' ')
        .zip(words)
        .all(|(part, word)| word.kind == WordKind::Literal && word.text == part);
    (same && words.len() > length).then_some(length)
}

/// Returns whether a word looks like a subcommand: `test`, `run-script`, `build:prod`. A path, an
/// option or a URL does not.
fn looks_like_subcommand(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_:.".contains(&byte))
}
