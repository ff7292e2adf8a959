//! What a turn has spent, and what is left. A sub-agent's budget lies inside its parent's: what it spends counts above.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use selvedge_protocol::{TurnEnd, Usage};

use crate::Allowance;

/// Counts against limits. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    allowed: Allowance,
    began: Instant,
    spent: Mutex<Spent>,
    above: Option<Budget>,
}

/// What was spent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Spent {
    pub(crate) rounds: u32,
    pub(crate) usage: Usage,
    /// Money, where prices are known.
    pub(crate) cost: Option<f64>,
}

impl Budget {
    /// A budget of its own, with something spent already.
    pub(crate) fn new(allowed: Allowance, spent: Spent) -> Self {
        Self::under(None, allowed, spent)
    }

    /// A budget inside this one, with something spent already that this one knows of.
    pub(crate) fn within(&self, allowed: Allowance, spent: Spent) -> Self {
        Self::under(Some(self.clone()), allowed, spent)
    }

    fn under(above: Option<Self>, allowed: Allowance, spent: Spent) -> Self {
        Self(Arc::new(Inner {
            allowed,
            began: Instant::now(),
            spent: Mutex::new(spent),
            above,
        }))
    }

    /// One more request was made, and took this.
    pub(crate) fn spend(&self, usage: Usage, cost: Option<f64>) {
        let mut spent = self.0.spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.rounds += 1;
        spent.usage += usage;
        if let Some(cost) = cost {
            *spent.cost.get_or_insert(0.0) += cost;
        }
        drop(spent);
        if let Some(above) = &self.0.above {
            above.spend(usage, cost);
        }
    }

    /// What was spent so far.
    pub(crate) fn spent(&self) -> Spent {
        *self.0.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limit that is reached, here or above.
    pub(crate) fn reached(&self) -> Option<TurnEnd> {
        let (allowed, spent) = (&self.0.allowed, self.spent());
        let usage = &spent.usage;
        let tokens = usage.input_tokens.saturating_add(usage.output_tokens);
        let cost = spent.cost.unwrap_or(0.0);
        if allowed.rounds.is_some_and(|rounds| spent.rounds >= rounds) {
            Some(TurnEnd::MaxRounds)
        } else if allowed.tokens.is_some_and(|most| tokens >= most) {
            Some(TurnEnd::MaxTokens)
        } else if allowed.cost.is_some_and(|most| cost >= most) {
            Some(TurnEnd::MaxCost)
        } else if allowed
            .time
            .is_some_and(|most| self.0.began.elapsed() >= most)
        {
            Some(TurnEnd::MaxTime)
        } else {
            self.0.above.as_ref().and_then(Self::reached)
        }
    }

    /// Whether money is limited, here or above.
    pub(crate) fn limits_cost(&self) -> bool {
        self.0.allowed.cost.is_some() || self.0.above.as_ref().is_some_and(Self::limits_cost)
    }

    /// Whether only one more request may be made.
    pub(crate) fn is_last_round(&self) -> bool {
        let next = self.spent().rounds + 1;
        let here = self.0.allowed.rounds.is_some_and(|most| next >= most);
        here || self.0.above.as_ref().is_some_and(Self::is_last_round)
    }

    /// Whether the last request that could be made was made, and not as the only one.
    pub(crate) fn was_last_round(&self) -> bool {
        let spent = self.spent().rounds;
        spent > 1 && self.0.allowed.rounds.is_some_and(|rounds| spent >= rounds)
    }

    /// When time is up, here or above.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let here = self.0.allowed.time.map(|time| self.0.began + time);
        let above = self.0.above.as_ref().and_then(Self::deadline);
        here.into_iter().chain(above).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(tokens: u64) -> Usage {
        Usage {
            input_tokens: tokens,
            output_tokens: 1,
            ..Usage::default()
        }
    }

    #[test]
    fn what_is_spent_inside_counts_above() {
        let session = Budget::new(
            Allowance {
                tokens: Some(100),
                ..Allowance::default()
            },
            Spent::default(),
        );
        let three_rounds = Allowance {
            rounds: Some(3),
            ..Allowance::default()
        };
        let turn = session.within(three_rounds, Spent::default());
        let one_coin = Allowance {
            cost: Some(1.0),
            ..Allowance::default()
        };
        let child = turn.within(one_coin, Spent::default());
        child.spend(usage(10), Some(0.5));
        assert_eq!(child.reached(), None);
        child.spend(usage(10), Some(0.5));
        assert_eq!(child.reached(), Some(TurnEnd::MaxCost));
        assert!(turn.is_last_round() && turn.reached().is_none());
        turn.spend(usage(90), None);
        assert_eq!(
            (turn.reached(), session.reached()),
            (Some(TurnEnd::MaxRounds), Some(TurnEnd::MaxTokens))
        );
        assert_eq!(session.spent().rounds, 3);
    }
}
