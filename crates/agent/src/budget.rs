//! Counts the requests, tokens, cost and time of turns against their limits. The budget of a
//! sub-agent is nested in the budget of its parent: its requests count in both.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use selvedge_protocol::{BudgetAmounts, RequestDecision, RequestGate, TurnEnd, Usage};

use crate::BudgetLimits;

/// A budget. Clones share their state.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<BudgetInner>);

#[derive(Debug)]
struct BudgetInner {
    limits: BudgetLimits,
    started_at: Instant,
    spent: Mutex<BudgetSpent>,
    /// Tokens and money for turns of other sessions, for which this turn does not wait.
    reserved: Mutex<(u64, f64)>,
    /// The budget in which this one is nested.
    parent: Option<Budget>,
    /// Decides about requests of this budget and those nested in it.
    gate: Option<Arc<dyn RequestGate>>,
}

/// The amounts spent so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct BudgetSpent {
    /// The number of requests to the model.
    pub(crate) requests: u32,
    pub(crate) usage: Usage,
    /// The cost, in the currency of the model's prices; `None` if no prices are known.
    pub(crate) cost: Option<f64>,
}

impl Budget {
    /// Creates a budget that is not nested. `spent` has already been used.
    pub(crate) fn new(limits: BudgetLimits, spent: BudgetSpent) -> Self {
        Self::with_parent(None, limits, spent, None)
    }

    /// Creates a budget nested in this one. It starts with `spent`, which this budget has already
    /// counted. The gate decides about its requests.
    pub(crate) fn child(
        &self,
        limits: BudgetLimits,
        spent: BudgetSpent,
        gate: Option<Arc<dyn RequestGate>>,
    ) -> Self {
        Self::with_parent(Some(self.clone()), limits, spent, gate)
    }

    fn with_parent(
        parent: Option<Self>,
        limits: BudgetLimits,
        spent: BudgetSpent,
        gate: Option<Arc<dyn RequestGate>>,
    ) -> Self {
        Self(Arc::new(BudgetInner {
            limits,
            started_at: Instant::now(),
            spent: Mutex::new(spent),
            reserved: Mutex::default(),
            parent,
            gate,
        }))
    }

    /// Returns the gate of this budget, or of the nearest one above that has one.
    fn gate(&self) -> Option<&Arc<dyn RequestGate>> {
        let parent = self.0.parent.as_ref();
        self.0.gate.as_ref().or_else(|| parent.and_then(Self::gate))
    }

    /// Waits until a request may be sent. Returns the limit that was reached, if it may not.
    pub(crate) async fn before_request(&self) -> Option<TurnEnd> {
        if let Some(end) = self.reached_limit() {
            return Some(end);
        }
        match self.gate()?.before_request().await {
            RequestDecision::Allowed => None,
            RequestDecision::NothingLeft => Some(TurnEnd::MaxCost),
        }
    }

    /// Stores the costs of the requests so far, so that other turns see them.
    pub(crate) async fn settle(&self) {
        if let Some(gate) = self.gate() {
            gate.settle().await;
        }
    }

    /// Returns the limit that forbids to spend more on the turn, if there is one. Does not wait
    /// until the turn may go on.
    pub(crate) async fn spending_limit(&self) -> Option<TurnEnd> {
        if let Some(end) = self.reached_limit() {
            return Some(end);
        }
        match self.gate()?.money_left().await {
            RequestDecision::Allowed => None,
            RequestDecision::NothingLeft => Some(TurnEnd::MaxCost),
        }
    }

    /// Charges the cost of a request.
    pub(crate) fn charge(&self, cost: f64) {
        if let Some(gate) = self.gate() {
            gate.add_cost(cost);
        }
    }

    /// Counts one request and its usage, here and in the budgets above, and charges its cost.
    pub(crate) fn add_request(&self, usage: Usage, cost: Option<f64>) {
        if let Some(cost) = cost {
            self.charge(cost);
        }
        self.count_request(usage, cost);
    }

    /// Counts what a turn of another session used, here and in the budgets above. That turn has
    /// charged the cost.
    pub(crate) fn count_request(&self, usage: Usage, cost: Option<f64>) {
        self.count(1, usage, cost);
    }

    /// Counts tokens and cost that belong to no round of the turn, here and in the budgets above:
    /// those of the memory's small model.
    pub(crate) fn count_usage(&self, usage: Usage, cost: Option<f64>) {
        self.count(0, usage, cost);
    }

    fn count(&self, requests: u32, usage: Usage, cost: Option<f64>) {
        let mut spent = self.0.spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.requests += requests;
        spent.usage += usage;
        if let Some(cost) = cost {
            *spent.cost.get_or_insert(0.0) += cost;
        }
        drop(spent);
        if let Some(parent) = &self.0.parent {
            parent.count(requests, usage, cost);
        }
    }

    /// Returns the amounts spent so far.
    pub(crate) fn spent(&self) -> BudgetSpent {
        *self.0.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the limit that was reached, here or in a budget above.
    pub(crate) fn reached_limit(&self) -> Option<TurnEnd> {
        let (limits, spent) = (&self.0.limits, self.spent());
        let usage = &spent.usage;
        let (reserved_tokens, reserved_cost) = self.reserved();
        let tokens = usage.input_tokens.saturating_add(usage.output_tokens);
        let tokens = tokens.saturating_add(reserved_tokens);
        let cost = spent.cost.unwrap_or(0.0) + reserved_cost;
        if limits
            .max_rounds
            .is_some_and(|limit| spent.requests >= limit)
        {
            Some(TurnEnd::MaxRounds)
        } else if limits.max_tokens.is_some_and(|limit| tokens >= limit) {
            Some(TurnEnd::MaxTokens)
        } else if limits.max_cost.is_some_and(|limit| cost >= limit) {
            Some(TurnEnd::MaxCost)
        } else if limits
            .max_time
            .is_some_and(|limit| self.0.started_at.elapsed() >= limit)
        {
            Some(TurnEnd::MaxTime)
        } else {
            self.0.parent.as_ref().and_then(Self::reached_limit)
        }
    }

    /// Returns the tokens and the money that are left, here and in the budgets above; `None`
    /// without a limit.
    pub(crate) fn remaining(&self) -> BudgetAmounts {
        let (limits, spent) = (&self.0.limits, self.spent());
        let (reserved_tokens, reserved_cost) = self.reserved();
        let used = spent.usage.input_tokens + spent.usage.output_tokens;
        let used = used.saturating_add(reserved_tokens);
        let tokens = limits.max_tokens.map(|limit| limit.saturating_sub(used));
        let cost = spent.cost.unwrap_or(0.0) + reserved_cost;
        let cost = limits.max_cost.map(|limit| (limit - cost).max(0.0));
        let parent = self.0.parent.as_ref().map(Self::remaining);
        let (parent_tokens, parent_cost) = parent.unwrap_or_default();
        (
            tokens.into_iter().chain(parent_tokens).min(),
            cost.into_iter().chain(parent_cost).reduce(f64::min),
        )
    }

    /// Returns what is reserved.
    fn reserved(&self) -> (u64, f64) {
        *self
            .0
            .reserved
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn change_reserved(&self, change: &dyn Fn(&mut (u64, f64))) {
        change(
            &mut self
                .0
                .reserved
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        if let Some(parent) = &self.0.parent {
            parent.change_reserved(change);
        }
    }

    /// Reserves half of what is left for turns of other sessions, and returns it. So the turns
    /// for which this one does not wait have no more together than it had.
    pub(crate) fn reserve_half(&self) -> BudgetAmounts {
        // Calls at the same time must not each get half of the same rest.
        static RESERVING: Mutex<()> = Mutex::new(());
        let _reserving = RESERVING.lock().unwrap_or_else(PoisonError::into_inner);
        let (tokens, cost) = self.remaining();
        let cost = match self.reserves_cost() {
            true => cost.map(|cost| cost / 2.0),
            false => cost,
        };
        let half = (tokens.map(|tokens| tokens / 2), cost);
        self.reserve(half);
        half
    }

    /// Whether money is reserved. It is not if the token that pays limits the turns together.
    fn reserves_cost(&self) -> bool {
        !self.gate().is_some_and(|gate| gate.limits_cost_of_all())
    }

    /// Reserves amounts for turns of other sessions, here and in the budgets above.
    pub(crate) fn reserve(&self, (tokens, cost): BudgetAmounts) {
        let cost = cost.filter(|_| self.reserves_cost());
        let (tokens, cost) = (tokens.unwrap_or(0), cost.unwrap_or(0.0));
        self.change_reserved(&|reserved| {
            *reserved = (reserved.0.saturating_add(tokens), reserved.1 + cost);
        });
    }

    /// Releases amounts that were reserved.
    pub(crate) fn release(&self, (tokens, cost): BudgetAmounts) {
        let cost = cost.filter(|_| self.reserves_cost());
        let (tokens, cost) = (tokens.unwrap_or(0), cost.unwrap_or(0.0));
        self.change_reserved(&|reserved| {
            *reserved = (
                reserved.0.saturating_sub(tokens),
                (reserved.1 - cost).max(0.0),
            );
        });
    }

    /// Returns whether the cost is limited, here or in a budget above.
    pub(crate) fn limits_cost(&self) -> bool {
        self.0.limits.max_cost.is_some() || self.0.parent.as_ref().is_some_and(Self::limits_cost)
    }

    /// Returns whether only one more request may be made.
    pub(crate) fn next_round_is_last(&self) -> bool {
        let next = self.spent().requests + 1;
        let own = self.0.limits.max_rounds.is_some_and(|limit| next >= limit);
        own || self.0.parent.as_ref().is_some_and(Self::next_round_is_last)
    }

    /// Returns whether no round is left. False if only one round was allowed: its answer may call
    /// tools.
    pub(crate) fn was_last_round(&self) -> bool {
        let spent = self.spent().requests;
        spent > 1 && self.0.limits.max_rounds.is_some_and(|limit| spent >= limit)
    }

    /// Returns the earliest deadline of this budget and those above.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let own = self.0.limits.max_time.map(|time| self.0.started_at + time);
        let parent = self.0.parent.as_ref().and_then(Self::deadline);
        own.into_iter().chain(parent).min()
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

    /// A gate with some money.
    #[derive(Debug)]
    struct Purse(Mutex<f64>);

    #[async_trait::async_trait]
    impl RequestGate for Purse {
        async fn before_request(&self) -> RequestDecision {
            match *self.0.lock().unwrap_or_else(PoisonError::into_inner) > 0.0 {
                true => RequestDecision::Allowed,
                false => RequestDecision::NothingLeft,
            }
        }

        async fn money_left(&self) -> RequestDecision {
            self.before_request().await
        }

        fn limits_cost_of_all(&self) -> bool {
            true
        }

        fn add_cost(&self, cost: f64) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) -= cost;
        }

        async fn settle(&self) {}
    }

    #[tokio::test]
    async fn a_gate_decides_about_the_requests_of_nested_budgets_too() {
        let purse = Arc::new(Purse(Mutex::new(1.0)));
        let session = Budget::new(BudgetLimits::default(), BudgetSpent::default());
        let none = BudgetLimits::default;
        let turn = session.child(none(), BudgetSpent::default(), Some(purse));
        let sub_agent = turn.child(none(), BudgetSpent::default(), None);
        // A turn of another session has paid for itself.
        turn.count_request(usage(1), Some(5.0));
        assert_eq!(sub_agent.before_request().await, None);
        sub_agent.add_request(usage(1), Some(1.0));
        assert_eq!(turn.before_request().await, Some(TurnEnd::MaxCost));
        assert_eq!(sub_agent.before_request().await, Some(TurnEnd::MaxCost));
        assert_eq!(turn.spent().cost, Some(6.0));
        // Other turns of the session have gates of their own.
        assert_eq!(session.before_request().await, None);
    }

    #[test]
    fn requests_of_a_nested_budget_count_in_the_budgets_above() {
        let session = Budget::new(
            BudgetLimits {
                max_tokens: Some(100),
                ..BudgetLimits::default()
            },
            BudgetSpent::default(),
        );
        let three_rounds = BudgetLimits {
            max_rounds: Some(3),
            ..BudgetLimits::default()
        };
        let turn = session.child(three_rounds, BudgetSpent::default(), None);
        let cost_limit = BudgetLimits {
            max_cost: Some(1.0),
            ..BudgetLimits::default()
        };
        let child = turn.child(cost_limit, BudgetSpent::default(), None);
        child.add_request(usage(10), Some(0.5));
        assert_eq!(child.reached_limit(), None);
        assert_eq!(child.remaining(), (Some(89), Some(0.5)));
        child.add_request(usage(10), Some(0.5));
        assert_eq!(child.reached_limit(), Some(TurnEnd::MaxCost));
        assert!(turn.next_round_is_last() && turn.reached_limit().is_none());
        turn.add_request(usage(90), None);
        assert_eq!(
            (turn.reached_limit(), session.reached_limit()),
            (Some(TurnEnd::MaxRounds), Some(TurnEnd::MaxTokens))
        );
        assert_eq!(session.spent().requests, 3);
    }
    #[test]
    fn turns_that_nothing_waits_for_have_no_more_together_than_is_left() {
        let limits = BudgetLimits {
            max_tokens: Some(1000),
            max_cost: Some(8.0),
            ..BudgetLimits::default()
        };
        let session = Budget::new(limits, BudgetSpent::default());
        let turn = session.child(BudgetLimits::default(), BudgetSpent::default(), None);
        turn.add_request(usage(199), Some(4.0));
        assert_eq!(turn.remaining(), (Some(800), Some(4.0)));
        let given: Vec<BudgetAmounts> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..12)
                .map(|_| scope.spawn(|| turn.reserve_half()))
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join().unwrap());
            joined.collect()
        });
        let tokens: u64 = given.iter().filter_map(|(tokens, _)| *tokens).sum();
        let cost: f64 = given.iter().filter_map(|(_, cost)| *cost).sum();
        assert!((790..=800).contains(&tokens), "{given:?}");
        assert!((3.9..=4.0).contains(&cost), "{given:?}");
        // A later turn of the session has no more either.
        let later = session.child(BudgetLimits::default(), BudgetSpent::default(), None);
        assert_eq!(later.remaining().0, Some(800 - tokens));
        // What no turn got is there again.
        for amounts in given {
            turn.release(amounts);
        }
        assert_eq!(turn.remaining().0, Some(800));
        turn.reserve((Some(800), None));
        assert_eq!(turn.reached_limit(), Some(TurnEnd::MaxTokens));
        // The token that pays counts the money of all turns itself.
        let paid = session.child(
            BudgetLimits::default(),
            BudgetSpent::default(),
            Some(Arc::new(Purse(Mutex::new(1.0)))),
        );
        let left = later.remaining().1;
        assert_eq!(paid.reserve_half().1, left);
        assert_eq!(later.remaining().1, left);
        let unlimited = Budget::new(BudgetLimits::default(), BudgetSpent::default());
        assert_eq!(unlimited.reserve_half(), (None, None));
        assert_eq!(unlimited.reached_limit(), None);
    }
}
