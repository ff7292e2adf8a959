//! Opens the memory, and configures how agents use it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use selvedge_agent::{RememberSettings, Remembering, Small, Telling};
use selvedge_config::{Config, MemoryBatch, MemoryStrategy};
use selvedge_journal::{JournalError, Redactor};
use selvedge_memory::{Gradient, Memory, MemoryError, SmallModel};
use selvedge_models::{Client, Model};

use crate::args::ModelArgs;
use crate::problem::Problem;
use crate::providers::{self, Choice};
use crate::setup::Setup;

/// Opens the memory in Selvedge's folder; `None` without a journal.
pub(crate) fn memory(setup: &Setup) -> Result<Option<Arc<Memory>>> {
    let (Some(home), Some(_)) = (&setup.home, &setup.journal) else {
        return Ok(None);
    };
    Ok(Some(Arc::new(open(home, &setup.config)?)))
}

/// Opens the memory in a folder. It is encrypted if the journal is, or if it already was.
pub(crate) fn open(home: &Path, config: &Config) -> Result<Memory> {
    let redactor = || Redactor::new(config.journal.secret_names.clone());
    let opened = match config.journal.encrypt {
        false => Memory::open(home, redactor()),
        true => Err(JournalError::Sealed.into()),
    };
    let opened = match opened {
        Err(MemoryError::Journal(JournalError::Sealed)) => {
            Memory::open_sealed(home, redactor(), &crate::keyring::journal_key()?)
        }
        opened => opened,
    };
    Ok(opened
        .map_err(|error| crate::memory::problem(&error))?
        .with_built_in_encoder())
}

/// Returns how an agent with this model uses the memory. `small` summarises and distils.
pub(crate) fn remembering(
    config: &Config,
    memory: Arc<Memory>,
    model: &Model,
    small: Option<Arc<dyn SmallModel>>,
) -> Remembering {
    let keys = &config.memory;
    let telling = match keys.strategy {
        MemoryStrategy::Gradient => {
            // The other half is left to the current turn.
            let half = u32::try_from(model.context_window / 2).unwrap_or(u32::MAX);
            Telling::Gradient(Gradient {
                budget: keys.budget.min(half),
                bands: keys.bands,
            })
        }
        MemoryStrategy::Regular => Telling::Regular,
        MemoryStrategy::OneShot => Telling::OneShot,
    };
    let minutes = Duration::from_secs(60 * u64::from(keys.distill_idle_minutes));
    let settings = RememberSettings {
        telling,
        recall: keys.recall.then(|| Duration::from_millis(keys.recall_ms)),
        recall_tokens: keys.recall_tokens,
        distill_after: (!minutes.is_zero()).then_some(minutes),
    };
    Remembering::new(memory, settings, small)
}

/// Returns the model that `memory.model` names, if it is set.
pub(crate) async fn small_model(config: &Config) -> Result<Option<Arc<dyn SmallModel>>> {
    let Some(name) = &config.memory.model else {
        return Ok(None);
    };
    let args = ModelArgs {
        model: Some(name.clone()),
        provider: None,
    };
    let Choice {
        provider, model, ..
    } = providers::choose(config, &args).await?;
    let by_batches = match config.memory.batch {
        MemoryBatch::Auto => matches!(provider.name.as_str(), "openai" | "anthropic"),
        MemoryBatch::Always => true,
        MemoryBatch::Never => false,
    };
    let client = Client::new(provider).map_err(|error| Problem::new(error.to_string()))?;
    let small = Small::new(client, model);
    let small = if by_batches {
        small.with_batches()
    } else {
        small
    };
    Ok(Some(Arc::new(small)))
}
