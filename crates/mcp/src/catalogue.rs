//! The catalogue of a server: its tools and capabilities as it last listed them.
//!
//! It is cached on disk, so that the tools of a server are known before it is started.

use std::path::{Path, PathBuf};

use selvedge_tools::camel_case;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Tools of one server that are listed; further ones are ignored.
const MAX_TOOLS_PER_SERVER: usize = 5000;
/// Pages of a tool list that are requested.
pub(crate) const MAX_TOOL_LIST_PAGES: usize = 500;
/// Length to which a tool's description is truncated, in characters.
const MAX_DESCRIPTION_CHARS: usize = 8192;
/// Largest JSON Schema of a tool, in bytes. A larger one is replaced by `{"type": "object"}`.
const MAX_SCHEMA_BYTES: usize = 128 << 10;

/// Longest name of a tool, in characters. A tool with a longer name is ignored.
const MAX_TOOL_NAME_CHARS: usize = 128;
/// Size of the names, descriptions and schemas of all tools of one server, in bytes. The tools
/// beyond are ignored.
const MAX_TOOLS_BYTES: usize = 16 << 20;

/// Largest cached catalogue that is read, in bytes. A larger one is requested again.
const MAX_CATALOGUE_BYTES: usize = 64 << 20;

/// Tools and capabilities of a server.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Catalogue {
    /// Name and version that the server reports.
    pub(crate) identity: Option<(String, String)>,
    pub(crate) tools: Vec<CatalogueTool>,
    pub(crate) has_resources: bool,
    pub(crate) has_prompts: bool,
}

/// A tool as its server lists it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CatalogueTool {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) input_schema: Value,
    pub(crate) output_schema: Option<Value>,
    pub(crate) read_only: bool,
    pub(crate) destructive: Option<bool>,
}

impl Catalogue {
    /// Adds a page of tools; `false` if a limit is reached and tools were dropped.
    pub(crate) fn add_page(&mut self, tools: Vec<rmcp::model::Tool>) -> bool {
        let mut bytes: usize = self.tools.iter().map(CatalogueTool::size).sum();
        for tool in tools {
            let tool = CatalogueTool::from(tool);
            if tool.name.chars().count() > MAX_TOOL_NAME_CHARS {
                continue;
            }
            bytes += tool.size();
            if self.tools.len() >= MAX_TOOLS_PER_SERVER || bytes > MAX_TOOLS_BYTES {
                return false;
            }
            self.tools.push(tool);
        }
        true
    }

    /// Removes tools without a name and all but the first of tools with the same name.
    pub(crate) fn without_duplicates(mut self) -> Self {
        let mut seen = std::collections::HashSet::new();
        self.tools
            .retain(|tool| !tool.name.is_empty() && seen.insert(tool.name.clone()));
        self
    }

    pub(crate) fn load(folder: &Path, fingerprint: &str) -> Option<Self> {
        let file = cache_file(folder, fingerprint);
        let text = selvedge_files::read_user_file(&file, MAX_CATALOGUE_BYTES);
        serde_json::from_slice(&text.ok()??).ok()
    }

    /// Writes the catalogue to its cache file. A failure is ignored: the next process then asks
    /// the server.
    pub(crate) fn save(&self, folder: &Path, fingerprint: &str) {
        let path = cache_file(folder, fingerprint);
        let new = path.with_extension(format!("{}.new", std::process::id()));
        let Ok(text) = serde_json::to_vec(self) else {
            return;
        };
        let _ = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&new, text))
            .and_then(|()| std::fs::rename(&new, path));
    }
}

fn cache_file(folder: &Path, fingerprint: &str) -> PathBuf {
    folder.join(format!("{fingerprint}.json"))
}

impl CatalogueTool {
    /// Returns the size of name, description and schemas in bytes.
    fn size(&self) -> usize {
        let output = self.output_schema.as_ref().map_or(0, json_size);
        self.name.len() + self.description.len() + json_size(&self.input_schema) + output
    }
}

/// Returns about how many bytes a value takes as JSON.
fn json_size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| 1 + json_size(item)).sum::<usize>(),
        Value::Object(fields) => {
            let fields = fields.iter();
            2 + fields
                .map(|(name, value)| name.len() + 4 + json_size(value))
                .sum::<usize>()
        }
    }
}

impl From<rmcp::model::Tool> for CatalogueTool {
    fn from(tool: rmcp::model::Tool) -> Self {
        let bounded = |schema: &rmcp::model::JsonObject| {
            let value = Value::Object(schema.clone());
            match value.to_string().len() <= MAX_SCHEMA_BYTES {
                true => value,
                false => json!({"type": "object"}),
            }
        };
        let annotations = tool.annotations.as_ref();
        let description = tool.description.as_deref();
        let description = description
            .or(tool.title.as_deref())
            .or_else(|| annotations?.title.as_deref())
            .unwrap_or_default();
        Self {
            name: tool.name.to_string(),
            description: description.chars().take(MAX_DESCRIPTION_CHARS).collect(),
            input_schema: bounded(&tool.input_schema),
            output_schema: tool.output_schema.as_ref().map(|schema| bounded(schema)),
            read_only: annotations.and_then(|hints| hints.read_only_hint) == Some(true),
            destructive: annotations.and_then(|hints| hints.destructive_hint),
        }
    }
}

/// Converts a server or tool name to a JavaScript identifier: `get-sum` → `getSum`, `2fa` → `_2fa`.
pub(crate) fn to_identifier(name: &str) -> String {
    let invalid = |c: char| !(c.is_alphanumeric() || c == '_' || c == '$');
    let mut out = camel_case(&name.replace(invalid, "-"));
    if out.starts_with(|c: char| c.is_ascii_digit()) || out.is_empty() {
        out.insert(0, '_');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_identifiers() {
        for (name, expected) in [
            ("get-sum", "getSum"),
            ("git_status", "gitStatus"),
            ("admin.tools.list", "adminToolsList"),
            ("2fa", "_2fa"),
            ("constructor", "constructor"),
            ("__proto__", "__proto__"),
            ("a b/c:d", "aBCD"),
            ("größe", "größe"),
            ("💥", "_"),
            ("", "_"),
        ] {
            assert_eq!(to_identifier(name), expected, "{name}");
        }
    }

    #[test]
    fn a_saved_catalogue_is_loaded_by_its_fingerprint_only() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("mcp");
        let mut catalogue = Catalogue::default();
        let page: Vec<rmcp::model::Tool> = serde_json::from_value(json!([
            {"name": "a", "inputSchema": {"type": "object"}},
            {"name": "a", "inputSchema": {}},
        ]))
        .unwrap();
        assert!(catalogue.add_page(page));
        let catalogue = catalogue.without_duplicates();
        assert_eq!(catalogue.tools.len(), 1);
        catalogue.save(&folder, "x");
        assert_eq!(Catalogue::load(&folder, "x"), Some(catalogue));
        assert_eq!(Catalogue::load(&folder, "y"), None);
        std::fs::write(folder.join("y.json"), "{broken").unwrap();
        assert_eq!(Catalogue::load(&folder, "y"), None);
    }

    #[test]
    fn long_names_and_large_catalogues_are_cut() {
        let page = |name: &str, description: &str| -> Vec<rmcp::model::Tool> {
            let tool = json!({"name": name, "description": description,
                "inputSchema": {"type": "object", "title": "x".repeat(100_000)}});
            serde_json::from_value(json!([tool])).unwrap()
        };
        let mut catalogue = Catalogue::default();
        assert!(catalogue.add_page(page(&"ö".repeat(128), "")));
        assert!(catalogue.add_page(page(&"x".repeat(129), "")));
        assert_eq!(catalogue.tools.len(), 1);
        let added =
            (0..1000).take_while(|number| catalogue.add_page(page(&number.to_string(), "d")));
        assert!((100..200).contains(&added.count()));
    }
}
