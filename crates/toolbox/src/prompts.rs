//! The tools `prompts.save` and `prompts.get`: store prompts under keys, so that scripts can reuse
//! them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_protocol::{DOCUMENT_RETENTION, DocumentKind, DocumentStore, NewDocument, ToolSpec};
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::cabinet::{get_document, store_document};
use crate::one_or_many::OneOrMany;

/// Maximum number of prompts in one call.
const MAX_PROMPTS: usize = 64;

/// The prompts to store.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct PromptsSaveArgs {
    /// One prompt or a list.
    prompts: OneOrMany,
}

/// The keys of the stored prompts.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PromptsSaveOutput {
    /// One key for each prompt, in order. The same text has the same key.
    keys: Vec<String>,
}

/// The keys of the prompts to read.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct PromptsGetArgs {
    /// One key or a list.
    keys: OneOrMany,
}

/// The stored prompts.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PromptsGetOutput {
    /// The prompts in the order of the keys.
    prompts: Vec<String>,
}

/// The tool `prompts.save`.
pub(crate) struct PromptsSave(pub(crate) Arc<dyn DocumentStore>);

impl Tool for PromptsSave {
    fn spec(&self) -> ToolSpec {
        let description = "Stores prompts for 30 days and returns their keys.";
        built_in_spec::<PromptsSaveArgs, PromptsSaveOutput>(
            "prompts.save",
            &["prompts"],
            description,
        )
    }

    fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
        let cabinet = self.0.clone();
        let run = |args: PromptsSaveArgs| {
            run_blocking(move || {
                let prompts = check_count(args.prompts)?;
                let keys = prompts.iter().map(|prompt| save_prompt(&cabinet, prompt));
                Ok(PromptsSaveOutput {
                    keys: keys.collect::<Result<_, _>>()?,
                })
            })
        };
        typed_call(args, run, |_: &PromptsSaveOutput| None)
    }
}

/// The tool `prompts.get`.
pub(crate) struct PromptsGet(pub(crate) Arc<dyn DocumentStore>);

impl Tool for PromptsGet {
    fn spec(&self) -> ToolSpec {
        built_in_spec::<PromptsGetArgs, PromptsGetOutput>(
            "prompts.get",
            &["keys"],
            "Reads prompts by their keys.",
        )
        .as_read_only()
    }

    fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
        let cabinet = self.0.clone();
        let read = move |key: &String| {
            let document = get_document(&cabinet, key)?;
            String::from_utf8(document.content)
                .map_err(|_| ToolError::new(format!("{key} is not text")))
        };
        let run = |args: PromptsGetArgs| {
            run_blocking(move || {
                let prompts = check_count(args.keys)?
                    .iter()
                    .map(read)
                    .collect::<Result<_, _>>()?;
                Ok(PromptsGetOutput { prompts })
            })
        };
        typed_call(args, run, |_: &PromptsGetOutput| None)
    }
}

/// Fails if the number of prompts is 0 or above the limit.
fn check_count(texts: OneOrMany) -> Result<Vec<String>, ToolError> {
    let texts = texts.into_vec();
    match texts.len() {
        1..=MAX_PROMPTS => Ok(texts),
        count => Err(ToolError::new(format!(
            "expected 1 to {MAX_PROMPTS} prompts in one call, got {count}"
        ))),
    }
}

/// Stores a prompt and returns its key. Reuses the key of a stored prompt with the same text,
/// unless that one expires soon.
fn save_prompt(cabinet: &Arc<dyn DocumentStore>, prompt: &str) -> Result<String, ToolError> {
    let cabinet_error =
        |error| ToolError::new(format!("cannot read from the File Cabinet: {error}"));
    // The hash only finds candidates; the texts are compared below.
    let mut hasher = DefaultHasher::new();
    prompt.hash(&mut hasher);
    let source = format!("{:016x}", hasher.finish());
    let stored = cabinet
        .find_latest(DocumentKind::Prompt, &source, DOCUMENT_RETENTION / 2)
        .map_err(cabinet_error)?;
    if let Some(document) = stored.filter(|document| document.content == prompt.as_bytes()) {
        return Ok(document.info.key);
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
    Ok(store_document(cabinet, &document)?.key)
}
