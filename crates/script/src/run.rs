//! One run: pumps the script, submits its calls, answers it, and brings it to an end whatever happens.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use selvedge_protocol::{CallRecord, CallStatus, ErrorCode, LedgerError, Phase, ScriptError};
use selvedge_sandbox::{Execution, Fault, Finish, Leash, Outcome, Program, Pump, Runtime, State};
use selvedge_tools::{Means, Orchestrator, Scope, Tasks};
use serde_json::Value;
use serde_json::value::to_raw_value;
use tokio_util::sync::CancellationToken;

use crate::bridge::{Bridge, Said};
use crate::compile::Compiled;
use crate::first_line::FirstLine;
use crate::globals::is_global;
use crate::meter::Clock;
use crate::outcome::{from_fault, from_syntax, from_thrown, shortened, timed_out};
use crate::playing::Recorded;
use crate::preview::preview;
use crate::suspension::{Paused, Suspension};
use crate::tape::{Head, Told};
use crate::traffic::{Traffic, Wake, call_number};
use crate::unicode::whole_unicode;

/// How often the longest time of a script it may wait for models besides: they have limits of their own.
const PATIENCE: u32 = 2;

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
    pub(crate) head: &'a Arc<Mutex<Head>>,
    pub(crate) begin: Begin<'a>,
    /// Puts the script away at its next await.
    pub(crate) suspend: &'a CancellationToken,
    /// Nobody is there any more: a script that waits for people is left to others, any other is stopped.
    pub(crate) leave: &'a CancellationToken,
    pub(crate) call_id: &'a str,
    /// Wait for calls nobody awaited instead of stopping them.
    pub(crate) allow_detached: bool,
    /// Work in the background, where there may be any.
    pub(crate) tasks: &'a Option<(Tasks, Means)>,
}

/// How a run begins.
#[derive(Clone, Copy)]
pub(crate) enum Begin<'a> {
    /// At the beginning, of which this is still to be written where things are written down.
    Fresh(Option<&'a FirstLine<'a>>),
    /// Where it was put away.
    Thawed(&'a Suspension),
    /// At the beginning, told what it was told before; then it goes on from where it was put away.
    Retold(&'a Recorded, &'a Suspension),
    /// At the beginning, told what it was told before, and nothing else.
    Played(&'a Recorded),
}

/// How a script came to its end, or to rest.
pub(crate) enum Over {
    /// It returned this JSON, if it returned something.
    Returned(Option<String>),
    /// It is put away.
    Suspended,
    /// Another process goes on with it.
    Elsewhere,
    /// Played, it was stopped from outside at this point.
    AsThen,
}

/// How a run ended.
pub(crate) struct Ended {
    pub(crate) result: Result<Over, ScriptError>,
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
        if traffic.elsewhere {
            result = Ok(Over::Elsewhere);
        }
        let left = match (&result, self.begin) {
            (Ok(Over::Suspended | Over::Elsewhere), _) => {
                traffic.let_go();
                Vec::new()
            }
            (_, Begin::Played(recorded)) => traffic.end_as_then(recorded),
            _ => traffic.wind_up(result.is_ok() && self.allow_detached).await,
        };
        let stopped: Vec<String> = left
            .iter()
            .filter_map(|left| traffic.still_running(left))
            .collect();
        match &mut result {
            Ok(Over::Returned(_)) => {
                // A call in the queue counts as aborted, like one that ran: its error says which.
                traffic
                    .calls
                    .iter_mut()
                    .flatten()
                    .filter(|call| call.status == CallStatus::NotStarted)
                    .for_each(|call| {
                        call.status = CallStatus::Aborted;
                    });
                for words in stopped {
                    self.said()
                        .warn(format!("{words}, and was stopped: write `await` for what the script should wait for"));
                }
            }
            Err(error) if error.code == ErrorCode::ScriptRuntimeError => {
                error.suggestions.extend(
                    stopped
                        .iter()
                        .take(3)
                        .map(|words| format!("{words}: was it awaited?")),
                );
            }
            Err(error) if error.code == ErrorCode::ScriptTimeoutError && error.line.is_none() => {
                if let Some(first) = left.first() {
                    (error.line, error.column) =
                        (first.at.map(|at| at.line), first.at.map(|at| at.column));
                    (error.call_id, error.tool_name) =
                        (Some(first.call_id.clone()), Some(first.tool.clone()));
                }
            }
            Ok(_) | Err(_) => {}
        }
        // It may turn out only while its calls are stopped.
        if traffic.elsewhere {
            result = Ok(Over::Elsewhere);
        }
        let stubborn = std::mem::take(&mut traffic.stubborn);
        let result = match result {
            Ok(Over::Returned(value)) if !stubborn.is_empty() => Err(detached(&stubborn, value)),
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
    ) -> Result<Over, ScriptError> {
        let timeout_ms = self.timeout.as_millis() as u64;
        let fail = |fault: Fault| from_fault(&fault, self.limits, timeout_ms);
        let left = match self.begin {
            Begin::Thawed(suspension) => suspension.left,
            _ => self.timeout,
        };
        let patience = Duration::from_millis(self.limits.max_timeout_ms) * PATIENCE;
        let mut clock = Clock::start(left, patience);
        let leash = Arc::new(Leash::new(left));
        let bridge = Bridge {
            said: self.said.clone(),
            head: self.head.clone(),
            compiled: self.compiled.clone(),
            orchestrator: self.orchestrator.clone(),
            scope: self.scope.clone(),
            context,
            max_depth: self.limits.max_value_depth,
            tasks: self.tasks.clone(),
        };
        let source = self.source();
        let program = Program {
            source: &source,
            seed: self.seed,
            memory_limit: self.limits.memory_mb << 20,
            stack_limit: self.limits.max_stack_bytes,
            leash: leash.clone(),
        };
        let (mut execution, mut pump) = if let Begin::Thawed(suspension) = self.begin {
            let image = suspension.image();
            let thaw = self.runtime.thaw(&image, program, Box::new(bridge));
            let execution = traffic
                .while_computing(&leash, clock.deadline(), thaw)
                .await
                .map_err(fail)?;
            traffic.take_up(&suspension.traffic);
            (
                execution,
                Pump {
                    requests: Vec::new(),
                    state: State::Waiting,
                },
            )
        } else {
            // A task is started while the script computes.
            if self.tasks.is_some() {
                self.write_first_line()?;
            }
            let start = self.runtime.start(program, Box::new(bridge));
            traffic
                .while_computing(&leash, clock.deadline(), start)
                .await
                .map_err(fail)?
        };
        loop {
            *heap_peak = execution.heap_peak();
            if !pump.requests.is_empty() || matches!(pump.state, State::Waiting) {
                self.write_first_line()?;
            }
            traffic.take_requests(std::mem::take(&mut pump.requests))?;
            if let State::Finished(finish) = pump.state {
                return match finish {
                    Finish::Value(value) => Ok(Over::Returned(value)),
                    Finish::Exit => Ok(Over::Returned(None)),
                    Finish::Error(error) => {
                        let made =
                            |id: &str| traffic.calls.iter().flatten().any(|call| call.id == id);
                        let registry = self.orchestrator.registry();
                        Err(from_thrown(
                            &whole_unicode(&error),
                            self.compiled,
                            registry,
                            made,
                        ))
                    }
                    Finish::Syntax(error) => Err(from_syntax(&error)),
                };
            }
            pump = Pump {
                requests: Vec::new(),
                state: State::Waiting,
            };
            if self.orchestrator.ledger().is_some() && traffic.rests() {
                if !traffic.kept_as_it_is && (traffic.to_be_left || traffic.is_time_to_keep()) {
                    let put_away = self.put_away(execution.as_mut(), &clock, traffic, *heap_peak);
                    match put_away {
                        Ok(()) => {}
                        Err(_) if traffic.elsewhere => return Ok(Over::Elsewhere),
                        Err(error) if traffic.to_be_left => return Err(error),
                        // The person is here: it goes on, but not without this process.
                        Err(error) => {
                            self.said().warn(error.message);
                            traffic.kept_as_it_is = true;
                        }
                    }
                }
                if traffic.to_be_left {
                    return Ok(Over::Suspended);
                }
            }
            let mut wake = self.next(&mut clock, traffic).await?;
            if matches!(wake, Wake::Suspend) {
                wake = traffic.let_them_finish(clock.deadline()).await;
            }
            let (id, answer) = match wake {
                Wake::Nothing => continue,
                Wake::TimeUp if clock.is_patient() => {
                    return Err(timed_out(patience.as_millis() as u64));
                }
                Wake::TimeUp => return Err(timed_out(timeout_ms)),
                Wake::Cancelled => return Err(fail(Fault::Cancelled)),
                Wake::TakenOver => return Ok(Over::Elsewhere),
                Wake::Suspend => {
                    if !traffic.kept_as_it_is {
                        self.put_away(execution.as_mut(), &clock, traffic, *heap_peak)?;
                    }
                    return Ok(Over::Suspended);
                }
                Wake::TapeOver => match self.begin {
                    Begin::Retold(_, suspension) => {
                        clock = Clock::start(suspension.left, patience);
                        self.head().record_from_here();
                        traffic.take_up(&suspension.traffic);
                        continue;
                    }
                    _ => return self.waits_for_ever(traffic).map_or(Ok(Over::AsThen), Err),
                },
                Wake::Ring(id) => {
                    self.head().write(Told::Rang { id });
                    (id, Ok("null".to_owned()))
                }
                Wake::Settle(id, call, answer) => {
                    self.head().write(Told::Settled {
                        id,
                        call,
                        error: answer.as_ref().err().cloned(),
                    });
                    (id, answer)
                }
            };
            // Whoever goes on with a script that is written down must be the only one.
            if std::mem::take(&mut traffic.kept_as_it_is)
                && let Some(ledger) = self.orchestrator.ledger()
            {
                match ledger.go_on(&self.scope.id) {
                    Ok(()) => {}
                    Err(LedgerError::TakenOver) => return Ok(Over::Elsewhere),
                    Err(error) => {
                        let message =
                            format!("that the script goes on could not be written down: {error}");
                        return Err(ScriptError::new(
                            ErrorCode::HarnessInternalError,
                            Phase::Executing,
                            message,
                        ));
                    }
                }
            }
            clock.run();
            if let Some(deadline) = clock.deadline() {
                leash.stop_at(deadline);
            }
            let outcome = match &answer {
                Ok(value) => Outcome::Value(value),
                Err(error) => Outcome::Error(error),
            };
            let computing = execution.settle(id, outcome);
            pump = traffic
                .while_computing(&leash, clock.deadline(), computing)
                .await
                .map_err(fail)?;
        }
    }

    /// Writes down that the script runs, where that is still to be done.
    pub(crate) fn write_first_line(&self) -> Result<(), ScriptError> {
        match self.begin {
            Begin::Fresh(Some(first_line)) => first_line.write(),
            _ => Ok(()),
        }
    }

    /// Writes the script down as it stands, where things are written down.
    fn put_away(
        &self,
        execution: &mut dyn Execution,
        clock: &Clock,
        traffic: &mut Traffic<'a>,
        heap_peak: u64,
    ) -> Result<(), ScriptError> {
        let Some(ledger) = self.orchestrator.ledger() else {
            return Ok(());
        };
        let broken = |words: String| {
            let message = format!("the script could not be written down as it stands: {words}");
            ScriptError::new(ErrorCode::HarnessInternalError, Phase::Executing, message)
        };
        let image = execution
            .freeze()
            .map_err(|fault| broken(fault.to_string()))?;
        let paused: Paused = traffic.pause();
        let written = |error: serde_json::Error| broken(error.to_string());
        let suspension = Suspension {
            build: image.build,
            call_id: self.call_id.to_owned(),
            seed: self.seed,
            tape: to_raw_value(&self.head().tape).map_err(written)?,
            timeout: self.timeout,
            left: clock.left(),
            heap_peak,
            standing: self.scope.standing(paused.waiting.len()),
            traffic: paused,
            said: to_raw_value(&*self.said()).map_err(written)?,
            image: image.bytes,
        };
        let bytes = suspension.to_bytes().map_err(written)?;
        let kept = ledger.suspend(&self.scope.id, &bytes);
        traffic.elsewhere = kept == Err(LedgerError::TakenOver);
        kept.map_err(|error| broken(error.to_string()))?;
        traffic.kept_as_it_is = true;
        traffic.kept_at = Some(Instant::now());
        Ok(())
    }

    /// What the script is told next: played, it is what it was told then.
    async fn next(
        &self,
        clock: &mut Clock,
        traffic: &mut Traffic<'a>,
    ) -> Result<Wake, ScriptError> {
        if let Some((id, call, answer)) = traffic.untold.pop_front() {
            return Ok(Wake::Settle(id, call, answer));
        }
        match self.begin {
            Begin::Played(recorded) | Begin::Retold(recorded, _) if self.head().is_playing() => {
                traffic.play(recorded)
            }
            _ => self.wait(clock, traffic).await,
        }
    }

    /// What to say of a script that waits for nothing that could come.
    fn waits_for_ever(&self, traffic: &Traffic<'a>) -> Option<ScriptError> {
        if !traffic.pending.is_empty() || !traffic.timers.is_empty() {
            return None;
        }
        let message = "the script waits for a promise that nothing will ever settle";
        let mut error = ScriptError::new(ErrorCode::ScriptRuntimeError, Phase::Executing, message)
            .suggest("check that every `new Promise` calls its resolve function, and has no async executor");
        error.suggestions.extend(
            self.said()
                .rejections
                .values()
                .map(|words| format!("a promise failed and {words}")),
        );
        Some(error)
    }

    /// Waits until something happens that the script should know, or that ends it.
    async fn wait(
        &self,
        clock: &mut Clock,
        traffic: &mut Traffic<'a>,
    ) -> Result<Wake, ScriptError> {
        if let Some(error) = self.waits_for_ever(traffic) {
            return Err(error);
        }
        if traffic.waits_for_a_person() {
            clock.pause()
        } else if traffic.waits_for_a_model() {
            clock.be_patient()
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
        let keep_at = traffic.keep_at();
        let keep = async {
            match keep_at {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.scope.cancel.cancelled() => Ok(Wake::Cancelled),
            // What is there already needs no clock; there are only so many calls that could keep it from time.
            Some(report) = traffic.reports.recv() => Ok(traffic.take_report(report)),
            Some(()) = traffic.batches.next(), if !traffic.batches.is_empty() => Ok(Wake::Nothing),
            () = time_up => Ok(Wake::TimeUp),
            () = self.leave.cancelled() => Ok(if traffic.kept_as_it_is { Wake::Suspend } else { Wake::Cancelled }),
            () = self.suspend.cancelled(), if self.orchestrator.ledger().is_some() => Ok(Wake::Suspend),
            () = ring => Ok(match traffic.timers.pop_first() {
                Some(((_, id), ())) => Wake::Ring(id),
                None => Wake::Nothing,
            }),
            () = keep => Ok(Wake::Nothing),
        }
    }

    /// The compiled script; servers it names without `tools.mcp.` are bound where the name is free.
    fn source(&self) -> Cow<'a, str> {
        let servers = self
            .compiled
            .unresolved
            .iter()
            .filter(|name| !is_global(name) && self.is_server(name));
        let bound: String = servers
            .map(|name| format!("const {name} = tools.mcp.{name};"))
            .collect();
        if bound.is_empty() {
            return Cow::Borrowed(&self.compiled.javascript);
        }
        // On the wrapper's own line, so that every position stays what it was.
        Cow::Owned(
            self.compiled
                .javascript
                .replacen("{\n", &format!("{{{bound}\n"), 1),
        )
    }

    /// The tool's own name; played, what it was then.
    pub(crate) fn tool_name(&self, path: &str, call_id: &str) -> String {
        let then = match self.begin {
            Begin::Played(recorded) | Begin::Retold(recorded, _) => recorded
                .lines
                .iter()
                .find(|line| line.id == call_id)
                .map(|line| line.tool.clone()),
            _ => None,
        };
        let now = || {
            self.orchestrator
                .registry()
                .get(path)
                .map(|tool| tool.spec.name.clone())
        };
        then.or_else(now).unwrap_or_else(|| shortened(path, 80))
    }

    fn is_server(&self, name: &str) -> bool {
        const CHANNEL: &str = "server";
        if let Some(played) = self.head().reply(CHANNEL, name) {
            return played.is_some();
        }
        let server = self
            .orchestrator
            .registry()
            .is_namespace(&format!("mcp.{name}"));
        self.head()
            .write_reply(CHANNEL, name, &server.then(String::new));
        server
    }

    pub(crate) fn head(&self) -> MutexGuard<'_, Head> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn detached(stubborn: &[String], value: Option<String>) -> ScriptError {
    let message = format!(
        "the script ended while calls were running that did not stop: {}",
        stubborn.join(", ")
    );
    let mut error = ScriptError::new(ErrorCode::DetachedPromiseError, Phase::Finalizing, message)
        .suggest("await every call before the script returns");
    if let Some(value) = value.and_then(|json| serde_json::from_str::<Value>(&json).ok()) {
        // Cut as JSON, so that it stays JSON.
        let returned = serde_json::from_str(&preview(&value, 8 << 10)).unwrap_or(Value::Null);
        error = error.with("returned", returned);
    }
    error
}
