//! The documents of the workspace, for the tools `workspace.query`, `workspace.read` and
//! `workspace.write`.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_documents::{
    DocumentAccess, DocumentGlobs, DocumentIndex, GlobError, ScanFilter, WorkspaceDocument,
};
use selvedge_files::{FileRefusal, ProjectFiles};
use selvedge_tools::ToolError;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::Workspace;
use crate::ignore_rules::{IgnoreFiles, IgnoreRules, is_ignore_file};

/// Globs that select documents if the configuration has none. Ignored files are omitted then.
const DEFAULT_GLOBS: [&str; 1] = ["**/*.md"];

/// The documents of a workspace. Clones share one index, which the first query builds.
#[derive(Clone)]
pub struct WorkspaceDocuments {
    index: Arc<DocumentIndex>,
    reach: ReadReach,
}

/// Which files `workspace.read` reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadReach {
    /// Every file that the sandbox lets scripts read.
    Sandbox,
    /// Files of the workspace that are not reached through a link.
    Workspace,
}

/// Which files the configuration selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DocumentSelection {
    /// All Markdown files that are not ignored.
    Default,
    /// What the user's globs select, ignored or not.
    Configured,
}

struct WorkspaceAccess {
    workspace: Workspace,
    selection: DocumentSelection,
    files: ProjectFiles,
}

impl WorkspaceDocuments {
    /// Selects the documents of a workspace by globs relative to it, such as `docs/**/*.md`.
    /// Without globs, documents are all Markdown files that are not ignored.
    pub fn new(workspace: &Workspace, globs: &[String]) -> Result<Self, GlobError> {
        let compiled = DocumentGlobs::new(globs.iter().map(String::as_str))?;
        Ok(match globs.is_empty() {
            true => Self::with_default_globs(workspace),
            false => Self::with(workspace, compiled, DocumentSelection::Configured),
        })
    }

    /// Returns the index, for queries without a tool.
    pub fn index(&self) -> &DocumentIndex {
        &self.index
    }

    /// Lets `workspace.read` read only files of the workspace, never through a link, also if a part
    /// of the path becomes one meanwhile.
    pub fn confined(self) -> Self {
        Self {
            reach: ReadReach::Workspace,
            ..self
        }
    }

    /// Returns the whole text of a document, with its front matter.
    pub fn read_text(&self, workspace: &Workspace, path: &str) -> Result<String, ToolError> {
        Ok(crate::workspace_read::read_text(workspace, self, path)?.text)
    }

    /// Opens a file for `workspace.read`.
    pub(crate) fn open(&self, workspace: &Workspace, path: &Path) -> Result<File, ToolError> {
        match self.reach {
            ReadReach::Sandbox => workspace.open_file(path),
            ReadReach::Workspace => workspace.open_file_inside(path),
        }
    }

    /// Selects all Markdown files that are not ignored.
    pub(crate) fn with_default_globs(workspace: &Workspace) -> Self {
        let globs = DocumentGlobs::new(DEFAULT_GLOBS).unwrap_or_default();
        Self::with(workspace, globs, DocumentSelection::Default)
    }

    fn with(workspace: &Workspace, globs: DocumentGlobs, selection: DocumentSelection) -> Self {
        let files = ProjectFiles::of_folder(workspace.root(), workspace.credential_files());
        let access = WorkspaceAccess {
            workspace: workspace.clone(),
            selection,
            // Links must not leave the workspace, even if the repository is larger.
            files: files.with_root(workspace.root()).unwrap_or(files),
        };
        Self {
            index: Arc::new(DocumentIndex::new(workspace.root(), globs, access)),
            reach: ReadReach::Sandbox,
        }
    }
}

impl DocumentAccess for WorkspaceAccess {
    fn scan_filter(&self) -> ScanFilter {
        let workspace = self.workspace.clone();
        let rules = (self.selection == DocumentSelection::Default)
            .then(|| IgnoreRules::new(&workspace, workspace.root(), IgnoreFiles::Search));
        Box::new(move |path, is_dir| {
            workspace.is_secret(path)
                || workspace.is_protected_entry(path)
                || rules
                    .as_ref()
                    .is_some_and(|rules| rules.is_ignored(path, is_dir))
        })
    }

    fn is_rule_file(&self, name: &OsStr) -> bool {
        self.selection == DocumentSelection::Default && is_ignore_file(name)
    }

    fn read_text(&self, path: &Path, max_bytes: usize) -> Result<Option<String>, FileRefusal> {
        self.files.read_text(path, max_bytes)
    }
}

/// A document as scripts see it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DocumentOutput {
    /// Path relative to the workspace.
    path: String,
    /// Field `kind` of the front matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// Field `status` of the front matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    /// Field `title`, else the first heading, else the name of the file.
    title: String,
    /// The other fields of the front matter.
    #[serde(flatten)]
    fields: Map<String, Value>,
    /// Text after the front matter.
    markdown_content: String,
    /// Why the front matter or the file could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl From<&WorkspaceDocument> for DocumentOutput {
    fn from(document: &WorkspaceDocument) -> Self {
        let fields = document.fields.iter();
        let fields = fields.map(|(name, value)| (name.to_string(), value.clone()));
        Self {
            path: document.path.clone(),
            kind: document.kind.clone(),
            status: document.status.clone(),
            title: document.title.clone(),
            fields: fields.collect(),
            markdown_content: document.markdown.clone(),
            problem: document.problem.clone(),
        }
    }
}

impl DocumentOutput {
    /// Returns path, kind, status and title in one line, for models.
    pub(crate) fn summary(&self) -> String {
        let known = [&self.kind, &self.status].into_iter().flatten();
        let known: Vec<&str> = known.map(String::as_str).collect();
        let known = match known.is_empty() {
            true => String::new(),
            false => format!(" ({})", known.join(", ")),
        };
        format!("{}{known}: {}", self.path, self.title)
    }

    /// Returns the document for a model: its fields as JSON, then its text.
    pub(crate) fn render(&self) -> String {
        let problem = self
            .problem
            .as_ref()
            .map(|problem| format!("\nproblem: {problem}"));
        let fields = match self.fields.is_empty() {
            true => String::new(),
            false => format!("\n{}", Value::Object(self.fields.clone())),
        };
        let problem = problem.unwrap_or_default();
        format!(
            "{}{fields}{problem}\n\n{}",
            self.summary(),
            self.markdown_content
        )
    }
}
