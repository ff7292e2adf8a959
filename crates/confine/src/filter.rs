//! What a confined command may ask the kernel: everything but what is listed here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::{ConfineError, NamedSockets, Network};

/// Other processes, the kernel itself, and ways around the walls.
const REFUSED: &[libc::c_long] = &[
    // Other processes.
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
    // Files by number instead of by name.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    // Large doors into the kernel.
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

/// Newer than the constants.
const OPEN_TREE_ATTR: libc::c_long = 467;

/// Calls that programs do without when the kernel does not have them. `io_uring` would walk past this
/// filter, and the flags of `clone3` and the mode of `openat2` cannot be seen by it.
const ABSENT: &[libc::c_long] = &[
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_clone3,
    libc::SYS_openat2,
];

/// Kinds of sockets that stay inside the command's own network.
const OWN_NETWORK: &[libc::c_int] = &[
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

const NEW_NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Who keeps the command off the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Keeper {
    /// It has a network of its own, where addresses lead nowhere.
    Namespace,
    /// This filter: no sockets but those between its own processes.
    Filter,
}

/// Calls that set a file's mode, and which of their arguments it is.
const MODES: &[(libc::c_long, u8)] = &[
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

/// Calls that set it if their flags say that a file is made, and which of their arguments these are: flags, mode.
const MODES_IF_MADE: &[(libc::c_long, u8, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1, 2),
    (libc::SYS_openat, 2, 3),
];

/// Flags that make a file, with a name or without one.
const MAKING: [libc::c_int; 2] = [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY];

/// Kinds of sockets that write to any address, although they are one of a pair.
const WITHOUT_CONNECTION: [libc::c_int; 2] = [libc::SOCK_DGRAM, libc::SOCK_RAW];

/// The part of a socket's type that is its kind.
const SOCKET_KIND: u64 = 0xf;

type Made = BTreeMap<(Network, NamedSockets, Keeper), Arc<[BpfProgram]>>;

/// The programs, to be applied one after the other. Made once for each kind.
pub(crate) fn programs(
    network: Network,
    named: NamedSockets,
    keeper: Keeper,
) -> Result<Arc<[BpfProgram]>, ConfineError> {
    static MADE: Mutex<Made> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(programs) = made.get(&(network, named, keeper)) {
        return Ok(programs.clone());
    }
    let programs: Arc<[BpfProgram]> = compile(network, named, keeper)?.into();
    made.insert((network, named, keeper), programs.clone());
    Ok(programs)
}

fn compile(
    network: Network,
    named: NamedSockets,
    keeper: Keeper,
) -> Result<Vec<BpfProgram>, ConfineError> {
    let mut refused: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let low = |index, op, value: u64| condition(index, SeccompCmpArgLen::Dword, op, value);
    // A child may be made, but not with namespaces of its own.
    let namespaces: Result<Vec<_>, _> = (0..32)
        .map(|bit| 1u64 << bit)
        .filter(|bit| NEW_NAMESPACES as u64 & bit != 0)
        .map(|bit| rule(vec![low(0, SeccompCmpOp::MaskedEq(bit), bit)?]))
        .collect();
    refused.insert(libc::SYS_clone, namespaces?);
    // The limits of others: the init's own would unhook it.
    refused.insert(
        libc::SYS_prlimit64,
        vec![rule(vec![low(0, SeccompCmpOp::Ne, 0)?])?],
    );
    // Programs that run with somebody else's rights, to be found by others later.
    const RIGHTS: [libc::mode_t; 2] = [libc::S_ISUID, libc::S_ISGID];
    let has = |index, bits: u64| low(index, SeccompCmpOp::MaskedEq(bits), bits);
    for (call, mode) in MODES {
        let bits: Result<Vec<_>, _> = RIGHTS
            .map(|bit| rule(vec![has(*mode, bit.into())?]))
            .into_iter()
            .collect();
        refused.insert(*call, bits?);
    }
    for (call, flags, mode) in MODES_IF_MADE {
        let made = MAKING
            .into_iter()
            .flat_map(|flag| RIGHTS.map(|bit| (flag as u64, u64::from(bit))));
        let bits: Result<Vec<_>, _> = made
            .map(|(flag, bit)| rule(vec![has(*flags, flag)?, has(*mode, bit)?]))
            .collect();
        refused.insert(*call, bits?);
    }
    // Typing into the terminal on the person's behalf, and other drivers behind it.
    let typing: Result<Vec<_>, _> = [
        libc::TIOCSTI,
        0x541C, /* TIOCLINUX */
        0x5423, /* TIOCSETD */
    ]
    .into_iter()
    .map(|request| rule(vec![low(1, SeccompCmpOp::Eq, request)?]))
    .collect();
    refused.insert(libc::SYS_ioctl, typing?);
    let mut sockets = Vec::new();
    if network == Network::Off {
        let families: &[libc::c_int] = match keeper {
            Keeper::Namespace => OWN_NETWORK,
            Keeper::Filter => &[libc::AF_UNIX],
        };
        let others: Result<Vec<_>, _> = families
            .iter()
            .map(|family| low(0, SeccompCmpOp::Ne, *family as u64))
            .collect();
        sockets.push(rule(others?)?);
    }
    if named == NamedSockets::Off {
        let unix = || low(0, SeccompCmpOp::Eq, libc::AF_UNIX as u64);
        sockets.push(rule(vec![unix()?])?);
        let pairs: Result<Vec<_>, _> = WITHOUT_CONNECTION
            .map(|kind| {
                rule(vec![
                    unix()?,
                    low(1, SeccompCmpOp::MaskedEq(SOCKET_KIND), kind as u64)?,
                ])
            })
            .into_iter()
            .collect();
        refused.insert(libc::SYS_socketpair, pairs?);
    }
    if !sockets.is_empty() {
        refused.insert(libc::SYS_socket, sockets);
    }
    let absent = ABSENT.iter().map(|call| (*call, Vec::new())).collect();
    let mut programs = vec![
        program(refused, libc::EPERM)?,
        program(absent, libc::ENOSYS)?,
    ];
    if cfg!(target_arch = "x86_64") {
        programs.push(without_x32());
    }
    Ok(programs)
}

fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    errno: libc::c_int,
) -> Result<BpfProgram, ConfineError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| broken(&error))?;
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(errno as u32),
        arch,
    );
    filter
        .and_then(TryInto::try_into)
        .map_err(|error| broken(&error))
}

fn condition(
    index: u8,
    length: SeccompCmpArgLen,
    op: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, ConfineError> {
    SeccompCondition::new(index, length, op, value).map_err(|error| broken(&error))
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, ConfineError> {
    SeccompRule::new(conditions).map_err(|error| broken(&error))
}

fn broken(error: &dyn std::fmt::Display) -> ConfineError {
    ConfineError::NotEnforceable {
        why: format!("there is no system call filter for this machine: {error}"),
    }
}

/// The same calls have a second set of numbers on this processor, which the other programs do not list.
fn without_x32() -> BpfProgram {
    const NUMBER: u32 = 0;
    const X32: u32 = 0x4000_0000;
    let step = |code: u32, jt, jf, k| seccompiler::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    vec![
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER),
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, X32),
        step(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
        ),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}
