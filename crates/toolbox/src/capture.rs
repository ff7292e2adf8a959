//! Captures the output of a command. If it is too long, keeps the beginning and the end.

use std::collections::VecDeque;

/// Maximum number of bytes that are kept of one stream.
pub(crate) const MAX_CAPTURE_BYTES: usize = 256 * 1024;

/// The beginning and the end of a stream.
#[derive(Debug, Default)]
pub(crate) struct OutputCapture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    omitted: u64,
}

impl OutputCapture {
    /// Adds output of the command.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let room = (MAX_CAPTURE_BYTES / 2)
            .saturating_sub(self.head.len())
            .min(bytes.len());
        self.head.extend_from_slice(&bytes[..room]);
        let rest = &bytes[room..];
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(MAX_CAPTURE_BYTES / 2);
        self.tail.drain(..over);
        self.omitted += over as u64;
    }

    /// Returns whether part of the output was omitted.
    pub(crate) fn is_truncated(&self) -> bool {
        self.omitted > 0
    }

    /// Returns the number of bytes that were omitted.
    pub(crate) fn omitted_bytes(&self) -> u64 {
        self.omitted
    }

    /// Returns the output as text, with a line in place of the omitted part.
    pub(crate) fn text(&self) -> String {
        let (front, back) = self.tail.as_slices();
        if self.omitted == 0 {
            let whole = [&self.head, front, back].concat();
            return String::from_utf8_lossy(&whole).into_owned();
        }
        let tail = [front, back].concat();
        let (head, tail) = (
            String::from_utf8_lossy(&self.head),
            String::from_utf8_lossy(&tail),
        );
        // Remove characters that were split at the omitted part.
        let (head, tail) = (
            head.trim_end_matches('\u{fffd}'),
            tail.trim_start_matches('\u{fffd}'),
        );
        format!("{head}\n… {} bytes omitted …\n{tail}", self.omitted)
    }

    /// Returns the output as text and clears it.
    pub(crate) fn take_text(&mut self) -> String {
        std::mem::take(self).text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_keeps_its_beginning_and_end() {
        let mut capture = OutputCapture::default();
        for _ in 0..3 {
            capture.push("é".repeat(100_000).as_bytes());
        }
        capture.push(b"the end");
        let text = capture.text();
        assert!(
            capture.is_truncated() && text.starts_with('é') && text.ends_with("é\u{e9}the end"),
            "{}",
            text.len()
        );
        let omitted = 600_007 - MAX_CAPTURE_BYTES;
        assert!(text.contains(&format!("\n… {omitted} bytes omitted …\n")));
        assert!(!text.contains('\u{fffd}'));
    }

    #[test]
    fn output_within_the_limit_is_kept_whole() {
        let mut capture = OutputCapture::default();
        let text = "x".repeat(MAX_CAPTURE_BYTES);
        for piece in text.as_bytes().chunks(7) {
            capture.push(piece);
        }
        assert!(!capture.is_truncated());
        assert_eq!(capture.take_text(), text);
        assert_eq!(capture.take_text(), "");
    }
}
