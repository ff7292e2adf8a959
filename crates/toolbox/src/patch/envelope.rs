//! Parses the envelope format: `*** Begin Patch`, operations on files, `*** End Patch`.

use std::path::PathBuf;

use selvedge_tools::ToolError;

use super::text::LineEnding;
use super::unified::parse_range;
use super::{
    FileTransfer, Hunk, HunkFormat, HunkLine, HunkLineRole, OverwritePolicy, PatchAction,
    PatchLines, PatchOperation, PatchTarget,
};

/// Whether a line is a marker that occurs only in envelopes.
pub(super) fn is_marker(line: &str) -> bool {
    matches!(
        parse_marker(line),
        Some(
            EnvelopeMarker::Begin
                | EnvelopeMarker::End
                | EnvelopeMarker::Add(_)
                | EnvelopeMarker::Delete(_)
                | EnvelopeMarker::Update(_)
        )
    )
}

/// Parses all envelopes in the text.
pub(super) fn parse(text: PatchLines<'_>) -> Result<Vec<PatchOperation>, ToolError> {
    let mut reader = EnvelopeParser {
        text,
        at: 0,
        operations: Vec::new(),
    };
    reader.parse_envelopes()?;
    Ok(reader.operations)
}

/// A line that starts with `*** `.
enum EnvelopeMarker<'a> {
    Begin,
    End,
    Add(&'a str),
    Delete(&'a str),
    Update(&'a str),
    MoveTo(&'a str),
    EndOfFile,
}

fn parse_marker(line: &str) -> Option<EnvelopeMarker<'_>> {
    let rest = line.trim().strip_prefix("*** ")?.trim_start();
    Some(match rest {
        "Begin Patch" => EnvelopeMarker::Begin,
        "End Patch" => EnvelopeMarker::End,
        "End of File" => EnvelopeMarker::EndOfFile,
        _ => {
            let (word, path) = rest.split_once(':')?;
            let path = path.trim();
            match word {
                "Add File" => EnvelopeMarker::Add(path),
                "Delete File" => EnvelopeMarker::Delete(path),
                "Update File" => EnvelopeMarker::Update(path),
                "Move to" => EnvelopeMarker::MoveTo(path),
                _ => return None,
            }
        }
    })
}

struct EnvelopeParser<'a> {
    text: PatchLines<'a>,
    /// Index of the current line.
    at: usize,
    operations: Vec<PatchOperation>,
}

impl<'a> EnvelopeParser<'a> {
    fn parse_envelopes(&mut self) -> Result<(), ToolError> {
        let mut found_any = false;
        while let Some(line) = self.text.get(self.at) {
            match parse_marker(line) {
                Some(EnvelopeMarker::Begin) => {
                    self.at += 1;
                    self.parse_operations()?;
                    found_any = true;
                }
                Some(_) => return Err(self.text.expected_error(self.at, "`*** Begin Patch`")),
                // Prose before and after envelopes is ignored.
                None => self.at += 1,
            }
        }
        if found_any {
            Ok(())
        } else {
            Err(self
                .text
                .expected_error(self.text.first_non_blank(), "`*** Begin Patch`"))
        }
    }

    fn parse_operations(&mut self) -> Result<(), ToolError> {
        loop {
            let Some(line) = self.text.get(self.at) else {
                return Err(self.text.expected_error(self.at, "`*** End Patch`"));
            };
            let start = self.at;
            self.at += 1;
            let (path, action) = match parse_marker(line) {
                _ if line.trim().is_empty() => continue,
                Some(EnvelopeMarker::End) => return Ok(()),
                Some(EnvelopeMarker::Add(path)) => (path, self.parse_add()?),
                Some(EnvelopeMarker::Delete(path)) => {
                    (path, PatchAction::Delete { hunks: Vec::new() })
                }
                Some(EnvelopeMarker::Update(path)) => (path, self.parse_update(start)?),
                _ => {
                    return Err(self.text.expected_error(
                        start,
                        "`*** Add File: path`, `*** Delete File: path`, \
                         `*** Update File: path` or `*** End Patch`",
                    ));
                }
            };
            if path.is_empty() {
                return Err(self.text.expected_error(start, "the path of a file"));
            }
            let step = self.operations.len();
            self.operations.push(PatchOperation {
                paths: vec![PathBuf::from(path)],
                action,
                step,
            });
        }
    }

    fn parse_add(&mut self) -> Result<PatchAction, ToolError> {
        let mut content = String::new();
        while let Some(line) = self.text.get(self.at) {
            // Models omit the `+` of empty lines between added lines.
            let lacks_plus = line.is_empty()
                && self.text.lines[self.at..]
                    .iter()
                    .find(|line| !line.trim().is_empty())
                    .is_some_and(|line| line.starts_with('+'));
            match line.strip_prefix('+') {
                Some(line) => content.push_str(line),
                None if lacks_plus => {}
                None if line.trim().is_empty() || parse_marker(line).is_some() => break,
                None => {
                    return Err(self
                        .text
                        .expected_error(self.at, "a line of the new file, which starts with `+`"));
                }
            }
            content.push('\n');
            self.at += 1;
        }
        Ok(PatchAction::Add {
            content: content.into_bytes(),
            executable: false,
            overwrite: OverwritePolicy::Allow,
        })
    }

    fn parse_update(&mut self, start: usize) -> Result<PatchAction, ToolError> {
        let mut to = None;
        if let Some(EnvelopeMarker::MoveTo(path)) = self.text.get(self.at).and_then(parse_marker) {
            if path.is_empty() {
                return Err(self.text.expected_error(self.at, "the path to move to"));
            }
            to = Some(PatchTarget {
                path: PathBuf::from(path),
                transfer: FileTransfer::Move,
                overwrite: OverwritePolicy::Allow,
            });
            self.at += 1;
        }
        let hunks = self.parse_hunks()?;
        if hunks.is_empty() && to.is_none() {
            return Err(self.text.expected_error(
                self.at,
                &format!("a hunk for {}", self.text.quote_line(start)),
            ));
        }
        Ok(PatchAction::Update {
            hunks,
            target: to,
            executable: None,
        })
    }

    fn parse_hunks(&mut self) -> Result<Vec<Hunk>, ToolError> {
        let mut hunks: Vec<Hunk> = Vec::new();
        let mut open = false;
        while let Some(line) = self.text.get(self.at) {
            let has_lines = open && hunks.last().is_some_and(|hunk| !hunk.lines.is_empty());
            if let Some(marker) = parse_marker(line)
                .filter(|_| !open || line.starts_with("***") || self.only_blank_lines_follow())
            {
                match (marker, hunks.last_mut().map(|hunk| &mut hunk.format)) {
                    (EnvelopeMarker::EndOfFile, Some(HunkFormat::Envelope { at_end, .. }))
                        if has_lines =>
                    {
                        *at_end = true
                    }
                    _ => break,
                }
                open = false;
            } else if let Some(context) = line.strip_prefix("@@") {
                if !open || has_lines {
                    hunks.push(self.new_hunk());
                    open = true;
                }
                if let Some(hunk) = hunks.last_mut() {
                    add_anchor(hunk, line, context);
                }
            } else if hunks.is_empty()
                && line.starts_with("--- ")
                && self.next_line().starts_with("+++ ")
            {
                // File names in the style of a unified diff; the envelope already has them.
                self.at += 1;
            } else if let Some((role, text)) =
                parse_hunk_line(line).filter(|_| open || !line.trim().is_empty())
            {
                if !open {
                    hunks.push(self.new_hunk());
                    open = true;
                }
                if let Some(hunk) = hunks.last_mut() {
                    hunk.lines.push(HunkLine {
                        role,
                        text: text.to_owned(),
                        ending: LineEnding::Lf,
                    });
                }
            } else if !line.trim().is_empty() && !line.starts_with("\\ No newline") {
                return Err(self.text.expected_error(
                    self.at,
                    "a line of the hunk, which starts with a space, `+` or `-`, \
                     or the next `*** …` line",
                ));
            }
            self.at += 1;
        }
        hunks.iter_mut().for_each(trim_trailing_blanks);
        match hunks.iter().find(|hunk| hunk.lines.is_empty()) {
            Some(hunk) => {
                let place = hunk.patch_line - self.text.lines_before;
                Err(self.text.expected_error(
                    place.min(self.at),
                    &format!("lines in the hunk of line {}", hunk.patch_line),
                ))
            }
            None => Ok(hunks),
        }
    }

    fn new_hunk(&self) -> Hunk {
        let style = HunkFormat::Envelope {
            anchors: Vec::new(),
            hint: None,
            at_end: false,
        };
        Hunk {
            patch_line: self.text.line_number(self.at),
            format: style,
            lines: Vec::new(),
        }
    }

    fn next_line(&self) -> &'a str {
        self.text.get(self.at + 1).unwrap_or_default()
    }

    /// Whether only blank lines follow. Then the line is `*** End Patch` even with a space before
    /// it.
    fn only_blank_lines_follow(&self) -> bool {
        self.text.lines[self.at + 1..]
            .iter()
            .all(|line| line.trim().is_empty())
    }
}

/// Adds a `@@ …` line to a hunk: a line above the hunk, or line numbers as in a unified diff.
fn add_anchor(hunk: &mut Hunk, line: &str, context: &str) {
    let HunkFormat::Envelope {
        anchors: above,
        hint,
        ..
    } = &mut hunk.format
    else {
        return;
    };
    if let Some(numbers) = parse_range(line) {
        *hint = Some(if numbers.old_count == 0 {
            numbers.old_start
        } else {
            numbers.old_start.saturating_sub(1)
        });
        return;
    }
    let context = context.strip_prefix(' ').unwrap_or(context);
    let context = context.strip_suffix("@@").unwrap_or(context).trim_end();
    if !context.is_empty() {
        above.push(context.to_owned());
    }
}

/// Removes trailing blank lines from a hunk that only adds lines: they are no context to search
/// for.
fn trim_trailing_blanks(hunk: &mut Hunk) {
    let blank = |line: &HunkLine| line.role == HunkLineRole::Keep && line.text.is_empty();
    if hunk.old_lines().all(blank) {
        while hunk.lines.last().is_some_and(blank) {
            hunk.lines.pop();
        }
    }
}

/// Splits a line of a hunk into its role and text; `None` if it has no valid sign.
fn parse_hunk_line(line: &str) -> Option<(HunkLineRole, &str)> {
    Some(match line.as_bytes().first() {
        None => (HunkLineRole::Keep, ""),
        Some(b' ') => (HunkLineRole::Keep, &line[1..]),
        Some(b'-') => (HunkLineRole::Remove, &line[1..]),
        Some(b'+') => (HunkLineRole::Add, &line[1..]),
        _ => return None,
    })
}
