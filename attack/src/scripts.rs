//! Attacks by the text of a script: reaching the host, or using more time or memory than the limits
//! allow. The scripts are the fenced blocks of `data/scripts.md`, each below a heading that names
//! it.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::attempt::{Attempt, Verdict};
use crate::lab::SECRET;

/// Time limit of each script, and how much longer the whole process may take.
const SCRIPT_TIMEOUT: &str = "2s";
const MAX_PROCESS_TIME: Duration = Duration::from_secs(15);

/// Returns one attempt per script. A script succeeds if it returns `true` or the secret, or if the
/// process crashes or takes too long.
pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    sections(include_str!("../data/scripts.md"))
        .map(|(name, source)| {
            let source = source
                .with_context(|| format!("{name} has no block"))?
                .to_owned();
            Ok(Attempt::new(name, move |lab| {
                let secret = lab.outside().join("secret");
                let source = source.replace("$SECRET", &secret.display().to_string());
                let (item, seen) = lab.script(&source, &["--timeout", SCRIPT_TIMEOUT])?;
                let escaped = item["output_json"] == "true" || seen.stdout.contains(SECRET);
                Ok(Verdict::held_if(
                    !escaped && seen.ended_cleanly() && seen.elapsed < MAX_PROCESS_TIME,
                    format!("{:?}: {}", seen.elapsed, seen.output()),
                ))
            }))
        })
        .collect()
}

/// Splits a page into its headings and the first fenced block below each.
fn sections(page: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    page.split("\n## ").skip(1).map(|section| {
        let (name, rest) = section.split_once('\n').unwrap_or((section, ""));
        let block = rest
            .split_once("```ts\n")
            .and_then(|(_, rest)| rest.split_once("\n```"))
            .map(|(block, _)| block);
        (name, block)
    })
}
