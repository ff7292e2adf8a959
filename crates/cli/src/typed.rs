//! Lines typed at the terminal, awaited without holding a thread.

use std::io;

#[cfg(unix)]
pub(crate) struct Typed {
    terminal: tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>,
    buffer: Vec<u8>,
}

#[cfg(unix)]
impl Typed {
    pub(crate) fn open() -> io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        // Opened for itself, so that not waiting concerns nobody else who reads the terminal.
        let terminal = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
            .open("/dev/tty")?;
        let terminal = selvedge_confine::watch(terminal.into(), tokio::io::Interest::READABLE)?;
        Ok(Self {
            terminal,
            buffer: Vec::new(),
        })
    }

    pub(crate) fn forget(&mut self) {
        self.buffer.clear();
        // Also what nobody has sent yet: the beginning of a line would be that of the answer.
        let _ = rustix::termios::tcflush(
            self.terminal.get_ref(),
            rustix::termios::QueueSelector::IFlush,
        );
        let mut scrap = [0; 1024];
        while matches!(
            rustix::io::read(self.terminal.get_ref(), &mut scrap),
            Ok(1..)
        ) {}
    }

    pub(crate) async fn line(&mut self) -> Result<String, NoLine> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            let mut piece = [0; 1024];
            let read = self
                .terminal
                .async_io(tokio::io::Interest::READABLE, |fd| {
                    Ok(rustix::io::read(fd, &mut piece)?)
                })
                .await;
            match read {
                Ok(read @ 1..) => self.buffer.extend_from_slice(&piece[..read]),
                _ if rustix::termios::tcgetattr(self.terminal.get_ref()).is_err() => {
                    return Err(NoLine::Gone);
                }
                _ => return Err(NoLine::End),
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoLine {
    /// The end was typed.
    End,
    /// The terminal is gone, and the person with it.
    Gone,
}

/// No terminal can be read here.
#[cfg(not(unix))]
pub(crate) struct Typed;

#[cfg(not(unix))]
impl Typed {
    pub(crate) fn open() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn forget(&mut self) {}

    pub(crate) async fn line(&mut self) -> Result<String, NoLine> {
        Err(NoLine::Gone)
    }
}
