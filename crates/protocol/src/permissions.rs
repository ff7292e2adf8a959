//! The permissions that a turn of one session passes on to turns of other sessions.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{ApprovalPolicy, SandboxPolicy};

/// What a turn may do at most, because a script or an agent with these permissions started it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnPermissions {
    /// The originator's sandbox.
    pub sandbox: SandboxPolicy,
    /// The originator's approval policy.
    pub approval: ApprovalPolicy,
    /// Whether commands reach the network.
    #[serde(default)]
    pub network: bool,
    /// Tool packs, all of which have to contain a tool that the turn uses.
    pub tool_packs: Vec<String>,
    /// Names of the only tools that the turn can use. `None` if the packs alone decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Folder that the turn has to work in.
    pub workspace: String,
    /// Whether it may work in folders below as well.
    #[serde(default)]
    pub reach: WorkspaceReach,
    /// Tokens that are left of the originator's budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// The remaining money of the originator's budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<f64>,
}

/// Which folders of a workspace a turn may work in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceReach {
    /// The workspace and the folders below it: those of a person.
    #[default]
    WithSubfolders,
    /// The workspace only: a client of the agent server cannot use sessions in folders below.
    FolderOnly,
}

/// Tokens and money of a budget; `None` without a limit.
pub type BudgetAmounts = (Option<u64>, Option<f64>);

/// What the turns that a call starts get of the remaining budget of its own turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetShare {
    /// All that is left: the call starts no turn.
    Rest,
    /// Half of what is left. It is reserved until the call has waited for the turns.
    Half,
}

/// Returns the amounts for `some` of `all` turns that share a budget equally.
pub fn share_of_budget((tokens, cost): BudgetAmounts, all: u32, some: u32) -> BudgetAmounts {
    let all = all.max(1);
    (
        tokens.map(|tokens| (tokens / u64::from(all)).saturating_mul(u64::from(some))),
        cost.map(|cost| cost / f64::from(all) * f64::from(some)),
    )
}

/// Tells the remaining budgets of turns. In all methods a run names the turn that it belongs to; a
/// run that belongs to no turn has no limits.
pub trait TurnBudgets: Send + Sync {
    /// Returns what is left of the budget of a turn.
    fn remaining_budget(&self, run: &str) -> BudgetAmounts;
    /// Reserves half of what is left, and returns it.
    fn reserve_half(&self, run: &str) -> BudgetAmounts;
    /// Releases amounts that were reserved, because no turn was started, or what it used counts.
    fn release(&self, run: &str, amounts: BudgetAmounts);
    /// Returns the names of the tools of the sub-agent that a run belongs to; `None` if the run
    /// belongs to no sub-agent.
    fn sub_agent_tools(&self, run: &str) -> Option<Vec<String>>;
}

impl TurnPermissions {
    /// Returns these permissions with a share of the remaining budget of the turn of a run, and
    /// with the tools of the sub-agent if it belongs to one.
    pub fn of_turn(
        &self,
        run: &str,
        budgets: Option<&dyn TurnBudgets>,
        share: BudgetShare,
    ) -> Self {
        let left = budgets.map(|budgets| match share {
            BudgetShare::Rest => budgets.remaining_budget(run),
            BudgetShare::Half => budgets.reserve_half(run),
        });
        let (max_tokens, max_cost) = left.unwrap_or_default();
        let tools = budgets.and_then(|budgets| budgets.sub_agent_tools(run));
        Self {
            tools: tools.or_else(|| self.tools.clone()),
            max_tokens,
            max_cost,
            ..self.clone()
        }
    }

    /// Returns these permissions for one of several turns that share the budget equally.
    pub fn for_one_of(&self, turns: u32) -> Self {
        let (max_tokens, max_cost) = share_of_budget(self.budget(), turns, 1);
        Self {
            max_tokens,
            max_cost,
            ..self.clone()
        }
    }

    /// Returns the budget of the turn.
    pub fn budget(&self) -> BudgetAmounts {
        (self.max_tokens, self.max_cost)
    }

    /// Returns whether a turn may work in this folder.
    pub fn allows_workspace(&self, directory: &str) -> bool {
        match self.reach {
            WorkspaceReach::WithSubfolders => Path::new(directory).starts_with(&self.workspace),
            WorkspaceReach::FolderOnly => directory == self.workspace,
        }
    }

    /// Returns permissions that allow only what both allow. The workspace is that of `self`.
    pub fn restricted_by(mut self, other: &Self) -> Self {
        self.sandbox = self.sandbox.stricter(other.sandbox);
        self.approval = self.approval.stricter(other.approval);
        self.network &= other.network;
        for pack in &other.tool_packs {
            if !self.tool_packs.contains(pack) {
                self.tool_packs.push(pack.clone());
            }
        }
        if let Some(allowed) = &other.tools {
            let own = self.tools.get_or_insert_with(|| allowed.clone());
            own.retain(|tool| allowed.contains(tool));
        }
        let least =
            |one: Option<f64>, two: Option<f64>| one.into_iter().chain(two).reduce(f64::min);
        self.max_tokens = self.max_tokens.into_iter().chain(other.max_tokens).min();
        self.max_cost = least(self.max_cost, other.max_cost);
        self
    }
}

impl SandboxPolicy {
    /// Returns the one of two policies that allows less.
    pub fn stricter(self, other: Self) -> Self {
        let rank = |policy: Self| match policy {
            Self::ReadOnly => 0,
            Self::WorkspaceWrite => 1,
            Self::DangerFullAccess => 2,
        };
        match rank(other) < rank(self) {
            true => other,
            false => self,
        }
    }
}

impl ApprovalPolicy {
    /// Returns the one of two policies that runs fewer calls without asking a person.
    pub fn stricter(self, other: Self) -> Self {
        let rank = |policy: Self| match policy {
            Self::Untrusted => 0,
            Self::OnRequest => 1,
            Self::OnFailure => 2,
            Self::Never => 3,
        };
        match rank(other) < rank(self) {
            true => other,
            false => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restricted_permissions_allow_only_what_both_allow() {
        let one = TurnPermissions {
            sandbox: SandboxPolicy::DangerFullAccess,
            approval: ApprovalPolicy::OnRequest,
            network: true,
            tool_packs: vec!["mine".into()],
            tools: Some(vec!["exec".into(), "read_file".into()]),
            workspace: "/w/a".into(),
            reach: WorkspaceReach::FolderOnly,
            max_tokens: Some(10),
            max_cost: None,
        };
        let two = TurnPermissions {
            sandbox: SandboxPolicy::ReadOnly,
            approval: ApprovalPolicy::Never,
            network: false,
            tool_packs: vec!["mine".into(), "research".into()],
            tools: Some(vec!["read_file".into(), "http".into()]),
            workspace: "/w".into(),
            reach: WorkspaceReach::WithSubfolders,
            max_tokens: Some(5),
            max_cost: Some(0.5),
        };
        assert!(two.allows_workspace("/w/a") && !two.allows_workspace("/wa"));
        assert!(one.allows_workspace("/w/a") && !one.allows_workspace("/w/a/b"));
        let both = one.restricted_by(&two);
        assert_eq!(both.sandbox, SandboxPolicy::ReadOnly);
        assert_eq!(both.approval, ApprovalPolicy::OnRequest);
        assert!(!both.network);
        assert_eq!(both.tool_packs, ["mine", "research"]);
        assert_eq!(both.tools, Some(vec!["read_file".to_owned()]));
        assert_eq!((both.max_tokens, both.max_cost), (Some(5), Some(0.5)));
    }
}
