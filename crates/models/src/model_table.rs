//! Properties of well-known models, by the prefix of their names.
//!
//! A model that is not in the table gets common defaults.

use selvedge_protocol::{LimitOverrides, ShellFlavour};

use crate::price_table::list_prices;
use crate::{Model, Provider, ReasoningStyle, WindowSource};

/// Properties of the models whose names start with a prefix.
struct ModelRow {
    prefix: &'static str,
    /// Size of the context window, in tokens.
    window: u64,
    /// Longest answer, in tokens.
    max_output: u64,
    reasoning: ReasoningStyle,
    capabilities: &'static [TableCapability],
}

/// Makes a row of the table, so that each model takes one line.
const fn row(
    prefix: &'static str,
    window: u64,
    max_output: u64,
    reasoning: ReasoningStyle,
    capabilities: &'static [TableCapability],
) -> ModelRow {
    ModelRow {
        prefix,
        window,
        max_output,
        reasoning,
        capabilities,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TableCapability {
    Tools,
    Freeform,
    Images,
    /// The family was trained on `shell_command`, with one line for a shell.
    CommandLine,
}

const TOOLS_AND_IMAGES: &[TableCapability] = &[TableCapability::Tools, TableCapability::Images];
const TOOLS_FREEFORM_AND_IMAGES: &[TableCapability] = &[
    TableCapability::Tools,
    TableCapability::Freeform,
    TableCapability::Images,
];
const ALL_CAPABILITIES: &[TableCapability] = &[
    TableCapability::Tools,
    TableCapability::Freeform,
    TableCapability::Images,
    TableCapability::CommandLine,
];
const TOOLS_ONLY: &[TableCapability] = &[TableCapability::Tools];

use ReasoningStyle::{Adaptive, Budget, Effort, Omitted};

/// A prefix comes after the longer ones that start with it.
#[rustfmt::skip]
const MODEL_TABLE: &[ModelRow] = &[
    row("gpt-6",              1_050_000, 128_000, Effort,   ALL_CAPABILITIES),
    row("gpt-5-chat",           128_000,  16_384, Omitted,  TOOLS_AND_IMAGES),
    row("gpt-5.6",            1_050_000, 128_000, Effort,   ALL_CAPABILITIES),
    row("gpt-5.5",            1_050_000, 128_000, Effort,   ALL_CAPABILITIES),
    row("gpt-5.4-mini",         400_000, 128_000, Effort,   ALL_CAPABILITIES),
    row("gpt-5.4-nano",         400_000, 128_000, Effort,   ALL_CAPABILITIES),
    row("gpt-5.4",            1_050_000, 128_000, Effort,   ALL_CAPABILITIES),
    row("gpt-5.3-codex-spark",  128_000,  32_768, Effort,   ALL_CAPABILITIES),
    row("gpt-5",                400_000, 128_000, Effort,   TOOLS_FREEFORM_AND_IMAGES),
    row("codex-mini",           200_000, 100_000, Effort,   TOOLS_AND_IMAGES),
    row("gpt-oss",              131_072,  32_768, Effort,   TOOLS_ONLY),
    row("gpt-4.1",            1_047_576,  32_768, Omitted,  TOOLS_AND_IMAGES),
    row("gpt-4o",               128_000,  16_384, Omitted,  TOOLS_AND_IMAGES),
    row("gpt-4",                128_000,   4_096, Omitted,  TOOLS_ONLY),
    row("o4-mini",              200_000, 100_000, Effort,   TOOLS_AND_IMAGES),
    row("o3-mini",              200_000, 100_000, Effort,   TOOLS_ONLY),
    row("o3",                   200_000, 100_000, Effort,   TOOLS_AND_IMAGES),
    row("o1",                   200_000, 100_000, Effort,   TOOLS_AND_IMAGES),

    row("claude-opus-5",      1_000_000, 128_000, Adaptive, TOOLS_AND_IMAGES),
    row("claude-sonnet-5",    1_000_000, 128_000, Adaptive, TOOLS_AND_IMAGES),
    row("claude-fable-5",     1_000_000, 128_000, Adaptive, TOOLS_AND_IMAGES),
    row("claude-opus-4-8",    1_000_000, 128_000, Adaptive, TOOLS_AND_IMAGES),
    row("claude-opus-4-7",    1_000_000, 128_000, Adaptive, TOOLS_AND_IMAGES),
    row("claude-opus-4-6",    1_000_000, 128_000, Adaptive, TOOLS_AND_IMAGES),
    row("claude-sonnet-4-6",  1_000_000, 128_000, Adaptive, TOOLS_AND_IMAGES),
    row("claude-opus-4-5",      200_000,  64_000, Budget,   TOOLS_AND_IMAGES),
    row("claude-sonnet-4",      200_000,  64_000, Budget,   TOOLS_AND_IMAGES),
    row("claude-haiku-4",       200_000,  64_000, Budget,   TOOLS_AND_IMAGES),
    row("claude-opus-4",        200_000,  32_000, Budget,   TOOLS_AND_IMAGES),
    row("claude-3-7-sonnet",    200_000,  64_000, Budget,   TOOLS_AND_IMAGES),
    row("claude-3",             200_000,   4_096, Omitted,  TOOLS_AND_IMAGES),
    row("claude",               200_000,  32_000, Omitted,  TOOLS_AND_IMAGES),

    row("grok-code",            256_000,  32_768, Omitted,  TOOLS_ONLY),
    row("grok",                 256_000,  32_768, Effort,   TOOLS_AND_IMAGES),
    row("gemini",             1_048_576,  65_536, Effort,   TOOLS_AND_IMAGES),
    row("deepseek",             131_072,  32_768, Omitted,  TOOLS_ONLY),
    row("kimi",                 262_144,  32_768, Omitted,  TOOLS_ONLY),
    row("glm",                  202_752,  32_768, Omitted,  TOOLS_ONLY),
    row("qwen",                 131_072,  32_768, Omitted,  TOOLS_ONLY),
    row("mistral",              131_072,  32_768, Omitted,  TOOLS_ONLY),
    row("devstral",             131_072,  32_768, Omitted,  TOOLS_ONLY),
    row("llama",                131_072,  16_384, Omitted,  TOOLS_ONLY),
    row("gemma",                131_072,   8_192, Omitted,  TOOLS_ONLY),
];

/// Defaults of a model that is not in the table.
const UNKNOWN_MODEL: ModelRow = row("", 32_768, 8_192, Omitted, TOOLS_ONLY);
/// Context window of a model that is not in the table and whose server is not on this machine.
const UNKNOWN_REMOTE_WINDOW_TOKENS: u64 = 128_000;

impl Model {
    /// Returns the properties of a model from the table, or defaults if it is not there.
    pub fn from_table(name: &str) -> Self {
        // Gateways prepend the vendor, servers a path. Suffixes do not matter.
        let mut bare = name.rsplit('/').next().unwrap_or(name).to_lowercase();
        for family in ["claude-opus-4", "claude-sonnet-4", "claude-haiku-4"] {
            bare = bare.replace(&format!("{family}."), &format!("{family}-"));
        }
        let row = MODEL_TABLE.iter().find(|row| bare.starts_with(row.prefix));
        let ModelRow {
            window,
            max_output,
            reasoning,
            capabilities,
            ..
        } = row.unwrap_or(&UNKNOWN_MODEL);
        Self {
            name: name.to_owned(),
            context_window: *window,
            window_source: match row {
                Some(_) => WindowSource::Table,
                None => WindowSource::Assumed,
            },
            max_output_tokens: *max_output,
            reasoning: *reasoning,
            tools: capabilities.contains(&TableCapability::Tools),
            freeform_tools: capabilities.contains(&TableCapability::Freeform),
            images: capabilities.contains(&TableCapability::Images),
            shell: match capabilities.contains(&TableCapability::CommandLine) {
                true => ShellFlavour::CommandLine,
                false => ShellFlavour::default(),
            },
            patch: None,
            strict_schemas: false,
            prices: None,
            script_mode: None,
            script_limits: LimitOverrides::default(),
            tool_pack: None,
        }
    }

    /// Returns the properties of a model of a provider. A model that is not in the table has a
    /// larger context at a remote provider than on this machine. The prices are the list prices of
    /// the provider, if they are known.
    pub fn at_provider(provider: &Provider, name: &str) -> Self {
        let model = Self::from_table(name);
        let is_assumed = model.window_source == WindowSource::Assumed;
        Self {
            context_window: match is_assumed && !provider.is_local() {
                true => UNKNOWN_REMOTE_WINDOW_TOKENS,
                false => model.context_window,
            },
            prices: list_prices(&provider.name, name),
            ..model
        }
    }

    /// Whether the table has a row for this name.
    pub fn is_in_table(name: &str) -> bool {
        Self::from_table(name).window_source == WindowSource::Table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::price_table;

    #[test]
    fn every_row_can_be_matched() {
        for (index, row) in MODEL_TABLE.iter().enumerate() {
            let first = MODEL_TABLE
                .iter()
                .position(|other| row.prefix.starts_with(other.prefix));
            assert_eq!(first, Some(index), "{} is never matched", row.prefix);
        }
    }

    /// Rows of which no model has a known list price. A model whose price becomes known leaves the
    /// list.
    const WITHOUT_LIST_PRICES: &[&str] = &[
        "gpt-6",
        "gpt-5-chat",
        "gpt-5.6",
        "gpt-5.3-codex-spark",
        "codex-mini",
        "gpt-oss",
        "gpt-4",
        "claude",
        "grok-code",
        "grok",
        "gemini",
        "deepseek",
        "kimi",
        "glm",
        "qwen",
        "mistral",
        "devstral",
        "llama",
        "gemma",
    ];

    #[test]
    fn every_row_has_a_list_price_or_is_known_to_have_none() {
        let row_of = |name: &str| {
            let mut rows = MODEL_TABLE.iter();
            rows.find(|row| name.starts_with(row.prefix))
                .map(|row| row.prefix)
        };
        let priced: Vec<&str> = price_table::priced_names().filter_map(row_of).collect();
        let is_priced = |prefix: &&str| priced.contains(prefix);
        let rows = MODEL_TABLE.iter().map(|row| row.prefix);
        let without: Vec<&str> = rows.filter(|prefix| !is_priced(prefix)).collect();
        assert_eq!(without, WITHOUT_LIST_PRICES);
    }

    #[test]
    fn names_with_vendor_path_or_suffix_are_found() {
        assert_eq!(Model::from_table("openai/gpt-5.5").reasoning, Effort);
        assert!(Model::from_table("gpt-5.5").freeform_tools);
        assert_eq!(
            ["gpt-5.5", "gpt-5", "claude-sonnet-5"].map(|name| Model::from_table(name).shell),
            [
                ShellFlavour::CommandLine,
                ShellFlavour::Argv,
                ShellFlavour::Argv
            ]
        );
        assert_eq!(
            Model::from_table("anthropic/claude-opus-4.7").max_output_tokens,
            128_000
        );
        assert_eq!(
            Model::from_table("claude-sonnet-4-20250514").reasoning,
            Budget
        );
        assert_eq!(
            Model::from_table("/models/Qwen3-1.7B-Q4_K_M.gguf").context_window,
            131_072
        );
        assert!(!Model::is_in_table("my-own-model") && Model::is_in_table("o3"));
    }
}
