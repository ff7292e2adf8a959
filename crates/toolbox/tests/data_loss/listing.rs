//! Searches and listings: limits are large enough for a repository, and reaching one is said.

use serde_json::{Value, json};

use super::{lines, run, turn};
use crate::support::TestToolbox;

#[test]
fn a_search_with_more_matches_than_its_limit_warns() {
    let fixture = TestToolbox::new();
    for (name, count) in [("a", 5000), ("b", 5000), ("c/d", 1320)] {
        fixture.write(&format!("work/{name}.txt"), lines(count));
    }
    let (value, warnings) = run(
        &fixture,
        "const hits = await tools.grepFiles({ pattern: 'line' });
         return [hits.length, hits[0], hits.at(-1)]",
    );
    let hit = |line: u32| json!({"path": "a.txt", "line": line, "text": format!("line {line}")});
    assert_eq!(value, json!([2000, hit(1), hit(2000)]));
    assert_eq!(
        warnings,
        ["grepFiles: returned 2,000 of 11,320 matches; set a higher limit for more"]
    );
    let (value, warnings) = run(
        &fixture,
        "return (await tools.grepFiles({ pattern: 'line', limit: 20000 })).length",
    );
    assert_eq!((value, warnings), (json!(11320), vec![]));
    let output = turn(&fixture, &[("grep_files", json!({"pattern": "line"}))]).remove(0);
    assert_eq!(output.value.unwrap().as_array().unwrap().len(), 100);
    let end = "warning: grep_files: returned 100 of 11,320 matches; set a higher limit for more";
    assert!(output.content.ends_with(end), "{}", output.content);
}

#[test]
fn a_search_for_an_endless_number_of_matches_stops_counting() {
    let fixture = TestToolbox::new();
    for name in 0..13 {
        fixture.write(&format!("work/{name}.txt"), "x\n".repeat(10_000));
    }
    let (value, warnings) = run(
        &fixture,
        "return (await tools.grepFiles({ pattern: 'x', limit: 3 })).length",
    );
    assert_eq!(value, json!(3));
    assert_eq!(
        warnings,
        ["grepFiles: returned 3 of more than 100,000 matches; set a higher limit for more"]
    );
}

#[test]
fn a_matching_line_that_is_cut_warns() {
    let fixture = TestToolbox::new();
    fixture.write("work/min.js", "x".repeat(5000));
    let (value, warnings) = run(
        &fixture,
        "return (await tools.grepFiles({ pattern: 'x' }))[0].text.length",
    );
    assert_eq!(value, json!(2000));
    assert_eq!(
        warnings,
        ["grepFiles: 1 matching line is cut to 2,000 characters"]
    );
}

#[test]
fn a_folder_with_two_thousand_files_is_listed_whole() {
    let fixture = TestToolbox::new();
    for n in 0..2000 {
        fixture.write(&format!("work/many/{n:04}.rs"), "");
    }
    let all = "const [l, s, g] = [await tools.listDir({ path: 'many' }),
                 await tools.fileSearch({ pattern: '*.rs' }), await tools.fileSearch({ pattern: 'rs' })];
               return [l.entries.length, l.truncated, s.length, g.length]";
    let (value, warnings) = run(&fixture, all);
    assert_eq!(
        (value, warnings),
        (json!([2000, false, 2000, 2000]), vec![])
    );
    fixture.write("work/many/one more.rs", "");
    let (value, warnings) = run(&fixture, all);
    assert_eq!(value, json!([2000, true, 2000, 2000]));
    assert_eq!(
        warnings,
        [
            "listDir: returned 2,000 of 2,001 entries; set a higher limit for more",
            "fileSearch: returned 2,000 of 2,001 files; set a higher limit for more",
            "fileSearch: returned 2,000 of 2,001 files; set a higher limit for more"
        ]
    );
    for (tool, args, count, what) in [
        ("list_dir", json!({"path": "many"}), 25, "entries"),
        ("file_search", json!({"pattern": "*.rs"}), 100, "files"),
        (
            "file_search",
            json!({"pattern": "*.rs", "maxResults": 7}),
            7,
            "files",
        ),
    ] {
        let output = turn(&fixture, &[(tool, args)]).remove(0);
        let end = format!(
            "warning: {tool}: returned {count} of 2,001 {what}; set a higher limit for more"
        );
        assert!(output.content.ends_with(&end), "{}", output.content);
    }
}

#[test]
fn many_warnings_are_counted() {
    let fixture = TestToolbox::new();
    fixture.write("work/a.txt", lines(30));
    let (_, warnings) = run(
        &fixture,
        "for (let limit = 1; limit < 26; limit++) await tools.grepFiles({ pattern: 'line', limit })",
    );
    assert_eq!(warnings.len(), 21);
    assert_eq!(
        warnings[0],
        "grepFiles: returned 1 of 30 matches; set a higher limit for more"
    );
    assert_eq!(warnings[20], "5 more warnings were omitted");
}

#[test]
fn globs_with_a_slash_follow_the_rules_of_gitignore() {
    let fixture = TestToolbox::new();
    for path in [
        "docs/a.md",
        "docs/plugins/x.md",
        "docs/plugins/deep/y.md",
        "a.md",
        "pkg/docs/b.md",
        "pkg/docs/c.txt",
    ] {
        fixture.write(&format!("work/{path}"), "text\n");
    }
    let docs_only = ["docs/a.md"];
    let below_docs = ["docs/a.md", "docs/plugins/deep/y.md", "docs/plugins/x.md"];
    let cases: [(&str, &[&str]); 9] = [
        ("docs/*.md", &docs_only),
        ("/docs/*.md", &docs_only),
        ("./docs/*.md", &docs_only),
        ("docs/?.md", &docs_only),
        ("docs/**/*.md", &below_docs),
        ("docs/**", &below_docs),
        ("**/docs/*.md", &["docs/a.md", "pkg/docs/b.md"]),
        ("*/*/*.md", &["docs/plugins/x.md", "pkg/docs/b.md"]),
        (
            "*.md",
            &[
                "a.md",
                "docs/a.md",
                "docs/plugins/deep/y.md",
                "docs/plugins/x.md",
                "pkg/docs/b.md",
            ],
        ),
    ];
    for (glob, expected) in cases {
        let (value, _) = run(
            &fixture,
            &format!(
                "const found = await tools.fileSearch({{ pattern: '{glob}' }});
                 const hits = await tools.grepFiles({{ pattern: 'text', include: '{glob}' }});
                 return [found.map(f => f.path), hits.map(h => h.path)]"
            ),
        );
        assert_eq!(value, json!([expected, expected]), "{glob}");
    }
    // A slash only at the end does not bind the glob to the folder of the search.
    let (value, _) = run(
        &fixture,
        "const found = await tools.fileSearch({ pattern: '*.md', exclude: ['docs/'] });
         const listed = await tools.listDir({ recursive: true, pattern: 'docs/*' });
         return [found.map(f => f.path), listed.entries.map(e => e.path)]",
    );
    assert_eq!(value, json!([["a.md"], ["docs/a.md", "docs/plugins"]]));
}

#[test]
fn entries_have_size_and_time_and_can_be_sorted() {
    let fixture = TestToolbox::new();
    for (name, size, day) in [("small", 1, 3), ("large", 3000, 1), ("sub/middle", 20, 2)] {
        fixture.write(&format!("work/s/{name}"), "x".repeat(size));
        let file = std::fs::File::options()
            .write(true)
            .open(fixture.path(&format!("work/s/{name}")))
            .unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(86_400 * day);
        file.set_modified(time).unwrap();
    }
    let listed = |args: &str| -> Value {
        let source = format!(
            "const {{ entries, content }} = await tools.listDir(
                 {{ path: 's', depth: 2, pattern: '*l*', {args} }});
             return [entries.map(e => [e.path, e.kind, e.size, e.modified]), content]"
        );
        run(&fixture, &source).0
    };
    let (small, large, middle) = (
        json!(["s/small", "file", 1, "1970-01-04T00:00:00.000Z"]),
        json!(["s/large", "file", 3000, "1970-01-02T00:00:00.000Z"]),
        json!(["s/sub/middle", "file", 20, "1970-01-03T00:00:00.000Z"]),
    );
    assert_eq!(listed("")[0], json!([large, small, middle]));
    assert_eq!(listed("sort: 'size'")[0], json!([large, middle, small]));
    assert_eq!(listed("sort: 'modified'")[0], json!([small, middle, large]));
    let two = listed("sort: 'modified', limit: 2");
    assert_eq!(two[0], json!([small, middle]));
    // Sorted entries are rows: size, time and path.
    let text = two[1].as_str().unwrap();
    assert!(
        text.contains("1970-01-03T00:00:00.000Z  s/sub/middle\n"),
        "{text}"
    );
}

#[test]
fn output_of_a_command_that_is_left_out_warns() {
    let fixture = TestToolbox::new();
    let (value, warnings) = run(
        &fixture,
        "const { stdout } = await tools.exec({ command: ['head', '-c', '362144', '/dev/zero'] });
         return stdout.length < 362144",
    );
    assert_eq!(value, json!(true));
    assert_eq!(
        warnings,
        ["exec: 100,000 bytes in the middle of stdout were omitted"]
    );
}
