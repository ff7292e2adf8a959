//! Everything the new process needs, laid out before there is one: after the fork nothing may be allocated.

use std::ffi::{CString, OsString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use seccompiler::BpfProgram;

use crate::filter::{self, Keeper};
use crate::mounts::{self, Proc, Step, c_string};
use crate::stack::Stack;
use crate::{Command, ConfineError, Confinement, Network, Stdio, landlock};

/// What the init and the command do.
pub(crate) struct Plan {
    /// `None` runs without namespaces.
    pub(crate) namespaces: Option<Namespaces>,
    pub(crate) landlock: Option<OwnedFd>,
    pub(crate) filters: Arc<[BpfProgram]>,
    pub(crate) rlimits: Vec<(u32, libc::rlimit)>,
    /// Whether capabilities are given up.
    pub(crate) powerless: bool,
    pub(crate) cwd: CString,
    /// Where the program may be. None: only the wall is tried.
    pub(crate) candidates: Vec<CString>,
    pub(crate) argv: Words,
    pub(crate) env: Words,
    /// What becomes 0, 1 and 2.
    pub(crate) stdio: [RawFd; 3],
    pub(crate) terminal: bool,
    /// Descriptors the program gets besides.
    pub(crate) inherited: Vec<OwnedFd>,
    /// Where the command's process stands until its program runs.
    pub(crate) stack: Stack,
    /// What the init keeps open for as long as it lives.
    pub(crate) holds: Vec<OwnedFd>,
    // Keeps what `stdio` names open.
    _streams: Stdio,
}

/// What is the command's own.
pub(crate) struct Namespaces {
    pub(crate) flags: libc::c_int,
    pub(crate) uid_map: Vec<u8>,
    pub(crate) gid_map: Vec<u8>,
    pub(crate) steps: Vec<Step>,
    /// Room for the trees that are kept.
    pub(crate) slots: Vec<RawFd>,
}

impl Namespaces {
    fn new(network: Network, steps: Vec<Step>) -> Self {
        let mut flags =
            libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
        if network == Network::Off {
            flags |= libc::CLONE_NEWNET;
        }
        // SAFETY: these only return numbers.
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

/// A list of words the way `execve` wants it.
pub(crate) struct Words {
    _words: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl Words {
    fn new(words: Vec<CString>) -> Self {
        let pointers = words
            .iter()
            .map(|word| word.as_ptr())
            .chain([std::ptr::null()])
            .collect();
        Self {
            _words: words,
            pointers,
        }
    }

    pub(crate) fn as_ptr(&self) -> *const *const libc::c_char {
        self.pointers.as_ptr()
    }
}

impl Plan {
    /// Without a wall.
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
            let mut word = OsString::from(name);
            word.push("=");
            word.push(value);
            c_string(word)
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

    /// The descriptors that are needed after the clone, these among them, in order. All others are closed first.
    pub(crate) fn needed(&self, ends: &[RawFd]) -> Vec<RawFd> {
        let owned = self
            .landlock
            .iter()
            .chain(&self.inherited)
            .chain(&self.holds)
            .map(AsRawFd::as_raw_fd);
        let mut needed: Vec<RawFd> = owned
            .chain(self.stdio)
            .chain(ends.iter().copied())
            .collect();
        needed.sort_unstable();
        needed.dedup();
        needed
    }

    /// Builds a wall around nothing, to see whether it can be built.
    pub(crate) fn trial(proc: Proc) -> Result<Self, ConfineError> {
        let (nothing, _) = std::io::pipe().map_err(|error| ConfineError::System {
            doing: "making a pipe",
            error,
        })?;
        let command = Command {
            argv: vec!["/".into()],
            cwd: "/".into(),
            env: Vec::new(),
            stdio: Stdio::Terminal(nothing.into()),
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

    /// Behind the whole wall.
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

    /// Behind Landlock and seccomp alone.
    pub(crate) fn weaker(
        command: Command,
        confinement: &Confinement,
    ) -> Result<Self, ConfineError> {
        let landlock = landlock::ruleset(&confinement.writable)?;
        if landlock.is_none() {
            return Err(ConfineError::NotEnforceable {
                why: "this kernel has no Landlock either".into(),
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
    let mut all = vec![
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_NPROC, limits.processes),
        (libc::RLIMIT_FSIZE, bytes(limits.file_mb)),
    ];
    all.extend(limits.memory_mb.map(|mb| (libc::RLIMIT_AS, bytes(mb))));
    all.into_iter()
        .map(|(resource, most)| (resource, at_most(resource, most)))
        .collect()
}

/// The limit, or the one that already holds where that is lower.
fn at_most(resource: u32, most: u64) -> libc::rlimit {
    let mut now = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    // SAFETY: `now` is ours to be written; on failure it keeps what was asked for.
    unsafe { libc::getrlimit(resource, &mut now) };
    libc::rlimit {
        rlim_cur: most.min(now.rlim_cur),
        rlim_max: most.min(now.rlim_max),
    }
}

/// Where the program may be, in the order of its `PATH`.
fn candidates(command: &Command) -> Result<Vec<CString>, ConfineError> {
    let Some(program) = command.argv.first().filter(|program| !program.is_empty()) else {
        return Err(ConfineError::Invalid("there is no program to run".into()));
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
