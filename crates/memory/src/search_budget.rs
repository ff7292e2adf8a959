//! Chooses levels for search results, so that they fit into a token budget: the best results in
//! full, further ones as summaries.

use crate::Level;
use crate::level::TaggedSpan;

/// The share of a budget for summaries of many turns. The rest raises the best ones to full text.
const SUMMARY_SHARE: f64 = 0.75;

/// A search result and the tokens of its levels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BudgetCandidate {
    pub(crate) number: u32,
    pub(crate) tokens: [u32; 4],
}

impl BudgetCandidate {
    /// Returns the tokens of the turn at a level, tags included; 0 if they are not counted yet.
    fn cost(&self, level: Level) -> u32 {
        match self.tokens[Level::Raw as usize] {
            0 => 0,
            _ => self.tokens[level as usize] + TaggedSpan::single(self.number, level).tag_tokens(),
        }
    }
}

/// Chooses the level of each candidate, and returns it with its tokens; `None` for those that do
/// not fit. The candidates are sorted, the best first. Without a budget all are raw.
pub(crate) fn choose_levels(
    candidates: &[BudgetCandidate],
    budget: Option<u32>,
) -> Vec<Option<(Level, u32)>> {
    let raw = |candidate: &BudgetCandidate| Some((Level::Raw, candidate.cost(Level::Raw)));
    let Some(budget) = budget else {
        return candidates.iter().map(raw).collect();
    };
    let mut chosen = vec![None; candidates.len()];
    let mut used = 0;
    let summary_budget = (f64::from(budget) * SUMMARY_SHARE) as u32;
    choose_summaries(candidates, &mut chosen, &mut used, summary_budget, budget);
    for (candidate, chosen) in candidates.iter().zip(&mut chosen) {
        let Some((_, now)) = *chosen else { continue };
        let better = [Level::Raw, Level::Smoothed]
            .into_iter()
            .find(|level| used - now + candidate.cost(*level) <= budget);
        if let Some(level) = better.filter(|level| candidate.cost(*level) >= now) {
            used = used - now + candidate.cost(level);
            *chosen = Some((level, candidate.cost(level)));
        }
    }
    choose_summaries(candidates, &mut chosen, &mut used, budget, budget);
    chosen
}

/// Chooses the compressed or tiny level for candidates without a level, until `until` tokens are
/// used. The first candidate may use the whole budget.
fn choose_summaries(
    candidates: &[BudgetCandidate],
    chosen: &mut [Option<(Level, u32)>],
    used: &mut u32,
    until: u32,
    budget: u32,
) {
    for (at, candidate) in candidates.iter().enumerate() {
        if chosen[at].is_some() {
            continue;
        }
        let room = if at == 0 { budget } else { until };
        let level = [Level::Compressed, Level::Tiny]
            .into_iter()
            .find(|level| *used + candidate.cost(*level) <= room);
        let Some(level) = level else { return };
        *used += candidate.cost(level);
        chosen[at] = Some((level, candidate.cost(level)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(count: u32, tokens: [u32; 4]) -> Vec<BudgetCandidate> {
        (1..=count)
            .map(|number| BudgetCandidate { number, tokens })
            .collect()
    }

    #[test]
    fn results_are_raw_if_they_fit_and_never_exceed_the_budget() {
        let few = candidates(10, [30, 20, 12, 2]);
        assert!(
            choose_levels(&few, None)
                .iter()
                .all(|chosen| matches!(chosen, Some((Level::Raw, _))))
        );
        assert!(
            choose_levels(&few, Some(2000))
                .iter()
                .all(|chosen| matches!(chosen, Some((Level::Raw, _))))
        );
        let many = candidates(200, [34, 22, 12, 2]);
        for budget in [0, 5, 26, 100, 500, 2000, 4000] {
            let chosen = choose_levels(&many, Some(budget));
            let used: u32 = chosen.iter().flatten().map(|(_, tokens)| tokens).sum();
            assert!(used <= budget, "{used} of {budget}");
            assert!(
                budget < 100 || f64::from(used) > 0.9 * f64::from(budget),
                "{used} of {budget}"
            );
            assert!(chosen.is_sorted_by_key(|chosen| chosen.is_none()));
        }
        let chosen = choose_levels(&many, Some(2000));
        assert!(chosen.iter().flatten().count() > 55);
        assert_eq!(chosen[0].unwrap().0, Level::Raw);
    }

    #[test]
    fn a_huge_turn_is_shortened_and_leaves_room_for_the_rest() {
        let mut many = candidates(20, [40, 25, 14, 3]);
        many[0].tokens = [9000, 6000, 3000, 200];
        let chosen = choose_levels(&many, Some(1000));
        assert_eq!(chosen[0].unwrap().0, Level::Tiny);
        assert!(chosen.iter().flatten().count() > 15);
    }
}
