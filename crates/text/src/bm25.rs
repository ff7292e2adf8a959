//! BM25: how much a term of a query says about a document.

const K1: f64 = 1.2;
const B: f64 = 0.75;
/// The weight of a term that more than half of all documents have.
const LEAST_IDF: f64 = 1e-6;

/// The weight of a term that `with` of `all` documents have, as SQLite's FTS5 computes it.
pub fn idf(all: usize, with: usize) -> f64 {
    let idf = odds(all, with).ln();
    if idf > 0.0 { idf } else { LEAST_IDF }
}

/// The same as Lucene computes it: common terms still count, which matters among few documents.
pub fn idf_of_few(all: usize, with: usize) -> f64 {
    (1.0 + odds(all, with)).ln()
}

fn odds(all: usize, with: usize) -> f64 {
    (all as f64 - with as f64 + 0.5) / (with as f64 + 0.5)
}

/// How much a term counts that stands `times` in a document of this length.
pub fn frequency(times: f64, length: f64, average: f64) -> f64 {
    times * (K1 + 1.0) / (times + K1 * (1.0 - B + B * length / average.max(1e-9)))
}
