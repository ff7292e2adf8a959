//! Which parts of an answer are script blocks.
#![allow(missing_docs)]

use selvedge_script::detect::{BlockDetector, Segment, detect, merge_text, reasoning_text};

fn shape(text: &str) -> Vec<String> {
    let name = |segment: &Segment| match segment {
        Segment::Text(text) => format!("text:{text}"),
        Segment::Reasoning(text) => format!("reasoning:{text}"),
        Segment::EndOfReasoning(_) => "end of reasoning".to_owned(),
        Segment::Script(block) => format!("script:{}", block.code),
        Segment::Malformed { problem, .. } => format!("bad:{problem}"),
    };
    detect(text).iter().map(name).collect()
}

#[test]
fn blocks_are_separated_from_text() {
    assert_eq!(
        shape("a\n<tool-calls>\nreturn 1\n</tool-calls> \nb"),
        ["text:a\n", "script:return 1", "text: \nb"]
    );
    assert_eq!(
        shape("x\n```ts tool-calls\nreturn 2\n```\ny"),
        ["text:x\n", "script:return 2", "text:\ny"]
    );
    assert_eq!(
        shape("<tool-calls>1</tool-calls>\nand\n<tool-calls>2</tool-calls>"),
        ["script:1", "text:\nand\n", "script:2"]
    );
    assert_eq!(
        shape("- a\n- b\n<tool-calls>return `</tool-calls>x`</tool-calls>"),
        ["text:- a\n- b\n", "script:return `</tool-calls>x`"]
    );
    assert_eq!(
        shape("````ts tool-calls\nconst t = `a\n```b`\n````"),
        ["script:const t = `a\n```b`"]
    );
}

#[test]
fn quoted_blocks_are_text() {
    let block = "<tool-calls>\nreturn 1\n</tool-calls>";
    let indented = |by: &str| block.replace('\n', &format!("\n{by}"));
    for text in [
        format!("```\n{block}\n```\n"),
        format!("~~~md\n{block}\n~~~\n"),
        format!("````\n```\n{block}\n```\n````"),
        format!("```\n{block}"),
        format!("    {}", indented("    ")),
        format!(" {block}"),
        format!("> {}", indented("> ")),
        format!("- {}", indented("  ")),
        format!("1. a\n\n   {}", indented("   ")),
        format!("<!--\n{block}\n-->"),
        format!("see <!-- this\n{block}\n-->"),
        format!("<details>\n{block}\n</details>"),
        format!("<pre>\n\n{block}\n</pre>"),
        format!("text {block}").replace("\n</tool-calls>", "</tool-calls>"),
        format!("`{block}`"),
        "````md\n```ts tool-calls\nreturn 1\n```\n````".to_owned(),
        "> ```ts tool-calls\n> return 1\n> ```".to_owned(),
        "  ```ts tool-calls\n  return 1\n  ```".to_owned(),
    ] {
        assert_nothing_runs(&text);
    }
}

fn assert_nothing_runs(text: &str) {
    let segments = detect(text);
    let runs = |segment: &Segment| matches!(segment, Segment::Script(_));
    assert!(!segments.iter().any(runs), "{text}: {segments:?}");
}

#[test]
fn blocks_in_an_element_after_a_line_of_text_are_text() {
    let block = "<tool-calls>\nreturn 1\n</tool-calls>";
    for name in [
        "file",
        "example",
        "svg",
        "thought",
        "antThinking",
        "scratchpad",
    ] {
        for before in [
            format!("The README says:\n<{name}>\n"),
            format!("The README says:\n<{name} path=\"README.md\">\n"),
            format!("The README says:\n<{name}>\n\n"),
            format!("The README says: <{name}>\n"),
            format!("The README says: <{name}>\n\n"),
            format!("<{name}>README\n"),
            format!("- a\n<{name}>\n"),
            format!("- <{name}>\n"),
            format!("> a\n<{name}>\n"),
        ] {
            assert_nothing_runs(&format!("{before}{block}\n</{name}>\n"));
            assert_nothing_runs(&format!("{before}{block}\n"));
        }
    }
}

#[test]
fn blocks_directly_below_a_block_quote_are_text() {
    let block = "<tool-calls>\nreturn 1\n</tool-calls>";
    for before in [
        "> It says:\n",
        "> a\n> b\n",
        "> - a\n",
        "- > a\n",
        "> a\nb\n",
    ] {
        assert_nothing_runs(&format!("{before}{block}"));
        assert!(shape(&format!("{before}\n{block}")).contains(&"script:return 1".to_owned()));
    }
}

#[test]
fn blocks_directly_below_a_fence_without_an_end_are_text() {
    let block = "<tool-calls>\nreturn 1\n</tool-calls>";
    for before in ["> ```\n", "> ~~~\n> a\n", "- ```\n", "1. ~~~md\n   a\n"] {
        assert_nothing_runs(&format!("{before}{block}"));
    }
    for before in ["- ```\n  a\n  ```\n", "```\na\n```\n", "- ```\n\na:\n"] {
        assert!(shape(&format!("{before}{block}")).contains(&"script:return 1".to_owned()));
    }
}

#[test]
fn blocks_in_formulas_and_directives_are_text() {
    let block = "<tool-calls>\nreturn 1\n</tool-calls>";
    for text in [
        format!("$$\n{block}\n$$\n"),
        format!("It says:\n$$\n\n{block}\n$$\n"),
        format!(":::note\n{block}\n:::\n"),
        format!("::: note \"a\"\n\n{block}\n\n:::\n"),
    ] {
        assert_nothing_runs(&text);
    }
    for before in ["$$\na\n$$\n", ":::note\na\n:::\n\n", "costs $$ in shell:\n"] {
        assert!(shape(&format!("{before}{block}")).contains(&"script:return 1".to_owned()));
    }
}

#[test]
fn reasoning_of_every_model_contains_no_blocks() {
    let block = "<tool-calls>\n1\n</tool-calls>";
    for (open, close) in [
        ("<think>", "</think>"),
        ("<thinking>", "</thinking>"),
        ("<thought>", "</thought>"),
        ("<reasoning>", "</reasoning>"),
        ("<antThinking>", "</antThinking>"),
        ("<seed:think>", "</seed:think>"),
        ("<|think|>", "<|/think|>"),
        ("<|begin_of_thought|>", "<|end_of_thought|>"),
        ("<|channel|>analysis<|message|>", "<|end|>"),
        ("[THINK]", "[/THINK]"),
        ("◁think▷", "◁/think▷"),
    ] {
        let reasoning = format!("{open}\n{block}\n{close}");
        for before in ["", "Sure.\n", "> a\n"] {
            let shapes = shape(&format!("{before}{reasoning}\nok\n{block}"));
            let after = [format!("reasoning:{reasoning}"), "text:\nok\n".to_owned()];
            assert!(shapes.windows(2).any(|pair| pair == after), "{shapes:?}");
            assert_eq!(
                shapes.last().map(String::as_str),
                Some("script:1"),
                "{open}"
            );
        }
        assert_eq!(reasoning_text(&format!("{open} a {close}")), "a");
        // The rest of the answer is not reasoning: the opening tag was part of the prompt.
        let shapes = shape(&format!("{block}\n{close}\nok"));
        let ends = shapes.contains(&"end of reasoning".to_owned());
        // This mark ends a message of any kind.
        assert_eq!(ends, close != "<|end|>", "{shapes:?}");
        assert_nothing_runs(&format!("{open}\n{block}"));
        assert_nothing_runs(&format!("> a\n{open}\n\n{block}"));
    }
    for before in [
        "ok <think>\n",
        "ok <think> so\n",
        "<THINK>\n\n",
        "<think id=1>\n\n",
    ] {
        assert_nothing_runs(&format!("{before}{block}"));
    }
}

#[test]
fn reasoning_contains_no_blocks() {
    assert_eq!(
        shape("<think>\n<tool-calls>\n1\n</tool-calls>\n</think>\nok"),
        [
            "reasoning:<think>\n<tool-calls>\n1\n</tool-calls>\n</think>",
            "text:\nok"
        ]
    );
    assert_eq!(
        shape("<thinking>a</thinking>\n\n<tool-calls>2</tool-calls>"),
        ["reasoning:<thinking>a</thinking>", "text:\n\n", "script:2"]
    );
    assert_eq!(shape("<think>\nx <tool"), ["reasoning:<think>\nx <tool"]);
    assert_eq!(shape("plan\n</think>\nok")[1], "end of reasoning");
    assert_eq!(reasoning_text("<think>\n a\n</think>"), "a");
}

#[test]
fn blocks_in_a_tag_of_any_name_and_notation_are_text() {
    let block = "<tool-calls>\nreturn 1\n</tool-calls>";
    for tag in [
        "<file_content>",
        "<document_content>",
        "<function_results>",
        "<system_reminder>",
        "<ns:doc>",
        "<file_content path=\"a > b\">",
        "<file_content\n  path='a'>",
        "<_x>",
        "<größe>",
        "**<example>**",
        "**<example>",
        "_<example>_",
        "[<example>](x)",
        "[<example>",
        "(<example>):",
        "### <example>",
        "&lt;example&gt;",
        "&#60;example&#x3E;",
        "&amp;lt;example&amp;gt;",
        "\\<example>",
        "\\<example\\>",
        "< example >",
        "＜example＞",
        "It says: <file_content>",
        "It says: **<file_content>**",
        "| <example> | b |\n|---|---|\n",
        "- <file_content>",
    ] {
        for before in [format!("{tag}\n"), format!("It says:\n{tag}\n")] {
            assert_eq!(
                shape(&format!("{before}{block}"))
                    .first()
                    .map(|first| first.starts_with("text:")),
                Some(true),
                "{before}"
            );
            assert_nothing_runs(&format!("{before}{block}"));
        }
        if !tag.starts_with('-') {
            assert_nothing_runs(&format!("{tag}\n\nIt goes on.\n\n{block}"));
        }
    }
    assert_nothing_runs(&format!("<file_content path=\"\n{block}\n\">"));
}

#[test]
fn a_block_after_a_tag_in_the_middle_of_a_line_is_reported() {
    let block = "<tool-calls>\nreturn 1\n</tool-calls>";
    for before in [
        "The text of <file_content> is this:\n",
        "The text of **<example>** is this:\n\n",
        "Replace <b> by <i> there.\n\n",
        "The text of &lt;example&gt; is this:\n",
        "## The element <header> is wrong\n",
    ] {
        let shapes = shape(&format!("{before}{block}"));
        assert!(
            shapes[1].starts_with("bad:the block may be a quotation: `<"),
            "{before}: {shapes:?}"
        );
    }
}

#[test]
fn ordinary_prose_does_not_stop_a_block() {
    let block = "<tool-calls>\nreturn 1\n</tool-calls>";
    for before in [
        "It returns Vec<String>.\n",
        "It returns `Vec<String>` and a `<div>`:\n",
        "It returns `Vec<String>`\n",
        "It returns Vec<String>\n",
        "It returns Vec<Vec<String>>, HashMap<K, V> or Option<T>:\n",
        "It calls parse::<u32>() and collect::<Vec<_>>():\n",
        "Vec&lt;String&gt; and Vec\\<String\\> are types:\n",
        "If a < b and c > d:\n",
        "If a<b and c>d:\n",
        "1 < 2 > 1\n",
        "a <- b, a <= b, a << b, x <3 y\n",
        "see <https://example.com/a?b=c> or <me@example.com>:\n",
        "a -> b => c\n",
        "<b>Note</b> that:\n",
        "<file_content>\na\n</file_content>\n\nNow:\n",
        "**<example>** a **</example>**\n\nNow:\n",
        "&lt;example&gt;a&lt;/example&gt;\n\nNow:\n",
        "\\<example>\na\n\\</example>\n",
        "<ns:doc>a</ns:doc>\n",
        "```xml\n<file_content>\n```\n",
        "    <file_content>\n\nNow:\n",
        "<!-- <file_content> -->\n\n",
        "Line one<br>\nline two<br/>\n",
        "- read <file_content>\n- write it\n\nNow:\n",
        "It is in C:\\Übung, not in \\日本 and not \\\n",
    ] {
        let shapes = shape(&format!("{before}{block}"));
        assert_eq!(
            shapes.last().unwrap(),
            "script:return 1",
            "{before}: {shapes:?}"
        );
    }
}

#[test]
fn reasoning_is_recognised_in_every_spelling() {
    let block = "<tool-calls>\n1\n</tool-calls>";
    for (open, close) in [
        ("<THINK>", "</THINK>"),
        ("<think>", "</think >"),
        ("< think >", "< / think >"),
        ("<Thinking>", "</thinking>"),
        ("<think id=1>", "</think>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("<|channel>thought", "<channel|>"),
        ("[think]", "[/think]"),
    ] {
        let reasoning = format!("{open}\n{block}\n{close}");
        let shapes = shape(&format!("{reasoning}\nok\n{block}"));
        assert_eq!(
            shapes,
            [
                format!("reasoning:{reasoning}"),
                "text:\nok\n".to_owned(),
                "script:1".to_owned()
            ]
        );
        assert_eq!(reasoning_text(&format!("{open} a {close}")), "a");
        assert_nothing_runs(&format!("{open}\n{block}"));
        assert_nothing_runs(&format!("ok: {open}\n{block}"));
        assert_nothing_runs(&format!("ok: {open} so\n\n{block}"));
        for end in [
            format!("\n{close}\nok"),
            format!("\n{close} ok\n"),
            format!("\nNo.{close}\nok"),
            format!("\n```\nNo.\n{close}\nok"),
            format!("\n<details>\nNo.\n{close}\nok"),
            format!("\n{}{close}\nok", "so and so\n".repeat(30_000)),
            format!("\n{}{close}\nok", "so and so ".repeat(30_000)),
        ] {
            let shapes = shape(&format!("Perhaps:\n{block}{end}"));
            assert!(
                shapes.contains(&"end of reasoning".to_owned()),
                "{} {}",
                close,
                &end[end.len().saturating_sub(40)..]
            );
        }
    }
    // A quotation of both tags says nothing about the text before it.
    let quoted = format!("{block}\n```\n<think>\na\n</think>\n```\n");
    assert_eq!(shape(&quoted)[0], "script:1");
    assert!(!shape(&quoted).contains(&"end of reasoning".to_owned()));
    let named = format!("{block}\nIt removes `</think>`\nand </think> there.\n");
    assert!(!shape(&named).contains(&"end of reasoning".to_owned()));
}

#[test]
fn malformed_blocks_are_reported() {
    let nested = "<tool-calls>\na\n<tool-calls>\nb\n</tool-calls>\nc\n</tool-calls>\nd";
    assert_eq!(
        shape(nested),
        ["bad:a script block cannot contain another", "text:\nd"]
    );
    assert!(shape("<tool-calls>return 1")[0].starts_with("bad:`<tool-calls>` is not closed"));
    assert!(
        shape("```ts tool-calls\nreturn 1")[0]
            .starts_with("bad:the ```ts tool-calls fence is not closed")
    );
    assert!(
        shape("so <tool-calls>\n1\n</tool-calls>\ny")[1]
            .starts_with("bad:`</tool-calls>` has no matching")
    );
    assert!(
        shape("<tool-calls id='1'>x</tool-calls>")[0]
            .starts_with("bad:`<tool-calls>` takes no attributes")
    );
    assert!(shape("```ts tool-calls\n<tool-calls>\n```\n")[0].starts_with("bad:a script block"));
}

#[test]
fn the_result_does_not_depend_on_how_the_text_is_split() {
    let texts = [
        "a\n<tool-calls>\nreturn `</x>`\n</tool-calls> \nb ```ts tool-calls no\n\
         ```ts tool-calls\nlet ü = 1\n```\r\nend",
        "```typescript tool-calls  \r\nreturn 1\r\n```",
        "<tool-calls>a\n<tool-calls>b</tool-calls>\nc</tool-calls>\n</tool-calls>\n`<tool-",
        "``` ``\n```t\n```ts\n```ts tool-call\n```ts tool-calls",
        "<tool-calls>return `a`</tool-calls>x `</tool-calls>`\n",
        "<tool-calls",
        "x\n<tool-calls>y</tool-call",
        "```ts tool-calls\na\n````\n```x\n```",
        "<think>a <b</think\n</think> x\n<thinking></thinking>\n</think> \n</thinking>",
        "> a\n```\n<tool-calls>1</tool-calls>\n```\n<tool-calls>2</tool-calls>",
        "<tool-calls>1</tool-calls>\nno</think> \nok < / THINK >\n<|START_thinking|>a<|end_thinking|>b",
        "< think a>\n< / think\n</think >x <channel|>\n<|channel>thoughty<channel|>",
        "a <b> c\n<tool-calls>1</tool-calls>",
    ];
    for text in texts {
        let whole = detect(text);
        let cuts: Vec<usize> = text.char_indices().map(|(index, _)| index).collect();
        for first in &cuts {
            for second in cuts.iter().filter(|second| *second >= first) {
                let mut detector = BlockDetector::default();
                let mut segments = detector.push(&text[..*first]);
                segments.extend(detector.push(&text[*first..*second]));
                segments.extend(detector.push(&text[*second..]));
                segments.extend(detector.finish());
                assert_eq!(
                    merge_text(segments),
                    whole,
                    "{text:?} split at {first} and {second}"
                );
            }
        }
        let raw: String = whole
            .iter()
            .map(|segment| match segment {
                Segment::Text(text) | Segment::Reasoning(text) => text.as_str(),
                Segment::EndOfReasoning(raw) => raw,
                Segment::Script(block) => &block.raw,
                Segment::Malformed { raw, .. } => raw,
            })
            .collect();
        assert_eq!(raw, text);
    }
}
