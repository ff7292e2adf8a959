//! Parses the envelope format: `*** Begin Patch`, operations on files, `*** End Patch`.

use std::path::PathBuf;

use selvedge_tools::ToolError;

use super::text::Ending;
use super::unified::numbers;
use super::{Action, Hunk, Line, Numbered, Operation, Over, Role, Source, Style, Target};

/// Whether a line is a marker that occurs only in envelopes.
pub(super) fn is_marker(line: &str) -> bool {
    matches!(
        marker(line),
        Some(Marker::Begin | Marker::End | Marker::Add(_) | Marker::Delete(_) | Marker::Update(_))
    )
}

/// Parses all envelopes in the text.
pub(super) fn parse(text: Numbered<'_>) -> Result<Vec<Operation>, ToolError> {
    let mut reader = Reader {
        text,
        at: 0,
        operations: Vec::new(),
    };
    reader.envelopes()?;
    Ok(reader.operations)
}

/// A line that starts with `*** `.
enum Marker<'a> {
    Begin,
    End,
    Add(&'a str),
    Delete(&'a str),
    Update(&'a str),
    MoveTo(&'a str),
    EndOfFile,
}

fn marker(line: &str) -> Option<Marker<'_>> {
    let rest = line.trim().strip_prefix("*** ")?.trim_start();
    Some(match rest {
        "Begin Patch" => Marker::Begin,
        "End Patch" => Marker::End,
        "End of File" => Marker::EndOfFile,
        _ => {
            let (word, path) = rest.split_once(':')?;
            let path = path.trim();
            match word {
                "Add File" => Marker::Add(path),
                "Delete File" => Marker::Delete(path),
                "Update File" => Marker::Update(path),
                "Move to" => Marker::MoveTo(path),
                _ => return None,
            }
        }
    })
}

struct Reader<'a> {
    text: Numbered<'a>,
    /// Index of the current line.
    at: usize,
    operations: Vec<Operation>,
}

impl<'a> Reader<'a> {
    fn envelopes(&mut self) -> Result<(), ToolError> {
        let mut found_any = false;
        while let Some(line) = self.text.get(self.at) {
            match marker(line) {
                Some(Marker::Begin) => {
                    self.at += 1;
                    self.operations()?;
                    found_any = true;
                }
                Some(_) => return Err(self.text.expected(self.at, "`*** Begin Patch`")),
                // Prose before and after envelopes is ignored.
                None => self.at += 1,
            }
        }
        if found_any {
            Ok(())
        } else {
            Err(self.text.expected(self.text.first(), "`*** Begin Patch`"))
        }
    }

    fn operations(&mut self) -> Result<(), ToolError> {
        loop {
            let Some(line) = self.text.get(self.at) else {
                return Err(self.text.expected(self.at, "`*** End Patch`"));
            };
            let start = self.at;
            self.at += 1;
            let (path, action) = match marker(line) {
                _ if line.trim().is_empty() => continue,
                Some(Marker::End) => return Ok(()),
                Some(Marker::Add(path)) => (path, self.add()?),
                Some(Marker::Delete(path)) => (path, Action::Delete { hunks: Vec::new() }),
                Some(Marker::Update(path)) => (path, self.update(start)?),
                _ => {
                    return Err(self.text.expected(
                        start,
                        "`*** Add File: path`, `*** Delete File: path`, \
                         `*** Update File: path` or `*** End Patch`",
                    ));
                }
            };
            if path.is_empty() {
                return Err(self.text.expected(start, "the path of a file"));
            }
            let batch = self.operations.len();
            self.operations.push(Operation {
                paths: vec![PathBuf::from(path)],
                action,
                batch,
            });
        }
    }

    fn add(&mut self) -> Result<Action, ToolError> {
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
                None if line.trim().is_empty() || marker(line).is_some() => break,
                None => {
                    return Err(self
                        .text
                        .expected(self.at, "a line of the new file, which starts with `+`"));
                }
            }
            content.push('\n');
            self.at += 1;
        }
        Ok(Action::Add {
            content: content.into_bytes(),
            executable: false,
            over: Over::Anything,
        })
    }

    fn update(&mut self, start: usize) -> Result<Action, ToolError> {
        let mut to = None;
        if let Some(Marker::MoveTo(path)) = self.text.get(self.at).and_then(marker) {
            if path.is_empty() {
                return Err(self.text.expected(self.at, "the path to move to"));
            }
            to = Some(Target {
                path: PathBuf::from(path),
                source: Source::Goes,
                over: Over::Anything,
            });
            self.at += 1;
        }
        let hunks = self.hunks()?;
        if hunks.is_empty() && to.is_none() {
            return Err(self
                .text
                .expected(self.at, &format!("a hunk for {}", self.text.quote(start))));
        }
        Ok(Action::Update {
            hunks,
            to,
            executable: None,
        })
    }

    fn hunks(&mut self) -> Result<Vec<Hunk>, ToolError> {
        let mut hunks: Vec<Hunk> = Vec::new();
        let mut open = false;
        while let Some(line) = self.text.get(self.at) {
            let has_lines = open && hunks.last().is_some_and(|hunk| !hunk.lines.is_empty());
            if let Some(marker) =
                marker(line).filter(|_| !open || line.starts_with("***") || self.is_last())
            {
                match (marker, hunks.last_mut().map(|hunk| &mut hunk.style)) {
                    (Marker::EndOfFile, Some(Style::Envelope { at_end, .. })) if has_lines => {
                        *at_end = true
                    }
                    _ => break,
                }
                open = false;
            } else if let Some(context) = line.strip_prefix("@@") {
                if !open || has_lines {
                    hunks.push(self.hunk());
                    open = true;
                }
                if let Some(hunk) = hunks.last_mut() {
                    narrow(hunk, line, context);
                }
            } else if hunks.is_empty()
                && line.starts_with("--- ")
                && self.next().starts_with("+++ ")
            {
                // File names in the style of a unified diff; the envelope already has them.
                self.at += 1;
            } else if let Some((role, text)) =
                body(line).filter(|_| open || !line.trim().is_empty())
            {
                if !open {
                    hunks.push(self.hunk());
                    open = true;
                }
                if let Some(hunk) = hunks.last_mut() {
                    hunk.lines.push(Line {
                        role,
                        text: text.to_owned(),
                        ending: Ending::Lf,
                    });
                }
            } else if !line.trim().is_empty() && !line.starts_with("\\ No newline") {
                return Err(self.text.expected(
                    self.at,
                    "a line of the hunk, which starts with a space, `+` or `-`, \
                     or the next `*** …` line",
                ));
            }
            self.at += 1;
        }
        hunks.iter_mut().for_each(without_blanks);
        match hunks.iter().find(|hunk| hunk.lines.is_empty()) {
            Some(hunk) => {
                let place = hunk.line - self.text.above;
                Err(self.text.expected(
                    place.min(self.at),
                    &format!("lines in the hunk of line {}", hunk.line),
                ))
            }
            None => Ok(hunks),
        }
    }

    fn hunk(&self) -> Hunk {
        let style = Style::Envelope {
            above: Vec::new(),
            hint: None,
            at_end: false,
        };
        Hunk {
            line: self.text.number(self.at),
            style,
            lines: Vec::new(),
        }
    }

    fn next(&self) -> &'a str {
        self.text.get(self.at + 1).unwrap_or_default()
    }

    /// Whether only blank lines follow. Then the line is `*** End Patch` even with a space before
    /// it.
    fn is_last(&self) -> bool {
        self.text.lines[self.at + 1..]
            .iter()
            .all(|line| line.trim().is_empty())
    }
}

/// Adds a `@@ …` line to a hunk: a line above the hunk, or line numbers as in a unified diff.
fn narrow(hunk: &mut Hunk, line: &str, context: &str) {
    let Style::Envelope { above, hint, .. } = &mut hunk.style else {
        return;
    };
    if let Some(numbers) = numbers(line) {
        *hint = Some(if numbers.old == 0 {
            numbers.start
        } else {
            numbers.start.saturating_sub(1)
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
fn without_blanks(hunk: &mut Hunk) {
    let blank = |line: &Line| line.role == Role::Keep && line.text.is_empty();
    if hunk.old().all(blank) {
        while hunk.lines.last().is_some_and(blank) {
            hunk.lines.pop();
        }
    }
}

/// Splits a line of a hunk into its role and text; `None` if it has no valid sign.
fn body(line: &str) -> Option<(Role, &str)> {
    Some(match line.as_bytes().first() {
        None => (Role::Keep, ""),
        Some(b' ') => (Role::Keep, &line[1..]),
        Some(b'-') => (Role::Remove, &line[1..]),
        Some(b'+') => (Role::Add, &line[1..]),
        _ => return None,
    })
}
