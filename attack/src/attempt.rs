//! One attempt to break a promise, and running the attempts of a class.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Result;

use crate::lab::Lab;

/// Number of attempts that run at once.
const MAX_CONCURRENT_ATTEMPTS: usize = 2;

/// Whether the promise held.
pub(crate) enum Verdict {
    Held,
    /// The attack succeeded; says how it showed.
    Broken(String),
}

impl Verdict {
    /// Returns `Held` if the promise was kept, otherwise `Broken` with the evidence.
    pub(crate) fn held_if(kept: bool, evidence: impl Into<String>) -> Self {
        if kept {
            Self::Held
        } else {
            Self::Broken(evidence.into())
        }
    }
}

/// The steps of an attack. An error means that the attack could not be tried.
type AttackFn = Box<dyn Fn(&Lab) -> Result<Verdict> + Send + Sync>;

/// An attack with a name that is unique within its class.
pub(crate) struct Attempt {
    name: String,
    attack: AttackFn,
}

impl Attempt {
    pub(crate) fn new(
        name: impl Into<String>,
        attack: impl Fn(&Lab) -> Result<Verdict> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            attack: Box::new(attack),
        }
    }
}

/// The result of one class.
pub(crate) struct ClassResult {
    pub(crate) count: usize,
    /// Attacks that succeeded, with the evidence.
    pub(crate) broken: Vec<String>,
    /// Attacks that could not be tried, with the reason.
    pub(crate) not_tried: Vec<String>,
    pub(crate) seconds: f64,
}

/// Runs attempts, each in a fresh lab.
pub(crate) fn run_class(class: &str, attempts: Vec<Attempt>, binary: &Path) -> ClassResult {
    let started = Instant::now();
    let next = AtomicUsize::new(0);
    let (broken, not_tried) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..MAX_CONCURRENT_ATTEMPTS {
            scope.spawn(|| {
                while let Some(attempt) = attempts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let verdict = Lab::new(binary).and_then(|lab| (attempt.attack)(&lab));
                    let (list, reason) = match verdict {
                        Ok(Verdict::Held) => continue,
                        Ok(Verdict::Broken(evidence)) => (&broken, evidence),
                        Err(error) => (&not_tried, format!("could not be tried: {error:#}")),
                    };
                    if let Ok(mut list) = list.lock() {
                        list.push(format!("{class}: {}: {reason}", attempt.name));
                    }
                }
            });
        }
    });
    ClassResult {
        count: attempts.len(),
        broken: broken.into_inner().unwrap_or_default(),
        not_tried: not_tried.into_inner().unwrap_or_default(),
        seconds: started.elapsed().as_secs_f64(),
    }
}
