//! `applyPatch` over real folders: scenarios as data, diffs of real git, and everything that must leave no trace.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "patches/chance.rs"]
mod chance;
#[path = "patches/git.rs"]
mod git;
#[path = "patches/place.rs"]
mod place;
#[path = "patches/scenario.rs"]
mod scenario;

use std::path::{Path, PathBuf};

use place::{Node, Place, Tree};
use selvedge_protocol::SandboxPolicy;
use serde_json::json;

#[test]
fn scenarios_end_as_they_say() {
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
fn spoilt_patches_break_nothing() {
    let mut chance = chance::Chance::new(1);
    for scenario in FAMILIES.iter().flat_map(|family| scenarios(family)) {
        (0..8).for_each(|_| scenario.survives(&mut chance));
    }
}

/// Folders of `patch.txt`, `input/` and `expected/`, where the machine has them.
#[test]
fn scenarios_of_the_envelope_end_as_expected() {
    let Some(folder) = fixtures("apply_patch_scenarios") else {
        eprintln!("no shared fixtures here");
        return;
    };
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.join("patch.txt").is_file() {
            continue;
        }
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let place = Place::new();
        // The fixtures themselves may be read-only.
        for (path, node) in files(&place::tree(&folder.join("input"))) {
            place.put(&path, &node.with_mode(0o644));
        }
        let before = place.tree();
        let patch = std::fs::read_to_string(folder.join("patch.txt")).unwrap();
        let result = place.apply(&json!({"patch": patch}));
        if name.contains("rejects") {
            assert!(result.is_err(), "{name}: {result:?}");
            assert_eq!(place.tree(), before, "{name}");
        } else {
            assert!(result.is_ok(), "{name}: {result:?}");
        }
        let expected = files(&place::tree(&folder.join("expected"))).into_iter();
        let expected: Vec<_> = expected
            .map(|(path, node)| (path, node.with_mode(0o644)))
            .collect();
        assert_eq!(files(&place.tree()), expected, "{name}");
        count += 1;
    }
    assert!(count > 10);
}

#[test]
fn diffs_of_git_make_the_new_tree() {
    git::rounds(250);
}

#[test]
fn a_patch_is_given_by_position_or_by_name_and_says_what_it_did() {
    let place = Place::new();
    place.write("a.txt", "one\ntwo\n");
    let patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n one\n-two\n+2\n+3\n*** Add File: n/b.txt\n+b\n*** End Patch";
    let value = place.value(&format!("return await tools.applyPatch({})", json!(patch)));
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
    let patch = "--- a/a.txt\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-one\n-2\n-3\ndiff --git a/n/b.txt b/c.txt\nrename from n/b.txt\nrename to c.txt\n";
    let value = place.value(&format!(
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
        files(&place.tree()),
        ["c.txt"].map(|name| (PathBuf::from(name), Node::text("b\n")))
    );
}

#[test]
fn a_file_is_replaced_if_it_is_what_was_thought() {
    let place = Place::new();
    place.write("a.txt", "one\ntwo\nthree\n");
    let call = |args: &str| format!("return (await tools.applyPatch({{{args}}})).changes[0]");
    assert_eq!(
        place.value(&call(
            "path: 'a.txt', originalContent: 'one\\ntwo\\nthree\\n', updatedContent: 'one\\n2\\nthree\\n'"
        )),
        json!({"path": "a.txt", "kind": "update", "added": 1, "removed": 1})
    );
    assert_eq!(
        place.value(&call("cwd: 'sub', path: 'new.txt', updatedContent: 'new'")),
        json!({"path": "sub/new.txt", "kind": "add", "added": 1, "removed": 0})
    );
    let before = place.tree();
    for (args, part) in [
        (
            "path: 'a.txt', original: 'one\\ntwo\\nthree\\n', updated: ''",
            r#"differ at line 2, where the file has "2\n" and `original_content` "two\n""#,
        ),
        (
            "path: 'a.txt', original: 'one\\n2\\nthree\\nfour', updated: ''",
            r#"differ at line 4, where the file has nothing and `original_content` "four""#,
        ),
        ("path: 'a.txt', updated: 'x'", "differ at line 1"),
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
        let error = place.error(&call(args));
        assert!(error.contains(part), "{args}: {error}");
    }
    assert_eq!(place.tree(), before);
}

#[test]
fn nothing_is_changed_and_nothing_left_when_one_of_many_cannot_be() {
    // Each breaks at another moment: while paths are judged, contents computed, files put in place.
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
            let place = Place::new();
            for name in ["a", "c", "d", "sub/e", "full/g"] {
                place.write(
                    &format!("{name}.txt"),
                    format!("{}\n", &name[name.len() - 1..]),
                );
            }
            place.write("file.txt", "f\n");
            let before = place.tree();
            let (first, rest) = good.split_at(at);
            let patch = format!(
                "*** Begin Patch\n{}{bad}{}*** End Patch\n",
                first.concat(),
                rest.concat()
            );
            let error = place.apply(&json!({"patch": patch})).unwrap_err();
            assert!(error.contains(part), "{bad} at {at}: {error}");
            assert_eq!(place.tree(), before, "{bad} at {at}: {error}");
        }
    }
}

#[test]
fn links_and_permissions_stay() {
    let place = Place::new();
    place.put(
        Path::new("real/run.sh"),
        &Node::File {
            bytes: b"one\n".to_vec(),
            mode: 0o750,
        },
    );
    place.link("real/run.sh", "link.sh");
    place.link(place.path("real").to_str().unwrap(), "folder");
    let update = |path: &str, from: &str, to: &str| json!({"patch": format!("*** Begin Patch\n*** Update File: {path}\n@@\n-{from}\n+{to}\n*** End Patch")});
    place.apply(&update("link.sh", "one", "two")).unwrap();
    place
        .apply(&update("folder/run.sh", "two", "three"))
        .unwrap();
    assert_eq!(place.node("link.sh"), Node::Link("real/run.sh".into()));
    assert_eq!(
        place.node("real/run.sh"),
        Node::File {
            bytes: b"three\n".to_vec(),
            mode: 0o750
        }
    );
    // A file of two names is one file.
    let both = "*** Begin Patch\n*** Update File: link.sh\n@@\n-three\n+four\n*** Update File: folder/run.sh\n@@\n-four\n+five\n*** End Patch";
    place.apply(&json!({"patch": both})).unwrap();
    assert_eq!(
        place.node("real/run.sh"),
        Node::File {
            bytes: b"five\n".to_vec(),
            mode: 0o750
        }
    );
    place.value("return await tools.writeFile({path: 'link.sh', content: 'six\\n'})");
    assert_eq!(
        place.node("real/run.sh"),
        Node::File {
            bytes: b"six\n".to_vec(),
            mode: 0o750
        }
    );
    // A link itself is what is deleted.
    place
        .apply(&json!({"patch": "*** Begin Patch\n*** Delete File: link.sh\n*** End Patch"}))
        .unwrap();
    assert!(!place.tree().contains_key(Path::new("link.sh")));
    assert_eq!(
        place.node("real/run.sh"),
        Node::File {
            bytes: b"six\n".to_vec(),
            mode: 0o750
        }
    );
}

#[test]
fn no_link_leads_out_or_into_what_is_protected() {
    let place = Place::new();
    let outside = Place::new();
    outside.write("secret.txt", "secret\n");
    place.write(".git/config", "config\n");
    place.write("store/config", "config\n");
    place.put(Path::new("sub"), &Node::Folder);
    place.link(outside.path("secret.txt").to_str().unwrap(), "file");
    place.link(outside.path("").to_str().unwrap(), "out");
    place.link("../store", "sub/.git");
    place.link(".git", "innocent");
    place.link(".git/config", "config");
    place.link("nowhere", "dangling");
    let before = (place.tree(), outside.tree());
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
            let error = place.apply(&json!({"patch": patch})).unwrap_err();
            assert!(
                error.contains(part) || error.contains("does not exist"),
                "{path}: {error}"
            );
        }
        let error = place.error(&format!(
            "await tools.writeFile({{path: '{path}', content: 'x'}})"
        ));
        assert!(error.contains(part), "{path}: {error}");
    }
    assert_eq!((place.tree(), outside.tree()), before);
}

#[test]
fn under_read_only_nothing_is_patched() {
    let mut place = Place::new();
    place.write("a.txt", "a\n");
    place.policy = SandboxPolicy::ReadOnly;
    let error = place
        .apply(&json!({"patch": "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-a\n+b\n"}))
        .unwrap_err();
    assert!(error.contains("read-only"), "{error}");
}

#[test]
fn patches_side_by_side_lose_nothing() {
    let place = Place::new();
    place.write("list.txt", "start\n");
    let source = "await Promise.all(Array.from({length: 16}, (_, i) => tools.applyPatch(`*** Begin Patch\\n*** Update File: list.txt\\n@@\\n+line ${i}\\n*** End Patch`)))";
    place.value(source);
    let Node::File { bytes, .. } = place.node("list.txt") else {
        panic!()
    };
    let mut lines: Vec<&str> = std::str::from_utf8(&bytes).unwrap().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 17, "{lines:?}");
    lines.dedup();
    assert_eq!(lines.len(), 17, "{lines:?}");
}

#[test]
fn the_risk_names_the_files() {
    let place = Place::new();
    let registry = place.registry();
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
            selvedge_tools::Risk::Guarded {
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

/// A tree without its folders.
fn files(tree: &Tree) -> Vec<(PathBuf, Node)> {
    tree.iter()
        .filter(|(_, node)| **node != Node::Folder)
        .map(|(path, node)| (path.clone(), node.clone()))
        .collect()
}
