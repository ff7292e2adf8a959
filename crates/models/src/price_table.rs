//! List prices of well-known models, in US dollars per million tokens.
//!
//! As of 2026-11-18. Claude: `platform.claude.com/docs/en/about-claude/pricing`. OpenAI: reports of
//! `developers.openai.com/api/docs/pricing` (standard tier), not the page itself; the prices of
//! cached input of models before gpt-5 are older. Surcharges for long prompts and regions and
//! discounts for batches are not included. The configuration overrides the table. A model without
//! a row has an unknown cost.

use selvedge_protocol::Prices;

/// Prices of one model.
struct PriceRow {
    /// Name of the model without vendor and date.
    name: &'static str,
    prices: Prices,
}

/// Makes a row for OpenAI, where writing to the cache costs nothing extra.
const fn openai(name: &'static str, input: f64, cached: f64, output: f64) -> PriceRow {
    PriceRow {
        name,
        prices: Prices {
            input,
            cached_input: Some(cached),
            cache_write: None,
            output,
        },
    }
}

/// Makes a row for Anthropic. `write` is the price of a cache of five minutes, the only one that
/// requests ask for.
const fn claude(name: &'static str, input: f64, write: f64, cached: f64, output: f64) -> PriceRow {
    PriceRow {
        name,
        prices: Prices {
            input,
            cached_input: Some(cached),
            cache_write: Some(write),
            output,
        },
    }
}

#[rustfmt::skip]
const OPENAI_PRICES: &[PriceRow] = &[
    //     name             input  cached  output
    openai("gpt-5.5",        5.00,  0.50,   30.00),
    openai("gpt-5.4",        2.50,  0.25,   15.00),
    openai("gpt-5.4-mini",   0.75,  0.075,   4.50),
    openai("gpt-5.4-nano",   0.20,  0.02,    1.25),
    openai("gpt-5",          1.25,  0.125,  10.00),
    openai("gpt-5-mini",     0.25,  0.025,   2.00),
    openai("gpt-5-nano",     0.05,  0.005,   0.40),
    openai("gpt-4.1",        2.00,  0.50,    8.00),
    openai("gpt-4.1-mini",   0.40,  0.10,    1.60),
    openai("gpt-4.1-nano",   0.10,  0.025,   0.40),
    openai("gpt-4o",         2.50,  1.25,   10.00),
    openai("gpt-4o-mini",    0.15,  0.075,   0.60),
    openai("o3",             2.00,  0.50,    8.00),
    openai("o3-mini",        1.10,  0.55,    4.40),
    openai("o4-mini",        1.10,  0.275,   4.40),
    openai("o1",            15.00,  7.50,   60.00),
];

#[rustfmt::skip]
const CLAUDE_PRICES: &[PriceRow] = &[
    //     name                  input   write  cached  output
    claude("claude-fable-5-1",   10.00,  12.50,  0.25,  50.00),
    claude("claude-fable-5",     10.00,  12.50,  1.00,  50.00),
    claude("claude-opus-5-5",     4.00,   5.00,  0.20,  20.00),
    claude("claude-opus-5",       5.00,   6.25,  0.50,  25.00),
    claude("claude-sonnet-5",     2.00,   2.50,  0.20,  10.00),
    claude("claude-opus-4-8",     5.00,   6.25,  0.50,  25.00),
    claude("claude-opus-4-7",     5.00,   6.25,  0.50,  25.00),
    claude("claude-opus-4-6",     5.00,   6.25,  0.50,  25.00),
    claude("claude-opus-4-5",     5.00,   6.25,  0.50,  25.00),
    claude("claude-opus-4-1",    15.00,  18.75,  1.50,  75.00),
    claude("claude-opus-4",      15.00,  18.75,  1.50,  75.00),
    claude("claude-sonnet-4-6",   3.00,   3.75,  0.30,  15.00),
    claude("claude-sonnet-4-5",   3.00,   3.75,  0.30,  15.00),
    claude("claude-sonnet-4",     3.00,   3.75,  0.30,  15.00),
    claude("claude-haiku-4-5",    1.00,   1.25,  0.10,   5.00),
    claude("claude-3-7-sonnet",   3.00,   3.75,  0.30,  15.00),
    claude("claude-3-5-haiku",    0.80,   1.00,  0.08,   4.00),
    claude("claude-3-haiku",      0.25,   0.30,  0.03,   1.25),
];

/// Returns the list prices of a model at a built-in provider, also if the configuration gives the
/// provider another `base_url`: a gateway passes the prices on, and a limit of the cost must not
/// lose its effect. `None` if they are not known. Providers with other names set their own prices,
/// whatever they call their models.
pub(crate) fn list_prices(provider: &str, model: &str) -> Option<Prices> {
    let model = model.to_lowercase();
    match provider {
        "openai" => find(OPENAI_PRICES, &model),
        "anthropic" => find(CLAUDE_PRICES, &model),
        // It passes the prices of the vendor on, and writes versions with a dot.
        "openrouter" => match model.split_once('/')? {
            ("openai", model) => find(OPENAI_PRICES, model),
            ("anthropic", model) => find(CLAUDE_PRICES, &model.replace('.', "-")),
            _ => None,
        },
        _ => None,
    }
}

/// Finds the row of a name, which may end with a date. A name that only starts like a row is
/// another model.
fn find(rows: &[PriceRow], model: &str) -> Option<Prices> {
    let is_date = |rest: &str| {
        let digits = rest.bytes().filter(u8::is_ascii_digit).count();
        let other = rest
            .bytes()
            .any(|byte| !byte.is_ascii_digit() && byte != b'-');
        rest.is_empty() || (rest.starts_with('-') && digits == 8 && !other)
    };
    let row = rows
        .iter()
        .find(|row| model.strip_prefix(row.name).is_some_and(is_date));
    row.map(|row| row.prices)
}

/// Returns the names of all models with a list price.
#[cfg(test)]
pub(crate) fn priced_names() -> impl Iterator<Item = &'static str> {
    OPENAI_PRICES
        .iter()
        .chain(CLAUDE_PRICES)
        .map(|row| row.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_with_a_date_and_at_a_gateway() {
        let input =
            |provider: &str, model: &str| list_prices(provider, model).map(|prices| prices.input);
        for (provider, model, expected) in [
            ("openai", "gpt-5.5", Some(5.0)),
            ("openai", "gpt-5-2025-08-07", Some(1.25)),
            ("openai", "gpt-5-mini", Some(0.25)),
            ("anthropic", "claude-sonnet-5", Some(2.0)),
            ("anthropic", "claude-sonnet-4-20250514", Some(3.0)),
            ("anthropic", "claude-opus-4-1-20250805", Some(15.0)),
            ("openrouter", "anthropic/claude-opus-4.7", Some(5.0)),
            ("openrouter", "openai/gpt-5.4-nano", Some(0.2)),
            // Other models, other vendors and other providers.
            ("openai", "gpt-5.2", None),
            ("openai", "gpt-5.9", None),
            ("openai", "gpt-5.5-pro", None),
            ("openai", "o3-pro", None),
            ("anthropic", "claude-opus-4-9", None),
            ("anthropic", "claude-sonnet-5-preview", None),
            ("openrouter", "gpt-5.5", None),
            ("openrouter", "vendor/gpt-5.5", None),
            ("openrouter", "anthropic/claude-opus-5:free", None),
            ("proxy", "gpt-5.5", None),
            ("ollama", "gpt-oss:20b", None),
        ] {
            assert_eq!(input(provider, model), expected, "{provider} {model}");
        }
    }

    #[test]
    fn a_cache_hit_is_cheaper_and_output_dearer_than_input() {
        for row in OPENAI_PRICES.iter().chain(CLAUDE_PRICES) {
            let Prices {
                input,
                cached_input,
                cache_write,
                output,
            } = row.prices;
            let cheaper = cached_input.is_some_and(|cached| cached < input);
            let dearer = cache_write.is_none_or(|write| write > input);
            assert!(cheaper && dearer && output > input, "{}", row.name);
        }
    }
}
