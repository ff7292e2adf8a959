//! Rejects excessive nesting before a script is parsed: the parser backtracks, and for some
//! constructs the work doubles with every level. The check is a single pass over the text.

/// Maximum depth of nested brackets.
const MAX_BRACKET_DEPTH: usize = 256;
/// Maximum number of open brackets that contain a `<`: each may be the start of a generic arrow
/// function.
const MAX_BRACKETS_WITH_ANGLE: usize = 6;
/// Maximum number of `<` in one expression.
const MAX_ANGLES_PER_EXPRESSION: usize = 128;

/// Returns a description of excessive nesting and its byte offset, or `None`.
pub(crate) fn find_excessive_nesting(source: &str) -> Option<(&'static str, u32)> {
    let bytes = source.as_bytes();
    // For every open bracket, whether it directly contains a `<`.
    let mut open: Vec<bool> = Vec::new();
    let mut angles = 0;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'(' | b'[' | b'{' => {
                open.push(false);
                if bytes[at] == b'{' {
                    angles = 0;
                }
            }
            b')' | b']' | b'}' => {
                open.pop();
                if bytes[at] == b'}' {
                    angles = 0;
                }
            }
            b';' => angles = 0,
            b'<' => {
                angles += 1;
                if let Some(level) = open.last_mut() {
                    *level = true;
                }
            }
            b'\'' | b'"' => at = string_end(bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'/') => at = find_bytes(bytes, at, b"\n"),
            b'/' if bytes.get(at + 1) == Some(&b'*') => at = find_bytes(bytes, at + 2, b"*/") + 1,
            _ => {}
        }
        if open.len() > MAX_BRACKET_DEPTH {
            return Some(("brackets are nested more than 256 deep", at as u32));
        }
        if angles > MAX_ANGLES_PER_EXPRESSION
            || open.iter().filter(|angle| **angle).count() > MAX_BRACKETS_WITH_ANGLE
        {
            return Some(("an expression has too many `<`", at as u32));
        }
        at += 1;
    }
    None
}

/// Returns the offset of the closing quote, or of the end of the line.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != bytes[start] && bytes[at] != b'\n' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at
}

fn find_bytes(bytes: &[u8], from: usize, wanted: &[u8]) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    rest.windows(wanted.len())
        .position(|window| window == wanted)
        .map_or(bytes.len(), |step| from + step)
}

#[cfg(test)]
mod tests {
    use super::find_excessive_nesting;

    #[test]
    fn excessive_nesting_is_rejected() {
        for source in [
            "(a=a<".repeat(20),
            "a<".repeat(10_000),
            "(a=".repeat(6_700),
            "({a=a<".repeat(20),
            "[".repeat(300),
        ] {
            assert!(
                find_excessive_nesting(&source).is_some(),
                "{}",
                &source[..20]
            );
        }
    }

    #[test]
    fn ordinary_scripts_pass() {
        let loops = "for (let i = 0; i < n; i++) { if (a(i) < b[i]) c.push(i); }\n".repeat(300);
        let types = "const m = new Map<string, Array<Record<string, number>>>();\n".repeat(200);
        let text = "const html = \"<div><p>(((((((\" + '<a><b>'; // <<<<<< ((((\n/* < ( < ( */\n"
            .repeat(100);
        for source in [loops, types, text, "f(g(h(i(j(k(1 < 2))))))".to_owned()] {
            assert_eq!(find_excessive_nesting(&source), None);
        }
    }
}
