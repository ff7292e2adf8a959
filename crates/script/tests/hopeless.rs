//! A script that is still being written is given up only where nothing can mend it any more.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use selvedge_script::{Compiler, hopeless};

/// The scripts of the case files that are valid, and not there for their size.
fn valid_scripts() -> Vec<String> {
    let mut scripts = Vec::new();
    for text in [
        include_str!("cases/models.md"),
        include_str!("cases/hostile.md"),
    ] {
        for part in text.split("```ts\n").skip(1) {
            let script = part.split("\n```").next().unwrap_or_default();
            if script.len() < 2000 && Compiler::default().compile(script, 64 << 10).is_ok() {
                scripts.push(script.to_owned());
            }
        }
    }
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "ts") {
            scripts.push(std::fs::read_to_string(path).unwrap());
        }
    }
    scripts
}

#[test]
fn no_beginning_of_a_valid_script_is_given_up() {
    let scripts = valid_scripts();
    assert!(scripts.len() > 100, "{} scripts", scripts.len());
    for script in scripts {
        for (end, _) in script.char_indices() {
            let beginning = &script[..end];
            assert_eq!(hopeless(beginning), None, "given up after:\n{beginning}");
        }
    }
}

#[test]
fn what_is_given_up_does_not_compile_whatever_follows() {
    let broken = [
        "const a = ;\nconst b = 1;\n",
        "const x = await tools.readFile({ path: 'a' },,);\nreturn x;\n",
        "let y = 1 +;\nif (y) { }\n",
        "foo bar;\nfor (const a of b) {\n",
        "const f = function {\n};\nreturn 1;\n",
    ];
    let endings = [
        "",
        "\n",
        "}",
        "};",
        ")",
        "]",
        "`",
        "'",
        "*/",
        "\n} catch {}",
        ") => 1",
        "} = {};",
        "1",
        " => {}",
    ];
    for script in broken {
        assert!(hopeless(script).is_some(), "{script}");
        for ending in endings {
            assert!(
                Compiler::default()
                    .compile(&format!("{script}{ending}"), 64 << 10)
                    .is_err(),
                "{script}{ending}"
            );
        }
    }
}
