//! The tool `apply_patch`: applies a patch to files, or changes none of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use selvedge_protocol::{Preview, PreviewContent, ToolSpec};
use selvedge_tools::{CallContext, CallFuture, Risk, Tool, ToolError, parse_args, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::patch::{self, FileTransfer, NetChange, PatchAction, PatchDraft, PatchOperation};
use crate::preview::file_diff;
use crate::read_coverage::refuse_overwriting;
use crate::target_file::LinkMode;
use crate::{TurnDiffTracker, Workspace};

const DESCRIPTION: &str = "\
Updates, adds, deletes and renames files. If any part fails, nothing changes.
The patch, which may be the only argument, is a unified diff in git's format, or:
*** Begin Patch
*** Update File: path
*** Move to: path (only to rename)
@@ line above the hunk (optional, repeatable)
 unchanged line
-removed line
+added line
*** Add File: path
+line
*** Delete File: path
*** End Patch";

/// A patch, or the old and new content of one file.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ApplyPatchArgs {
    /// `*** Begin Patch` … `*** End Patch`, or a unified diff in git's format.
    patch: Option<String>,
    /// Folder that paths in the patch are relative to; itself relative to the workspace.
    cwd: Option<String>,
    /// Instead of a patch: the file whose whole content is replaced.
    path: Option<String>,
    /// The whole current content of `path`; omit it if the file does not exist.
    original_content: Option<String>,
    /// The whole new content of `path`.
    updated_content: Option<String>,
    /// Reason shown to the person who approves the call.
    #[allow(dead_code)]
    approval_context: Option<String>,
}

/// The files that the patch changed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ApplyPatchOutput {
    /// Always true: a patch that cannot be applied throws an error.
    success: bool,
    /// One line for each file: `A` added, `M` changed or moved here, `D` deleted.
    stdout: String,
    /// Empty; present because commands have it.
    stderr: String,
    /// The changed files, in the order of the patch.
    changes: Vec<PatchedFile>,
}

/// One changed file.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PatchedFile {
    /// Relative to the workspace.
    path: String,
    /// What the patch did to the file.
    kind: PatchedFileKind,
    /// The path before a rename.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// Number of added lines.
    added: usize,
    /// Number of removed lines.
    removed: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum PatchedFileKind {
    Add,
    Update,
    Delete,
    Rename,
}

/// The tool `apply_patch`.
pub(crate) struct ApplyPatch(pub(crate) Workspace, pub(crate) TurnDiffTracker);

impl Tool for ApplyPatch {
    fn spec(&self) -> ToolSpec {
        built_in_spec::<ApplyPatchArgs, ApplyPatchOutput>("apply_patch", &["patch"], DESCRIPTION)
            .approval_by_arguments()
    }

    fn risk(&self, args: &Value) -> Risk {
        risk(&self.0, args)
    }

    fn preview(&self, args: &Value) -> Preview {
        preview(&self.0, args)
    }

    fn approval_key(&self, args: &Value) -> Option<String> {
        approval_key(&self.0, args)
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let (workspace, turn_diff) = (self.0.clone(), self.1.clone());
        let run = |args: ApplyPatchArgs| {
            run_blocking(move || apply(&workspace, &turn_diff, &args, &call))
        };
        typed_call(args, run, |output: &ApplyPatchOutput| {
            Some(output.stdout.clone())
        })
    }
}

/// Returns the risk of a call: moderate, with the changed files as the reason.
pub(crate) fn risk(workspace: &Workspace, args: &Value) -> Risk {
    Risk::Moderate {
        reason: summarise(workspace, args),
    }
}

/// Returns the key that an approval for the whole script is stored under: the same kinds of changes
/// to the same files. Symbolic links are resolved now, so a link that later points elsewhere does
/// not match.
pub(crate) fn approval_key(workspace: &Workspace, args: &Value) -> Option<String> {
    let changes = planned_changes(args);
    let resolve = |path: &PathBuf| {
        let path = workspace.absolute(path, None);
        let follow = workspace
            .target_file(&path, LinkMode::Follow)
            .map(|target| target.real_path());
        // A move or a deletion changes the link itself, not its target.
        let keep = workspace
            .target_file(&path, LinkMode::NoFollow)
            .map(|target| target.real_path());
        (
            follow.unwrap_or_else(|_| path.clone()),
            keep.unwrap_or(path),
        )
    };
    let lines: BTreeSet<String> = changes
        .iter()
        .map(|change| {
            format!(
                "{} {:?}",
                change.key(),
                change.paths.iter().map(resolve).collect::<Vec<_>>()
            )
        })
        .collect();
    Some(lines.into_iter().collect::<Vec<_>>().join("\n")).filter(|lines| !lines.is_empty())
}

/// Returns the preview for an approval: a unified diff of the changes, or no view if the patch does
/// not apply.
pub(crate) fn preview(workspace: &Workspace, args: &Value) -> Preview {
    Preview {
        view: preview_diff(workspace, args).ok().map(PreviewContent::Diff),
        rule: None,
    }
}

/// Applies the patch that a command contains; returns the list of changed files as `stdout`.
pub(crate) async fn apply_from_command(
    workspace: &Workspace,
    turn_diff: &TurnDiffTracker,
    args: Value,
    call: &CallContext,
) -> Result<String, ToolError> {
    let (workspace, turn_diff, call) = (workspace.clone(), turn_diff.clone(), call.clone());
    let args = parse_args(args)?;
    run_blocking(move || apply(&workspace, &turn_diff, &args, &call).map(|output| output.stdout))
        .await
}

fn preview_diff(workspace: &Workspace, args: &Value) -> Result<String, ToolError> {
    let args = parse_args(args.clone())?;
    Ok(build_draft(workspace, &args)?
        .net_changes()
        .map(|net| render_file_diff(&net))
        .collect())
}

fn apply(
    workspace: &Workspace,
    turn_diff: &TurnDiffTracker,
    args: &ApplyPatchArgs,
    call: &CallContext,
) -> Result<ApplyPatchOutput, ToolError> {
    let _write_lock = workspace.lock_changes();
    for path in replaced_files(args) {
        let path = workspace.absolute(path, None);
        refuse_overwriting(call, &workspace.target_file(&path, LinkMode::Follow)?)?;
    }
    let draft = build_draft(workspace, args)?;
    if call.cancel.is_cancelled() {
        return Err(ToolError::new("cancelled before any file was written"));
    }
    for path in draft
        .net_changes()
        .flat_map(|net| [Some(net.path), net.from])
        .flatten()
    {
        turn_diff.before_write(&workspace.root().join(path));
    }
    draft.write_to_disk()?;
    let changes: Vec<PatchedFile> = draft
        .net_changes()
        .map(|net| PatchedFile::from(&net))
        .collect();
    let mut stdout = String::from("Success. Updated the following files:\n");
    for letter in ["A", "M", "D"] {
        for change in changes
            .iter()
            .filter(|change| change.kind.status_letter() == letter)
        {
            stdout.push_str(&format!("{letter} {}\n", change.path));
        }
    }
    Ok(ApplyPatchOutput {
        success: true,
        stdout,
        stderr: String::new(),
        changes,
    })
}

/// A patch, and the folder that its paths are relative to, which is relative to the workspace.
struct ParsedPatch {
    base: PathBuf,
    operations: Vec<PatchOperation>,
}

impl ParsedPatch {
    /// Returns `None` if the text cannot be parsed.
    fn parse(text: &str, cwd: Option<&str>) -> Option<Self> {
        let patch = patch::parse(text).ok()?;
        let cwd = PathBuf::from(cwd.unwrap_or_default());
        Some(Self {
            base: patch.folder.map_or(cwd.clone(), |folder| cwd.join(folder)),
            operations: patch.operations,
        })
    }
}

/// Returns the files whose whole content the call gives, relative to the workspace; none if the
/// patch cannot be parsed.
fn replaced_files(args: &ApplyPatchArgs) -> Vec<PathBuf> {
    let cwd = args.cwd.as_deref();
    let Some(text) = &args.patch else {
        let cwd = Path::new(cwd.unwrap_or_default());
        return args.path.iter().map(|path| cwd.join(path)).collect();
    };
    let Some(patch) = ParsedPatch::parse(text, cwd) else {
        return Vec::new();
    };
    let operations = patch.operations.iter();
    let added = operations.filter(|change| matches!(change.action, PatchAction::Add { .. }));
    added.map(|change| patch.base.join(change.path())).collect()
}

fn build_draft<'a>(
    workspace: &'a Workspace,
    args: &ApplyPatchArgs,
) -> Result<PatchDraft<'a>, ToolError> {
    let draft = PatchDraft::new(workspace, Path::new(args.cwd.as_deref().unwrap_or("")));
    match (&args.patch, &args.path, &args.updated_content) {
        (Some(text), None, None) if args.original_content.is_none() => {
            draft.with_patch(&patch::parse(text)?)
        }
        (None, Some(path), Some(updated)) => draft.with_replacement(
            path,
            args.original_content.as_deref().unwrap_or(""),
            updated,
        ),
        _ => Err(ToolError::new(
            "give either `patch`, or `path` with `originalContent` and `updatedContent`",
        )),
    }
}

/// One planned change to a file.
struct PlannedChange {
    operation: PlannedOperation,
    /// The new executable bit, if the patch sets one.
    executable: Option<bool>,
    /// The target of a move or copy, if any, then the possible names of the file. Absolute, or
    /// relative to the workspace.
    paths: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlannedOperation {
    Add,
    Delete,
    Update,
    Move,
    Copy,
    Replace,
}

impl PlannedOperation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Delete => "delete",
            Self::Update => "update",
            Self::Move => "move",
            Self::Copy => "copy",
            Self::Replace => "replace",
        }
    }
}

/// Returns the changes that a call's arguments describe; empty if the patch cannot be parsed.
fn planned_changes(args: &Value) -> Vec<PlannedChange> {
    let cwd = args["cwd"].as_str();
    match (args["patch"].as_str(), args["path"].as_str()) {
        (Some(text), _) => {
            let Some(patch) = ParsedPatch::parse(text, cwd) else {
                return Vec::new();
            };
            let operations = patch.operations.iter();
            operations
                .map(|operation| PlannedChange::from_operation(operation, &patch.base))
                .collect()
        }
        (None, Some(path)) => vec![PlannedChange {
            operation: PlannedOperation::Replace,
            executable: None,
            paths: vec![Path::new(cwd.unwrap_or_default()).join(path)],
        }],
        (None, None) => Vec::new(),
    }
}

impl PlannedChange {
    fn from_operation(operation: &PatchOperation, base: &Path) -> Self {
        let (kind, executable, to) = match &operation.action {
            PatchAction::Add { executable, .. } => (PlannedOperation::Add, Some(*executable), None),
            PatchAction::Delete { .. } => (PlannedOperation::Delete, None, None),
            PatchAction::Update {
                executable,
                target: None,
                ..
            } => (PlannedOperation::Update, *executable, None),
            PatchAction::Update {
                executable,
                target: Some(to),
                ..
            } => match to.transfer {
                FileTransfer::Move => (PlannedOperation::Move, *executable, Some(&to.path)),
                FileTransfer::Copy => (PlannedOperation::Copy, *executable, Some(&to.path)),
            },
        };
        let paths = to.into_iter().chain(&operation.paths);
        Self {
            operation: kind,
            executable,
            paths: paths.map(|path| base.join(path)).collect(),
        }
    }

    /// Returns the kind of change for an approval key: `update`, `add executable=true`.
    fn key(&self) -> String {
        let operation = self.operation.as_str();
        match self.executable {
            Some(executable) => format!("{operation} executable={executable}"),
            None => operation.to_owned(),
        }
    }
}

/// Summarises a call for an approval, such as "changes a.rs, b.rs and 3 more".
fn summarise(workspace: &Workspace, args: &Value) -> String {
    let mut names: Vec<String> = Vec::new();
    for change in planned_changes(args) {
        // A move changes its target and its source.
        let changed_paths = match change.operation {
            PlannedOperation::Move => 2,
            _ => 1,
        };
        for path in change.paths.iter().take(changed_paths) {
            let name = workspace.display_path(&workspace.absolute(path, None));
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    match &names[..] {
        [] => "applies a patch".to_owned(),
        [one] => format!("changes {one}"),
        [one, two] => format!("changes {one} and {two}"),
        [one, two, rest @ ..] => format!("changes {one}, {two} and {} more", rest.len()),
    }
}

impl PatchedFileKind {
    fn from_net_change(net: &NetChange<'_>) -> Self {
        match (net.from, net.old, net.new) {
            (_, _, None) => Self::Delete,
            (Some(_), ..) => Self::Rename,
            (None, None, Some(_)) => Self::Add,
            (None, Some(_), Some(_)) => Self::Update,
        }
    }

    fn status_letter(self) -> &'static str {
        match self {
            Self::Add => "A",
            Self::Update | Self::Rename => "M",
            Self::Delete => "D",
        }
    }
}

impl From<&NetChange<'_>> for PatchedFile {
    fn from(net: &NetChange<'_>) -> Self {
        Self {
            path: net.path.to_owned(),
            kind: PatchedFileKind::from_net_change(net),
            from: net.from.map(str::to_owned),
            added: net.added,
            removed: net.removed,
        }
    }
}

/// Renders the diff of one file for the preview.
fn render_file_diff(net: &NetChange<'_>) -> String {
    let mode = match net.executable {
        Some(true) => "new mode 100755\n",
        Some(false) => "new mode 100644\n",
        None => "",
    };
    format!(
        "{mode}{}",
        file_diff(net.from.unwrap_or(net.path), net.path, net.old, net.new)
    )
}

#[cfg(test)]
mod tests {
    use selvedge_protocol::SandboxPolicy;
    use serde_json::json;

    use super::*;

    #[test]
    fn preview_is_a_diff_and_changes_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(dir.path(), SandboxPolicy::WorkspaceWrite, &[]).unwrap();
        std::fs::write(dir.path().join("a.txt"), "one\ntwo\n").unwrap();
        std::fs::write(dir.path().join("run.sh"), "echo\n").unwrap();
        let patch = "*** Begin Patch\n*** Update File: a.txt\n*** Move to: b.txt\n@@\n-two\n+2\n\
                     *** Add File: new\n+x\n*** End Patch";
        assert_eq!(
            preview_diff(&workspace, &json!({"patch": patch})).unwrap(),
            "--- a/a.txt\n+++ b/b.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n\
             --- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n"
        );
        let mode = "diff --git a/run.sh b/run.sh\nold mode 100644\nnew mode 100755\n";
        let shown = preview_diff(&workspace, &json!({"patch": mode})).unwrap();
        assert_eq!(shown, "new mode 100755\n--- a/run.sh\n+++ b/run.sh\n");
        assert!(preview_diff(&workspace, &json!({"patch": "x"})).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn the_preview_of_a_large_change_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(dir.path(), SandboxPolicy::WorkspaceWrite, &[]).unwrap();
        let lines: String = (0..20_000).map(|n| format!("line {n} …\n")).collect();
        let content = json!({"path": "huge", "updated_content": lines});
        let shown = preview_diff(&workspace, &content).unwrap();
        let added = shown.lines().filter_map(|line| line.strip_prefix('+'));
        assert!(added.skip(1).eq(lines.lines()), "{} bytes", shown.len());
    }
}
