//! BM25 term weights for ranking documents.

/// The usual `k1` of BM25: how soon further occurrences of a term add little.
const K1: f64 = 1.2;
/// The usual `b` of BM25: how much the length of a document counts, from 0 to 1.
const B: f64 = 0.75;
/// Weight of a term that more than half of all documents contain.
const MIN_IDF: f64 = 1e-6;

/// Returns the inverse document frequency of a term that `with` of `all` documents contain, as
/// SQLite's FTS5 computes it.
pub fn idf_fts5(all: usize, with: usize) -> f64 {
    let idf = odds(all, with).ln();
    if idf > 0.0 { idf } else { MIN_IDF }
}

/// Returns the inverse document frequency as Lucene computes it. Common terms keep some weight,
/// which matters if there are few documents.
pub fn idf_lucene(all: usize, with: usize) -> f64 {
    (1.0 + odds(all, with)).ln()
}

fn odds(all: usize, with: usize) -> f64 {
    (all as f64 - with as f64 + 0.5) / (with as f64 + 0.5)
}

/// Returns the weight of a term that occurs `times` in a document of length `length`, if documents
/// have the length `average` on average.
pub fn term_weight(times: f64, length: f64, average: f64) -> f64 {
    times * (K1 + 1.0) / (times + K1 * (1.0 - B + B * length / average.max(1e-9)))
}
