//! Finds the ends of tokens in a script's text, exactly as the parser does.

use oxc_syntax::identifier::is_identifier_part;

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

/// Returns the offset after the name or keyword that starts at `start`.
pub(crate) fn word_end(source: &str, start: usize) -> usize {
    let rest = &source[start..];
    rest.find(|c| !is_identifier_part(c))
        .map_or(source.len(), |end| start + end)
}

/// Returns the offset after the number that starts at `start`. A word may follow without a space.
pub(crate) fn number_end(bytes: &[u8], start: usize) -> usize {
    let count = |from: usize, is_part: fn(&&u8) -> bool| {
        from + bytes[from..].iter().take_while(is_part).count()
    };
    let digits = |from| count(from, |byte| byte.is_ascii_digit() || **byte == b'_');
    let exponent = |from: usize| match &bytes[from..] {
        [b'e' | b'E', b'+' | b'-', ..] => digits(from + 2),
        [b'e' | b'E', ..] => digits(from + 1),
        _ => from,
    };
    match &bytes[start..] {
        [b'0', b'x' | b'X' | b'b' | b'B' | b'o' | b'O', ..] => count(start + 2, |byte| {
            byte.is_ascii_alphanumeric() || **byte == b'_'
        }),
        // Such a number is octal, unless it contains 8 or 9.
        [b'0', b'0'..=b'9', ..] => {
            let end = count(start, |byte| byte.is_ascii_digit());
            let is_octal = bytes[start..end].iter().all(|byte| *byte < b'8');
            match bytes.get(end) {
                Some(b'.') if !is_octal => exponent(digits(end + 1)),
                Some(b'e') if !is_octal => exponent(end),
                _ => end,
            }
        }
        _ => {
            let end = digits(start);
            match bytes.get(end) {
                Some(b'.') => exponent(digits(end + 1)),
                Some(b'n') => end + 1,
                _ => exponent(end),
            }
        }
    }
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

/// Returns the offset after the closing quote, or `None` if its line has none. The parser stops at
/// such a string.
pub(crate) fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' if bytes[at + 1..].starts_with(b"\r\n") => at += 3,
            b'\\' => at += 2,
            b'\n' | b'\r' => return None,
            _ if byte == bytes[start] => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
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

/// Length of a short script, in bytes.
const MAX_SHORT_BYTES: usize = 4096;
/// Depth of brackets of a shallow script.
const MAX_SHALLOW_DEPTH: usize = 8;
/// Number of `<` in a shallow script. The parser may read the text after each of them twice.
const MAX_SHALLOW_ANGLES: usize = 12;

/// Whether a script is so simple that the parser is quick however it reads the text. Brackets count
/// in strings, comments and regular expressions, too.
pub(crate) fn is_short_and_shallow(source: &str) -> bool {
    let (mut depth, mut deepest, mut angles) = (0_usize, 0, 0);
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'<' => angles += 1,
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    source.len() <= MAX_SHORT_BYTES
        && deepest <= MAX_SHALLOW_DEPTH
        && angles <= MAX_SHALLOW_ANGLES
        && !source.contains("infer")
        && !source.contains("\\u")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_where_the_parser_ends_them() {
        for (text, end) in [
            ("1e+1|", 4),
            ("0xe+1", 3),
            ("0e1in", 3),
            ("01.in", 2),
            ("08.5e-3x", 7),
            ("1n.x", 2),
            (".5e1", 4),
            ("1_000.5_0;", 9),
            ("1..a", 2),
        ] {
            assert_eq!(number_end(text.as_bytes(), 0), end, "{text}");
        }
    }

    #[test]
    fn brackets_in_strings_count_for_the_depth() {
        assert!(is_short_and_shallow(
            "const r = await tools.exec({ cmd: [\"ls\"] });\nreturn r.stdout.split('\\n');"
        ));
        assert!(!is_short_and_shallow("return '((((((((('"));
        assert!(!is_short_and_shallow(&"a<".repeat(20)));
        assert!(!is_short_and_shallow(&"a;".repeat(4000)));
    }
}
