//! Confinement through `bwrap`, for systems that allow namespaces only to this program.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use seccompiler::BpfProgram;

use crate::filter::{self, NetworkBlock};
use crate::mounts::{folders_between, is_closed_to_user, is_in_any, outermost};
use crate::plan::{SpawnPlan, rlimits};
use crate::{ChildCommand, ConfineError, Confinement, NetworkAccess, sockets};

/// Plans to start the command through `bwrap`.
pub(crate) fn bubblewrap_plan(
    mut command: ChildCommand,
    confinement: &Confinement,
    bwrap: &Path,
) -> Result<SpawnPlan, ConfineError> {
    let filters: Vec<OwnedFd> = filter::filter_programs(
        confinement.network,
        confinement.unix_sockets,
        NetworkBlock::Namespace,
    )?
    .iter()
    .map(|program| {
        filter_pipe(program).map_err(|error| ConfineError::System {
            operation: "pass a seccomp filter to bwrap",
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
    if confinement.network == NetworkAccess::Off {
        push(&[&"--unshare-net"]);
    }
    for path in &confinement.writable {
        push(&[&"--bind", path, path]);
    }
    let writable = outermost(&confinement.writable);
    for path in confinement.protected.iter().chain(&confinement.hidden) {
        for folder in folders_between(path, &writable)
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
    for path in sockets::bound_socket_paths()? {
        if is_in_any(&path, &confinement.hidden) || is_closed_to_user(&path) {
            continue;
        }
        push(&[&"--ro-bind-try", &"/dev/null", &path]);
    }
    for filter in &filters {
        push(&[&"--add-seccomp-fd", &filter.as_raw_fd().to_string()]);
    }
    push(&[&"--chdir", &command.cwd, &"--"]);
    argv.append(&mut command.argv);
    let mut plan = SpawnPlan::unconfined(ChildCommand { argv, ..command })?;
    plan.inherited_fds = filters;
    plan.rlimits = rlimits(confinement);
    Ok(plan)
}

/// Returns a pipe that contains the filter program, which is far smaller than a pipe's capacity.
fn filter_pipe(program: &BpfProgram) -> std::io::Result<OwnedFd> {
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
