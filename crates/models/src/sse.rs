//! Parses server-sent events from chunks that may end anywhere.
//!
//! It is hand-written because the available crates need the whole text, bring their own stream
//! type, or drop the last event if no blank line follows it. Servers send comments, `\r\n`, a lone
//! `\r` and a byte order mark, and omit the last line break.

use memchr::{memchr, memchr2};

/// Largest event, in bytes. It is large enough for a generated image.
pub(crate) const MAX_EVENT_BYTES: usize = 32 << 20;

/// Error for an event that is larger than [`MAX_EVENT_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventTooLarge;

/// Incremental parser of server-sent events.
#[derive(Debug, Default)]
pub(crate) struct SseParser {
    /// The current line, if it is incomplete.
    line: Vec<u8>,
    /// The data lines of the current event, joined by line breaks.
    data: Vec<u8>,
    has_data: bool,
    /// The `event` field of the current event.
    name: Vec<u8>,
    /// Whether the last byte was `\r`. A `\n` that follows belongs to the same line break.
    after_cr: bool,
    /// Whether the first line, which may start with a byte order mark, was parsed.
    started: bool,
}

impl SseParser {
    /// Parses more bytes and calls `on` with the name and data of each complete event.
    #[inline]
    pub(crate) fn feed<E: From<EventTooLarge>>(
        &mut self,
        mut bytes: &[u8],
        mut on: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = memchr2(b'\n', b'\r', bytes) else {
                self.line.extend_from_slice(bytes);
                return self.check_size();
            };
            let (rest, ending) = (&bytes[end + 1..], bytes[end]);
            self.after_cr = ending == b'\r';
            if self.line.is_empty() {
                self.parse_line(&bytes[..end], &mut on)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&bytes[..end]);
                self.parse_line(&line, &mut on)?;
                line.clear();
                self.line = line;
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Handles the end of the stream. An event without a blank line after it is complete.
    pub(crate) fn finish<E: From<EventTooLarge>>(
        &mut self,
        mut on: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.parse_line(&line, &mut on)?;
        }
        self.parse_line(b"", &mut on)
    }

    fn parse_line<E: From<EventTooLarge>>(
        &mut self,
        line: &[u8],
        on: &mut impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let line = match std::mem::replace(&mut self.started, true) {
            true => line,
            false => line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line),
        };
        if line.is_empty() {
            let result = match self.has_data {
                true => on(&self.name, &self.data),
                false => Ok(()),
            };
            self.data.clear();
            self.has_data = false;
            self.name.clear();
            return result;
        }
        let (field, value) = match memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
                self.check_size()?;
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            // Comments, `id`, `retry` and unknown fields are ignored.
            _ => {}
        }
        Ok(())
    }

    fn check_size<E: From<EventTooLarge>>(&self) -> Result<(), E> {
        match self.line.len() + self.data.len() {
            ..=MAX_EVENT_BYTES => Ok(()),
            _ => Err(EventTooLarge.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(chunks: &[&[u8]]) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut parser = SseParser::default();
        let mut on = |name: &[u8], data: &[u8]| {
            found.push((
                String::from_utf8(name.to_vec()).unwrap(),
                String::from_utf8(data.to_vec()).unwrap(),
            ));
            Ok::<(), EventTooLarge>(())
        };
        for chunk in chunks {
            parser.feed(chunk, &mut on).unwrap();
        }
        parser.finish(&mut on).unwrap();
        found
    }

    #[test]
    fn events_are_parsed_wherever_the_chunks_end() {
        let text = "\u{feff}: hello\r\nevent: a\r\ndata: 1\r\n\r\n:\n\n\
                    data:2\ndata: 3\nid: x\nretry\n\nevent: lost\n\n\
                    data\n\nevent: b\rdata: ü\r\rdata: last";
        let expected = [("a", "1"), ("", "2\n3"), ("", ""), ("b", "ü"), ("", "last")];
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, data)| ((*name).to_owned(), (*data).to_owned()))
            .collect();
        assert_eq!(events(&[text.as_bytes()]), expected);
        for first in 0..text.len() {
            for second in first..text.len() {
                let (a, b, c) = (
                    &text.as_bytes()[..first],
                    &text.as_bytes()[first..second],
                    &text.as_bytes()[second..],
                );
                assert_eq!(events(&[a, b, c]), expected, "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn an_endless_event_is_an_error() {
        for chunk in [
            &b"data: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"[..],
            b"data: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\n",
        ] {
            let mut parser = SseParser::default();
            let mut fed = 0;
            let refused = loop {
                match parser.feed(&chunk.repeat(1000), |_, _| Ok::<(), EventTooLarge>(())) {
                    Ok(()) => fed += chunk.len() * 1000,
                    Err(EventTooLarge) => break true,
                }
                if fed > 2 * MAX_EVENT_BYTES {
                    break false;
                }
            };
            assert!(refused);
        }
    }
}
