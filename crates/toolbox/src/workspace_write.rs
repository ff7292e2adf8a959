//! The tool `workspace_write`: writes one document of the workspace, if its front matter is valid.

use schemars::JsonSchema;
use selvedge_documents::{MAX_DOCUMENT_BYTES, WorkspaceDocument};
use selvedge_protocol::{Preview, ToolSpec};
use selvedge_tools::{CallContext, CallFuture, Risk, Tool, ToolError, parse_args, typed_call};
use serde::Deserialize;
use serde_json::Value;

use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::write_file::{WriteFileOutput, write_content, write_preview, write_risk};
use crate::{TurnDiffTracker, Workspace, WorkspaceDocuments};

/// The document to write.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct WorkspaceWriteArgs {
    /// Markdown file, relative to the workspace; missing folders are created.
    path: String,
    /// The whole text, with its front matter: `---\nkind: issue\nstatus: open\n---\n# Title\n`.
    content: String,
    /// Reason shown to the person who approves the call.
    #[allow(dead_code)]
    approval_context: Option<String>,
}

/// The tool `workspace_write`.
pub(crate) struct WorkspaceWrite(
    pub(crate) Workspace,
    pub(crate) TurnDiffTracker,
    pub(crate) WorkspaceDocuments,
);

impl Tool for WorkspaceWrite {
    fn spec(&self) -> ToolSpec {
        let spec = built_in_spec::<WorkspaceWriteArgs, WriteFileOutput>(
            "workspace_write",
            &["path", "content"],
            "Writes a whole document with valid front matter.",
        );
        ToolSpec {
            js_name: "workspace.write".to_owned(),
            ..spec.approval_by_arguments()
        }
    }

    fn risk(&self, args: &Value) -> Risk {
        write_risk(args)
    }

    /// A diff of the current and the new content; no view if the file cannot be read or written.
    fn preview(&self, args: &Value) -> Preview {
        match parse_args::<WorkspaceWriteArgs>(args.clone()) {
            Ok(args) => write_preview(&self.0, &args.path, || Ok(args.content.into_bytes())),
            Err(_) => Preview::default(),
        }
    }

    /// The path of the file with symbolic links resolved now.
    fn approval_key(&self, args: &Value) -> Option<String> {
        self.0.write_approval_key(args["path"].as_str()?)
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let Self(workspace, turn_diff, documents) = self;
        let (workspace, turn_diff, documents) =
            (workspace.clone(), turn_diff.clone(), documents.clone());
        let run = |args: WorkspaceWriteArgs| {
            run_blocking(move || write(&workspace, &turn_diff, &documents, &args, &call))
        };
        typed_call(args, run, |output: &WriteFileOutput| Some(output.summary()))
    }
}

fn write(
    workspace: &Workspace,
    turn_diff: &TurnDiffTracker,
    documents: &WorkspaceDocuments,
    args: &WorkspaceWriteArgs,
    call: &CallContext,
) -> Result<WriteFileOutput, ToolError> {
    let path = workspace.absolute(&args.path, None);
    let shown = workspace.display_path(&path);
    if args.content.len() > MAX_DOCUMENT_BYTES {
        let limit = MAX_DOCUMENT_BYTES >> 10;
        let message = format!("{shown} was not written: it is larger than {limit} KiB");
        return Err(ToolError::new(message).suggest("divide it into several documents"));
    }
    if let Err(error) = WorkspaceDocument::parse(&shown, &args.content) {
        let refusal = ToolError::new(format!("{shown} was not written: {error}"));
        return Err(match error.hint() {
            Some(hint) => refusal.suggest(hint),
            None => refusal,
        });
    }
    let output = write_content(workspace, turn_diff, &path, args.content.as_bytes(), call)?;
    let relative = path.strip_prefix(workspace.root());
    if !relative.is_ok_and(|relative| documents.index().globs().is_match(relative)) {
        call.warn(format!(
            "{shown} is not a document: workspace.documents in the configuration does not select it"
        ));
    }
    Ok(output)
}
