//! Selects the documents of the workspace as the configuration says.

use selvedge_config::Config;
use selvedge_toolbox::{Workspace, WorkspaceDocuments};

use crate::problem::Problem;

/// Returns the documents that `workspace.documents` selects.
pub(crate) fn configure_documents(
    config: &Config,
    workspace: &Workspace,
) -> Result<WorkspaceDocuments, Problem> {
    WorkspaceDocuments::new(workspace, &config.workspace.documents).map_err(|error| {
        Problem::new(format!("workspace.documents: {error}"))
            .hint("write globs such as documents = [\"issues/**/*.md\"] in config.toml")
    })
}
