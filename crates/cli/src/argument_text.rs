//! What an argument of a program means to the program: a shell replaces variables in it, and a
//! `file:` URL has encoded characters.

/// The start of the URL of a local file.
const FILE_SCHEME: &str = "file:";

/// Returns a text with the home folder instead of `~/`, and the values of variables instead of
/// `$NAME` and `${NAME}`. Others stay.
pub(crate) fn with_values(text: &str, value_of: &dyn Fn(&str) -> Option<String>) -> String {
    let home = value_of("HOME").map(|home| format!("{home}/"));
    let text = match home {
        Some(home) => text.replace("~/", &home),
        None => text.to_owned(),
    };
    let mut parts = text.split('$');
    let mut replaced = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = match part.strip_prefix('{') {
            Some(braced) => braced.split_once('}').unwrap_or_default(),
            None => {
                let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
                part.split_at(part.find(is_end).unwrap_or(part.len()))
            }
        };
        match value_of(name) {
            Some(value) => replaced.extend([value.as_str(), rest]),
            None => replaced.extend(["$", part]),
        }
    }
    replaced
}

/// Returns a text with the path instead of a `file:` URL; `None` if it has no such URL.
pub(crate) fn file_urls_decoded(text: &str) -> Option<String> {
    let start = text.to_ascii_lowercase().find(FILE_SCHEME)?;
    let (before, url) = text.split_at(start);
    let path = percent_decoded(url.get(FILE_SCHEME.len()..)?);
    let without_host = path.get("//localhost".len()..);
    let is_local = path.to_ascii_lowercase().starts_with("//localhost/");
    let path = without_host.filter(|_| is_local).unwrap_or(&path);
    Some(format!("{before}{path}"))
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let digits = text.get(at + 1..at + 3).filter(|_| *byte == b'%');
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(value) => {
                decoded.push(value);
                at += 3;
            }
            None => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
