//! [`ChargedModel`]: the small model of the memory during and after a turn. Its requests are
//! charged to the budget of the turn, and are not sent when a limit is reached.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_memory::{SmallModel, SmallModelAnswer, SmallModelError};
use selvedge_protocol::Usage;

use crate::budget::Budget;

/// Bytes of a prompt that count as one token, until the provider reports the usage.
const BYTES_PER_TOKEN: usize = 4;

/// The budget of a turn, for a hook that spends from it.
#[derive(Debug, Clone)]
pub struct TurnCharge(pub(crate) Budget);

impl TurnCharge {
    /// Counts what was spent on the session after its last turn. The cost was charged then.
    pub(crate) fn count_late_usage(&self, usage: Usage, cost: f64) {
        if usage != Usage::default() || cost > 0.0 {
            // The memory stores 0 for a cost that is not known.
            self.0.count_usage(usage, (cost > 0.0).then_some(cost));
        }
    }
}

/// When a request is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ChargeTime {
    /// During the turn, in whose budget it counts.
    Turn,
    /// After the turn. The memory stores the usage for the next turn, which counts it.
    AfterTurn,
}

/// A small model whose requests are charged to the budget of a turn.
pub(crate) struct ChargedModel {
    pub(crate) model: Arc<dyn SmallModel>,
    pub(crate) charge: TurnCharge,
    pub(crate) time: ChargeTime,
}

/// The usage of a request. It is charged on drop, so that a request that takes too long is charged
/// as well.
struct SmallModelCharge<'a> {
    model: &'a ChargedModel,
    /// An estimate of the request, until the provider reports the usage; zero if it failed.
    usage: Usage,
    /// The cost that the model reported.
    cost: Option<f64>,
}

impl Drop for SmallModelCharge<'_> {
    fn drop(&mut self) {
        let ChargedModel {
            model,
            charge: TurnCharge(budget),
            time,
        } = self.model;
        let cost = self.cost.or_else(|| model.cost_of(&self.usage));
        if let Some(cost) = cost {
            budget.charge(cost);
        }
        match time {
            ChargeTime::Turn => budget.count_usage(self.usage, cost),
            ChargeTime::AfterTurn => {}
        }
    }
}

impl SmallModel for ChargedModel {
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        async move { Ok(self.ask_counted(prompt).await?.text) }.boxed()
    }

    fn ask_counted<'a>(
        &'a self,
        prompt: &'a str,
    ) -> BoxFuture<'a, Result<SmallModelAnswer, SmallModelError>> {
        async move {
            let TurnCharge(budget) = &self.charge;
            if budget.limits_cost() && self.model.cost_of(&Usage::default()).is_none() {
                let reason = "the cost is limited, and its prices are not known";
                return Err(SmallModelError::Unavailable(reason.to_owned()));
            }
            if let Some(end) = budget.spending_limit().await {
                let reason = format!("the budget is used up ({})", end.as_str());
                return Err(SmallModelError::Unavailable(reason));
            }
            let mut charge = SmallModelCharge {
                model: self,
                usage: Usage {
                    input_tokens: (prompt.len() / BYTES_PER_TOKEN) as u64,
                    ..Usage::default()
                },
                cost: None,
            };
            let answer = self.model.ask_counted(prompt).await;
            match &answer {
                Ok(answer) => (charge.usage, charge.cost) = (answer.usage, answer.cost),
                // A request that failed costs nothing.
                Err(_) => charge.usage = Usage::default(),
            }
            answer
        }
        .boxed()
    }

    fn context_tokens(&self) -> u32 {
        self.model.context_tokens()
    }

    fn cost_of(&self, usage: &Usage) -> Option<f64> {
        self.model.cost_of(usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BudgetLimits;
    use crate::budget::BudgetSpent;

    #[test]
    fn late_usage_without_a_known_price_has_no_cost() {
        let budget = Budget::new(BudgetLimits::default(), BudgetSpent::default());
        let charge = TurnCharge(budget.clone());
        let usage = Usage {
            input_tokens: 100,
            ..Usage::default()
        };
        charge.count_late_usage(usage, 0.0);
        assert_eq!(budget.spent().usage, usage);
        assert_eq!(budget.spent().cost, None);
        charge.count_late_usage(usage, 0.5);
        assert_eq!(budget.spent().cost, Some(0.5));
    }
}
