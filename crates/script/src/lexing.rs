//! Finds the ends of tokens in a script's text, exactly as the parser does.

/// Returns the length of the operator or the other character at the start of a text.
pub(crate) fn operator_len(bytes: &[u8]) -> usize {
    let (first, rest) = (bytes[0], &bytes[1..]);
    let repeated = rest
        .iter()
        .take(3)
        .take_while(|byte| **byte == first)
        .count();
    let equals = |len: usize| len + usize::from(bytes.get(len) == Some(&b'='));
    match first {
        b'.' if repeated >= 2 => 3,
        b'?' if rest.first() == Some(&b'.') => {
            1 + usize::from(!rest.get(1).is_some_and(u8::is_ascii_digit))
        }
        b'=' if rest.first() == Some(&b'>') => 2,
        b'=' => 1 + repeated.min(2),
        b'!' => match rest {
            [b'=', b'=', ..] => 3,
            [b'=', ..] => 2,
            _ => 1,
        },
        b'>' => equals(1 + repeated.min(2)),
        b'<' | b'&' | b'|' | b'?' | b'*' => equals(1 + repeated.min(1)),
        b'+' | b'-' if repeated > 0 => 2,
        b'+' | b'-' | b'%' | b'^' => equals(1),
        _ => 1,
    }
}

/// Whether a byte is part of a name or keyword. Bytes of other whitespace count, too.
pub(crate) fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'#') || byte >= 0x80
}

/// Returns the offset after the name or keyword that starts at `start`.
pub(crate) fn word_end(source: &str, start: usize) -> usize {
    let ends = |(_, c): &(usize, char)| match c.is_ascii() {
        true => !is_word_byte(*c as u8),
        false => c.is_whitespace() || *c == '\u{feff}',
    };
    let mut rest = source[start..].char_indices();
    rest.find(ends).map_or(source.len(), |(end, _)| start + end)
}

/// Whether a character ends a line.
pub(crate) fn is_line_terminator(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{2028}' | '\u{2029}')
}

/// Returns the end of the line, without its terminator.
pub(crate) fn line_end(source: &str, start: usize) -> usize {
    let rest = &source[start..];
    rest.find(is_line_terminator)
        .map_or(source.len(), |end| start + end)
}

/// Returns the offset after the closing quote, or the end of the line.
pub(crate) fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' if bytes[at + 1..].starts_with(b"\r\n") => at += 3,
            b'\\' => at += 2,
            b'\n' | b'\r' => return at,
            _ if byte == bytes[start] => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the offset after a regular expression and its flags, or `None` if its line has no
/// closing slash.
pub(crate) fn regex_end(source: &str, start: usize) -> Option<usize> {
    let (mut escaped, mut in_class) = (false, false);
    for (at, c) in source[start + 1..].char_indices() {
        match c {
            _ if is_line_terminator(c) => return None,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            '/' if !in_class => {
                let flags = &source.as_bytes()[start + 1 + at + 1..];
                let is_flag = |byte: &&u8| byte.is_ascii_alphanumeric() || b"_$".contains(byte);
                return Some(start + at + 2 + flags.iter().take_while(is_flag).count());
            }
            _ => {}
        }
    }
    None
}

/// Returns how deeply the groups and classes of a regular expression are nested at most.
pub(crate) fn regex_depth(regex: &str) -> usize {
    let (mut depth, mut deepest, mut escaped) = (0_usize, 0, false);
    for byte in regex.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}
