//! Server-sent events, cut anywhere.
//!
//! Written here rather than taken: the crates there are want text that is already whole, a stream of their own, or stop
//! at the last event when no blank line follows it. Comments, `\r\n`, a lone `\r`, a byte order mark and a missing
//! last line break are all seen in the wild.

use memchr::{memchr, memchr2};

/// The largest event that is taken: a generated image in one event fits, a stream without end does not.
pub(crate) const MAX_EVENT_BYTES: usize = 32 << 20;

/// An event is larger than [`MAX_EVENT_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLarge;

/// Takes bytes, gives events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// A line that has not ended yet.
    line: Vec<u8>,
    /// The data lines of the event so far, joined.
    data: Vec<u8>,
    has_data: bool,
    name: Vec<u8>,
    /// The last byte was `\r`: a `\n` that follows belongs to it.
    after_cr: bool,
    begun: bool,
}

impl Events {
    /// Takes more bytes and calls `on` with name and data of each event that is complete now.
    #[inline]
    pub(crate) fn feed<E: From<TooLarge>>(
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
                return self.check();
            };
            let (rest, ending) = (&bytes[end + 1..], bytes[end]);
            self.after_cr = ending == b'\r';
            if self.line.is_empty() {
                self.take_line(&bytes[..end], &mut on)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&bytes[..end]);
                self.take_line(&line, &mut on)?;
                line.clear();
                self.line = line;
            }
            bytes = rest;
        }
        Ok(())
    }

    /// The stream is over: an event that nothing ended is complete now.
    pub(crate) fn finish<E: From<TooLarge>>(
        &mut self,
        mut on: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.take_line(&line, &mut on)?;
        }
        self.take_line(b"", &mut on)
    }

    fn take_line<E: From<TooLarge>>(
        &mut self,
        line: &[u8],
        on: &mut impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let line = match std::mem::replace(&mut self.begun, true) {
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
                self.check()?;
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            // Comments, ids, retry times, and whatever else there may be.
            _ => {}
        }
        Ok(())
    }

    fn check<E: From<TooLarge>>(&self) -> Result<(), E> {
        match self.line.len() + self.data.len() {
            ..=MAX_EVENT_BYTES => Ok(()),
            _ => Err(TooLarge.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(chunks: &[&[u8]]) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut parser = Events::default();
        let mut on = |name: &[u8], data: &[u8]| {
            found.push((
                String::from_utf8(name.to_vec()).unwrap(),
                String::from_utf8(data.to_vec()).unwrap(),
            ));
            Ok::<(), TooLarge>(())
        };
        for chunk in chunks {
            parser.feed(chunk, &mut on).unwrap();
        }
        parser.finish(&mut on).unwrap();
        found
    }

    #[test]
    fn oddities_are_read_wherever_they_are_cut() {
        let text = "\u{feff}: hello\r\nevent: a\r\ndata: 1\r\n\r\n:\n\ndata:2\ndata: 3\nid: x\nretry\n\nevent: lost\n\n\
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
    fn an_event_without_end_is_refused() {
        for piece in [
            &b"data: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"[..],
            b"data: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\n",
        ] {
            let mut parser = Events::default();
            let mut fed = 0;
            let refused = loop {
                match parser.feed(&piece.repeat(1000), |_, _| Ok::<(), TooLarge>(())) {
                    Ok(()) => fed += piece.len() * 1000,
                    Err(TooLarge) => break true,
                }
                if fed > 2 * MAX_EVENT_BYTES {
                    break false;
                }
            };
            assert!(refused);
        }
    }
}
