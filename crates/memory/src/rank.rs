//! Ranks turns by their relevance to a question. Pure functions, without a database.
//!
//! ```text
//! x  = bm25 · (0.3 + 0.7 · share of the question that the turn covers) / max
//! x += 0.6 · z(cosine) / 6                                     with vectors
//! x += 0.3 · (x of the turn before + x of the turn after)      within a part
//!    + 0.1 · (x of the turns two before and two after)
//! x += 0.4 · bm25 of the part / max
//!    + 0.4 · [the part is of the day that the question names]
//!    + 0.3 · [its speaker or role is named in the question]
//!    + 0.5 · [it is the user's, in a session of a user and an assistant]
//! ```
//!
//! The name of a speaker selects turns of that speaker; it is not searched in a session in which
//! that speaker takes part, because there it is a form of address.
//!
//! The weights are the same for every kind of conversation. They were chosen on dialogues between
//! two people, as round numbers around which the result hardly changes, and work for others without
//! change. Only the weight of user turns was added for sessions with an assistant, whose answers
//! repeat the words of the question and contain little that is asked for later.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use selvedge_text::bm25::{idf_fts5, term_weight};

use crate::turn_metrics::{RankMetrics, SpeakerRole};

/// The weights of the ranking features.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankWeights {
    /// Weight of the scores of the turns before and after.
    pub neighbours: f64,
    /// Weight of the scores of the turns two before and two after.
    pub second_neighbours: f64,
    /// How much the score of a turn depends on the share of the question that it covers, 0 to 1.
    pub coverage: f64,
    /// Weight of the BM25 score of the whole part.
    pub part: f64,
    /// Added if the part is of the day that the question names.
    pub date: f64,
    /// Added if the question names the speaker or the role of the turn.
    pub named_speaker: f64,
    /// Added for turns of the user in a session of a user and an assistant.
    pub user: f64,
    /// Weight of the vector similarity.
    pub vectors: f64,
}

impl Default for RankWeights {
    fn default() -> Self {
        Self {
            vectors: 0.6,
            ..Self::KEYWORDS
        }
    }
}

impl RankWeights {
    /// The default weights without vectors.
    pub const KEYWORDS: Self = Self {
        neighbours: 0.3,
        second_neighbours: 0.1,
        coverage: 0.7,
        part: 0.4,
        date: 0.4,
        named_speaker: 0.3,
        user: 0.5,
        vectors: 0.0,
    };

    /// Only BM25 of the turn, which is what FTS5 computes.
    pub const BM25: Self = Self {
        neighbours: 0.0,
        second_neighbours: 0.0,
        coverage: 0.0,
        part: 0.0,
        date: 0.0,
        named_speaker: 0.0,
        user: 0.0,
        vectors: 0.0,
    };
}

/// All turns that a search considers, in order.
#[derive(Debug, Default)]
pub(crate) struct SearchableTurns {
    pub(crate) metrics: Vec<RankMetrics>,
    /// The index of each turn's part.
    pub(crate) parts: Vec<u32>,
    /// The number of words of each part.
    pub(crate) part_words: Vec<u64>,
    /// The time of the first turn of each part, in milliseconds since 1970.
    pub(crate) part_times_ms: Vec<i64>,
}

/// A question in the form that ranking needs.
#[derive(Debug, Default)]
pub(crate) struct RankQuery {
    /// For each term: the index in [`SearchableTurns`] of each turn that contains it, and how
    /// often.
    pub(crate) postings: Vec<Vec<(u32, u32)>>,
    /// The speakers and roles that the question names, by ranges of turns.
    pub(crate) named_speakers: Vec<SessionSpeakerHints>,
    /// How well each part matches the day that the question names. `None` if it names none.
    pub(crate) part_date_shares: Option<Vec<f64>>,
    /// The cosine similarity of each turn to the question. `None` without vectors.
    pub(crate) similarities: Option<Vec<f32>>,
}

/// The speakers and roles that a question names, for the turns of one session.
#[derive(Debug)]
pub(crate) struct SessionSpeakerHints {
    /// The index of the session's first turn. Its turns end where the next session's start.
    pub(crate) start: usize,
    pub(crate) speakers: Vec<u8>,
    pub(crate) role: Option<SpeakerRole>,
    /// Whether the session has turns of a user and of an assistant without a name.
    pub(crate) is_user_assistant_session: bool,
}

/// Returns the score of every turn.
pub(crate) fn score_turns(
    turns: &SearchableTurns,
    query: &RankQuery,
    weights: &RankWeights,
) -> Vec<f64> {
    let mut scores = bm25_of_turns(turns, query, weights.coverage);
    normalise(&mut scores);
    if let (Some(similarities), true) = (&query.similarities, weights.vectors != 0.0) {
        add_similarity(&mut scores, similarities, weights.vectors);
    }
    if weights.neighbours != 0.0 || weights.second_neighbours != 0.0 {
        let neighbours = [weights.neighbours, weights.second_neighbours];
        add_neighbour_scores(&mut scores, &turns.parts, neighbours);
    }
    if weights.part != 0.0 {
        let mut part_scores = bm25_of_parts(turns, query);
        normalise(&mut part_scores);
        for (score, part) in scores.iter_mut().zip(&turns.parts) {
            *score += weights.part * part_scores.get(*part as usize).copied().unwrap_or(0.0);
        }
    }
    if let Some(shares) = &query.part_date_shares {
        for (score, part) in scores.iter_mut().zip(&turns.parts) {
            *score += weights.date * shares.get(*part as usize).copied().unwrap_or(0.0);
        }
    }
    for (at, session) in query.named_speakers.iter().enumerate() {
        if session.speakers.is_empty()
            && session.role.is_none()
            && !session.is_user_assistant_session
        {
            continue;
        }
        let next = query.named_speakers.get(at + 1);
        let range = session.start..next.map_or(turns.metrics.len(), |next| next.start);
        let metrics = turns.metrics[range.clone()].iter();
        for (metrics, score) in metrics.zip(&mut scores[range]) {
            let is_named_speaker =
                metrics.speaker != 0 && session.speakers.contains(&metrics.speaker);
            if is_named_speaker || session.role == Some(metrics.role) {
                *score += weights.named_speaker;
            }
            if session.is_user_assistant_session && metrics.role == SpeakerRole::User {
                *score += weights.user;
            }
        }
    }
    scores
}

/// Returns the indexes of the `k` highest scores for which `related` holds, the best first.
pub(crate) fn top_k(scores: &[f64], related: impl Fn(usize) -> bool, k: usize) -> Vec<usize> {
    // Nearly all turns are worse than the worst kept one, and take one comparison each.
    let mut kept: BinaryHeap<RankHeapEntry> = BinaryHeap::with_capacity(k.min(scores.len()) + 1);
    for (at, &score) in scores.iter().enumerate() {
        // Of equal scores, the earlier turn is kept.
        let is_full = kept.len() >= k;
        if is_full && kept.peek().is_none_or(|worst| score <= worst.score) || !related(at) {
            continue;
        }
        kept.push(RankHeapEntry { score, index: at });
        if is_full {
            kept.pop();
        }
    }
    let sorted = kept.into_sorted_vec();
    sorted.into_iter().map(|kept| kept.index).collect()
}

/// A kept turn. The order is reversed, so that the heap's maximum is the worst of them.
#[derive(Debug, PartialEq)]
struct RankHeapEntry {
    score: f64,
    index: usize,
}

impl Eq for RankHeapEntry {}

impl Ord for RankHeapEntry {
    fn cmp(&self, other: &Self) -> Ordering {
        let better = other.score.total_cmp(&self.score);
        better.then(self.index.cmp(&other.index))
    }
}

impl PartialOrd for RankHeapEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Scores each turn as a document. `coverage` is how much a turn loses that covers only a part of
/// the question; terms count by their rarity.
fn bm25_of_turns(turns: &SearchableTurns, query: &RankQuery, coverage: f64) -> Vec<f64> {
    let count = turns.metrics.len();
    // Every turn belongs to a part, so that this counts all words.
    let words: u64 = turns.part_words.iter().sum();
    let average = words as f64 / count.max(1) as f64;
    let mut scores = vec![0.0; count];
    let mut covered = vec![0.0_f32; if coverage > 0.0 { count } else { 0 }];
    let mut all = 0.0;
    for postings in &query.postings {
        let idf = idf_fts5(count, postings.len());
        if !postings.is_empty() {
            all += idf;
        }
        for (at, term_count) in postings {
            let length = f64::from(turns.metrics[*at as usize].words);
            scores[*at as usize] += idf * term_weight(f64::from(*term_count), length, average);
            if let Some(covered) = covered.get_mut(*at as usize) {
                *covered += idf as f32;
            }
        }
    }
    if all > 0.0 {
        for (score, covered) in scores.iter_mut().zip(&covered) {
            *score *= 1.0 - coverage + coverage * f64::from(*covered) / all;
        }
    }
    scores
}

/// Scores each part as one document, whose counts and length are the sums of its turns.
fn bm25_of_parts(turns: &SearchableTurns, query: &RankQuery) -> Vec<f64> {
    let count = turns.part_words.len();
    let average = turns.part_words.iter().sum::<u64>() as f64 / count.max(1) as f64;
    let mut scores = vec![0.0; count];
    let mut counts = vec![0_u32; count];
    for postings in &query.postings {
        counts.fill(0);
        for (at, n) in postings {
            let part = turns.parts[*at as usize] as usize;
            counts[part] = counts[part].saturating_add(*n);
        }
        let idf = idf_fts5(count, counts.iter().filter(|n| **n > 0).count());
        for ((score, n), words) in scores.iter_mut().zip(&counts).zip(&turns.part_words) {
            if *n > 0 {
                *score += idf * term_weight(f64::from(*n), *words as f64, average);
            }
        }
    }
    scores
}

/// Divides scores by their maximum.
fn normalise(scores: &mut [f64]) {
    let max = scores.iter().copied().fold(0.0, f64::max);
    if max > 0.0 {
        scores.iter_mut().for_each(|score| *score /= max);
    }
}

/// Adds the z-scores of similarities. The divisor 6 brings them to the range of the BM25 scores.
fn add_similarity(scores: &mut [f64], similarities: &[f32], weight: f64) {
    let count = similarities.len().max(1) as f64;
    let mean = similarities.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    let squares = similarities.iter().map(|x| (f64::from(*x) - mean).powi(2));
    let spread = (squares.sum::<f64>() / count).sqrt();
    if spread > 1e-9 {
        let factor = weight / (spread * 6.0);
        for (score, x) in scores.iter_mut().zip(similarities) {
            *score += factor * (f64::from(*x) - mean);
        }
    }
}

/// Adds to each score a share of the scores of its neighbours in the same part: of the nearest, and
/// of those at a distance of two.
fn add_neighbour_scores(scores: &mut [f64], parts: &[u32], weights: [f64; 2]) {
    let mut rest = scores;
    for part in parts.chunk_by(|a, b| a == b) {
        let Some((part, after)) = rest.split_at_mut_checked(part.len()) else {
            return;
        };
        // The scores of the two turns before, before they were changed.
        let mut before = [0.0; 2];
        for at in 0..part.len() {
            let own = part[at];
            let next = |distance: usize| part.get(at + distance).copied().unwrap_or(0.0);
            let near = weights[0] * (before[0] + next(1));
            let far = weights[1] * (before[1] + next(2));
            part[at] = own + near + far;
            before = [own, before[0]];
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(words: &[u16], parts: &[u32]) -> SearchableTurns {
        let metrics = words.iter().map(|words| RankMetrics {
            words: *words,
            speaker: 0,
            role: SpeakerRole::Other,
        });
        let count = parts.iter().max().map_or(0, |last| *last as usize + 1);
        let mut part_words = vec![0; count];
        for (words, part) in words.iter().zip(parts) {
            part_words[*part as usize] += u64::from(*words);
        }
        SearchableTurns {
            metrics: metrics.collect(),
            parts: parts.to_vec(),
            part_times_ms: vec![0; part_words.len()],
            part_words,
        }
    }

    #[test]
    fn scores_are_shared_with_neighbours_of_the_same_part_only() {
        let mut scores = [0.0, 1.0, 0.0, 0.0];
        add_neighbour_scores(&mut scores, &[0, 0, 1, 1], [0.3, 0.0]);
        assert_eq!(scores, [0.3, 1.0, 0.0, 0.0]);
        let mut scores = [1.0, 0.5, 1.0];
        add_neighbour_scores(&mut scores, &[0, 0, 0], [0.3, 0.0]);
        assert_eq!(scores, [1.15, 1.1, 1.15]);
        let mut scores = [1.0, 0.0, 0.0, 0.0];
        add_neighbour_scores(&mut scores, &[0; 4], [0.3, 0.1]);
        assert_eq!(scores, [1.0, 0.3, 0.1, 0.0]);
    }

    #[test]
    fn named_speakers_and_users_score_higher() {
        let mut all = turns(&[5; 4], &[0; 4]);
        all.metrics[2].speaker = 3;
        all.metrics[1].role = SpeakerRole::User;
        let query = RankQuery {
            postings: vec![vec![(0, 1), (1, 1), (2, 1)]],
            named_speakers: vec![SessionSpeakerHints {
                start: 0,
                speakers: vec![3],
                role: None,
                is_user_assistant_session: true,
            }],
            ..RankQuery::default()
        };
        let scores = score_turns(
            &all,
            &query,
            &RankWeights {
                neighbours: 0.0,
                second_neighbours: 0.0,
                part: 0.0,
                ..RankWeights::default()
            },
        );
        assert_eq!(top_k(&scores, |_| true, 9), [1, 2, 0, 3]);
        assert_eq!(top_k(&scores, |at| at != 1, 2), [2, 0]);
        assert!(top_k(&[], |_| true, 3).is_empty() && top_k(&scores, |_| true, 0).is_empty());
    }

    #[test]
    fn a_relevant_part_raises_the_scores_of_its_turns() {
        let all = turns(&[4; 8], &[0, 0, 1, 1, 2, 2, 3, 3]);
        // Turns 3 and 5 contain the term equally often; the part of turn 3 contains it more often.
        let query = RankQuery {
            postings: vec![vec![(2, 3), (3, 1), (5, 1)]],
            ..RankQuery::default()
        };
        let scores = score_turns(
            &all,
            &query,
            &RankWeights {
                neighbours: 0.0,
                second_neighbours: 0.0,
                ..RankWeights::default()
            },
        );
        assert!(scores[3] > scores[5] && scores[2] > scores[3]);
    }

    #[test]
    fn a_turn_that_covers_the_question_beats_one_that_repeats_a_word() {
        let all = turns(&[8; 12], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        // Turn 0 has one term five times, turn 1 has both terms once.
        let query = RankQuery {
            postings: vec![vec![(0, 5), (1, 1)], vec![(1, 1), (2, 1), (3, 1)]],
            ..RankQuery::default()
        };
        let first = |weights| top_k(&score_turns(&all, &query, &weights), |_| true, 1)[0];
        let alone = RankWeights {
            coverage: 1.0,
            ..RankWeights::BM25
        };
        assert_eq!((first(RankWeights::BM25), first(alone)), (0, 1));
    }

    #[test]
    fn parts_of_the_named_day_score_higher() {
        let all = turns(&[8; 4], &[0, 0, 1, 1]);
        let query = RankQuery {
            postings: vec![vec![(0, 1), (2, 1)]],
            part_date_shares: Some(vec![0.0, 1.0]),
            ..RankQuery::default()
        };
        let scores = score_turns(&all, &query, &RankWeights::KEYWORDS);
        assert_eq!(top_k(&scores, |_| true, 1), [2]);
    }
}
