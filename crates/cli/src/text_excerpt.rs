//! Shortens a long text to its first and last lines. The end is always shown, because a harmful
//! part could be hidden there.

/// A line of a shortened text, or the number of omitted lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExcerptLine<'a> {
    Line(&'a str),
    /// Number of lines omitted here.
    Omitted(usize),
}

/// Maximum number of file names shown from the omitted part of a diff.
const MAX_OMITTED_FILE_NAMES: usize = 50;

/// Returns at most `max_lines` lines from both ends of a text. For a diff, the names of the files
/// in the omitted part are added.
pub(crate) fn excerpt(text: &str, max_lines: usize) -> Vec<ExcerptLine<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() <= max_lines {
        return lines.into_iter().map(ExcerptLine::Line).collect();
    }
    let tail = max_lines / 2;
    let (head, rest) = lines.split_at(max_lines - tail);
    let (middle, tail) = rest.split_at(rest.len() - tail);
    // A file is named by its new name, or by its old one if it was deleted.
    let headings = (1..lines.len()).filter(|at| lines[*at].starts_with("+++ "));
    let names = headings.map(|at| at - usize::from(lines[at] == "+++ /dev/null"));
    let left_out = head.len()..head.len() + middle.len();
    let names = names
        .filter(|at| left_out.contains(at))
        .take(MAX_OMITTED_FILE_NAMES);
    let names: Vec<&str> = names.map(|at| lines[at]).collect();
    [
        to_excerpt_lines(head),
        vec![ExcerptLine::Omitted(middle.len())],
        to_excerpt_lines(&names),
        to_excerpt_lines(tail),
    ]
    .concat()
}

fn to_excerpt_lines<'a>(lines: &[&'a str]) -> Vec<ExcerptLine<'a>> {
    lines.iter().map(|line| ExcerptLine::Line(line)).collect()
}

impl ExcerptLine<'_> {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Line(line) => (*line).to_owned(),
            Self::Omitted(lines) => format!("… {lines} lines omitted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_and_every_file_name_are_shown() {
        let shown = |text: &str, max| {
            excerpt(text, max)
                .iter()
                .map(ExcerptLine::text)
                .collect::<Vec<_>>()
        };
        assert_eq!(shown("a\nb\nc\n", 3), ["a", "b", "c"]);
        assert_eq!(
            shown("a\nb\nc\nd\nrm -rf x", 3),
            ["a", "b", "… 2 lines omitted", "rm -rf x"]
        );
        let diff = "--- a/x\n+++ b/x\n+1\n+2\n--- /dev/null\n+++ b/evil\n+3\n\
                    --- a/gone\n+++ /dev/null\n-4\n--- a/y\n+++ b/y\n+5\n";
        let expected = [
            "--- a/x",
            "+++ b/x",
            "… 9 lines omitted",
            "+++ b/evil",
            "--- a/gone",
            "+++ b/y",
            "+5",
        ];
        assert_eq!(shown(diff, 4), expected);
        // At every length.
        for max in 2..12 {
            let shown = shown(diff, max);
            let is_shown = |name: &str| shown.iter().any(|line| line == name);
            assert!(
                ["+++ b/x", "+++ b/evil", "--- a/gone", "+++ b/y"]
                    .into_iter()
                    .all(is_shown),
                "{max}: {shown:?}"
            );
        }
    }
}
