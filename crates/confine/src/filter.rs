//! The seccomp filter of confined commands: allows every system call except those listed here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::{ConfineError, NetworkAccess, UnixSocketAccess};

/// System calls that fail with `EPERM`: they reach other processes or the kernel itself, or undo
/// the confinement.
const DENIED_SYSCALLS: &[libc::c_long] = &[
    // Access to other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_kcmp,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    OPEN_TREE_ATTR,
    libc::SYS_setns,
    libc::SYS_unshare,
    // Access to files by handle instead of by path.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    // Kernel interfaces with a large attack surface.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_memfd_secret,
    libc::SYS_fanotify_init,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_acct,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// `open_tree_attr`, which `libc` does not define yet.
const OPEN_TREE_ATTR: libc::c_long = 467;

/// System calls that fail with `ENOSYS`, for which programs have a fallback. `io_uring` would
/// bypass this filter, and the filter cannot see the flags of `clone3` and the mode of `openat2`.
const UNAVAILABLE_SYSCALLS: &[libc::c_long] = &[
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_clone3,
    libc::SYS_openat2,
];

/// Socket families of ordinary programs. They stay in the command's network namespace, or in that
/// of the host if the command may use the network. All others are refused with and without network
/// access: some reach the hypervisor or other machines past the routes of the host, and all have a
/// large attack surface in the kernel.
const ORDINARY_FAMILIES: &[libc::c_int] = &[
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

const NAMESPACE_FLAGS: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// The mechanism that keeps a command off the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NetworkBlock {
    /// A network namespace without a route to other hosts.
    Namespace,
    /// This filter, which allows only Unix sockets.
    Filter,
}

/// System calls that set a file's mode, with the index of the mode argument.
const MODE_SYSCALLS: &[(libc::c_long, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (libc::SYS_fchmodat2, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
    (libc::SYS_mknodat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
];

/// System calls that set a file's mode if their flags create a file, with the indexes of the flags
/// and the mode argument.
const OPEN_SYSCALLS: &[(libc::c_long, u8, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1, 2),
    (libc::SYS_openat, 2, 3),
];

/// Flags that create a file, with a name or without one.
const CREATE_FLAGS: [libc::c_int; 2] = [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY];

/// Socket types that can send to any address, even as one end of a pair.
const CONNECTIONLESS_TYPES: [libc::c_int; 2] = [libc::SOCK_DGRAM, libc::SOCK_RAW];

/// The bits of the socket type argument that hold the type; the others are flags.
const SOCKET_TYPE_MASK: u64 = 0xf;

type FilterCache = BTreeMap<(NetworkAccess, UnixSocketAccess, NetworkBlock), Arc<[BpfProgram]>>;

/// Returns the filter programs, to be installed in order. Each combination is compiled once.
pub(crate) fn filter_programs(
    network: NetworkAccess,
    unix_sockets: UnixSocketAccess,
    network_block: NetworkBlock,
) -> Result<Arc<[BpfProgram]>, ConfineError> {
    static CACHE: Mutex<FilterCache> = Mutex::new(BTreeMap::new());
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(programs) = cache.get(&(network, unix_sockets, network_block)) {
        return Ok(programs.clone());
    }
    let programs: Arc<[BpfProgram]> = compile(network, unix_sockets, network_block)?.into();
    cache.insert((network, unix_sockets, network_block), programs.clone());
    Ok(programs)
}

fn compile(
    network: NetworkAccess,
    unix_sockets: UnixSocketAccess,
    network_block: NetworkBlock,
) -> Result<Vec<BpfProgram>, ConfineError> {
    let mut refused: BTreeMap<i64, Vec<SeccompRule>> = DENIED_SYSCALLS
        .iter()
        .map(|call| (*call, Vec::new()))
        .collect();
    // Compares the low 32 bits of an argument.
    let low = |index, op, value: u64| condition(index, SeccompCmpArgLen::Dword, op, value);
    // Child processes are allowed, new namespaces are not.
    let namespaces: Result<Vec<_>, _> = (0..32)
        .map(|bit| 1u64 << bit)
        .filter(|bit| NAMESPACE_FLAGS as u64 & bit != 0)
        .map(|bit| rule(vec![low(0, SeccompCmpOp::MaskedEq(bit), bit)?]))
        .collect();
    refused.insert(libc::SYS_clone, namespaces?);
    // Limits of other processes: with a lower limit the init process could not supervise any more.
    refused.insert(
        libc::SYS_prlimit64,
        vec![rule(vec![low(0, SeccompCmpOp::Ne, 0)?])?],
    );
    // Set-user-id and set-group-id files, which would run with other rights outside the
    // confinement.
    const SETID_BITS: [libc::mode_t; 2] = [libc::S_ISUID, libc::S_ISGID];
    let has = |index, bits: u64| low(index, SeccompCmpOp::MaskedEq(bits), bits);
    for (call, mode) in MODE_SYSCALLS {
        let rules: Result<Vec<_>, _> = SETID_BITS
            .map(|bit| rule(vec![has(*mode, bit.into())?]))
            .into_iter()
            .collect();
        refused.insert(*call, rules?);
    }
    for (call, flags, mode) in OPEN_SYSCALLS {
        let combinations = CREATE_FLAGS
            .into_iter()
            .flat_map(|flag| SETID_BITS.map(|bit| (flag as u64, u64::from(bit))));
        let rules: Result<Vec<_>, _> = combinations
            .map(|(flag, bit)| rule(vec![has(*flags, flag)?, has(*mode, bit)?]))
            .collect();
        refused.insert(*call, rules?);
    }
    // Input injection into the terminal, and changes of its line discipline.
    let terminal_requests: Result<Vec<_>, _> = [
        libc::TIOCSTI,
        0x541C, /* TIOCLINUX */
        0x5423, /* TIOCSETD */
    ]
    .into_iter()
    .map(|request| rule(vec![low(1, SeccompCmpOp::Eq, request)?]))
    .collect();
    refused.insert(libc::SYS_ioctl, terminal_requests?);
    let families: &[libc::c_int] = match (network, network_block) {
        (NetworkAccess::Off, NetworkBlock::Filter) => &[libc::AF_UNIX],
        _ => ORDINARY_FAMILIES,
    };
    let others: Result<Vec<_>, _> = families
        .iter()
        .map(|family| low(0, SeccompCmpOp::Ne, *family as u64))
        .collect();
    let mut sockets = vec![rule(others?)?];
    if unix_sockets == UnixSocketAccess::Off {
        let unix = || low(0, SeccompCmpOp::Eq, libc::AF_UNIX as u64);
        sockets.push(rule(vec![unix()?])?);
        let pairs: Result<Vec<_>, _> = CONNECTIONLESS_TYPES
            .map(|kind| {
                rule(vec![
                    unix()?,
                    low(1, SeccompCmpOp::MaskedEq(SOCKET_TYPE_MASK), kind as u64)?,
                ])
            })
            .into_iter()
            .collect();
        refused.insert(libc::SYS_socketpair, pairs?);
    }
    refused.insert(libc::SYS_socket, sockets);
    let absent = UNAVAILABLE_SYSCALLS
        .iter()
        .map(|call| (*call, Vec::new()))
        .collect();
    let mut programs = vec![
        build_program(refused, libc::EPERM)?,
        build_program(absent, libc::ENOSYS)?,
    ];
    if cfg!(target_arch = "x86_64") {
        programs.push(deny_x32());
    }
    Ok(programs)
}

fn build_program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    errno: libc::c_int,
) -> Result<BpfProgram, ConfineError> {
    let arch =
        TargetArch::try_from(std::env::consts::ARCH).map_err(|error| filter_error(&error))?;
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(errno as u32),
        arch,
    );
    filter
        .and_then(TryInto::try_into)
        .map_err(|error| filter_error(&error))
}

fn condition(
    index: u8,
    length: SeccompCmpArgLen,
    op: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, ConfineError> {
    SeccompCondition::new(index, length, op, value).map_err(|error| filter_error(&error))
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, ConfineError> {
    SeccompRule::new(conditions).map_err(|error| filter_error(&error))
}

fn filter_error(error: &dyn std::fmt::Display) -> ConfineError {
    ConfineError::Unsupported {
        reason: format!("cannot build a seccomp filter: {error}"),
    }
}

/// Returns a program that denies the x32 system calls. On x86_64 these are a second set of numbers
/// for the same calls, which the other programs do not check.
fn deny_x32() -> BpfProgram {
    // Offset of the number of the system call in `seccomp_data`, in bytes.
    const NUMBER_OFFSET: u32 = 0;
    // Set in the numbers of x32 system calls.
    const X32_SYSCALL_BIT: u32 = 0x4000_0000;
    let instruction = |code: u32, jt, jf, k| seccompiler::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    vec![
        instruction(
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            0,
            0,
            NUMBER_OFFSET,
        ),
        instruction(
            libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K,
            0,
            1,
            X32_SYSCALL_BIT,
        ),
        instruction(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
        ),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}
