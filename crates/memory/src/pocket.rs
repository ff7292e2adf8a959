//! An encoder with its weights inside: a small sentence transformer, in this process.

use crate::Encoder;

/// The transformer of `pocket-encoder`: English, 384 dimensions, the first 128 word pieces of a text.
pub struct Pocket {
    encoder: pocket_encoder::Encoder,
    name: String,
}

impl Pocket {
    /// Unpacks the weights, once per process.
    pub fn new() -> Result<Self, crate::MemoryError> {
        let encoder = pocket_encoder::Encoder::new().map_err(|error| crate::MemoryError::Encoder(error.to_string()))?;
        let info = pocket_encoder::model_info();
        Ok(Self { encoder, name: format!("{} {}", info.id, info.revision) })
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

    fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, String> {
        // It takes no blank text; a turn that says nothing is like nothing in particular.
        let texts: Vec<&str> = texts.iter().map(|text| if text.trim().is_empty() { "." } else { *text }).collect();
        self.encoder.embed(&texts).map_err(|error| error.to_string())
    }
}
