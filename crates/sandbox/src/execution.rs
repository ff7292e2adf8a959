//! One live script: its WebAssembly instance, its requests, and the functions that it imports.

use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;
use wasmtime::{
    Caller, InstancePre, Linker, Memory, ResourceLimiter, Store, Trap, TypedFunc, UpdateDeadline,
};

use crate::budget::{MemoryBudget, MemoryShare};
use crate::deferred_drop::NullHost;
use crate::interrupt::{InterruptHandle, InterruptState};
use crate::runtime::{
    Execution, Fault, GuestProgram, GuestRequest, GuestStep, Host, Position, ScriptFinish,
    Settlement,
};
use crate::snapshot::{FreshMemory, GuestSnapshot};
use crate::ticker::Ticker;

/// Bytes of requests that a script may make between two awaits. Limits the host's memory.
const MAX_QUEUED_BYTES: usize = 16 << 20;

/// Size of the guest's buffer for short texts, as declared in `guest.c`.
const MAILBOX_BYTES: usize = 64 << 10;

/// Largest linear memory that the ticker thread drops. A larger one would delay its ticks.
const MAX_DEFERRED_DROP_BYTES: usize = 16 << 20;

/// Linear memory in addition to the heap limit: texts on their way in or out, and allocator
/// overhead.
const EXTRA_MEMORY_BYTES: u64 = 16 << 20;

/// Signature of the guest's `start`: source, its length, seed, memory limit, stack limit.
type StartFunction = TypedFunc<(u32, u32, u64, u32, u32), u32>;
/// Signature of the guest's `settle`: id, success, text, its length.
type SettleFunction = TypedFunc<(u32, u32, u32, u32), u32>;

/// An [`Execution`] inside WebAssembly.
pub(crate) struct Guest {
    store: Store<GuestState>,
    start: StartFunction,
    settle: SettleFunction,
    alloc: TypedFunc<u32, u32>,
    addresses: GuestAddresses,
    ticker: Arc<Ticker>,
    instance: InstancePre<GuestState>,
    fresh_memory: Arc<FreshMemory>,
    _slot: OwnedSemaphorePermit,
}

/// Addresses of the guest's variables that the host reads or writes.
#[derive(Debug, Clone, Copy)]
struct GuestAddresses {
    mailbox: usize,
    heap_base: usize,
    heap_peak: usize,
}

/// Data of the WebAssembly store: what the imported functions can reach.
pub(crate) struct GuestState {
    host: Box<dyn Host>,
    requests: Vec<GuestRequest>,
    queued_bytes: usize,
    finish: Option<ScriptFinish>,
    reply: String,
    memory: Option<Memory>,
    share: MemoryShare,
    /// Linear memory of a fresh instance, in bytes. `share` includes it from the start.
    initial_bytes: u64,
    max_memory_bytes: u64,
}

/// The error with which the epoch callback stops the guest.
#[derive(Debug)]
struct GuestInterrupted(InterruptState);

impl fmt::Display for GuestInterrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped: {:?}", self.0)
    }
}

impl std::error::Error for GuestInterrupted {}

impl Guest {
    pub(crate) async fn new(
        instance: &InstancePre<GuestState>,
        ticker: &Arc<Ticker>,
        budget: &Arc<MemoryBudget>,
        fresh_memory: &Arc<FreshMemory>,
        slot: OwnedSemaphorePermit,
        program: &GuestProgram<'_>,
        host: Box<dyn Host>,
    ) -> Result<Self, Fault> {
        let initial = initial_memory_bytes(instance);
        let share = budget.reserve(initial).await;
        let state = GuestState {
            host,
            requests: Vec::new(),
            queued_bytes: 0,
            finish: None,
            reply: String::new(),
            memory: None,
            share,
            initial_bytes: initial,
            max_memory_bytes: initial
                .saturating_add(program.memory_limit)
                .saturating_add(EXTRA_MEMORY_BYTES),
        };
        let mut store = Store::new(instance.module().engine(), state);
        store.limiter(|state| state);
        let interrupt = program.interrupt.clone();
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |_| check_interrupt(&interrupt));
        let live = instance
            .instantiate_async(&mut store)
            .await
            .map_err(|error| fault_from(&error))?;
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
        let places = GuestAddresses {
            mailbox: address_of("mailbox")?,
            heap_base: address_of("heap_base")?,
            heap_peak: address_of("heap_peak")?,
        };
        let missing = |error: wasmtime::Error| Fault::Engine(format!("{error:#}"));
        Ok(Self {
            start: live.get_typed_func(&mut store, "start").map_err(missing)?,
            settle: live.get_typed_func(&mut store, "settle").map_err(missing)?,
            alloc: live.get_typed_func(&mut store, "alloc").map_err(missing)?,
            addresses: places,
            store,
            ticker: ticker.clone(),
            instance: instance.clone(),
            fresh_memory: fresh_memory.clone(),
            _slot: slot,
        })
    }

    /// Lets the ticker thread drop the guest, unless that would delay its ticks.
    pub(crate) fn drop_in_background(mut self) {
        if self
            .memory()
            .is_ok_and(|memory| memory.data_size(&self.store) > MAX_DEFERRED_DROP_BYTES)
        {
            return;
        }
        self.store.data_mut().host = Box::new(NullHost);
        let Self {
            store,
            ticker,
            _slot: slot,
            ..
        } = self;
        ticker.drop_later((store, slot));
    }

    /// Compiles the program and runs it until it waits.
    pub(crate) async fn start(&mut self, program: &GuestProgram<'_>) -> Result<GuestStep, Fault> {
        let ticker = self.ticker.clone();
        let _computing = ticker.start_computing();
        self.store.set_epoch_deadline(1);
        let text = self
            .write_text(program.source)
            .await?
            .ok_or(Fault::Memory)?;
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
        self.finish_step(called)
    }

    async fn settle_call(
        &mut self,
        id: u32,
        settlement: Settlement<'_>,
    ) -> Result<GuestStep, Fault> {
        let ticker = self.ticker.clone();
        let _computing = ticker.start_computing();
        self.store.set_epoch_deadline(1);
        let (ok, text) = match settlement {
            Settlement::Value(text) => (1, text),
            Settlement::Error(text) => (0, text),
        };
        let (ok, len, at) = match self.write_text(text).await? {
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
                    self.write_text(&error).await?.ok_or(Fault::Memory)?,
                )
            }
        };
        let settle = self.settle.clone();
        let called = settle
            .call_async(&mut self.store, (id, ok, at, len as u32))
            .await;
        self.finish_step(called)
    }

    fn memory(&self) -> Result<Memory, Fault> {
        self.store
            .data()
            .memory
            .ok_or_else(|| Fault::Engine("the guest has no memory".into()))
    }

    /// Overwrites the memory of a fresh guest with that of a snapshot.
    pub(crate) async fn restore(&mut self, snapshot: &GuestSnapshot) -> Result<(), Fault> {
        if !snapshot.is_complete() {
            return Err(Fault::Engine("the snapshot is truncated".into()));
        }
        let memory = self.memory()?;
        let missing = snapshot
            .memory_bytes()
            .saturating_sub(memory.data_size(&self.store) as u64);
        if missing > 0 {
            let pages = missing.div_ceil(memory.page_size(&self.store));
            memory
                .grow_async(&mut self.store, pages)
                .await
                .map_err(|_| Fault::Memory)?;
        }
        let outside = || Fault::Engine("the snapshot does not fit its own memory".into());
        for (at, page) in snapshot.changed_pages() {
            memory
                .write(&mut self.store, at, page)
                .map_err(|_| outside())?;
        }
        Ok(())
    }

    /// Returns the memory of a fresh guest.
    fn fresh_memory(&self) -> Result<&[u8], Fault> {
        self.fresh_memory.get_or_read(|| {
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

    fn finish_step(&mut self, called: wasmtime::Result<u32>) -> Result<GuestStep, Fault> {
        called.map_err(|error| fault_from(&error))?;
        let state = self.store.data_mut();
        state.queued_bytes = 0;
        Ok(GuestStep {
            requests: std::mem::take(&mut state.requests),
            state: match state.finish.take() {
                Some(finish) => crate::GuestStepState::Finished(finish),
                None => crate::GuestStepState::Waiting,
            },
        })
    }

    /// Copies text into the guest, with room for the terminator that the guest adds. Returns the
    /// address, or `None` if the text does not fit.
    async fn write_text(&mut self, text: &str) -> Result<Option<u32>, Fault> {
        let Ok(len) = u32::try_from(text.len()) else {
            return Ok(None);
        };
        let at = if text.len() < MAILBOX_BYTES {
            self.addresses.mailbox as u32
        } else {
            let alloc = self.alloc.clone();
            alloc
                .call_async(&mut self.store, len)
                .await
                .map_err(|error| fault_from(&error))?
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
        settlement: Settlement<'a>,
    ) -> BoxFuture<'a, Result<GuestStep, Fault>> {
        self.settle_call(id, settlement).boxed()
    }

    fn snapshot(&mut self) -> Result<GuestSnapshot, Fault> {
        let memory = self.memory()?.data(&self.store);
        Ok(GuestSnapshot::from_memory(memory, self.fresh_memory()?))
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
        read(self.addresses.heap_peak).saturating_sub(read(self.addresses.heap_base))
    }
}

impl GuestState {
    fn queue_request(&mut self, request: GuestRequest) -> wasmtime::Result<()> {
        self.queued_bytes += std::mem::size_of::<GuestRequest>();
        if let GuestRequest::Call { path, args, .. } = &request {
            self.queued_bytes += path.len() + args.len();
        }
        if self.queued_bytes > MAX_QUEUED_BYTES {
            return Err(wasmtime::Error::new(GuestOutOfMemory));
        }
        self.requests.push(request);
        Ok(())
    }
}

impl ResourceLimiter for GuestState {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let growth = (desired as u64).saturating_sub(self.initial_bytes.max(current as u64));
        Ok(desired as u64 <= self.max_memory_bytes && self.share.try_grow(growth))
    }

    fn table_growing(&mut self, _: usize, _: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(true)
    }
}

fn initial_memory_bytes(instance: &InstancePre<GuestState>) -> u64 {
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
fn check_interrupt(interrupt: &InterruptHandle) -> wasmtime::Result<UpdateDeadline> {
    match interrupt.state() {
        InterruptState::Continue => Ok(UpdateDeadline::Yield(1)),
        verdict => Err(wasmtime::Error::new(GuestInterrupted(verdict))),
    }
}

fn fault_from(error: &wasmtime::Error) -> Fault {
    if let Some(GuestInterrupted(verdict)) = error.downcast_ref() {
        return match verdict {
            InterruptState::Cancelled => Fault::Cancelled,
            InterruptState::DeadlinePassed | InterruptState::Continue => Fault::Deadline,
        };
    }
    if error.is::<GuestOutOfMemory>() {
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
pub(crate) fn define_imports(linker: &mut Linker<GuestState>) -> wasmtime::Result<()> {
    const MODULE: &str = "selvedge";
    linker.func_wrap(
        MODULE,
        "call",
        |mut caller: Caller<'_, GuestState>,
         id: u32,
         path: u32,
         path_len: u32,
         args: u32,
         args_len: u32,
         line: u32,
         column: u32| {
            let path = read_text(&mut caller, path, path_len)?;
            let args = read_text(&mut caller, args, args_len)?;
            let at = (line > 0).then_some(Position { line, column });
            caller
                .data_mut()
                .queue_request(GuestRequest::Call { id, path, args, at })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "sleep",
        |mut caller: Caller<'_, GuestState>, id: u32, ms: f64| {
            caller
                .data_mut()
                .queue_request(GuestRequest::Sleep { id, ms })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "cancel",
        |mut caller: Caller<'_, GuestState>, id: u32| {
            caller.data_mut().queue_request(GuestRequest::Cancel { id })
        },
    )?;
    linker.func_wrap_async(
        MODULE,
        "message",
        |mut caller: Caller<'_, GuestState>,
         (channel, channel_len, at, len): (u32, u32, u32, u32)| {
            Box::new(async move {
                let channel = read_text(&mut caller, channel, channel_len)?;
                let message = read_text(&mut caller, at, len)?;
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
        |mut caller: Caller<'_, GuestState>, into: u32| {
            let reply = std::mem::take(&mut caller.data_mut().reply);
            let memory = guest_memory(&caller)?;
            memory.write(&mut caller, into as usize, reply.as_bytes())?;
            wasmtime::Result::Ok(())
        },
    )?;
    linker.func_wrap(MODULE, "now", |mut caller: Caller<'_, GuestState>| {
        caller.data_mut().host.now()
    })?;
    linker.func_wrap(
        MODULE,
        "locate",
        |mut caller: Caller<'_, GuestState>, line: u32, column: u32| {
            let at = caller.data_mut().host.locate(Position { line, column });
            at.map_or(0, |at| u64::from(at.line) << 32 | u64::from(at.column))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "finish",
        |mut caller: Caller<'_, GuestState>, kind: u32, at: u32, len: u32| {
            let json = read_text(&mut caller, at, len)?;
            caller.data_mut().finish = Some(match kind {
                0 => ScriptFinish::Value((!json.is_empty()).then_some(json)),
                1 => ScriptFinish::Error(json),
                2 => return Err(wasmtime::Error::new(GuestOutOfMemory)),
                4 => ScriptFinish::Syntax(json),
                _ => ScriptFinish::Exit,
            });
            Ok(())
        },
    )?;
    Ok(())
}

/// The error of a guest that has no memory left, not even to describe an error, or that queued too
/// many requests.
#[derive(Debug)]
struct GuestOutOfMemory;

impl fmt::Display for GuestOutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of memory")
    }
}

impl std::error::Error for GuestOutOfMemory {}

fn guest_memory(caller: &Caller<'_, GuestState>) -> wasmtime::Result<Memory> {
    caller
        .data()
        .memory
        .ok_or_else(|| wasmtime::Error::msg("the guest has no memory"))
}

/// Reads text from the guest's memory. A lone surrogate, which UTF-8 cannot encode, becomes U+FFFD.
fn read_text(caller: &mut Caller<'_, GuestState>, at: u32, len: u32) -> wasmtime::Result<String> {
    let memory = guest_memory(caller)?;
    let bytes = memory
        .data(&caller)
        .get(at as usize..at as usize + len as usize)
        .ok_or_else(|| wasmtime::Error::msg("the guest points outside its memory"))?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}
