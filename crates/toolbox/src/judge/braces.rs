//! Brace expansion: `a{b,c}` is the two words `ab` and `ac`.

/// The most words that one word expands to. `{a,b}{c,d}…` doubles with each pair.
const MAX_WORDS: usize = 32;

/// The most pairs of braces that are expanded in a word.
const MAX_PAIRS: usize = 8;
/// The longest word that is expanded, in characters.
const MAX_LENGTH: usize = 128;

/// A character of a word before expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    /// An unquoted character.
    Bare(char),
    Quoted(char),
    /// Text that is only known to a running shell.
    Hole,
    /// `$IFS`, which separates words like a space.
    Gap,
}

/// Expands the braces of a word: `a{b,c}d` is `abd acd`, and `{m..m}` is `m`.
pub(super) fn expand_braces(pieces: Vec<Piece>) -> Vec<Vec<Piece>> {
    let mut out = Vec::new();
    expand(pieces, 0, &mut out);
    out
}

/// Returns whether brace expansion changes a word.
pub(super) fn stands_for_others(pieces: &[Piece]) -> bool {
    find_braces(pieces).is_some()
}

/// Returns whether a word has braces that a shell would interpret: `{a..c}`, or `{name}>file`,
/// which sets a variable. `{}` and `HEAD@{1}` are literal.
pub(super) fn has_braces(pieces: &[Piece]) -> bool {
    let is_active = |open: usize| {
        let close = pieces[open..]
            .iter()
            .position(|piece| *piece == Piece::Bare('}'))
            .unwrap_or(pieces.len() - open);
        let inside = &pieces[open..open + close];
        let dots = inside
            .windows(2)
            .any(|pair| pair == [Piece::Bare('.'), Piece::Bare('.')]);
        dots || inside.contains(&Piece::Bare(',')) || (open == 0 && pieces.len() != 2)
    };
    pieces
        .iter()
        .enumerate()
        .filter(|(_, piece)| **piece == Piece::Bare('{'))
        .take(MAX_PAIRS + 1)
        .enumerate()
        .any(|(count, (open, _))| count == MAX_PAIRS || is_active(open))
}

fn expand(pieces: Vec<Piece>, depth: usize, out: &mut Vec<Vec<Piece>>) {
    if out.len() >= MAX_WORDS {
        return;
    }
    let Some(alternatives) = find_braces(&pieces).filter(|_| depth < MAX_PAIRS) else {
        return out.push(pieces);
    };
    for inside in alternatives.inside {
        expand(
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
struct Braces<'a> {
    /// Index of the opening brace.
    open: usize,
    /// Index of the closing brace.
    close: usize,
    /// The alternatives between the commas.
    inside: Vec<&'a [Piece]>,
}

/// Returns the first pair of braces that is expanded.
fn find_braces(pieces: &[Piece]) -> Option<Braces<'_>> {
    let opens = pieces
        .iter()
        .enumerate()
        .filter(|(_, piece)| **piece == Piece::Bare('{'))
        .map(|(at, _)| at);
    opens
        .take(MAX_PAIRS)
        .filter(|_| pieces.len() <= MAX_LENGTH)
        .find_map(|open| {
            let (mut level, mut separators) = (0, vec![open]);
            for (at, piece) in pieces.iter().enumerate().skip(open) {
                match piece {
                    Piece::Bare('{') => level += 1,
                    Piece::Bare('}') => level -= 1,
                    Piece::Bare(',') if level == 1 => separators.push(at),
                    _ => {}
                }
                if level == 0 {
                    separators.push(at);
                    let inside: Vec<_> = separators
                        .windows(2)
                        .map(|pair| &pieces[pair[0] + 1..pair[1]])
                        .collect();
                    return match inside[..] {
                        [[first, Piece::Bare('.'), Piece::Bare('.'), last]] if first == last => {
                            Some(Braces {
                                open,
                                close: at,
                                inside: vec![&pieces[open + 1..open + 2]],
                            })
                        }
                        [_] => None,
                        _ => Some(Braces {
                            open,
                            close: at,
                            inside,
                        }),
                    };
                }
            }
            None
        })
}
