//! Reads a text file line by line, in UTF-8 or UTF-16. Lines of any length are read with bounded
//! memory.

use std::fs::File;
use std::io::{BufRead, BufReader};

use encoding_rs::{CoderResult, Decoder, Encoding};
use selvedge_tools::ToolError;
use tokio_util::sync::CancellationToken;

/// Bytes that are read or decoded at once. Cancellation is checked between chunks.
const CHUNK_BYTES: usize = 64 << 10;

/// Bytes at the start of a file that are checked for a NUL, which marks a binary file.
const BINARY_CHECK_BYTES: usize = 8192;

/// An open text file.
pub(crate) struct TextFile<'a> {
    file: BufReader<File>,
    /// Decoder for UTF-16; `None` if the file is UTF-8.
    utf16_decoder: Option<Utf16Decoder>,
    /// `utf-8`, `utf-16le` or `utf-16be`.
    pub(crate) encoding: &'static str,
    /// Whether invalid bytes were replaced in a returned line.
    pub(crate) lossy: bool,
    /// Path of the file for error messages.
    shown: &'a str,
    cancel: &'a CancellationToken,
}

/// Converts UTF-16 to UTF-8 in chunks.
struct Utf16Decoder {
    decoder: Decoder,
    decoded: Vec<u8>,
    /// Bytes of `decoded` that were consumed.
    consumed: usize,
    /// Whether the whole file was decoded.
    finished: bool,
}

/// A line of a text file, possibly truncated.
pub(crate) struct TextFileLine {
    /// The text with its line ending.
    pub(crate) text: String,
    /// Whether the line in the file is longer.
    pub(crate) truncated: bool,
}

impl<'a> TextFile<'a> {
    /// Detects the encoding from the byte order mark. Fails if the file is binary.
    pub(crate) fn open(
        file: File,
        shown: &'a str,
        cancel: &'a CancellationToken,
    ) -> Result<Self, ToolError> {
        let mut file = BufReader::with_capacity(CHUNK_BYTES, file);
        let head = file.fill_buf().map_err(|error| read_error(shown, &error))?;
        let wide = bom_encoding(head);
        if wide.is_none()
            && memchr::memchr(0, &head[..head.len().min(BINARY_CHECK_BYTES)]).is_some()
        {
            return Err(ToolError::new(format!("{shown} is a binary file"))
                .suggest("show images with viewImage"));
        }
        if head.starts_with(&[0xEF, 0xBB, 0xBF]) {
            file.consume(3);
        }
        let encoding = wide.map_or("utf-8", |(name, _)| name);
        let wide = wide.map(|(_, encoding)| Utf16Decoder {
            decoder: encoding.new_decoder_with_bom_removal(),
            decoded: Vec::new(),
            consumed: 0,
            finished: false,
        });
        Ok(Self {
            file,
            utf16_decoder: wide,
            encoding,
            lossy: false,
            shown,
            cancel,
        })
    }

    /// Returns the next line, truncated to `max_bytes`; `None` at the end of the file.
    pub(crate) fn next_line(
        &mut self,
        max_bytes: usize,
    ) -> Result<Option<TextFileLine>, ToolError> {
        let (mut held, mut length) = (Vec::new(), 0);
        let ended = loop {
            if self.cancel.is_cancelled() {
                return Err(ToolError::new(format!(
                    "reading {} was cancelled",
                    self.shown
                )));
            }
            let chunk = self.fill_buf()?;
            if chunk.is_empty() {
                break false;
            }
            let end = memchr::memchr(b'\n', chunk);
            let part = &chunk[..end.map_or(chunk.len(), |end| end + 1)];
            held.extend_from_slice(&part[..part.len().min(max_bytes - held.len())]);
            length += part.len();
            let taken = part.len();
            self.consume(taken);
            if end.is_some() {
                break true;
            }
        };
        if length == 0 {
            return Ok(None);
        }
        let cut = held.len() < length;
        let text = self.decode_line(held, cut);
        Ok(Some(TextFileLine {
            text: if cut && ended { text + "\n" } else { text },
            truncated: cut,
        }))
    }

    /// Decodes the bytes of a line. In a truncated line, an incomplete last character is dropped.
    fn decode_line(&mut self, mut bytes: Vec<u8>, cut: bool) -> String {
        if let Err(error) = std::str::from_utf8(&bytes)
            && cut
            && error.error_len().is_none()
        {
            bytes.truncate(error.valid_up_to());
        }
        String::from_utf8(bytes).unwrap_or_else(|error| {
            self.lossy = true;
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        })
    }

    /// Returns the next unconsumed bytes as UTF-8; empty at the end of the file.
    fn fill_buf(&mut self) -> Result<&[u8], ToolError> {
        let shown = self.shown;
        let Some(wide) = &mut self.utf16_decoder else {
            return self
                .file
                .fill_buf()
                .map_err(|error| read_error(shown, &error));
        };
        while wide.consumed == wide.decoded.len() && !wide.finished {
            let bytes = self
                .file
                .fill_buf()
                .map_err(|error| read_error(shown, &error))?;
            let last = bytes.is_empty();
            wide.decoded.resize(CHUNK_BYTES, 0);
            let (result, read, written, replaced) =
                wide.decoder.decode_to_utf8(bytes, &mut wide.decoded, last);
            wide.decoded.truncate(written);
            wide.consumed = 0;
            wide.finished = last && result == CoderResult::InputEmpty;
            self.lossy |= replaced;
            self.file.consume(read);
        }
        Ok(&wide.decoded[wide.consumed..])
    }

    fn consume(&mut self, bytes: usize) {
        match &mut self.utf16_decoder {
            Some(wide) => wide.consumed += bytes,
            None => self.file.consume(bytes),
        }
    }
}

/// Returns the encoding that a byte order mark at the start of a file declares, unless it is UTF-8.
pub(crate) fn bom_encoding(head: &[u8]) -> Option<(&'static str, &'static Encoding)> {
    match head {
        [0xFF, 0xFE, ..] => Some(("utf-16le", encoding_rs::UTF_16LE)),
        [0xFE, 0xFF, ..] => Some(("utf-16be", encoding_rs::UTF_16BE)),
        _ => None,
    }
}

fn read_error(shown: &str, error: &std::io::Error) -> ToolError {
    ToolError::new(format!("{shown} cannot be read: {error}"))
}
