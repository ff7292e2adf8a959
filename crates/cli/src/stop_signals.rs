//! Signals that ask the process to stop.

use std::io;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that asks the process to stop.
pub(crate) enum StopSignal {
    /// SIGINT, as Ctrl-C sends it.
    Interrupt,
    /// SIGTERM or SIGHUP: a supervisor ends the process, or the terminal is closed.
    Terminate,
}

/// Receives SIGINT, SIGTERM and SIGHUP. From [`listen`](Self::listen) on, none of them is lost or
/// ends the process, so it is called before the work that a signal stops begins.
#[cfg(unix)]
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

#[cfg(unix)]
impl StopSignals {
    /// Begins to receive signals. Must be called in a runtime.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> StopSignal {
        tokio::select! {
            _ = self.interrupt.recv() => StopSignal::Interrupt,
            _ = self.terminate.recv() => StopSignal::Terminate,
            _ = self.hangup.recv() => StopSignal::Terminate,
        }
    }
}

/// Receives interrupts (Ctrl-C).
#[cfg(not(unix))]
pub(crate) struct StopSignals;

#[cfg(not(unix))]
impl StopSignals {
    /// Begins to receive interrupts.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self)
    }

    /// Waits for the next interrupt.
    pub(crate) async fn next(&mut self) -> StopSignal {
        let _ = tokio::signal::ctrl_c().await;
        StopSignal::Interrupt
    }
}
