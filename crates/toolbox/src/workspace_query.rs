//! The tool `workspace_query`: finds documents of the workspace by field and by text.

use schemars::JsonSchema;
use selvedge_documents::{DocumentQuery, FoundDocuments, SortKey};
use selvedge_protocol::{CallReach, ToolSpec};
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, spec_of, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::WorkspaceDocuments;
use crate::blocking::run_blocking;
use crate::one_or_many::OneOrMany;
use crate::walk::warn_if_limited;
use crate::workspace_documents::DocumentOutput;

/// Bytes of documents in one result. A script's memory holds them several times.
const MAX_RESULT_BYTES: usize = 8 << 20;
/// Number of documents that a structured call returns by default.
const STRUCTURED_DOCUMENTS: u64 = 50;
/// Maximum number of warnings about documents with a problem.
const MAX_NAMED_PROBLEMS: usize = 3;

/// Fields that do not mean a field of the documents.
const OPTIONS: [&str; 3] = ["text", "sort", "limit"];

/// What to find. Every other field is a field of the front matter: `priority: "high"`,
/// `tags: ["a", "b"]` for any of these values, `assignee: null` for documents without it.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct WorkspaceQueryArgs {
    /// Value of the field `kind`, or several.
    #[allow(dead_code)]
    kind: Option<OneOrMany>,
    /// Value of the field `status`, or several.
    #[allow(dead_code)]
    status: Option<OneOrMany>,
    /// Words that a document must contain; the best match is first.
    text: Option<String>,
    /// Field to sort by, `-field` for the largest value first; or several.
    sort: Option<OneOrMany>,
    /// Maximum number of documents.
    #[serde(default = "default_document_limit")]
    #[schemars(range(min = 1))]
    limit: usize,
    #[serde(flatten)]
    #[allow(dead_code)]
    fields: Map<String, Value>,
}

/// Default number of documents in a script.
fn default_document_limit() -> usize {
    1000
}

/// The documents that were found.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct WorkspaceQueryOutput(Vec<DocumentOutput>);

/// The tool `workspace_query`.
pub(crate) struct WorkspaceQuery(pub(crate) WorkspaceDocuments);

impl Tool for WorkspaceQuery {
    fn spec(&self) -> ToolSpec {
        let description = "Finds documents: Markdown files of the workspace with front matter.";
        let spec =
            spec_of::<WorkspaceQueryArgs, WorkspaceQueryOutput>("workspace_query", description);
        ToolSpec {
            js_name: "workspace.query".to_owned(),
            ..spec
                .as_read_only()
                .with_reach(CallReach::Local)
                .with_positional(&["text"])
                .with_structured_defaults(&[("limit", STRUCTURED_DOCUMENTS)])
        }
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let documents = self.0.clone();
        // `kind: null` asks for documents without the field, which the typed arguments cannot say.
        let mut filter = args.as_object().cloned().unwrap_or_default();
        filter.retain(|name, _| !OPTIONS.contains(&name.as_str()));
        let run = |args| run_blocking(move || query(&documents, args, filter, &call));
        typed_call(args, run, |output: &WorkspaceQueryOutput| {
            let lines = output.0.iter().map(DocumentOutput::summary);
            Some(lines.collect::<Vec<_>>().join("\n"))
        })
    }
}

fn query(
    documents: &WorkspaceDocuments,
    args: WorkspaceQueryArgs,
    filter: Map<String, Value>,
    call: &CallContext,
) -> Result<WorkspaceQueryOutput, ToolError> {
    let sort = args.sort.map(OneOrMany::into_vec).unwrap_or_default();
    let query = DocumentQuery {
        fields: filter,
        text: args.text,
        sort: sort.iter().map(|key| SortKey::parse(key)).collect(),
        limit: args.limit,
    };
    let found = documents.index().query(&query).map_err(|error| {
        ToolError::new(error.to_string()).suggest("use a pattern such as issues/**/*.md")
    })?;
    warn_about_problems(&found, call);
    let mut bytes_left = MAX_RESULT_BYTES;
    let fitting = found.documents.iter().take_while(|document| {
        let left = bytes_left.checked_sub(document.markdown.len());
        bytes_left = left.unwrap_or_default();
        left.is_some()
    });
    let output: Vec<DocumentOutput> = fitting.map(|document| (&**document).into()).collect();
    warn_if_limited(call, output.len(), found.total, "documents");
    Ok(WorkspaceQueryOutput(output))
}

/// Warns about documents that cannot be found by their fields.
fn warn_about_problems(found: &FoundDocuments, call: &CallContext) {
    for (path, problem) in found.problems.iter().take(MAX_NAMED_PROBLEMS) {
        call.warn(format!("{path}: {problem}"));
    }
    let more = found.problems.len().saturating_sub(MAX_NAMED_PROBLEMS);
    if more > 0 {
        call.warn(format!("{more} more documents have a problem"));
    }
    if found.is_incomplete {
        call.warn(
            "the workspace has more documents than are indexed: select fewer with \
             workspace.documents in the configuration",
        );
    }
}
