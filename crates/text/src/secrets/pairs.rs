//! Secrets that stand after a name, a header or an option: `password=…`, `"token": "…"`,
//! `Authorization: Bearer …`, `https://me:…@host`, `curl -u me:…`.

use std::ops::Range;

use aho_corasick::AhoCorasick;

use super::evidence::{Quoting, is_harmless, looks_secret};
use super::names;

/// Bytes of a name, of a value that decide whether it is a secret, and of a command or a login.
const MAX_NAME: usize = 64;
const MAX_VALUE: usize = 128;
const MAX_LOOK: usize = 256;
/// Bytes of an indented block.
const MAX_BLOCK: usize = 1 << 16;

/// What an automaton finds besides names.
const MARKS: [(&str, Look); 7] = [
    ("bearer", bearer),
    ("://", login_in_url),
    ("curl ", curl_user),
    ("sshpass ", sshpass),
    ("mysql", mysql_password),
    ("mariadb", mysql_password),
    ("login ", netrc_password),
];

/// Where the secrets after a mark are, given where the mark ends.
type Look = fn(&str, usize) -> Vec<Range<usize>>;

/// What kind of text a name stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Context {
    /// Code, JSON, YAML: the value must look like a secret.
    Code,
    /// A command, an assignment of a shell, a query, a connection string: it must be no placeholder.
    Settings,
    /// A configured name: any value.
    Configured,
}

/// Finds secrets after names.
#[derive(Debug)]
pub(super) struct Finder {
    marks: AhoCorasick,
    configured: Vec<String>,
}

impl Finder {
    #[allow(clippy::expect_used)] // Marks beyond what an automaton holds would take gigabytes.
    pub(super) fn new(configured: &[String]) -> Self {
        let marks = MARKS
            .iter()
            .map(|(mark, _)| *mark)
            .chain(names::MARKS.split(' '));
        let marks = marks.chain(configured.iter().map(String::as_str));
        Self {
            marks: AhoCorasick::builder()
                .ascii_case_insensitive(true)
                .build(marks)
                .expect("few marks"),
            configured: configured.to_vec(),
        }
    }

    /// Adds where the secrets of a text are.
    pub(super) fn find(&self, text: &str, found: &mut Vec<Range<usize>>) {
        // Up to here names and values were looked at.
        let (mut named, mut end) = (0, 0);
        for mark in self.marks.find_overlapping_iter(text) {
            if mark.start() < end {
                continue;
            }
            if let Some((_, look)) = MARKS.get(mark.pattern().as_usize()) {
                let secrets = look(text, mark.end());
                end = secrets.last().map_or(end, |last| last.end);
                found.extend(secrets);
            } else if mark.start() >= named {
                let name = name_around(text, mark.start(), mark.end());
                named = name.end;
                if let Some(secret) = self.after_name(text, name) {
                    end = secret.end;
                    found.push(secret);
                }
            }
        }
    }

    fn after_name(&self, text: &str, name: Range<usize>) -> Option<Range<usize>> {
        let word = text[name.clone()].trim_start_matches('-');
        let configured = self
            .configured
            .iter()
            .any(|one| word.eq_ignore_ascii_case(one));
        if !configured && !names::is_secret(word) {
            return None;
        }
        let is_option = text[name.clone()].starts_with("--");
        let before = text[..name.start].chars().next_back();
        let Some((sign, at)) = separator(text, name.end, is_option) else {
            return element(text, name);
        };
        let is_assignment = sign == "=" && at == name.end + 1;
        let is_shell = is_assignment && !word.contains(|c: char| c.is_ascii_lowercase());
        let context = match before {
            _ if configured => Context::Configured,
            Some('?' | '&' | ';') if is_assignment => Context::Settings,
            _ if is_shell || is_option => Context::Settings,
            _ => Context::Code,
        };
        if sign == ":" {
            let is_cookie = word.to_ascii_lowercase().ends_with("cookie");
            let cookies = || is_cookie.then(|| cookies(text, at)).flatten();
            if let Some(found) = block(text, name.start, at, context).or_else(cookies) {
                return Some(found);
            }
        }
        let is_connection = before == Some(';') && is_assignment;
        let value = Value::at(text, at, is_connection);
        let look = &text[value.start..value.end(text, MAX_VALUE)];
        let is_secret = match context {
            Context::Configured => !look.is_empty(),
            Context::Settings if !sign.is_empty() => {
                let is_code = value.quoting() == Quoting::Bare
                    && (look.contains(['(', '[', '{', '<']) || is_member(look));
                let is_number = look.bytes().all(|byte| byte.is_ascii_digit());
                let is_long = look.len() >= 4 || is_connection;
                is_long && !is_code && !is_number && !is_harmless(look)
            }
            Context::Settings | Context::Code => looks_secret(look, value.quoting()),
        };
        if is_secret {
            return Some(value.start..value.end(text, usize::MAX));
        }
        // The value of `token: &str = "…"` stands behind its type.
        let after = skip_blanks(text, value.start + look.len());
        if sign != ":" || !text[after..].starts_with("= ") {
            return None;
        }
        let value = Value::at(text, skip_blanks(text, after + 1), false);
        let look = &text[value.start..value.end(text, MAX_VALUE)];
        looks_secret(look, value.quoting()).then(|| value.start..value.end(text, usize::MAX))
    }
}

/// What an element of XML holds, where the name is that of its tag.
fn element(text: &str, name: Range<usize>) -> Option<Range<usize>> {
    let near = text.floor_char_boundary(name.start.saturating_sub(MAX_NAME));
    let space = |c: char| c.is_ascii_alphanumeric() || c == ':';
    if !text[near..name.start]
        .trim_end_matches(space)
        .ends_with('<')
    {
        return None;
    }
    let rest = &text[name.end..text.floor_char_boundary(name.end + MAX_LOOK)];
    let open = rest.find('>').filter(|_| rest.starts_with(['>', ' ']))?;
    let inner = rest[open + 1..].split_once("</")?.0;
    let start = name.end + open + 1;
    let data = inner.strip_prefix("<![CDATA[").unwrap_or(inner);
    let data = data.strip_suffix("]]>").unwrap_or(data);
    let start = start + inner.find(data)?;
    looks_secret(data, Quoting::Quoted).then_some(start..start + data.len())
}

/// The name that a mark is part of, with the dashes of an option.
fn name_around(text: &str, start: usize, end: usize) -> Range<usize> {
    let bytes = text.as_bytes();
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.".contains(byte);
    let before = bytes[..start].iter().rev().take(MAX_NAME);
    let mut start = start - before.take_while(|byte| is_part(byte)).count();
    let after = bytes[end..].iter().take(MAX_NAME);
    let end = end + after.take_while(|byte| is_part(byte)).count();
    // The letter of an escape such as `\n` is no part of it.
    if start > 0 && bytes[start - 1] == b'\\' && matches!(bytes[start], b'n' | b'r' | b't') {
        start += 1;
    }
    start..end
}

/// What stands between a name and its value, and where the value begins. Between an option and its
/// value there may be nothing but blanks, or the signs of a list.
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
    let sign_at = skip_blanks(text, optional);
    let rest = &text[sign_at..];
    for sign in [":=", "=>", "=", ":"] {
        let Some(behind) = rest.strip_prefix(sign) else {
            continue;
        };
        if behind.starts_with(['=', ':', '~']) {
            return None;
        }
        return Some((sign, skip_blanks(text, text.len() - behind.len())));
    }
    if !is_option {
        return None;
    }
    let value = match rest.strip_prefix(',') {
        Some(behind) if after > at => skip_blanks(text, text.len() - behind.len()),
        _ => sign_at,
    };
    (value > after).then_some(("", value))
}

fn skip_blanks(text: &str, at: usize) -> usize {
    let blanks = text[at..].bytes().take(MAX_NAME);
    at + blanks
        .take_while(|byte| matches!(byte, b' ' | b'\t'))
        .count()
}

/// A value: what is in quotes, at any depth of escaping, or a word. The scheme of an `Authorization`
/// header is no part of it.
struct Value {
    start: usize,
    ending: Ending,
}

enum Ending {
    /// This quote, with as many backslashes before it.
    Quote(u8, usize),
    Word,
    /// The value of a connection string may have blanks.
    Semicolon,
}

impl Value {
    fn at(text: &str, at: usize, is_connection: bool) -> Self {
        let bytes = text.as_bytes();
        let prefix = usize::from(matches!(bytes.get(at), Some(b'b' | b'f' | b'r' | b'u')));
        for at in [at, at + prefix] {
            let slashes = bytes[at.min(text.len())..].iter();
            let slashes = slashes.take_while(|byte| **byte == b'\\').count();
            if let Some(quote @ (b'"' | b'\'' | b'`')) = bytes.get(at + slashes) {
                return Self {
                    start: after_scheme(text, at + slashes + 1),
                    ending: Ending::Quote(*quote, slashes),
                };
            }
        }
        Self {
            start: after_scheme(text, at.min(text.len())),
            ending: if is_connection {
                Ending::Semicolon
            } else {
                Ending::Word
            },
        }
    }

    fn quoting(&self) -> Quoting {
        match self.ending {
            Ending::Quote(..) => Quoting::Quoted,
            Ending::Word | Ending::Semicolon => Quoting::Bare,
        }
    }

    /// Where it ends, or this many bytes on.
    ///
    /// Each level of quoting doubles the backslashes before a quote and adds one, so their number
    /// tells an inner quote from the closing one.
    fn end(&self, text: &str, limit: usize) -> usize {
        let mut run = 0;
        for (at, c) in text[self.start..].char_indices() {
            let ends = match self.ending {
                _ if c == '\n' || at >= limit => true,
                Ending::Quote(quote, slashes) if c == char::from(quote) => {
                    if run % (2 * (slashes + 1)) == slashes {
                        return self.start + at - slashes;
                    }
                    false
                }
                Ending::Quote(..) => false,
                Ending::Word => c.is_whitespace() || at > 0 && "\"'`&,;\\".contains(c),
                Ending::Semicolon => matches!(c, ';' | '"' | '\''),
            };
            if ends {
                return self.start + at;
            }
            run = if c == '\\' { run + 1 } else { 0 };
        }
        text.len()
    }
}

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

/// Whether a value reads a field: `process.env.TOKEN`.
fn is_member(value: &str) -> bool {
    let is_word = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphabetic() || byte == b'_')
    };
    value.contains('.') && value.split('.').all(is_word)
}

/// The lines below a name that YAML takes as one value: those indented further after `|` or `>`.
fn block(text: &str, name: usize, at: usize, context: Context) -> Option<Range<usize>> {
    let head = &text[at..text.floor_char_boundary(at + MAX_NAME)];
    let (head, _) = head.split_once('\n')?;
    let sign = head.split(" #").next()?.split_whitespace().next_back()?;
    if !(sign.starts_with(['|', '>']) && sign.len() <= 3) || head.contains(['"', '\'', '=']) {
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
    for line in text[start..text.floor_char_boundary(start + MAX_BLOCK)].split_inclusive('\n') {
        if !line.trim().is_empty() && indentation(line) <= before.len() {
            break;
        }
        end += line.len();
    }
    let body = text[start..end].trim_end();
    let mut words = body.split_whitespace();
    let is_secret = match context {
        Context::Configured => !body.is_empty(),
        _ => words.any(|word| looks_secret(word, Quoting::Quoted)),
    };
    let first = end - text[start..end].trim_start().len();
    is_secret.then_some(first..start + body.len())
}

/// The token after `Bearer`.
fn bearer(text: &str, end: usize) -> Vec<Range<usize>> {
    let start = skip_blanks(text, end);
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"._~+/=-".contains(byte);
    let length = text.as_bytes()[start..]
        .iter()
        .take_while(|byte| is_token(byte))
        .count();
    let look = &text[start..start + length.min(MAX_VALUE)];
    let is_secret = start > end && looks_secret(look, Quoting::Quoted);
    Vec::from_iter(is_secret.then_some(start..start + length))
}

/// The rest of a line after `Cookie:`, if it sets anything.
fn cookies(text: &str, start: usize) -> Option<Range<usize>> {
    let look = &text[start..text.floor_char_boundary(start + MAX_VALUE)];
    let first = look.split([';', '\r', '\n', '"', '\'']).next();
    let is_set = first
        .and_then(|first| first.split_once('='))
        .is_some_and(|(name, value)| {
            !name.contains(char::is_whitespace) && !is_harmless(value) && value.len() >= 4
        });
    is_set.then(|| {
        let rest = &text[start..];
        start..start + rest.find(['\r', '\n', '"', '\'']).unwrap_or(rest.len())
    })
}

/// The password in a URL, and a token in the place of the user.
fn login_in_url(text: &str, end: usize) -> Vec<Range<usize>> {
    let rest = &text[end..text.floor_char_boundary(end + MAX_LOOK)];
    let login = rest.find(|c: char| c.is_whitespace() || "/@\"'`<>".contains(c));
    let Some(login) = login.filter(|at| rest[*at..].starts_with('@')) else {
        return Vec::new();
    };
    let (user, password) = rest[..login]
        .split_once(':')
        .unwrap_or((&rest[..login], ""));
    let is_token = user.len() >= 20 && looks_secret(user, Quoting::Quoted);
    let is_password = !password.is_empty() && !is_harmless(password);
    let token = is_token.then_some(end..end + user.len());
    let password = is_password.then_some(end + user.len() + 1..end + login);
    token.into_iter().chain(password).collect()
}

/// The words of a command from here on, with their places: to the end of the line or of the command.
fn words(text: &str, from: usize) -> impl Iterator<Item = Range<usize>> {
    let rest = &text[from..text.floor_char_boundary(from + MAX_LOOK)];
    let rest = &rest[..rest.find(['\n', '|', ';', '&']).unwrap_or(rest.len())];
    rest.split([' ', '\t'])
        .map(move |word| {
            let start = from + word.as_ptr().addr() - rest.as_ptr().addr();
            start..start + word.len()
        })
        .filter(|word| !word.is_empty())
}

/// A word without the quotes around it.
fn unquoted(text: &str, word: Range<usize>) -> Option<Range<usize>> {
    let quotes = ['"', '\''];
    let inner = text[word.clone()].trim_start_matches(quotes);
    let start = word.end - inner.len();
    let inner = inner.trim_end_matches(quotes);
    (!is_harmless(inner)).then_some(start..start + inner.len())
}

/// The password of `curl -u name:password`.
fn curl_user(text: &str, end: usize) -> Vec<Range<usize>> {
    let mut words = words(text, end);
    let option = words.find(|word| matches!(&text[word.clone()], "-u" | "--user"));
    let login = option.and_then(|_| unquoted(text, words.next()?));
    let password = login.and_then(|login| {
        let at = text[login.clone()].find(':')?;
        unquoted(text, login.start + at + 1..login.end)
    });
    password.into_iter().collect()
}

/// The password of `sshpass -p password`.
fn sshpass(text: &str, end: usize) -> Vec<Range<usize>> {
    let mut words = words(text, end);
    let password = words.next().and_then(|option| match &text[option.clone()] {
        "-p" => unquoted(text, words.next()?),
        word if word.starts_with("-p") => unquoted(text, option.start + 2..option.end),
        _ => None,
    });
    password.into_iter().collect()
}

/// The password of `mysql -ppassword`, and of its relatives.
fn mysql_password(text: &str, end: usize) -> Vec<Range<usize>> {
    let option = words(text, end).find(|word| {
        let word = &text[word.clone()];
        word.starts_with("-p") && word.len() > 2
    });
    let password = option.and_then(|word| unquoted(text, word.start + 2..word.end));
    password.into_iter().collect()
}

/// The password of `login name password secret`, as `.netrc` has it.
fn netrc_password(text: &str, end: usize) -> Vec<Range<usize>> {
    let mut words = words(text, end).skip(1);
    let name = words
        .next()
        .filter(|word| &text[word.clone()] == "password");
    let password = name.and_then(|_| words.next());
    let is_secret = |word: &Range<usize>| looks_secret(&text[word.clone()], Quoting::Quoted);
    password.filter(is_secret).into_iter().collect()
}
