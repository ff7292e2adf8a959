//! Extracts patches from shell commands: `cd folder && apply_patch <<'EOF' … EOF`.

use std::path::PathBuf;

use selvedge_tools::ToolError;

/// A shell command that contains a patch.
#[derive(Debug)]
pub(super) struct HeredocCommand {
    /// Folder of the `cd` commands before the patch.
    pub(super) folder: Option<PathBuf>,
    pub(super) patch: String,
    /// Number of lines before the patch.
    pub(super) lines_before: usize,
}

/// Names that models use for `apply_patch` as a program.
pub(super) const APPLY_PATCH_NAMES: [&str; 2] = ["apply_patch", "applypatch"];

/// Other commands that read a patch from standard input.
const PATCH_PROGRAMS: [&str; 2] = ["git apply", "patch"];

/// Returns the command in a text, or `None` if the text is not a command with a patch.
pub(super) fn extract_command(text: &str) -> Result<Option<HeredocCommand>, ToolError> {
    match shell_script_argument(text.trim()) {
        Some(inner) => parse_command(&inner),
        None => parse_command(text),
    }
}

/// Whether a shell script starts with `apply_patch <<…`, optionally after `cd` commands.
pub(super) fn starts_with_apply_patch(script: &str) -> bool {
    let Some((_, rest)) = split_cd_prefix(script) else {
        return false;
    };
    let Some((name, _)) = rest
        .split('\n')
        .next()
        .and_then(|line| line.split_once("<<"))
    else {
        return false;
    };
    APPLY_PATCH_NAMES.contains(&name.trim())
}

/// Splits leading `cd` commands off. Returns their folder and the rest; `None` if a `cd` has no
/// end.
fn split_cd_prefix(text: &str) -> Option<(Option<PathBuf>, &str)> {
    let mut rest = text.trim_start();
    let mut folder: Option<PathBuf> = None;
    while let Some(after) = rest.strip_prefix("cd ") {
        let (word, after) = split_word(after.trim_start())?;
        let after = after.trim_start_matches([' ', '\t']);
        let after = ["&&", ";", "\n"]
            .iter()
            .find_map(|separator| after.strip_prefix(separator))?;
        folder = Some(folder.unwrap_or_default().join(word));
        rest = after.trim_start();
    }
    Some((folder, rest))
}

/// Parses a command with a heredoc. Returns `None` for other commands.
fn parse_command(text: &str) -> Result<Option<HeredocCommand>, ToolError> {
    let Some((folder, rest)) = split_cd_prefix(text) else {
        return Ok(None);
    };
    let line = rest.split('\n').next().unwrap_or_default();
    let Some((name, _)) = line.split_once("<<") else {
        return Ok(None);
    };
    let name = name.trim();
    let known = APPLY_PATCH_NAMES
        .iter()
        .chain(&PATCH_PROGRAMS)
        .any(|known| {
            name.strip_prefix(known)
                .is_some_and(|more| more.is_empty() || more.starts_with(' '))
        });
    if !known && !name.is_empty() {
        return Ok(None);
    }
    let above = text[..text.len() - rest.len()].matches('\n').count() + 1;
    let (patch, after) = parse_heredoc(line, &rest[(line.len() + 1).min(rest.len())..])?;
    if let Some(more) = after
        .lines()
        .find(|line| !line.trim().is_empty() && !line.starts_with("```"))
    {
        return Err(ToolError::new(format!(
            "a command must end after its patch, found `{}`",
            selvedge_text::truncate_chars(more, 80)
        ))
        .suggest("apply the patch alone and run the other commands in separate calls"));
    }
    Ok(Some(HeredocCommand {
        folder,
        patch,
        lines_before: above,
    }))
}

/// Reads a heredoc that `line` opens. Returns its text and the rest of `body` after it.
fn parse_heredoc<'a>(line: &str, body: &'a str) -> Result<(String, &'a str), ToolError> {
    let (_, opening) = line.split_once("<<").unwrap_or_default();
    let (strip_tabs, opening) = match opening.strip_prefix('-') {
        Some(opening) => (true, opening.trim_start()),
        None => (false, opening.trim_start()),
    };
    let (end, more) = split_word(opening).unwrap_or_default();
    if end.is_empty() || !more.trim().is_empty() {
        return Err(ToolError::new(format!(
            "expected `<<'EOF'` at the end of the line, found `{}`",
            selvedge_text::truncate_chars(line, 80)
        )));
    }
    let mut patch = String::new();
    let mut rest = body;
    while !rest.is_empty() {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        rest = after;
        let line = if strip_tabs {
            line.trim_start_matches('\t')
        } else {
            line
        };
        if line.trim_end() == end {
            break;
        }
        patch.push_str(line);
        patch.push('\n');
    }
    Ok((patch, rest))
}

/// Returns the unquoted script of `bash -lc '…'`.
fn shell_script_argument(text: &str) -> Option<String> {
    let shell = ["bash", "sh", "zsh"]
        .iter()
        .find_map(|shell| text.strip_prefix(shell))?;
    let rest = shell
        .strip_prefix(" -lc ")
        .or_else(|| shell.strip_prefix(" -c "))?
        .trim();
    if let Some(inner) = rest
        .strip_prefix('\'')
        .and_then(|rest| rest.strip_suffix('\''))
    {
        return Some(inner.replace("'\\''", "'").replace("'\"'\"'", "'"));
    }
    let inner = rest.strip_prefix('"')?.strip_suffix('"')?;
    let mut out = String::new();
    let mut characters = inner.chars().peekable();
    while let Some(c) = characters.next() {
        match characters.peek() {
            Some(next @ ('"' | '\\' | '$' | '`')) if c == '\\' => {
                out.push(*next);
                characters.next();
            }
            _ => out.push(c),
        }
    }
    Some(out)
}

/// Splits off the first word of a command, quoted or not. Returns the word and the rest.
fn split_word(text: &str) -> Option<(String, &str)> {
    for quote in ['\'', '"'] {
        if let Some(rest) = text.strip_prefix(quote) {
            let (word, rest) = rest.split_once(quote)?;
            return Some((word.to_owned(), rest));
        }
    }
    let mut out = String::new();
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' => out.extend(characters.next().map(|(_, c)| c)),
            ' ' | '\t' | '\n' | ';' | '&' | '|' => return Some((out, &text[at..])),
            c => out.push(c),
        }
    }
    Some((out, ""))
}
