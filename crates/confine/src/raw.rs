//! System calls that touch nothing but the kernel: no `errno`, no lock, no cancellation point. The init shares
//! its memory, thread-local storage included, with a process that goes on meanwhile.

/// Makes a system call; a negative result is an error number.
///
/// # Safety
/// As the call wants its arguments.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn call6(number: libc::c_long, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel clobbers these two registers and nothing else.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes a system call; a negative result is an error number.
///
/// # Safety
/// As the call wants its arguments.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) unsafe fn call6(number: libc::c_long, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel clobbers nothing but the result.
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
compile_error!("confine knows how to make system calls on x86_64 and aarch64 only");

/// An argument of a system call.
pub(crate) trait Argument {
    fn word(self) -> usize;
}

macro_rules! numbers {
    ($($kind:ty),*) => { $(impl Argument for $kind {
        fn word(self) -> usize {
            self as usize
        }
    })* };
}
numbers!(i32, u32, i64, u64, usize);

impl<T> Argument for *const T {
    fn word(self) -> usize {
        self as usize
    }
}

impl<T> Argument for *mut T {
    fn word(self) -> usize {
        self as usize
    }
}

impl Argument for &std::ffi::CStr {
    fn word(self) -> usize {
        self.as_ptr() as usize
    }
}

/// `call!(SYS_close, fd)`: a system call with up to six arguments.
macro_rules! call {
    ($number:ident $(, $argument:expr)* $(,)?) => {{
        let given: &[usize] = &[$($crate::raw::Argument::word($argument)),*];
        let mut words = [0; 6];
        words[..given.len()].copy_from_slice(given);
        $crate::raw::call6(libc::$number, words)
    }};
}
pub(crate) use call;
