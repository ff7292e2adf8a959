//! Starting a command on Linux.

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

/// Starts a plan whose init keeps the placeholders locked for as long as it lives, even without us.
fn guarded(
    mut plan: Plan,
    names: &Names,
    placeholders: Vec<Placeholder>,
) -> Result<Child, ConfineError> {
    for placeholder in &placeholders {
        let lock = placeholder.lock().map_err(|error| ConfineError::System {
            doing: "holding a placeholder",
            error,
        })?;
        plan.holds.push(lock);
    }
    let mut child = start(plan, names)?;
    child.placeholders = placeholders;
    Ok(child)
}

/// Whether the system lets us build the wall, with a /proc of its own or without.
pub(crate) fn try_namespaces(proc: Proc) -> Result<(), ConfineError> {
    let names = Names {
        program: String::new(),
        cwd: PathBuf::new(),
    };
    start(Plan::trial(proc)?, &names).map(drop)
}

/// Whether `bwrap` can build the wall.
pub(crate) fn try_bubblewrap(program: &Path) -> Result<(), ConfineError> {
    let null = || {
        std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/null")
            .map(Into::into)
    };
    let broken = |error| ConfineError::System {
        doing: "opening /dev/null",
        error,
    };
    let command = Command {
        argv: vec!["true".into()],
        cwd: "/".into(),
        env: Vec::new(),
        stdio: crate::Stdio::Streams {
            stdin: null().map_err(broken)?,
            stdout: null().map_err(broken)?,
            stderr: null().map_err(broken)?,
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
            why: format!("{} fails here", program.display()),
        }),
    }
}

/// What a message may have to name after the command was taken apart.
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

/// Sees to it that everything protected or hidden can be mounted over: what is missing there has a placeholder for a
/// while, lest the command make it. Returns what is to be protected in the end.
fn protect(confinement: &Confinement) -> Result<(Confinement, Vec<Placeholder>), ConfineError> {
    let confinement = without_covered_paths(confinement);
    let mut ready = confinement.clone();
    let mut placeholders = Vec::new();
    ready.protected.clear();
    // All of them before the first stands: what is missing in a placeholder needs none of its own.
    let missing_secrets = confinement
        .hidden
        .iter()
        .filter_map(|path| first_missing(path, &confinement.writable));
    let mut wanted: Vec<PathBuf> = confinement
        .protected
        .iter()
        .cloned()
        .chain(missing_secrets)
        .collect();
    wanted.sort();
    wanted.dedup();
    for path in wanted {
        if std::fs::symlink_metadata(&path).is_ok_and(|there| there.is_symlink()) {
            return Err(ConfineError::Unprotectable { path });
        }
        match Placeholder::stand_in(&path) {
            Ok(placeholder) => placeholders.extend(placeholder),
            // Where we cannot make it, the command cannot either.
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
                    doing: "protecting a folder in the workspace",
                    error,
                });
            }
        }
        ready.protected.push(path);
    }
    Ok((ready, placeholders))
}

/// The first part of a path that is not there, or only for a while, where the command could make it.
fn first_missing(path: &Path, writable: &[PathBuf]) -> Option<PathBuf> {
    let is_missing = |path: &&Path| path.symlink_metadata().is_err() || is_placeholder(path);
    let missing = path.ancestors().take_while(is_missing).last()?;
    let parent = missing.parent()?.canonicalize().ok()?;
    writable
        .iter()
        .any(|root| parent.starts_with(root))
        .then(|| parent.join(missing.file_name().unwrap_or_default()))
}

/// Starts the init and waits until the command's own program runs.
fn start(plan: Plan, names: &Names) -> Result<Child, ConfineError> {
    let pipe = || {
        io::pipe().map_err(|error| ConfineError::System {
            doing: "making a pipe",
            error,
        })
    };
    let (mut started_here, started_there) = pipe()?;
    let (ended_here, ended_there) = pipe()?;
    let (leash_there, leash_here) = pipe()?;
    let ends = Ends {
        started: started_there.as_raw_fd(),
        ended: ended_there.as_raw_fd(),
        leash: leash_there.as_raw_fd(),
    };
    let stack = Stack::new()?;
    // Where the init finds everything: it must not move or go before the init has been heard of.
    let needed = plan.needed(&[ends.started, ends.ended, ends.leash]);
    let own_pids = plan.namespaces.is_some();
    let mut given = Box::new(Given { plan, ends, needed });
    let (init, gone) = clone_init(&mut given, &stack)?;
    drop((started_there, ended_there, leash_there));
    let child = Child {
        ended: ended_here,
        gone,
        leash: Some(leash_here),
        init: Some(init),
        own_pids,
        stack: Some(stack),
        placeholders: Vec::new(),
    };
    let mut report = [0u8; size_of::<Report>()];
    match started_here.read_exact(&mut report) {
        // Closed without a word: the program runs.
        Err(_) => Ok(child),
        Ok(()) => {
            let number = |at: usize| {
                let mut bytes = [0; 4];
                bytes.copy_from_slice(&report[at * 4..][..4]);
                i32::from_ne_bytes(bytes)
            };
            Err(explain(
                [number(0), number(1), number(2)],
                &given.plan,
                names,
            ))
        }
    }
}

/// What the init is given.
struct Given {
    plan: Plan,
    ends: Ends,
    needed: Vec<RawFd>,
}

fn clone_init(given: &mut Given, stack: &Stack) -> Result<(libc::pid_t, OwnedFd), ConfineError> {
    extern "C" fn begin(given: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the parent keeps what this points to, and leaves it alone, until it has heard from the init.
        unsafe {
            let given = &mut *given.cast::<Given>();
            inside::init(&mut given.plan, given.ends, &given.needed)
        }
    }
    let namespaces = given
        .plan
        .namespaces
        .as_ref()
        .map_or(0, |namespaces| namespaces.flags);
    let mut pidfd: libc::c_int = -1;
    // SAFETY: signals are blocked before the clone, so that no handler of ours runs in the new process. It stands
    // on a stack of its own and calls nothing but `init`, which never returns and keeps to what it was given.
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
            (&raw mut *given).cast(),
            &raw mut pidfd,
        );
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        if pid < 0 { Err(error) } else { Ok(pid) }
    };
    let pid = pid.map_err(|error| match namespaces {
        0 => ConfineError::System {
            doing: "starting a process",
            error,
        },
        _ => ConfineError::NotEnforceable {
            why: format!("the system grants no namespaces ({error})"),
        },
    })?;
    // SAFETY: the kernel made this descriptor for us.
    Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

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
            let place = step
                .map(|step| String::from_utf8_lossy(step.place()).into_owned())
                .unwrap_or_default();
            not_enforceable(&format!("its view of {place} could not be made"))
        }
        s if s == Stage::Identity as i32 => {
            not_enforceable("it could not be given an identity of its own")
        }
        s if s == Stage::Loopback as i32 => {
            not_enforceable("it could not be given a network of its own")
        }
        s if s == Stage::Capabilities as i32 => {
            not_enforceable("its privileges could not be dropped")
        }
        s if s == Stage::Landlock as i32 => not_enforceable("Landlock could not be entered"),
        s if s == Stage::Filter as i32 => not_enforceable("its system calls could not be filtered"),
        s if s == Stage::Limits as i32 => not_enforceable("its limits could not be set"),
        s if s == Stage::Streams as i32 => ConfineError::System {
            doing: "connecting its streams",
            error,
        },
        _ => ConfineError::System {
            doing: "starting a process",
            error,
        },
    }
}
