//! Advances the engine's epoch while scripts compute, so that they check their deadline and
//! cancellation. Also drops guests that have ended.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How often a computing script checks its deadline and cancellation.
const TICK_INTERVAL: Duration = Duration::from_millis(2);
/// Ticks without a computing script after which the thread sleeps until it is woken.
const MAX_IDLE_TICKS: u32 = 50;
/// Guests that may wait to be dropped. Beyond that, the caller drops them itself.
const MAX_PENDING_DROPS: usize = 32;

/// Owns the ticker thread, which sleeps while no script computes.
#[derive(Debug)]
pub(crate) struct Ticker {
    shared: Arc<TickerState>,
}

#[derive(Default)]
struct TickerState {
    computing_scripts: AtomicUsize,
    closed: AtomicBool,
    asleep: Mutex<bool>,
    wake: Condvar,
    /// Ended guests that the ticker thread drops at its next tick.
    pending_drops: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl fmt::Debug for TickerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TickerState")
            .field("computing_scripts", &self.computing_scripts)
            .finish_non_exhaustive()
    }
}

impl TickerState {
    fn lock_pending_drops(&self) -> MutexGuard<'_, Vec<Box<dyn Any + Send>>> {
        self.pending_drops
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the ticker running while a script computes.
#[derive(Debug)]
pub(crate) struct ComputingGuard(Arc<TickerState>);

impl Ticker {
    pub(crate) fn new(engine: &wasmtime::Engine) -> std::io::Result<Self> {
        let shared = Arc::new(TickerState::default());
        let (thread_shared, engine) = (shared.clone(), engine.weak());
        thread::Builder::new()
            .name("selvedge-ticker".into())
            .spawn(move || run_ticker(&thread_shared, &engine))?;
        Ok(Self { shared })
    }

    pub(crate) fn start_computing(&self) -> ComputingGuard {
        if self.shared.computing_scripts.fetch_add(1, Ordering::SeqCst) == 0 {
            let asleep = self
                .shared
                .asleep
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if *asleep {
                self.shared.wake.notify_one();
            }
        }
        ComputingGuard(self.shared.clone())
    }

    /// Drops a value on the ticker thread at the next tick, or here if too many wait.
    pub(crate) fn drop_later(&self, value: impl Send + 'static) {
        {
            let mut left = self.shared.lock_pending_drops();
            if left.len() >= MAX_PENDING_DROPS {
                return;
            }
            left.push(Box::new(value));
        }
        let asleep = self
            .shared
            .asleep
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *asleep {
            self.shared.wake.notify_one();
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        let _asleep = self
            .shared
            .asleep
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.shared.wake.notify_one();
    }
}

impl Drop for ComputingGuard {
    fn drop(&mut self) {
        self.0.computing_scripts.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The ticker thread. Ends when the ticker or the engine is dropped.
fn run_ticker(shared: &TickerState, engine: &wasmtime::EngineWeak) {
    let closed = || shared.closed.load(Ordering::SeqCst);
    let computing = || shared.computing_scripts.load(Ordering::SeqCst) > 0;
    let mut idle = 0;
    while !closed() {
        idle = if computing() { 0 } else { idle + 1 };
        if idle > MAX_IDLE_TICKS {
            let mut asleep = shared.asleep.lock().unwrap_or_else(PoisonError::into_inner);
            *asleep = true;
            while !computing() && !closed() && shared.lock_pending_drops().is_empty() {
                asleep = shared
                    .wake
                    .wait(asleep)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            *asleep = false;
            idle = 0;
        }
        thread::sleep(TICK_INTERVAL);
        let left = std::mem::take(&mut *shared.lock_pending_drops());
        drop(left);
        match engine.upgrade() {
            Some(engine) => engine.increment_epoch(),
            None => return,
        }
    }
}
