//! Commands that need approval under every policy, and why. They are recognised by their words,
//! which catches mistakes but not attacks. Attacks are stopped by the confinement.

use super::flags::{flagged, operands};
use super::origins::runs_unread;
use super::words::{Simple, Word};

const BY_FORCE: &str = "deletes files by force";
const LOSES_WORK: &str = "discards uncommitted changes";
const LOSES_HISTORY: &str = "discards commits or history";
const REMOTE: &str = "overwrites or deletes data on a remote";
const PUBLISHES: &str = "publishes a package or changes a published one";
const INFRASTRUCTURE: &str = "deletes or changes running infrastructure";
const DISK: &str = "overwrites a disk or device";
const DESTROYS: &str = "destroys the content of files or disks";
const ANOTHER_USER: &str = "runs as another user";
const STOPS_MACHINE: &str = "shuts down or restarts the machine";
const STOPS_PROCESSES: &str = "kills processes that it did not start";
const DATABASE: &str = "deletes data from a database";
const FIREWALL: &str = "disables the firewall";
const DELETES: &str = "deletes files";
const CONTAINER: &str = "starts a container with access to the host";

/// A command, options of which at least one must be present (empty: none needed), and the reason.
const DANGERS: &[(&str, &str, &str)] = &[
    ("sudo", "", ANOTHER_USER),
    ("sudoedit", "", ANOTHER_USER),
    ("doas", "", ANOTHER_USER),
    ("su", "", ANOTHER_USER),
    ("pkexec", "", ANOTHER_USER),
    ("run0", "", ANOTHER_USER),
    ("runuser", "", ANOTHER_USER),
    ("gosu", "", ANOTHER_USER),
    ("su-exec", "", ANOTHER_USER),
    ("rm", "-f --force --no-preserve-root", BY_FORCE),
    ("grm", "-f --force --no-preserve-root", BY_FORCE),
    ("srm", "", DESTROYS),
    ("shred", "", DESTROYS),
    ("find", "-delete", DELETES),
    ("gfind", "-delete", DELETES),
    (
        "rsync",
        "--delete --del --delete-before --delete-during --delete-delay --delete-after \
         --delete-excluded --remove-source-files",
        DELETES,
    ),
    (
        "git push",
        "-f --force --force-with-lease --force-if-includes --mirror --delete -d --prune",
        REMOTE,
    ),
    ("git reset", "--hard", LOSES_WORK),
    ("git clean", "-f --force", LOSES_WORK),
    ("git checkout", "-f --force", LOSES_WORK),
    ("git switch", "-f --force --discard-changes", LOSES_WORK),
    ("git rm", "-f --force", BY_FORCE),
    ("git stash drop", "", LOSES_WORK),
    ("git stash clear", "", LOSES_WORK),
    ("git worktree remove", "-f --force", LOSES_WORK),
    ("git branch", "-D -f --force", LOSES_HISTORY),
    ("git filter-branch", "", LOSES_HISTORY),
    ("git filter-repo", "", LOSES_HISTORY),
    ("git reflog expire", "", LOSES_HISTORY),
    ("git reflog delete", "", LOSES_HISTORY),
    ("git update-ref", "-d", LOSES_HISTORY),
    ("git gc", "--prune", LOSES_HISTORY),
    ("git prune", "", LOSES_HISTORY),
    ("wipefs", "", DISK),
    ("fdisk", "", DISK),
    ("sfdisk", "", DISK),
    ("cfdisk", "", DISK),
    ("gdisk", "", DISK),
    ("sgdisk", "", DISK),
    ("parted", "", DISK),
    ("mkfs", "", DISK),
    ("mke2fs", "", DISK),
    ("mkswap", "", DISK),
    ("blkdiscard", "", DISK),
    ("cryptsetup luksFormat", "", DISK),
    ("cryptsetup erase", "", DISK),
    ("diskutil eraseDisk", "", DISK),
    ("diskutil eraseVolume", "", DISK),
    ("diskutil partitionDisk", "", DISK),
    ("lvremove", "", DISK),
    ("vgremove", "", DISK),
    ("pvremove", "", DISK),
    ("zpool destroy", "", DISK),
    ("zfs destroy", "", DISK),
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
    ("iptables", "-F --flush", FIREWALL),
    ("ip6tables", "-F --flush", FIREWALL),
    ("nft flush", "", FIREWALL),
    ("ufw disable", "", FIREWALL),
    ("ufw reset", "", FIREWALL),
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
    ("gh repo delete", "", REMOTE),
    ("gh release delete", "", REMOTE),
    ("terraform destroy", "", INFRASTRUCTURE),
    (
        "terraform apply",
        "-auto-approve --auto-approve -destroy --destroy",
        INFRASTRUCTURE,
    ),
    ("tofu destroy", "", INFRASTRUCTURE),
    (
        "tofu apply",
        "-auto-approve --auto-approve -destroy --destroy",
        INFRASTRUCTURE,
    ),
    ("pulumi destroy", "", INFRASTRUCTURE),
    ("pulumi up", "-y --yes", INFRASTRUCTURE),
    ("kubectl delete", "", INFRASTRUCTURE),
    ("kubectl drain", "", INFRASTRUCTURE),
    ("helm uninstall", "", INFRASTRUCTURE),
    ("helm delete", "", INFRASTRUCTURE),
    ("vagrant destroy", "", INFRASTRUCTURE),
    ("aws s3 rb", "", INFRASTRUCTURE),
    ("aws s3 rm", "--recursive", INFRASTRUCTURE),
    ("docker system prune", "", INFRASTRUCTURE),
    ("docker volume rm", "", INFRASTRUCTURE),
    ("docker volume prune", "", INFRASTRUCTURE),
    ("docker compose down", "-v --volumes", INFRASTRUCTURE),
    ("podman system prune", "", INFRASTRUCTURE),
    ("docker run", "--privileged", CONTAINER),
    ("docker create", "--privileged", CONTAINER),
    ("podman run", "--privileged", CONTAINER),
    ("dropdb", "", DATABASE),
    ("redis-cli flushall", "", DATABASE),
    ("redis-cli flushdb", "", DATABASE),
    ("prisma migrate reset", "", DATABASE),
    ("rails db:drop", "", DATABASE),
    ("rake db:drop", "", DATABASE),
];

const GIT_VALUED: &str =
    "-C -c --git-dir --work-tree --namespace --exec-path --config-env --super-prefix";

/// Options before a subcommand that take the next word as their value, by program.
const VALUED: &[(&str, &str)] = &[
    ("git", GIT_VALUED),
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
const DATABASES: &[&str] = &[
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
pub(super) fn danger(simple: &Simple) -> Option<&'static str> {
    let (program, arguments) = simple.words.split_first()?;
    let name = program.name();
    // `mkfs.ext4`, `mkfs.xfs` …
    let name =
        name.split_once('.').map_or(
            name.as_str(),
            |(stem, _)| if stem == "mkfs" { stem } else { &name },
        );
    listed(name, arguments)
        .or_else(|| by_its_targets(name, arguments, simple))
        .or_else(|| runs_unread(simple))
}

/// Returns why a redirection is dangerous.
pub(super) fn danger_of_file(target: &Word) -> Option<&'static str> {
    if target.text.starts_with("/dev/tcp/") || target.text.starts_with("/dev/udp/") {
        return Some("connects to another machine");
    }
    is_device(&target.text).then_some(DISK)
}

/// Returns the reason in `DANGEROUS_COMMANDS` that matches the command.
fn listed(name: &str, arguments: &[Word]) -> Option<&'static str> {
    let valued = VALUED
        .iter()
        .find(|(program, _)| *program == name)
        .map_or("", |(_, valued)| valued);
    let operands = operands(arguments, valued);
    let is_called = |command: &str| {
        let Some(rest) = command.strip_prefix(name) else {
            return false;
        };
        let mut parts = rest.split(' ');
        parts.next() == Some("")
            && parts
                .enumerate()
                .all(|(at, part)| operands.get(at).is_some_and(|word| word.text == part))
    };
    let found = DANGERS.iter().find(|(command, flags, _)| {
        is_called(command) && (flags.is_empty() || flagged(arguments, flags).is_some())
    });
    found.map(|(.., why)| *why)
}

/// Returns why a command is dangerous because of its operands.
fn by_its_targets(name: &str, arguments: &[Word], simple: &Simple) -> Option<&'static str> {
    let operands = operands(arguments, "");
    let any = |test: fn(&str) -> bool| operands.iter().any(|word| test(&word.text));
    let recursive = flagged(arguments, "-r -R --recursive").is_some();
    match name {
        "rm" | "grm" if recursive && any(is_wide) => {
            Some("deletes a whole system, home or work folder")
        }
        "chmod" | "chown" | "chgrp" if recursive && any(is_system) => {
            Some("changes the permissions of system folders")
        }
        "kill" if arguments.len() > 1 && arguments[1..].iter().any(|word| word.text == "-1") => {
            Some(STOPS_PROCESSES)
        }
        "dd" => any(|word| word.strip_prefix("of=").is_some_and(is_device)).then_some(DISK),
        "cp" | "tee" | "install" | "ln"
            if operands.last().is_some_and(|word| is_device(&word.text)) =>
        {
            Some(DISK)
        }
        "mv" if operands
            .last()
            .is_some_and(|word| word.text.starts_with("/dev/")) =>
        {
            Some(DISK)
        }
        "truncate" if empties(arguments) => Some("empties files"),
        "git" => git(arguments),
        "docker" | "podman"
            if arguments
                .iter()
                .any(|word| word.text.starts_with("/:") || word.text.contains("=/:")) =>
        {
            Some(CONTAINER)
        }
        "nc" | "ncat" | "netcat" if flagged(arguments, "-e -c --exec --sh-exec").is_some() => {
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
        name if DATABASES.contains(&name) => {
            let statements = arguments
                .iter()
                .map(|word| word.text.as_str())
                .chain(simple.input.text.as_deref());
            statements.into_iter().any(deletes_data).then_some(DATABASE)
        }
        _ => None,
    }
}

/// Returns why a `git` command is dangerous because of its operands.
fn git(arguments: &[Word]) -> Option<&'static str> {
    let operands = operands(arguments, GIT_VALUED);
    let (subcommand, rest) = operands.split_first()?;
    let all = |word: &&&Word| [".", ":/", "*", "./", ":/*"].contains(&word.text.as_str());
    let staged_only = flagged(arguments, "--staged -S").is_some()
        && flagged(arguments, "--worktree -W").is_none();
    match subcommand.text.as_str() {
        "push" if rest.iter().any(|word| word.text.starts_with(['+', ':'])) => Some(REMOTE),
        "checkout" if rest.iter().any(|word| all(&word)) => Some(LOSES_WORK),
        "restore" if rest.iter().any(|word| all(&word)) && !staged_only => Some(LOSES_WORK),
        _ => None,
    }
}

/// Returns whether `truncate` sets the size to 0.
fn empties(arguments: &[Word]) -> bool {
    let sizes = arguments
        .windows(2)
        .filter(|pair| flagged(&pair[..1], "-s --size").is_some())
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
fn is_system(path: &str) -> bool {
    let folder = path.trim_end_matches(['*', '/']);
    let named = folder
        .strip_prefix(['/', '~'])
        .is_some_and(|rest| !rest.contains('/') && folder != "/tmp");
    named || (folder.is_empty() && path.starts_with('/'))
}

/// Returns whether a path means everything in the working folder, a parent folder or a system
/// folder.
fn is_wide(path: &str) -> bool {
    let only_dots = !path.is_empty()
        && path
            .split('/')
            .all(|part| matches!(part, "" | "." | ".." | "*" | ".*" | "**"));
    only_dots || is_system(path)
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
