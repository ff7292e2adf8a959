//! Counts the rounds, tokens, cost and time of turns against their limits. The budget of a
//! sub-agent is nested in the budget of its parent: its requests count in both.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use selvedge_protocol::{TurnEnd, Usage};

use crate::Allowance;

/// A budget. Clones share their state.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    allowed: Allowance,
    began: Instant,
    spent: Mutex<Spent>,
    /// The budget in which this one is nested.
    above: Option<Budget>,
}

/// The amounts spent so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Spent {
    /// The number of requests to the model.
    pub(crate) rounds: u32,
    pub(crate) usage: Usage,
    /// The cost, in the currency of the model's prices; `None` if no prices are known.
    pub(crate) cost: Option<f64>,
}

impl Budget {
    /// Creates a budget that is not nested. `spent` has already been used.
    pub(crate) fn new(allowed: Allowance, spent: Spent) -> Self {
        Self::under(None, allowed, spent)
    }

    /// Creates a budget nested in this one. `spent` has already been used, and this budget counts
    /// it already.
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

    /// Counts one request and its usage, here and in the budgets above.
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

    /// Returns the amounts spent so far.
    pub(crate) fn spent(&self) -> Spent {
        *self.0.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the limit that was reached, here or in a budget above.
    pub(crate) fn reached(&self) -> Option<TurnEnd> {
        let (allowed, spent) = (&self.0.allowed, self.spent());
        let usage = &spent.usage;
        let tokens = usage.input_tokens.saturating_add(usage.output_tokens);
        let cost = spent.cost.unwrap_or(0.0);
        if allowed.rounds.is_some_and(|rounds| spent.rounds >= rounds) {
            Some(TurnEnd::MaxRounds)
        } else if allowed.tokens.is_some_and(|limit| tokens >= limit) {
            Some(TurnEnd::MaxTokens)
        } else if allowed.cost.is_some_and(|limit| cost >= limit) {
            Some(TurnEnd::MaxCost)
        } else if allowed
            .time
            .is_some_and(|limit| self.0.began.elapsed() >= limit)
        {
            Some(TurnEnd::MaxTime)
        } else {
            self.0.above.as_ref().and_then(Self::reached)
        }
    }

    /// Returns whether the cost is limited, here or in a budget above.
    pub(crate) fn limits_cost(&self) -> bool {
        self.0.allowed.cost.is_some() || self.0.above.as_ref().is_some_and(Self::limits_cost)
    }

    /// Returns whether only one more request may be made.
    pub(crate) fn is_last_round(&self) -> bool {
        let next = self.spent().rounds + 1;
        let here = self.0.allowed.rounds.is_some_and(|limit| next >= limit);
        here || self.0.above.as_ref().is_some_and(Self::is_last_round)
    }

    /// Returns whether the last request used up the rounds, unless only one round was allowed.
    pub(crate) fn was_last_round(&self) -> bool {
        let spent = self.spent().rounds;
        spent > 1 && self.0.allowed.rounds.is_some_and(|rounds| spent >= rounds)
    }

    /// Returns the earliest deadline of this budget and those above.
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
    fn requests_of_a_nested_budget_count_in_the_budgets_above() {
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
        let cost_limit = Allowance {
            cost: Some(1.0),
            ..Allowance::default()
        };
        let child = turn.within(cost_limit, Spent::default());
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
