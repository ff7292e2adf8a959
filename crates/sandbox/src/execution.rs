//! One live script: its WebAssembly instance, its requests, and the functions that it imports.

use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;
use wasmtime::{
    Caller, InstancePre, Linker, Memory, ResourceLimiter, Store, Trap, TypedFunc, UpdateDeadline,
};

use crate::budget::{MemoryBudget, Share};
use crate::image::{Image, Pristine};
use crate::leash::{Leash, Verdict};
use crate::leaving::Nobody;
use crate::runtime::{Execution, Fault, Finish, Host, Outcome, Position, Program, Pump, Request};
use crate::ticker::Ticker;

/// Bytes of requests that a script may make between two awaits. Limits the host's memory.
const MAX_QUEUED: usize = 16 << 20;

/// Size of the guest's buffer for short texts, as declared in `guest.c`.
const MAILBOX: usize = 64 << 10;

/// Largest linear memory that the ticker thread drops. A larger one would delay its ticks.
const MAX_LEFT_BEHIND: usize = 16 << 20;

/// Linear memory in addition to the heap limit: texts on their way in or out, and allocator
/// overhead.
const SLACK: u64 = 16 << 20;

/// Signature of the guest's `start`: source, its length, seed, memory limit, stack limit.
type Start = TypedFunc<(u32, u32, u64, u32, u32), u32>;
/// Signature of the guest's `settle`: id, success, text, its length.
type Settle = TypedFunc<(u32, u32, u32, u32), u32>;

/// An [`Execution`] inside WebAssembly.
pub(crate) struct Guest {
    store: Store<State>,
    start: Start,
    settle: Settle,
    alloc: TypedFunc<u32, u32>,
    places: Places,
    ticker: Arc<Ticker>,
    instance: InstancePre<State>,
    pristine: Arc<Pristine>,
    _place: OwnedSemaphorePermit,
}

/// Addresses of the guest's variables that the host reads or writes.
#[derive(Debug, Clone, Copy)]
struct Places {
    mailbox: usize,
    heap_base: usize,
    heap_peak: usize,
}

/// Data of the WebAssembly store: what the imported functions can reach.
pub(crate) struct State {
    host: Box<dyn Host>,
    requests: Vec<Request>,
    queued: usize,
    finish: Option<Finish>,
    reply: String,
    memory: Option<Memory>,
    share: Share,
    /// Linear memory of a fresh instance, in bytes. `share` includes it from the start.
    initial: u64,
    ceiling: u64,
}

/// The error with which the epoch callback stops the guest.
#[derive(Debug)]
struct Stopped(Verdict);

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped: {:?}", self.0)
    }
}

impl std::error::Error for Stopped {}

impl Guest {
    pub(crate) async fn new(
        instance: &InstancePre<State>,
        ticker: &Arc<Ticker>,
        budget: &Arc<MemoryBudget>,
        fresh_memory: &Arc<Pristine>,
        slot: OwnedSemaphorePermit,
        program: &Program<'_>,
        host: Box<dyn Host>,
    ) -> Result<Self, Fault> {
        let initial = initial_memory(instance);
        let share = budget.admit(initial).await;
        let state = State {
            host,
            requests: Vec::new(),
            queued: 0,
            finish: None,
            reply: String::new(),
            memory: None,
            share,
            initial,
            ceiling: initial
                .saturating_add(program.memory_limit)
                .saturating_add(SLACK),
        };
        let mut store = Store::new(instance.module().engine(), state);
        store.limiter(|state| state);
        let interrupt = program.leash.clone();
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |_| check(&interrupt));
        let live = instance
            .instantiate_async(&mut store)
            .await
            .map_err(|error| fault(&error))?;
        let memory = live
            .get_memory(&mut store, "memory")
            .ok_or_else(|| Fault::Engine("the guest has no memory".into()))?;
        store.data_mut().memory = Some(memory);
        let mut address_of = |name: &str| {
            let global = live
                .get_global(&mut store, name)
                .ok_or_else(|| Fault::Engine(format!("the guest has no {name}")))?;
            let address = global.get(&mut store).i32().unwrap_or_default();
            Ok::<_, Fault>(address as u32 as usize)
        };
        let places = Places {
            mailbox: address_of("mailbox")?,
            heap_base: address_of("heap_base")?,
            heap_peak: address_of("heap_peak")?,
        };
        let missing = |error: wasmtime::Error| Fault::Engine(format!("{error:#}"));
        Ok(Self {
            start: live.get_typed_func(&mut store, "start").map_err(missing)?,
            settle: live.get_typed_func(&mut store, "settle").map_err(missing)?,
            alloc: live.get_typed_func(&mut store, "alloc").map_err(missing)?,
            places,
            store,
            ticker: ticker.clone(),
            instance: instance.clone(),
            pristine: fresh_memory.clone(),
            _place: slot,
        })
    }

    /// Lets the ticker thread drop the guest, unless that would delay its ticks.
    pub(crate) fn leave(mut self) {
        if self
            .memory()
            .is_ok_and(|memory| memory.data_size(&self.store) > MAX_LEFT_BEHIND)
        {
            return;
        }
        self.store.data_mut().host = Box::new(Nobody);
        let Self {
            store,
            ticker,
            _place: slot,
            ..
        } = self;
        ticker.clear((store, slot));
    }

    /// Compiles the program and runs it until it waits.
    pub(crate) async fn start(&mut self, program: &Program<'_>) -> Result<Pump, Fault> {
        let ticker = self.ticker.clone();
        let _computing = ticker.computing();
        self.store.set_epoch_deadline(1);
        let text = self.write(program.source).await?.ok_or(Fault::Memory)?;
        let memory_limit = u32::try_from(program.memory_limit).unwrap_or(u32::MAX);
        let length = program.source.len() as u32;
        let start = self.start.clone();
        let called = start
            .call_async(
                &mut self.store,
                (
                    text,
                    length,
                    program.seed,
                    memory_limit,
                    program.stack_limit,
                ),
            )
            .await;
        self.pump(called)
    }

    async fn answer(&mut self, id: u32, settlement: Outcome<'_>) -> Result<Pump, Fault> {
        let ticker = self.ticker.clone();
        let _computing = ticker.computing();
        self.store.set_epoch_deadline(1);
        let (ok, text) = match settlement {
            Outcome::Value(text) => (1, text),
            Outcome::Error(text) => (0, text),
        };
        let (ok, len, at) = match self.write(text).await? {
            Some(at) => (ok, text.len(), at),
            None => {
                let error = format!(
                    concat!(
                        r#"{{"name":"ScriptMemoryError","code":"ScriptMemoryError","message":"#,
                        r#""a result of {} bytes does not fit into the script's memory"}}"#,
                    ),
                    text.len()
                );
                (
                    0,
                    error.len(),
                    self.write(&error).await?.ok_or(Fault::Memory)?,
                )
            }
        };
        let settle = self.settle.clone();
        let called = settle
            .call_async(&mut self.store, (id, ok, at, len as u32))
            .await;
        self.pump(called)
    }

    fn memory(&self) -> Result<Memory, Fault> {
        self.store
            .data()
            .memory
            .ok_or_else(|| Fault::Engine("the guest has no memory".into()))
    }

    /// Overwrites the memory of a fresh guest with that of a snapshot.
    pub(crate) async fn restore(&mut self, snapshot: &Image) -> Result<(), Fault> {
        if !snapshot.is_whole() {
            return Err(Fault::Engine("the snapshot is truncated".into()));
        }
        let memory = self.memory()?;
        let missing = snapshot
            .size()
            .saturating_sub(memory.data_size(&self.store) as u64);
        if missing > 0 {
            let pages = missing.div_ceil(memory.page_size(&self.store));
            memory
                .grow_async(&mut self.store, pages)
                .await
                .map_err(|_| Fault::Memory)?;
        }
        let outside = || Fault::Engine("the snapshot does not fit its own memory".into());
        for (at, page) in snapshot.pages() {
            memory
                .write(&mut self.store, at, page)
                .map_err(|_| outside())?;
        }
        Ok(())
    }

    /// Returns the memory of a fresh guest.
    fn fresh_memory(&self) -> Result<&[u8], Fault> {
        self.pristine.get_or_read(|| {
            let engine = self.instance.module().engine();
            let mut store = Store::new(engine, ());
            // The instance does not run, so its imports are never called.
            let mut linker = Linker::new(engine);
            linker.define_unknown_imports_as_traps(self.instance.module())?;
            let live = linker.instantiate_pre(self.instance.module())?;
            let live = live.instantiate(&mut store)?;
            let memory = live
                .get_memory(&mut store, "memory")
                .ok_or_else(|| wasmtime::Error::msg("no memory"))?;
            Ok(memory.data(&store).to_vec())
        })
    }

    fn pump(&mut self, called: wasmtime::Result<u32>) -> Result<Pump, Fault> {
        called.map_err(|error| fault(&error))?;
        let state = self.store.data_mut();
        state.queued = 0;
        Ok(Pump {
            requests: std::mem::take(&mut state.requests),
            state: match state.finish.take() {
                Some(finish) => crate::State::Finished(finish),
                None => crate::State::Waiting,
            },
        })
    }

    /// Copies text into the guest, with room for the terminator that the guest adds. Returns the
    /// address, or `None` if the text does not fit.
    async fn write(&mut self, text: &str) -> Result<Option<u32>, Fault> {
        let Ok(len) = u32::try_from(text.len()) else {
            return Ok(None);
        };
        let at = if text.len() < MAILBOX {
            self.places.mailbox as u32
        } else {
            let alloc = self.alloc.clone();
            alloc
                .call_async(&mut self.store, len)
                .await
                .map_err(|error| fault(&error))?
        };
        if at == 0 {
            return Ok(None);
        }
        let memory = self.memory()?;
        memory
            .write(&mut self.store, at as usize, text.as_bytes())
            .map_err(|error| Fault::Engine(error.to_string()))?;
        Ok(Some(at))
    }
}

impl Execution for Guest {
    fn settle<'a>(
        &'a mut self,
        id: u32,
        settlement: Outcome<'a>,
    ) -> BoxFuture<'a, Result<Pump, Fault>> {
        self.answer(id, settlement).boxed()
    }

    fn snapshot(&mut self) -> Result<Image, Fault> {
        let memory = self.memory()?.data(&self.store);
        Ok(Image::of(memory, self.fresh_memory()?))
    }

    fn heap_peak(&self) -> u64 {
        let Some(memory) = self.store.data().memory else {
            return 0;
        };
        let read = |at: usize| {
            let bytes = memory
                .data(&self.store)
                .get(at..at + 4)
                .and_then(|bytes| bytes.try_into().ok());
            u64::from(bytes.map_or(0, u32::from_le_bytes))
        };
        read(self.places.heap_peak).saturating_sub(read(self.places.heap_base))
    }
}

impl State {
    fn queue(&mut self, request: Request) -> wasmtime::Result<()> {
        self.queued += std::mem::size_of::<Request>();
        if let Request::Call { path, args, .. } = &request {
            self.queued += path.len() + args.len();
        }
        if self.queued > MAX_QUEUED {
            return Err(wasmtime::Error::new(Starved));
        }
        self.requests.push(request);
        Ok(())
    }
}

impl ResourceLimiter for State {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let growth = (desired as u64).saturating_sub(self.initial.max(current as u64));
        Ok(desired as u64 <= self.ceiling && self.share.grow(growth))
    }

    fn table_growing(&mut self, _: usize, _: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(true)
    }
}

fn initial_memory(instance: &InstancePre<State>) -> u64 {
    let memory = instance.module().get_export("memory");
    memory
        .and_then(|export| {
            export
                .memory()
                .map(|memory| memory.minimum() * memory.page_size())
        })
        .unwrap_or(0)
}

/// Decides at each tick whether the computing guest may continue.
fn check(interrupt: &Leash) -> wasmtime::Result<UpdateDeadline> {
    match interrupt.verdict() {
        Verdict::Run => Ok(UpdateDeadline::Yield(1)),
        verdict => Err(wasmtime::Error::new(Stopped(verdict))),
    }
}

fn fault(error: &wasmtime::Error) -> Fault {
    if let Some(Stopped(verdict)) = error.downcast_ref() {
        return match verdict {
            Verdict::Cut => Fault::Cancelled,
            Verdict::Late | Verdict::Run => Fault::Deadline,
        };
    }
    if error.is::<Starved>() {
        return Fault::Memory;
    }
    match error.downcast_ref::<Trap>() {
        // The guest's own stack is at the lowest addresses of its memory, so an overflow is
        // an access out of bounds.
        Some(Trap::StackOverflow | Trap::MemoryOutOfBounds) => Fault::Stack,
        _ => Fault::Engine(format!("{:#}", error.root_cause())),
    }
}

/// Defines the functions that the guest imports.
pub(crate) fn link(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    const MODULE: &str = "selvedge";
    linker.func_wrap(
        MODULE,
        "call",
        |mut caller: Caller<'_, State>,
         id: u32,
         path: u32,
         path_len: u32,
         args: u32,
         args_len: u32,
         line: u32,
         column: u32| {
            let path = text(&mut caller, path, path_len)?;
            let args = text(&mut caller, args, args_len)?;
            let at = (line > 0).then_some(Position { line, column });
            caller
                .data_mut()
                .queue(Request::Call { id, path, args, at })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "sleep",
        |mut caller: Caller<'_, State>, id: u32, ms: f64| {
            caller.data_mut().queue(Request::Sleep { id, ms })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "cancel",
        |mut caller: Caller<'_, State>, id: u32| caller.data_mut().queue(Request::Cancel { id }),
    )?;
    linker.func_wrap_async(
        MODULE,
        "message",
        |mut caller: Caller<'_, State>, (channel, channel_len, at, len): (u32, u32, u32, u32)| {
            Box::new(async move {
                let channel = text(&mut caller, channel, channel_len)?;
                let message = text(&mut caller, at, len)?;
                let state = caller.data_mut();
                wasmtime::Result::Ok(match state.host.message(&channel, &message).await {
                    None => -1,
                    Some(reply) => {
                        state.reply = reply;
                        i32::try_from(state.reply.len())?
                    }
                })
            })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "take",
        |mut caller: Caller<'_, State>, into: u32| {
            let reply = std::mem::take(&mut caller.data_mut().reply);
            let memory = memory(&caller)?;
            memory.write(&mut caller, into as usize, reply.as_bytes())?;
            wasmtime::Result::Ok(())
        },
    )?;
    linker.func_wrap(MODULE, "now", |mut caller: Caller<'_, State>| {
        caller.data_mut().host.now()
    })?;
    linker.func_wrap(
        MODULE,
        "locate",
        |mut caller: Caller<'_, State>, line: u32, column: u32| {
            let at = caller.data_mut().host.locate(Position { line, column });
            at.map_or(0, |at| u64::from(at.line) << 32 | u64::from(at.column))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "finish",
        |mut caller: Caller<'_, State>, kind: u32, at: u32, len: u32| {
            let json = text(&mut caller, at, len)?;
            caller.data_mut().finish = Some(match kind {
                0 => Finish::Value((!json.is_empty()).then_some(json)),
                1 => Finish::Error(json),
                2 => return Err(wasmtime::Error::new(Starved)),
                4 => Finish::Syntax(json),
                _ => Finish::Exit,
            });
            Ok(())
        },
    )?;
    Ok(())
}

/// The error of a guest that has no memory left, not even to describe an error, or that queued too
/// many requests.
#[derive(Debug)]
struct Starved;

impl fmt::Display for Starved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of memory")
    }
}

impl std::error::Error for Starved {}

fn memory(caller: &Caller<'_, State>) -> wasmtime::Result<Memory> {
    caller
        .data()
        .memory
        .ok_or_else(|| wasmtime::Error::msg("the guest has no memory"))
}

/// Reads text from the guest's memory. A lone surrogate, which UTF-8 cannot encode, becomes U+FFFD.
fn text(caller: &mut Caller<'_, State>, at: u32, len: u32) -> wasmtime::Result<String> {
    let memory = memory(caller)?;
    let bytes = memory
        .data(&caller)
        .get(at as usize..at as usize + len as usize)
        .ok_or_else(|| wasmtime::Error::msg("the guest points outside its memory"))?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}
