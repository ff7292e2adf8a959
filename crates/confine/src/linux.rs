//! Starts commands on Linux: chooses the mechanism, clones the init process and waits until the
//! program runs. What the init process does is in `init_process`.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use crate::bubblewrap;
use crate::child::{Child, reap_exited};
use crate::init_process::{self, InitPipes, SetupReport, SetupStage};
use crate::mounts::{ProcMount, without_covered_paths};
use crate::placeholder::{Placeholders, is_own, is_placeholder};
use crate::plan::SpawnPlan;
use crate::stack::CloneStack;
use crate::support::{ConfinementBackend, ConfinementSupport};
use crate::{ChildCommand, ConfineError, Confinement, ConfinementMode};

pub(crate) fn spawn(
    command: ChildCommand,
    mode: &ConfinementMode,
    support: &ConfinementSupport,
) -> Result<Child, ConfineError> {
    reap_exited();
    let error_context = SpawnErrorContext {
        program: program_name(&command),
        cwd: command.cwd.clone(),
    };
    let confinement = match mode {
        ConfinementMode::Unconfined => {
            return start_init(SpawnPlan::unconfined(command)?, &error_context);
        }
        ConfinementMode::Confined(confinement) => confinement,
    };
    match support.strongest_backend(confinement.accepted_weaker)? {
        backend @ (ConfinementBackend::Namespaces | ConfinementBackend::SharedProc) => {
            let proc = if backend == ConfinementBackend::Namespaces {
                ProcMount::Private
            } else {
                ProcMount::Shared
            };
            let (confinement, placeholders) = create_placeholders(confinement)?;
            start_with_placeholders(
                SpawnPlan::confined(command, &confinement, proc)?,
                &error_context,
                placeholders,
            )
        }
        ConfinementBackend::Bubblewrap(program) => {
            let (confinement, placeholders) = create_placeholders(confinement)?;
            // `bwrap` mounts over the target of a link, so the link could be replaced.
            if let Some(path) = confinement.protected.iter().find(|path| path.is_symlink()) {
                return Err(ConfineError::ProtectedSymlink { path: path.clone() });
            }
            start_with_placeholders(
                bubblewrap::bubblewrap_plan(command, &confinement, &program)?,
                &error_context,
                placeholders,
            )
        }
        ConfinementBackend::Landlock => start_init(
            SpawnPlan::landlock_only(command, confinement)?,
            &error_context,
        ),
    }
}

/// Starts a plan. The init process holds the locks of the placeholders until it exits, even if this
/// process exits before.
fn start_with_placeholders(
    mut plan: SpawnPlan,
    error_context: &SpawnErrorContext,
    placeholders: Placeholders,
) -> Result<Child, ConfineError> {
    let locks = placeholders.lock_fds().map_err(cannot_lock)?;
    plan.keep_open_fds.extend(locks);
    let mut child = start_init(plan, error_context)?;
    child.placeholders = placeholders;
    Ok(child)
}

fn cannot_lock(error: io::Error) -> ConfineError {
    ConfineError::System {
        operation: "lock the protected folders of the workspace",
        error,
    }
}

/// Tests whether the system allows the namespaces, with a private /proc or without.
pub(crate) fn try_namespaces(proc: ProcMount) -> Result<(), ConfineError> {
    let error_context = SpawnErrorContext {
        program: String::new(),
        cwd: PathBuf::new(),
    };
    start_init(SpawnPlan::namespace_test(proc)?, &error_context).map(drop)
}

/// Tests whether `bwrap` works.
pub(crate) fn try_bubblewrap(program: &Path) -> Result<(), ConfineError> {
    let null = || {
        std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/null")
            .map(Into::into)
    };
    let open_error = |error| ConfineError::System {
        operation: "open /dev/null",
        error,
    };
    let command = ChildCommand {
        argv: vec!["true".into()],
        cwd: "/".into(),
        env: Vec::new(),
        stdio: crate::ChildStdio::Streams {
            stdin: null().map_err(open_error)?,
            stdout: null().map_err(open_error)?,
            stderr: null().map_err(open_error)?,
        },
        keep_open_fd: None,
        lease: None,
    };
    let error_context = SpawnErrorContext {
        program: program.display().to_string(),
        cwd: "/".into(),
    };
    let mut child = start_init(
        bubblewrap::bubblewrap_plan(command, &Confinement::default(), program)?,
        &error_context,
    )?;
    match child.wait_exit() {
        Ok(end) if end.reason.code() == 0 => Ok(()),
        _ => Err(ConfineError::Unsupported {
            reason: format!("{} does not work on this machine", program.display()),
        }),
    }
}

/// Parts of the command that error messages mention.
struct SpawnErrorContext {
    program: String,
    cwd: PathBuf,
}

fn program_name(command: &ChildCommand) -> String {
    command
        .argv
        .first()
        .map(|word| word.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Makes sure that every protected or hidden path exists, because a mount needs a target. A missing
/// path gets a placeholder folder, so that the command cannot create it. A symbolic link needs
/// none: it is mounted itself. Returns the placeholders, and the confinement with only those
/// protected paths that need a mount.
fn create_placeholders(
    confinement: &Confinement,
) -> Result<(Confinement, Placeholders), ConfineError> {
    let confinement = without_covered_paths(confinement);
    let mut ready = confinement.clone();
    let mut placeholders = Placeholders::default();
    ready.protected.clear();
    // A placeholder also protects the paths below it, so only the outermost missing part gets one.
    let missing_hidden = confinement
        .hidden
        .iter()
        .filter_map(|path| outermost_missing(path, &confinement.writable));
    let protected = confinement.protected.iter().map(|path| {
        // The folder may be the placeholder of another command.
        let is_real = |folder: &Path| folder.exists() && !is_placeholder(folder);
        let has_folder = path.parent().is_some_and(is_real);
        let missing = (!has_folder).then(|| outermost_missing(path, &confinement.writable));
        missing.flatten().unwrap_or_else(|| path.clone())
    });
    let mut paths: Vec<PathBuf> = protected.chain(missing_hidden).collect();
    paths.sort();
    paths.dedup();
    for path in paths {
        if path.is_symlink() {
            // The command could create the target of a broken link.
            if !path.exists() {
                return Err(ConfineError::ProtectedSymlink { path });
            }
            ready.protected.push(path);
            continue;
        }
        let folder = placeholders.lock_folder_of(&path, &confinement.lock_folders);
        match folder.map_err(cannot_lock)?.create_or_share(&path) {
            Ok(()) => {}
            // If this process cannot create the folder, the command cannot either, unless it
            // changes the mode of the folder above, which only its owner can.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EACCES | libc::EPERM | libc::EROFS)
                ) =>
            {
                if !path.exists() {
                    let is_own = |above: &&Path| above.metadata().is_ok_and(|it| is_own(&it));
                    let above = path.parent().filter(is_own);
                    ready.protected.extend(above.map(Path::to_owned));
                    continue;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                return Err(ConfineError::System {
                    operation: "protect a folder in the workspace",
                    error,
                });
            }
        }
        ready.protected.push(path);
    }
    Ok((ready, placeholders))
}

/// Returns the outermost part of a path that does not exist or is a placeholder, if it lies in a
/// writable folder, where the command could create it.
fn outermost_missing(path: &Path, writable: &[PathBuf]) -> Option<PathBuf> {
    let is_missing = |path: &&Path| path.symlink_metadata().is_err() || is_placeholder(path);
    let missing = path.ancestors().take_while(is_missing).last()?;
    let parent = missing.parent()?.canonicalize().ok()?;
    writable
        .iter()
        .any(|root| parent.starts_with(root))
        .then(|| parent.join(missing.file_name().unwrap_or_default()))
}

/// Starts the init process and waits until the command's program runs.
fn start_init(plan: SpawnPlan, error_context: &SpawnErrorContext) -> Result<Child, ConfineError> {
    let pipe = || {
        io::pipe().map_err(|error| ConfineError::System {
            operation: "create a pipe",
            error,
        })
    };
    let (mut setup_reader, setup_writer) = pipe()?;
    let (exit_reader, exit_writer) = pipe()?;
    let (liveness_reader, liveness_writer) = pipe()?;
    let pipes = InitPipes {
        setup: setup_writer.as_raw_fd(),
        exit: exit_writer.as_raw_fd(),
        liveness: liveness_reader.as_raw_fd(),
    };
    let stack = CloneStack::new()?;
    // The init process reads these values in shared memory. They must not move or be dropped before
    // it has reported or closed its setup pipe.
    let needed = plan.needed_fds(&[pipes.setup, pipes.exit, pipes.liveness]);
    let has_pid_namespace = plan.namespaces.is_some();
    let mut init_args = Box::new(InitArgs {
        plan,
        pipes,
        needed_fds: needed,
    });
    let (init, tree_exit_fd) = clone_init(&mut init_args, &stack)?;
    drop((setup_writer, exit_writer, liveness_reader));
    let child = Child {
        exit_pipe: exit_reader,
        tree_exit_fd,
        liveness_pipe: Some(liveness_writer),
        init_pid: Some(init),
        has_pid_namespace,
        stack: Some(stack),
        placeholders: Placeholders::default(),
    };
    let mut report = [0u8; size_of::<SetupReport>()];
    match setup_reader.read_exact(&mut report) {
        // The pipe was closed without a report: the program runs.
        Err(_) => Ok(child),
        Ok(()) => {
            let number = |index: usize| {
                let mut bytes = [0; 4];
                bytes.copy_from_slice(&report[index * 4..][..4]);
                i32::from_ne_bytes(bytes)
            };
            Err(setup_error(
                [number(0), number(1), number(2)],
                &init_args.plan,
                error_context,
            ))
        }
    }
}

/// The arguments of the init process.
struct InitArgs {
    plan: SpawnPlan,
    pipes: InitPipes,
    needed_fds: Vec<RawFd>,
}

fn clone_init(
    init_args: &mut InitArgs,
    stack: &CloneStack,
) -> Result<(libc::pid_t, OwnedFd), ConfineError> {
    extern "C" fn begin(init_args: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the parent keeps the value alive and does not touch it until the init process has
        // reported or closed its setup pipe.
        unsafe {
            let init_args = &mut *init_args.cast::<InitArgs>();
            init_process::run_init(&mut init_args.plan, init_args.pipes, &init_args.needed_fds)
        }
    }
    let namespaces = init_args
        .plan
        .namespaces
        .as_ref()
        .map_or(0, |namespaces| namespaces.clone_flags);
    let mut pidfd: libc::c_int = -1;
    // SAFETY: signals are blocked before the clone, so that no signal handler runs in the new
    // process. It has its own stack and calls only `run_init`, which never returns and uses only
    // its arguments.
    let pid = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let flags = namespaces | libc::CLONE_VM | libc::CLONE_PIDFD | libc::SIGCHLD;
        let pid = libc::clone(
            begin,
            stack.top(),
            flags,
            (&raw mut *init_args).cast(),
            &raw mut pidfd,
        );
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        if pid < 0 { Err(error) } else { Ok(pid) }
    };
    let pid = pid.map_err(|error| match namespaces {
        0 => ConfineError::System {
            operation: "start a process",
            error,
        },
        _ => ConfineError::Unsupported {
            reason: format!("cannot create namespaces ({error})"),
        },
    })?;
    // SAFETY: the kernel has just created this descriptor, and it has no other owner.
    Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// Turns the report of a failed setup into an error.
fn setup_error(
    [stage, detail, errno]: SetupReport,
    plan: &SpawnPlan,
    error_context: &SpawnErrorContext,
) -> ConfineError {
    let error = io::Error::from_raw_os_error(errno);
    let not_enforceable = |what: &str| ConfineError::Unsupported {
        reason: format!("{what} ({error})"),
    };
    match stage {
        s if s == SetupStage::Program as i32 => ConfineError::Program {
            program: error_context.program.clone(),
            error,
        },
        s if s == SetupStage::WorkingDirectory as i32 => ConfineError::WorkingDirectory {
            path: error_context.cwd.display().to_string(),
            error,
        },
        s if s == SetupStage::Mount as i32 => {
            let step = plan
                .namespaces
                .as_ref()
                .and_then(|namespaces| namespaces.steps.get(detail as usize));
            let path = step
                .map(|step| String::from_utf8_lossy(step.path()).into_owned())
                .unwrap_or_default();
            not_enforceable(&format!("cannot mount {path}"))
        }
        s if s == SetupStage::IdMap as i32 => not_enforceable("cannot map user and group ids"),
        s if s == SetupStage::Loopback as i32 => {
            not_enforceable("cannot bring up the loopback interface")
        }
        s if s == SetupStage::Capabilities as i32 => not_enforceable("cannot drop capabilities"),
        s if s == SetupStage::Landlock as i32 => not_enforceable("cannot apply the Landlock rules"),
        s if s == SetupStage::Filter as i32 => not_enforceable("cannot install the seccomp filter"),
        s if s == SetupStage::Limits as i32 => not_enforceable("cannot set resource limits"),
        s if s == SetupStage::Streams as i32 => ConfineError::System {
            operation: "connect the standard streams",
            error,
        },
        _ => ConfineError::System {
            operation: "start a process",
            error,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the protected paths of a workspace with a missing `.git`, of which this thread
    /// cannot write the root.
    fn protected_in(workspace: &Path) -> Vec<PathBuf> {
        let locks = tempfile::tempdir().unwrap();
        // Only root can do this.
        let is_root = std::os::unix::fs::chown(locks.path(), Some(65534), None).is_ok();
        if is_root {
            // With another user id for files, the capabilities of root do not apply to them.
            // SAFETY: the function changes only the id of this thread.
            unsafe { libc::setfsuid(65534) };
        }
        let made = create_placeholders(&Confinement {
            writable: vec![workspace.to_owned()],
            protected: vec![workspace.join(".git-of-a-test")],
            lock_folders: vec![locks.path().join("locks")],
            ..Confinement::default()
        });
        if is_root {
            // SAFETY: as above.
            unsafe { libc::setfsuid(0) };
        }
        made.unwrap().0.protected
    }

    /// Its owner could change the mode of the root, and then create what is protected.
    #[test]
    fn an_own_workspace_whose_root_cannot_be_written_is_protected_as_a_whole() {
        use std::os::unix::fs::PermissionsExt;
        let workspace = tempfile::tempdir().unwrap();
        let read_only = std::fs::Permissions::from_mode(0o555);
        std::fs::set_permissions(workspace.path(), read_only).unwrap();
        assert_eq!(protected_in(workspace.path()), [workspace.path()]);
    }

    #[test]
    fn a_workspace_whose_root_belongs_to_another_user_stays_writable() {
        let workspace = tempfile::tempdir().unwrap();
        // Only root can give a folder away. For other users, `/usr` is the folder of another user.
        let given = std::os::unix::fs::chown(workspace.path(), Some(1), None);
        let other = match given {
            Ok(()) => workspace.path(),
            Err(_) => Path::new("/usr"),
        };
        assert_eq!(protected_in(other), [] as [PathBuf; 0]);
    }
}
