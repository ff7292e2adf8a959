//! The states of a run and their transitions. No other module changes a run's state.

use selvedge_protocol::ScriptError;

/// State of a run that has not ended.
///
/// ```text
/// Running         saved ► WaitingSaved  save failed ► WaitingUnsaved  deferred ► Suspending
/// WaitingSaved    obsolete ► Running    deferred ► Suspended
/// WaitingUnsaved  obsolete ► Running    deferred ► Suspending
/// Suspending      saved ► Suspended
/// Suspended       obsolete ► Suspending
/// ```
///
/// A saved snapshot becomes obsolete when an approval request ends or the guest continues. Every
/// state becomes `ClaimedByOther` if the ledger reports that another process claimed the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ActiveRunState {
    /// The guest computes, or calls and timers are in flight.
    Running,
    /// Every pending call waits for a person, and the ledger has a snapshot: another process can
    /// restore the run.
    WaitingSaved,
    /// Every pending call waits for a person, but no snapshot could be saved. Only this process can
    /// continue.
    WaitingUnsaved,
    /// The approver deferred its answer. The run is suspended as soon as every pending call waits
    /// for a person.
    Suspending,
    /// As `Suspending`, and the ledger has a snapshot. The run ends in this process unless an
    /// answer arrives first.
    Suspended,
    /// Another process claimed the run. This process must not continue it.
    ClaimedByOther,
}

impl ActiveRunState {
    /// Whether the ledger has a snapshot of the run's current state.
    pub(crate) fn has_snapshot(self) -> bool {
        matches!(self, Self::WaitingSaved | Self::Suspended)
    }

    /// Whether a snapshot must be saved once every pending call waits for a person.
    pub(crate) fn needs_snapshot(self) -> bool {
        matches!(self, Self::Running | Self::Suspending)
    }

    /// Whether this process must claim the run before the guest continues.
    pub(crate) fn needs_claim(self) -> bool {
        matches!(
            self,
            Self::WaitingSaved | Self::WaitingUnsaved | Self::Suspended
        )
    }

    /// The approver deferred its answer.
    pub(crate) fn on_answer_deferred(&mut self) {
        *self = match *self {
            Self::Running | Self::WaitingUnsaved | Self::Suspending => Self::Suspending,
            Self::WaitingSaved | Self::Suspended => Self::Suspended,
            Self::ClaimedByOther => Self::ClaimedByOther,
        };
    }

    /// An approval request ended, or the guest continues: a saved snapshot is obsolete.
    pub(crate) fn on_snapshot_obsolete(&mut self) {
        *self = match *self {
            Self::WaitingSaved | Self::WaitingUnsaved => Self::Running,
            Self::Suspended => Self::Suspending,
            other => other,
        };
    }

    pub(crate) fn on_snapshot_saved(&mut self) {
        *self = match *self {
            Self::Running | Self::WaitingSaved | Self::WaitingUnsaved => Self::WaitingSaved,
            Self::Suspending | Self::Suspended => Self::Suspended,
            Self::ClaimedByOther => Self::ClaimedByOther,
        };
    }

    pub(crate) fn on_snapshot_failed(&mut self) {
        if *self == Self::Running {
            *self = Self::WaitingUnsaved;
        }
    }

    /// Another process restored the run.
    pub(crate) fn on_claimed_by_other(&mut self) -> RunExit {
        *self = Self::ClaimedByOther;
        RunExit::ClaimedByOther
    }
}

/// How a run ended in this process.
#[derive(Debug)]
pub(crate) enum RunExit {
    /// The script returned this JSON, or nothing.
    Returned(Option<String>),
    /// The script failed or was stopped.
    Failed(Box<ScriptError>),
    /// A snapshot is saved, from which the run can be restored.
    Suspended,
    /// Another process restored the run.
    ClaimedByOther,
    /// The recording ended while the script waited. On replay, this is where the recorded run was
    /// stopped.
    RecordingEnded,
}

impl From<ScriptError> for RunExit {
    fn from(error: ScriptError) -> Self {
        Self::Failed(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::ActiveRunState::{self, *};

    fn after(mut state: ActiveRunState, change: impl Fn(&mut ActiveRunState)) -> ActiveRunState {
        change(&mut state);
        state
    }

    #[test]
    fn a_state_with_an_obsolete_snapshot_has_none() {
        for (before, expected) in [
            (WaitingSaved, Running),
            (WaitingUnsaved, Running),
            (Suspended, Suspending),
            (Running, Running),
            (ClaimedByOther, ClaimedByOther),
        ] {
            let state = after(before, ActiveRunState::on_snapshot_obsolete);
            assert_eq!(state, expected, "{before:?}");
            assert!(!state.has_snapshot());
        }
    }

    #[test]
    fn a_deferred_answer_suspends_a_run_only_if_its_snapshot_is_saved() {
        assert_eq!(
            after(WaitingSaved, ActiveRunState::on_answer_deferred),
            Suspended
        );
        for before in [Running, WaitingUnsaved] {
            assert_eq!(
                after(before, ActiveRunState::on_answer_deferred),
                Suspending
            );
        }
        assert_eq!(
            after(Suspending, ActiveRunState::on_snapshot_saved),
            Suspended
        );
        assert_eq!(
            after(Suspending, ActiveRunState::on_snapshot_failed),
            Suspending
        );
    }
}
