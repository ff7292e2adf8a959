//! The worked example of ARCHITECTURE.md compiles, and works.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "architecture/count_lines.rs"]
mod count_lines;

use selvedge_protocol::SandboxPolicy;
use selvedge_script::Harness;
use selvedge_toolbox::Workspace;
use selvedge_tools::{Orchestrator, Registry};
use serde_json::json;

const EXAMPLE: &str = include_str!("architecture/count_lines.rs");
const ARCHITECTURE: &str = include_str!("../../../ARCHITECTURE.md");

#[tokio::test]
async fn the_worked_example_of_a_tool_counts_lines() {
    let (_, example) = EXAMPLE
        .split_once("\n\n/// Arguments of `count_lines`.")
        .unwrap();
    assert!(
        ARCHITECTURE.contains(example),
        "ARCHITECTURE.md and {} differ",
        "tests/architecture/count_lines.rs"
    );
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("three.txt"), "1\n2\n3\n").unwrap();
    let workspace = Workspace::open(dir.path(), SandboxPolicy::ReadOnly, &[]).unwrap();
    let tool = count_lines::CountLines(workspace);
    let registry = Registry::new().with(tool).unwrap();
    let harness = Harness::new(Orchestrator::new(registry)).unwrap();
    let source = "return (await tools.countLines({ path: 'three.txt' })).totalLines";
    assert_eq!(harness.run(source).await.value(), Some(json!(3)));
}
