//! The current time in milliseconds, and strictly increasing timestamps.

use std::sync::atomic::{AtomicI64, Ordering};

pub(crate) use selvedge_protocol::now_ms;

/// Returns the time in nanoseconds since 1970. Each value is greater than all earlier ones of this
/// process.
pub(crate) fn next_ns() -> i64 {
    static LAST: AtomicI64 = AtomicI64::new(0);
    let now = selvedge_protocol::since_epoch().as_nanos() as i64;
    let next = |last: i64| now.max(last + 1);
    LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
        Some(next(last))
    })
    .map_or(now, next)
}
