//! Confinement through `bwrap`, for systems that allow namespaces only to this program.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use seccompiler::BpfProgram;

use crate::filter::{self, Keeper};
use crate::mounts::{folders_above, is_below, outermost};
use crate::plan::{Plan, rlimits};
use crate::{Command, ConfineError, Confinement, Network, sockets};

/// Plans to start the command through `bwrap`.
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
            doing: "pass a seccomp filter to bwrap",
            error,
        })
    })
    .collect::<Result<_, _>>()?;
    let mut argv: Vec<OsString> = vec![bwrap.into()];
    let mut push = |arguments: &[&dyn AsRef<std::ffi::OsStr>]| {
        argv.extend(arguments.iter().map(|argument| argument.as_ref().into()))
    };
    push(&[
        &"--unshare-user",
        &"--unshare-pid",
        &"--unshare-ipc",
        &"--new-session",
        &"--die-with-parent",
    ]);
    push(&[
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
        push(&[&"--unshare-net"]);
    }
    for path in &confinement.writable {
        push(&[&"--bind", path, path]);
    }
    let writable = outermost(&confinement.writable);
    for path in confinement.protected.iter().chain(&confinement.hidden) {
        for folder in folders_above(path, &writable)
            .into_iter()
            .filter(|folder| folder.is_dir())
        {
            push(&[&"--bind", &folder, &folder]);
        }
    }
    for path in &confinement.protected {
        push(&[&"--ro-bind", path, path]);
    }
    for path in confinement
        .hidden
        .iter()
        .filter_map(|path| path.canonicalize().ok())
    {
        if path.is_dir() {
            push(&[
                &"--perms",
                &"0555",
                &"--tmpfs",
                &path,
                &"--remount-ro",
                &path,
            ]);
        } else {
            push(&[&"--ro-bind", &"/dev/null", &path]);
        }
    }
    for path in sockets::listening() {
        if is_below(&path, &confinement.hidden) {
            continue;
        }
        push(&[&"--ro-bind-try", &"/dev/null", &path]);
    }
    for filter in &filters {
        push(&[&"--add-seccomp-fd", &filter.as_raw_fd().to_string()]);
    }
    push(&[&"--chdir", &command.cwd, &"--"]);
    argv.append(&mut command.argv);
    let mut plan = Plan::open(Command { argv, ..command })?;
    plan.inherited = filters;
    plan.rlimits = rlimits(confinement);
    Ok(plan)
}

/// Returns a pipe that contains the filter program, which is far smaller than a pipe's capacity.
fn readable(program: &BpfProgram) -> std::io::Result<OwnedFd> {
    let (reader, mut writer) = std::io::pipe()?;
    for instruction in program {
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&instruction.code.to_ne_bytes());
        bytes[2] = instruction.jt;
        bytes[3] = instruction.jf;
        bytes[4..].copy_from_slice(&instruction.k.to_ne_bytes());
        writer.write_all(&bytes)?;
    }
    Ok(reader.into())
}
