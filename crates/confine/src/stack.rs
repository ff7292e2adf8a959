//! Stacks for cloned processes that share the memory of this process.

use std::ptr::null_mut;

use crate::ConfineError;

/// Far more than the cloned process needs: it only makes system calls on prepared values.
const STACK_BYTES: usize = 128 * 1024;
const GUARD_BYTES: usize = 64 * 1024;

/// A stack with an inaccessible guard area below it.
#[derive(Debug)]
pub(crate) struct CloneStack(*mut u8);

// SAFETY: the memory is referred to only by its owner.
unsafe impl Send for CloneStack {}

impl CloneStack {
    pub(crate) fn new() -> Result<Self, ConfineError> {
        // SAFETY: the mapping is new and has no other users; the guard area lies inside it.
        unsafe {
            let flags =
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
            let start = libc::mmap(
                null_mut(),
                GUARD_BYTES + STACK_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            );
            if start == libc::MAP_FAILED {
                return Err(ConfineError::last_os_error("allocate a stack"));
            }
            libc::mprotect(start, GUARD_BYTES, libc::PROT_NONE);
            Ok(Self(start.cast()))
        }
    }

    /// Returns the end of the memory, where the stack starts: stacks grow downwards.
    pub(crate) fn top(&self) -> *mut libc::c_void {
        self.0.wrapping_add(GUARD_BYTES + STACK_BYTES).cast()
    }
}

impl Drop for CloneStack {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the memory with this size, and it is unmapped only here.
        unsafe { libc::munmap(self.0.cast(), GUARD_BYTES + STACK_BYTES) };
    }
}
