//! Commands that need approval under every policy, and why. They are recognised by their words,
//! which catches mistakes but not attacks. Attacks are stopped by the confinement.

use super::flags::{before_end_of_options, find_flag, operands};
use super::origins::downloaded_code_danger;
use super::words::{ShellWord, SimpleCommand};

const FORCED_DELETE: &str = "deletes files by force";
const DISCARDS_CHANGES: &str = "discards uncommitted changes";
const DISCARDS_HISTORY: &str = "discards commits or history";
const CHANGES_REMOTE: &str = "overwrites or deletes data on a remote";
const PUBLISHES: &str = "publishes a package or changes a published one";
const CHANGES_INFRASTRUCTURE: &str = "deletes or changes running infrastructure";
const OVERWRITES_DISK: &str = "overwrites a disk or device";
const DESTROYS_CONTENT: &str = "destroys the content of files or disks";
const RUNS_AS_OTHER_USER: &str = "runs as another user";
const STOPS_MACHINE: &str = "shuts down or restarts the machine";
const STOPS_PROCESSES: &str = "kills processes that it did not start";
const DELETES_DATABASE_DATA: &str = "deletes data from a database";
const DISABLES_FIREWALL: &str = "disables the firewall";
const DELETES_FILES: &str = "deletes files";
const PRIVILEGED_CONTAINER: &str = "starts a container with access to the host";

/// A command, options of which at least one must be present (empty: none needed), and the reason.
const DANGEROUS_COMMANDS: &[(&str, &str, &str)] = &[
    ("sudo", "", RUNS_AS_OTHER_USER),
    ("sudoedit", "", RUNS_AS_OTHER_USER),
    ("doas", "", RUNS_AS_OTHER_USER),
    ("su", "", RUNS_AS_OTHER_USER),
    ("pkexec", "", RUNS_AS_OTHER_USER),
    ("run0", "", RUNS_AS_OTHER_USER),
    ("runuser", "", RUNS_AS_OTHER_USER),
    ("gosu", "", RUNS_AS_OTHER_USER),
    ("su-exec", "", RUNS_AS_OTHER_USER),
    ("rm", "-f --force --no-preserve-root", FORCED_DELETE),
    ("grm", "-f --force --no-preserve-root", FORCED_DELETE),
    ("srm", "", DESTROYS_CONTENT),
    ("shred", "", DESTROYS_CONTENT),
    ("find", "-delete", DELETES_FILES),
    ("gfind", "-delete", DELETES_FILES),
    (
        "rsync",
        "--delete --del --delete-before --delete-during --delete-delay --delete-after \
         --delete-excluded --remove-source-files",
        DELETES_FILES,
    ),
    (
        "git push",
        "-f --force --force-with-lease --force-if-includes --mirror --delete -d --prune",
        CHANGES_REMOTE,
    ),
    ("git reset", "--hard", DISCARDS_CHANGES),
    ("git clean", "-f --force", DISCARDS_CHANGES),
    ("git checkout", "-f --force", DISCARDS_CHANGES),
    (
        "git switch",
        "-f --force --discard-changes",
        DISCARDS_CHANGES,
    ),
    ("git rm", "-f --force", FORCED_DELETE),
    ("git stash drop", "", DISCARDS_CHANGES),
    ("git stash clear", "", DISCARDS_CHANGES),
    ("git worktree remove", "-f --force", DISCARDS_CHANGES),
    ("git branch", "-D -f --force", DISCARDS_HISTORY),
    ("git filter-branch", "", DISCARDS_HISTORY),
    ("git filter-repo", "", DISCARDS_HISTORY),
    ("git reflog expire", "", DISCARDS_HISTORY),
    ("git reflog delete", "", DISCARDS_HISTORY),
    ("git update-ref", "-d", DISCARDS_HISTORY),
    ("git gc", "--prune", DISCARDS_HISTORY),
    ("git prune", "", DISCARDS_HISTORY),
    ("wipefs", "", OVERWRITES_DISK),
    ("fdisk", "", OVERWRITES_DISK),
    ("sfdisk", "", OVERWRITES_DISK),
    ("cfdisk", "", OVERWRITES_DISK),
    ("gdisk", "", OVERWRITES_DISK),
    ("sgdisk", "", OVERWRITES_DISK),
    ("parted", "", OVERWRITES_DISK),
    ("mkfs", "", OVERWRITES_DISK),
    ("mke2fs", "", OVERWRITES_DISK),
    ("mkswap", "", OVERWRITES_DISK),
    ("blkdiscard", "", OVERWRITES_DISK),
    ("cryptsetup luksFormat", "", OVERWRITES_DISK),
    ("cryptsetup erase", "", OVERWRITES_DISK),
    ("diskutil eraseDisk", "", OVERWRITES_DISK),
    ("diskutil eraseVolume", "", OVERWRITES_DISK),
    ("diskutil partitionDisk", "", OVERWRITES_DISK),
    ("lvremove", "", OVERWRITES_DISK),
    ("vgremove", "", OVERWRITES_DISK),
    ("pvremove", "", OVERWRITES_DISK),
    ("zpool destroy", "", OVERWRITES_DISK),
    ("zfs destroy", "", OVERWRITES_DISK),
    ("shutdown", "", STOPS_MACHINE),
    ("reboot", "", STOPS_MACHINE),
    ("halt", "", STOPS_MACHINE),
    ("poweroff", "", STOPS_MACHINE),
    ("kexec", "", STOPS_MACHINE),
    ("init 0", "", STOPS_MACHINE),
    ("init 6", "", STOPS_MACHINE),
    ("telinit 0", "", STOPS_MACHINE),
    ("telinit 6", "", STOPS_MACHINE),
    ("systemctl poweroff", "", STOPS_MACHINE),
    ("systemctl reboot", "", STOPS_MACHINE),
    ("systemctl halt", "", STOPS_MACHINE),
    ("systemctl kexec", "", STOPS_MACHINE),
    ("killall", "", STOPS_PROCESSES),
    ("killall5", "", STOPS_PROCESSES),
    ("pkill", "-9 -KILL -SIGKILL --signal", STOPS_PROCESSES),
    ("crontab", "-r", "deletes all scheduled jobs of the user"),
    ("history", "-c", "clears the shell history"),
    ("iptables", "-F --flush", DISABLES_FIREWALL),
    ("ip6tables", "-F --flush", DISABLES_FIREWALL),
    ("nft flush", "", DISABLES_FIREWALL),
    ("ufw disable", "", DISABLES_FIREWALL),
    ("ufw reset", "", DISABLES_FIREWALL),
    ("npm publish", "", PUBLISHES),
    ("npm unpublish", "", PUBLISHES),
    ("yarn publish", "", PUBLISHES),
    ("yarn npm publish", "", PUBLISHES),
    ("pnpm publish", "", PUBLISHES),
    ("bun publish", "", PUBLISHES),
    ("cargo publish", "", PUBLISHES),
    ("cargo yank", "", PUBLISHES),
    ("gem push", "", PUBLISHES),
    ("twine upload", "", PUBLISHES),
    ("poetry publish", "", PUBLISHES),
    ("uv publish", "", PUBLISHES),
    ("vsce publish", "", PUBLISHES),
    ("gh repo delete", "", CHANGES_REMOTE),
    ("gh release delete", "", CHANGES_REMOTE),
    ("terraform destroy", "", CHANGES_INFRASTRUCTURE),
    (
        "terraform apply",
        "-auto-approve --auto-approve -destroy --destroy",
        CHANGES_INFRASTRUCTURE,
    ),
    ("tofu destroy", "", CHANGES_INFRASTRUCTURE),
    (
        "tofu apply",
        "-auto-approve --auto-approve -destroy --destroy",
        CHANGES_INFRASTRUCTURE,
    ),
    ("pulumi destroy", "", CHANGES_INFRASTRUCTURE),
    ("pulumi up", "-y --yes", CHANGES_INFRASTRUCTURE),
    ("kubectl delete", "", CHANGES_INFRASTRUCTURE),
    ("kubectl drain", "", CHANGES_INFRASTRUCTURE),
    ("helm uninstall", "", CHANGES_INFRASTRUCTURE),
    ("helm delete", "", CHANGES_INFRASTRUCTURE),
    ("vagrant destroy", "", CHANGES_INFRASTRUCTURE),
    ("aws s3 rb", "", CHANGES_INFRASTRUCTURE),
    ("aws s3 rm", "--recursive", CHANGES_INFRASTRUCTURE),
    ("docker system prune", "", CHANGES_INFRASTRUCTURE),
    ("docker volume rm", "", CHANGES_INFRASTRUCTURE),
    ("docker volume prune", "", CHANGES_INFRASTRUCTURE),
    (
        "docker compose down",
        "-v --volumes",
        CHANGES_INFRASTRUCTURE,
    ),
    ("podman system prune", "", CHANGES_INFRASTRUCTURE),
    ("docker run", "--privileged", PRIVILEGED_CONTAINER),
    ("docker create", "--privileged", PRIVILEGED_CONTAINER),
    ("podman run", "--privileged", PRIVILEGED_CONTAINER),
    ("dropdb", "", DELETES_DATABASE_DATA),
    ("redis-cli flushall", "", DELETES_DATABASE_DATA),
    ("redis-cli flushdb", "", DELETES_DATABASE_DATA),
    ("prisma migrate reset", "", DELETES_DATABASE_DATA),
    ("rails db:drop", "", DELETES_DATABASE_DATA),
    ("rake db:drop", "", DELETES_DATABASE_DATA),
];

const GIT_OPTIONS_WITH_VALUE: &str =
    "-C -c --git-dir --work-tree --namespace --exec-path --config-env --super-prefix";

/// Options before a subcommand that take the next word as their value, by program.
const OPTIONS_WITH_VALUE: &[(&str, &str)] = &[
    ("git", GIT_OPTIONS_WITH_VALUE),
    (
        "docker",
        "-H --host --context -l --log-level --config -f --file -p --project-name",
    ),
    ("podman", "--connection --url --root --log-level"),
    (
        "kubectl",
        "-n --namespace --context --kubeconfig --cluster --user -s --server --token",
    ),
    ("helm", "-n --namespace --kube-context --kubeconfig"),
    ("npm", "--prefix -w --workspace --registry --tag"),
    ("pnpm", "-C --dir -F --filter"),
    ("yarn", "--cwd"),
    ("cargo", "--manifest-path --config --color -C -Z --registry"),
    ("gh", "-R --repo"),
    ("aws", "--profile --region --endpoint-url --output"),
    ("systemctl", "-H --host -M --machine -t --type"),
    ("redis-cli", "-h -p -a -n -u --user --pass"),
];

/// Database clients, whose arguments or input may be SQL statements.
const DATABASE_CLIENTS: &[&str] = &[
    "psql",
    "mysql",
    "mariadb",
    "sqlite3",
    "sqlcmd",
    "duckdb",
    "clickhouse-client",
    "clickhouse",
    "cockroach",
];

/// Devices that store no data.
const HARMLESS_DEVICES: &[&str] = &[
    "null", "zero", "full", "stdin", "stdout", "stderr", "tty", "random", "urandom", "fd/", "shm/",
    "pts/", "tcp/", "udp/",
];

/// Returns why a simple command is dangerous, by its words and its standard input. Does not look at
/// the commands that it runs.
pub(super) fn danger(simple: &SimpleCommand) -> Option<&'static str> {
    let (program, arguments) = simple.words.split_first()?;
    let name = program.name();
    // `mkfs.ext4`, `mkfs.xfs` …
    let name =
        name.split_once('.').map_or(
            name.as_str(),
            |(stem, _)| if stem == "mkfs" { stem } else { &name },
        );
    listed_danger(name, arguments)
        .or_else(|| operand_danger(name, arguments, simple))
        .or_else(|| downloaded_code_danger(simple))
}

/// Returns why a redirection is dangerous.
pub(super) fn redirect_danger(target: &ShellWord) -> Option<&'static str> {
    if target.text.starts_with("/dev/tcp/") || target.text.starts_with("/dev/udp/") {
        return Some("connects to another machine");
    }
    is_device(&target.text).then_some(OVERWRITES_DISK)
}

/// Returns why the words after an unknown program are dangerous if that program runs them. Only
/// commands that are dangerous because of an option or a path count: names alone are too common
/// among arguments, as in `install parted`.
pub(super) fn argument_danger(words: &[ShellWord]) -> Option<&'static str> {
    let (program, arguments) = words.split_first()?;
    let name = program.name();
    let deletes_everything = || {
        let is_rm = ["rm", "grm"].contains(&name.as_str());
        let simple = is_rm.then(|| SimpleCommand::new(words.to_vec()))?;
        operand_danger(&name, arguments, &simple)
    };
    let starts_command = DANGEROUS_COMMANDS
        .iter()
        .any(|(command, ..)| command.split(' ').next() == Some(&name));
    let with_options = || {
        let mut rows = listed_dangers(&name, arguments);
        rows.find(|(_, flags, _)| !flags.is_empty())
            .map(|(.., why)| *why)
    };
    starts_command
        .then(|| with_options().or_else(deletes_everything))
        .flatten()
}

/// Returns the reason in `DANGEROUS_COMMANDS` that matches the command.
fn listed_danger(name: &str, arguments: &[ShellWord]) -> Option<&'static str> {
    let found = listed_dangers(name, arguments).next();
    found.map(|(.., why)| *why)
}

/// Returns the rows of `DANGEROUS_COMMANDS` that match the command.
fn listed_dangers(
    name: &str,
    arguments: &[ShellWord],
) -> impl Iterator<Item = &'static (&'static str, &'static str, &'static str)> {
    let valued = OPTIONS_WITH_VALUE
        .iter()
        .find(|(program, _)| *program == name)
        .map_or("", |(_, valued)| valued);
    let operands = operands(arguments, valued);
    let options = possible_flags(name, arguments);
    let is_called = move |command: &str| {
        let Some(rest) = command.strip_prefix(name) else {
            return false;
        };
        let mut parts = rest.split(' ');
        parts.next() == Some("")
            && parts
                .enumerate()
                .all(|(at, part)| operands.get(at).is_some_and(|word| word.text == part))
    };
    DANGEROUS_COMMANDS
        .iter()
        .filter(move |(command, flags, _)| {
            is_called(command) && (flags.is_empty() || find_flag(options, flags).is_some())
        })
}

/// Returns the words that may be options of a program. After `--` these are names of files for
/// `rm`, whose options take no values.
fn possible_flags<'a>(name: &str, arguments: &'a [ShellWord]) -> &'a [ShellWord] {
    match name {
        "rm" | "grm" => before_end_of_options(arguments),
        _ => arguments,
    }
}

/// Returns why a command is dangerous because of its operands.
fn operand_danger(
    name: &str,
    arguments: &[ShellWord],
    simple: &SimpleCommand,
) -> Option<&'static str> {
    let operands = operands(arguments, "");
    let any = |test: fn(&str) -> bool| operands.iter().any(|word| test(&word.text));
    let recursive = find_flag(possible_flags(name, arguments), "-r -R --recursive").is_some();
    match name {
        "rm" | "grm" if recursive && any(is_everything) => {
            Some("deletes a whole system, home or work folder")
        }
        "chmod" | "chown" | "chgrp" if recursive && any(is_system_folder) => {
            Some("changes the permissions of system folders")
        }
        "kill" if arguments.len() > 1 && arguments[1..].iter().any(|word| word.text == "-1") => {
            Some(STOPS_PROCESSES)
        }
        "dd" => {
            any(|word| word.strip_prefix("of=").is_some_and(is_device)).then_some(OVERWRITES_DISK)
        }
        "cp" | "tee" | "install" | "ln"
            if operands.last().is_some_and(|word| is_device(&word.text)) =>
        {
            Some(OVERWRITES_DISK)
        }
        "mv" if operands
            .last()
            .is_some_and(|word| word.text.starts_with("/dev/")) =>
        {
            Some(OVERWRITES_DISK)
        }
        "truncate" if truncates_to_zero(arguments) => Some("empties files"),
        "git" => git_danger(arguments),
        "docker" | "podman"
            if arguments
                .iter()
                .any(|word| word.text.starts_with("/:") || word.text.contains("=/:")) =>
        {
            Some(PRIVILEGED_CONTAINER)
        }
        "nc" | "ncat" | "netcat" if find_flag(arguments, "-e -c --exec --sh-exec").is_some() => {
            Some("gives another machine a shell")
        }
        "socat"
            if any(|word| {
                ["exec:", "system:"]
                    .iter()
                    .any(|kind| word.to_ascii_lowercase().contains(kind))
            }) =>
        {
            Some("gives another machine a shell")
        }
        name if DATABASE_CLIENTS.contains(&name) => {
            let statements = arguments
                .iter()
                .map(|word| word.text.as_str())
                .chain(simple.input.text.as_deref());
            statements
                .into_iter()
                .any(deletes_data)
                .then_some(DELETES_DATABASE_DATA)
        }
        _ => None,
    }
}

/// Returns why a `git` command is dangerous because of its operands.
fn git_danger(arguments: &[ShellWord]) -> Option<&'static str> {
    let operands = operands(arguments, GIT_OPTIONS_WITH_VALUE);
    let (subcommand, rest) = operands.split_first()?;
    let all = |word: &&&ShellWord| [".", ":/", "*", "./", ":/*"].contains(&word.text.as_str());
    let staged_only = find_flag(arguments, "--staged -S").is_some()
        && find_flag(arguments, "--worktree -W").is_none();
    match subcommand.text.as_str() {
        "push" if rest.iter().any(|word| word.text.starts_with(['+', ':'])) => Some(CHANGES_REMOTE),
        "checkout" if rest.iter().any(|word| all(&word)) => Some(DISCARDS_CHANGES),
        "restore" if rest.iter().any(|word| all(&word)) && !staged_only => Some(DISCARDS_CHANGES),
        _ => None,
    }
}

/// Returns whether `truncate` sets the size to 0.
fn truncates_to_zero(arguments: &[ShellWord]) -> bool {
    let sizes = arguments
        .windows(2)
        .filter(|pair| find_flag(&pair[..1], "-s --size").is_some())
        .map(|pair| pair[1].text.as_str());
    let attached = arguments.iter().filter_map(|word| {
        word.text
            .strip_prefix("-s")
            .or_else(|| word.text.split_once('=').map(|(_, size)| size))
    });
    sizes
        .chain(attached)
        .any(|size| !size.is_empty() && size.bytes().all(|byte| byte == b'0'))
}

fn is_device(path: &str) -> bool {
    path.strip_prefix("/dev/").is_some_and(|device| {
        !HARMLESS_DEVICES.iter().any(|harmless| {
            device == *harmless || harmless.ends_with('/') && device.starts_with(harmless)
        })
    })
}

/// Returns whether a path is the root, a home folder or a folder directly below the root, except
/// `/tmp`.
fn is_system_folder(path: &str) -> bool {
    let folder = path.trim_end_matches(['*', '/']);
    let named = folder
        .strip_prefix(['/', '~'])
        .is_some_and(|rest| !rest.contains('/') && folder != "/tmp");
    named || (folder.is_empty() && path.starts_with('/'))
}

/// Returns whether a path means everything in the working folder, a parent folder or a system
/// folder.
fn is_everything(path: &str) -> bool {
    let only_dots = !path.is_empty()
        && path
            .split('/')
            .all(|part| matches!(part, "" | "." | ".." | "*" | ".*" | "**"));
    only_dots || is_system_folder(path)
}

fn deletes_data(statement: &str) -> bool {
    let statement = statement
        .to_ascii_lowercase()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let drops = [
        "drop table",
        "drop database",
        "drop schema",
        "truncate table",
        "truncate ",
    ];
    drops.iter().any(|drop| statement.contains(drop))
        || (statement.contains("delete from") && !statement.contains(" where "))
}
