//! Cleans text by rules: white space, capitals, repetition and filler words. Shortens the arguments
//! of calls, and finds the key line of an output.

use std::borrow::Cow;

use serde_json::Value;

/// Words without meaning, in lower case. A comma after them is removed, too.
const FILLER_WORDS: &str = "\
    um uh uhm hmm hm er erm ah oh wow haha hahaha lol yeah yep okay anyway basically actually \
    literally really totally definitely honestly very please kindly hey hi hello thanks certainly \
    absolutely";
/// Words that are filler at the beginning of a sentence and after one of [`BEFORE_FILLERS`].
/// In other places they are names (`just`) or have a meaning (`as well`, `pretty print`).
const AMBIGUOUS_FILLERS: &str = "just pretty quite simply well";
/// Pronouns and auxiliary verbs.
const BEFORE_FILLERS: &str = "\
    i you he she it we they that this am is are was were be been have has had do does did can \
    could may might must shall should will would to i'm it's that's we're i'd i'll we'll";

/// Cleans each line of a text, and removes repeated lines.
pub(crate) fn clean_text(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    let mut before: Option<String> = None;
    for line in text.lines() {
        let line = clean_line(line);
        // Removes repeated lines, and blank lines after the first.
        if before.as_ref() == Some(&line) {
            continue;
        }
        if before.is_some() {
            cleaned.push('\n');
        }
        cleaned.push_str(&line);
        before = Some(line);
    }
    cleaned
}

/// Removes filler words, repeated words and letters, and superfluous spaces.
fn clean_line(line: &str) -> String {
    let calm = lower_capitals(line);
    let mut out = String::with_capacity(calm.len());
    let mut removed_first = false;
    for word in calm.split_whitespace() {
        let bare = word.trim_matches(|c: char| matches!(c, ',' | '.' | '!' | '…' | '?'));
        let ends = word.ends_with(['.', '!', '?']);
        let starts = out.is_empty() || out.ends_with(['.', '!', '?']);
        let before = out.split(' ').next_back().unwrap_or_default();
        let may_be_filler = starts || is_among(BEFORE_FILLERS, before);
        let is_filler =
            is_among(FILLER_WORDS, bare) || (may_be_filler && is_among(AMBIGUOUS_FILLERS, bare));
        if is_filler && (!ends || starts) {
            removed_first |= out.ends_with(['.', '!', '?']);
            continue;
        }
        let mut word = collapse_repeats(word);
        // The first word of the sentence was filler.
        if removed_first && is_plain_word(&word) && word.starts_with(char::is_lowercase) {
            word = Cow::Owned(upper_first(&word));
        }
        removed_first = false;
        if out.split(' ').next_back() == Some(&word) {
            continue;
        }
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(&word);
    }
    capitalise(out)
}

/// Returns whether a list of words, separated by spaces, has a word in any case.
fn is_among(words: &str, word: &str) -> bool {
    words
        .split_whitespace()
        .any(|known| known.eq_ignore_ascii_case(word))
}

/// Returns whether a word is not a name of code, whose letters must not be changed.
fn is_plain_word(word: &str) -> bool {
    let word = word.trim_end_matches([',', ';', ':', '.', '!', '?']);
    let letters = |c: char| c.is_alphabetic() || c == '\'';
    word.chars().all(letters) && !word.chars().skip(1).any(char::is_uppercase)
}

fn upper_first(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or(String::new(), |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// Capitalises a sentence, because its first word may have been removed as filler. A name of code
/// stays as it is.
fn capitalise(text: String) -> String {
    let first_word = text.split(' ').next().unwrap_or_default();
    if !is_plain_word(first_word) {
        return text;
    }
    let mut letters = text.chars();
    match letters.next() {
        Some(first)
            if first.is_lowercase()
                && letters.as_str().contains(' ')
                && text.ends_with(['.', '!', '?']) =>
        {
            first.to_uppercase().chain(letters).collect()
        }
        _ => text,
    }
}

/// Converts a line of at least three words in capitals to lower case.
fn lower_capitals(line: &str) -> Cow<'_, str> {
    let letters = line.chars().filter(|c| c.is_alphabetic()).count();
    let is_all_capitals = letters >= 12
        && line.chars().all(|c| !c.is_lowercase())
        && line.split_whitespace().count() >= 3;
    match is_all_capitals {
        true => line.to_lowercase().into(),
        false => line.into(),
    }
}

/// Collapses repeated characters: `sooooo` to `so`, `!!!!` to `!`.
fn collapse_repeats(word: &str) -> Cow<'_, str> {
    // Rulers and code (`====`, `000000`) are not changed.
    let is_code =
        word.contains(|c: char| c.is_numeric() || matches!(c, '=' | '_' | '/' | '-' | ':'));
    let mut repeats = word
        .chars()
        .zip(word.chars().skip(1))
        .zip(word.chars().skip(2));
    if is_code || !repeats.any(|((a, b), c)| a == b && b == c) {
        return Cow::Borrowed(word);
    }
    let mut out = String::with_capacity(word.len());
    let (mut run, mut last) = (0, None);
    for c in word.chars() {
        run = if last == Some(c) { run + 1 } else { 1 };
        last = Some(c);
        let is_once = c.is_alphabetic() || matches!(c, '!' | '?');
        let max_run = if is_once { 1 } else { 3 };
        // A letter that occurs three times in a row is collapsed; two in a row (`tree`) are kept.
        if run <= max_run || !word.contains(&c.to_string().repeat(3)) {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Splits a text into sentences. A line break ends a sentence.
pub(crate) fn split_sentences(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut from = 0;
        let mut letters = line.char_indices().peekable();
        while let Some((at, c)) = letters.next() {
            let ends = matches!(c, '.' | '!' | '?' | '…' | '。' | '！' | '？');
            let before_space = letters.peek().is_none_or(|(_, next)| next.is_whitespace());
            if ends && (before_space || !c.is_ascii()) {
                let end = at + c.len_utf8();
                found.push(line[from..end].trim());
                from = end;
            }
        }
        found.push(line[from..].trim());
    }
    found.retain(|sentence| !sentence.is_empty());
    found
}

/// Arguments that are shown without their names.
const UNNAMED_ARGUMENTS: &str = "command cmd path file_path filePath query pattern code url";

/// Formats the arguments of a call on one line: the words of a command, a path, other fields as
/// `name=value`.
pub(crate) fn format_arguments(args: &str) -> String {
    match serde_json::from_str::<Value>(args) {
        Ok(Value::Object(fields)) => {
            let arguments = fields
                .iter()
                .map(|(name, value)| match (name.as_str(), value) {
                    ("command" | "cmd" | "argv", Value::Array(words)) => join_values(words),
                    (name, value)
                        if UNNAMED_ARGUMENTS.split(' ').any(|unnamed| unnamed == name) =>
                    {
                        value_text(value)
                    }
                    (name, value) => format!("{name}={}", value_text(value)),
                });
            arguments.collect::<Vec<_>>().join(" ")
        }
        Ok(Value::Array(words)) => join_values(&words),
        Ok(value) => value_text(&value),
        Err(_) => collapse_whitespace(args),
    }
}

fn join_values(words: &[Value]) -> String {
    words.iter().map(value_text).collect::<Vec<_>>().join(" ")
}

fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => collapse_whitespace(text),
        other => collapse_whitespace(&other.to_string()),
    }
}

/// Replaces all white space by single spaces.
pub(crate) fn collapse_whitespace(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Truncates a text to at most `characters` characters, if possible between words, and marks the
/// cut with `…`.
pub(crate) fn truncate_words(text: &str, characters: usize) -> Cow<'_, str> {
    match text.char_indices().nth(characters) {
        None => Cow::Borrowed(text),
        Some((end, _)) => {
            let cut = text[..end]
                .rfind(' ')
                .filter(|at| *at > end / 2)
                .unwrap_or(end);
            Cow::Owned(format!("{}…", text[..cut].trim_end()))
        }
    }
}

/// Returns whether a line of output mentions an error or a warning.
pub(crate) fn is_notable(line: &str) -> bool {
    let line = line.to_lowercase();
    "error|fail|panic|exception|warning|denied|not found|cannot|refused|timed out"
        .split('|')
        .any(|word| line.contains(word))
}

/// Returns the line that summarises an output: the last error line with a number ("2 failed"), the
/// first error line, or the last line.
pub(crate) fn find_key_line(output: &str) -> String {
    let lines = || {
        output
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
    };
    let has_number = |line: &&str| line.contains(|c: char| c.is_ascii_digit());
    let found = lines()
        .filter(|line| is_notable(line))
        .rfind(has_number)
        .or_else(|| lines().find(|line| is_notable(line)))
        .or_else(|| lines().next_back());
    clean_text(found.unwrap_or_default())
}

/// Selects up to `max_lines` lines of an output, each text once: all lines if there are not more,
/// else the first, the last and the notable ones.
pub(crate) fn select_lines(output: &str, max_lines: usize) -> Vec<&str> {
    let lines: Vec<&str> = output.lines().collect();
    let mut seen = std::collections::HashSet::new();
    let ends = max_lines / 4;
    let kept = lines.iter().enumerate().filter(|(at, line)| {
        let at_an_end = *at < ends || *at + ends >= lines.len();
        (lines.len() <= max_lines || at_an_end || is_notable(line)) && seen.insert(line.trim())
    });
    kept.map(|(_, line)| *line).take(max_lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleaning_removes_filler_and_repetition() {
        for (text, expected) in [
            (
                "Well,  I just   wanted to say hello.",
                "I wanted to say hello.",
            ),
            ("Oh wow, that is really sooooo nice!!!", "That is so nice!"),
            ("It broke. Please have a look.", "It broke. Have a look."),
            ("PLEASE STOP DOING THAT NOW", "stop doing that now"),
            ("the the cat\n\n\n\ncat\ncat", "the cat\n\ncat"),
            ("let x = 0;", "let x = 0;"),
            ("value 0x0000", "value 0x0000"),
            ("renew_token fails, too.", "renew_token fails, too."),
            (
                "We use just for tasks, and it works as well.",
                "We use just for tasks, and it works as well.",
            ),
        ] {
            assert_eq!(clean_text(text), expected, "{text}");
        }
    }

    #[test]
    fn key_lines_arguments_and_sentences_are_extracted() {
        assert_eq!(
            find_key_line("a\nTests: 2 failed, 3 passed\nnpm ERR! Test failed.\n"),
            "Tests: 2 failed, 3 passed"
        );
        assert_eq!(find_key_line("built\ndone in 3 s\n\n"), "done in 3 s");
        assert_eq!(find_key_line(""), "");
        assert_eq!(
            format_arguments(r#"{"command":["npm","test"],"timeoutMs":5}"#),
            "npm test timeoutMs=5"
        );
        assert_eq!(
            format_arguments("const a = 1;\n\n  return a"),
            "const a = 1; return a"
        );
        assert_eq!(
            split_sentences("Hi there. It costs 3.50! Ok\nnext"),
            ["Hi there.", "It costs 3.50!", "Ok", "next"]
        );
        assert_eq!(truncate_words("one two three", 9), "one two…");
        assert_eq!(select_lines(&"same\n".repeat(9000), 400), ["same"]);
    }
}
