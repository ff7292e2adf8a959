//! Whether a value looks like a secret.

/// Whether a value is in quotes. A bare value may be code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quoting {
    Quoted,
    Bare,
}

/// Shortest value that can look like a secret, in bytes.
const MIN_SECRET_BYTES: usize = 8;
/// Minimum entropy of a secret, in bits per byte.
const MIN_VALUE_ENTROPY: f64 = 2.3;
/// Largest average run of a secret, see [`average_run`]. Values with longer runs consist of words.
const MAX_AVERAGE_RUN: f64 = 3.5;

/// Placeholder values, as in types and examples.
const PLACEHOLDERS: &str = "\
    any array basic bearer bool boolean bytes changeme false hidden int integer list none nil \
    null number object optional pass passwd password pwd redacted required secret self str \
    string text token true undefined unknown varchar void your";

/// Parts of short values that are names or examples.
const NAME_PARTS: &str =
    "cookie credential demo dummy example foobar key passw sample secret test token user";

/// Returns whether a value looks like a secret by its length, character classes and entropy.
pub(super) fn looks_secret(value: &str, quoting: Quoting) -> bool {
    if value.len() < MIN_SECRET_BYTES || !value.bytes().all(|byte| byte.is_ascii_graphic()) {
        return false;
    }
    let has = |test: fn(&u8) -> bool| value.as_bytes().iter().any(test);
    let (letters, digits) = (has(u8::is_ascii_alphabetic), has(u8::is_ascii_digit));
    let symbols = value.contains(['!', '@', '#', '$', '%', '^', '&', '*', '+', '=', '?', '~']);
    let mixed_case = has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase);
    let run = average_run(value);
    let is_random =
        value.len() >= 20 && letters && run <= if digits { MAX_AVERAGE_RUN } else { 2.5 };
    let is_password =
        letters && digits && (run <= MAX_AVERAGE_RUN || symbols || is_word_and_number(value))
            || quoting == Quoting::Quoted && symbols && mixed_case && !value.ends_with(['!', '?']);
    let is_code = quoting == Quoting::Bare
        && (value.contains(['(', ')', '[', ']', '{', '}', '|', '$', '"', '\'', '`'])
            || value.contains("::")
            || value.starts_with(['&', '*', '@', '!', '%', '#', '.']));
    let is_name_or_example = || {
        let lower = value.to_ascii_lowercase();
        NAME_PARTS.split(' ').any(|part| lower.contains(part))
    };
    (is_random || is_password && !is_name_or_example())
        && !is_code
        && entropy(value) >= MIN_VALUE_ENTROPY
        && !is_placeholder(value)
        && !is_address_or_number(value)
        && !is_slug(value)
}

/// Returns whether a value is empty, a placeholder, a reference to a variable, or a path.
pub(super) fn is_placeholder(value: &str) -> bool {
    let value = value.trim();
    let lower = value.to_ascii_lowercase();
    let bare = lower.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let is_path = value.starts_with(['/', '~']) && !value.contains(['+', '='])
        || value.starts_with("./")
        || value.starts_with("../")
        || value.get(1..3) == Some(":\\");
    let is_reference = value.starts_with(['<', '$', '[', '…'])
        || [
            "{{",
            "${",
            "%(",
            "%s",
            "...",
            "***",
            "xxx",
            "redacted",
            "placeholder",
        ]
        .iter()
        .any(|mark| lower.contains(mark))
        || value.starts_with('{') && value.ends_with('}');
    bare.is_empty()
        || is_path
        || is_reference
        || lower.starts_with("your") && value.len() < 32
        || ["your-", "your_", "_here", "-here"]
            .iter()
            .any(|mark| lower.contains(mark))
        || PLACEHOLDERS.split(' ').any(|word| word == bare)
}

/// Returns whether a value is an e-mail address, a URL, a date, or a number in hexadecimal.
fn is_address_or_number(value: &str) -> bool {
    let is_email = value.split_once('@').is_some_and(|(_, host)| {
        host.contains('.')
            && host
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
    });
    let bytes = value.as_bytes();
    let is_date = bytes.len() >= 10
        && [4, 7].iter().all(|at| bytes[*at] == b'-')
        && bytes[..4].iter().all(u8::is_ascii_digit);
    let is_pointer = value.len() <= 18
        && value
            .strip_prefix("0x")
            .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    is_email || is_date || is_pointer || value.contains("://")
}

/// Returns whether a value consists of words and numbers with separators: `db-login-v2`.
fn is_slug(value: &str) -> bool {
    let mut parts = value.split(['-', '_', '.', '/', ':', ',']).peekable();
    let is_plain = |part: &str| {
        let number = part.trim_start_matches(|c: char| c.is_ascii_alphabetic());
        let (word, digits) = (part.len() - number.len(), number.len());
        number.bytes().all(|byte| byte.is_ascii_digit())
            && (word == 0 || digits <= 4 && !(word > 1 && average_run(&part[..word]) < 2.5))
    };
    let first = parts.next().unwrap_or_default();
    parts.peek().is_some() && is_plain(first) && parts.all(is_plain)
}

/// Returns whether a value is one word followed by a number: `hunter22`.
fn is_word_and_number(value: &str) -> bool {
    let number = value.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    number.len() >= 2
        && value.len() - number.len() >= 3
        && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the average length of runs of one character class: capitals, digits, or lower case with
/// an optional capital before it. Words have long runs, random characters short ones.
fn average_run(value: &str) -> f64 {
    let class = |byte: u8| match byte {
        b'0'..=b'9' => 1,
        b'A'..=b'Z' => 2,
        b'a'..=b'z' => 3,
        _ => 0,
    };
    let (mut runs, mut characters, mut previous) = (0_usize, 0_usize, 0);
    for byte in value.bytes() {
        let current = class(byte);
        characters += usize::from(current != 0);
        let is_capitalised = previous == 2 && current == 3;
        runs += usize::from(current != 0 && current != previous && !is_capitalised);
        previous = current;
    }
    characters as f64 / runs.max(1) as f64
}

/// Returns the Shannon entropy in bits per byte.
pub(super) fn entropy(value: &str) -> f64 {
    let mut counts = [0_u32; 256];
    for byte in value.bytes() {
        counts[usize::from(byte)] += 1;
    }
    let share = |count: &u32| f64::from(*count) / value.len() as f64;
    let terms = counts.iter().filter(|count| **count > 0).map(share);
    terms.map(|share| -share * share.log2()).sum()
}
