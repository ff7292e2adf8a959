//! The lease of commands: a time at which they are killed, unless this process extends it before.
//! A process that is stopped, or that cannot extend its own lease, so loses its commands in time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use selvedge_protocol::LeaseObserver;

/// How long commands may run. On Linux the init process of each command reads it, so the command is
/// killed also if this process is stopped. On other systems the lease is checked only when a
/// command starts.
#[derive(Debug, Default)]
pub struct CommandLease {
    /// Nanoseconds since the machine was started, sleep included.
    ends_ns: AtomicU64,
}

impl CommandLease {
    /// Creates a lease that has ended, so that no command can start before it is extended. The
    /// memory is never freed: the init process of a command reads it also after this process has
    /// exited.
    pub fn new() -> &'static Self {
        Box::leak(Box::default())
    }

    /// Returns the time of the clock that leases use. It does not stop while the machine sleeps,
    /// and no library can replace it.
    #[cfg(target_os = "linux")]
    pub fn now() -> Duration {
        // SAFETY: the function has no requirements on the calling process.
        Duration::from_nanos(unsafe { now_ns() })
    }

    /// Returns the time of the clock that leases use.
    #[cfg(not(target_os = "linux"))]
    pub fn now() -> Duration {
        use std::sync::OnceLock;
        use std::time::Instant;
        static START: OnceLock<Instant> = OnceLock::new();
        // The start is not zero, so that a new lease has ended.
        START.get_or_init(Instant::now).elapsed() + Duration::from_secs(1)
    }

    /// Lets commands run until this time of [`CommandLease::now`]. An earlier end than the present
    /// one has no effect.
    pub fn extend_to(&self, end: Duration) {
        let end = u64::try_from(end.as_nanos()).unwrap_or(u64::MAX);
        self.ends_ns.fetch_max(end, Ordering::Release);
    }

    /// Returns whether the time has passed.
    pub fn has_ended(&self) -> bool {
        self.ends_ns() <= u64::try_from(Self::now().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the end, in nanoseconds of the clock.
    pub(crate) fn ends_ns(&self) -> u64 {
        self.ends_ns.load(Ordering::Acquire)
    }
}

impl LeaseObserver for CommandLease {
    fn now(&self) -> Duration {
        Self::now()
    }

    fn extend_to(&self, end: Duration) {
        self.extend_to(end);
    }
}

/// Returns the time of the clock in nanoseconds.
///
/// # Safety
/// Uses neither `errno` nor memory besides its stack, so that an init process can call it.
#[cfg(target_os = "linux")]
pub(crate) unsafe fn now_ns() -> u64 {
    use crate::syscall::syscall;
    let mut time = [0i64; 2];
    // SAFETY: the kernel writes a time of two numbers.
    unsafe { syscall!(SYS_clock_gettime, libc::CLOCK_BOOTTIME, time.as_mut_ptr()) };
    (time[0] as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time[1] as u64)
}
