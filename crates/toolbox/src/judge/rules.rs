//! Rules a person may make: the beginning of a command that is allowed from then on.

use super::origins::is_interpreter;
use super::shells::shell_call;
use super::words::{Sort, Word};
use super::wrappers::is_wrapper;
use super::{Judged, read_only};

/// Commands whose subcommand is one word more, and with it two.
const LONGER: &str = "npm run, npm run-script, pnpm run, yarn run, bun run, deno task, docker compose, docker image, \
    docker container, go mod, git stash, git remote, git worktree, git submodule, gh pr, gh issue, gh run, gh repo, \
    kubectl config, cargo xtask, cargo make, uv pip";

/// Programs that do nothing without a subcommand, so that their name alone says nothing.
const WITH_SUBCOMMAND: &str = "apt apt-get aws az brew bun bundle cargo composer deno docker dotnet gcloud gem gh git go \
    gradle helm just kubectl make mvn nix npm pip pip3 pnpm podman poetry pulumi rails rake rustup swift systemctl task \
    terraform tofu uv yarn";

/// Programs that do too many things for any rule.
const TOO_WIDE: &str = ". alias at awk batch cd chmod chown cp crontab curl dd ed emacs enable ex expect export fd find gawk \
    gdb hash install kill ln mawk mv nawk nc ncat netcat rm rmdir rsync scp sed set sftp socat source tar tee unlink vi \
    vim wget";

/// Subcommands of which the same is true.
const TOO_WIDE_SUBCOMMANDS: &str = "bun x, deno eval, deno run, docker create, docker run, gh alias, gh api, git config, \
    go generate, go run, kubectl exec, kubectl run, npm config, npm x, podman create, podman run, yarn dlx";

/// Wrappers that say where a program is looked for, which goes into the rule.
const RUNNERS: &str = "npx, bunx, npm exec, pnpm exec, pnpm dlx, yarn exec, uv run, poetry run, pipenv run, bundle exec";

/// The beginning of a command that a person may allow from now on, such as `npm test` or `git commit`: the program
/// and its subcommand. `None` where that would allow too much.
pub fn prefix_of(argv: &[String]) -> Option<Vec<String>> {
    let judged = Judged::new(argv);
    if judged.is_dangerous() {
        return None;
    }
    let mut asked = judged.commands.iter().filter(|words| !goes_along(words));
    let prefix = prefix_of_words(asked.next().or(judged.commands.first())?)?;
    asked.all(|words| begins(words, &prefix)).then_some(prefix)
}

/// Whether every simple command of a command begins with one of the rules, or only reads. One that cannot be taken
/// apart into plain words, that writes to files or that is dangerous is never covered.
pub fn covered_by(argv: &[String], rules: &[Vec<String>]) -> bool {
    let judged = Judged::new(argv);
    let ruled = |words: &Vec<Word>| rules.iter().any(|rule| begins(words, rule));
    !judged.is_dangerous()
        && judged.commands.iter().any(ruled)
        && judged
            .commands
            .iter()
            .all(|words| ruled(words) || goes_along(words))
}

fn begins(words: &[Word], rule: &[String]) -> bool {
    let same = |(word, rule): (&Word, &String)| word.sort == Sort::Plain && word.text == *rule;
    !rule.is_empty() && words.len() >= rule.len() && words.iter().zip(rule).all(same)
}

/// `npm test | tail` is as good as `npm test`; but `cd` decides whose tests they are.
fn goes_along(words: &[Word]) -> bool {
    words.first().is_some_and(|word| word.text != "cd") && read_only::why_not(words).is_none()
}

fn prefix_of_words(words: &[Word]) -> Option<Vec<String>> {
    let name = words.first()?.name();
    if let Some(length) = RUNNERS
        .split(", ")
        .find_map(|runner| runs_through(runner, words))
    {
        let program = prefix_of_words(&words[length..])?;
        return Some(
            words[..length]
                .iter()
                .map(|word| word.text.clone())
                .chain(program)
                .collect(),
        );
    }
    let arguments: Vec<&str> = words[1..].iter().map(|word| word.text.as_str()).collect();
    let both = arguments
        .first()
        .map(|first| format!("{name} {first}"))
        .unwrap_or_default();
    let too_wide = among(TOO_WIDE, " ", &name) || among(TOO_WIDE_SUBCOMMANDS, ", ", &both);
    if too_wide
        || shell_call(words).is_some()
        || is_wrapper(words)
        || name.is_empty()
        || name.starts_with('-')
    {
        return None;
    }
    let length = match arguments[..] {
        [_, second, ..] if among(LONGER, ", ", &both) && is_subcommand(second) => 2,
        _ if among(LONGER, ", ", &both) => return None,
        ["-m", module, ..] if is_interpreter(&name) && is_subcommand(module) => 2,
        [file, ..] if is_interpreter(&name) && !file.starts_with('-') => 1,
        _ if is_interpreter(&name) => return None,
        [first, ..] if is_subcommand(first) => 1,
        _ if among(WITH_SUBCOMMAND, " ", &name) => return None,
        _ => 0,
    };
    let prefix = &words[..=length];
    prefix
        .iter()
        .all(|word| word.sort == Sort::Plain)
        .then(|| prefix.iter().map(|word| word.text.clone()).collect())
}

fn among(list: &str, between: &str, wanted: &str) -> bool {
    list.split(between).any(|one| one == wanted)
}

/// How many words a runner takes, where a program follows it at once.
fn runs_through(runner: &str, words: &[Word]) -> Option<usize> {
    let length = runner.split(' ').count();
    let same = runner
        .split(' ')
        .zip(words)
        .all(|(part, word)| word.sort == Sort::Plain && word.text == part);
    (same && words.len() > length).then_some(length)
}

/// `test`, `run-script`, `build:prod`; not a path, an option or an address.
fn is_subcommand(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_:.".contains(&byte))
}
