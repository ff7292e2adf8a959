//! System calls without libc: no `errno`, no locks, no cancellation points. The init process shares
//! its memory, thread-local storage included, with the parent process, which keeps running.

/// Makes a system call. A negative result is a negated error number.
///
/// # Safety
/// The arguments must be valid for the system call.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn syscall6(number: libc::c_long, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel clobbers only these two registers.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes a system call. A negative result is a negated error number.
///
/// # Safety
/// The arguments must be valid for the system call.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) unsafe fn call6(number: libc::c_long, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel clobbers only the result register.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a[0] => result,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack),
        );
    }
    result
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("confine supports only x86_64 and aarch64 on Linux");

/// A value that can be passed to a system call.
pub(crate) trait SyscallArg {
    fn to_word(self) -> usize;
}

macro_rules! impl_syscall_arg {
    ($($kind:ty),*) => { $(impl SyscallArg for $kind {
        fn to_word(self) -> usize {
            self as usize
        }
    })* };
}
impl_syscall_arg!(i32, u32, i64, u64, usize);

impl<T> SyscallArg for *const T {
    fn to_word(self) -> usize {
        self as usize
    }
}

impl<T> SyscallArg for *mut T {
    fn to_word(self) -> usize {
        self as usize
    }
}

impl SyscallArg for &std::ffi::CStr {
    fn to_word(self) -> usize {
        self.as_ptr() as usize
    }
}

/// Makes a system call with up to six arguments: `syscall!(SYS_close, fd)`.
macro_rules! syscall {
    ($number:ident $(, $argument:expr)* $(,)?) => {{
        let given: &[usize] = &[$($crate::syscall::SyscallArg::to_word($argument)),*];
        let mut arguments = [0; 6];
        arguments[..given.len()].copy_from_slice(given);
        $crate::syscall::syscall6(libc::$number, arguments)
    }};
}
pub(crate) use syscall;
