//! The ranking, without a database: which turns a question is about.
//!
//! ```text
//! x  = bm25 / max  (+ 0.6 · z(cosine) / 6)
//! x += 0.3 · (x before + x after)                    within a sitting
//! x += 0.4 · bm25 of the sitting / max
//!    + 0.2 · [its speaker or role is named in the question]
//!    + 0.5 · [the user's, where a user talks with an assistant]
//! ```
//!
//! The weights are the same for every kind of conversation. They were found on dialogues between two people and hold
//! on others untouched; the user's share is what chats with an assistant add, whose answers repeat every word of the
//! question and carry little of what is asked for later.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use selvedge_text::bm25::{frequency, idf};

use crate::columns::{Brief, Role};

/// How much each feature counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// Of the turns before and after.
    pub neighbours: f64,
    /// Of the sitting as a whole.
    pub sitting: f64,
    /// Of being said by somebody the question names.
    pub named: f64,
    /// Of being said by the user of an assistant.
    pub user: f64,
    /// Of the vectors' likeness.
    pub vectors: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            vectors: 0.6,
            ..Self::KEYWORDS
        }
    }
}

impl Weights {
    /// Everything but the vectors.
    pub const KEYWORDS: Self = Self {
        neighbours: 0.3,
        sitting: 0.4,
        named: 0.2,
        user: 0.5,
        vectors: 0.0,
    };

    /// BM25 of the turn and nothing else: what FTS5 alone would find.
    pub const BM25: Self = Self {
        neighbours: 0.0,
        sitting: 0.0,
        named: 0.0,
        user: 0.0,
        vectors: 0.0,
    };
}

/// All turns that may be found, in order.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    pub(crate) numbers: Vec<Brief>,
    /// Which sitting each turn is of.
    pub(crate) sitting: Vec<u32>,
    /// Words of each sitting.
    pub(crate) sitting_words: Vec<u64>,
}

/// What a question asks.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// For each term: the turns that have it, by their place in [`Turns`], and how often.
    pub(crate) postings: Vec<Vec<(u32, u32)>>,
    /// Whether a turn's speaker or role is named.
    pub(crate) named: Vec<Named>,
    /// How alike each turn and the question are, where there are vectors.
    pub(crate) likeness: Option<Vec<f32>>,
}

/// A run of turns in which these speakers and roles are named.
#[derive(Debug)]
pub(crate) struct Named {
    /// The first turn of the run; it ends where the next begins.
    pub(crate) from: usize,
    pub(crate) speakers: Vec<u8>,
    pub(crate) role: Option<Role>,
    /// Whether a user talks with an assistant there, neither of them by name.
    pub(crate) assisted: bool,
}

/// The score of every turn.
pub(crate) fn scores(turns: &Turns, asked: &Asked, weights: &Weights) -> Vec<f64> {
    let mut scores = bm25_of_turns(turns, asked);
    scale(&mut scores);
    if let (Some(likeness), true) = (&asked.likeness, weights.vectors != 0.0) {
        add_likeness(&mut scores, likeness, weights.vectors);
    }
    if weights.neighbours != 0.0 {
        smooth(&mut scores, &turns.sitting, weights.neighbours);
    }
    if weights.sitting != 0.0 {
        let mut sittings = bm25_of_sittings(turns, asked);
        scale(&mut sittings);
        for (score, sitting) in scores.iter_mut().zip(&turns.sitting) {
            *score += weights.sitting * sittings.get(*sitting as usize).copied().unwrap_or(0.0);
        }
    }
    for (at, run) in asked.named.iter().enumerate() {
        if run.speakers.is_empty() && run.role.is_none() && !run.assisted {
            continue;
        }
        let next = asked.named.get(at + 1);
        let range = run.from..next.map_or(turns.numbers.len(), |next| next.from);
        let numbers = turns.numbers[range.clone()].iter();
        for (numbers, score) in numbers.zip(&mut scores[range]) {
            let by_name = numbers.speaker != 0 && run.speakers.contains(&numbers.speaker);
            if by_name || run.role == Some(numbers.role) {
                *score += weights.named;
            }
            if run.assisted && numbers.role == Role::User {
                *score += weights.user;
            }
        }
    }
    scores
}

/// The best, best first: as many as are asked for, among those that have anything to do with the question.
pub(crate) fn best(scores: &[f64], related: impl Fn(usize) -> bool, k: usize) -> Vec<usize> {
    // Of a million turns nearly all lose against the worst that is kept: one comparison each.
    let mut kept: BinaryHeap<Worst> = BinaryHeap::with_capacity(k.min(scores.len()) + 1);
    for (at, &score) in scores.iter().enumerate() {
        // What comes later is not better where it is as good.
        let is_full = kept.len() >= k;
        if is_full && kept.peek().is_none_or(|worst| score <= worst.score) || !related(at) {
            continue;
        }
        kept.push(Worst { score, at });
        if is_full {
            kept.pop();
        }
    }
    let sorted = kept.into_sorted_vec();
    sorted.into_iter().map(|kept| kept.at).collect()
}

/// A turn among the best; the largest is the worst of them.
#[derive(Debug, PartialEq)]
struct Worst {
    score: f64,
    at: usize,
}

impl Eq for Worst {}

impl Ord for Worst {
    fn cmp(&self, other: &Self) -> Ordering {
        let better = other.score.total_cmp(&self.score);
        better.then(self.at.cmp(&other.at))
    }
}

impl PartialOrd for Worst {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn bm25_of_turns(turns: &Turns, asked: &Asked) -> Vec<f64> {
    let count = turns.numbers.len();
    // Every turn is of a sitting.
    let words: u64 = turns.sitting_words.iter().sum();
    let average = words as f64 / count.max(1) as f64;
    let mut scores = vec![0.0; count];
    for postings in &asked.postings {
        let idf = idf(count, postings.len());
        for (at, times) in postings {
            let length = f64::from(turns.numbers[*at as usize].words);
            scores[*at as usize] += idf * frequency(f64::from(*times), length, average);
        }
    }
    scores
}

/// A sitting is one document: its counts and lengths are sums over its turns.
fn bm25_of_sittings(turns: &Turns, asked: &Asked) -> Vec<f64> {
    let count = turns.sitting_words.len();
    let average = turns.sitting_words.iter().sum::<u64>() as f64 / count.max(1) as f64;
    let mut scores = vec![0.0; count];
    let mut times = vec![0_u32; count];
    for postings in &asked.postings {
        times.fill(0);
        for (at, n) in postings {
            let sitting = turns.sitting[*at as usize] as usize;
            times[sitting] = times[sitting].saturating_add(*n);
        }
        let idf = idf(count, times.iter().filter(|n| **n > 0).count());
        for ((score, n), words) in scores.iter_mut().zip(&times).zip(&turns.sitting_words) {
            if *n > 0 {
                *score += idf * frequency(f64::from(*n), *words as f64, average);
            }
        }
    }
    scores
}

fn scale(scores: &mut [f64]) {
    let max = scores.iter().copied().fold(0.0, f64::max);
    if max > 0.0 {
        scores.iter_mut().for_each(|score| *score /= max);
    }
}

fn add_likeness(scores: &mut [f64], likeness: &[f32], weight: f64) {
    let count = likeness.len().max(1) as f64;
    let mean = likeness.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    let squares = likeness.iter().map(|x| (f64::from(*x) - mean).powi(2));
    let spread = (squares.sum::<f64>() / count).sqrt();
    if spread > 1e-9 {
        for (score, x) in scores.iter_mut().zip(likeness) {
            *score += weight * (f64::from(*x) - mean) / spread / 6.0;
        }
    }
}

fn smooth(scores: &mut [f64], sitting: &[u32], weight: f64) {
    let mut rest = scores;
    for run in sitting.chunk_by(|a, b| a == b) {
        let Some((run, after)) = rest.split_at_mut_checked(run.len()) else {
            return;
        };
        let mut before = 0.0;
        for at in 0..run.len() {
            let (own, next) = (run[at], run.get(at + 1).copied().unwrap_or(0.0));
            run[at] = own + weight * (before + next);
            before = own;
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(words: &[u16], sitting: &[u32]) -> Turns {
        let numbers = words.iter().map(|words| Brief {
            words: *words,
            speaker: 0,
            role: Role::Other,
        });
        let count = sitting.iter().max().map_or(0, |last| *last as usize + 1);
        let mut sitting_words = vec![0; count];
        for (words, sitting) in words.iter().zip(sitting) {
            sitting_words[*sitting as usize] += u64::from(*words);
        }
        Turns {
            numbers: numbers.collect(),
            sitting: sitting.to_vec(),
            sitting_words,
        }
    }

    #[test]
    fn neighbours_share_within_their_sitting_only() {
        let mut scores = [0.0, 1.0, 0.0, 0.0];
        smooth(&mut scores, &[0, 0, 1, 1], 0.3);
        assert_eq!(scores, [0.3, 1.0, 0.0, 0.0]);
        let mut scores = [1.0, 0.5, 1.0];
        smooth(&mut scores, &[0, 0, 0], 0.3);
        assert_eq!(scores, [1.15, 1.1, 1.15]);
    }

    #[test]
    fn who_is_named_and_who_is_asked_for_rise() {
        let mut all = turns(&[5; 4], &[0; 4]);
        all.numbers[2].speaker = 3;
        all.numbers[1].role = Role::User;
        let asked = Asked {
            postings: vec![vec![(0, 1), (1, 1), (2, 1)]],
            named: vec![Named {
                from: 0,
                speakers: vec![3],
                role: None,
                assisted: true,
            }],
            likeness: None,
        };
        let scores = scores(
            &all,
            &asked,
            &Weights {
                neighbours: 0.0,
                sitting: 0.0,
                ..Weights::default()
            },
        );
        assert_eq!(best(&scores, |_| true, 9), [1, 2, 0, 3]);
        assert_eq!(best(&scores, |at| at != 1, 2), [2, 0]);
        assert!(best(&[], |_| true, 3).is_empty() && best(&scores, |_| true, 0).is_empty());
    }

    #[test]
    fn a_sitting_that_is_about_it_lifts_its_turns() {
        let all = turns(&[4; 8], &[0, 0, 1, 1, 2, 2, 3, 3]);
        // Turn 3 and turn 5 say the same; the sitting of turn 3 says more of it.
        let asked = Asked {
            postings: vec![vec![(2, 3), (3, 1), (5, 1)]],
            ..Asked::default()
        };
        let scores = scores(
            &all,
            &asked,
            &Weights {
                neighbours: 0.0,
                ..Weights::default()
            },
        );
        assert!(scores[3] > scores[5] && scores[2] > scores[3]);
    }
}
