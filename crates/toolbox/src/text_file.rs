//! Reads a text file line by line, in UTF-8 or UTF-16. Lines of any length are read with bounded
//! memory.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use encoding_rs::{CoderResult, Decoder, Encoding};
use selvedge_tools::ToolError;
use tokio_util::sync::CancellationToken;

/// Bytes that are read or decoded at once. Cancellation is checked between chunks.
const CHUNK_BYTES: usize = 64 << 10;

/// Bytes at the start of a file that are checked for a NUL, which marks a binary file.
const BINARY_CHECK_BYTES: usize = 8192;

/// The largest file that is changed or stored as a whole, in bytes.
const MAX_WHOLE_FILE_BYTES: u64 = 64 << 20;

/// An open text file.
pub(crate) struct TextFile<'a> {
    file: BufReader<File>,
    /// Decoder for UTF-16; `None` if the file is UTF-8.
    utf16_decoder: Option<Utf16Decoder>,
    /// `utf-8`, `utf-16le` or `utf-16be`.
    pub(crate) encoding: &'static str,
    /// Whether invalid bytes were replaced in a returned line.
    pub(crate) lossy: bool,
    /// Path of the file as messages show it.
    display_path: &'a str,
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

/// A line of a text file, possibly cut.
pub(crate) struct TextFileLine {
    /// The text with its line ending.
    pub(crate) text: String,
    /// Whether the line was cut: in the file it is longer.
    pub(crate) is_cut: bool,
}

impl<'a> TextFile<'a> {
    /// Detects the encoding from the byte order mark. Fails if the file is binary.
    pub(crate) fn open(
        file: File,
        display_path: &'a str,
        cancel: &'a CancellationToken,
    ) -> Result<Self, ToolError> {
        let mut file = BufReader::with_capacity(CHUNK_BYTES, file);
        let head = file
            .fill_buf()
            .map_err(|error| read_error(display_path, &error))?;
        let wide = bom_encoding(head);
        if wide.is_none()
            && memchr::memchr(0, &head[..head.len().min(BINARY_CHECK_BYTES)]).is_some()
        {
            return Err(ToolError::new(format!("{display_path} is a binary file"))
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
            display_path,
            cancel,
        })
    }

    /// Returns the next line, cut at `max_bytes`; `None` at the end of the file.
    pub(crate) fn next_line(
        &mut self,
        max_bytes: usize,
    ) -> Result<Option<TextFileLine>, ToolError> {
        let (mut held, mut length) = (Vec::new(), 0);
        let ended = loop {
            if self.cancel.is_cancelled() {
                return Err(ToolError::new(format!(
                    "reading {} was cancelled",
                    self.display_path
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
        let is_cut = held.len() < length;
        let text = self.decode_line(held, is_cut);
        Ok(Some(TextFileLine {
            text: if is_cut && ended { text + "\n" } else { text },
            is_cut,
        }))
    }

    /// Decodes the bytes of a line. If the line was cut, an incomplete last character is dropped.
    fn decode_line(&mut self, mut bytes: Vec<u8>, is_cut: bool) -> String {
        if let Err(error) = std::str::from_utf8(&bytes)
            && is_cut
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
        let display_path = self.display_path;
        let Some(wide) = &mut self.utf16_decoder else {
            return self
                .file
                .fill_buf()
                .map_err(|error| read_error(display_path, &error));
        };
        while wide.consumed == wide.decoded.len() && !wide.finished {
            let bytes = self
                .file
                .fill_buf()
                .map_err(|error| read_error(display_path, &error))?;
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

/// Reads a whole file. Fails if it is larger than a file that can be changed or stored.
pub(crate) fn read_limited(file: impl Read, display_path: &str) -> Result<Vec<u8>, ToolError> {
    let mut bytes = Vec::new();
    let read = file.take(MAX_WHOLE_FILE_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| read_error(display_path, &error))?;
    match bytes.len() as u64 > MAX_WHOLE_FILE_BYTES {
        true => Err(ToolError::new(format!(
            "{display_path} is larger than {} MB",
            MAX_WHOLE_FILE_BYTES >> 20
        ))),
        false => Ok(bytes),
    }
}

/// Returns the error for a file or folder that the system does not let be read.
pub(crate) fn read_error(display_path: &str, error: &std::io::Error) -> ToolError {
    ToolError::new(format!("{display_path} cannot be read: {error}"))
}
