//! Prepares everything that the new process needs. After the clone it cannot allocate memory.

use std::ffi::{CString, OsString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use seccompiler::BpfProgram;

use crate::filter::{self, Keeper};
use crate::mounts::{self, Proc, Step, c_string};
use crate::stack::Stack;
use crate::{Command, ConfineError, Confinement, Network, Stdio, landlock};

/// The prepared values for the init process and the command.
pub(crate) struct Plan {
    /// `None` if the command runs without namespaces.
    pub(crate) namespaces: Option<Namespaces>,
    /// The Landlock ruleset to apply.
    pub(crate) landlock: Option<OwnedFd>,
    /// The seccomp filters to install, in order.
    pub(crate) filters: Arc<[BpfProgram]>,
    pub(crate) rlimits: Vec<(u32, libc::rlimit)>,
    /// Whether to drop all capabilities and set `no_new_privs`.
    pub(crate) powerless: bool,
    pub(crate) cwd: CString,
    /// Paths to try for the program. If empty, nothing is executed: the plan only tests whether the
    /// namespaces can be set up.
    pub(crate) candidates: Vec<CString>,
    pub(crate) argv: Words,
    pub(crate) env: Words,
    /// The descriptors that become 0, 1 and 2.
    pub(crate) stdio: [RawFd; 3],
    /// Whether descriptor 0 becomes the controlling terminal.
    pub(crate) terminal: bool,
    /// Further descriptors that the program inherits.
    pub(crate) inherited: Vec<OwnedFd>,
    /// The stack of the command's process until `execve`.
    pub(crate) stack: Stack,
    /// Descriptors that the init process keeps open until it exits.
    pub(crate) holds: Vec<OwnedFd>,
    // Owns the descriptors in `stdio`.
    _streams: Stdio,
}

/// The namespaces of a command and how to set them up.
pub(crate) struct Namespaces {
    /// `CLONE_NEW…` flags.
    pub(crate) flags: libc::c_int,
    pub(crate) uid_map: Vec<u8>,
    pub(crate) gid_map: Vec<u8>,
    pub(crate) steps: Vec<Step>,
    /// Preallocated space for the descriptors of saved mount trees.
    pub(crate) slots: Vec<RawFd>,
}

impl Namespaces {
    fn new(network: Network, steps: Vec<Step>) -> Self {
        let mut flags =
            libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
        if network == Network::Off {
            flags |= libc::CLONE_NEWNET;
        }
        // SAFETY: both functions only return a number.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        Self {
            flags,
            uid_map: format!("{uid} {uid} 1").into_bytes(),
            gid_map: format!("{gid} {gid} 1").into_bytes(),
            slots: vec![-1; mounts::slots(&steps)],
            steps,
        }
    }
}

/// A null-terminated array of C strings, as `execve` takes it.
pub(crate) struct Words {
    _words: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl Words {
    fn new(strings: Vec<CString>) -> Self {
        let pointers = strings
            .iter()
            .map(|string| string.as_ptr())
            .chain([std::ptr::null()])
            .collect();
        Self {
            _words: strings,
            pointers,
        }
    }

    pub(crate) fn as_ptr(&self) -> *const *const libc::c_char {
        self.pointers.as_ptr()
    }
}

impl Plan {
    /// Plans a command without confinement.
    pub(crate) fn open(command: Command) -> Result<Self, ConfineError> {
        let candidates = candidates(&command)?;
        let argv = Words::new(
            command
                .argv
                .iter()
                .map(c_string)
                .collect::<Result<_, _>>()?,
        );
        let env = command.env.iter().map(|(name, value)| {
            let mut assignment = OsString::from(name);
            assignment.push("=");
            assignment.push(value);
            c_string(assignment)
        });
        let env = Words::new(env.collect::<Result<_, _>>()?);
        let (stdio, terminal) = match &command.stdio {
            Stdio::Streams {
                stdin,
                stdout,
                stderr,
            } => (
                [stdin.as_raw_fd(), stdout.as_raw_fd(), stderr.as_raw_fd()],
                false,
            ),
            Stdio::Terminal(tty) => ([tty.as_raw_fd(); 3], true),
        };
        Ok(Self {
            namespaces: None,
            landlock: None,
            filters: Arc::new([]),
            rlimits: Vec::new(),
            powerless: false,
            cwd: c_string(&command.cwd)?,
            candidates,
            argv,
            env,
            stdio,
            terminal,
            inherited: Vec::new(),
            stack: Stack::new()?,
            holds: command.hold.into_iter().collect(),
            _streams: command.stdio,
        })
    }

    /// Returns the descriptors that the init process needs, including `pipes`, in ascending order.
    /// The init process closes all others first.
    pub(crate) fn needed(&self, pipes: &[RawFd]) -> Vec<RawFd> {
        let owned = self
            .landlock
            .iter()
            .chain(&self.inherited)
            .chain(&self.holds)
            .map(AsRawFd::as_raw_fd);
        let mut needed: Vec<RawFd> = owned
            .chain(self.stdio)
            .chain(pipes.iter().copied())
            .collect();
        needed.sort_unstable();
        needed.dedup();
        needed
    }

    /// Plans namespaces without a program, to test whether they can be set up.
    pub(crate) fn trial(proc: Proc) -> Result<Self, ConfineError> {
        let (unused_pipe, _) = std::io::pipe().map_err(|error| ConfineError::System {
            doing: "create a pipe",
            error,
        })?;
        let command = Command {
            argv: vec!["/".into()],
            cwd: "/".into(),
            env: Vec::new(),
            stdio: Stdio::Terminal(unused_pipe.into()),
            hold: None,
        };
        let mut steps = vec![Step::LockDown];
        if proc == Proc::Own {
            steps.push(mounts::own_proc()?);
        }
        let mut trial = Self::open(command)?;
        trial.candidates.clear();
        trial.namespaces = Some(Namespaces::new(Network::Off, steps));
        Ok(trial)
    }

    /// Plans a command with namespaces, Landlock and seccomp.
    pub(crate) fn confined(
        command: Command,
        confinement: &Confinement,
        proc: Proc,
    ) -> Result<Self, ConfineError> {
        let namespaces = Namespaces::new(confinement.network, mounts::steps(confinement, proc)?);
        Ok(Self {
            namespaces: Some(namespaces),
            landlock: landlock::ruleset(&confinement.writable)?,
            filters: filter::programs(
                confinement.network,
                confinement.named_sockets,
                Keeper::Namespace,
            )?,
            rlimits: rlimits(confinement),
            powerless: true,
            ..Self::open(command)?
        })
    }

    /// Plans a command with Landlock and seccomp only.
    pub(crate) fn weaker(
        command: Command,
        confinement: &Confinement,
    ) -> Result<Self, ConfineError> {
        let landlock = landlock::ruleset(&confinement.writable)?;
        if landlock.is_none() {
            return Err(ConfineError::NotEnforceable {
                why: "this kernel does not support Landlock".into(),
            });
        }
        Ok(Self {
            landlock,
            filters: filter::programs(
                confinement.network,
                confinement.named_sockets,
                Keeper::Filter,
            )?,
            rlimits: rlimits(confinement),
            powerless: true,
            ..Self::open(command)?
        })
    }
}

pub(crate) fn rlimits(confinement: &Confinement) -> Vec<(u32, libc::rlimit)> {
    let limits = &confinement.limits;
    let bytes = |megabytes: u64| megabytes.saturating_mul(1 << 20);
    let mut maxima = vec![
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_NPROC, limits.processes),
        (libc::RLIMIT_FSIZE, bytes(limits.file_mb)),
    ];
    maxima.extend(limits.memory_mb.map(|mb| (libc::RLIMIT_AS, bytes(mb))));
    maxima
        .into_iter()
        .map(|(resource, max)| (resource, at_most(resource, max)))
        .collect()
}

/// Returns the limit `max`, or the current limit of this process if that is lower.
fn at_most(resource: u32, max: u64) -> libc::rlimit {
    let mut current = libc::rlimit {
        rlim_cur: max,
        rlim_max: max,
    };
    // SAFETY: `current` is a valid value to write to; on failure it stays at `max`.
    unsafe { libc::getrlimit(resource, &mut current) };
    libc::rlimit {
        rlim_cur: max.min(current.rlim_cur),
        rlim_max: max.min(current.rlim_max),
    }
}

/// Returns the paths to try for the program, in the order of the command's `PATH`.
fn candidates(command: &Command) -> Result<Vec<CString>, ConfineError> {
    let Some(program) = command.argv.first().filter(|program| !program.is_empty()) else {
        return Err(ConfineError::Invalid("the command is empty".into()));
    };
    if program.as_encoded_bytes().contains(&b'/') {
        return Ok(vec![c_string(program)?]);
    }
    let path = command
        .env
        .iter()
        .find(|(name, _)| name == "PATH")
        .map(|(_, value)| value.clone());
    let path = path.unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let folders = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
    folders
        .map(|folder| c_string(Path::new(&folder).join(program)))
        .collect()
}
