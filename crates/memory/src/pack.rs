//! Telling many turns in few tokens: the best in full, more of them in short.

use crate::Level;
use crate::level::Span;

/// The share of a budget that goes into telling many turns in short; the rest tells the best ones in full.
const BREADTH: f64 = 0.75;

/// A turn that may be told, and the tokens of its levels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) number: u32,
    pub(crate) tokens: [u32; 4],
}

impl Candidate {
    /// What telling it costs, tags included; nothing where it is not counted yet.
    fn cost(&self, level: Level) -> u32 {
        match self.tokens[Level::Raw as usize] {
            0 => 0,
            _ => self.tokens[level as usize] + Span::one(self.number, level).tokens(),
        }
    }
}

/// How each candidate, the best first, is told; `None` for those there is no room for. Without a budget all are raw.
pub(crate) fn pack(candidates: &[Candidate], budget: Option<u32>) -> Vec<Option<(Level, u32)>> {
    let raw = |candidate: &Candidate| Some((Level::Raw, candidate.cost(Level::Raw)));
    let Some(budget) = budget else {
        return candidates.iter().map(raw).collect();
    };
    let mut told = vec![None; candidates.len()];
    let mut used = 0;
    let breadth = (f64::from(budget) * BREADTH) as u32;
    short(candidates, &mut told, &mut used, breadth, budget);
    for (candidate, told) in candidates.iter().zip(&mut told) {
        let Some((_, now)) = *told else { continue };
        let better = [Level::Raw, Level::Smoothed]
            .into_iter()
            .find(|level| used - now + candidate.cost(*level) <= budget);
        if let Some(level) = better.filter(|level| candidate.cost(*level) >= now) {
            used = used - now + candidate.cost(level);
            *told = Some((level, candidate.cost(level)));
        }
    }
    short(candidates, &mut told, &mut used, budget, budget);
    told
}

/// Tells those that are not told yet in short, until so much is used. The very first gets all there is, if need be.
fn short(
    candidates: &[Candidate],
    told: &mut [Option<(Level, u32)>],
    used: &mut u32,
    until: u32,
    budget: u32,
) {
    for (at, candidate) in candidates.iter().enumerate() {
        if told[at].is_some() {
            continue;
        }
        let room = if at == 0 { budget } else { until };
        let level = [Level::Compressed, Level::Tiny]
            .into_iter()
            .find(|level| *used + candidate.cost(*level) <= room);
        let Some(level) = level else { return };
        *used += candidate.cost(level);
        told[at] = Some((level, candidate.cost(level)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(count: u32, tokens: [u32; 4]) -> Vec<Candidate> {
        (1..=count)
            .map(|number| Candidate { number, tokens })
            .collect()
    }

    #[test]
    fn all_raw_where_it_fits_and_never_over_budget() {
        let few = candidates(10, [30, 20, 12, 2]);
        assert!(
            pack(&few, None)
                .iter()
                .all(|told| matches!(told, Some((Level::Raw, _))))
        );
        assert!(
            pack(&few, Some(2000))
                .iter()
                .all(|told| matches!(told, Some((Level::Raw, _))))
        );
        let many = candidates(200, [34, 22, 12, 2]);
        for budget in [0, 5, 26, 100, 500, 2000, 4000] {
            let told = pack(&many, Some(budget));
            let used: u32 = told.iter().flatten().map(|(_, tokens)| tokens).sum();
            assert!(used <= budget, "{used} of {budget}");
            assert!(
                budget < 100 || f64::from(used) > 0.9 * f64::from(budget),
                "{used} of {budget}"
            );
            assert!(told.is_sorted_by_key(|told| told.is_none()));
        }
        let told = pack(&many, Some(2000));
        assert!(told.iter().flatten().count() > 55);
        assert_eq!(told[0].unwrap().0, Level::Raw);
    }

    #[test]
    fn a_huge_turn_is_told_in_short_and_does_not_crowd_out_the_rest() {
        let mut many = candidates(20, [40, 25, 14, 3]);
        many[0].tokens = [9000, 6000, 3000, 200];
        let told = pack(&many, Some(1000));
        assert_eq!(told[0].unwrap().0, Level::Tiny);
        assert!(told.iter().flatten().count() > 15);
    }
}
