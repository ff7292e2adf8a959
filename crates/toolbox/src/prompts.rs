//! `prompts.save` and `prompts.get`: prompts under keys, so that one text serves many calls of a model.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_protocol::{Cabinet, DOCUMENTS_KEPT, DocumentKind, NewDocument, ToolSpec};
use selvedge_tools::{Call, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::spec;
use crate::blocking::blocking;
use crate::cabinet::{keep, open};
use crate::one_or_many::OneOrMany;

/// Prompts in one call.
const MOST: usize = 64;

/// What to keep.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SaveArgs {
    /// One prompt, or several.
    prompts: OneOrMany,
}

/// Where they are.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Saved {
    /// A key for each, in order. The same text has the same key.
    keys: Vec<String>,
}

/// What to read.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct GetArgs {
    /// One key, or several.
    keys: OneOrMany,
}

/// The prompts.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Prompts {
    /// In the order of the keys.
    prompts: Vec<String>,
}

/// The tool `prompts.save`.
pub(crate) struct PromptsSave(pub(crate) Arc<dyn Cabinet>);

impl Tool for PromptsSave {
    fn spec(&self) -> ToolSpec {
        let description = "Keeps prompts for 30 days and returns their keys.";
        spec::<SaveArgs, Saved>("prompts.save", &["prompts"], description)
    }

    fn call(&self, args: Value, _: Call) -> CallFuture<'_> {
        let cabinet = self.0.clone();
        let run = |args: SaveArgs| {
            blocking(move || {
                let prompts = bounded(args.prompts)?;
                let keys = prompts.iter().map(|prompt| save_one(&cabinet, prompt));
                Ok(Saved {
                    keys: keys.collect::<Result<_, _>>()?,
                })
            })
        };
        typed_call(args, run, |_: &Saved| None)
    }
}

/// The tool `prompts.get`.
pub(crate) struct PromptsGet(pub(crate) Arc<dyn Cabinet>);

impl Tool for PromptsGet {
    fn spec(&self) -> ToolSpec {
        spec::<GetArgs, Prompts>("prompts.get", &["keys"], "Reads prompts by their keys.")
            .as_read_only()
    }

    fn call(&self, args: Value, _: Call) -> CallFuture<'_> {
        let cabinet = self.0.clone();
        let read = move |key: &String| {
            let document = open(&cabinet, key)?;
            String::from_utf8(document.content)
                .map_err(|_| ToolError::new(format!("{key} is no text")))
        };
        let run = |args: GetArgs| {
            blocking(move || {
                let prompts = bounded(args.keys)?
                    .iter()
                    .map(read)
                    .collect::<Result<_, _>>()?;
                Ok(Prompts { prompts })
            })
        };
        typed_call(args, run, |_: &Prompts| None)
    }
}

fn bounded(some: OneOrMany) -> Result<Vec<String>, ToolError> {
    let some = some.into_vec();
    match some.len() {
        1..=MOST => Ok(some),
        count => Err(ToolError::new(format!(
            "1 to {MOST} prompts go in one call, not {count}"
        ))),
    }
}

/// Keeps a prompt; one that is there already, and will be for a while, keeps its key.
fn save_one(cabinet: &Arc<dyn Cabinet>, prompt: &str) -> Result<String, ToolError> {
    let failed = |error| ToolError::new(format!("the File Cabinet: {error}"));
    // Only to find it by: what is found is compared.
    let mut hasher = DefaultHasher::new();
    prompt.hash(&mut hasher);
    let source = format!("{:016x}", hasher.finish());
    let there = cabinet
        .newest(DocumentKind::Prompt, &source, DOCUMENTS_KEPT / 2)
        .map_err(failed)?;
    if let Some(document) = there.filter(|document| document.content == prompt.as_bytes()) {
        return Ok(document.entry.key);
    }
    let title: String = prompt
        .lines()
        .next()
        .unwrap_or_default()
        .chars()
        .take(80)
        .collect();
    let (kind, media_type) = (DocumentKind::Prompt, "text/plain");
    let document = NewDocument {
        kind,
        title: &title,
        source: &source,
        media_type,
        content: prompt.as_bytes(),
    };
    Ok(keep(cabinet, &document)?.key)
}
