//! `apply_patch`: files changed by a patch, all or none.

use std::path::Path;

use schemars::JsonSchema;
use selvedge_protocol::{Preview, View};
use selvedge_tools::{Call, Risk, Tool, ToolError, tool_with_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aliases::aliases_of;
use crate::blocking::blocking;
use crate::patch::{self, Draft, Net};
use crate::preview::{bounded, file_diff};
use crate::{TurnDiff, Workspace};

const DESCRIPTION: &str = "Changes, adds, deletes and renames files by a patch, all or none.
The patch, which may also be the only argument, is a unified diff as git writes it, or this:
*** Begin Patch
*** Update File: path
*** Move to: path (only to rename)
@@ line that stands above (optional, may be repeated)
 line that stays
-line that goes
+line that comes
*** Add File: path
+line
*** Delete File: path
*** End Patch";

/// The patch: its text, or one file's old and new content.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// `*** Begin Patch` … `*** End Patch`, or a unified diff as git writes it.
    patch: Option<String>,
    /// Folder that the paths in the patch start from, relative to the workspace.
    cwd: Option<String>,
    /// Instead of a patch: the file whose whole content changes.
    path: Option<String>,
    /// All that `path` holds now; nothing for a file that is not there yet.
    original_content: Option<String>,
    /// All that `path` shall hold.
    updated_content: Option<String>,
    /// Told to the person who is asked.
    #[allow(dead_code)]
    approval_context: Option<String>,
}

/// What was changed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// Always true: a patch that cannot be applied throws.
    success: bool,
    /// The files, one to a line: `A` added, `M` changed or moved here, `D` deleted.
    stdout: String,
    /// Always empty.
    stderr: String,
    /// The files, in the order of the patch.
    changes: Vec<Change>,
}

/// What became of one file.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Change {
    /// Relative to the workspace.
    path: String,
    /// What happened to it.
    kind: Kind,
    /// What it was called before a rename.
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

pub(crate) fn apply_patch(workspace: &Workspace, turn_diff: &TurnDiff) -> impl Tool + use<> {
    let (workspace, turn_diff, showing) = (workspace.clone(), turn_diff.clone(), workspace.clone());
    let run = move |args: Args, call: Call| {
        let (workspace, turn_diff) = (workspace.clone(), turn_diff.clone());
        blocking(move || apply(&workspace, &turn_diff, &args, &call))
    };
    tool_with_call("apply_patch", DESCRIPTION, run)
        .risk(|args| Risk::Guarded { reason: summary(args) })
        .agreement(|args| Some(paths(args).join("\n")).filter(|paths| !paths.is_empty()))
        .preview(move |args| Preview { view: preview(&showing, args).ok().map(View::Diff), rule: None })
        .render(|output: &Output| output.stdout.clone())
        .positional(&["patch"])
        .aliases(aliases_of("apply_patch"))
}

/// A unified diff of what the call would do, for the person who is asked.
fn preview(workspace: &Workspace, args: &Value) -> Result<String, ToolError> {
    let args: Args = serde_json::from_value(args.clone())
        .map_err(|error| ToolError::new(format!("cannot read the arguments: {error}")))?;
    Ok(bounded(draft(workspace, &args)?.net().map(|net| diff(&net))))
}

fn apply(workspace: &Workspace, turn_diff: &TurnDiff, args: &Args, call: &Call) -> Result<Output, ToolError> {
    let _alone = workspace.changing();
    let draft = draft(workspace, args)?;
    if call.cancel.is_cancelled() {
        return Err(ToolError::new("the patch was cancelled before anything was written"));
    }
    for path in draft.net().flat_map(|net| [Some(net.path), net.from]).flatten() {
        turn_diff.before_write(&workspace.root().join(path));
    }
    draft.carry_out()?;
    let changes: Vec<Change> = draft.net().map(|net| Change::from(&net)).collect();
    let mut stdout = String::from("Success. Updated the following files:\n");
    for letter in ["A", "M", "D"] {
        for change in changes.iter().filter(|change| change.kind.letter() == letter) {
            stdout.push_str(&format!("{letter} {}\n", change.path));
        }
    }
    Ok(Output { success: true, stdout, stderr: String::new(), changes })
}

fn draft<'a>(workspace: &'a Workspace, args: &Args) -> Result<Draft<'a>, ToolError> {
    let draft = Draft::new(workspace, Path::new(args.cwd.as_deref().unwrap_or("")));
    match (&args.patch, &args.path, &args.updated_content) {
        (Some(text), None, None) if args.original_content.is_none() => draft.patch(&patch::parse(text)?),
        (None, Some(path), Some(updated)) => {
            draft.replace(path, args.original_content.as_deref().unwrap_or(""), updated)
        }
        _ => Err(ToolError::new("give either `patch`, or `path` with `original_content` and `updated_content`")),
    }
}

/// The files a call changes.
fn paths(args: &Value) -> Vec<String> {
    match (args["patch"].as_str(), args["path"].as_str()) {
        (Some(text), _) => {
            let mut paths = Vec::new();
            for operation in patch::parse(text).map(|patch| patch.operations).unwrap_or_default() {
                let path = operation.target().to_string_lossy().into_owned();
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
            paths
        }
        (None, path) => path.into_iter().map(str::to_owned).collect(),
    }
}

/// What a call changes, in a few words.
fn summary(args: &Value) -> String {
    match &paths(args)[..] {
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

/// One file's part of a preview.
fn diff(net: &Net<'_>) -> String {
    let mode = match net.executable {
        Some(true) => "new mode 100755\n",
        Some(false) => "new mode 100644\n",
        None => "",
    };
    format!("{mode}{}", file_diff(net.from.unwrap_or(net.path), net.path, net.old, net.new))
}

#[cfg(test)]
mod tests {
    use selvedge_protocol::SandboxPolicy;
    use serde_json::json;

    use super::*;
    use crate::preview::MAX_PREVIEW;

    #[test]
    fn a_preview_is_a_diff_and_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(dir.path(), SandboxPolicy::WorkspaceWrite, &[]).unwrap();
        std::fs::write(dir.path().join("a.txt"), "one\ntwo\n").unwrap();
        std::fs::write(dir.path().join("run.sh"), "echo\n").unwrap();
        let patch = "*** Begin Patch\n*** Update File: a.txt\n*** Move to: b.txt\n@@\n-two\n+2\n*** Add File: new\n+x\n*** End Patch";
        assert_eq!(
            preview(&workspace, &json!({"patch": patch})).unwrap(),
            "--- a/a.txt\n+++ b/b.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n"
        );
        let mode = "diff --git a/run.sh b/run.sh\nold mode 100644\nnew mode 100755\n";
        let shown = preview(&workspace, &json!({"patch": mode})).unwrap();
        assert_eq!(shown, "new mode 100755\n--- a/run.sh\n+++ b/run.sh\n");
        let huge = json!({"path": "huge", "updated_content": "wide as the sea\u{2026}\n".repeat(10_000)});
        let shown = preview(&workspace, &huge).unwrap();
        assert!(shown.len() <= MAX_PREVIEW && shown.ends_with("more than can be shown here\n"), "{}", shown.len());
        assert!(preview(&workspace, &json!({"patch": "x"})).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
