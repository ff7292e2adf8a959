//! Documents of the workspace through the binary: queries, reads and writes of scripts.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::process::Output;

use serde_json::{Value, json};
use support::{Client, TestWorkspace};

const ISSUES: [(&str, &str); 5] = [
    (
        "issues/1.md",
        "---\nkind: issue\nstatus: open\ntitle: Login crashes\npriority: critical\n\
         tags: [auth]\n---\n\nThe login page crashes twice.\n",
    ),
    (
        "issues/2.md",
        "---\nkind: issue\nstatus: open\ntitle: Typo\npriority: low\n---\nA typo.\n",
    ),
    (
        "issues/3.md",
        "---\nkind: issue\nstatus: closed\npriority: critical\n---\n# Old crash\n",
    ),
    ("docs/guide.md", "# Guide\n\nHow to report a crash.\n"),
    (
        "issues/bad.md",
        "---\nkind: issue\ntitle: a: b\n---\ntext\n",
    ),
];

/// The first lines of the example in the specification, with `await`.
const EXAMPLE: &str = "\
const issues = await workspace.query({ kind: 'issue', status: 'open' });
const urgent = issues.filter(i => i.priority === 'critical');
return { title: urgent[0].title, text: urgent[0].markdownContent, found: issues.map(i => i.path) };";

fn workspace_with_issues() -> TestWorkspace {
    let workspace = TestWorkspace::new();
    for (path, text) in ISSUES {
        let path = workspace.work().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    workspace
}

fn run(workspace: &TestWorkspace, flags: &[&str], script: &str) -> Value {
    let args = [&["run", "--json"], flags, &["-e", script]].concat();
    let output: Output = workspace.command(&args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|_| {
        panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
    })
}

fn value(item: &Value) -> Value {
    let text = item["output_json"].as_str();
    serde_json::from_str(text.unwrap_or_else(|| panic!("{item}"))).unwrap()
}

fn warnings(item: &Value) -> String {
    item["warnings"].to_string()
}

#[test]
fn the_example_of_the_specification_finds_the_urgent_issue() {
    let workspace = workspace_with_issues();
    let item = run(&workspace, &[], EXAMPLE);
    assert_eq!(
        value(&item),
        json!({"title": "Login crashes", "text": "The login page crashes twice.\n",
               "found": ["issues/1.md", "issues/2.md"]})
    );
    assert!(
        warnings(&item).contains("issues/bad.md: line 3: mapping values are not allowed"),
        "{item}"
    );
    assert_eq!(item["calls"][0]["tool"], "workspace_query", "{item}");
}

#[test]
fn queries_by_text_sort_limit_and_any_field() {
    let workspace = workspace_with_issues();
    let item = run(
        &workspace,
        &[],
        "const paths = async (q) => (await workspace.query(q)).map(d => d.path);
         return [
           await paths('crashing'), await paths({ text: 'crash', kind: 'issue' }),
           await paths({ priority: 'critical', sort: '-status' }), await paths({ tags: 'auth' }),
           await paths({ kind: null, path: 'docs' }), await paths({ sort: ['title'], limit: 2 }),
           (await tools.workspace.query({ path: 'issues/3.md' }))[0].title,
         ];",
    );
    let found = value(&item);
    assert_eq!(found[0].as_array().map(Vec::len), Some(3), "{found}");
    assert_eq!(found[1], json!(["issues/3.md", "issues/1.md"]));
    assert_eq!(found[2], json!(["issues/1.md", "issues/3.md"]));
    assert_eq!(found[3], json!(["issues/1.md"]));
    assert_eq!(found[4], json!(["docs/guide.md"]));
    assert_eq!(found[5], json!(["docs/guide.md", "issues/1.md"]));
    assert_eq!(found[6], "Old crash");
    assert!(warnings(&item).contains("2 of 5 documents"), "{item}");
}

#[test]
fn a_written_document_is_found_by_the_next_query_of_the_script() {
    let workspace = workspace_with_issues();
    let item = run(
        &workspace,
        &[],
        "const before = (await workspace.query({ kind: 'note' })).length;
         const text = '---\\nkind: note\\ntitle: \"New: one\"\\n---\\nbody\\n';
         const written = await workspace.write('notes/deep/n.md', text);
         const note = await workspace.read('notes/deep/n.md');
         await workspace.write({ path: 'issues/1.md', content: (await tools.readFile('issues/1.md')).text.replace('open', 'closed') });
         return [before, written, note, (await workspace.query({ kind: 'note' })).length,
                 (await workspace.query({ status: 'open' })).map(d => d.path)];",
    );
    assert_eq!(
        value(&item),
        json!([
            0,
            {"path": "notes/deep/n.md", "bytes": 42, "created": true},
            {"path": "notes/deep/n.md", "kind": "note", "title": "New: one",
             "markdownContent": "body\n"},
            1,
            ["issues/2.md"]
        ])
    );
}

#[test]
fn malformed_front_matter_is_not_written() {
    let workspace = workspace_with_issues();
    for (content, message) in [
        (
            "---\ntitle: a: b\n---\n",
            "issues/1.md was not written: line 2: mapping values are not allowed in this context",
        ),
        ("---\nkind: x\n", "the front matter has no end"),
        ("---\nkind: [a]\n---\n", "`kind` must be a text"),
    ] {
        let script = format!("await workspace.write('issues/1.md', {})", json!(content));
        let item = run(&workspace, &[], &script);
        let error = item["error"]["message"].as_str().unwrap_or_default();
        assert!(error.contains(message), "{item}");
    }
    let kept = std::fs::read_to_string(workspace.work().join("issues/1.md")).unwrap();
    assert_eq!(kept, ISSUES[0].1);
}

#[test]
fn writing_has_the_policy_and_protected_paths_of_write_file() {
    let workspace = workspace_with_issues();
    std::fs::create_dir_all(workspace.work().join(".git")).unwrap();
    for (flags, path, code) in [
        (&[][..], ".git/hooks/x.md", "SandboxViolationError"),
        (&[], ".selvedge/x.md", "SandboxViolationError"),
        (
            &[],
            "../outside/../../../../../etc/x.md",
            "SandboxViolationError",
        ),
        (&["--sandbox", "read-only"], "x.md", "SandboxViolationError"),
        (&["--approval", "untrusted"], "x.md", "ApprovalDeniedError"),
    ] {
        let codes: Vec<Value> = ["workspace.write", "tools.writeFile"]
            .into_iter()
            .map(|tool| {
                let script = format!("await {tool}({{ path: '{path}', content: 'text' }})");
                run(&workspace, flags, &script)["error"]["code"].clone()
            })
            .collect();
        assert_eq!(codes[0], codes[1], "{path} {flags:?}");
        assert_eq!(codes[0], code, "{path} {flags:?}");
    }
    assert!(!workspace.work().join("x.md").exists());
}

#[test]
fn configured_globs_select_documents() {
    let workspace = workspace_with_issues();
    workspace.config("[workspace]\ndocuments = [\"docs/**/*.md\", \"ignored/*.md\"]\n");
    std::fs::create_dir_all(workspace.work().join("ignored")).unwrap();
    std::fs::write(workspace.work().join("ignored/a.md"), "# A\n").unwrap();
    std::fs::write(workspace.work().join(".ignore"), "ignored\n").unwrap();
    let script = "return (await workspace.query({})).map(d => d.path)";
    let item = run(&workspace, &[], script);
    assert_eq!(value(&item), json!(["docs/guide.md", "ignored/a.md"]));
    let item = run(&workspace, &[], "await workspace.write('x.md', 'text')");
    assert!(warnings(&item).contains("x.md is not a document"), "{item}");
    workspace.config("");
    let found = value(&run(&workspace, &[], script));
    assert!(!found.to_string().contains("ignored"), "{found}");
    workspace.config("[workspace]\ndocuments = [\"docs/[\"]\n");
    let output = workspace.command(&["run", "-e", "1"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.contains("config.toml:2: invalid glob \"docs/[\" in workspace.documents[0]"),
        "{text}"
    );
    assert!(text.contains("hint: "), "{text}");
}

#[test]
fn hostile_files_do_not_break_a_query() {
    let workspace = workspace_with_issues();
    let work = workspace.work();
    let laughs: String = (1..20)
        .map(|at| {
            format!(
                "a{at}: &a{at} [{}]\n",
                vec![format!("*a{}", at - 1); 9].join(",")
            )
        })
        .collect();
    let laughs = format!("---\nkind: issue\na0: &a0 lol\n{laughs}---\n");
    std::fs::write(work.join("laughs.md"), laughs).unwrap();
    std::fs::write(
        work.join("deep.md"),
        format!("---\na: {}\n---\n", "{a: ".repeat(20_000)),
    )
    .unwrap();
    std::fs::write(
        workspace.home().join("journal.md"),
        "---\nkind: issue\n---\n",
    )
    .unwrap();
    for (target, link) in [
        ("/etc", "etc"),
        ("/dev/zero", "zero.md"),
        ("../home/journal.md", "home.md"),
        (".", "loop"),
    ] {
        std::os::unix::fs::symlink(target, work.join(link)).unwrap();
    }
    std::fs::File::create(work.join("huge.md"))
        .unwrap()
        .set_len(8 << 40)
        .unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(work.join("pipe.md"))
        .status();
    assert!(made.unwrap().success());
    let item = run(
        &workspace,
        &[],
        "const issues = await workspace.query({ kind: 'issue', text: 'login' });
         const all = await workspace.query();
         const read = [];
         for (const path of ['pipe.md', 'huge.md', 'zero.md', 'issues/4.md'])
           read.push(await workspace.read(path).catch(e => `${e.message} ${e.suggestions}`));
         return [issues.length, all.map(d => d.path), read];",
    );
    let found = value(&item);
    assert_eq!(found[0], 1, "{item}");
    assert_eq!(
        found[1],
        json!([
            "deep.md",
            "docs/guide.md",
            "huge.md",
            "issues/1.md",
            "issues/2.md",
            "issues/3.md",
            "issues/bad.md",
            "laughs.md"
        ])
    );
    let read = found[2].to_string();
    assert!(read.contains("pipe.md is not a file but a pipe"), "{read}");
    assert!(read.contains("huge.md is larger than 1024 KiB"), "{read}");
    assert!(read.contains("zero.md is not a file"), "{read}");
    assert!(read.contains("did you mean issues/"), "{read}");
}

#[test]
fn the_globals_are_checked_before_the_run_and_described() {
    let workspace = workspace_with_issues();
    let item = run(&workspace, &[], "workspace.write('a.md', 'text'); return 1");
    assert_eq!(item["error"]["code"], "ScriptTypeError", "{item}");
    assert!(!workspace.work().join("a.md").exists());
    let item = run(&workspace, &[], "return workspace.query({}).length");
    assert_eq!(item["error"]["code"], "ScriptTypeError", "{item}");
    let item = run(
        &workspace,
        &[],
        "return (await workspace.query({ sort: 3 })).length",
    );
    assert_eq!(item["error"]["code"], "ToolValidationError", "{item}");
    let item = run(
        &workspace,
        &[],
        "const d = (await workspace.query({}))[0];
         return [d.anyField ?? 'none', d.title.length, /query\\(/.test(help('workspace')), help().includes('  workspace.read  ')]",
    );
    assert_eq!(value(&item)[0], "none");
    assert_eq!(
        (&value(&item)[2], &value(&item)[3]),
        (&json!(true), &json!(true))
    );
    let output = workspace.command(&["tools", "--ts"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("declare const workspace: typeof tools.workspace;"),
        "{text}"
    );
}

#[test]
fn a_server_sees_a_document_that_changed_between_two_scripts() {
    let workspace = workspace_with_issues();
    let mut client = Client::start(&workspace, &[], json!({}));
    let mut open = || {
        let code = "return (await workspace.query({ status: 'open' })).map(d => d.path).join(' ')";
        let call = json!({"name": "script", "arguments": {"code": code}});
        client.request("tools/call", call)["result"]["structuredContent"]["output_json"].clone()
    };
    assert_eq!(open(), "\"issues/1.md issues/2.md\"");
    let path = workspace.work().join("issues/2.md");
    std::fs::write(&path, ISSUES[1].1.replace("open", "done")).unwrap();
    assert_eq!(open(), "\"issues/1.md\"");
    std::fs::remove_dir_all(workspace.work().join("issues")).unwrap();
    assert_eq!(open(), "\"\"");
}
