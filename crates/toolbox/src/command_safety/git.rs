//! The read-only forms of `git`. The configuration of a repository can name programs that these
//! forms run (`diff.external`, `textconv`, filters): `repository.rs` checks it before such a
//! command runs without approval.

use super::words::ShellWord;

/// Which operands a subcommand can have in its read-only form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GitOperands {
    Any,
    None,
    /// Operands only together with one of `LIST_OPTIONS`. Otherwise they name something to create.
    WhenListing,
}
use GitOperands::{Any, WhenListing};

/// Options that format differences. `--patch` and `-p` are listed only for forms that show no
/// differences by default. For the others they have no effect, and Codex requires approval for
/// them.
const DIFF_OPTIONS: &str = "--no-patch --unified --raw --patch-with-raw --patch-with-stat \
    --stat --shortstat --numstat --name-only --name-status --summary --compact-summary --dirstat \
    --find-renames --no-renames --find-copies --find-copies-harder --minimal --patience \
    --histogram --diff-algorithm --anchored --word-diff --word-diff-regex --color-words \
    --color-moved --no-color-moved --color --no-color --full-index --binary --abbrev --text \
    --ignore-space-change --ignore-all-space --ignore-space-at-eol --ignore-blank-lines \
    --ignore-cr-at-eol --ignore-matching-lines --inter-hunk-context --function-context \
    --no-ext-diff --no-textconv --ignore-submodules --src-prefix --dst-prefix --no-prefix \
    --default-prefix --relative --no-relative --diff-filter --pickaxe-all --pickaxe-regex --check \
    --exit-code --quiet --ws-error-highlight --cc --combined-all-paths \
    --no-indent-heuristic --indent-heuristic \
    --line-prefix --ita-invisible-in-index --reverse";
/// Letters of short options that format differences.
const DIFF_LETTERS: &str = "swbaRzcmDWMCBtr";
/// Letters of short options of `git log` and `git diff` whose value may follow immediately: texts
/// and patterns to search for, a range of lines, a number of lines.
const VALUED_LETTERS: &[char] = &['S', 'G', 'L', 'I', 'U'];

/// Options that select and format commits.
const LOG_OPTIONS: &str = "--oneline --graph --decorate --no-decorate --all --branches --tags \
    --remotes --reverse --merges --no-merges --first-parent --abbrev-commit --no-abbrev-commit \
    --date --format --pretty --color --no-color --follow --since --until --after --before --author \
    --committer --grep --all-match --invert-grep --regexp-ignore-case --extended-regexp \
    --fixed-strings --perl-regexp --max-count --skip --left-right --left-only --right-only \
    --cherry-pick --cherry-mark --cherry --topo-order --date-order --author-date-order \
    --full-history --simplify-by-decoration --no-patch --relative-date --count --not \
    --ancestry-path --boundary --parents --children --no-walk --walk-reflogs --merge --notes \
    --no-notes --source --encoding";
/// Letters of short options that select and format commits.
const LOG_LETTERS: &str = "nisEFPg";

/// Which options a subcommand can have in its read-only form.
enum GitOptions {
    /// These long options, and these letters of short options.
    Listed(&'static str, &'static str),
    /// The same, and the options that format differences.
    WithDiff(&'static str, &'static str),
    /// The options that select and format commits, those that format differences, and these.
    WithLog(&'static str, &'static str),
}
use GitOptions::{Listed, WithDiff, WithLog};

/// The read-only forms: subcommand, options, operands.
const READ_ONLY_FORMS: &[(&str, GitOptions, GitOperands)] = &[
    (
        "status",
        Listed(
            "--short --branch --porcelain --long --verbose --untracked-files --ignored --renames \
             --no-renames --find-renames --show-stash --ahead-behind --no-ahead-behind --column \
             --no-column --ignore-submodules",
            "sbuzv",
        ),
        Any,
    ),
    ("log", WithLog("--patch", "pu"), Any),
    ("show", WithLog("", ""), Any),
    ("diff", WithDiff("--cached --staged --merge-base", ""), Any),
    (
        "diff-tree",
        WithDiff("--patch --root --no-commit-id --pretty", "pv"),
        Any,
    ),
    ("diff-index", WithDiff("--cached --merge-base", ""), Any),
    ("diff-files", WithDiff("", ""), Any),
    (
        "shortlog",
        Listed(
            "--summary --numbered --email --since --until --no-merges --all --group",
            "snec",
        ),
        Any,
    ),
    ("rev-list", Listed(LOG_OPTIONS, "n"), Any),
    (
        "reflog",
        Listed("--oneline --date --format --max-count", "n"),
        GitOperands::None,
    ),
    (
        "reflog show",
        Listed("--oneline --date --format --max-count", "n"),
        Any,
    ),
    (
        "stash list",
        Listed("--oneline --date --format --max-count --stat", "n"),
        GitOperands::None,
    ),
    (
        "stash show",
        WithDiff("--patch --include-untracked --only-untracked", "pu"),
        Any,
    ),
    (
        "branch",
        Listed(
            "--list --all --remotes --verbose --show-current --contains --no-contains \
             --merged --no-merged --points-at --sort --column --no-column --ignore-case \
             --color --no-color",
            "arvi",
        ),
        WhenListing,
    ),
    (
        "tag",
        Listed(
            "--list --contains --no-contains --merged --no-merged --points-at --sort --column \
             --no-column",
            "ni",
        ),
        WhenListing,
    ),
    ("remote", Listed("--verbose", "v"), GitOperands::None),
    ("remote get-url", Listed("--push --all", ""), Any),
    (
        "worktree list",
        Listed("--porcelain --verbose", "vz"),
        GitOperands::None,
    ),
    (
        "rev-parse",
        Listed(
            "--abbrev-ref --short --verify --quiet --show-toplevel --show-prefix --show-cdup \
             --git-dir --absolute-git-dir --git-common-dir --is-inside-work-tree \
             --is-inside-git-dir --is-bare-repository --is-shallow-repository --symbolic --symbolic-full-name \
             --all --branches --tags --remotes --show-superproject-working-tree --git-path \
             --sq --revs-only --no-revs --default --path-format --show-object-format",
            "q",
        ),
        Any,
    ),
    (
        "ls-files",
        Listed(
            "--cached --deleted --modified --others --ignored --stage --unmerged --killed \
             --exclude-standard --error-unmatch --full-name --abbrev --eol --exclude \
             --directory --no-empty-directory --deduplicate --format",
            "cdmoisuktvzx",
        ),
        Any,
    ),
    (
        "ls-tree",
        Listed(
            "--name-only --name-status --full-name --full-tree --long --object-only --abbrev",
            "drtlz",
        ),
        Any,
    ),
    ("cat-file", Listed("", "tesp"), Any),
    (
        "describe",
        Listed(
            "--tags --always --dirty --abbrev --long --all --exact-match --contains --first-parent \
             --match --exclude --candidates",
            "",
        ),
        Any,
    ),
    (
        "merge-base",
        Listed(
            "--all --octopus --is-ancestor --independent --fork-point",
            "a",
        ),
        Any,
    ),
    (
        "name-rev",
        Listed("--tags --name-only --always --all", ""),
        Any,
    ),
    (
        "show-ref",
        Listed(
            "--heads --branches --tags --head --dereference --hash --abbrev --verify --quiet",
            "dsq",
        ),
        Any,
    ),
    (
        "show-branch",
        Listed("--all --remotes --current --list", "ar"),
        Any,
    ),
    (
        "count-objects",
        Listed("--verbose --human-readable", "vH"),
        GitOperands::None,
    ),
    (
        "check-ignore",
        Listed("--quiet --verbose --non-matching --no-index", "qvn"),
        Any,
    ),
    (
        "blame",
        Listed(
            "--no-textconv --line-porcelain --porcelain --date --abbrev --root --show-name \
             --show-number --show-email",
            "LesfnwltpM",
        ),
        Any,
    ),
    (
        "grep",
        Listed(
            "--line-number --ignore-case --files-with-matches --name-only --files-without-match \
             --count --word-regexp --extended-regexp --fixed-strings --perl-regexp \
             --basic-regexp --heading --break --show-function --function-context --context \
             --after-context --before-context --cached --untracked --no-index --and --or \
             --not --all-match --color --no-color --max-depth --full-name --null --only-matching \
             --max-count --invert-match --quiet --column",
            "niwlLcEFPGheHqvoABCWpIzm",
        ),
        Any,
    ),
];

/// Options before the subcommand that do not affect whether it is read-only.
const GLOBAL_OPTIONS: &[&str] = &[
    "--no-pager",
    "-P",
    "--no-optional-locks",
    "--literal-pathspecs",
    "--no-replace-objects",
];

/// Options with which `branch` and `tag` list names.
const LIST_OPTIONS: &[&str] = &[
    "--list",
    "--contains",
    "--no-contains",
    "--merged",
    "--no-merged",
    "--points-at",
];

/// Frequent options after which `--` is never a value, in every read-only form that has them.
const OPTIONS_WITHOUT_VALUE: &[&str] = &[
    "-p",
    "-w",
    "--cached",
    "--name-only",
    "--name-status",
    "--numstat",
    "--oneline",
    "--patch",
    "--shortstat",
    "--staged",
    "--stat",
];

/// Returns why `git` with these arguments is not known to be read-only. `None` if it is.
pub(super) fn check_git(words: &[ShellWord]) -> Option<&'static str> {
    let global = words
        .iter()
        .take_while(|word| GLOBAL_OPTIONS.contains(&word.text.as_str()))
        .count();
    let words = &words[global..];
    if let [version] = words
        && version.text == "--version"
    {
        return None;
    }
    let mut forms = READ_ONLY_FORMS
        .iter()
        .filter_map(|row| Some((row, strip_subcommand(row.0, words)?)));
    if forms.clone().next().is_none() {
        return Some("is not known to be read-only in this form");
    }
    let is_read_only =
        forms.any(|((_, options, operands), rest)| is_read_only(options, *operands, rest));
    (!is_read_only).then_some("may not be read-only in this form")
}

fn strip_subcommand<'a>(name: &str, words: &'a [ShellWord]) -> Option<&'a [ShellWord]> {
    let parts = name.split(' ').count();
    let same = words.len() >= parts
        && name
            .split(' ')
            .zip(words)
            .all(|(part, word)| part == word.text);
    same.then(|| &words[parts..])
}

fn is_read_only(known: &GitOptions, operands: GitOperands, words: &[ShellWord]) -> bool {
    let end = words
        .iter()
        .position(|word| word.text == "--")
        .unwrap_or(words.len());
    let (before, after) = words.split_at(end);
    let (options, revisions): (Vec<&ShellWord>, Vec<&ShellWord>) =
        before.iter().partition(|word| word.text.starts_with('-'));
    let lists = || {
        options
            .iter()
            .any(|word| LIST_OPTIONS.contains(&word.text.split('=').next().unwrap_or_default()))
    };
    // In `git grep -e -- -Oprogram`, the two dashes are a value, and an option follows.
    let last = before.last().map_or("", |word| &word.text);
    let may_be_value = last.starts_with('-') && !OPTIONS_WITHOUT_VALUE.contains(&last);
    let may_be_option = |word: &ShellWord| {
        word.text != "--" && word.text.starts_with('-') || may_be_value && word.may_become_option()
    };
    before
        .iter()
        .all(|word| !word.may_become_option() && !checks_signatures(&word.text))
        && !after.iter().any(may_be_option)
        && options.iter().all(|word| known.contain(&word.text))
        && match operands {
            Any => true,
            GitOperands::None => revisions.is_empty() && after.is_empty(),
            WhenListing => (revisions.is_empty() && after.is_empty()) || lists(),
        }
}

impl GitOptions {
    /// Returns whether a word is one of these options.
    fn contain(&self, option: &str) -> bool {
        match self {
            Listed(long, short) => is_known_option(option, long, short),
            WithDiff(long, short) => {
                is_known_option(option, long, &format!("{DIFF_LETTERS}{short}"))
                    || is_diff_option(option)
            }
            WithLog(long, short) => {
                let letters = format!("{DIFF_LETTERS}{LOG_LETTERS}{short}");
                is_known_option(option, long, &letters)
                    || is_known_option(option, LOG_OPTIONS, &letters)
                    || is_diff_option(option)
            }
        }
    }
}

fn is_diff_option(option: &str) -> bool {
    let has_value = option
        .strip_prefix('-')
        .is_some_and(|letters| letters.starts_with(VALUED_LETTERS));
    has_value || is_known_option(option, DIFF_OPTIONS, DIFF_LETTERS)
}

fn is_known_option(option: &str, long: &str, short: &str) -> bool {
    if option.starts_with("--") {
        let name = option.split('=').next().unwrap_or_default();
        return long.split_ascii_whitespace().any(|known| known == name);
    }
    let letters =
        option[1..].trim_end_matches(|c: char| c.is_ascii_digit() || ",+/:.%".contains(c));
    // `-uno` and `-uall` are one option of `status`.
    let letters = match letters {
        "uno" | "uall" | "unormal" if short.contains('u') => "u",
        letters => letters,
    };
    letters.chars().all(|letter| short.contains(letter))
}

/// Returns whether a word makes git check signatures, which runs a program from the configuration.
fn checks_signatures(word: &str) -> bool {
    ["%G", "%+G", "%-G", "% G", "signature"]
        .iter()
        .any(|text| word.contains(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_long_option_starts_with_two_dashes() {
        let of_forms = READ_ONLY_FORMS.iter().map(|(_, options, _)| match options {
            Listed(long, _) | WithDiff(long, _) | WithLog(long, _) => *long,
        });
        for options in of_forms.chain([DIFF_OPTIONS, LOG_OPTIONS]) {
            for option in options.split_ascii_whitespace() {
                let name = option.strip_prefix("--").unwrap_or_default();
                assert!(!name.is_empty() && !name.ends_with('-'), "{option}");
            }
        }
    }
}
