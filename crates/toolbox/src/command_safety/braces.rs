//! Brace expansion: `a{b,c}` is the two words `ab` and `ac`.

/// Maximum number of words that one word expands to. `{a,b}{c,d}…` doubles with each pair.
const MAX_EXPANDED_WORDS: usize = 32;

/// Maximum number of pairs of braces that are expanded in a word.
const MAX_PAIRS: usize = 8;
/// The longest word that is expanded, in characters.
const MAX_WORD_CHARS: usize = 128;

/// A character of a word before expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WordPiece {
    /// An unquoted character.
    Unquoted(char),
    Quoted(char),
    /// Text that is only known to a running shell.
    Unknown,
    /// `$IFS`, which separates words like a space.
    Separator,
}

/// Expands the braces of a word: `a{b,c}d` is `abd acd`, and `{m..m}` is `m`.
pub(super) fn expand_braces(pieces: Vec<WordPiece>) -> Vec<Vec<WordPiece>> {
    let mut out = Vec::new();
    expand_into(pieces, 0, &mut out);
    out
}

/// Returns whether brace expansion changes a word.
pub(super) fn is_expanded(pieces: &[WordPiece]) -> bool {
    find_braces(pieces).is_some()
}

/// Returns whether a word has braces that a shell would interpret: `{a..c}`, or `{name}>file`,
/// which sets a variable. `{}` and `HEAD@{1}` are literal.
pub(super) fn has_active_braces(pieces: &[WordPiece]) -> bool {
    let is_active = |open: usize| {
        let close = pieces[open..]
            .iter()
            .position(|piece| *piece == WordPiece::Unquoted('}'))
            .unwrap_or(pieces.len() - open);
        let inside = &pieces[open..open + close];
        let dots = inside
            .windows(2)
            .any(|pair| pair == [WordPiece::Unquoted('.'), WordPiece::Unquoted('.')]);
        dots || inside.contains(&WordPiece::Unquoted(',')) || (open == 0 && pieces.len() != 2)
    };
    pieces
        .iter()
        .enumerate()
        .filter(|(_, piece)| **piece == WordPiece::Unquoted('{'))
        .take(MAX_PAIRS + 1)
        .enumerate()
        .any(|(count, (open, _))| count == MAX_PAIRS || is_active(open))
}

fn expand_into(pieces: Vec<WordPiece>, depth: usize, out: &mut Vec<Vec<WordPiece>>) {
    if out.len() >= MAX_EXPANDED_WORDS {
        return;
    }
    let Some(alternatives) = find_braces(&pieces).filter(|_| depth < MAX_PAIRS) else {
        return out.push(pieces);
    };
    for inside in alternatives.alternatives {
        expand_into(
            [
                &pieces[..alternatives.open],
                inside,
                &pieces[alternatives.close + 1..],
            ]
            .concat(),
            depth + 1,
            out,
        );
    }
}

/// A pair of braces and its alternatives.
struct BraceGroup<'a> {
    /// Index of the opening brace.
    open: usize,
    /// Index of the closing brace.
    close: usize,
    /// The alternatives between the commas.
    alternatives: Vec<&'a [WordPiece]>,
}

/// Returns the first pair of braces that is expanded.
fn find_braces(pieces: &[WordPiece]) -> Option<BraceGroup<'_>> {
    let opens = pieces
        .iter()
        .enumerate()
        .filter(|(_, piece)| **piece == WordPiece::Unquoted('{'))
        .map(|(at, _)| at);
    opens
        .take(MAX_PAIRS)
        .filter(|_| pieces.len() <= MAX_WORD_CHARS)
        .find_map(|open| {
            let (mut level, mut separators) = (0, vec![open]);
            for (at, piece) in pieces.iter().enumerate().skip(open) {
                match piece {
                    WordPiece::Unquoted('{') => level += 1,
                    WordPiece::Unquoted('}') => level -= 1,
                    WordPiece::Unquoted(',') if level == 1 => separators.push(at),
                    _ => {}
                }
                if level == 0 {
                    separators.push(at);
                    let inside: Vec<_> = separators
                        .windows(2)
                        .map(|pair| &pieces[pair[0] + 1..pair[1]])
                        .collect();
                    return match inside[..] {
                        [
                            [
                                first,
                                WordPiece::Unquoted('.'),
                                WordPiece::Unquoted('.'),
                                last,
                            ],
                        ] if first == last => Some(BraceGroup {
                            open,
                            close: at,
                            alternatives: vec![&pieces[open + 1..open + 2]],
                        }),
                        [_] => None,
                        _ => Some(BraceGroup {
                            open,
                            close: at,
                            alternatives: inside,
                        }),
                    };
                }
            }
            None
        })
}
