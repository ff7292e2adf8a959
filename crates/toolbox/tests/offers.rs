//! The tools that models are offered for structured calls, and the results of such calls.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use schemars::JsonSchema;
use selvedge_protocol::ErrorCode;
use selvedge_toolbox::{PatchFlavour, ShellFlavour, ToolsConfig};
use selvedge_tools::{
    OfferedShape, OfferedTool, Registry, Scope, ScopeLimits, StructuredCall, StructuredOutput,
    ToolLookup, ToolRouter, tool,
};
use serde::Deserialize;
use serde_json::{Value, json};
use support::TestToolbox;

fn router(fixture: &TestToolbox, config: &ToolsConfig) -> ToolRouter {
    support::router(fixture.orchestrator(&fixture.toolbox()), config)
}

fn route(
    fixture: &TestToolbox,
    config: &ToolsConfig,
    calls: &[(&str, &str)],
) -> Vec<StructuredOutput> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let scope = Scope::new(
        "turn".into(),
        ScopeLimits::from(&fixture.limits),
        &fixture.cancel,
        fixture.events.clone(),
    );
    let calls = calls
        .iter()
        .enumerate()
        .map(|(n, (name, arguments))| StructuredCall {
            call_id: format!("call_{n}"),
            name: (*name).to_owned(),
            arguments: (*arguments).to_owned(),
        });
    runtime.block_on(router(fixture, config).route(&scope, calls.collect()))
}

fn names(config: &ToolsConfig) -> Vec<String> {
    router(&TestToolbox::new(), config)
        .offered()
        .iter()
        .map(|tool| tool.name.clone())
        .collect()
}

fn parameters(offered: &[OfferedTool], name: &str) -> Value {
    match &offered.iter().find(|tool| tool.name == name).unwrap().shape {
        OfferedShape::Function { parameters, .. } => parameters.clone(),
        OfferedShape::Freeform { .. } => panic!("{name} is freeform"),
    }
}

#[test]
fn each_shell_flavour_offers_its_own_tools() {
    let with = |shell| {
        names(&ToolsConfig {
            shell,
            ..ToolsConfig::default()
        })
    };
    let has = |names: &[String], name: &str| names.iter().any(|n| n == name);
    let words = with(ShellFlavour::Argv);
    assert!(
        has(&words, "shell") && !has(&words, "exec") && has(&words, "exec_command"),
        "{words:?}"
    );
    let line = with(ShellFlavour::CommandLine);
    assert!(
        has(&line, "shell_command") && !has(&line, "shell"),
        "{line:?}"
    );
    let terminal = with(ShellFlavour::Terminal);
    assert!(
        has(&terminal, "exec_command") && has(&terminal, "write_stdin") && !has(&terminal, "shell"),
        "{terminal:?}"
    );
    let none = with(ShellFlavour::None);
    assert!(
        !none
            .iter()
            .any(|name| name.contains("shell") || name.contains("exec") || name == "write_stdin"),
        "{none:?}"
    );
}

#[test]
fn every_flavour_of_command_and_patch_reaches_the_same_tools() {
    let fixture = TestToolbox::new();
    let config = |shell, patch| ToolsConfig {
        shell,
        patch: Some(patch),
        ..ToolsConfig::default()
    };
    let words = config(ShellFlavour::Argv, PatchFlavour::Text);
    let out = route(
        &fixture,
        &words,
        &[("shell", r#"{"command": ["echo", "hi"], "workdir": "."}"#)],
    );
    assert!(
        out[0].content.starts_with("exit code 0 after ") && out[0].content.ends_with("s\nhi\n"),
        "{}",
        out[0].content
    );
    assert_eq!(out[0].records[0].tool, "exec");

    let line = config(ShellFlavour::CommandLine, PatchFlavour::Freeform);
    let patch = "*** Begin Patch\n*** Add File: new.txt\n+freeform\n*** End Patch";
    let out = route(
        &fixture,
        &line,
        &[
            ("shell_command", r#"{"command": "echo a b | wc -w"}"#),
            ("apply_patch", patch),
        ],
    );
    assert!(out[0].content.ends_with("2\n"), "{}", out[0].content);
    assert!(
        out[1].is_success() && fixture.read("work/new.txt") == "freeform\n",
        "{}",
        out[1].content
    );

    let json = config(ShellFlavour::None, PatchFlavour::Json);
    let arguments =
        json!({"path": "new.txt", "original_content": "freeform\n", "updated_content": "json\n"})
            .to_string();
    assert!(route(&fixture, &json, &[("apply_patch", &arguments)])[0].is_success());
    assert_eq!(fixture.read("work/new.txt"), "json\n");
    let offered = router(&fixture, &json);
    assert!(
        parameters(offered.offered(), "apply_patch")["properties"]
            .get("patch")
            .is_none()
    );
    assert!(
        names(&ToolsConfig {
            patch: None,
            ..ToolsConfig::default()
        })
        .iter()
        .all(|name| name != "apply_patch")
    );
}

#[test]
fn view_image_is_offered_only_to_models_that_accept_images() {
    let without_images = ToolsConfig {
        view_image: false,
        ..ToolsConfig::default()
    };
    assert!(
        names(&ToolsConfig::default()).contains(&"view_image".into())
            && !names(&without_images).contains(&"view_image".into())
    );
}

#[test]
fn strict_schemas_require_every_field_and_accept_null() {
    fn check(schema: &Value, path: &str) {
        if let Some(properties) = schema["properties"].as_object() {
            assert_eq!(schema["additionalProperties"], json!(false), "{path}");
            let required = schema["required"].as_array().unwrap();
            for (name, property) in properties {
                assert!(required.contains(&json!(name)), "{path}.{name}");
                check(property, &format!("{path}.{name}"));
            }
        }
        check_inner(schema, path);
    }
    fn check_inner(schema: &Value, path: &str) {
        for (key, inner) in schema
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| *key == "items" || *key == "$defs")
        {
            check(inner, &format!("{path}.{key}"));
        }
    }
    let fixture = TestToolbox::new();
    let config = ToolsConfig {
        strict: true,
        ..ToolsConfig::default()
    };
    let router = router(&fixture, &config);
    for tool in router.offered() {
        if let OfferedShape::Function { parameters, strict } = &tool.shape {
            assert!(strict);
            check(parameters, &tool.name);
        }
    }
    let limit = &parameters(router.offered(), "read_file")["properties"]["limit"];
    assert!(
        limit["type"].as_array().unwrap().contains(&json!("null")),
        "{limit}"
    );
    fixture.write("work/a.txt", "one\n");
    let out = route(
        &fixture,
        &config,
        &[(
            "read_file",
            r#"{"path": "a.txt", "offset": null, "limit": null, "mode": null}"#,
        )],
    );
    assert_eq!(out[0].content, "L1: one", "{:?}", out[0]);
}

#[test]
fn results_are_in_the_order_of_the_calls() {
    let fixture = TestToolbox::new();
    let config = ToolsConfig::default();
    let slow = json!({"command": ["sh", "-c", "sleep 0.3; echo slow"]}).to_string();
    let out = route(
        &fixture,
        &config,
        &[
            ("shell", &slow),
            ("shell", r#"{"command": ["echo", "fast"]}"#),
        ],
    );
    let ids: Vec<&str> = out.iter().map(|output| output.call_id.as_str()).collect();
    assert_eq!(ids, ["call_0", "call_1"]);
    assert!(out[0].content.ends_with("slow\n") && out[1].content.ends_with("fast\n"));
}

#[test]
fn invalid_calls_get_an_error_and_are_recorded() {
    let fixture = TestToolbox::new();
    let out = route(
        &fixture,
        &ToolsConfig::default(),
        &[
            ("read_file", "{not json"),
            ("read_file", "[1]"),
            ("no_such_tool", "{}"),
            ("read_file", r#"{"pth": "x"}"#),
            ("list_dir", ""),
        ],
    );
    let codes: Vec<ErrorCode> = out[..4]
        .iter()
        .map(|output| output.records[0].error.as_ref().unwrap().code)
        .collect();
    assert_eq!(
        codes,
        [
            ErrorCode::ToolValidationError,
            ErrorCode::ToolValidationError,
            ErrorCode::ToolNotFoundError,
            ErrorCode::ToolValidationError
        ]
    );
    assert!(
        out[0].content.contains("not valid JSON"),
        "{}",
        out[0].content
    );
    assert!(out[3].content.contains("hint: "), "{}", out[3].content);
    assert_eq!(out.len(), 5);
}

#[test]
fn the_text_of_a_result_is_limited_to_ten_kilobytes() {
    let fixture = TestToolbox::new();
    let out = route(
        &fixture,
        &ToolsConfig::default(),
        &[("shell", r#"{"command": ["seq", "100000"]}"#)],
    );
    assert!(
        out[0].content.len() < 10 * 1024 + 100,
        "{}",
        out[0].content.len()
    );
    let end = "\n100000\nwarning: exec: 326,751 bytes in the middle of stdout were omitted";
    assert!(out[0].content.contains("bytes omitted") && out[0].content.ends_with(end));
    assert!(
        out[0].value.as_ref().unwrap()["stdout"]
            .as_str()
            .unwrap()
            .len()
            > 200_000
    );
}

#[test]
fn names_of_tools_in_other_agents_lead_to_suggestions() {
    let fixture = TestToolbox::new();
    let orchestrator = fixture.orchestrator(&fixture.toolbox());
    let near = |name: &str| match orchestrator.registry().look_up(name) {
        ToolLookup::NotFound(near) => near,
        ToolLookup::Tool(_) | ToolLookup::Namespace => panic!("{name} is there"),
    };
    assert_eq!(near("bash"), ["exec", "execCommand"]);
    assert_eq!(near("strReplace"), ["editFile", "applyPatch", "writeFile"]);
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code)]
struct CreateIssueArgs {
    title: String,
    format: Option<u32>,
    default: Option<Defaults>,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code)]
struct Defaults {
    description: String,
}

#[test]
fn strict_schemas_keep_fields_that_are_named_like_keywords() {
    let strict = ToolsConfig {
        strict: true,
        ..ToolsConfig::default()
    };
    let create = |args: CreateIssueArgs| async move { Ok(args.title) };
    let mut registry = Registry::new();
    registry
        .register(tool("create_issue", "Creates an issue.", create))
        .unwrap();
    for offered in strict.offer(&registry) {
        for offered in [
            offered.clone(),
            offered.with_brief_description("createIssue"),
        ] {
            let OfferedShape::Function { parameters, .. } = offered.shape else {
                panic!("{offered:?}")
            };
            let fields = parameters["properties"].as_object().unwrap().keys();
            let fields: Vec<&String> = fields.collect();
            assert_eq!(fields, ["title", "format", "default"], "{parameters}");
            assert_eq!(parameters["required"], json!(fields));
            let inner = &parameters["$defs"]["Defaults"]["properties"];
            assert!(inner.get("description").is_some(), "{parameters}");
        }
    }
}

#[test]
fn a_compacted_plan_has_the_texts_of_all_steps() {
    let fixture = TestToolbox::new();
    let orchestrator = fixture.orchestrator(&fixture.toolbox());
    let ToolLookup::Tool(tool) = orchestrator.registry().look_up("update_plan") else {
        panic!("update_plan is not registered")
    };
    let read_plan = tool.tool.plan_reader().unwrap();
    let args = json!({"plan": [
        {"step": "read", "status": "completed"},
        {"description": "write", "status": "in_progress"},
        {"id": "test", "status": "pending"},
    ]});
    let expected = "[completed] read\n[in_progress] write\n[pending] test";
    assert_eq!(read_plan(&args).as_deref(), Some(expected));
}
