//! A workspace in a temporary folder, and functions to compare its content.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use selvedge_protocol::{EventSink, SandboxPolicy};
use selvedge_script::Harness;
use selvedge_toolbox::{Toolbox, Workspace};
use selvedge_tools::{CallContext, Orchestrator, Registry};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Every file, link and folder by its path.
pub type Tree = BTreeMap<PathBuf, Node>;

#[derive(Clone, PartialEq, Eq)]
pub enum Node {
    File { bytes: Vec<u8>, mode: u32 },
    Link(PathBuf),
    Folder,
}

impl Node {
    pub fn text(text: &str) -> Self {
        Self::File {
            bytes: text.as_bytes().to_vec(),
            mode: 0o644,
        }
    }

    pub fn with_mode(self, mode: u32) -> Self {
        match self {
            Self::File { bytes, .. } => Self::File { bytes, mode },
            other => other,
        }
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File { bytes, mode } => write!(f, "{mode:o} \"{}\"", bytes.escape_ascii()),
            Self::Link(to) => write!(f, "-> {}", to.display()),
            Self::Folder => f.write_str("folder"),
        }
    }
}

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
});

pub struct PatchWorkspace {
    dir: TempDir,
    pub policy: SandboxPolicy,
}

impl PatchWorkspace {
    pub fn new() -> Self {
        // Not in /tmp, which is always writable.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self {
            dir,
            policy: SandboxPolicy::WorkspaceWrite,
        }
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        self.put(
            Path::new(name),
            &Node::File {
                bytes: text.as_ref().to_vec(),
                mode: 0o644,
            },
        );
    }

    pub fn put(&self, name: &Path, node: &Node) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        match node {
            Node::File { bytes, mode } => {
                std::fs::write(&path, bytes).unwrap();
                std::fs::set_permissions(&path, PermissionsExt::from_mode(*mode)).unwrap();
            }
            Node::Link(to) => symlink(to, &path).unwrap(),
            Node::Folder => std::fs::create_dir_all(&path).unwrap(),
        }
    }

    pub fn link(&self, to: &str, name: &str) {
        symlink(to, self.path(name)).unwrap();
    }

    pub fn tree(&self) -> Tree {
        tree(self.dir.path())
    }

    pub fn node(&self, name: &str) -> Node {
        self.tree()[Path::new(name)].clone()
    }

    pub fn registry(&self) -> Registry {
        let workspace = Workspace::open(self.dir.path(), self.policy, &[]).unwrap();
        let mut registry = Registry::new();
        Toolbox::new(workspace).register(&mut registry).unwrap();
        registry
    }

    /// Runs a script and returns its value.
    pub fn value(&self, source: &str) -> Value {
        let output = self.run(source);
        assert_eq!(output.error, None, "{source}");
        output.value().unwrap_or(Value::Null)
    }

    /// Runs a script that must fail, and returns its error message.
    pub fn error(&self, source: &str) -> String {
        self.run(source)
            .error
            .unwrap_or_else(|| panic!("no error: {source}"))
            .message
    }

    /// Applies a patch from a script.
    pub fn apply(&self, args: &Value) -> Result<Value, String> {
        let output = self.run(&format!("return await tools.applyPatch({args})"));
        match output.error {
            None => Ok(output.value().unwrap_or(Value::Null)),
            Some(error) => Err(error.message),
        }
    }

    /// Applies a patch without a script, whose length is limited.
    pub fn apply_long(&self, args: Value) -> Result<Value, String> {
        let registry = self.registry();
        let call = CallContext {
            time_limit: std::time::Duration::from_secs(30),
            read_only: false,
            id: "tool_1".to_owned(),
            scope_id: "scope".to_owned(),
            idempotency_key: "key".to_owned(),
            cancel: Default::default(),
            events: EventSink::default(),
            resources: Default::default(),
            notes: Default::default(),
            warnings: Default::default(),
            gate: Default::default(),
        };
        let output = RUNTIME.block_on(registry.get("apply_patch").unwrap().tool.call(args, call));
        output
            .map(|output| output.value)
            .map_err(|error| error.message)
    }

    fn run(&self, source: &str) -> selvedge_protocol::ScriptToolCallOutput {
        let harness = Harness::new(Orchestrator::new(self.registry())).unwrap();
        RUNTIME.block_on(harness.run(source))
    }
}

/// Returns all entries below a folder; empty if it does not exist.
pub fn tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            let node = if metadata.is_symlink() {
                Node::Link(std::fs::read_link(&path).unwrap())
            } else if metadata.is_dir() {
                folders.push(path.clone());
                Node::Folder
            } else {
                Node::File {
                    bytes: std::fs::read(&path).unwrap(),
                    mode: metadata.permissions().mode() & 0o777,
                }
            };
            tree.insert(path.strip_prefix(root).unwrap().to_owned(), node);
        }
    }
    tree
}
