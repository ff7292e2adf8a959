//! The tool `apply_patch`: applies a patch to files, or changes none of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use selvedge_protocol::{Preview, ToolSpec, View};
use selvedge_tools::{Call, CallFuture, Risk, Tool, ToolError, read_args, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::aliases::spec;
use crate::blocking::blocking;
use crate::patch::{self, Action, Draft, Net, Operation, Source};
use crate::preview::{bounded, file_diff};
use crate::slot::Links;
use crate::{TurnDiff, Workspace};

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
pub(crate) struct Args {
    /// `*** Begin Patch` … `*** End Patch`, or a unified diff in git's format.
    patch: Option<String>,
    /// Folder that paths in the patch are relative to; itself relative to the workspace.
    cwd: Option<String>,
    /// Instead of a patch: the file whose whole content is replaced.
    path: Option<String>,
    /// The current content of `path`; omit it if the file does not exist.
    original_content: Option<String>,
    /// The new content of `path`.
    updated_content: Option<String>,
    /// Reason shown to the person who approves the call.
    #[allow(dead_code)]
    approval_context: Option<String>,
}

/// The files that the patch changed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// Always true: a patch that cannot be applied throws an error.
    success: bool,
    /// One line for each file: `A` added, `M` changed or moved here, `D` deleted.
    stdout: String,
    /// Always empty.
    stderr: String,
    /// The changed files, in the order of the patch.
    changes: Vec<Change>,
}

/// One changed file.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Change {
    /// Relative to the workspace.
    path: String,
    /// What the patch did to the file.
    kind: Kind,
    /// The path before a rename.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// Lines added.
    added: usize,
    /// Lines removed.
    removed: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Add,
    Update,
    Delete,
    Rename,
}

/// The tool `apply_patch`.
pub(crate) struct ApplyPatch(pub(crate) Workspace, pub(crate) TurnDiff);

impl Tool for ApplyPatch {
    fn spec(&self) -> ToolSpec {
        spec::<Args, Output>("apply_patch", &["patch"], DESCRIPTION).judged_by_arguments()
    }

    fn risk(&self, args: &Value) -> Risk {
        risk(&self.0, args)
    }

    fn preview(&self, args: &Value) -> Preview {
        preview(&self.0, args)
    }

    fn agreement(&self, args: &Value) -> Option<String> {
        agreement(&self.0, args)
    }

    fn call(&self, args: Value, call: Call) -> CallFuture<'_> {
        let (workspace, turn_diff) = (self.0.clone(), self.1.clone());
        let run = |args: Args| blocking(move || apply(&workspace, &turn_diff, &args, &call.cancel));
        typed_call(args, run, |output: &Output| Some(output.stdout.clone()))
    }
}

/// Returns the risk of a call: guarded, with the changed files as the reason.
pub(crate) fn risk(workspace: &Workspace, args: &Value) -> Risk {
    Risk::Guarded {
        reason: summary(workspace, args),
    }
}

/// Returns the key that an approval for the whole script is stored under: the same kinds of changes
/// to the same files. Symbolic links are resolved now, so a link that later points elsewhere does
/// not match.
pub(crate) fn agreement(workspace: &Workspace, args: &Value) -> Option<String> {
    let changes = touched(args);
    let resolve = |path: &PathBuf| {
        let path = workspace.absolute(path, None);
        let follow = workspace.slot(&path, Links::Follow).map(|slot| slot.real());
        // A move or a deletion changes the link itself, not its target.
        let keep = workspace.slot(&path, Links::Keep).map(|slot| slot.real());
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
                change.how,
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
        view: unified(workspace, args).ok().map(View::Diff),
        rule: None,
    }
}

/// Applies the patch that a command contains; returns the list of changed files as `stdout`.
pub(crate) async fn apply_from_command(
    workspace: &Workspace,
    turn_diff: &TurnDiff,
    args: Value,
    call: &Call,
) -> Result<String, ToolError> {
    let (workspace, turn_diff, cancel) =
        (workspace.clone(), turn_diff.clone(), call.cancel.clone());
    let args = read_args(args)?;
    blocking(move || apply(&workspace, &turn_diff, &args, &cancel).map(|output| output.stdout))
        .await
}

fn unified(workspace: &Workspace, args: &Value) -> Result<String, ToolError> {
    let args = read_args(args.clone())?;
    Ok(bounded(
        draft(workspace, &args)?.net().map(|net| diff(&net)),
    ))
}

fn apply(
    workspace: &Workspace,
    turn_diff: &TurnDiff,
    args: &Args,
    cancel: &CancellationToken,
) -> Result<Output, ToolError> {
    let _write_lock = workspace.changing();
    let draft = draft(workspace, args)?;
    if cancel.is_cancelled() {
        return Err(ToolError::new("cancelled before any file was written"));
    }
    for path in draft
        .net()
        .flat_map(|net| [Some(net.path), net.from])
        .flatten()
    {
        turn_diff.before_write(&workspace.root().join(path));
    }
    draft.carry_out()?;
    let changes: Vec<Change> = draft.net().map(|net| Change::from(&net)).collect();
    let mut stdout = String::from("Success. Updated the following files:\n");
    for letter in ["A", "M", "D"] {
        for change in changes
            .iter()
            .filter(|change| change.kind.letter() == letter)
        {
            stdout.push_str(&format!("{letter} {}\n", change.path));
        }
    }
    Ok(Output {
        success: true,
        stdout,
        stderr: String::new(),
        changes,
    })
}

fn draft<'a>(workspace: &'a Workspace, args: &Args) -> Result<Draft<'a>, ToolError> {
    let draft = Draft::new(workspace, Path::new(args.cwd.as_deref().unwrap_or("")));
    match (&args.patch, &args.path, &args.updated_content) {
        (Some(text), None, None) if args.original_content.is_none() => {
            draft.patch(&patch::parse(text)?)
        }
        (None, Some(path), Some(updated)) => draft.replace(
            path,
            args.original_content.as_deref().unwrap_or(""),
            updated,
        ),
        _ => Err(ToolError::new(
            "give either `patch`, or `path` with `original_content` and `updated_content`",
        )),
    }
}

/// One planned change to a file.
struct Touched {
    /// The kind of change, with the new executable bit if the patch sets one.
    how: String,
    /// The target of a move or copy, if any, then the possible names of the file. Absolute, or
    /// relative to the workspace.
    paths: Vec<PathBuf>,
}

/// Returns the changes that a call's arguments describe; empty if the patch cannot be parsed.
fn touched(args: &Value) -> Vec<Touched> {
    let base = PathBuf::from(args["cwd"].as_str().unwrap_or_default());
    match (args["patch"].as_str(), args["path"].as_str()) {
        (Some(text), _) => {
            let Ok(patch) = patch::parse(text) else {
                return Vec::new();
            };
            let base = patch
                .folder
                .map_or(base.clone(), |folder| base.join(folder));
            patch
                .operations
                .iter()
                .map(|operation| Touched::by(operation, &base))
                .collect()
        }
        (None, Some(path)) => vec![Touched {
            how: "replace".to_owned(),
            paths: vec![base.join(path)],
        }],
        (None, None) => Vec::new(),
    }
}

impl Touched {
    fn by(operation: &Operation, base: &Path) -> Self {
        let (how, executable, to) = match &operation.action {
            Action::Add { executable, .. } => ("add", Some(*executable), None),
            Action::Delete { .. } => ("delete", None, None),
            Action::Update {
                executable,
                to: None,
                ..
            } => ("update", *executable, None),
            Action::Update {
                executable,
                to: Some(to),
                ..
            } => match to.source {
                Source::Goes => ("move", *executable, Some(&to.path)),
                Source::Stays => ("copy", *executable, Some(&to.path)),
            },
        };
        let how = match executable {
            Some(executable) => format!("{how} executable={executable}"),
            None => how.to_owned(),
        };
        Self {
            how,
            paths: to
                .into_iter()
                .chain(&operation.paths)
                .map(|path| base.join(path))
                .collect(),
        }
    }
}

/// Summarizes a call for an approval, such as "changes a.rs, b.rs and 3 more".
fn summary(workspace: &Workspace, args: &Value) -> String {
    let mut names: Vec<String> = Vec::new();
    for change in touched(args) {
        // A move changes its target and its source.
        let changed_paths = if change.how.starts_with("move") { 2 } else { 1 };
        for path in change.paths.iter().take(changed_paths) {
            let name = workspace.shown(&workspace.absolute(path, None));
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

impl Kind {
    fn of(net: &Net<'_>) -> Self {
        match (net.from, net.old, net.new) {
            (_, _, None) => Self::Delete,
            (Some(_), ..) => Self::Rename,
            (None, None, Some(_)) => Self::Add,
            (None, Some(_), Some(_)) => Self::Update,
        }
    }

    fn letter(self) -> &'static str {
        match self {
            Self::Add => "A",
            Self::Update | Self::Rename => "M",
            Self::Delete => "D",
        }
    }
}

impl From<&Net<'_>> for Change {
    fn from(net: &Net<'_>) -> Self {
        Self {
            path: net.path.to_owned(),
            kind: Kind::of(net),
            from: net.from.map(str::to_owned),
            added: net.added,
            removed: net.removed,
        }
    }
}

/// Renders the diff of one file for the preview.
fn diff(net: &Net<'_>) -> String {
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
    use crate::preview::MAX_PREVIEW;

    #[test]
    fn preview_is_a_diff_and_changes_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(dir.path(), SandboxPolicy::WorkspaceWrite, &[]).unwrap();
        std::fs::write(dir.path().join("a.txt"), "one\ntwo\n").unwrap();
        std::fs::write(dir.path().join("run.sh"), "echo\n").unwrap();
        let patch = "*** Begin Patch\n*** Update File: a.txt\n*** Move to: b.txt\n@@\n-two\n+2\n\
                     *** Add File: new\n+x\n*** End Patch";
        assert_eq!(
            unified(&workspace, &json!({"patch": patch})).unwrap(),
            "--- a/a.txt\n+++ b/b.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n\
             --- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n"
        );
        let mode = "diff --git a/run.sh b/run.sh\nold mode 100644\nnew mode 100755\n";
        let shown = unified(&workspace, &json!({"patch": mode})).unwrap();
        assert_eq!(shown, "new mode 100755\n--- a/run.sh\n+++ b/run.sh\n");
        assert!(unified(&workspace, &json!({"patch": "x"})).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn truncated_preview_keeps_its_end_and_all_file_names() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(dir.path(), SandboxPolicy::WorkspaceWrite, &[]).unwrap();
        let wide = "wide as the sea\u{2026}\n".repeat(10_000);
        let shown = unified(
            &workspace,
            &json!({"path": "huge", "updated_content": wide.clone() + "the end\n"}),
        )
        .unwrap();
        assert!(
            shown.len() <= MAX_PREVIEW && shown.len() > MAX_PREVIEW / 2,
            "{}",
            shown.len()
        );
        assert!(
            shown.starts_with("--- /dev/null\n+++ b/huge\n") && shown.ends_with("\n+the end\n"),
            "{shown}"
        );
        assert!(shown.contains("\n… more than can be shown here"), "{shown}");
        let add = |name: &str, text: &str| {
            format!(
                "*** Add File: {name}\n+{}\n",
                text.trim_end().replace('\n', "\n+")
            )
        };
        std::fs::write(dir.path().join("gone"), "x\n").unwrap();
        let lines = "a line\n".repeat(MAX_PREVIEW / 8 - 100);
        let hidden = [
            add("hidden", "evil"),
            "*** Delete File: gone\n".to_owned(),
            add("long", &wide),
        ]
        .concat();
        let files = [add("first", &lines), hidden, add("last", "x")].concat();
        let shown = unified(
            &workspace,
            &json!({"patch": format!("*** Begin Patch\n{files}*** End Patch")}),
        )
        .unwrap();
        assert!(shown.len() <= MAX_PREVIEW, "{}", shown.len());
        for name in [
            "+++ b/first",
            "+++ b/hidden",
            "--- a/gone",
            "+++ b/long",
            "+++ b/last",
        ] {
            assert!(shown.contains(&format!("{name}\n")), "{name}");
        }
    }
}
