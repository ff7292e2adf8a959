//! A message of the model that streams in: its complete blocks are rendered once, as Markdown.

use super::markdown::{last_block_start, render_markdown};
use super::rows::StyledRow;
use super::theme::Theme;

/// A Markdown text that is printed block by block while it streams in.
#[derive(Debug, Default)]
pub(crate) struct StreamedMarkdown {
    text: String,
    /// Bytes of the text that are already printed.
    printed_bytes: usize,
    /// Whether a line ended since the text was last searched for complete blocks.
    has_new_line: bool,
    is_complete: bool,
}

impl StreamedMarkdown {
    pub(crate) fn push(&mut self, delta: &str) {
        // The start of a line may complete the block before it.
        self.has_new_line |= delta.contains('\n') || self.text.ends_with('\n');
        self.text.push_str(delta);
    }

    /// Ends the text. `whole` replaces the streamed text, unless the printed part differs.
    pub(crate) fn complete(&mut self, whole: Option<String>) {
        let printed = ..self.printed_bytes;
        if let Some(whole) = whole
            && whole.get(printed) == self.text.get(printed)
        {
            self.text = whole;
        }
        self.is_complete = true;
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Whether a part is already printed.
    pub(crate) fn is_started(&self) -> bool {
        self.printed_bytes > 0
    }

    /// Returns the text that is not printed yet.
    pub(crate) fn pending(&self) -> &str {
        &self.text[self.printed_bytes..]
    }

    /// Returns the rows of the blocks that are complete now, with a blank row at the end. Further
    /// text cannot change them.
    pub(crate) fn take_rows(&mut self, width: usize, theme: Theme) -> Vec<StyledRow> {
        let pending = self.pending();
        let length = match (self.is_complete, self.has_new_line) {
            (true, _) => pending.len(),
            (false, true) => last_block_start(&pending[..certain_length(pending)]),
            (false, false) => 0,
        };
        let mut rows = render_markdown(&pending[..length], width, theme);
        if !rows.is_empty() {
            rows.push(StyledRow::blank());
        }
        self.has_new_line = false;
        self.printed_bytes += length;
        rows
    }
}

/// Returns the length of the text whose blocks are certain. The start of a line may mean another
/// block than the whole line: a `|` alone is not a row of a table. A letter after a blank line
/// always begins a block.
fn certain_length(text: &str) -> usize {
    let complete = text.rfind('\n').map_or(0, |end| end + 1);
    let begins_block =
        text[..complete].ends_with("\n\n") && text[complete..].starts_with(char::is_alphabetic);
    match begins_block {
        true => text.len(),
        false => complete,
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::wrap_rows;
    use super::*;

    fn shown(pieces: &[&str]) -> String {
        let mut text = StreamedMarkdown::default();
        let mut rows = Vec::new();
        for piece in pieces {
            text.push(piece);
            rows.extend(text.take_rows(40, Theme::Plain));
        }
        text.complete(None);
        rows.extend(text.take_rows(40, Theme::Plain));
        let lines = wrap_rows(&rows, 40);
        let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
        lines.join("\n").trim_end().to_owned()
    }

    #[test]
    fn a_table_is_whole_wherever_its_text_is_split() {
        let table = "Before\n\n| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n\nAfter\n";
        let whole = shown(&[table]);
        assert!(whole.contains("1 │ 2\n3 │ 4"), "{whole}");
        let rows = [
            "Before\n\n| a | b |\n|",
            "---|---|\n|",
            " 1 | 2 |\n|",
            " 3 | 4 |\n\nAfter\n",
        ];
        assert_eq!(shown(&rows), whole);
        for at in 1..table.len() {
            assert_eq!(shown(&[&table[..at], &table[at..]]), whole, "split at {at}");
        }
        let characters: Vec<&str> = table.split_inclusive(|_| true).collect();
        assert_eq!(shown(&characters), whole);
    }
}
