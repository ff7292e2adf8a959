//! Splits a file into lines with their line endings. Lines are bytes, because not every file is
//! UTF-8.

/// The line ending of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineEnding {
    /// No line ending: the last line of a file without a final newline.
    Missing,
    Lf,
    CrLf,
}

/// A line of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextLine<'a> {
    pub(crate) text: &'a [u8],
    pub(crate) ending: LineEnding,
}

impl LineEnding {
    pub(crate) fn bytes(self) -> &'static [u8] {
        match self {
            Self::Missing => b"",
            Self::Lf => b"\n",
            Self::CrLf => b"\r\n",
        }
    }
}

/// Splits the content of a file into lines.
pub(crate) fn split_lines(content: &[u8]) -> Vec<TextLine<'_>> {
    content
        .split_inclusive(|byte| *byte == b'\n')
        .map(|line| match line.strip_suffix(b"\n") {
            None => TextLine {
                text: line,
                ending: LineEnding::Missing,
            },
            Some(line) => match line.strip_suffix(b"\r") {
                None => TextLine {
                    text: line,
                    ending: LineEnding::Lf,
                },
                Some(line) => TextLine {
                    text: line,
                    ending: LineEnding::CrLf,
                },
            },
        })
        .collect()
}

/// Joins lines into the content of a file.
pub(crate) fn join_lines(lines: &[TextLine<'_>]) -> Vec<u8> {
    let mut content = Vec::with_capacity(lines.iter().map(|line| line.text.len() + 2).sum());
    for line in lines {
        content.extend_from_slice(line.text);
        content.extend_from_slice(line.ending.bytes());
    }
    content
}

/// Returns the ending of the nearest line before a position that has one, else of the nearest after
/// it, else LF.
pub(crate) fn ending_near(lines: &[TextLine<'_>], at: usize) -> LineEnding {
    let has_ending = |line: &&TextLine<'_>| line.ending != LineEnding::Missing;
    let before = lines[..at].iter().rev().find(has_ending);
    let after = || lines[at..].iter().find(has_ending);
    before
        .or_else(after)
        .map_or(LineEnding::Lf, |line| line.ending)
}
