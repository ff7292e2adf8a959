//! Properties of well-known models, by the prefix of their names.
//!
//! A model that is not in the table gets common defaults.

use crate::{Model, Thinking};

/// Prefix of the name, context window, longest answer (both in tokens), how reasoning is requested,
/// and capabilities.
struct Row(&'static str, u64, u64, Thinking, &'static [Can]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Can {
    Tools,
    Freeform,
    Images,
}

const SEES: &[Can] = &[Can::Tools, Can::Images];
const ALL: &[Can] = &[Can::Tools, Can::Freeform, Can::Images];
const TOOLS: &[Can] = &[Can::Tools];

use Thinking::{Adaptive, Budget, Effort, Unsaid};

/// A prefix comes after the longer ones that start with it.
#[rustfmt::skip]
const TABLE: &[Row] = &[
    Row("gpt-6",              1_050_000, 128_000, Effort,   ALL),
    Row("gpt-5-chat",           128_000,  16_384, Unsaid,   SEES),
    Row("gpt-5.6",            1_050_000, 128_000, Effort,   ALL),
    Row("gpt-5.5",            1_050_000, 128_000, Effort,   ALL),
    Row("gpt-5.4-mini",         400_000, 128_000, Effort,   ALL),
    Row("gpt-5.4-nano",         400_000, 128_000, Effort,   ALL),
    Row("gpt-5.4",            1_050_000, 128_000, Effort,   ALL),
    Row("gpt-5.3-codex-spark",  128_000,  32_768, Effort,   ALL),
    Row("gpt-5",                400_000, 128_000, Effort,   ALL),
    Row("codex-mini",           200_000, 100_000, Effort,   SEES),
    Row("gpt-oss",              131_072,  32_768, Effort,   TOOLS),
    Row("gpt-4.1",            1_047_576,  32_768, Unsaid,   SEES),
    Row("gpt-4o",               128_000,  16_384, Unsaid,   SEES),
    Row("gpt-4",                128_000,   4_096, Unsaid,   TOOLS),
    Row("o4-mini",              200_000, 100_000, Effort,   SEES),
    Row("o3-mini",              200_000, 100_000, Effort,   TOOLS),
    Row("o3",                   200_000, 100_000, Effort,   SEES),
    Row("o1",                   200_000, 100_000, Effort,   SEES),

    Row("claude-opus-5",      1_000_000, 128_000, Adaptive, SEES),
    Row("claude-sonnet-5",    1_000_000, 128_000, Adaptive, SEES),
    Row("claude-fable-5",     1_000_000, 128_000, Adaptive, SEES),
    Row("claude-opus-4-8",    1_000_000, 128_000, Adaptive, SEES),
    Row("claude-opus-4-7",    1_000_000, 128_000, Adaptive, SEES),
    Row("claude-opus-4-6",    1_000_000, 128_000, Adaptive, SEES),
    Row("claude-sonnet-4-6",  1_000_000, 128_000, Adaptive, SEES),
    Row("claude-opus-4-5",      200_000,  64_000, Budget,   SEES),
    Row("claude-sonnet-4",      200_000,  64_000, Budget,   SEES),
    Row("claude-haiku-4",       200_000,  64_000, Budget,   SEES),
    Row("claude-opus-4",        200_000,  32_000, Budget,   SEES),
    Row("claude-3-7-sonnet",    200_000,  64_000, Budget,   SEES),
    Row("claude-3",             200_000,   4_096, Unsaid,   SEES),
    Row("claude",               200_000,  32_000, Unsaid,   SEES),

    Row("grok-code",            256_000,  32_768, Unsaid,   TOOLS),
    Row("grok",                 256_000,  32_768, Effort,   SEES),
    Row("gemini",             1_048_576,  65_536, Effort,   SEES),
    Row("deepseek",             131_072,  32_768, Unsaid,   TOOLS),
    Row("kimi",                 262_144,  32_768, Unsaid,   TOOLS),
    Row("glm",                  202_752,  32_768, Unsaid,   TOOLS),
    Row("qwen",                 131_072,  32_768, Unsaid,   TOOLS),
    Row("mistral",              131_072,  32_768, Unsaid,   TOOLS),
    Row("devstral",             131_072,  32_768, Unsaid,   TOOLS),
    Row("llama",                131_072,  16_384, Unsaid,   TOOLS),
    Row("gemma",                131_072,   8_192, Unsaid,   TOOLS),
];

/// Defaults of a model that is not in the table.
const UNKNOWN: Row = Row("", 32_768, 8_192, Unsaid, TOOLS);

impl Model {
    /// Returns the properties of a model from the table, or defaults if it is not there.
    pub fn known(name: &str) -> Self {
        // Gateways prepend the vendor, servers a path. Suffixes do not matter.
        let mut bare = name.rsplit('/').next().unwrap_or(name).to_lowercase();
        for family in ["claude-opus-4", "claude-sonnet-4", "claude-haiku-4"] {
            bare = bare.replace(&format!("{family}."), &format!("{family}-"));
        }
        let row = TABLE.iter().find(|row| bare.starts_with(row.0));
        let Row(_, window, output, thinking, capabilities) = row.unwrap_or(&UNKNOWN);
        Self {
            name: name.to_owned(),
            context_window: *window,
            max_output_tokens: *output,
            thinking: *thinking,
            tools: capabilities.contains(&Can::Tools),
            freeform_tools: capabilities.contains(&Can::Freeform),
            images: capabilities.contains(&Can::Images),
            prices: None,
            script_mode: None,
            tool_pack: None,
        }
    }

    /// Whether the table has a row for this name.
    pub fn is_known(name: &str) -> bool {
        Self::known(name)
            != Self {
                name: name.to_owned(),
                ..Self::known("")
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_can_be_matched() {
        for (index, row) in TABLE.iter().enumerate() {
            let first = TABLE.iter().position(|other| row.0.starts_with(other.0));
            assert_eq!(first, Some(index), "{} is never matched", row.0);
        }
    }

    #[test]
    fn names_with_vendor_path_or_suffix_are_found() {
        assert_eq!(Model::known("openai/gpt-5.5").thinking, Effort);
        assert!(Model::known("gpt-5.5").freeform_tools);
        assert_eq!(
            Model::known("anthropic/claude-opus-4.7").max_output_tokens,
            128_000
        );
        assert_eq!(Model::known("claude-sonnet-4-20250514").thinking, Budget);
        assert_eq!(
            Model::known("/models/Qwen3-1.7B-Q4_K_M.gguf").context_window,
            131_072
        );
        assert!(!Model::is_known("my-own-model") && Model::is_known("o3"));
    }
}
