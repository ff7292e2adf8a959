//! Prepares everything that the new process needs. After the clone it cannot allocate memory.

use std::ffi::{CString, OsString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use seccompiler::BpfProgram;

use crate::filter::{self, NetworkBlock};
use crate::mounts::{self, MountStep, ProcMount, c_string};
use crate::stack::CloneStack;
use crate::{
    ChildCommand, ChildStdio, CommandLease, ConfineError, Confinement, NetworkAccess, landlock,
};

/// The prepared values for the init process and the command.
pub(crate) struct SpawnPlan {
    /// `None` if the command runs without namespaces.
    pub(crate) namespaces: Option<NamespacePlan>,
    /// The Landlock ruleset to apply.
    pub(crate) landlock: Option<OwnedFd>,
    /// The seccomp filters to install, in order.
    pub(crate) filters: Arc<[BpfProgram]>,
    pub(crate) rlimits: Vec<(u32, libc::rlimit)>,
    /// Whether to drop all capabilities and set `no_new_privs`.
    pub(crate) drops_privileges: bool,
    pub(crate) cwd: CString,
    /// Paths to try for the program. If empty, nothing is executed: the plan only tests whether the
    /// namespaces can be set up.
    pub(crate) program_paths: Vec<CString>,
    pub(crate) argv: CStringArray,
    pub(crate) env: CStringArray,
    /// The descriptors that become 0, 1 and 2.
    pub(crate) stdio: [RawFd; 3],
    /// Whether descriptor 0 becomes the controlling terminal.
    pub(crate) takes_terminal: bool,
    /// Further descriptors that the program inherits.
    pub(crate) inherited_fds: Vec<OwnedFd>,
    /// The stack of the command's process until `execve`.
    pub(crate) stack: CloneStack,
    /// Descriptors that the init process keeps open until it exits.
    pub(crate) keep_open_fds: Vec<OwnedFd>,
    /// The lease at whose end the init process kills the command.
    pub(crate) lease: Option<&'static CommandLease>,
    // Owns the descriptors in `stdio`.
    _stdio: ChildStdio,
}

/// The namespaces of a command and how to set them up.
pub(crate) struct NamespacePlan {
    /// The `CLONE_NEW…` flags of the namespaces.
    pub(crate) clone_flags: libc::c_int,
    pub(crate) uid_map: Vec<u8>,
    pub(crate) gid_map: Vec<u8>,
    pub(crate) steps: Vec<MountStep>,
    /// Preallocated space for the descriptors of saved mount trees.
    pub(crate) saved_tree_fds: Vec<RawFd>,
}

impl NamespacePlan {
    fn new(network: NetworkAccess, steps: Vec<MountStep>) -> Self {
        let mut flags =
            libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
        if network == NetworkAccess::Off {
            flags |= libc::CLONE_NEWNET;
        }
        // SAFETY: both functions only return a number.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        Self {
            clone_flags: flags,
            uid_map: format!("{uid} {uid} 1").into_bytes(),
            gid_map: format!("{gid} {gid} 1").into_bytes(),
            saved_tree_fds: vec![-1; mounts::saved_tree_count(&steps)],
            steps,
        }
    }
}

/// A null-terminated array of C strings, as `execve` takes it.
pub(crate) struct CStringArray {
    _strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl CStringArray {
    fn new(strings: Vec<CString>) -> Self {
        let pointers = strings
            .iter()
            .map(|string| string.as_ptr())
            .chain([std::ptr::null()])
            .collect();
        Self {
            _strings: strings,
            pointers,
        }
    }

    pub(crate) fn as_ptr(&self) -> *const *const libc::c_char {
        self.pointers.as_ptr()
    }
}

impl SpawnPlan {
    /// Plans a command without confinement.
    pub(crate) fn unconfined(command: ChildCommand) -> Result<Self, ConfineError> {
        let candidates = program_paths(&command)?;
        let argv = CStringArray::new(
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
        let env = CStringArray::new(env.collect::<Result<_, _>>()?);
        let (stdio, terminal) = match &command.stdio {
            ChildStdio::Streams {
                stdin,
                stdout,
                stderr,
            } => (
                [stdin.as_raw_fd(), stdout.as_raw_fd(), stderr.as_raw_fd()],
                false,
            ),
            ChildStdio::Terminal(tty) => ([tty.as_raw_fd(); 3], true),
        };
        Ok(Self {
            namespaces: None,
            landlock: None,
            filters: Arc::new([]),
            rlimits: Vec::new(),
            drops_privileges: false,
            cwd: c_string(&command.cwd)?,
            program_paths: candidates,
            argv,
            env,
            stdio,
            takes_terminal: terminal,
            inherited_fds: Vec::new(),
            stack: CloneStack::new()?,
            keep_open_fds: command.keep_open_fd.into_iter().collect(),
            lease: command.lease,
            _stdio: command.stdio,
        })
    }

    /// Returns the descriptors that the init process needs, including `pipes`, in ascending order.
    /// The init process closes all others first.
    pub(crate) fn needed_fds(&self, pipes: &[RawFd]) -> Vec<RawFd> {
        let owned = self
            .landlock
            .iter()
            .chain(&self.inherited_fds)
            .chain(&self.keep_open_fds)
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
    pub(crate) fn namespace_test(proc: ProcMount) -> Result<Self, ConfineError> {
        let (unused_pipe, _) = std::io::pipe().map_err(|error| ConfineError::System {
            operation: "create a pipe",
            error,
        })?;
        let command = ChildCommand {
            argv: vec!["/".into()],
            cwd: "/".into(),
            env: Vec::new(),
            stdio: ChildStdio::Terminal(unused_pipe.into()),
            keep_open_fd: None,
            lease: None,
        };
        let mut steps = vec![MountStep::MakeReadOnly];
        if proc == ProcMount::Private {
            steps.push(mounts::private_proc_step()?);
        }
        let mut trial = Self::unconfined(command)?;
        trial.program_paths.clear();
        trial.namespaces = Some(NamespacePlan::new(NetworkAccess::Off, steps));
        Ok(trial)
    }

    /// Plans a command with namespaces, Landlock and seccomp.
    pub(crate) fn confined(
        command: ChildCommand,
        confinement: &Confinement,
        proc: ProcMount,
    ) -> Result<Self, ConfineError> {
        let namespaces =
            NamespacePlan::new(confinement.network, mounts::mount_steps(confinement, proc)?);
        Ok(Self {
            namespaces: Some(namespaces),
            landlock: landlock::ruleset(&confinement.writable)?,
            filters: filter::filter_programs(
                confinement.network,
                confinement.unix_sockets,
                NetworkBlock::Namespace,
            )?,
            rlimits: rlimits(confinement),
            drops_privileges: true,
            ..Self::unconfined(command)?
        })
    }

    /// Plans a command with Landlock and seccomp only.
    pub(crate) fn landlock_only(
        command: ChildCommand,
        confinement: &Confinement,
    ) -> Result<Self, ConfineError> {
        let landlock = landlock::ruleset(&confinement.writable)?;
        if landlock.is_none() {
            return Err(ConfineError::Unsupported {
                reason: "this kernel does not support Landlock".into(),
            });
        }
        Ok(Self {
            landlock,
            filters: filter::filter_programs(
                confinement.network,
                confinement.unix_sockets,
                NetworkBlock::Filter,
            )?,
            rlimits: rlimits(confinement),
            drops_privileges: true,
            ..Self::unconfined(command)?
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
        .map(|(resource, max)| (resource, capped_rlimit(resource, max)))
        .collect()
}

/// Returns the limit `max`, or the current limit of this process if that is lower.
fn capped_rlimit(resource: u32, max: u64) -> libc::rlimit {
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
fn program_paths(command: &ChildCommand) -> Result<Vec<CString>, ConfineError> {
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
