//! Positions in a script: from byte offsets to lines and columns, and from compiled code back to
//! the script as written.

use selvedge_sandbox::Position;

/// Byte offsets at which the lines of a text begin.
#[derive(Debug, Clone)]
pub(crate) struct LineStarts(Vec<u32>);

impl LineStarts {
    pub(crate) fn new(text: &str) -> Self {
        let starts = text
            .bytes()
            .enumerate()
            .filter(|(_, byte)| *byte == b'\n')
            .map(|(index, _)| index as u32 + 1);
        Self(std::iter::once(0).chain(starts).collect())
    }

    /// Returns the line and column (in characters) of a byte offset.
    pub(crate) fn position(&self, text: &str, offset: u32) -> Position {
        let line = self.0.partition_point(|start| *start <= offset).max(1) - 1;
        let start = self.0[line] as usize;
        let column = text
            .get(start..offset as usize)
            .map_or(0, |before| before.chars().count());
        Position {
            line: line as u32 + 1,
            column: column as u32 + 1,
        }
    }
}

/// Maps positions in compiled code to the script as written.
#[derive(Debug, Clone, Default)]
pub(crate) struct PositionMap {
    /// Pairs of compiled and original position, sorted by compiled position.
    pairs: Vec<(Position, Position)>,
}

impl PositionMap {
    /// Creates a map from the tokens of a source map. `shift` is the number of lines that the
    /// wrapper puts before the compiled code.
    pub(crate) fn new(tokens: impl Iterator<Item = oxc_sourcemap::Token>, shift: u32) -> Self {
        let pairs = tokens.map(|token| {
            let compiled = Position {
                line: token.get_dst_line() + 1 + shift,
                column: token.get_dst_col() + 1,
            };
            (
                compiled,
                Position {
                    line: token.get_src_line() + 1,
                    column: token.get_src_col() + 1,
                },
            )
        });
        Self {
            pairs: pairs.collect(),
        }
    }

    /// Returns how much memory the map takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.pairs.capacity() * size_of::<(Position, Position)>()
    }

    /// Returns the original position of the last token at or before this position.
    pub(crate) fn original_position(&self, compiled: Position) -> Option<Position> {
        let after = self.pairs.partition_point(|(at, _)| *at <= compiled);
        self.pairs
            .get(after.saturating_sub(1))
            .map(|(_, original)| *original)
    }
}
