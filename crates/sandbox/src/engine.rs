//! The WebAssembly runtime: loads the embedded guest once and creates copy-on-write instances of
//! it.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, InstancePre, Linker,
    PoolingAllocationConfig,
};

use crate::budget::{MemoryBudget, total_memory_bytes};
use crate::code;
use crate::deferred_drop::DeferredDropGuest;
use crate::execution::{Guest, GuestState, define_imports};
use crate::runtime::{Execution, Fault, GuestProgram, Host, Runtime, StartedExecution};
use crate::snapshot::{FreshMemory, GUEST_BUILD_ID, GuestSnapshot};
use crate::ticker::Ticker;

/// Native stack of a script. Much larger than the stack limit that QuickJS itself checks
/// (`GuestProgram::stack_limit`), because deep recursion in its parsers uses little of that stack
/// and much of the native one.
const NATIVE_STACK_BYTES: usize = 8 << 20;

/// Limits of one [`WasmRuntime`]: how many scripts it runs at once, and with how much memory.
#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// Scripts that may be alive at once. Further scripts wait for a free slot.
    pub max_scripts: u32,
    /// Total linear memory of all live scripts, in bytes. Scripts that do not fit wait.
    pub max_memory_bytes: u64,
    /// Whether memory slots are reused. If not, every script maps new memory, which is slower.
    pub pooling: bool,
}

impl EngineSettings {
    /// Settings for a process that runs one script: reserving slots for a thousand would take
    /// longer than the script.
    pub fn for_one_script() -> Self {
        Self {
            max_scripts: 1,
            ..Self::default()
        }
    }
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            max_scripts: 1024,
            max_memory_bytes: total_memory_bytes().unwrap_or(4 << 30) / 2,
            pooling: true,
        }
    }
}

/// QuickJS in WebAssembly: the default [`Runtime`].
pub struct WasmRuntime {
    instance_pre: InstancePre<GuestState>,
    ticker: Arc<Ticker>,
    budget: Arc<MemoryBudget>,
    slots: Arc<Semaphore>,
    fresh_memory: Arc<FreshMemory>,
}

impl WasmRuntime {
    /// Loads the engine. Takes a few milliseconds: a process should do it once.
    pub fn new(settings: EngineSettings) -> Result<Self, Fault> {
        let engine_fault = |error: wasmtime::Error| Fault::Engine(format!("{error:#}"));
        let mut config = Config::new();
        config.epoch_interruption(true);
        config.max_wasm_stack(NATIVE_STACK_BYTES);
        config.async_stack_size(NATIVE_STACK_BYTES + (512 << 10));
        if settings.pooling {
            // One more than there are scripts: taking a snapshot needs a fresh guest to compare
            // with.
            config.allocation_strategy(InstanceAllocationStrategy::Pooling(pooling_config(
                settings.max_scripts + 1,
            )));
        }
        code::prepare(&mut config);
        let engine = Engine::new(&config).map_err(engine_fault)?;
        let module = code::load(&engine).map_err(engine_fault)?;
        let mut linker = Linker::new(&engine);
        define_imports(&mut linker).map_err(engine_fault)?;
        let instance = linker.instantiate_pre(&module).map_err(engine_fault)?;
        let ticker = Ticker::new(&engine)
            .map_err(|error| Fault::Engine(format!("cannot start a thread: {error}")))?;
        Ok(Self {
            instance_pre: instance,
            ticker: Arc::new(ticker),
            budget: Arc::new(MemoryBudget::new(settings.max_memory_bytes)),
            slots: Arc::new(Semaphore::new(settings.max_scripts as usize)),
            fresh_memory: Arc::default(),
        })
    }

    /// Returns the runtime that the process shares. It has the default settings and is loaded on
    /// first use.
    pub fn shared() -> Result<Arc<Self>, Fault> {
        static SHARED: RuntimeCell = RuntimeCell(Mutex::new(None));
        SHARED.get_or_load(EngineSettings::default)
    }

    async fn new_guest(
        &self,
        slot: OwnedSemaphorePermit,
        program: &GuestProgram<'_>,
        host: Box<dyn Host>,
    ) -> Result<Guest, Fault> {
        Guest::new(
            &self.instance_pre,
            &self.ticker,
            &self.budget,
            &self.fresh_memory,
            slot,
            program,
            host,
        )
        .await
    }

    /// Returns the memory budget that all live scripts share.
    pub fn budget(&self) -> &MemoryBudget {
        &self.budget
    }
}

impl Runtime for WasmRuntime {
    fn build_id(&self) -> &str {
        GUEST_BUILD_ID
    }

    fn start<'a>(
        &'a self,
        program: GuestProgram<'a>,
        host: Box<dyn Host>,
    ) -> BoxFuture<'a, Result<StartedExecution, Fault>> {
        async move {
            let slot = self
                .slots
                .clone()
                .acquire_owned()
                .await
                .map_err(|error| Fault::Engine(error.to_string()))?;
            let mut guest = self.new_guest(slot, &program, host).await?;
            let step = guest.start(&program).await?;
            Ok((
                Box::new(DeferredDropGuest::new(guest)) as Box<dyn Execution>,
                step,
            ))
        }
        .boxed()
    }

    fn restore<'a>(
        &'a self,
        snapshot: &'a GuestSnapshot,
        program: GuestProgram<'a>,
        host: Box<dyn Host>,
    ) -> BoxFuture<'a, Result<Box<dyn Execution>, Fault>> {
        async move {
            if snapshot.build_id != GUEST_BUILD_ID {
                return Err(Fault::BuildMismatch {
                    theirs: snapshot.build_id.clone(),
                    ours: GUEST_BUILD_ID.to_owned(),
                });
            }
            let slot = self
                .slots
                .clone()
                .acquire_owned()
                .await
                .map_err(|error| Fault::Engine(error.to_string()))?;
            let mut guest = self.new_guest(slot, &program, host).await?;
            guest.restore(snapshot).await?;
            Ok(Box::new(DeferredDropGuest::new(guest)) as Box<dyn Execution>)
        }
        .boxed()
    }
}

/// A runtime that is loaded on first use. Of several concurrent callers, one loads it.
#[derive(Debug, Default)]
struct RuntimeCell(Mutex<Option<Arc<WasmRuntime>>>);

impl RuntimeCell {
    fn get_or_load(
        &self,
        settings: impl FnOnce() -> EngineSettings,
    ) -> Result<Arc<WasmRuntime>, Fault> {
        let mut loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wasm = match loaded.take() {
            Some(wasm) => wasm,
            None => Arc::new(WasmRuntime::new(settings())?),
        };
        Ok(loaded.insert(wasm).clone())
    }
}

/// A runtime that is loaded when the first script runs, so that an idle process does not hold the
/// engine in memory. The default one uses the runtime that the process shares.
#[derive(Debug, Default)]
pub struct LazyWasmRuntime {
    dedicated: Option<(EngineSettings, RuntimeCell)>,
}

impl LazyWasmRuntime {
    /// Creates a runtime that is not shared, with these settings.
    pub fn new(settings: EngineSettings) -> Self {
        Self {
            dedicated: Some((settings, RuntimeCell::default())),
        }
    }

    fn runtime(&self) -> Result<Arc<WasmRuntime>, Fault> {
        match &self.dedicated {
            Some((settings, loaded)) => loaded.get_or_load(|| settings.clone()),
            None => WasmRuntime::shared(),
        }
    }
}

impl Runtime for LazyWasmRuntime {
    fn build_id(&self) -> &str {
        GUEST_BUILD_ID
    }

    fn load(&self) -> Result<(), Fault> {
        self.runtime().map(drop)
    }

    fn start<'a>(
        &'a self,
        program: GuestProgram<'a>,
        host: Box<dyn Host>,
    ) -> BoxFuture<'a, Result<StartedExecution, Fault>> {
        async move { self.runtime()?.start(program, host).await }.boxed()
    }

    fn restore<'a>(
        &'a self,
        snapshot: &'a GuestSnapshot,
        program: GuestProgram<'a>,
        host: Box<dyn Host>,
    ) -> BoxFuture<'a, Result<Box<dyn Execution>, Fault>> {
        async move { self.runtime()?.restore(snapshot, program, host).await }.boxed()
    }
}

impl std::fmt::Debug for WasmRuntime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WasmRuntime")
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

fn pooling_config(slots: u32) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(slots)
        .total_memories(slots)
        .total_tables(slots)
        .total_stacks(slots);
    pool.max_memory_size(4 << 30);
    pool.max_unused_warm_slots(0);
    // With `pagemap_scan`, only pages that a script wrote are restored: by copying, up to this many
    // bytes per slot. These bytes stay resident, so idle memory is at most this size times the
    // largest number of slots used at once.
    pool.linear_memory_keep_resident(512 << 10);
    pool.table_keep_resident(64 << 10);
    pool.pagemap_scan(Enabled::Auto);
    pool
}
