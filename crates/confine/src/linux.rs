//! Starts commands on Linux: chooses the mechanism, clones the init process and waits until the
//! program runs. What the init process does is in `init_process`.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use crate::bubblewrap;
use crate::child::{Child, bury};
use crate::inside::{self, Ends, Report, Stage};
use crate::mounts::{Proc, without_covered_paths};
use crate::placeholder::{Placeholder, is_placeholder};
use crate::plan::Plan;
use crate::stack::Stack;
use crate::support::{Strength, Support};
use crate::{Command, ConfineError, Confinement, Wall};

pub(crate) fn spawn(
    command: Command,
    wall: &Wall,
    support: &Support,
) -> Result<Child, ConfineError> {
    bury();
    let names = Names {
        program: first_word(&command),
        cwd: command.cwd.clone(),
    };
    let confinement = match wall {
        Wall::None => return start(Plan::open(command)?, &names),
        Wall::Confined(confinement) => confinement,
    };
    match support.strength(confinement.weaker)? {
        strength @ (Strength::Namespaces | Strength::SharedProc) => {
            let proc = if strength == Strength::Namespaces {
                Proc::Own
            } else {
                Proc::Shared
            };
            let (confinement, placeholders) = protect(confinement)?;
            guarded(
                Plan::confined(command, &confinement, proc)?,
                &names,
                placeholders,
            )
        }
        Strength::Bubblewrap(program) => {
            let (confinement, placeholders) = protect(confinement)?;
            guarded(
                bubblewrap::plan(command, &confinement, &program)?,
                &names,
                placeholders,
            )
        }
        Strength::Landlock => start(Plan::weaker(command, confinement)?, &names),
    }
}

/// Starts a plan. The init process holds the locks of the placeholders until it exits, even if this
/// process exits before.
fn guarded(
    mut plan: Plan,
    names: &Names,
    placeholders: Vec<Placeholder>,
) -> Result<Child, ConfineError> {
    for placeholder in &placeholders {
        let lock = placeholder.lock().map_err(|error| ConfineError::System {
            doing: "lock a placeholder folder",
            error,
        })?;
        plan.holds.push(lock);
    }
    let mut child = start(plan, names)?;
    child.placeholders = placeholders;
    Ok(child)
}

/// Tests whether the system allows the namespaces, with a private /proc or without.
pub(crate) fn try_namespaces(proc: Proc) -> Result<(), ConfineError> {
    let names = Names {
        program: String::new(),
        cwd: PathBuf::new(),
    };
    start(Plan::trial(proc)?, &names).map(drop)
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
        doing: "open /dev/null",
        error,
    };
    let command = Command {
        argv: vec!["true".into()],
        cwd: "/".into(),
        env: Vec::new(),
        stdio: crate::Stdio::Streams {
            stdin: null().map_err(open_error)?,
            stdout: null().map_err(open_error)?,
            stderr: null().map_err(open_error)?,
        },
        hold: None,
    };
    let names = Names {
        program: program.display().to_string(),
        cwd: "/".into(),
    };
    let mut child = start(
        bubblewrap::plan(command, &Confinement::default(), program)?,
        &names,
    )?;
    match child.end() {
        Ok(end) if end.exit.code() == 0 => Ok(()),
        _ => Err(ConfineError::NotEnforceable {
            why: format!("{} does not work on this machine", program.display()),
        }),
    }
}

/// Parts of the command that error messages mention.
struct Names {
    program: String,
    cwd: PathBuf,
}

fn first_word(command: &Command) -> String {
    command
        .argv
        .first()
        .map(|word| word.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Makes sure that every protected or hidden path exists, because a mount needs a target. A missing
/// path gets a placeholder folder, so that the command cannot create it. Returns the confinement
/// with the paths that need a mount.
fn protect(confinement: &Confinement) -> Result<(Confinement, Vec<Placeholder>), ConfineError> {
    let confinement = without_covered_paths(confinement);
    let mut ready = confinement.clone();
    let mut placeholders = Vec::new();
    ready.protected.clear();
    // Collected before the first placeholder is created: a path inside a placeholder needs none.
    let missing_hidden = confinement
        .hidden
        .iter()
        .filter_map(|path| first_missing(path, &confinement.writable));
    let mut paths: Vec<PathBuf> = confinement
        .protected
        .iter()
        .cloned()
        .chain(missing_hidden)
        .collect();
    paths.sort();
    paths.dedup();
    for path in paths {
        if std::fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink()) {
            return Err(ConfineError::Unprotectable { path });
        }
        match Placeholder::stand_in(&path) {
            Ok(placeholder) => placeholders.extend(placeholder),
            // If this process cannot create the folder, the command cannot either.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EACCES | libc::EPERM | libc::EROFS)
                ) =>
            {
                if !path.exists() {
                    continue;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                return Err(ConfineError::System {
                    doing: "protect a folder in the workspace",
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
fn first_missing(path: &Path, writable: &[PathBuf]) -> Option<PathBuf> {
    let is_missing = |path: &&Path| path.symlink_metadata().is_err() || is_placeholder(path);
    let missing = path.ancestors().take_while(is_missing).last()?;
    let parent = missing.parent()?.canonicalize().ok()?;
    writable
        .iter()
        .any(|root| parent.starts_with(root))
        .then(|| parent.join(missing.file_name().unwrap_or_default()))
}

/// Starts the init process and waits until the command's program runs.
fn start(plan: Plan, names: &Names) -> Result<Child, ConfineError> {
    let pipe = || {
        io::pipe().map_err(|error| ConfineError::System {
            doing: "create a pipe",
            error,
        })
    };
    let (mut setup_reader, setup_writer) = pipe()?;
    let (exit_reader, exit_writer) = pipe()?;
    let (liveness_reader, liveness_writer) = pipe()?;
    let pipes = Ends {
        started: setup_writer.as_raw_fd(),
        ended: exit_writer.as_raw_fd(),
        leash: liveness_reader.as_raw_fd(),
    };
    let stack = Stack::new()?;
    // The init process reads these values in shared memory. They must not move or be dropped before
    // it has reported or closed its setup pipe.
    let needed = plan.needed(&[pipes.started, pipes.ended, pipes.leash]);
    let has_pid_namespace = plan.namespaces.is_some();
    let mut init_args = Box::new(Given {
        plan,
        ends: pipes,
        needed,
    });
    let (init, gone) = clone_init(&mut init_args, &stack)?;
    drop((setup_writer, exit_writer, liveness_reader));
    let child = Child {
        ended: exit_reader,
        gone,
        leash: Some(liveness_writer),
        init: Some(init),
        own_pids: has_pid_namespace,
        stack: Some(stack),
        placeholders: Vec::new(),
    };
    let mut report = [0u8; size_of::<Report>()];
    match setup_reader.read_exact(&mut report) {
        // The pipe was closed without a report: the program runs.
        Err(_) => Ok(child),
        Ok(()) => {
            let number = |index: usize| {
                let mut bytes = [0; 4];
                bytes.copy_from_slice(&report[index * 4..][..4]);
                i32::from_ne_bytes(bytes)
            };
            Err(explain(
                [number(0), number(1), number(2)],
                &init_args.plan,
                names,
            ))
        }
    }
}

/// The arguments of the init process.
struct Given {
    plan: Plan,
    ends: Ends,
    needed: Vec<RawFd>,
}

fn clone_init(
    init_args: &mut Given,
    stack: &Stack,
) -> Result<(libc::pid_t, OwnedFd), ConfineError> {
    extern "C" fn begin(init_args: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the parent keeps the value alive and does not touch it until the init process has
        // reported or closed its setup pipe.
        unsafe {
            let init_args = &mut *init_args.cast::<Given>();
            inside::init(&mut init_args.plan, init_args.ends, &init_args.needed)
        }
    }
    let namespaces = init_args
        .plan
        .namespaces
        .as_ref()
        .map_or(0, |namespaces| namespaces.flags);
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
            doing: "start a process",
            error,
        },
        _ => ConfineError::NotEnforceable {
            why: format!("cannot create namespaces ({error})"),
        },
    })?;
    // SAFETY: the kernel has just created this descriptor, and it has no other owner.
    Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// Turns the report of a failed setup into an error.
fn explain([stage, detail, errno]: Report, plan: &Plan, names: &Names) -> ConfineError {
    let error = io::Error::from_raw_os_error(errno);
    let not_enforceable = |what: &str| ConfineError::NotEnforceable {
        why: format!("{what} ({error})"),
    };
    match stage {
        s if s == Stage::Program as i32 => ConfineError::Program {
            program: names.program.clone(),
            error,
        },
        s if s == Stage::WorkingDirectory as i32 => ConfineError::WorkingDirectory {
            path: names.cwd.display().to_string(),
            error,
        },
        s if s == Stage::Mount as i32 => {
            let step = plan
                .namespaces
                .as_ref()
                .and_then(|namespaces| namespaces.steps.get(detail as usize));
            let path = step
                .map(|step| String::from_utf8_lossy(step.place()).into_owned())
                .unwrap_or_default();
            not_enforceable(&format!("cannot mount {path}"))
        }
        s if s == Stage::Identity as i32 => not_enforceable("cannot map user and group ids"),
        s if s == Stage::Loopback as i32 => {
            not_enforceable("cannot bring up the loopback interface")
        }
        s if s == Stage::Capabilities as i32 => not_enforceable("cannot drop capabilities"),
        s if s == Stage::Landlock as i32 => not_enforceable("cannot apply the Landlock rules"),
        s if s == Stage::Filter as i32 => not_enforceable("cannot install the seccomp filter"),
        s if s == Stage::Limits as i32 => not_enforceable("cannot set resource limits"),
        s if s == Stage::Streams as i32 => ConfineError::System {
            doing: "connect the standard streams",
            error,
        },
        _ => ConfineError::System {
            doing: "start a process",
            error,
        },
    }
}
