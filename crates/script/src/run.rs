//! One run: pumps the script, submits its calls, answers it, and brings it to an end whatever happens.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use selvedge_protocol::{CallRecord, CallStatus, ErrorCode, Phase, ScriptError};
use selvedge_sandbox::{Fault, Finish, Leash, Outcome, Program, Pump, Runtime, State};
use selvedge_tools::{Orchestrator, Scope};
use serde_json::Value;

use crate::bridge::{Bridge, Said};
use crate::compile::Compiled;
use crate::globals::is_global;
use crate::meter::Clock;
use crate::outcome::{from_fault, from_syntax, from_thrown, timed_out};
use crate::preview::preview;
use crate::traffic::{Traffic, Wake, call_number};
use crate::unicode::whole_unicode;

/// A script on its way. Everything it started is inside and ends with it.
pub(crate) struct Run<'a> {
    pub(crate) runtime: &'a dyn Runtime,
    pub(crate) orchestrator: &'a Orchestrator,
    pub(crate) compiled: &'a Arc<Compiled>,
    pub(crate) scope: &'a Scope,
    pub(crate) limits: &'a selvedge_protocol::Limits,
    pub(crate) timeout: Duration,
    pub(crate) seed: u64,
    pub(crate) said: &'a Arc<Mutex<Said>>,
    /// Wait for calls nobody awaited instead of stopping them.
    pub(crate) allow_detached: bool,
}

/// How a run ended.
pub(crate) struct Ended {
    /// The returned JSON, if the script returned one.
    pub(crate) result: Result<Option<String>, ScriptError>,
    pub(crate) calls: Vec<CallRecord>,
    /// What finished calls returned: call, tool, JSON.
    pub(crate) results: Vec<(String, String, String)>,
    pub(crate) dispatched: u32,
    pub(crate) heap_peak: u64,
}

impl<'a> Run<'a> {
    pub(crate) async fn to_its_end(&'a self, context: Value) -> Ended {
        let mut traffic = Traffic::new(self);
        let mut heap_peak = 0;
        let mut result = self.pump(context, &mut traffic, &mut heap_peak).await;
        let left = traffic.wind_up(result.is_ok() && self.allow_detached).await;
        let stopped: Vec<String> = left.iter().filter_map(|left| traffic.still_running(left)).collect();
        match &mut result {
            Ok(_) => {
                // A call in the queue counts as aborted, like one that ran: its error says which.
                traffic.calls.iter_mut().flatten().filter(|call| call.status == CallStatus::NotStarted).for_each(
                    |call| {
                        call.status = CallStatus::Aborted;
                    },
                );
                for words in stopped {
                    self.said()
                        .warn(format!("{words}, and was stopped: write `await` for what the script should wait for"));
                }
            }
            Err(error) if error.code == ErrorCode::ScriptRuntimeError => {
                error.suggestions.extend(stopped.iter().take(3).map(|words| format!("{words}: was it awaited?")));
            }
            Err(error) if error.code == ErrorCode::ScriptTimeoutError && error.line.is_none() => {
                if let Some(first) = left.first() {
                    (error.line, error.column) = (first.at.map(|at| at.line), first.at.map(|at| at.column));
                    (error.call_id, error.tool_name) = (Some(first.call_id.clone()), Some(first.tool.clone()));
                }
            }
            Err(_) => {}
        }
        let stubborn = std::mem::take(&mut traffic.stubborn);
        let result = match result {
            Ok(value) if !stubborn.is_empty() => Err(detached(&stubborn, value)),
            result => result,
        };
        let mut results = traffic.results;
        // In the order the calls were made, not the order they finished.
        results.sort_by_key(|(call_id, ..)| call_number(call_id));
        Ended {
            result,
            calls: traffic.calls.into_iter().flatten().collect(),
            results,
            dispatched: traffic.dispatched,
            heap_peak,
        }
    }

    async fn pump(
        &'a self,
        context: Value,
        traffic: &mut Traffic<'a>,
        heap_peak: &mut u64,
    ) -> Result<Option<String>, ScriptError> {
        let timeout_ms = self.timeout.as_millis() as u64;
        let fail = |fault: Fault| from_fault(&fault, self.limits, timeout_ms);
        let mut clock = Clock::start(self.timeout);
        let leash = Arc::new(Leash::new(self.timeout));
        let bridge = Bridge {
            said: self.said.clone(),
            compiled: self.compiled.clone(),
            orchestrator: self.orchestrator.clone(),
            scope: self.scope.clone(),
            context,
            max_depth: self.limits.max_value_depth,
        };
        let source = self.source();
        let program = Program {
            source: &source,
            seed: self.seed,
            memory_limit: self.limits.memory_mb << 20,
            stack_limit: self.limits.max_stack_bytes,
            leash: leash.clone(),
        };
        let start = self.runtime.start(program, Box::new(bridge));
        let (mut execution, mut pump) = traffic.while_computing(&leash, clock.deadline(), start).await.map_err(fail)?;
        loop {
            *heap_peak = execution.heap_peak();
            traffic.take_requests(std::mem::take(&mut pump.requests))?;
            if let State::Finished(finish) = pump.state {
                return match finish {
                    Finish::Value(value) => Ok(value),
                    Finish::Exit => Ok(None),
                    Finish::Error(error) => {
                        let made = |id: &str| traffic.calls.iter().flatten().any(|call| call.id == id);
                        let registry = self.orchestrator.registry();
                        Err(from_thrown(&whole_unicode(&error), self.compiled, registry, made))
                    }
                    Finish::Syntax(error) => Err(from_syntax(&error)),
                };
            }
            match self.wait(&mut clock, traffic).await? {
                Wake::Nothing => {}
                Wake::TimeUp => return Err(timed_out(timeout_ms)),
                Wake::Cancelled => return Err(fail(Fault::Cancelled)),
                Wake::Settle(id, answer) => {
                    clock.run();
                    if let Some(deadline) = clock.deadline() {
                        leash.stop_at(deadline);
                    }
                    let outcome = match &answer {
                        Ok(value) => Outcome::Value(value),
                        Err(error) => Outcome::Error(error),
                    };
                    let computing = execution.settle(id, outcome);
                    pump = traffic.while_computing(&leash, clock.deadline(), computing).await.map_err(fail)?;
                    continue;
                }
            }
            pump = Pump { requests: Vec::new(), state: State::Waiting };
        }
    }

    /// Waits until something happens that the script should know, or that ends it.
    async fn wait(&self, clock: &mut Clock, traffic: &mut Traffic<'a>) -> Result<Wake, ScriptError> {
        if traffic.pending.is_empty() && traffic.timers.is_empty() {
            let message = "the script waits for a promise that nothing will ever settle";
            let mut error = ScriptError::new(ErrorCode::ScriptRuntimeError, Phase::Executing, message)
                .suggest("check that every `new Promise` calls its resolve function, and has no async executor");
            error
                .suggestions
                .extend(self.said().rejections.values().map(|words| format!("a promise failed and {words}")));
            return Err(error);
        }
        if traffic.waits_for_a_person() {
            clock.pause()
        } else {
            clock.run()
        }
        let time_up = async {
            match clock.deadline() {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        let timer = traffic.timers.keys().next().copied();
        let ring = async {
            match timer {
                Some((at, _)) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.scope.cancel.cancelled() => Ok(Wake::Cancelled),
            () = time_up => Ok(Wake::TimeUp),
            Some(report) = traffic.reports.recv() => Ok(traffic.take_report(report)),
            () = ring => {
                let Some(((_, id), ())) = traffic.timers.pop_first() else { return Ok(Wake::Nothing) };
                Ok(Wake::Settle(id, Ok("null".to_owned())))
            }
            Some(()) = traffic.batches.next(), if !traffic.batches.is_empty() => Ok(Wake::Nothing),
        }
    }

    /// The compiled script; servers it names without `tools.mcp.` are bound where the name is free.
    fn source(&self) -> Cow<'a, str> {
        let registry = self.orchestrator.registry();
        let servers = self
            .compiled
            .unresolved
            .iter()
            .filter(|name| !is_global(name) && registry.is_namespace(&format!("mcp.{name}")));
        let bound: String = servers.map(|name| format!("const {name} = tools.mcp.{name};")).collect();
        if bound.is_empty() {
            return Cow::Borrowed(&self.compiled.javascript);
        }
        // On the wrapper's own line, so that every position stays what it was.
        Cow::Owned(self.compiled.javascript.replacen("{\n", &format!("{{{bound}\n"), 1))
    }

    pub(crate) fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn detached(stubborn: &[String], value: Option<String>) -> ScriptError {
    let message = format!("the script ended while calls were running that did not stop: {}", stubborn.join(", "));
    let mut error = ScriptError::new(ErrorCode::DetachedPromiseError, Phase::Finalizing, message)
        .suggest("await every call before the script returns");
    if let Some(value) = value.and_then(|json| serde_json::from_str::<Value>(&json).ok()) {
        // Cut as JSON, so that it stays JSON.
        let returned = serde_json::from_str(&preview(&value, 8 << 10)).unwrap_or(Value::Null);
        error = error.with("returned", returned);
    }
    error
}
