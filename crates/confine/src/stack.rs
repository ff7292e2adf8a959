//! Stacks for processes that share our memory.

use std::ptr::null_mut;

use crate::ConfineError;

/// Far more than system calls on laid-out values need.
const SIZE: usize = 128 * 1024;
const GUARD: usize = 64 * 1024;

/// A stack with a page below it that nobody can touch.
#[derive(Debug)]
pub(crate) struct Stack(*mut u8);

// SAFETY: it is a range of memory that only its owner names.
unsafe impl Send for Stack {}

impl Stack {
    pub(crate) fn new() -> Result<Self, ConfineError> {
        // SAFETY: new memory, which nobody else has; the guard lies inside it.
        unsafe {
            let flags =
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
            let start = libc::mmap(
                null_mut(),
                GUARD + SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            );
            if start == libc::MAP_FAILED {
                return Err(ConfineError::last("making a stack"));
            }
            libc::mprotect(start, GUARD, libc::PROT_NONE);
            Ok(Self(start.cast()))
        }
    }

    /// Where it begins: stacks grow downwards.
    pub(crate) fn top(&self) -> *mut libc::c_void {
        self.0.wrapping_add(GUARD + SIZE).cast()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size, and unmapped once.
        unsafe { libc::munmap(self.0.cast(), GUARD + SIZE) };
    }
}
