//! An encoder with its weights inside: a small sentence transformer, in this process.

use crate::{Encoder, MemoryError};

/// Texts are read this far; the transformer takes its first 128 word pieces.
const CHARACTERS: usize = 2_000;

/// The transformer of `pocket-encoder`: English, 384 dimensions, the first 128 word pieces of a text.
pub struct Pocket {
    name: String,
}

impl Pocket {
    /// Its weights are unpacked when something is first encoded, once per process.
    pub fn new() -> Self {
        let info = pocket_encoder::model_info();
        Self {
            name: format!("{} {}", info.id, info.revision),
        }
    }
}

impl Default for Pocket {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Pocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pocket").field(&self.name).finish()
    }
}

impl Encoder for Pocket {
    fn name(&self) -> &str {
        &self.name
    }

    fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, MemoryError> {
        let beginning = |text: &&str| -> String {
            let beginning: String = text.chars().take(CHARACTERS).collect();
            // It takes no blank text; a turn that says nothing is like nothing in particular.
            if beginning.trim().is_empty() {
                ".".to_owned()
            } else {
                beginning
            }
        };
        let texts: Vec<String> = texts.iter().map(beginning).collect();
        let failed = |why: String| MemoryError::Encoder(format!("{}: {why}", self.name));
        let encoder = pocket_encoder::Encoder::new().map_err(|error| failed(error.to_string()))?;
        encoder
            .embed(&texts)
            .map_err(|error| failed(error.to_string()))
    }
}
