//! The mode `indentation` of `read_file`.

use serde_json::json;

use super::FilesWorkspace;

#[test]
fn read_file_returns_an_indented_block() {
    let value = FilesWorkspace::new().value(
        "return (await tools.readFile({path: 'src/main.rs', mode: 'indentation', \
         anchorLine: 3, maxLevels: 1})).numbered",
    );
    assert_eq!(
        value,
        json!("L2:     if true {\nL3:         run();\nL4:     }")
    );
}

#[test]
fn an_indented_block_ends_before_the_next_one() {
    let workspace = FilesWorkspace::new();
    workspace.write(
        "work/a.py",
        b"import os\n\ndef one():\n    x = 1\n\n    return x\n\n\ndef two():\n\n    return 2\n",
    );
    workspace.write(
        "work/a.c",
        b"int one(void)\n{\n    int x = 1;\n    return x;\n}\n\nint two(void)\n{\n}\n",
    );
    workspace.write(
        "work/a.html",
        b"<ul>\n  <li>\n    one\n  </li>\n  <li>\n    two\n  </li>\n</ul>\n<p></p>\n",
    );
    for (path, args, first, last) in [
        ("a.py", "anchorLine: 4", 3, 6),
        ("a.py", "anchorLine: 6, maxLevels: 1", 3, 6),
        ("a.py", "anchorLine: 11", 9, 11),
        ("a.py", "anchorLine: 4, includeSiblings: true", 1, 11),
        // A line at the outermost level that opens a block.
        ("a.py", "anchorLine: 3", 3, 6),
        ("a.c", "anchorLine: 3", 2, 5),
        ("a.html", "anchorLine: 3, maxLevels: 1", 2, 4),
        ("a.html", "anchorLine: 3", 1, 8),
    ] {
        let value = workspace.value(&format!(
            "const r = await tools.readFile({{path: '{path}', mode: 'indentation', {args}}});\n\
             return [r.firstLine, r.firstLine + r.numbered.split('\\n').length - 1]"
        ));
        assert_eq!(value, json!([first, last]), "{path} {args}");
    }
}
