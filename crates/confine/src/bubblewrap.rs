//! The same wall built by `bwrap`, for systems that grant namespaces to it and not to us.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use seccompiler::BpfProgram;

use crate::filter::{self, Keeper};
use crate::mounts::{folders_above, is_below, outermost};
use crate::plan::{Plan, rlimits};
use crate::{Command, ConfineError, Confinement, Network, sockets};

/// A plan that starts the command through `bwrap`.
pub(crate) fn plan(
    mut command: Command,
    confinement: &Confinement,
    bwrap: &Path,
) -> Result<Plan, ConfineError> {
    let filters: Vec<OwnedFd> = filter::programs(
        confinement.network,
        confinement.named_sockets,
        Keeper::Namespace,
    )?
    .iter()
    .map(|program| {
        readable(program).map_err(|error| ConfineError::System {
            doing: "passing a filter",
            error,
        })
    })
    .collect::<Result<_, _>>()?;
    let mut argv: Vec<OsString> = vec![bwrap.into()];
    let mut say = |words: &[&dyn AsRef<std::ffi::OsStr>]| {
        argv.extend(words.iter().map(|word| word.as_ref().into()))
    };
    say(&[
        &"--unshare-user",
        &"--unshare-pid",
        &"--unshare-ipc",
        &"--new-session",
        &"--die-with-parent",
    ]);
    say(&[
        &"--cap-drop",
        &"ALL",
        &"--ro-bind",
        &"/",
        &"/",
        &"--dev",
        &"/dev",
        &"--proc",
        &"/proc",
    ]);
    if confinement.network == Network::Off {
        say(&[&"--unshare-net"]);
    }
    for path in &confinement.writable {
        say(&[&"--bind", path, path]);
    }
    let writable = outermost(&confinement.writable);
    for path in confinement.protected.iter().chain(&confinement.hidden) {
        for folder in folders_above(path, &writable)
            .into_iter()
            .filter(|folder| folder.is_dir())
        {
            say(&[&"--bind", &folder, &folder]);
        }
    }
    for path in &confinement.protected {
        say(&[&"--ro-bind", path, path]);
    }
    for path in confinement
        .hidden
        .iter()
        .filter_map(|path| path.canonicalize().ok())
    {
        if path.is_dir() {
            say(&[
                &"--perms",
                &"0555",
                &"--tmpfs",
                &path,
                &"--remount-ro",
                &path,
            ]);
        } else {
            say(&[&"--ro-bind", &"/dev/null", &path]);
        }
    }
    for path in sockets::listening() {
        if is_below(&path, &confinement.hidden) {
            continue;
        }
        say(&[&"--ro-bind-try", &"/dev/null", &path]);
    }
    for filter in &filters {
        say(&[&"--add-seccomp-fd", &filter.as_raw_fd().to_string()]);
    }
    say(&[&"--chdir", &command.cwd, &"--"]);
    argv.append(&mut command.argv);
    let mut plan = Plan::open(Command { argv, ..command })?;
    plan.inherited = filters;
    plan.rlimits = rlimits(confinement);
    Ok(plan)
}

/// A pipe that holds the program. A filter is far smaller than what a pipe holds.
fn readable(program: &BpfProgram) -> std::io::Result<OwnedFd> {
    let (reader, mut writer) = std::io::pipe()?;
    for step in program {
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&step.code.to_ne_bytes());
        bytes[2] = step.jt;
        bytes[3] = step.jf;
        bytes[4..].copy_from_slice(&step.k.to_ne_bytes());
        writer.write_all(&bytes)?;
    }
    Ok(reader.into())
}
