//! `apply_patch`: files changed by a patch, all or none.

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

/// What a call risks.
pub(crate) fn risk(workspace: &Workspace, args: &Value) -> Risk {
    Risk::Guarded {
        reason: summary(workspace, args),
    }
}

/// What "for this script" covers: changes of the same kinds to the same files, wherever a link leads now.
pub(crate) fn agreement(workspace: &Workspace, args: &Value) -> Option<String> {
    let touched = touched(args);
    let real = |path: &PathBuf| {
        let path = workspace.absolute(path, None);
        let follow = workspace.slot(&path, Links::Follow).map(|slot| slot.real());
        // A link is changed itself where it is moved or deleted.
        let keep = workspace.slot(&path, Links::Keep).map(|slot| slot.real());
        (
            follow.unwrap_or_else(|_| path.clone()),
            keep.unwrap_or(path),
        )
    };
    let lines: BTreeSet<String> = touched
        .iter()
        .map(|touched| {
            format!(
                "{} {:?}",
                touched.how,
                touched.paths.iter().map(real).collect::<Vec<_>>()
            )
        })
        .collect();
    Some(lines.into_iter().collect::<Vec<_>>().join("\n")).filter(|lines| !lines.is_empty())
}

/// What a person is shown: a unified diff of what the call would do.
pub(crate) fn preview(workspace: &Workspace, args: &Value) -> Preview {
    Preview {
        view: unified(workspace, args).ok().map(View::Diff),
        rule: None,
    }
}

/// Applies the patch of a command that carries one, and tells what was changed.
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
    let _alone = workspace.changing();
    let draft = draft(workspace, args)?;
    if cancel.is_cancelled() {
        return Err(ToolError::new(
            "the patch was cancelled before anything was written",
        ));
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

/// What a call does to a file, or to two: where the second comes from, or the names it may have.
struct Touched {
    how: String,
    /// From the workspace, or absolute.
    paths: Vec<PathBuf>,
}

/// What a call touches, as far as its arguments tell.
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

/// What a call changes, in a few words.
fn summary(workspace: &Workspace, args: &Value) -> String {
    let mut names: Vec<String> = Vec::new();
    for touched in touched(args) {
        let both = if touched.how.starts_with("move") {
            2
        } else {
            1
        };
        for path in touched.paths.iter().take(both) {
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

/// One file's part of a preview.
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
    fn a_preview_is_a_diff_and_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(dir.path(), SandboxPolicy::WorkspaceWrite, &[]).unwrap();
        std::fs::write(dir.path().join("a.txt"), "one\ntwo\n").unwrap();
        std::fs::write(dir.path().join("run.sh"), "echo\n").unwrap();
        let patch = "*** Begin Patch\n*** Update File: a.txt\n*** Move to: b.txt\n@@\n-two\n+2\n*** Add File: new\n+x\n*** End Patch";
        assert_eq!(
            unified(&workspace, &json!({"patch": patch})).unwrap(),
            "--- a/a.txt\n+++ b/b.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n"
        );
        let mode = "diff --git a/run.sh b/run.sh\nold mode 100644\nnew mode 100755\n";
        let shown = unified(&workspace, &json!({"patch": mode})).unwrap();
        assert_eq!(shown, "new mode 100755\n--- a/run.sh\n+++ b/run.sh\n");
        assert!(unified(&workspace, &json!({"patch": "x"})).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_long_preview_hides_neither_its_end_nor_the_names_of_files() {
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
