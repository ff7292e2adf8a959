//! The read-only forms of `git`. Forms that show the content of files are not included, because the
//! configuration of a repository can name programs for that (`diff.external`, `textconv`).

use super::words::{ShellWord, WordKind};

/// Which operands a subcommand can have in its read-only form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GitOperands {
    Any,
    None,
    /// Operands only together with one of `LIST_OPTIONS`. Otherwise they name something to create.
    WhenListing,
    /// Only `REVISION:PATH`, which shows a file of a commit.
    RevisionPaths,
    /// Any operands, but one of `SUMMARY_OPTIONS` is required. Otherwise the command shows
    /// differences.
    SummaryRequired,
}
use GitOperands::{Any, RevisionPaths, SummaryRequired, WhenListing};

/// Options that select and format commits without showing their differences.
const LOG_OPTIONS: &str = "--oneline --graph --decorate --no-decorate --all --branches --tags \
    --remotes --reverse --merges --no-merges --first-parent --abbrev-commit --no-abbrev-commit \
    --date --format --pretty --color --no-color --follow --since --until --after --before --author \
    --committer --grep --max-count --skip --left-right --cherry-pick --topo-order --date-order \
    --author-date-order --full-history --simplify-by-decoration --no-patch --relative-date --stat \
    --shortstat --numstat --name-only --name-status --summary --dirstat --count --not \
    --ancestry-path";

/// The read-only forms: subcommand, long options, letters of short options, operands.
const READ_ONLY_FORMS: &[(&str, &str, &str, GitOperands)] = &[
    (
        "status",
        "--short --branch --porcelain --long --untracked-files --ignored --renames --no-renames \
        --show-stash --ahead-behind --no-ahead-behind --column --no-column",
        "sbuz",
        Any,
    ),
    ("log", LOG_OPTIONS, "nisEFP", Any),
    (
        "shortlog",
        "--summary --numbered --email --since --until --no-merges --all --group",
        "snec",
        Any,
    ),
    ("rev-list", LOG_OPTIONS, "n", Any),
    (
        "reflog",
        "--oneline --date --format --max-count",
        "n",
        GitOperands::None,
    ),
    (
        "reflog show",
        "--oneline --date --format --max-count",
        "n",
        Any,
    ),
    (
        "stash list",
        "--oneline --date --format --max-count --stat",
        "n",
        GitOperands::None,
    ),
    (
        "diff",
        "--stat --shortstat --numstat --name-only --name-status --summary --dirstat --cached \
        --staged --merge-base --no-renames --find-renames --color --no-color --no-ext-diff \
        --no-textconv",
        "wb",
        SummaryRequired,
    ),
    (
        "show",
        "--stat --shortstat --numstat --name-only --name-status --summary --dirstat --no-patch \
        --oneline --format --pretty --date --no-color --color --no-ext-diff --no-textconv",
        "s",
        SummaryRequired,
    ),
    ("show", "", "", RevisionPaths),
    (
        "branch",
        "--list --all --remotes --verbose --show-current --contains --no-contains --merged \
        --no-merged --points-at --sort --column --no-column --ignore-case --color --no-color",
        "arvi",
        WhenListing,
    ),
    (
        "tag",
        "--list --contains --no-contains --merged --no-merged --points-at --sort --column \
        --no-column",
        "ni",
        WhenListing,
    ),
    ("remote", "--verbose", "v", GitOperands::None),
    ("remote get-url", "--push --all", "", Any),
    (
        "worktree list",
        "--porcelain --verbose",
        "vz",
        GitOperands::None,
    ),
    (
        "rev-parse",
        "--abbrev-ref --short --verify --quiet --show-toplevel --show-prefix --show-cdup --git-dir \
        --absolute-git-dir --git-common-dir --is-inside-work-tree --is-inside-git-dir \
        --is-bare-repository --is-shallow-repository --symbolic --symbolic-full-name --all \
        --branches --tags --remotes --show-superproject-working-tree --git-path --sq --revs-only \
        --no-revs --default --path-format --show-object-format",
        "q",
        Any,
    ),
    (
        "ls-files",
        "--cached --deleted --modified --others --ignored --stage --unmerged --killed \
        --exclude-standard --error-unmatch --full-name --abbrev --eol --exclude --directory \
        --no-empty-directory --deduplicate --format",
        "cdmoisuktvzx",
        Any,
    ),
    (
        "ls-tree",
        "--name-only --name-status --full-name --full-tree --long --object-only --abbrev",
        "drtlz",
        Any,
    ),
    ("cat-file", "", "tesp", Any),
    (
        "describe",
        "--tags --always --dirty --abbrev --long --all --exact-match --contains --first-parent \
        --match --exclude --candidates",
        "",
        Any,
    ),
    (
        "merge-base",
        "--all --octopus --is-ancestor --independent --fork-point",
        "a",
        Any,
    ),
    ("name-rev", "--tags --name-only --always --all", "", Any),
    (
        "show-ref",
        "--heads --branches --tags --head --dereference --hash --abbrev --verify --quiet",
        "dsq",
        Any,
    ),
    ("show-branch", "--all --remotes --current --list", "ar", Any),
    (
        "count-objects",
        "--verbose --human-readable",
        "vH",
        GitOperands::None,
    ),
    (
        "check-ignore",
        "--quiet --verbose --non-matching --no-index",
        "qvn",
        Any,
    ),
    (
        "blame",
        "--no-textconv --line-porcelain --porcelain --date --abbrev --root --show-name \
        --show-number --show-email",
        "LesfnwltpM",
        Any,
    ),
    (
        "grep",
        "--line-number --ignore-case --files-with-matches --name-only --files-without-match \
        --count --word-regexp --extended-regexp --fixed-strings --perl-regexp --basic-regexp \
        --heading --break --show-function --function-context --context --after-context \
        --before-context --cached --untracked --no-index --and --or --not --all-match --color \
        --no-color --max-depth --full-name --null --only-matching --max-count --invert-match \
        --quiet --column",
        "niwlLcEFPGheHqvoABCWpIzm",
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

/// Options with which `diff` and `show` print a summary instead of differences.
const SUMMARY_OPTIONS: &[&str] = &[
    "--stat",
    "--shortstat",
    "--numstat",
    "--name-only",
    "--name-status",
    "--summary",
    "--dirstat",
    "--no-patch",
    "-s",
];
/// Options that keep git from running configured programs. Both are needed.
const NO_PROGRAM_OPTIONS: &[&str] = &["--no-ext-diff", "--no-textconv"];

/// Returns why `git` with these arguments is not known to be read-only. `None` if it is.
pub(super) fn objection(words: &[ShellWord]) -> Option<&'static str> {
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
    let is_read_only = forms.any(|((name, long, short, operands), rest)| {
        is_read_only(name, long, short, *operands, rest)
    });
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

fn is_read_only(
    name: &str,
    long: &str,
    short: &str,
    operands: GitOperands,
    words: &[ShellWord],
) -> bool {
    let end = words
        .iter()
        .position(|word| word.text == "--")
        .unwrap_or(words.len());
    let (before, after) = words.split_at(end);
    let (options, revisions): (Vec<&ShellWord>, Vec<&ShellWord>) =
        before.iter().partition(|word| word.text.starts_with('-'));
    let has_any = |names: &[&str]| {
        options
            .iter()
            .any(|word| names.contains(&word.text.split('=').next().unwrap_or_default()))
    };
    let runs_no_programs = NO_PROGRAM_OPTIONS.iter().all(|option| has_any(&[option]));
    before
        .iter()
        .all(|word| !word.may_become_option() && !checks_signatures(&word.text))
        && options
            .iter()
            .all(|word| is_known_option(&word.text, long, short))
        && (name != "blame" || has_any(&NO_PROGRAM_OPTIONS[1..]))
        && match operands {
            Any => true,
            GitOperands::None => revisions.is_empty() && after.is_empty(),
            WhenListing => (revisions.is_empty() && after.is_empty()) || has_any(LIST_OPTIONS),
            RevisionPaths => {
                !revisions.is_empty()
                    && after.is_empty()
                    && revisions.iter().all(|word| is_revision_path(word))
            }
            SummaryRequired => has_any(SUMMARY_OPTIONS) || runs_no_programs,
        }
}

fn is_known_option(option: &str, long: &str, short: &str) -> bool {
    if option.starts_with("--") {
        let name = option.split('=').next().unwrap_or_default();
        return long.split_ascii_whitespace().any(|known| known == name);
    }
    let letters = option[1..].trim_end_matches(|c: char| c.is_ascii_digit() || ",+/:.".contains(c));
    // `-uno` and `-uall` are one option of `status`.
    let letters = if short.contains('u') {
        letters.strip_prefix('u').map_or(letters, |_| "u")
    } else {
        letters
    };
    letters.chars().all(|letter| short.contains(letter))
}

/// Returns whether a word makes git check signatures, which runs a program from the configuration.
fn checks_signatures(word: &str) -> bool {
    ["%G", "%+G", "%-G", "% G", "signature"]
        .iter()
        .any(|text| word.contains(text))
}

/// Returns whether a word is a path in a revision, such as `HEAD:src/main.rs`. Searches in commit
/// messages, such as `:/words` and `HEAD^{/words}`, are not.
fn is_revision_path(word: &ShellWord) -> bool {
    let revision = word.text.split_once(':').map(|(revision, _)| revision);
    word.kind == WordKind::Literal
        && revision.is_some_and(|revision| !revision.is_empty() && !revision.contains('{'))
}
