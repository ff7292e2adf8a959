//! Agents that a script launches with `spawn`: the call of a task belongs to the turn of the script
//! that started the task, also after that turn has ended.

use std::sync::{Arc, Weak};

use selvedge_tools::TaskSet;

use super::{SubAgents, SubAgentsInner, lock};

impl SubAgents {
    /// Lets the tasks of this set launch agents and ask models. They spend from the budget of the
    /// turn that started them.
    pub fn allow_in_tasks(&self, tasks: &TaskSet) {
        let shared = Arc::downgrade(&self.0);
        tasks.set_start_hook(move |run, task| TaskTurnGuard::register(&shared, run, task));
    }
}

/// Lets the calls of a task use the context of the turn that started it, until this guard is
/// dropped.
struct TaskTurnGuard {
    shared: Weak<SubAgentsInner>,
    task: String,
}

impl TaskTurnGuard {
    /// Makes the task belong to the turn of the run that started it; `None` if the run belongs to
    /// no turn.
    fn register(shared: &Weak<SubAgentsInner>, run: &str, task: &str) -> Option<Self> {
        let agents = shared.upgrade()?;
        let mut active = lock(&agents.active_runs);
        let context = active.get(run)?.clone();
        agents.keep_session_budget(&context);
        active.insert(task.to_owned(), context);
        Some(Self {
            shared: shared.clone(),
            task: task.to_owned(),
        })
    }
}

impl Drop for TaskTurnGuard {
    fn drop(&mut self) {
        if let Some(agents) = self.shared.upgrade() {
            lock(&agents.active_runs).remove(&self.task);
        }
    }
}
