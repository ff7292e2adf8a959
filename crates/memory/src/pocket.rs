//! The built-in encoder: a small sentence transformer that runs in this process, with its weights
//! compiled in.

use crate::{Encoder, MemoryError};

/// Longer texts are cut. The transformer reads only 128 word pieces.
const MAX_TEXT_CHARS: usize = 2_000;

/// The encoder of the crate `pocket-encoder`: English, 384 dimensions. It reads the first 128 word
/// pieces of a text.
pub struct PocketEncoder {
    name: String,
}

impl PocketEncoder {
    /// Creates the encoder. Its weights are unpacked with the first text, once per process.
    pub fn new() -> Self {
        let info = pocket_encoder::model_info();
        Self {
            name: format!("{} {}", info.id, info.revision),
        }
    }
}

impl Default for PocketEncoder {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for PocketEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PocketEncoder").field(&self.name).finish()
    }
}

impl Encoder for PocketEncoder {
    fn name(&self) -> &str {
        &self.name
    }

    fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, MemoryError> {
        let beginning = |text: &&str| -> String {
            let beginning: String = text.chars().take(MAX_TEXT_CHARS).collect();
            // The transformer rejects blank text.
            if beginning.trim().is_empty() {
                ".".to_owned()
            } else {
                beginning
            }
        };
        let texts: Vec<String> = texts.iter().map(beginning).collect();
        let encoder_error =
            |message: String| MemoryError::Encoder(format!("{}: {message}", self.name));
        let encoder =
            pocket_encoder::Encoder::new().map_err(|error| encoder_error(error.to_string()))?;
        encoder
            .embed(&texts)
            .map_err(|error| encoder_error(error.to_string()))
    }
}
