//! Reads lines from the terminal without blocking a thread.

use std::io;

/// The controlling terminal, opened for reading.
#[cfg(unix)]
pub(crate) struct TtyLineReader {
    terminal: tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>,
    buffer: Vec<u8>,
}

#[cfg(unix)]
impl TtyLineReader {
    pub(crate) fn open() -> io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        // Opened again, so that the non-blocking flag does not affect other users of the terminal.
        let terminal = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
            .open("/dev/tty")?;
        let terminal = selvedge_confine::async_fd(terminal.into(), tokio::io::Interest::READABLE)?;
        Ok(Self {
            terminal,
            buffer: Vec::new(),
        })
    }

    /// Discards everything typed so far.
    pub(crate) fn discard_input(&mut self) {
        self.buffer.clear();
        // Also an unfinished line, which would become the beginning of the answer.
        let _ = rustix::termios::tcflush(
            self.terminal.get_ref(),
            rustix::termios::QueueSelector::IFlush,
        );
        let mut discarded = [0; 1024];
        while matches!(
            rustix::io::read(self.terminal.get_ref(), &mut discarded),
            Ok(1..)
        ) {}
    }

    /// Reads one line, including its line break.
    pub(crate) async fn read_line(&mut self) -> Result<String, TtyReadError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            let mut chunk = [0; 1024];
            let read = self
                .terminal
                .async_io(tokio::io::Interest::READABLE, |fd| {
                    Ok(rustix::io::read(fd, &mut chunk)?)
                })
                .await;
            match read {
                Ok(read @ 1..) => self.buffer.extend_from_slice(&chunk[..read]),
                _ if rustix::termios::tcgetattr(self.terminal.get_ref()).is_err() => {
                    return Err(TtyReadError::TerminalClosed);
                }
                _ => return Err(TtyReadError::EndOfInput),
            }
        }
    }
}

/// Why no line could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TtyReadError {
    /// Ctrl-D was typed.
    EndOfInput,
    /// The terminal is closed.
    TerminalClosed,
}

/// Reading the terminal is not supported on this platform; `open` always fails.
#[cfg(not(unix))]
pub(crate) struct TtyLineReader;

#[cfg(not(unix))]
impl TtyLineReader {
    pub(crate) fn open() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn discard_input(&mut self) {}

    pub(crate) async fn read_line(&mut self) -> Result<String, TtyReadError> {
        Err(TtyReadError::TerminalClosed)
    }
}
