//! Plans the gradient: chooses a level for each turn of a session, so that all turns fit into a
//! budget. Pure functions, without a database.
//!
//! The bands are, oldest first: eras, then tiny, compressed, smoothed and raw turns. Each band gets
//! its share of the budget; what a band does not use goes to the others, raw first. Every turn is
//! covered exactly once.

use serde::Serialize;

use crate::eras::SHORTEST_ERA_TURNS;
use crate::level::{Level, TaggedSpan};
use crate::turn_metrics::TurnMetrics;

/// The budget of a session's history and how it is divided.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GradientOptions {
    /// Maximum tokens, including tags and the reserve for turns before the next plan.
    pub budget: u32,
    /// The shares of raw, smoothed, compressed and tiny turns, in per cent.
    pub band_shares: [u32; 4],
}

impl GradientOptions {
    /// A budget in tokens with the default shares: 40, 16, 30 and 14 per cent.
    pub fn new(budget: u32) -> Self {
        Self {
            budget,
            band_shares: [40, 16, 30, 14],
        }
    }

    /// Returns the tokens of `room` that a level's share amounts to.
    fn share_tokens(&self, level: Level, room: u32) -> f64 {
        let all: u32 = self.band_shares.iter().sum();
        f64::from(room) * f64::from(self.band_shares[level as usize]) / f64::from(all.max(1))
    }
}

/// Consecutive turns that are rendered together at one level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Band {
    /// The turns and their level.
    #[serde(flatten)]
    pub span: TaggedSpan,
    /// Whether one text summarises all the turns, instead of one text per turn.
    pub era: bool,
    /// Tokens of the band, tags included.
    pub tokens: u32,
}

impl Band {
    pub(crate) fn new(span: TaggedSpan, tokens: u32) -> Self {
        Self {
            span,
            era: false,
            tokens,
        }
    }

    pub(crate) fn new_era(first: u32, last: u32, tokens: u32) -> Self {
        Self {
            era: true,
            ..Self::new(TaggedSpan::new(first, last, Level::Tiny), tokens)
        }
    }
}

/// The bands that render the first turns of a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct GradientPlan {
    /// Oldest first, without gaps.
    pub(crate) bands: Vec<Band>,
    pub(crate) tokens: u32,
    /// Tokens reserved for the turns before the next plan.
    pub(crate) reserve_tokens: u32,
}

/// Turns between one plan and the next.
pub(crate) const REPLAN_INTERVAL_TURNS: u32 = 10;
/// This many of the newest turns stay raw, if they take at most `MAX_NEWEST_SHARE` of the room.
const MIN_RAW_TURNS: usize = 20;
const MAX_NEWEST_SHARE: f64 = 0.6;
/// The largest share of the budget that the reserve may take.
const MAX_RESERVE_SHARE: f64 = 0.25;
/// The reserve is estimated from the size of this many of the newest turns.
const RESERVE_SAMPLE_TURNS: usize = 50;

/// Access to the eras of a session.
pub(crate) trait EraLookup {
    /// Returns eras that cover exactly the first `turns` turns. `None` if they are not written.
    fn eras_covering(&self, turns: u32) -> Option<Vec<Band>>;
}

/// Returns the tokens of a turn that is rendered with its own tags, tags included.
pub(crate) fn standalone_cost(number: u32, metrics: &TurnMetrics, level: Level) -> u32 {
    metrics.tokens_at(level) + TaggedSpan::single(number, level).tag_tokens()
}

/// Tokens of a turn that is one line of a block: its text, number, colon and line break. 0 for an
/// empty text, which has no line.
fn block_line_cost(number: u32, metrics: &TurnMetrics, level: Level) -> u32 {
    match metrics.tokens_at(level) {
        0 => 0,
        tokens => tokens + number.max(1).ilog10() / 3 + 3,
    }
}

/// Plans the bands for `turns`, the first turns of a session.
pub(crate) fn plan_gradient(
    turns: &[TurnMetrics],
    gradient: &GradientOptions,
    eras: &dyn EraLookup,
) -> GradientPlan {
    if turns.is_empty() {
        return GradientPlan {
            reserve_tokens: gradient.budget,
            ..GradientPlan::default()
        };
    }
    let reserve = estimate_reserve(turns, gradient.budget);
    let sums = CostSums::new(turns, gradient.budget - reserve, eras);
    let cuts = match sums.costs[0][turns.len()] <= sums.room.into() {
        true => BandBoundaries {
            raw_end: turns.len(),
            smoothed_end: turns.len(),
            compressed_end: turns.len(),
            era_turns: 0,
        },
        false => BandBoundaries::choose(&sums, gradient),
    };
    let bands = cuts.bands(&sums);
    GradientPlan {
        tokens: bands.iter().map(|band| band.tokens).sum(),
        bands,
        reserve_tokens: reserve,
    }
}

/// Estimates the tokens of the nine turns before the next plan from the last turns.
fn estimate_reserve(turns: &[TurnMetrics], budget: u32) -> u32 {
    let first_sampled = turns.len().saturating_sub(RESERVE_SAMPLE_TURNS);
    let costs: Vec<f64> = (first_sampled as u32 + 1..)
        .zip(&turns[first_sampled..])
        .map(|(number, metrics)| f64::from(standalone_cost(number, metrics, Level::Raw)))
        .collect();
    let count = costs.len().max(1) as f64;
    let mean = costs.iter().sum::<f64>() / count;
    let spread = (costs.iter().map(|cost| (cost - mean).powi(2)).sum::<f64>() / count).sqrt();
    // The sum of nine turns has three times the deviation of one; two deviations are enough in
    // nearly all cases.
    let estimate = f64::from(REPLAN_INTERVAL_TURNS - 1) * mean + 6.0 * spread;
    estimate.min(f64::from(budget) * MAX_RESERVE_SHARE) as u32
}

/// Prefix sums of the turns' tokens at each level, which make any choice of bands cheap to check.
/// Turns are indexed from the newest, which is 0.
struct CostSums<'a> {
    turn_count: usize,
    /// By level: element `n` is the tokens of the `n` newest turns.
    costs: [Vec<u64>; 4],
    /// The tokens that all bands must fit into.
    room: u32,
    eras: &'a dyn EraLookup,
}

impl<'a> CostSums<'a> {
    fn new(turns: &[TurnMetrics], room: u32, eras: &'a dyn EraLookup) -> Self {
        let costs = Level::ALL.map(|level| {
            let cost = match level {
                Level::Raw | Level::Smoothed => standalone_cost,
                Level::Compressed | Level::Tiny => block_line_cost,
            };
            let mut sums = Vec::with_capacity(turns.len() + 1);
            let mut sum = 0_u64;
            sums.push(0);
            for (at, metrics) in turns.iter().enumerate().rev() {
                sum += u64::from(cost(at as u32 + 1, metrics, level));
                sums.push(sum);
            }
            sums
        });
        Self {
            turn_count: turns.len(),
            costs,
            room,
            eras,
        }
    }

    /// Returns the tokens of the turns `from..to` at a level.
    fn cost(&self, from: usize, to: usize, level: Level) -> u64 {
        self.costs[level as usize][to] - self.costs[level as usize][from]
    }

    /// Returns the number in the session of the turn at an index from the newest.
    fn number(&self, from_newest: usize) -> u32 {
        (self.turn_count - from_newest) as u32
    }

    /// Returns the span and the tokens of the turns `from..to` as one block, tags included. `None`
    /// if there are no turns.
    fn block(&self, from: usize, to: usize, level: Level) -> Option<(TaggedSpan, u64)> {
        (to > from).then(|| {
            let span = TaggedSpan::new(self.number(to - 1), self.number(from), level);
            (
                span,
                self.cost(from, to, level) + u64::from(span.tag_tokens()),
            )
        })
    }
}

/// Where the bands end. `raw_end`, `smoothed_end` and `compressed_end` are exclusive indexes,
/// counted from the newest turn, which is 0. Older turns than `compressed_end` are tiny, except the
/// oldest `era_turns` turns, which eras cover.
#[derive(Debug, Clone, Copy)]
struct BandBoundaries {
    raw_end: usize,
    smoothed_end: usize,
    compressed_end: usize,
    era_turns: u32,
}

impl BandBoundaries {
    /// Chooses bands that fit and use the room as far as possible.
    fn choose(sums: &CostSums<'_>, gradient: &GradientOptions) -> Self {
        let mut cuts = Self::scaled(sums, gradient, 1.0);
        if cuts.fits(sums) {
            // No eras are needed: enlarge all bands by the largest common factor that fits.
            let (mut low, mut high) = (1.0, 4.0);
            for _ in 0..24 {
                let middle = (low + high) / 2.0;
                let tried = Self::scaled(sums, gradient, middle);
                if tried.fits(sums) {
                    (low, cuts) = (middle, tried);
                } else {
                    high = middle;
                }
            }
        } else {
            cuts.cover_oldest_with_eras(sums);
        }
        cuts.use_remaining_room(sums);
        cuts
    }

    /// Makes each band as long as its share, times `factor`, allows. The newest turns stay raw if
    /// they are not too large.
    fn scaled(sums: &CostSums<'_>, gradient: &GradientOptions, factor: f64) -> Self {
        let until = |level: Level, from: usize| {
            let costs = &sums.costs[level as usize];
            let limit = costs[from] as f64 + gradient.share_tokens(level, sums.room) * factor;
            (costs.partition_point(|sum| *sum as f64 <= limit) - 1).max(from)
        };
        let mut raw = until(Level::Raw, 0);
        let newest = MIN_RAW_TURNS.min(sums.turn_count);
        let newest_tokens = sums.cost(0, newest, Level::Raw) as f64;
        if raw < newest && newest_tokens <= f64::from(sums.room) * MAX_NEWEST_SHARE {
            raw = newest;
        }
        let smoothed = until(Level::Smoothed, raw);
        Self {
            raw_end: raw,
            smoothed_end: smoothed,
            compressed_end: until(Level::Compressed, smoothed),
            era_turns: 0,
        }
    }

    /// Covers as few of the oldest turns with eras as necessary. If the bands do not fit even with
    /// all other turns in eras, shortens the bands.
    fn cover_oldest_with_eras(&mut self, sums: &CostSums<'_>) {
        loop {
            let (mut low, mut high) = (
                0,
                (sums.turn_count - self.compressed_end) as u32 / SHORTEST_ERA_TURNS,
            );
            while low < high {
                let middle = (low + high) / 2;
                self.era_turns = middle * SHORTEST_ERA_TURNS;
                if self.fits(sums) {
                    high = middle
                } else {
                    low = middle + 1
                }
            }
            self.era_turns = low * SHORTEST_ERA_TURNS;
            if self.fits(sums) || self.compressed_end == 0 {
                return;
            }
            // The bands and the eras together do not fit.
            self.compressed_end = self.compressed_end * 3 / 4;
            self.smoothed_end = self.smoothed_end.min(self.compressed_end);
            self.raw_end = self.raw_end.min(self.compressed_end);
        }
    }

    /// Uses the remaining room to raise single turns to a higher level, the newest first.
    fn use_remaining_room(&mut self, sums: &CostSums<'_>) {
        let without_eras = sums.turn_count - self.era_turns as usize;
        loop {
            let mut tries = [*self; 3];
            tries[0].raw_end += 1;
            tries[1].smoothed_end += 1;
            tries[2].compressed_end += 1;
            let is_valid = |cuts: &Self| {
                [
                    cuts.raw_end,
                    cuts.smoothed_end,
                    cuts.compressed_end,
                    without_eras,
                ]
                .is_sorted()
                    && cuts.fits(sums)
            };
            match tries.into_iter().find(is_valid) {
                Some(better) => *self = better,
                None => return,
            }
        }
    }

    /// Returns whether all bands fit into the room. Eras that are not written do not fit.
    fn fits(&self, sums: &CostSums<'_>) -> bool {
        let Some(eras) = self.era_bands(sums) else {
            return false;
        };
        let without_eras = sums.turn_count - self.era_turns as usize;
        let compressed = self.compressed_end.min(without_eras);
        let block = |from, to, level| sums.block(from, to, level).map_or(0, |(_, cost)| cost);
        let cost = sums.cost(0, self.raw_end, Level::Raw)
            + sums.cost(self.raw_end, self.smoothed_end, Level::Smoothed)
            + block(self.smoothed_end, compressed, Level::Compressed)
            + block(compressed, without_eras, Level::Tiny)
            + eras.iter().map(|era| u64::from(era.tokens)).sum::<u64>();
        cost <= u64::from(sums.room)
    }

    fn era_bands(&self, sums: &CostSums<'_>) -> Option<Vec<Band>> {
        match self.era_turns {
            0 => Some(Vec::new()),
            turns => sums.eras.eras_covering(turns),
        }
    }

    fn bands(&self, sums: &CostSums<'_>) -> Vec<Band> {
        let without_eras = sums.turn_count - self.era_turns as usize;
        let mut bands = self.era_bands(sums).unwrap_or_default();
        for (from, to, level) in [
            (self.compressed_end, without_eras, Level::Tiny),
            (self.smoothed_end, self.compressed_end, Level::Compressed),
        ] {
            let block = sums.block(from, to, level);
            bands.extend(block.map(|(span, cost)| Band::new(span, cost as u32)));
        }
        for (from, to, level) in [
            (self.raw_end, self.smoothed_end, Level::Smoothed),
            (0, self.raw_end, Level::Raw),
        ] {
            bands.extend((from..to).rev().map(|at| {
                let span = TaggedSpan::single(sums.number(at), level);
                Band::new(span, sums.cost(at, at + 1, level) as u32)
            }));
        }
        merge_oldest(bands, sums.room)
    }
}

/// Merges the oldest bands until the plan fits. The merged band is an empty era: only its tags are
/// rendered.
fn merge_oldest(mut bands: Vec<Band>, room: u32) -> Vec<Band> {
    let mut tokens: u32 = bands.iter().map(|band| band.tokens).sum();
    while tokens > room && bands.len() > 1 {
        let next = bands.remove(1);
        let (first, last) = (bands[0].span.first, next.span.last);
        let tags = TaggedSpan::new(first, last, Level::Tiny).tag_tokens();
        tokens = tokens - next.tokens - bands[0].tokens + tags;
        bands[0] = Band::new_era(first, last, tags);
    }
    if let [only] = &mut bands[..]
        && tokens > room
    {
        let TaggedSpan { first, last, .. } = only.span;
        *only = Band::new_era(
            first,
            last,
            TaggedSpan::new(first, last, Level::Tiny).tag_tokens(),
        );
    }
    bands
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn_metrics::SpeakerRole;

    /// Eras of 32, 256, … turns with 60 tokens each, all of them written.
    struct AllEras;

    impl EraLookup for AllEras {
        fn eras_covering(&self, turns: u32) -> Option<Vec<Band>> {
            let mut cover = Vec::new();
            let mut at = 0;
            for size in [32 * 8 * 8 * 8 * 8, 32 * 8 * 8 * 8, 32 * 8 * 8, 32 * 8, 32] {
                while at + size <= turns {
                    cover.push(Band::new_era(at + 1, at + size, 60));
                    at += size;
                }
            }
            (at == turns).then_some(cover)
        }
    }

    fn turns(count: usize, seed: u64) -> Vec<TurnMetrics> {
        let mut state = seed;
        let turn = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let raw = 20 + (state >> 33) as u32 % 400;
            let tokens = [raw, raw * 6 / 10, raw * 35 / 100, (raw * 7 / 100).max(1)];
            TurnMetrics {
                words: 9,
                speaker: 0,
                role: SpeakerRole::User,
                tokens,
            }
        };
        (0..count).map(turn).collect()
    }

    /// Plans the turns, and asserts that the plan covers each turn once within the budget.
    fn valid_plan(all_turns: &[TurnMetrics], budget: u32) -> GradientPlan {
        let plan = plan_gradient(all_turns, &GradientOptions::new(budget), &AllEras);
        let mut next = 1;
        for band in &plan.bands {
            assert_eq!(
                band.span.first,
                next,
                "a gap or an overlap with {} turns in {budget}",
                all_turns.len()
            );
            next = band.span.last + 1;
        }
        assert_eq!(next as usize, all_turns.len() + 1);
        assert!(
            plan.tokens + plan.reserve_tokens <= budget,
            "{} + {} of {budget}",
            plan.tokens,
            plan.reserve_tokens
        );
        assert!(
            plan.bands
                .is_sorted_by_key(|band| std::cmp::Reverse(band.span.level as u8))
        );
        plan
    }

    #[test]
    fn a_plan_covers_every_turn_once_and_uses_the_budget() {
        for (count, budget) in [
            (1, 1000),
            (10, 100_000),
            (50, 8_000),
            (200, 20_000),
            (1_000, 20_000),
            (1_000, 100_000),
            (3_000, 30_000),
            (20_000, 20_000),
            (100_000, 100_000),
        ] {
            for seed in 0..4 {
                let turns = turns(count, seed);
                let plan = valid_plan(&turns, budget);
                let raw: u32 = (1..)
                    .zip(&turns)
                    .map(|(n, turn)| standalone_cost(n, turn, Level::Raw))
                    .sum();
                let used = f64::from(plan.tokens + plan.reserve_tokens) / f64::from(budget);
                assert!(
                    raw < budget || used >= 0.9,
                    "{used} of {budget} used by {count} turns"
                );
            }
        }
    }

    #[test]
    fn all_turns_are_raw_if_they_fit_else_at_least_the_newest_twenty() {
        let few = turns(10, 1);
        assert!(
            valid_plan(&few, 100_000)
                .bands
                .iter()
                .all(|band| band.span.level == Level::Raw)
        );
        let plan = valid_plan(&turns(1000, 2), 20_000);
        let raw = plan
            .bands
            .iter()
            .filter(|band| band.span.level == Level::Raw)
            .count();
        assert!(raw >= 20, "{raw}");
        for level in Level::ALL {
            assert!(
                plan.bands.iter().any(|band| band.span.level == level),
                "no {level:?}"
            );
        }
    }

    #[test]
    fn a_very_small_budget_is_not_exceeded() {
        for budget in [40, 60, 100, 300, 1_000] {
            valid_plan(&turns(5_000, 3), budget);
        }
        let mut huge = turns(40, 4);
        huge[39].tokens = [50_000, 30_000, 16_000, 4_000];
        valid_plan(&huge, 10_000);
        valid_plan(&huge, 2_000);
    }
}
