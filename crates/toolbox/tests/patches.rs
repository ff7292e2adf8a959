//! `applyPatch` on real folders: scenarios as data, diffs of real git, and failures that must
//! change nothing.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "patches/git.rs"]
mod git;
#[path = "patches/random.rs"]
mod random;
#[path = "patches/scenario.rs"]
mod scenario;
#[path = "patches/workspace.rs"]
mod workspace;

use std::path::{Path, PathBuf};

use selvedge_protocol::SandboxPolicy;
use serde_json::json;
use workspace::{Node, PatchWorkspace, Tree};

#[test]
fn scenarios_have_the_described_result() {
    let all = FAMILIES.iter().flat_map(|family| scenarios(family));
    let failures: Vec<String> = all.filter_map(|scenario| scenario.check().err()).collect();
    assert!(
        failures.is_empty(),
        "{} failed:\n\n{}",
        failures.len(),
        failures.join("\n\n")
    );
}

#[test]
fn corrupted_patches_fail_without_changes() {
    let mut random = random::Random::new(1);
    for scenario in FAMILIES.iter().flat_map(|family| scenarios(family)) {
        (0..8).for_each(|_| scenario.survives(&mut random));
    }
}

/// Runs scenarios in folders with `patch.txt`, `input/` and `expected/`, if this machine has them.
#[test]
fn shared_envelope_scenarios_have_the_expected_result() {
    let Some(folder) = fixtures("apply_patch_scenarios") else {
        eprintln!("skipped: no shared fixtures");
        return;
    };
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.join("patch.txt").is_file() {
            continue;
        }
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let workspace = PatchWorkspace::new();
        // The fixtures may be read-only.
        for (path, node) in files(&workspace::tree(&folder.join("input"))) {
            workspace.put(&path, &node.with_mode(0o644));
        }
        let before = workspace.tree();
        let patch = std::fs::read_to_string(folder.join("patch.txt")).unwrap();
        let result = workspace.apply(&json!({"patch": patch}));
        if name.contains("rejects") {
            assert!(result.is_err(), "{name}: {result:?}");
            assert_eq!(workspace.tree(), before, "{name}");
        } else {
            assert!(result.is_ok(), "{name}: {result:?}");
        }
        let expected = files(&workspace::tree(&folder.join("expected"))).into_iter();
        let expected: Vec<_> = expected
            .map(|(path, node)| (path, node.with_mode(0o644)))
            .collect();
        assert_eq!(files(&workspace.tree()), expected, "{name}");
        count += 1;
    }
    assert!(count > 10);
}

#[test]
fn diffs_of_git_produce_the_new_tree() {
    git::rounds(250);
}

#[test]
fn a_patch_is_passed_by_position_or_name_and_returns_its_changes() {
    let workspace = PatchWorkspace::new();
    workspace.write("a.txt", "one\ntwo\n");
    let patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n one\n-two\n+2\n+3\n\
                 *** Add File: n/b.txt\n+b\n*** End Patch";
    let value = workspace.value(&format!("return await tools.applyPatch({})", json!(patch)));
    assert_eq!(
        value,
        json!({
            "success": true,
            "stdout": "Success. Updated the following files:\nA n/b.txt\nM a.txt\n",
            "stderr": "",
            "changes": [
                {"path": "a.txt", "kind": "update", "added": 2, "removed": 1},
                {"path": "n/b.txt", "kind": "add", "added": 1, "removed": 0},
            ],
        })
    );
    let patch = "--- a/a.txt\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-one\n-2\n-3\n\
                 diff --git a/n/b.txt b/c.txt\nrename from n/b.txt\nrename to c.txt\n";
    let value = workspace.value(&format!(
        "return (await tools.apply_patch({{diff: {}}})).changes",
        json!(patch)
    ));
    assert_eq!(
        value,
        json!([
            {"path": "a.txt", "kind": "delete", "added": 0, "removed": 3},
            {"path": "c.txt", "kind": "rename", "from": "n/b.txt", "added": 0, "removed": 0},
        ])
    );
    assert_eq!(
        files(&workspace.tree()),
        ["c.txt"].map(|name| (PathBuf::from(name), Node::text("b\n")))
    );
}

#[test]
fn a_file_is_replaced_only_if_original_content_matches() {
    let workspace = PatchWorkspace::new();
    workspace.write("a.txt", "one\ntwo\nthree\n");
    let call = |args: &str| format!("return (await tools.applyPatch({{{args}}})).changes[0]");
    assert_eq!(
        workspace.value(&call(
            "path: 'a.txt', originalContent: 'one\\ntwo\\nthree\\n', \
             updatedContent: 'one\\n2\\nthree\\n'"
        )),
        json!({"path": "a.txt", "kind": "update", "added": 1, "removed": 1})
    );
    assert_eq!(
        workspace.value(&call("cwd: 'sub', path: 'new.txt', updatedContent: 'new'")),
        json!({"path": "sub/new.txt", "kind": "add", "added": 1, "removed": 0})
    );
    let before = workspace.tree();
    for (args, part) in [
        (
            "path: 'a.txt', original: 'one\\ntwo\\nthree\\n', updated: ''",
            r#"at line 2: the file has "2\n", `originalContent` has "two\n""#,
        ),
        (
            "path: 'a.txt', original: 'one\\n2\\nthree\\nfour', updated: ''",
            r#"at line 4: the file has nothing, `originalContent` has "four""#,
        ),
        (
            "path: 'a.txt', updated: 'x'",
            "a.txt differs from `originalContent` at line 1",
        ),
        (
            "path: 'b.txt', original: 'x', updated: 'y'",
            "the file has nothing",
        ),
        (
            "path: 'a.txt', original: 'x'",
            "give either `patch`, or `path`",
        ),
        (
            "patch: 'x', path: 'a.txt', updated: 'x'",
            "give either `patch`, or `path`",
        ),
        ("cwd: '.'", "give either `patch`, or `path`"),
    ] {
        let error = workspace.error(&call(args));
        assert!(error.contains(part), "{args}: {error}");
    }
    assert_eq!(workspace.tree(), before);
}

#[test]
fn nothing_is_changed_if_one_of_many_operations_fails() {
    // These fail at different stages: checking paths, computing contents, renaming files into
    // workspace.
    let broken = [
        (
            "*** Add File: file.txt/below.txt\n+x\n",
            "file.txt is a file, not a folder",
        ),
        (
            "*** Update File: file.txt\n*** Move to: full\n@@\n-f\n+g\n",
            "full is a folder",
        ),
        ("*** Delete File: full\n", "full is a folder"),
        (
            "*** Delete File: missing.txt\n",
            "missing.txt does not exist",
        ),
        (
            "*** Update File: file.txt\n@@\n-not there\n+x\n",
            "does not match the file",
        ),
        (
            "*** Add File: ../outside.txt\n+x\n",
            "outside the workspace",
        ),
        (
            "*** Add File: .git/hooks/pre-commit\n+x\n",
            ".git is protected",
        ),
        (
            "*** Add File: twice\n+x\n*** Add File: twice/below.txt\n+x\n",
            "nothing was changed",
        ),
        (
            "*** Add File: new/twice/below.txt\n+x\n*** Add File: new/twice\n+x\n",
            "nothing was changed",
        ),
    ];
    let good = [
        "*** Update File: a.txt\n@@\n-a\n+A\n",
        "*** Add File: new/deep/b.txt\n+b\n",
        "*** Delete File: c.txt\n",
        "*** Update File: d.txt\n*** Move to: moved/d.txt\n@@\n-d\n+D\n",
        "*** Update File: sub/e.txt\n@@\n-e\n+E\n",
    ];
    for (bad, part) in broken {
        for at in 0..=good.len() {
            let workspace = PatchWorkspace::new();
            for name in ["a", "c", "d", "sub/e", "full/g"] {
                workspace.write(
                    &format!("{name}.txt"),
                    format!("{}\n", &name[name.len() - 1..]),
                );
            }
            workspace.write("file.txt", "f\n");
            let before = workspace.tree();
            let (first, rest) = good.split_at(at);
            let patch = format!(
                "*** Begin Patch\n{}{bad}{}*** End Patch\n",
                first.concat(),
                rest.concat()
            );
            let error = workspace.apply(&json!({"patch": patch})).unwrap_err();
            assert!(error.contains(part), "{bad} at {at}: {error}");
            assert_eq!(workspace.tree(), before, "{bad} at {at}: {error}");
        }
    }
}

#[test]
fn links_and_permissions_are_kept() {
    let workspace = PatchWorkspace::new();
    workspace.put(
        Path::new("real/run.sh"),
        &Node::File {
            bytes: b"one\n".to_vec(),
            mode: 0o750,
        },
    );
    workspace.link("real/run.sh", "link.sh");
    workspace.link(workspace.path("real").to_str().unwrap(), "folder");
    let update = |path: &str, from: &str, to: &str| {
        let update = format!("*** Update File: {path}\n@@\n-{from}\n+{to}\n");
        json!({"patch": format!("*** Begin Patch\n{update}*** End Patch")})
    };
    workspace.apply(&update("link.sh", "one", "two")).unwrap();
    workspace
        .apply(&update("folder/run.sh", "two", "three"))
        .unwrap();
    assert_eq!(workspace.node("link.sh"), Node::Link("real/run.sh".into()));
    assert_eq!(
        workspace.node("real/run.sh"),
        Node::File {
            bytes: b"three\n".to_vec(),
            mode: 0o750
        }
    );
    // Two paths to one file are one file.
    let both = "*** Begin Patch\n*** Update File: link.sh\n@@\n-three\n+four\n\
                *** Update File: folder/run.sh\n@@\n-four\n+five\n*** End Patch";
    workspace.apply(&json!({"patch": both})).unwrap();
    assert_eq!(
        workspace.node("real/run.sh"),
        Node::File {
            bytes: b"five\n".to_vec(),
            mode: 0o750
        }
    );
    workspace.value("return await tools.writeFile({path: 'link.sh', content: 'six\\n'})");
    assert_eq!(
        workspace.node("real/run.sh"),
        Node::File {
            bytes: b"six\n".to_vec(),
            mode: 0o750
        }
    );
    // Deleting a link deletes the link, not its target.
    workspace
        .apply(&json!({"patch": "*** Begin Patch\n*** Delete File: link.sh\n*** End Patch"}))
        .unwrap();
    assert!(!workspace.tree().contains_key(Path::new("link.sh")));
    assert_eq!(
        workspace.node("real/run.sh"),
        Node::File {
            bytes: b"six\n".to_vec(),
            mode: 0o750
        }
    );
}

#[test]
fn links_cannot_lead_outside_or_into_protected_folders() {
    let workspace = PatchWorkspace::new();
    let outside = PatchWorkspace::new();
    outside.write("secret.txt", "secret\n");
    workspace.write(".git/config", "config\n");
    workspace.write("store/config", "config\n");
    workspace.put(Path::new("sub"), &Node::Folder);
    workspace.link(outside.path("secret.txt").to_str().unwrap(), "file");
    workspace.link(outside.path("").to_str().unwrap(), "out");
    workspace.link("../store", "sub/.git");
    workspace.link(".git", "innocent");
    workspace.link(".git/config", "config");
    workspace.link("nowhere", "dangling");
    let before = (workspace.tree(), outside.tree());
    for (path, part) in [
        ("file", "outside the workspace"),
        ("out/secret.txt", "outside the workspace"),
        ("out/new.txt", "outside the workspace"),
        ("innocent/config", ".git is protected"),
        ("innocent/hooks/post-commit", ".git is protected"),
        ("config", ".git is protected"),
        ("sub/.git/config", ".git is protected"),
        ("dangling", "broken symbolic link"),
    ] {
        for patch in [
            format!("*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch"),
            format!("*** Begin Patch\n*** Update File: {path}\n@@\n-secret\n+x\n*** End Patch"),
        ] {
            let error = workspace.apply(&json!({"patch": patch})).unwrap_err();
            assert!(
                error.contains(part) || error.contains("does not exist"),
                "{path}: {error}"
            );
        }
        let error = workspace.error(&format!(
            "await tools.writeFile({{path: '{path}', content: 'x'}})"
        ));
        assert!(error.contains(part), "{path}: {error}");
    }
    assert_eq!((workspace.tree(), outside.tree()), before);
}

#[test]
fn the_read_only_policy_refuses_patches() {
    let mut workspace = PatchWorkspace::new();
    workspace.write("a.txt", "a\n");
    workspace.policy = SandboxPolicy::ReadOnly;
    let error = workspace
        .apply(&json!({"patch": "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-a\n+b\n"}))
        .unwrap_err();
    assert!(error.contains("read-only"), "{error}");
}

#[test]
fn concurrent_patches_lose_no_changes() {
    let workspace = PatchWorkspace::new();
    workspace.write("list.txt", "start\n");
    let source = "await Promise.all(Array.from({length: 16}, (_, i) => tools.applyPatch(\
                  `*** Begin Patch\\n*** Update File: list.txt\\n\
                  @@\\n+line ${i}\\n*** End Patch`)))";
    workspace.value(source);
    let Node::File { bytes, .. } = workspace.node("list.txt") else {
        panic!()
    };
    let mut lines: Vec<&str> = std::str::from_utf8(&bytes).unwrap().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 17, "{lines:?}");
    lines.dedup();
    assert_eq!(lines.len(), 17, "{lines:?}");
}

#[test]
fn the_risk_reason_names_the_files() {
    let workspace = PatchWorkspace::new();
    let registry = workspace.registry();
    let tool = &registry.get("apply_patch").unwrap().tool;
    let add = |names: &[&str]| {
        let adds: String = names
            .iter()
            .map(|name| format!("*** Add File: {name}\n+x\n"))
            .collect();
        json!({"patch": format!("*** Begin Patch\n{adds}*** End Patch")})
    };
    for (args, reason) in [
        (add(&["a.rs"]), "changes a.rs"),
        (add(&["a.rs", "b.rs", "a.rs"]), "changes a.rs and b.rs"),
        (
            add(&["a.rs", "b.rs", "c.rs", "d.rs", "e.rs"]),
            "changes a.rs, b.rs and 3 more",
        ),
        (json!({"path": "x", "updated_content": ""}), "changes x"),
        (json!({"patch": "gibberish"}), "applies a patch"),
        (json!({}), "applies a patch"),
    ] {
        assert_eq!(
            tool.risk(&args),
            selvedge_tools::Risk::Moderate {
                reason: reason.to_owned()
            }
        );
    }
}

const FAMILIES: [&str; 3] = ["unified", "envelope", "wrapped"];

fn scenarios(family: &str) -> Vec<scenario::Scenario> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/patches/{family}.txt"));
    scenario::read(&std::fs::read_to_string(file).unwrap())
}

fn fixtures(name: &str) -> Option<PathBuf> {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above
        .map(|folder| folder.join("shared/fixtures").join(name))
        .find(|folder| folder.is_dir())
}

/// Returns the files and links of a tree.
fn files(tree: &Tree) -> Vec<(PathBuf, Node)> {
    tree.iter()
        .filter(|(_, node)| **node != Node::Folder)
        .map(|(path, node)| (path.clone(), node.clone()))
        .collect()
}
