//! The gradient, without a database: which turns of a session are told how, so that all of them fit.
//!
//! Oldest first: eras, then tiny, compressed, smoothed and raw turns. Each band gets its share of the budget; what a
//! band leaves over goes to the others, the fullest first. Every turn is covered exactly once.

use serde::Serialize;

use crate::columns::Numbers;
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
    /// Eras that cover exactly this many turns from the first on, with their tokens. `None` where they are not written.
    fn cover(&self, turns: u32) -> Option<Vec<(u32, u32, u32)>>;
    /// The number of turns eras end at, at or before this one.
    fn boundary(&self, turns: u32) -> u32;
    /// Turns in the smallest era.
    fn step(&self) -> u32;
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
    let room = gradient.budget - reserve;
    let sums = Sums::of(turns);
    let cuts = match sums.raw[turns.len()] <= room.into() {
        true => Cuts {
            raw: turns.len(),
            smoothed: turns.len(),
            compressed: turns.len(),
            eras: 0,
        },
        false => Cuts::chosen(&sums, gradient, room, eras),
    };
    let bands = cuts.bands(&sums, eras, room);
    let tokens = bands.iter().map(|band| band.tokens).sum();
    Plan {
        bands,
        tokens,
        reserve,
    }
}

/// Room for nine more turns like the last ones.
fn reserve(turns: &[Numbers], budget: u32) -> u32 {
    let last = turns.len().saturating_sub(TYPICAL);
    let costs = turns[last..].iter().enumerate();
    let costs: Vec<f64> = costs
        .map(|(at, numbers)| f64::from(cost_alone((last + at + 1) as u32, numbers, Level::Raw)))
        .collect();
    let mean = costs.iter().sum::<f64>() / costs.len().max(1) as f64;
    let spread = (costs.iter().map(|cost| (cost - mean).powi(2)).sum::<f64>()
        / costs.len().max(1) as f64)
        .sqrt();
    // The sum of nine spreads three times as far as one: twice that is room enough nearly always.
    let wanted = f64::from(PERIOD - 1) * mean + 6.0 * spread;
    wanted.min(f64::from(budget) * RESERVE_SHARE) as u32
}

/// What the newest turns cost at each level: sums from the newest backwards.
struct Sums {
    turns: usize,
    raw: Vec<u64>,
    smoothed: Vec<u64>,
    compressed: Vec<u64>,
    tiny: Vec<u64>,
}

impl Sums {
    fn of(turns: &[Numbers]) -> Self {
        let sum = |cost: &dyn Fn(u32, &Numbers) -> u32| {
            let mut sums = Vec::with_capacity(turns.len() + 1);
            let mut sum = 0_u64;
            sums.push(0);
            for (at, numbers) in turns.iter().enumerate().rev() {
                sum += u64::from(cost(at as u32 + 1, numbers));
                sums.push(sum);
            }
            sums
        };
        Self {
            turns: turns.len(),
            raw: sum(&|number, numbers| cost_alone(number, numbers, Level::Raw)),
            smoothed: sum(&|number, numbers| cost_alone(number, numbers, Level::Smoothed)),
            compressed: sum(&|number, numbers| cost_in_block(number, numbers, Level::Compressed)),
            tiny: sum(&|number, numbers| cost_in_block(number, numbers, Level::Tiny)),
        }
    }

    /// The number of a turn, counted from the newest, which is 0.
    fn number(&self, from_newest: usize) -> u32 {
        (self.turns - from_newest) as u32
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
    fn chosen(sums: &Sums, gradient: &Gradient, room: u32, eras: &dyn Eras) -> Self {
        let fits = |cuts: &Self| {
            cuts.cost(sums, eras)
                .is_some_and(|cost| cost <= u64::from(room))
        };
        let usual = Self::scaled(sums, gradient, room, 1.0);
        let mut cuts = usual;
        if fits(&usual) {
            // Everything is told: the bands grow together as long as that holds.
            let (mut low, mut high) = (1.0, 4.0);
            for _ in 0..24 {
                let middle = (low + high) / 2.0;
                let tried = Self::scaled(sums, gradient, room, middle);
                if fits(&tried) {
                    (low, cuts) = (middle, tried);
                } else {
                    high = middle;
                }
            }
        } else {
            cuts = Self::with_eras(usual, sums, room, eras);
        }
        cuts.grow(sums, room, eras);
        cuts
    }

    /// Each band as long as its share, times a factor, lets it be.
    fn scaled(sums: &Sums, gradient: &Gradient, room: u32, factor: f64) -> Self {
        let until = |sums: &[u64], from: usize, share: f64| {
            let limit = sums[from] as f64 + share * factor;
            (sums.partition_point(|sum| *sum as f64 <= limit) - 1).max(from)
        };
        let mut raw = until(&sums.raw, 0, gradient.share(Level::Raw, room));
        let newest = NEWEST.min(sums.turns);
        if raw < newest && sums.raw[newest] as f64 <= f64::from(room) * NEWEST_SHARE {
            raw = newest;
        }
        let smoothed = until(&sums.smoothed, raw, gradient.share(Level::Smoothed, room));
        let compressed = until(
            &sums.compressed,
            smoothed,
            gradient.share(Level::Compressed, room),
        );
        Self {
            raw,
            smoothed,
            compressed,
            eras: 0,
        }
    }

    /// The oldest turns become eras, as few as must; the bands above give way only if even that is too much.
    fn with_eras(mut cuts: Self, sums: &Sums, room: u32, eras: &dyn Eras) -> Self {
        let fits = |cuts: &Self| {
            cuts.cost(sums, eras)
                .is_some_and(|cost| cost <= u64::from(room))
        };
        loop {
            let most = eras.boundary((sums.turns - cuts.compressed) as u32) / eras.step();
            let (mut low, mut high) = (0, most);
            while low < high {
                let middle = (low + high) / 2;
                if fits(&Self {
                    eras: middle * eras.step(),
                    ..cuts
                }) {
                    high = middle
                } else {
                    low = middle + 1
                }
            }
            cuts.eras = low * eras.step();
            if fits(&cuts) || cuts.compressed == 0 {
                return cuts;
            }
            // Not even eras fit beside these bands.
            cuts.compressed = cuts.compressed * 3 / 4;
            cuts.smoothed = cuts.smoothed.min(cuts.compressed);
            cuts.raw = cuts.raw.min(cuts.compressed);
        }
    }

    /// What is left over makes single turns fuller, the newest first.
    fn grow(&mut self, sums: &Sums, room: u32, eras: &dyn Eras) {
        let told = sums.turns - self.eras as usize;
        loop {
            let mut tries = [*self; 3];
            tries[0].raw += 1;
            tries[1].smoothed += 1;
            tries[2].compressed += 1;
            let may = |cuts: &Self| {
                cuts.raw <= cuts.smoothed
                    && cuts.smoothed <= cuts.compressed
                    && cuts.compressed <= told
                    && cuts
                        .cost(sums, eras)
                        .is_some_and(|cost| cost <= u64::from(room))
            };
            match tries.into_iter().find(may) {
                Some(better) => *self = better,
                None => return,
            }
        }
    }

    fn cost(&self, sums: &Sums, eras: &dyn Eras) -> Option<u64> {
        let told = sums.turns - self.eras as usize;
        let block = |from: usize, to: usize, sums_of: &[u64], level| match to > from {
            false => 0,
            true => {
                sums_of[to] - sums_of[from] + u64::from(self.block(sums, from, to, level).tokens())
            }
        };
        let of_eras: u64 = match self.eras {
            0 => 0,
            turns => eras
                .cover(turns)?
                .iter()
                .map(|(.., tokens)| u64::from(*tokens))
                .sum(),
        };
        let compressed = self.compressed.min(told);
        Some(
            sums.raw[self.raw] + sums.smoothed[self.smoothed] - sums.smoothed[self.raw]
                + block(
                    self.smoothed,
                    compressed,
                    &sums.compressed,
                    Level::Compressed,
                )
                + block(compressed, told, &sums.tiny, Level::Tiny)
                + of_eras,
        )
    }

    fn block(&self, sums: &Sums, from: usize, to: usize, level: Level) -> Span {
        Span {
            first: sums.number(to - 1),
            last: sums.number(from),
            level,
        }
    }

    fn bands(&self, sums: &Sums, eras: &dyn Eras, room: u32) -> Vec<Band> {
        let mut bands = Vec::new();
        let told = sums.turns - self.eras as usize;
        let of_eras = if self.eras > 0 {
            eras.cover(self.eras).unwrap_or_default()
        } else {
            Vec::new()
        };
        for (first, last, tokens) in of_eras {
            bands.push(Band {
                span: Span {
                    first,
                    last,
                    level: Level::Tiny,
                },
                era: true,
                tokens,
            });
        }
        let mut block = |from: usize, to: usize, costs: &[u64], level| {
            if to > from {
                let span = self.block(sums, from, to, level);
                let tokens = (costs[to] - costs[from]) as u32 + span.tokens();
                bands.push(Band {
                    span,
                    era: false,
                    tokens,
                });
            }
        };
        block(self.compressed, told, &sums.tiny, Level::Tiny);
        block(
            self.smoothed,
            self.compressed,
            &sums.compressed,
            Level::Compressed,
        );
        for (from, to, costs, level) in [
            (self.raw, self.smoothed, &sums.smoothed, Level::Smoothed),
            (0, self.raw, &sums.raw, Level::Raw),
        ] {
            for at in (from..to).rev() {
                let tokens = (costs[at + 1] - costs[at]) as u32;
                bands.push(Band {
                    span: Span::one(sums.number(at), level),
                    era: false,
                    tokens,
                });
            }
        }
        merged(bands, room)
    }
}

/// Where not even eras fit, the oldest bands become one, of which nothing but its turns is told.
fn merged(mut bands: Vec<Band>, room: u32) -> Vec<Band> {
    let mut tokens: u32 = bands.iter().map(|band| band.tokens).sum();
    while tokens > room && bands.len() > 1 {
        let next = bands.remove(1);
        let span = Span {
            last: next.span.last,
            level: Level::Tiny,
            ..bands[0].span
        };
        tokens = tokens - next.tokens - bands[0].tokens + span.tokens();
        bands[0] = Band {
            span,
            era: true,
            tokens: span.tokens(),
        };
    }
    if let [only] = &mut bands[..]
        && tokens > room
    {
        only.span.level = Level::Tiny;
        only.era = true;
        only.tokens = only.span.tokens();
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
        fn cover(&self, turns: u32) -> Option<Vec<(u32, u32, u32)>> {
            let mut cover = Vec::new();
            let mut at = 0;
            for size in [32 * 8 * 8 * 8 * 8, 32 * 8 * 8 * 8, 32 * 8 * 8, 32 * 8, 32] {
                while at + size <= turns {
                    cover.push((at + 1, at + size, 60));
                    at += size;
                }
            }
            (at == turns).then_some(cover)
        }

        fn boundary(&self, turns: u32) -> u32 {
            turns / 32 * 32
        }

        fn step(&self) -> u32 {
            32
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
                .is_sorted_by_key(|band| std::cmp::Reverse(band.span.level))
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
