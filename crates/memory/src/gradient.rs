//! The gradient, without a database: which turns of a session are told how, so that all of them fit.
//!
//! Oldest first: eras, then tiny, compressed, smoothed and raw turns. Each band gets its share of the budget; what a
//! band leaves over goes to the others, the fullest first. Every turn is covered exactly once.

use serde::Serialize;

use crate::columns::Numbers;
use crate::eras::SHORTEST;
use crate::level::{Level, Span};

/// How a session is fitted into a budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gradient {
    /// Tokens in all, tags and the room for turns to come included.
    pub budget: u32,
    /// The shares of raw, smoothed, compressed and tiny turns, in per cent.
    pub bands: [u32; 4],
}

impl Gradient {
    /// So many tokens, with the usual bands.
    pub fn new(budget: u32) -> Self {
        Self {
            budget,
            bands: [40, 16, 30, 14],
        }
    }

    fn share(&self, level: Level, room: u32) -> f64 {
        let all: u32 = self.bands.iter().sum();
        f64::from(room) * f64::from(self.bands[level as usize]) / f64::from(all.max(1))
    }
}

/// A stretch of turns that are told alike, and its tokens, tags included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Band {
    /// Which turns, and how.
    #[serde(flatten)]
    pub span: Span,
    /// Whether they are told all together instead of one by one.
    pub era: bool,
    /// Tokens of all of it.
    pub tokens: u32,
}

impl Band {
    pub(crate) fn new(span: Span, tokens: u32) -> Self {
        Self {
            span,
            era: false,
            tokens,
        }
    }

    pub(crate) fn era(first: u32, last: u32, tokens: u32) -> Self {
        Self {
            era: true,
            ..Self::new(Span::new(first, last, Level::Tiny), tokens)
        }
    }
}

/// How the first turns of a session are told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    /// Oldest first, without gaps.
    pub(crate) bands: Vec<Band>,
    pub(crate) tokens: u32,
    /// Room kept for the turns before the next plan.
    pub(crate) reserve: u32,
}

/// Turns between one plan and the next.
pub(crate) const PERIOD: u32 = 10;
/// So many of the newest stay raw if they take no more than this share of the room.
const NEWEST: usize = 20;
const NEWEST_SHARE: f64 = 0.6;
/// The most a reserve may take of the budget.
const RESERVE_SHARE: f64 = 0.25;
/// How many turns tell how long the next ones will be.
const TYPICAL: usize = 50;

/// The eras of a session that can stand for its oldest turns.
pub(crate) trait Eras {
    /// Eras that cover exactly this many turns from the first on. `None` where they are not written.
    fn cover(&self, turns: u32) -> Option<Vec<Band>>;
}

/// What a turn costs by itself.
pub(crate) fn cost_alone(number: u32, numbers: &Numbers, level: Level) -> u32 {
    numbers.tokens_of(level) + Span::one(number, level).tokens()
}

/// What a turn costs as a line among others: its number, a colon, a line break.
fn cost_in_block(number: u32, numbers: &Numbers, level: Level) -> u32 {
    match numbers.tokens_of(level) {
        0 => 0,
        tokens => tokens + number.max(1).ilog10() / 3 + 3,
    }
}

/// Plans the first turns of a session, all that are given.
pub(crate) fn plan(turns: &[Numbers], gradient: &Gradient, eras: &dyn Eras) -> Plan {
    if turns.is_empty() {
        return Plan {
            reserve: gradient.budget,
            ..Plan::default()
        };
    }
    let reserve = reserve(turns, gradient.budget);
    let sums = Sums::of(turns, gradient.budget - reserve, eras);
    let cuts = match sums.costs[0][turns.len()] <= sums.room.into() {
        true => Cuts {
            raw: turns.len(),
            smoothed: turns.len(),
            compressed: turns.len(),
            eras: 0,
        },
        false => Cuts::chosen(&sums, gradient),
    };
    let bands = cuts.bands(&sums);
    Plan {
        tokens: bands.iter().map(|band| band.tokens).sum(),
        bands,
        reserve,
    }
}

/// Room for nine more turns like the last ones.
fn reserve(turns: &[Numbers], budget: u32) -> u32 {
    let last = turns.len().saturating_sub(TYPICAL);
    let costs: Vec<f64> = (last as u32 + 1..)
        .zip(&turns[last..])
        .map(|(number, numbers)| f64::from(cost_alone(number, numbers, Level::Raw)))
        .collect();
    let count = costs.len().max(1) as f64;
    let mean = costs.iter().sum::<f64>() / count;
    let spread = (costs.iter().map(|cost| (cost - mean).powi(2)).sum::<f64>() / count).sqrt();
    // The sum of nine spreads three times as far as one: twice that is room enough nearly always.
    let wanted = f64::from(PERIOD - 1) * mean + 6.0 * spread;
    wanted.min(f64::from(budget) * RESERVE_SHARE) as u32
}

/// What the newest turns cost at each level, as sums from the newest backwards, and what they have to fit into.
struct Sums<'a> {
    turns: usize,
    costs: [Vec<u64>; 4],
    room: u32,
    eras: &'a dyn Eras,
}

impl<'a> Sums<'a> {
    fn of(turns: &[Numbers], room: u32, eras: &'a dyn Eras) -> Self {
        let costs = Level::ALL.map(|level| {
            let cost = match level {
                Level::Raw | Level::Smoothed => cost_alone,
                Level::Compressed | Level::Tiny => cost_in_block,
            };
            let mut sums = Vec::with_capacity(turns.len() + 1);
            let mut sum = 0_u64;
            sums.push(0);
            for (at, numbers) in turns.iter().enumerate().rev() {
                sum += u64::from(cost(at as u32 + 1, numbers, level));
                sums.push(sum);
            }
            sums
        });
        Self {
            turns: turns.len(),
            costs,
            room,
            eras,
        }
    }

    /// What turns cost at a level, counted from the newest.
    fn cost(&self, from: usize, to: usize, level: Level) -> u64 {
        self.costs[level as usize][to] - self.costs[level as usize][from]
    }

    /// The number of a turn, counted from the newest, which is 0.
    fn number(&self, from_newest: usize) -> u32 {
        (self.turns - from_newest) as u32
    }

    /// Turns that are told as one block, tags included.
    fn block(&self, from: usize, to: usize, level: Level) -> Option<(Span, u64)> {
        (to > from).then(|| {
            let span = Span::new(self.number(to - 1), self.number(from), level);
            (span, self.cost(from, to, level) + u64::from(span.tokens()))
        })
    }
}

/// Where one band ends and the next begins: turns counted from the newest. `eras` counts from the oldest.
#[derive(Debug, Clone, Copy)]
struct Cuts {
    raw: usize,
    smoothed: usize,
    compressed: usize,
    eras: u32,
}

impl Cuts {
    fn chosen(sums: &Sums<'_>, gradient: &Gradient) -> Self {
        let mut cuts = Self::scaled(sums, gradient, 1.0);
        if cuts.fit(sums) {
            // Everything is told: the bands grow together as long as that holds.
            let (mut low, mut high) = (1.0, 4.0);
            for _ in 0..24 {
                let middle = (low + high) / 2.0;
                let tried = Self::scaled(sums, gradient, middle);
                if tried.fit(sums) {
                    (low, cuts) = (middle, tried);
                } else {
                    high = middle;
                }
            }
        } else {
            cuts.make_eras(sums);
        }
        cuts.grow(sums);
        cuts
    }

    /// Each band as long as its share, times a factor, lets it be.
    fn scaled(sums: &Sums<'_>, gradient: &Gradient, factor: f64) -> Self {
        let until = |level: Level, from: usize| {
            let costs = &sums.costs[level as usize];
            let limit = costs[from] as f64 + gradient.share(level, sums.room) * factor;
            (costs.partition_point(|sum| *sum as f64 <= limit) - 1).max(from)
        };
        let mut raw = until(Level::Raw, 0);
        let newest = NEWEST.min(sums.turns);
        let of_newest = sums.cost(0, newest, Level::Raw) as f64;
        if raw < newest && of_newest <= f64::from(sums.room) * NEWEST_SHARE {
            raw = newest;
        }
        let smoothed = until(Level::Smoothed, raw);
        Self {
            raw,
            smoothed,
            compressed: until(Level::Compressed, smoothed),
            eras: 0,
        }
    }

    /// The oldest turns become eras, as few as must; the bands above give way only if even that is too much.
    fn make_eras(&mut self, sums: &Sums<'_>) {
        loop {
            let (mut low, mut high) = (0, (sums.turns - self.compressed) as u32 / SHORTEST);
            while low < high {
                let middle = (low + high) / 2;
                self.eras = middle * SHORTEST;
                if self.fit(sums) {
                    high = middle
                } else {
                    low = middle + 1
                }
            }
            self.eras = low * SHORTEST;
            if self.fit(sums) || self.compressed == 0 {
                return;
            }
            // Not even eras fit beside these bands.
            self.compressed = self.compressed * 3 / 4;
            self.smoothed = self.smoothed.min(self.compressed);
            self.raw = self.raw.min(self.compressed);
        }
    }

    /// What is left over makes single turns fuller, the newest first.
    fn grow(&mut self, sums: &Sums<'_>) {
        let told = sums.turns - self.eras as usize;
        loop {
            let mut tries = [*self; 3];
            tries[0].raw += 1;
            tries[1].smoothed += 1;
            tries[2].compressed += 1;
            let may = |cuts: &Self| {
                [cuts.raw, cuts.smoothed, cuts.compressed, told].is_sorted() && cuts.fit(sums)
            };
            match tries.into_iter().find(may) {
                Some(better) => *self = better,
                None => return,
            }
        }
    }

    /// Whether all of it fits into the room. Eras that are not written do not.
    fn fit(&self, sums: &Sums<'_>) -> bool {
        let Some(eras) = self.era_bands(sums) else {
            return false;
        };
        let told = sums.turns - self.eras as usize;
        let compressed = self.compressed.min(told);
        let block = |from, to, level| sums.block(from, to, level).map_or(0, |(_, cost)| cost);
        let cost = sums.cost(0, self.raw, Level::Raw)
            + sums.cost(self.raw, self.smoothed, Level::Smoothed)
            + block(self.smoothed, compressed, Level::Compressed)
            + block(compressed, told, Level::Tiny)
            + eras.iter().map(|era| u64::from(era.tokens)).sum::<u64>();
        cost <= u64::from(sums.room)
    }

    fn era_bands(&self, sums: &Sums<'_>) -> Option<Vec<Band>> {
        match self.eras {
            0 => Some(Vec::new()),
            turns => sums.eras.cover(turns),
        }
    }

    fn bands(&self, sums: &Sums<'_>) -> Vec<Band> {
        let told = sums.turns - self.eras as usize;
        let mut bands = self.era_bands(sums).unwrap_or_default();
        for (from, to, level) in [
            (self.compressed, told, Level::Tiny),
            (self.smoothed, self.compressed, Level::Compressed),
        ] {
            let block = sums.block(from, to, level);
            bands.extend(block.map(|(span, cost)| Band::new(span, cost as u32)));
        }
        for (from, to, level) in [
            (self.raw, self.smoothed, Level::Smoothed),
            (0, self.raw, Level::Raw),
        ] {
            bands.extend((from..to).rev().map(|at| {
                let span = Span::one(sums.number(at), level);
                Band::new(span, sums.cost(at, at + 1, level) as u32)
            }));
        }
        merged(bands, sums.room)
    }
}

/// Where not even eras fit, the oldest bands become one, of which nothing but its turns is told.
fn merged(mut bands: Vec<Band>, room: u32) -> Vec<Band> {
    let mut tokens: u32 = bands.iter().map(|band| band.tokens).sum();
    while tokens > room && bands.len() > 1 {
        let next = bands.remove(1);
        let (first, last) = (bands[0].span.first, next.span.last);
        let tags = Span::new(first, last, Level::Tiny).tokens();
        tokens = tokens - next.tokens - bands[0].tokens + tags;
        bands[0] = Band::era(first, last, tags);
    }
    if let [only] = &mut bands[..]
        && tokens > room
    {
        let Span { first, last, .. } = only.span;
        *only = Band::era(first, last, Span::new(first, last, Level::Tiny).tokens());
    }
    bands
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::Role;

    /// Eras of 32, 256, … turns, forty tokens each.
    struct Forty;

    impl Eras for Forty {
        fn cover(&self, turns: u32) -> Option<Vec<Band>> {
            let mut cover = Vec::new();
            let mut at = 0;
            for size in [32 * 8 * 8 * 8 * 8, 32 * 8 * 8 * 8, 32 * 8 * 8, 32 * 8, 32] {
                while at + size <= turns {
                    cover.push(Band::era(at + 1, at + size, 60));
                    at += size;
                }
            }
            (at == turns).then_some(cover)
        }
    }

    fn turns(count: usize, seed: u64) -> Vec<Numbers> {
        let mut state = seed;
        let turn = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let raw = 20 + (state >> 33) as u32 % 400;
            let tokens = [raw, raw * 6 / 10, raw * 35 / 100, (raw * 7 / 100).max(1)];
            Numbers {
                words: 9,
                speaker: 0,
                role: Role::User,
                tokens,
            }
        };
        (0..count).map(turn).collect()
    }

    fn check(turns: &[Numbers], budget: u32) -> Plan {
        let plan = plan(turns, &Gradient::new(budget), &Forty);
        let mut next = 1;
        for band in &plan.bands {
            assert_eq!(
                band.span.first,
                next,
                "a gap or an overlap with {} turns in {budget}",
                turns.len()
            );
            next = band.span.last + 1;
        }
        assert_eq!(next as usize, turns.len() + 1);
        assert!(
            plan.tokens + plan.reserve <= budget,
            "{} + {} of {budget}",
            plan.tokens,
            plan.reserve
        );
        assert!(
            plan.bands
                .is_sorted_by_key(|band| std::cmp::Reverse(band.span.level as u8))
        );
        plan
    }

    #[test]
    fn every_turn_once_within_budget_and_the_budget_used() {
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
                let plan = check(&turns, budget);
                let raw: u32 = (1..)
                    .zip(&turns)
                    .map(|(n, turn)| cost_alone(n, turn, Level::Raw))
                    .sum();
                let used = f64::from(plan.tokens + plan.reserve) / f64::from(budget);
                assert!(
                    raw < budget || used >= 0.9,
                    "{used} of {budget} used by {count} turns"
                );
            }
        }
    }

    #[test]
    fn everything_raw_where_it_fits_and_twenty_where_they_do() {
        let few = turns(10, 1);
        assert!(
            check(&few, 100_000)
                .bands
                .iter()
                .all(|band| band.span.level == Level::Raw)
        );
        let plan = check(&turns(1000, 2), 20_000);
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
    fn a_budget_that_is_much_too_small_is_kept_all_the_same() {
        for budget in [40, 60, 100, 300, 1_000] {
            check(&turns(5_000, 3), budget);
        }
        let mut huge = turns(40, 4);
        huge[39].tokens = [50_000, 30_000, 16_000, 4_000];
        check(&huge, 10_000);
        check(&huge, 2_000);
    }
}
