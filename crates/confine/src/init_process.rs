//! The init process of a command: sets up the confinement, starts the command, and runs until the
//! last process of the command or the parent has exited.
//!
//! The init process shares the parent's memory instead of copying it: copying the page tables of a
//! large process would take longer than everything else. It has its own stack, and its system calls
//! take only values from the [`SpawnPlan`]. It does not allocate, lock, unwind, or use thread-local
//! storage (see [`crate::syscall`]). After the command has started it reads only the
//! [`CommandLease`] in the parent's memory, which is never freed. The command cannot read that
//! memory: the init process keeps its capabilities in the namespace, and the command has none.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, RawFd};

use crate::CommandLease;
use crate::lease::now_ns;
use crate::mounts::MountStep;
use crate::network_counters::NetworkCounters;
use crate::plan::{NamespacePlan, SpawnPlan};
use crate::syscall::syscall;

/// The step of the setup that failed. Sent to the parent over a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum SetupStage {
    IdMap = 1,
    Mount = 2,
    Loopback = 3,
    Fork = 4,
    Streams = 5,
    Limits = 6,
    Capabilities = 7,
    Landlock = 8,
    Filter = 9,
    WorkingDirectory = 10,
    Program = 11,
}

/// The report of a failed setup: the stage, the index of the mount step, and the error number.
pub(crate) type SetupReport = [i32; 3];

/// The report of the command's exit: its wait status, 1 if processes of the command still run, and
/// the [`NetworkCounters`]; -1 for both if the command has no network namespace.
pub(crate) type ExitReport = [i32; 4];

/// The wait status in the report of a command that was killed because its lease has ended. No
/// process has this one.
pub(crate) const LEASE_ENDED: i32 = i32::MIN;

/// The pipe ends of the init process.
#[derive(Clone, Copy)]
pub(crate) struct InitPipes {
    /// Receives a [`SetupReport`] if the command cannot be started. Closed when it has started.
    pub(crate) setup: RawFd,
    /// Receives an [`ExitReport`] when the command has exited.
    pub(crate) exit: RawFd,
    /// Closed by the parent when it exits or drops the child.
    pub(crate) liveness: RawFd,
}

/// Which namespaces the init process is the first process of.
#[derive(Clone, Copy)]
struct OwnNamespaces {
    pid: bool,
    network: bool,
}

/// Runs the init process. Never returns.
///
/// # Safety
/// Must be called in a process that was just cloned, with all signals blocked. The plan must not
/// move until this process has closed its setup pipe, and the stack must exist until this process
/// has exited.
pub(crate) unsafe fn run_init(plan: &mut SpawnPlan, pipes: InitPipes, needed: &[RawFd]) -> ! {
    // SAFETY: system calls on valid pointers into the plan.
    unsafe {
        // Through other open descriptors the command could reach files outside its namespaces.
        close_all_but(needed);
        let clone_flags = plan.namespaces.as_ref().map(|plan| plan.clone_flags);
        let own_namespaces = OwnNamespaces {
            pid: clone_flags.is_some(),
            network: clone_flags.unwrap_or(0) & libc::CLONE_NEWNET != 0,
        };
        if let Some(namespaces) = &mut plan.namespaces {
            let identity = write_file(c"/proc/self/setgroups", b"deny")
                .and_then(|()| write_file(c"/proc/self/uid_map", &namespaces.uid_map))
                .and_then(|()| write_file(c"/proc/self/gid_map", &namespaces.gid_map));
            if let Err(error) = identity {
                fail(pipes.setup, SetupStage::IdMap, 0, error);
            }
            mount_all(namespaces, pipes.setup);
            // The old working folder lies below the new mounts.
            if let Err(error) = syscall_result(syscall!(SYS_chdir, c"/")) {
                fail(pipes.setup, SetupStage::Mount, 0, error);
            }
            if namespaces.clone_flags & libc::CLONE_NEWNET != 0
                && let Err(error) = bring_up_loopback()
            {
                fail(pipes.setup, SetupStage::Loopback, 0, error);
            }
        } else {
            // Without a PID namespace, orphans become children of this process instead of PID 1.
            syscall!(SYS_prctl, libc::PR_SET_CHILD_SUBREAPER, 1);
        }
        if plan.program_paths.is_empty() {
            // The plan only tests the namespaces.
            exit(0);
        }
        if is_parent_gone(pipes.liveness) {
            // The parent has already exited.
            exit(0);
        }
        let lease = plan.lease;
        let command = start_command(plan, pipes.setup);
        if command < 0 {
            fail(pipes.setup, SetupStage::Fork, 0, libc::EAGAIN);
        }
        // From here on only the pipes and the held descriptors are needed. The plan is not used
        // again after the setup pipe is closed.
        for fd in needed
            .iter()
            .copied()
            .filter(|fd| *fd != pipes.exit && *fd != pipes.liveness)
        {
            if !plan.keep_open_fds.iter().any(|hold| hold.as_raw_fd() == fd) && fd != pipes.setup {
                syscall!(SYS_close, fd);
            }
        }
        syscall!(SYS_close, pipes.setup);
        supervise(command, pipes, own_namespaces, lease)
    }
}

/// Starts the command in a process that shares this memory until `execve`. This process is
/// suspended until then. Returns the pid, or a negative number on failure.
unsafe fn start_command(plan: &SpawnPlan, setup_fd: RawFd) -> libc::pid_t {
    struct CommandStart<'a>(&'a SpawnPlan, RawFd);
    extern "C" fn command_entry(arguments: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the caller is suspended and keeps the value alive.
        unsafe {
            let arguments = &*arguments.cast::<CommandStart<'_>>();
            exec_program(arguments.0, arguments.1)
        }
    }
    let mut arguments = CommandStart(plan, setup_fd);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: only the new process uses this stack, which grows downwards from its end.
    unsafe {
        libc::clone(
            command_entry,
            plan.stack.top(),
            flags,
            (&raw mut arguments).cast(),
        )
    }
}

/// The result of a system call; the error is an error number.
type SyscallResult = Result<(), i32>;

fn syscall_result(result: isize) -> SyscallResult {
    if result < 0 {
        Err(-result as i32)
    } else {
        Ok(())
    }
}

fn fd_result(result: isize) -> Result<RawFd, i32> {
    if result < 0 {
        Err(-result as i32)
    } else {
        Ok(result as RawFd)
    }
}

/// Executes the mount steps.
unsafe fn mount_all(namespaces: &mut NamespacePlan, setup_fd: RawFd) {
    let NamespacePlan {
        steps,
        saved_tree_fds: slots,
        ..
    } = namespaces;
    // SAFETY: as in `run_init`.
    unsafe {
        let private = syscall_result(syscall!(
            SYS_mount,
            c"none",
            c"/",
            0,
            libc::MS_REC | libc::MS_PRIVATE,
            0
        ));
        if let Err(error) = private {
            fail(setup_fd, SetupStage::Mount, 0, error);
        }
        for (index, step) in steps.iter().enumerate() {
            match mount_step(step, slots) {
                Err(error) if !step.may_fail_with(error) => {
                    fail(setup_fd, SetupStage::Mount, index, error)
                }
                _ => {}
            }
        }
    }
}

unsafe fn mount_step(step: &MountStep, slots: &mut [RawFd]) -> SyscallResult {
    // SAFETY: as in `run_init`.
    unsafe {
        match step {
            MountStep::SaveTree { path, slot } => {
                slots[*slot] = clone_tree(path, 0)?;
                Ok(())
            }
            MountStep::MakeReadOnly => {
                let attributes =
                    libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
                set_attributes(libc::AT_FDCWD, c"/", attributes)
            }
            MountStep::AttachTree {
                path,
                slot,
                attributes,
            } => {
                let tree = slots[*slot];
                set_attributes(tree, c"", *attributes)?;
                attach_tree(tree, path)
            }
            MountStep::BindOverSelf { path, attributes } => {
                let tree = clone_tree(path, libc::O_NOFOLLOW)?;
                set_attributes(tree, c"", *attributes)?;
                attach_tree(tree, path)
            }
            MountStep::MountNew {
                kind,
                path,
                flags,
                data,
            } => syscall_result(syscall!(
                SYS_mount,
                *kind,
                path.as_c_str(),
                *kind,
                *flags,
                data.as_c_str()
            )),
            MountStep::HideFolder { path } => {
                let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
                syscall_result(syscall!(
                    SYS_mount,
                    c"tmpfs",
                    path.as_c_str(),
                    c"tmpfs",
                    flags,
                    c"mode=555,size=4k"
                ))
            }
            MountStep::BindFile { source, path } => syscall_result(syscall!(
                SYS_mount,
                source.as_c_str(),
                path.as_c_str(),
                0,
                libc::MS_BIND,
                0
            )),
        }
    }
}

/// Returns a detached copy of the mount tree at a path. Fails if a folder above it is a symbolic
/// link. If the path itself is one, fails unless `link_flag` is `O_NOFOLLOW`, which copies the
/// link.
unsafe fn clone_tree(path: &CStr, link_flag: libc::c_int) -> Result<RawFd, i32> {
    // SAFETY: all-zero bytes are a valid `open_how`; the path is a valid C string.
    unsafe {
        let mut how: libc::open_how = std::mem::zeroed();
        how.flags = (libc::O_PATH | libc::O_CLOEXEC | link_flag) as u64;
        how.resolve = libc::RESOLVE_NO_SYMLINKS;
        let path_fd = fd_result(syscall!(
            SYS_openat2,
            libc::AT_FDCWD,
            path,
            &raw const how,
            size_of::<libc::open_how>()
        ))?;
        let flags = libc::OPEN_TREE_CLONE
            | libc::OPEN_TREE_CLOEXEC
            | (libc::AT_RECURSIVE | libc::AT_EMPTY_PATH) as libc::c_uint;
        let tree = fd_result(syscall!(SYS_open_tree, path_fd, c"", flags));
        syscall!(SYS_close, path_fd);
        tree
    }
}

unsafe fn set_attributes(tree: RawFd, path: &CStr, attributes: u64) -> SyscallResult {
    let attr = libc::mount_attr {
        attr_set: attributes,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    let flags = libc::AT_RECURSIVE | libc::AT_EMPTY_PATH;
    // SAFETY: the path is a valid C string, and `attr` has the given size.
    unsafe {
        syscall_result(syscall!(
            SYS_mount_setattr,
            tree,
            path,
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>()
        ))
    }
}

unsafe fn attach_tree(tree: RawFd, path: &CStr) -> SyscallResult {
    // SAFETY: both paths are valid C strings.
    unsafe {
        let attached = syscall!(
            SYS_move_mount,
            tree,
            c"",
            libc::AT_FDCWD,
            path,
            libc::MOVE_MOUNT_F_EMPTY_PATH
        );
        syscall!(SYS_close, tree);
        syscall_result(attached)
    }
}

/// Brings up the loopback interface, which is down in a new network namespace.
unsafe fn bring_up_loopback() -> SyscallResult {
    // SAFETY: all-zero bytes are a valid `ifreq`; the name fits with its NUL.
    unsafe {
        let socket = fd_result(syscall!(
            SYS_socket,
            libc::AF_INET,
            libc::SOCK_DGRAM | libc::SOCK_CLOEXEC,
            0
        ))?;
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let raised = syscall!(SYS_ioctl, socket, libc::SIOCSIFFLAGS, &raw const request);
        syscall!(SYS_close, socket);
        syscall_result(raised)
    }
}

/// Applies the restrictions to this process and executes the command's program. Never returns.
unsafe fn exec_program(plan: &SpawnPlan, setup_fd: RawFd) -> ! {
    // SAFETY: as in `run_init`.
    unsafe {
        if let Err((stage, error)) = restrict_process(plan) {
            fail(setup_fd, stage, 0, error);
        }
        let mut reported = libc::ENOENT;
        for candidate in &plan.program_paths {
            let error = -syscall!(
                SYS_execve,
                candidate.as_c_str(),
                plan.argv.as_ptr(),
                plan.env.as_ptr()
            ) as i32;
            // Any other error says more than "not found".
            if !matches!(error, libc::ENOENT | libc::ENOTDIR) {
                reported = error;
            }
        }
        fail(setup_fd, SetupStage::Program, 0, reported)
    }
}

unsafe fn restrict_process(plan: &SpawnPlan) -> Result<(), (SetupStage, i32)> {
    let at = |stage: SetupStage| move |error: i32| (stage, error);
    // SAFETY: as in `run_init`.
    unsafe {
        connect_stdio(plan).map_err(at(SetupStage::Streams))?;
        for (resource, limit) in &plan.rlimits {
            syscall_result(syscall!(SYS_prlimit64, 0, *resource, &raw const *limit, 0))
                .map_err(at(SetupStage::Limits))?;
        }
        // Before Landlock and seccomp, so that a wrong folder is reported as such. Magic links of
        // /proc are not followed, because they could lead past the mounts.
        change_dir(&plan.cwd).map_err(at(SetupStage::WorkingDirectory))?;
        reset_signals();
        if plan.drops_privileges {
            drop_capabilities().map_err(at(SetupStage::Capabilities))?;
            syscall_result(syscall!(SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1))
                .map_err(at(SetupStage::Capabilities))?;
        }
        if let Some(ruleset) = &plan.landlock {
            syscall_result(syscall!(SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0))
                .map_err(at(SetupStage::Landlock))?;
        }
        // All open descriptors, the setup pipe included, are closed by `execve`.
        syscall!(
            SYS_close_range,
            3,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC
        );
        for inherited in &plan.inherited_fds {
            syscall!(SYS_fcntl, inherited.as_raw_fd(), libc::F_SETFD, 0);
        }
        for program in plan.filters.iter() {
            // `BpfProgram` has the memory layout of the kernel's filter instructions.
            let program = libc::sock_fprog {
                len: program.len() as u16,
                filter: program.as_ptr().cast_mut().cast(),
            };
            let entered = syscall!(
                SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                0,
                &raw const program
            );
            syscall_result(entered).map_err(at(SetupStage::Filter))?;
        }
    }
    Ok(())
}

/// Changes the working folder without following magic links.
unsafe fn change_dir(folder: &CStr) -> SyscallResult {
    // SAFETY: all-zero bytes are a valid `open_how`; the path is a valid C string.
    unsafe {
        let mut how: libc::open_how = std::mem::zeroed();
        how.flags = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64;
        how.resolve = libc::RESOLVE_NO_MAGICLINKS;
        let folder_fd = fd_result(syscall!(
            SYS_openat2,
            libc::AT_FDCWD,
            folder,
            &raw const how,
            size_of::<libc::open_how>()
        ))?;
        let entered = syscall!(SYS_fchdir, folder_fd);
        syscall!(SYS_close, folder_fd);
        syscall_result(entered)
    }
}

/// Starts a session and connects the standard streams.
unsafe fn connect_stdio(plan: &SpawnPlan) -> SyscallResult {
    // SAFETY: system calls on numbers.
    unsafe {
        syscall_result(syscall!(SYS_setsid))?;
        // Duplicated to numbers above 2 first, so that none is overwritten before it is used.
        let mut streams = [0; 3];
        for (stream, from) in streams.iter_mut().zip(plan.stdio) {
            *stream = fd_result(syscall!(SYS_fcntl, from, libc::F_DUPFD_CLOEXEC, 3))?;
        }
        for (number, stream) in streams.into_iter().enumerate() {
            syscall_result(syscall!(SYS_dup3, stream, number, 0))?;
        }
        if plan.takes_terminal {
            syscall_result(syscall!(SYS_ioctl, 0, libc::TIOCSCTTY, 0))?;
        }
        Ok(())
    }
}

/// Size of the kernel's `sigaction` in machine words.
const SIGACTION_WORDS: usize = 4;
/// Size of the kernel's signal set in bytes.
const SIGSET_BYTES: usize = 8;

/// Resets the signal handlers and the signal mask of the parent.
unsafe fn reset_signals() {
    // SAFETY: zeros mean the default action, no flags and no signals; both values have the size
    // that the kernel reads.
    unsafe {
        let default = [0usize; SIGACTION_WORDS];
        for signal in 1..=64 {
            syscall!(SYS_rt_sigaction, signal, default.as_ptr(), 0, SIGSET_BYTES);
        }
        let none = 0u64;
        syscall!(
            SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const none,
            0,
            SIGSET_BYTES
        );
    }
}

/// Drops every capability, including those that a program run by root would regain.
unsafe fn drop_capabilities() -> SyscallResult {
    #[repr(C)]
    struct CapabilityHeader {
        version: u32,
        pid: libc::c_int,
    }
    // `_LINUX_CAPABILITY_VERSION_3`: two sets of 32 capabilities.
    const VERSION_3: u32 = 0x2008_0522;
    // SAFETY: the header and the two zeroed sets have the layout that the system call expects.
    unsafe {
        for capability in 0..64 {
            // Fails after the last capability of the kernel, or without the right to drop any.
            if syscall!(SYS_prctl, libc::PR_CAPBSET_DROP, capability) < 0 {
                break;
            }
        }
        syscall!(
            SYS_prctl,
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL
        );
        let header = CapabilityHeader {
            version: VERSION_3,
            pid: 0,
        };
        let none = [[0u32; 3]; 2];
        syscall_result(syscall!(SYS_capset, &raw const header, &raw const none))
    }
}

/// Reaps processes until none is left, and reports the exit of the command. Kills the remaining
/// processes when the parent closes the liveness pipe, and when the lease ends. Never returns.
unsafe fn supervise(
    command: libc::pid_t,
    pipes: InitPipes,
    namespaces: OwnNamespaces,
    lease: Option<&'static CommandLease>,
) -> ! {
    // SAFETY: system calls on numbers and on values that live on this stack.
    unsafe {
        let InitPipes {
            liveness: liveness_fd,
            exit: exit_fd,
            ..
        } = pipes;
        let sigchld: u64 = 1 << (libc::SIGCHLD - 1);
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        let sigchld_fd = syscall!(
            SYS_signalfd4,
            -1i32,
            &raw const sigchld,
            SIGSET_BYTES,
            flags
        ) as RawFd;
        let mut exit_status = None;
        let mut is_reported = false;
        loop {
            let left_behind = loop {
                // Checked in each round, so that processes that fork and exit quickly cannot delay
                // it.
                if is_parent_gone(liveness_fd) || remaining_ns(lease) == Some(0) {
                    break true;
                }
                let mut status = 0i32;
                let options = libc::WNOHANG | libc::__WALL;
                match syscall!(SYS_wait4, -1i32, &raw mut status, options, 0) {
                    pid if pid == command as isize => exit_status = Some(status),
                    0 => break true,
                    ..0 => break false,
                    _ => {}
                }
            };
            if let Some(status) = exit_status.take() {
                let (no_route, no_port) = match namespaces.network {
                    true => read_network_counters(),
                    false => (-1, -1),
                };
                let end: ExitReport = [status, i32::from(left_behind), no_route, no_port];
                syscall!(SYS_write, exit_fd, end.as_ptr(), size_of::<ExitReport>());
                syscall!(SYS_close, exit_fd);
                is_reported = true;
            }
            if !left_behind {
                exit(0);
            }
            let mut fds = [
                libc::pollfd {
                    fd: liveness_fd,
                    events: libc::POLLIN,
                    revents: 0,
                },
                libc::pollfd {
                    fd: sigchld_fd,
                    events: libc::POLLIN,
                    revents: 0,
                },
            ];
            let left_ns = remaining_ns(lease);
            // The clock of the time-out stops while the machine sleeps, and that of the lease does
            // not: the lease is checked often.
            let left_ns = left_ns.map(|ns| ns.min(MAX_POLL_NS));
            let mut timeout = left_ns.map(|ns| [ns / NS_PER_SECOND, ns % NS_PER_SECOND]);
            // The kernel writes the remaining time.
            let timeout = timeout
                .as_mut()
                .map_or(std::ptr::null_mut(), |time| time.as_mut_ptr());
            let polled = syscall!(SYS_ppoll, fds.as_mut_ptr(), fds.len(), timeout, 0, 0);
            let mut buffer = [0u8; 512];
            while syscall!(SYS_read, sigchld_fd, buffer.as_mut_ptr(), buffer.len()) > 0 {}
            let has_lease_ended = remaining_ns(lease) == Some(0);
            if has_lease_ended && !is_reported {
                let end: ExitReport = [LEASE_ENDED, 0, -1, -1];
                syscall!(SYS_write, exit_fd, end.as_ptr(), size_of::<ExitReport>());
            }
            // If polling fails, the processes cannot be supervised any more.
            let is_broken = polled < 0 && polled != -(libc::EINTR as isize);
            if fds[0].revents != 0 || has_lease_ended || is_broken {
                if !namespaces.pid {
                    kill_descendants();
                }
                // In a PID namespace the kernel kills all other processes when PID 1 exits.
                exit(0);
            }
        }
    }
}

const NS_PER_SECOND: u64 = 1_000_000_000;
/// The longest time between two checks of the lease.
const MAX_POLL_NS: u64 = NS_PER_SECOND / 4;

/// Returns how long the lease lasts, in nanoseconds; `None` if there is none.
unsafe fn remaining_ns(lease: Option<&'static CommandLease>) -> Option<u64> {
    // SAFETY: the function only makes a system call.
    lease.map(|lease| lease.ends_ns().saturating_sub(unsafe { now_ns() }))
}

/// Reads the counters of the network namespace: packets without a route, and without a port.
unsafe fn read_network_counters() -> (i32, i32) {
    let (mut snmp, mut snmp6) = ([0u8; 4096], [0u8; 4096]);
    // SAFETY: the buffers live on this stack.
    let (length, length6) = unsafe {
        (
            read_file(c"/proc/self/net/snmp", &mut snmp),
            read_file(c"/proc/self/net/snmp6", &mut snmp6),
        )
    };
    let counters = NetworkCounters::parse(&snmp[..length], &snmp6[..length6]);
    let clamped = |count: u32| count.min(i32::MAX as u32) as i32;
    (clamped(counters.no_route), clamped(counters.no_port))
}

/// Reads the beginning of a file and returns how many bytes it read; 0 if it cannot be read.
unsafe fn read_file(path: &CStr, buffer: &mut [u8]) -> usize {
    // SAFETY: the path is a valid C string, and the buffer has the given length.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let file = syscall!(SYS_openat, libc::AT_FDCWD, path, flags, 0) as RawFd;
        let length = syscall!(SYS_read, file, buffer.as_mut_ptr(), buffer.len());
        syscall!(SYS_close, file);
        usize::try_from(length).unwrap_or(0).min(buffer.len())
    }
}

/// Closes every descriptor except those in `needed`, which must be sorted.
unsafe fn close_all_but(needed: &[RawFd]) {
    let mut from = 0;
    for fd in needed.iter().copied() {
        if fd > from {
            // SAFETY: system calls on numbers.
            unsafe { syscall!(SYS_close_range, from, fd - 1, 0) };
        }
        from = fd + 1;
    }
    // SAFETY: system calls on numbers.
    unsafe { syscall!(SYS_close_range, from, libc::c_uint::MAX, 0) };
}

/// Returns whether the parent has closed its end of the liveness pipe.
unsafe fn is_parent_gone(liveness_fd: RawFd) -> bool {
    let mut poll_fd = libc::pollfd {
        fd: liveness_fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let no_timeout = [0i64; 2];
    // SAFETY: the pointers refer to one valid entry and a valid time.
    unsafe { syscall!(SYS_ppoll, &raw mut poll_fd, 1, no_timeout.as_ptr(), 0, 0) > 0 }
}

/// Kills child processes until none is left. The children of a killed process become children of
/// this process and are killed in the next round.
unsafe fn kill_descendants() {
    // SAFETY: system calls on numbers and on a buffer that lives on this stack.
    unsafe {
        loop {
            let flags = libc::O_RDONLY | libc::O_CLOEXEC;
            let list = syscall!(
                SYS_openat,
                libc::AT_FDCWD,
                c"/proc/thread-self/children",
                flags,
                0
            ) as RawFd;
            let mut buffer = [0u8; 4096];
            let length = syscall!(SYS_read, list, buffer.as_mut_ptr(), buffer.len());
            syscall!(SYS_close, list);
            let mut pid: libc::pid_t = 0;
            for byte in buffer
                .iter()
                .take(if length > 0 { length as usize } else { 0 })
            {
                match byte {
                    b'0'..=b'9' => {
                        pid = pid
                            .wrapping_mul(10)
                            .wrapping_add((byte - b'0') as libc::pid_t)
                    }
                    // A pid that is cut off at the end of the buffer is read in the next round.
                    _ => {
                        if pid > 1 {
                            syscall!(SYS_kill, pid, libc::SIGKILL);
                        }
                        pid = 0;
                    }
                }
            }
            if syscall!(SYS_wait4, -1i32, 0, libc::__WALL, 0) == -(libc::ECHILD as isize) {
                return;
            }
        }
    }
}

unsafe fn write_file(path: &CStr, bytes: &[u8]) -> SyscallResult {
    // SAFETY: the path is a valid C string, and the bytes have the given length.
    unsafe {
        let file = fd_result(syscall!(
            SYS_openat,
            libc::AT_FDCWD,
            path,
            libc::O_WRONLY | libc::O_CLOEXEC,
            0
        ))?;
        let written = syscall!(SYS_write, file, bytes.as_ptr(), bytes.len());
        syscall!(SYS_close, file);
        syscall_result(written)
    }
}

/// Reports to the parent which stage failed, and exits.
unsafe fn fail(setup_fd: RawFd, stage: SetupStage, detail: usize, error: i32) -> ! {
    let report: SetupReport = [stage as i32, detail as i32, error];
    // SAFETY: the report has the given size.
    unsafe {
        syscall!(
            SYS_write,
            setup_fd,
            report.as_ptr(),
            size_of::<SetupReport>()
        );
        exit(127)
    }
}

unsafe fn exit(status: i32) -> ! {
    loop {
        // SAFETY: this ends only the calling process; others share its memory but not its threads.
        unsafe { syscall!(SYS_exit_group, status) };
    }
}
