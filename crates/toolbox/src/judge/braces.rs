//! What braces make of a word: `a{b,c}` is two words.

/// Words that braces may make of one; `{a,b}{c,d}…` doubles with each pair.
const MAX_WORDS: usize = 32;

/// Pairs of braces that are looked at, and the longest word they are looked for in.
const MAX_PAIRS: usize = 8;
const MAX_LENGTH: usize = 128;

/// A character of a word while it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    Bare(char),
    Quoted(char),
    Hole,
    /// `$IFS`, written instead of a space.
    Gap,
}

/// `a{b,c}d` is `abd acd`, and `{m..m}` is `m`.
pub(super) fn expand_braces(pieces: Vec<Piece>) -> Vec<Vec<Piece>> {
    let mut out = Vec::new();
    expand(pieces, 0, &mut out);
    out
}

/// Whether braces make something else of a word.
pub(super) fn stands_for_others(pieces: &[Piece]) -> bool {
    find_braces(pieces).is_some()
}

/// Braces a shell would act on: `{a..c}`, or `{name}>file`, which sets a variable. `{}` and `HEAD@{1}` are just that.
pub(super) fn has_braces(pieces: &[Piece]) -> bool {
    let acts = |open: usize| {
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
        .any(|(nth, (open, _))| nth == MAX_PAIRS || acts(open))
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

/// A pair of braces, and what it stands for.
struct Braces<'a> {
    open: usize,
    close: usize,
    inside: Vec<&'a [Piece]>,
}

/// The first pair of braces that stands for something else.
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
            let (mut level, mut cuts) = (0, vec![open]);
            for (at, piece) in pieces.iter().enumerate().skip(open) {
                match piece {
                    Piece::Bare('{') => level += 1,
                    Piece::Bare('}') => level -= 1,
                    Piece::Bare(',') if level == 1 => cuts.push(at),
                    _ => {}
                }
                if level == 0 {
                    cuts.push(at);
                    let inside: Vec<_> = cuts
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
