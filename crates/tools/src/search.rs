//! Search for tools with BM25 over names, descriptions and parameters, and the tool `search` for
//! scripts.

use std::collections::HashMap;

use schemars::JsonSchema;
use selvedge_protocol::{CallReach, ToolSpec};
use selvedge_text::{bm25, is_stop_word, stem};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{CallContext, CallFuture, Registry, Tool, signature, spec_of, typed_call};

/// Weight of a word in a tool's name. A word in the description has weight 1.
const NAME_WEIGHT: f64 = 3.0;
/// Bytes of a description, and of parameters, that are indexed.
const MAX_INDEXED_BYTES: usize = 4096;

/// Inverted index of the words of all tools, with weights.
pub(crate) struct ToolIndex {
    names: Vec<String>,
    lengths: Vec<f64>,
    mean_length: f64,
    /// For each word: the tools that contain it, with its weighted count.
    postings: HashMap<String, Vec<(u32, f64)>>,
}

impl ToolIndex {
    pub(crate) fn new<'a>(specs: impl Iterator<Item = &'a ToolSpec>) -> Self {
        let mut index = Self {
            names: Vec::new(),
            lengths: Vec::new(),
            mean_length: 0.0,
            postings: HashMap::new(),
        };
        for spec in specs {
            let id = index.names.len() as u32;
            let mut counts: HashMap<String, f64> = HashMap::new();
            let mut count = |text: &str, weight: f64| {
                for word in stemmed_words(text) {
                    *counts.entry(word).or_default() += weight;
                }
            };
            count(&spec.name, NAME_WEIGHT);
            count(truncate_text(&spec.description), 1.0);
            let mut parameters = String::new();
            collect_parameters(&spec.input_schema, &mut parameters, 0);
            count(&parameters, 0.5);
            index.names.push(spec.name.clone());
            index.lengths.push(counts.values().sum());
            for (word, weight) in counts {
                index.postings.entry(word).or_default().push((id, weight));
            }
        }
        index.mean_length = index.lengths.iter().sum::<f64>() / index.lengths.len().max(1) as f64;
        index
    }

    /// Returns the names of the tools that match the text best, the best first.
    pub(crate) fn search(&self, text: &str, limit: usize) -> Vec<&str> {
        let mut query = stemmed_words(truncate_text(text));
        query.sort();
        query.dedup();
        query.truncate(64);
        let mut synonyms: Vec<String> = query.iter().flat_map(|word| verb_synonyms(word)).collect();
        synonyms.retain(|word| !query.contains(word));
        let synonyms = synonyms.iter().map(|word| (word.as_str(), SYNONYM_WEIGHT));
        let mut scores: HashMap<u32, f64> = HashMap::new();
        let query = query.iter().map(|word| (word.as_str(), 1.0));
        for (word, weight) in query.chain(synonyms) {
            let Some(list) = self.postings.get(word) else {
                continue;
            };
            let idf = bm25::idf_lucene(self.names.len(), list.len());
            for (id, count) in list {
                let frequency =
                    bm25::term_weight(*count, self.lengths[*id as usize], self.mean_length);
                *scores.entry(*id).or_default() += weight * idf * frequency;
            }
        }
        let mut best: Vec<(u32, f64)> = scores.into_iter().collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        best.into_iter()
            .take(limit)
            .map(|(id, _)| self.names[id as usize].as_str())
            .collect()
    }
}

/// Appends names and descriptions of parameters, at every depth.
fn collect_parameters(schema: &Value, out: &mut String, depth: usize) {
    if depth > 4 || out.len() > MAX_INDEXED_BYTES {
        return;
    }
    for (name, inner) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        out.push_str(name);
        out.push(' ');
        if let Some(text) = inner.get("description").and_then(Value::as_str) {
            out.push_str(truncate_text(text));
            out.push(' ');
        }
        collect_parameters(inner, out, depth + 1);
        if let Some(items) = inner.get("items") {
            collect_parameters(items, out, depth + 1);
        }
    }
}

/// Returns the first [`MAX_INDEXED_BYTES`] bytes of a text.
fn truncate_text(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_INDEXED_BYTES)]
}

/// Returns the stems of the words of a text: `createPullRequests` has create, pull and request.
fn stemmed_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut previous_lower = false;
    for c in text.chars().chain(" ".chars()) {
        let ends = !c.is_alphanumeric() || (c.is_uppercase() && previous_lower);
        if ends && !word.is_empty() {
            stem(&mut word);
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
        previous_lower = c.is_lowercase() || c.is_ascii_digit();
    }
    words.retain(|word| !is_stop_word(word));
    words
}

/// Weight of a synonym of a word in the query.
const SYNONYM_WEIGHT: f64 = 0.6;

/// Groups of verbs with the same meaning.
const VERB_SYNONYMS: [&[&str]; 8] = [
    &["search", "find", "query", "lookup", "look"],
    &["delete", "remove", "destroy", "drop", "erase"],
    &["create", "add", "make", "new", "insert", "open"],
    &["get", "read", "fetch", "show", "retrieve", "view"],
    &["update", "edit", "change", "modify", "set", "write"],
    &["list", "enumerate", "browse"],
    &["send", "post", "publish", "submit"],
    &["run", "execute", "start", "invoke", "call"],
];

/// Returns the stems of the synonyms of a verb, given its stem.
fn verb_synonyms(word: &str) -> Vec<String> {
    let groups = VERB_SYNONYMS.map(|verbs| stemmed_words(&verbs.join(" ")));
    let group = groups
        .into_iter()
        .find(|verbs| verbs.iter().any(|verb| verb == word));
    let mut synonyms = group.unwrap_or_default();
    synonyms.retain(|verb| verb != word);
    synonyms
}

/// Arguments of the tool `search`.
#[derive(Debug, Deserialize, JsonSchema)]
struct ToolSearchArgs {
    /// What the tool should do, in a few words.
    query: String,
    /// Maximum number of results; 5 by default, at most 20.
    limit: Option<usize>,
}

/// A tool that matches a search.
#[derive(Debug, Serialize, JsonSchema)]
struct ToolSearchHit {
    /// Name of the tool: call it as `tools[name](args)`.
    pub name: String,
    /// What the tool does.
    pub description: String,
    /// Arguments and result in TypeScript.
    pub signature: String,
}

impl ToolSearchHit {
    fn new(tool: &crate::RegisteredTool) -> Self {
        let description: String = tool.spec.description.chars().take(300).collect();
        Self {
            name: tool.spec.js_name.clone(),
            description,
            signature: signature(tool),
        }
    }
}

/// The tool `search`, which searches the tools of a registry.
pub struct ToolSearch(pub Registry);

impl Tool for ToolSearch {
    fn spec(&self) -> ToolSpec {
        let description = "Finds tools by description, best match first: `const [t] = await \
            tools.search(\"open an issue\")`, then `await tools[t.name](args)`.";
        let spec = spec_of::<ToolSearchArgs, Vec<ToolSearchHit>>("search", description);
        spec.as_read_only()
            .with_positional(&["query", "limit"])
            .with_reach(CallReach::Local)
    }

    fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
        let run = async |args: ToolSearchArgs| {
            let found = self
                .0
                .search(&args.query, args.limit.unwrap_or(5).clamp(1, 20));
            let found = found.into_iter().map(|tool| ToolSearchHit::new(tool));
            Ok(found.collect::<Vec<_>>())
        };
        typed_call(args, run, |_| None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool;

    #[test]
    fn words_are_split_and_stemmed() {
        assert_eq!(
            stemmed_words("createPullRequests for the repository"),
            ["creat", "pull", "request", "repositori"]
        );
        assert_eq!(
            stemmed_words("list_directory_with_sizes"),
            ["list", "directori", "size"]
        );
        assert_eq!(stemmed_words("searching branches"), ["search", "branch"]);
    }

    #[test]
    fn the_best_match_is_first() {
        let mut registry = Registry::new();
        for (name, description) in [
            (
                "mcp.github.create_issue",
                "Create a new issue in a GitHub repository",
            ),
            ("mcp.github.list_issues", "List issues in a repository"),
            (
                "mcp.github.create_pull_request",
                "Create a new pull request",
            ),
            ("mcp.slack.post_message", "Post a message to a channel"),
            ("mcp.calendar.create_event", "Adds an event to the calendar"),
        ] {
            registry
                .register(tool(name, description, |(): ()| async { Ok(()) }))
                .unwrap();
        }
        let first = |words: &str| {
            registry
                .search(words, 1)
                .first()
                .map(|tool| tool.spec.name.clone())
        };
        assert_eq!(
            first("open an issue, creating it").as_deref(),
            Some("mcp.github.create_issue")
        );
        assert_eq!(
            first("send message to channel").as_deref(),
            Some("mcp.slack.post_message")
        );
        assert_eq!(
            first("pull requests").as_deref(),
            Some("mcp.github.create_pull_request")
        );
        assert_eq!(
            first("add a new event").as_deref(),
            Some("mcp.calendar.create_event")
        );
        assert_eq!(first("zebra"), None);
        assert!(registry.search("", 5).is_empty());
    }
}
