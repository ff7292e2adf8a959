//! Secrets that follow a name, a header or an option: `password=…`, `"token": "…"`,
//! `Authorization: Bearer …`, `https://me:…@host`, `curl -u me:…`.

use std::ops::Range;

use aho_corasick::AhoCorasick;

use super::evidence::{Quoting, is_placeholder, looks_secret};
use super::names;

/// Longest name, in bytes.
const MAX_NAME_BYTES: usize = 64;
/// Bytes of a value that decide whether it is a secret.
const MAX_VALUE_BYTES: usize = 128;
/// Bytes of a command, a login or an XML element that are examined.
const MAX_LOOKAHEAD_BYTES: usize = 256;
/// Bytes of a line before a quote in which the string that it closes can begin.
const MAX_STRING_BYTES: usize = 1 << 10;
/// Longest indented block, in bytes.
const MAX_BLOCK_BYTES: usize = 1 << 16;

/// Patterns of the automaton other than names, each with its matcher.
const PAIR_PATTERNS: [(&str, SecretMatcher); 7] = [
    ("bearer", bearer_token),
    ("://", login_in_url),
    ("curl ", curl_password),
    ("sshpass ", sshpass_password),
    ("mysql", mysql_password),
    ("mariadb", mysql_password),
    ("login ", netrc_password),
];

/// Returns the ranges of the secrets after a marker that ends at the given offset.
type SecretMatcher = fn(&str, usize) -> Vec<Range<usize>>;

/// Where a name occurs, which decides how strict the check of its value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameContext {
    /// Code, JSON, YAML. The value must look like a secret.
    Code,
    /// Command, shell assignment, URL query or connection string. Any value that is not a
    /// placeholder is secret.
    Settings,
    /// Configured name. Any value is secret.
    Configured,
}

/// Finds secrets after names and after the patterns in [`PAIR_PATTERNS`].
#[derive(Debug)]
pub(super) struct PairFinder {
    patterns: AhoCorasick,
    configured_names: Vec<String>,
}

impl PairFinder {
    #[allow(clippy::expect_used)] // Only gigabytes of names would exceed an automaton.
    pub(super) fn new(configured: &[String]) -> Self {
        let patterns = PAIR_PATTERNS
            .iter()
            .map(|(pattern, _)| *pattern)
            .chain(names::NAME_PATTERNS.split(' '));
        let patterns = patterns.chain(configured.iter().map(String::as_str));
        Self {
            patterns: AhoCorasick::builder()
                .ascii_case_insensitive(true)
                .build(patterns)
                .expect("few patterns"),
            configured_names: configured.to_vec(),
        }
    }

    /// Appends the ranges of the secrets in a text to `found`.
    pub(super) fn find(&self, text: &str, found: &mut Vec<Range<usize>>) {
        // Ends of the last name and of the last secret.
        let (mut name_end, mut secret_end) = (0, 0);
        for hit in self.patterns.find_overlapping_iter(text) {
            if hit.start() < secret_end {
                continue;
            }
            if let Some((_, secrets_after)) = PAIR_PATTERNS.get(hit.pattern().as_usize()) {
                let secrets = secrets_after(text, hit.end());
                secret_end = secrets.last().map_or(secret_end, |last| last.end);
                found.extend(secrets);
            } else if hit.start() >= name_end {
                let name = name_around(text, hit.start(), hit.end());
                name_end = name.end;
                if let Some(secret) = self.after_name(text, name) {
                    secret_end = secret.end;
                    found.push(secret);
                }
            }
        }
    }

    /// Returns the range of the secret that follows a name.
    fn after_name(&self, text: &str, name: Range<usize>) -> Option<Range<usize>> {
        let word = text[name.clone()].trim_start_matches('-');
        let is_configured = self
            .configured_names
            .iter()
            .any(|name| word.eq_ignore_ascii_case(name));
        if !is_configured && !names::is_secret(word) {
            return None;
        }
        let is_option = text[name.clone()].starts_with("--");
        let before = text[..name.start].chars().next_back();
        let Some((separator, at)) = separator(text, name.end, is_option) else {
            return xml_element(text, name);
        };
        let is_assignment = separator == "=" && at == name.end + 1;
        let is_shell = is_assignment && !word.contains(|c: char| c.is_ascii_lowercase());
        let context = match before {
            _ if is_configured => NameContext::Configured,
            Some('?' | '&' | ';') if is_assignment => NameContext::Settings,
            _ if is_shell || is_option => NameContext::Settings,
            _ => NameContext::Code,
        };
        if context != NameContext::Configured && closes_string(text, at) {
            return None;
        }
        if separator == ":" {
            let is_cookie = word.to_ascii_lowercase().ends_with("cookie");
            let cookies = || is_cookie.then(|| cookie_header(text, at)).flatten();
            if let Some(secret) = yaml_block(text, name.start, at, context).or_else(cookies) {
                return Some(secret);
            }
        }
        let is_connection = before == Some(';') && is_assignment;
        let value = PairValue::at(text, at, is_connection);
        let sample = &text[value.start..value.end(text, MAX_VALUE_BYTES)];
        let is_secret = match context {
            NameContext::Configured => !sample.is_empty(),
            NameContext::Settings if !separator.is_empty() => {
                let is_code = value.quoting() == Quoting::Bare
                    && (sample.contains(['(', '[', '{', '<'])
                        || is_field_access(sample)
                        || is_shell && is_last_argument(&text[..name.start], sample));
                let is_number = sample.bytes().all(|byte| byte.is_ascii_digit());
                let is_long = sample.len() >= 4 || is_connection;
                is_long && !is_code && !is_number && !is_placeholder(sample)
            }
            NameContext::Settings | NameContext::Code => looks_secret(sample, value.quoting()),
        };
        if is_secret {
            return Some(value.start..value.end(text, usize::MAX));
        }
        // In `token: &str = "…"` the value follows the type.
        let after = skip_blanks(text, value.start + sample.len());
        if separator != ":" || !text[after..].starts_with("= ") {
            return None;
        }
        let value = PairValue::at(text, skip_blanks(text, after + 1), false);
        let sample = &text[value.start..value.end(text, MAX_VALUE_BYTES)];
        looks_secret(sample, value.quoting()).then(|| value.start..value.end(text, usize::MAX))
    }
}

/// Returns the content of an XML element if the name is its tag and the content looks secret.
fn xml_element(text: &str, name: Range<usize>) -> Option<Range<usize>> {
    let near = text.floor_char_boundary(name.start.saturating_sub(MAX_NAME_BYTES));
    let is_namespace = |c: char| c.is_ascii_alphanumeric() || c == ':';
    if !text[near..name.start]
        .trim_end_matches(is_namespace)
        .ends_with('<')
    {
        return None;
    }
    let rest = &text[name.end..text.floor_char_boundary(name.end + MAX_LOOKAHEAD_BYTES)];
    let open = rest.find('>').filter(|_| rest.starts_with(['>', ' ']))?;
    let inner = rest[open + 1..].split_once("</")?.0;
    let start = name.end + open + 1;
    let data = inner.strip_prefix("<![CDATA[").unwrap_or(inner);
    let data = data.strip_suffix("]]>").unwrap_or(data);
    let start = start + inner.find(data)?;
    looks_secret(data, Quoting::Quoted).then_some(start..start + data.len())
}

/// Returns the name that contains the match at `start..end`, with the dashes of an option.
fn name_around(text: &str, start: usize, end: usize) -> Range<usize> {
    let bytes = text.as_bytes();
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.".contains(byte);
    let before = bytes[..start].iter().rev().take(MAX_NAME_BYTES);
    let mut start = start - before.take_while(|byte| is_part(byte)).count();
    let after = bytes[end..].iter().take(MAX_NAME_BYTES);
    let end = end + after.take_while(|byte| is_part(byte)).count();
    // The letter of an escape such as `\n` is not part of the name.
    if start > 0 && bytes[start - 1] == b'\\' && matches!(bytes[start], b'n' | b'r' | b't') {
        start += 1;
    }
    start..end
}

/// Returns the separator after a name that ends at `at`, and where the value starts. Between an
/// option and its value there may be only blanks, or the comma of a list; then the separator is
/// empty.
fn separator(text: &str, at: usize, is_option: bool) -> Option<(&'static str, usize)> {
    let quoted = at + text[at..].bytes().take_while(|byte| *byte == b'\\').count();
    let close = |at: usize| match text.as_bytes().get(at) {
        Some(b'"' | b'\'' | b'`') => at + 1,
        _ => at,
    };
    let closed = close(quoted);
    let after = if closed > quoted { closed } else { at };
    let optional = match text.as_bytes().get(after) {
        Some(b']' | b'?' | b'!') => after + 1,
        _ => after,
    };
    let separator_at = skip_blanks(text, optional);
    let rest = &text[separator_at..];
    for separator in [":=", "=>", "=", ":"] {
        let Some(value) = rest.strip_prefix(separator) else {
            continue;
        };
        if value.starts_with(['=', ':', '~']) {
            return None;
        }
        return Some((separator, skip_blanks(text, text.len() - value.len())));
    }
    if !is_option {
        return None;
    }
    let value = match rest.strip_prefix(',') {
        Some(value) if after > at => skip_blanks(text, text.len() - value.len()),
        _ => separator_at,
    };
    (value > after).then_some(("", value))
}

fn skip_blanks(text: &str, at: usize) -> usize {
    let blanks = text[at..].bytes().take(MAX_NAME_BYTES);
    at + blanks
        .take_while(|byte| matches!(byte, b' ' | b'\t'))
        .count()
}

/// The value after a name: the text in quotes, at any level of escaping, or one word. The scheme
/// of an `Authorization` header is not part of it.
struct PairValue {
    start: usize,
    end_marker: ValueEnd,
}

/// What ends a value.
enum ValueEnd {
    /// This quote, after this many backslashes.
    Quote(u8, usize),
    Word,
    /// Semicolon: the values of connection strings may contain blanks.
    Semicolon,
}

impl PairValue {
    fn at(text: &str, at: usize, is_connection: bool) -> Self {
        let bytes = text.as_bytes();
        let prefix = usize::from(matches!(bytes.get(at), Some(b'b' | b'f' | b'r' | b'u')));
        for at in [at, at + prefix] {
            let slashes = bytes[at.min(text.len())..].iter();
            let slashes = slashes.take_while(|byte| **byte == b'\\').count();
            if let Some(quote @ (b'"' | b'\'' | b'`')) = bytes.get(at + slashes) {
                return Self {
                    start: after_scheme(text, at + slashes + 1),
                    end_marker: ValueEnd::Quote(*quote, slashes),
                };
            }
        }
        Self {
            start: after_scheme(text, at.min(text.len())),
            end_marker: if is_connection {
                ValueEnd::Semicolon
            } else {
                ValueEnd::Word
            },
        }
    }

    fn quoting(&self) -> Quoting {
        match self.end_marker {
            ValueEnd::Quote(..) => Quoting::Quoted,
            ValueEnd::Word | ValueEnd::Semicolon => Quoting::Bare,
        }
    }

    /// Returns the end of the value, at most `limit` bytes after its start.
    ///
    /// Each level of quoting doubles the backslashes before a quote and adds one, so their number
    /// distinguishes an inner quote from the closing one.
    fn end(&self, text: &str, limit: usize) -> usize {
        let mut backslashes = 0;
        for (at, c) in text[self.start..].char_indices() {
            let ends = match self.end_marker {
                _ if c == '\n' || at >= limit => true,
                ValueEnd::Quote(quote, slashes) if c == char::from(quote) => {
                    if backslashes % (2 * (slashes + 1)) == slashes {
                        return self.start + at - slashes;
                    }
                    false
                }
                ValueEnd::Quote(..) => false,
                ValueEnd::Word => c.is_whitespace() || at > 0 && "\"'`&,;\\".contains(c),
                ValueEnd::Semicolon => matches!(c, ';' | '"' | '\''),
            };
            if ends {
                return self.start + at;
            }
            backslashes = if c == '\\' { backslashes + 1 } else { 0 };
        }
        text.len()
    }
}

/// Skips the scheme of an `Authorization` header.
fn after_scheme(text: &str, at: usize) -> usize {
    let schemes = ["bearer ", "basic ", "token "];
    let is_next = |scheme: &&&str| {
        let next = text.get(at..at + scheme.len());
        next.is_some_and(|next| next.eq_ignore_ascii_case(scheme))
    };
    at + schemes
        .iter()
        .find(is_next)
        .map_or(0, |scheme| scheme.len())
}

/// Returns whether the quote at `at` closes the string that a name is in, as in
/// `"https://host/?token=" + token`: it follows an odd number of such quotes, and code follows it.
fn closes_string(text: &str, at: usize) -> bool {
    let bytes = text.as_bytes();
    let slashes = bytes[at..].iter().take_while(|byte| **byte == b'\\');
    let slashes = slashes.count();
    let Some(quote @ (b'"' | b'\'' | b'`')) = bytes.get(at + slashes).copied() else {
        return false;
    };
    let next = bytes.get(skip_blanks(text, at + slashes + 1));
    if !next.is_none_or(|next| b"+,;)]}.\r\n\\".contains(next)) {
        return false;
    }
    let from = at.saturating_sub(MAX_STRING_BYTES);
    let line = match bytes[from..at].iter().rposition(|byte| *byte == b'\n') {
        Some(end) => from + end + 1,
        None if from == 0 => 0,
        // The line is too long to know where its strings begin.
        None => return false,
    };
    let (mut backslashes, mut is_open) = (0, false);
    for index in line..at {
        let is_letter = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphanumeric);
        let is_in_word = index > line && is_letter(index - 1) && is_letter(index + 1);
        let is_apostrophe = quote == b'\'' && is_in_word;
        is_open ^= bytes[index] == quote && backslashes == slashes && !is_apostrophe;
        backslashes = match bytes[index] {
            b'\\' => backslashes + 1,
            _ => 0,
        };
    }
    is_open
}

/// Returns whether a value is the variable at the end of a call: `Client(TOKEN=token)`.
fn is_last_argument(before: &str, value: &str) -> bool {
    let is_in_list = before.trim_end_matches([' ', '\t']).ends_with(['(', ',']);
    let variable = value.split_once(')').map(|(variable, _)| variable);
    is_in_list
        && variable.is_some_and(|variable| {
            !variable.is_empty()
                && variable
                    .bytes()
                    .all(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        })
}

/// Returns whether a value is a field access: `process.env.TOKEN`.
fn is_field_access(value: &str) -> bool {
    let is_word = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphabetic() || byte == b'_')
    };
    value.contains('.') && value.split('.').all(is_word)
}

/// Returns the YAML block scalar after a name: the lines with deeper indentation after `|` or `>`.
fn yaml_block(text: &str, name: usize, at: usize, context: NameContext) -> Option<Range<usize>> {
    let head = &text[at..text.floor_char_boundary(at + MAX_NAME_BYTES)];
    let (head, _) = head.split_once('\n')?;
    let indicator = head.split(" #").next()?.split_whitespace().next_back()?;
    if !(indicator.starts_with(['|', '>']) && indicator.len() <= 3)
        || head.contains(['"', '\'', '='])
    {
        return None;
    }
    let indentation = |line: &str| line.len() - line.trim_start_matches([' ', '\t']).len();
    let line_start = text[..name].rfind('\n').map_or(0, |before| before + 1);
    let before = text[line_start..name].trim_end_matches(['"', '\'']);
    if before.contains(|c: char| !matches!(c, ' ' | '\t' | '-')) {
        return None;
    }
    let start = at + head.len() + 1;
    let mut end = start;
    for line in text[start..text.floor_char_boundary(start + MAX_BLOCK_BYTES)].split_inclusive('\n')
    {
        if !line.trim().is_empty() && indentation(line) <= before.len() {
            break;
        }
        end += line.len();
    }
    let body = text[start..end].trim_end();
    let mut words = body.split_whitespace();
    let is_secret = match context {
        NameContext::Configured => !body.is_empty(),
        _ => words.any(|word| looks_secret(word, Quoting::Quoted)),
    };
    let first = end - text[start..end].trim_start().len();
    is_secret.then_some(first..start + body.len())
}

/// Returns the token after `Bearer`.
fn bearer_token(text: &str, end: usize) -> Vec<Range<usize>> {
    let start = skip_blanks(text, end);
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"._~+/=-".contains(byte);
    let length = text.as_bytes()[start..]
        .iter()
        .take_while(|byte| is_token(byte))
        .count();
    let sample = &text[start..start + length.min(MAX_VALUE_BYTES)];
    let is_secret = start > end && looks_secret(sample, Quoting::Quoted);
    Vec::from_iter(is_secret.then_some(start..start + length))
}

/// Returns the rest of the line after `Cookie:`, if it sets a cookie.
fn cookie_header(text: &str, start: usize) -> Option<Range<usize>> {
    let sample = &text[start..text.floor_char_boundary(start + MAX_VALUE_BYTES)];
    let first = sample.split([';', '\r', '\n', '"', '\'']).next();
    let is_set = first
        .and_then(|first| first.split_once('='))
        .is_some_and(|(name, value)| {
            !name.contains(char::is_whitespace) && !is_placeholder(value) && value.len() >= 4
        });
    is_set.then(|| {
        let rest = &text[start..];
        start..start + rest.find(['\r', '\n', '"', '\'']).unwrap_or(rest.len())
    })
}

/// Returns the password in a URL, and the user name if it is a token.
fn login_in_url(text: &str, end: usize) -> Vec<Range<usize>> {
    let rest = &text[end..text.floor_char_boundary(end + MAX_LOOKAHEAD_BYTES)];
    let login = rest.find(|c: char| c.is_whitespace() || "/@\"'`<>".contains(c));
    let Some(login) = login.filter(|at| rest[*at..].starts_with('@')) else {
        return Vec::new();
    };
    let (user, password) = rest[..login]
        .split_once(':')
        .unwrap_or((&rest[..login], ""));
    let is_token = user.len() >= 20 && looks_secret(user, Quoting::Quoted);
    let is_password = !password.is_empty() && !is_placeholder(password);
    let token = is_token.then_some(end..end + user.len());
    let password = is_password.then_some(end + user.len() + 1..end + login);
    token.into_iter().chain(password).collect()
}

/// Returns the ranges of the words after `from`, up to the end of the line or of the command.
fn command_words(text: &str, from: usize) -> impl Iterator<Item = Range<usize>> {
    let rest = &text[from..text.floor_char_boundary(from + MAX_LOOKAHEAD_BYTES)];
    let rest = &rest[..rest.find(['\n', '|', ';', '&']).unwrap_or(rest.len())];
    rest.split([' ', '\t'])
        .map(move |word| {
            let start = from + word.as_ptr().addr() - rest.as_ptr().addr();
            start..start + word.len()
        })
        .filter(|word| !word.is_empty())
}

/// Returns the range of a word without its quotes, or `None` if the word is a placeholder.
fn unquoted(text: &str, word: Range<usize>) -> Option<Range<usize>> {
    let quotes = ['"', '\''];
    let inner = text[word.clone()].trim_start_matches(quotes);
    let start = word.end - inner.len();
    let inner = inner.trim_end_matches(quotes);
    (!is_placeholder(inner)).then_some(start..start + inner.len())
}

/// Returns the password of `curl -u name:password`.
fn curl_password(text: &str, end: usize) -> Vec<Range<usize>> {
    let mut words = command_words(text, end);
    let option = words.find(|word| matches!(&text[word.clone()], "-u" | "--user"));
    let login = option.and_then(|_| unquoted(text, words.next()?));
    let password = login.and_then(|login| {
        let at = text[login.clone()].find(':')?;
        unquoted(text, login.start + at + 1..login.end)
    });
    password.into_iter().collect()
}

/// Returns the password of `sshpass -p password`.
fn sshpass_password(text: &str, end: usize) -> Vec<Range<usize>> {
    let mut words = command_words(text, end);
    let password = words.next().and_then(|option| match &text[option.clone()] {
        "-p" => unquoted(text, words.next()?),
        word if word.starts_with("-p") => unquoted(text, option.start + 2..option.end),
        _ => None,
    });
    password.into_iter().collect()
}

/// Returns the password of `mysql -ppassword` and related commands.
fn mysql_password(text: &str, end: usize) -> Vec<Range<usize>> {
    let option = command_words(text, end).find(|word| {
        let word = &text[word.clone()];
        word.starts_with("-p") && word.len() > 2
    });
    let password = option.and_then(|word| unquoted(text, word.start + 2..word.end));
    password.into_iter().collect()
}

/// Returns the password of `login name password secret`, the format of `.netrc`.
fn netrc_password(text: &str, end: usize) -> Vec<Range<usize>> {
    let mut words = command_words(text, end).skip(1);
    let name = words
        .next()
        .filter(|word| &text[word.clone()] == "password");
    let password = name.and_then(|_| words.next());
    let is_secret = |word: &Range<usize>| looks_secret(&text[word.clone()], Quoting::Quoted);
    password.filter(is_secret).into_iter().collect()
}
