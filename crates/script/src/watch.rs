//! Whoever looks after runs that go on: one that does not come to its end is brought to it.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use crate::live::{Entry, Shared};

/// How often somebody looks for runs that overstay.
const LOOK: Duration = Duration::from_millis(100);
/// Looks in vain before nobody looks any more.
const IN_VAIN: u32 = 50;

/// Brings runs to an end that do not come to it by themselves. Ends when there has been none for a while.
pub(crate) async fn watch(shared: Weak<Shared>) {
    let mut in_vain = 0;
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(strong) = shared.upgrade() else {
            return;
        };
        let overdue: Vec<Arc<Entry>> = {
            let mut runs = strong.runs.lock().unwrap_or_else(PoisonError::into_inner);
            in_vain = if runs.running.is_empty() {
                in_vain + 1
            } else {
                0
            };
            if in_vain > IN_VAIN {
                runs.watched = false;
                return;
            }
            runs.running
                .iter()
                .filter(|entry| entry.is_overdue())
                .cloned()
                .collect()
        };
        for entry in overdue {
            if let Some(task) = entry.task.get() {
                task.abort();
            }
            entry.cancel.cancel();
            let output = entry.broken("the run did not end when its time was up, and was let go");
            Shared::end(&shared, &entry, output);
        }
    }
}
