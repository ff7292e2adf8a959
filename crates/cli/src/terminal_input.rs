//! Reads lines from the terminal without blocking a thread, and tells typed lines from pasted ones.

use std::io;
use std::time::Duration;
#[cfg(unix)]
use std::{
    ffi::OsString,
    os::fd::{AsFd, BorrowedFd},
    os::unix::ffi::OsStringExt,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

/// How long no input must come before a question takes its answer.
#[cfg(unix)]
const QUIET_DURATION: Duration = Duration::from_millis(250);

/// What a terminal sends before and after pasted text, if it was asked to.
const PASTE_START: &str = "\x1b[200~";
const PASTE_END: &str = "\x1b[201~";

/// A line that was entered at the terminal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EnteredLine {
    /// The text, with its line break.
    pub(crate) text: String,
    origin: LineOrigin,
}

/// How a line was entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineOrigin {
    Typed,
    /// At least a part of it was pasted.
    Pasted,
}

impl EnteredLine {
    /// Returns the index of the option that the line chooses: it is a typed number from 1 to
    /// `options`, and nothing else.
    pub(crate) fn chosen_option(&self, options: usize) -> Option<usize> {
        let text = self.text.trim_end_matches(['\r', '\n']);
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number: usize = text.parse().ok().filter(|_| is_number)?;
        (self.origin == LineOrigin::Typed && (1..=options).contains(&number)).then(|| number - 1)
    }
}

/// Whether a line belongs to a paste that began in an earlier line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct PasteState {
    is_open: bool,
}

impl PasteState {
    /// Reads the marks of pastes in a line, and returns the line without them.
    fn read_line(&mut self, line: &str) -> EnteredLine {
        let mut origin = match self.is_open {
            true => LineOrigin::Pasted,
            false => LineOrigin::Typed,
        };
        let (start, end) = (line.rfind(PASTE_START), line.rfind(PASTE_END));
        if start.is_some() || end.is_some() {
            origin = LineOrigin::Pasted;
            self.is_open = start > end;
        }
        EnteredLine {
            text: line.replace(PASTE_START, "").replace(PASTE_END, ""),
            origin,
        }
    }
}

/// A guard that has the terminal mark pasted text until it is dropped.
pub(crate) struct PasteMarks {
    are_supported: bool,
}

impl PasteMarks {
    pub(crate) fn new() -> Self {
        let are_supported = std::env::var("TERM").is_ok_and(|term| term != "dumb");
        if are_supported {
            crate::output::mark_pastes();
        }
        Self { are_supported }
    }
}

impl Drop for PasteMarks {
    fn drop(&mut self) {
        if self.are_supported {
            crate::output::unmark_pastes();
        }
    }
}

/// The terminal and its settings from before [`UneditedLines`].
#[cfg(unix)]
static EDITED_SETTINGS: Mutex<Option<(std::os::fd::OwnedFd, rustix::termios::Termios)>> =
    Mutex::new(None);

/// A guard that has the terminal pass on every character of a line until it is dropped, so that a
/// paste cannot erase the mark before it. Backspace is a character of the line then, too.
pub(crate) struct UneditedLines;

impl Drop for UneditedLines {
    fn drop(&mut self) {
        restore_line_editing();
    }
}

/// Ends the effect of [`UneditedLines`]. Must be called before the process exits without dropping
/// it.
pub(crate) fn restore_line_editing() {
    #[cfg(unix)]
    {
        use rustix::termios::{OptionalActions, tcsetattr};
        let mut before = EDITED_SETTINGS
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((terminal, settings)) = before.take() {
            let _ = tcsetattr(terminal, OptionalActions::Now, &settings);
        }
    }
}

/// Returns the path of the controlling terminal. macOS cannot wait for input of `/dev/tty`, only
/// for that of the device itself, which one of the standard streams is.
#[cfg(unix)]
fn terminal_path() -> io::Result<PathBuf> {
    match cfg!(target_os = "macos") {
        true => device_path(&[
            io::stdin().as_fd(),
            io::stderr().as_fd(),
            io::stdout().as_fd(),
        ]),
        false => Ok("/dev/tty".into()),
    }
}

/// Returns the path of the first stream that is a terminal.
#[cfg(unix)]
fn device_path(streams: &[BorrowedFd<'_>]) -> io::Result<PathBuf> {
    let mut names = streams
        .iter()
        .filter_map(|stream| rustix::termios::ttyname(stream, Vec::new()).ok());
    let name = names.next().ok_or(io::ErrorKind::NotFound)?;
    Ok(OsString::from_vec(name.into_bytes()).into())
}

/// The controlling terminal, opened for reading.
#[cfg(unix)]
pub(crate) struct TtyLineReader {
    terminal: tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>,
    buffer: Vec<u8>,
    paste: PasteState,
}

#[cfg(unix)]
impl TtyLineReader {
    pub(crate) fn open() -> io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        // Opened again, so that the non-blocking flag does not affect other users of the terminal.
        let terminal = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
            .open(terminal_path()?)?;
        let terminal = selvedge_confine::async_fd(terminal.into(), tokio::io::Interest::READABLE)?;
        Ok(Self {
            terminal,
            buffer: Vec::new(),
            paste: PasteState::default(),
        })
    }

    /// Turns off the line editing of the terminal, which would erase the marks of pastes.
    pub(crate) fn disable_editing(&self) -> Result<UneditedLines, TtyReadError> {
        use rustix::termios::{
            LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr,
        };
        // The value that disables a special character.
        const DISABLED: u8 = if cfg!(target_os = "linux") { 0 } else { 0xff };
        let closed = |_| TtyReadError::TerminalClosed;
        let terminal = self.terminal.get_ref();
        let before = tcgetattr(terminal).map_err(closed)?;
        let mut settings = before.clone();
        for code in [
            SpecialCodeIndex::VERASE,
            SpecialCodeIndex::VKILL,
            SpecialCodeIndex::VWERASE,
            SpecialCodeIndex::VLNEXT,
            SpecialCodeIndex::VREPRINT,
        ] {
            settings.special_codes[code] = DISABLED;
        }
        // Otherwise, Ctrl-C discards the line before it.
        settings.local_modes.insert(LocalModes::NOFLSH);
        let copy = terminal
            .try_clone()
            .map_err(|_| TtyReadError::TerminalClosed)?;
        *EDITED_SETTINGS
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some((copy, before));
        let guard = UneditedLines;
        tcsetattr(terminal, OptionalActions::Now, &settings).map_err(closed)?;
        Ok(guard)
    }

    /// Discards all input until none has come for [`QUIET_DURATION`].
    pub(crate) async fn discard_until_quiet(&mut self) -> Result<(), TtyReadError> {
        loop {
            self.discard_input()?;
            match tokio::time::timeout(QUIET_DURATION, self.terminal.readable()).await {
                Ok(Ok(mut ready)) => ready.clear_ready(),
                Ok(Err(_)) => return Err(TtyReadError::TerminalClosed),
                // Also discards an unfinished line, for which the terminal is not readable.
                Err(_) => return self.discard_input(),
            }
        }
    }

    /// Discards everything typed so far.
    fn discard_input(&mut self) -> Result<(), TtyReadError> {
        self.buffer.clear();
        self.paste = PasteState::default();
        // Also an unfinished line, which would become the beginning of the answer.
        let _ = rustix::termios::tcflush(
            self.terminal.get_ref(),
            rustix::termios::QueueSelector::IFlush,
        );
        let mut discarded = [0; 1024];
        loop {
            match rustix::io::read(self.terminal.get_ref(), &mut discarded) {
                Ok(1..) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                _ => return Err(self.read_error()),
            }
        }
    }

    /// Returns why nothing can be read.
    fn read_error(&self) -> TtyReadError {
        match rustix::termios::tcgetattr(self.terminal.get_ref()) {
            Err(_) => TtyReadError::TerminalClosed,
            Ok(_) => TtyReadError::EndOfInput,
        }
    }

    /// Reads one line, including its line break.
    pub(crate) async fn read_line(&mut self) -> Result<EnteredLine, TtyReadError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(self.paste.read_line(&String::from_utf8_lossy(&line)));
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
                _ => return Err(self.read_error()),
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

    pub(crate) fn disable_editing(&self) -> Result<UneditedLines, TtyReadError> {
        Err(TtyReadError::TerminalClosed)
    }

    pub(crate) async fn discard_until_quiet(&mut self) -> Result<(), TtyReadError> {
        Err(TtyReadError::TerminalClosed)
    }

    pub(crate) async fn read_line(&mut self) -> Result<EnteredLine, TtyReadError> {
        Err(TtyReadError::TerminalClosed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_first_stream_that_is_a_terminal_names_its_device() {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let terminal = std::fs::File::open(&name).unwrap();
        let file = tempfile::tempfile().unwrap();
        let streams = [file.as_fd(), terminal.as_fd()];
        assert_eq!(device_path(&streams).unwrap(), PathBuf::from(name));
        assert!(device_path(&streams[..1]).is_err());
    }

    #[test]
    fn only_a_typed_number_chooses_an_option() {
        let mut paste = PasteState::default();
        let mut chosen = |line: &str| paste.read_line(line).chosen_option(4);
        assert_eq!(chosen("2\n"), Some(1));
        for line in [
            "\n", "0\n", "5\n", "42\n", "y\n", "yes\n", "1 file\n", "use 2\n", " 1\n", "1.\n",
            "+1\n", "１\n",
        ] {
            assert_eq!(chosen(line), None, "{line:?}");
        }
        // A paste of several lines, and a pasted number.
        for line in [
            "\x1b[200~a\n",
            "1\n",
            "b\x1b[201~\n",
            "\x1b[200~1\x1b[201~\n",
        ] {
            assert_eq!(chosen(line), None, "{line:?}");
        }
        assert_eq!(chosen("1\n"), Some(0));
        assert_eq!(paste.read_line("\x1b[200~Ada\x1b[201~\n").text, "Ada\n");
    }
}
