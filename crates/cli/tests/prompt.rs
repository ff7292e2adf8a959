//! The requests of `selvedge exec`: the size of the fixed prompt, what it states about the
//! environment, and the context window that the server tells.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[allow(dead_code)]
#[path = "../../agent/tests/support/answer_encoding.rs"]
mod answer_encoding;

#[allow(dead_code)]
#[path = "../../agent/tests/support/server.rs"]
mod server;

mod support;

use std::process::Output;

use answer_encoding::{block, text};
use serde_json::{Value, json};
use server::{Asked, Reply, Server};
use support::TestWorkspace;
use tiktoken_rs::o200k_base_singleton;

/// The most tokens of the fixed part of a request: system prompt and tool definitions.
const MAX_FIXED_TOKENS: usize = 4_000;

/// A workspace whose model is a server on loopback.
struct PromptFixture {
    workspace: TestWorkspace,
    server: Server,
    _runtime: tokio::runtime::Runtime,
}

impl PromptFixture {
    fn new(window: Option<u64>, script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(Server::start_with_window(window, script));
        let workspace = TestWorkspace::new();
        let fixture = Self {
            workspace,
            server,
            _runtime: runtime,
        };
        fixture.configure("");
        fixture
    }

    fn configure(&self, first: &str) {
        self.configure_with(first, "");
    }

    fn configure_with(&self, first: &str, last: &str) {
        self.workspace.config(&format!(
            "{first}model = \"mock\"\nmodel_provider = \"mock\"\n[model_providers.mock]\n\
             base_url = \"{}\"\nwire_api = \"chat\"\n{last}",
            self.server.url
        ));
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = self.workspace.command(args);
        let output = command.stdin(std::process::Stdio::null()).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{printed}");
        output
    }

    fn system(&self, request: usize) -> String {
        let asked = &self.server.asked()[request];
        asked.body["messages"][0]["content"]
            .as_str()
            .unwrap()
            .to_owned()
    }
}

fn answer_ok(_: &Asked) -> Reply {
    vec![text("ok")].into()
}

fn tokens(text: &str) -> usize {
    o200k_base_singleton().count_ordinary(text)
}

#[test]
fn the_fixed_prompt_is_small() {
    let fixture = PromptFixture::new(None, answer_ok);
    fixture.run(&["exec", "-q", "hi"]);
    // The random name of the temporary folder has a varying number of tokens.
    let folder = fixture.workspace.work().canonicalize().unwrap();
    let system = fixture.system(0);
    let system = system.replace(folder.to_str().unwrap(), "/home/ada/project");
    let tools = fixture.server.asked()[0].body["tools"].to_string();
    let counts = [tokens(&system), tokens(&tools)];
    println!(
        "system prompt {} tokens, tool definitions {} tokens",
        counts[0], counts[1]
    );
    assert!(
        counts.iter().sum::<usize>() <= MAX_FIXED_TOKENS,
        "{counts:?}\n{system}\n{tools}"
    );
}

#[test]
fn the_prompt_states_what_scripts_get_wrong_without_it() {
    let fixture = PromptFixture::new(None, answer_ok);
    fixture.configure_with("", "[script_harness.limits]\ntimeout_ms = 45000\n");
    fixture.run(&["exec", "-q", "hi"]);
    let system = fixture.system(0);
    for fact in [
        "`rm -rf`",
        "relative to the working folder",
        "`path` of `grepFiles` may be a file or a folder",
        "`truncated: true`",
        "at most 32 calls to commands, the web, MCP servers and agents, and 1000 other calls",
        "Its time limit is 45 s, not counting the time of its calls",
    ] {
        assert!(system.contains(fact), "{fact} is not in {system}");
    }
    let tools = fixture.server.asked()[0].body["tools"].to_string();
    assert!(
        tools.contains("Timeout in milliseconds (default 45000)"),
        "{tools}"
    );
}

fn git(fixture: &PromptFixture, args: &[&str]) {
    let mut command = std::process::Command::new("git");
    command.args(args).current_dir(fixture.workspace.work());
    assert!(
        command
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .unwrap()
            .status
            .success()
    );
}

#[test]
fn the_prompt_states_the_environment_as_it_was_when_the_session_began() {
    let fixture = PromptFixture::new(None, answer_ok);
    git(&fixture, &["init", "-q", "-b", "feature/one"]);
    fixture.run(&["exec", "-q", "hi"]);
    git(&fixture, &["symbolic-ref", "HEAD", "refs/heads/two"]);
    fixture.run(&["exec", "-q", "--last", "again"]);
    fixture.run(&[
        "exec",
        "-q",
        "--sandbox",
        "read-only",
        "--approval",
        "never",
        "new",
    ]);
    let (first, second, third) = (fixture.system(0), fixture.system(1), fixture.system(2));
    assert_eq!(first, second);
    for fact in [
        "Sandbox: workspace-write",
        "never .git, .selvedge, ",
        "Network of commands: off",
        "`withEscalatedPermissions: true`",
        "on git branch `feature/one`",
        std::env::consts::OS,
    ] {
        assert!(first.contains(fact), "{fact} is not in {first}");
    }
    let year = first.split("This session began on ").nth(1).unwrap();
    assert!(
        year.starts_with("20") && year[4..].starts_with('-'),
        "{year}"
    );
    assert!(third.contains("Sandbox: read-only"), "{third}");
    assert!(third.contains("Nothing can be approved"), "{third}");
    assert!(third.contains("on git branch `two`"), "{third}");
}

fn reported_window(fixture: &PromptFixture) -> Value {
    let output = fixture.run(&["exec", "--json", "hi"]);
    let lines = String::from_utf8(output.stdout).unwrap();
    let mut events = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let used = events.find(|event| event["context_window"].is_u64());
    used.unwrap()["context_window"].clone()
}

#[test]
fn the_context_window_comes_from_the_server_unless_it_is_configured() {
    let fixture = PromptFixture::new(Some(6_144), answer_ok);
    assert_eq!(reported_window(&fixture), json!(6_144));
    fixture.configure("model_context_window = 50000\n");
    assert_eq!(reported_window(&fixture), json!(50_000));
    assert_eq!(
        reported_window(&PromptFixture::new(None, answer_ok)),
        json!(32_768)
    );
}

#[test]
fn the_server_of_another_provider_is_asked_for_its_context_window() {
    let launch = "const ask = () => tools.agents.launch.sync({ prompt: 'q', model: 'other/m' });\n\
                  await ask(); await ask()";
    let fixture = PromptFixture::new(Some(6_144), move |asked| match asked.number {
        0 => vec![text(&block(launch))].into(),
        _ => answer_ok(asked),
    });
    let other = format!(
        "[model_providers.other]\nbase_url = \"{}\"\n",
        fixture.server.url
    );
    fixture.configure_with("model_context_window = 50000\n", &other);
    fixture.run(&["exec", "-q", "hi"]);
    // The window of the agent's own model is configured, so that nothing is asked for it.
    assert_eq!(fixture.server.window_queries(), 1);
}

#[test]
fn what_a_script_showed_can_be_recalled() {
    let fixture = PromptFixture::new(None, |asked| {
        let messages = asked.body["messages"].as_array().unwrap();
        let last = messages.last().unwrap()["content"].as_str().unwrap();
        match (asked.number, last.strip_prefix("recall ")) {
            (0, _) => vec![text(&block("text('first part'); text('second part')"))].into(),
            (_, Some(run)) => {
                let code =
                    format!("return await tools.recall({{ handle: '{run}/output', offset: 6 }})");
                vec![text(&block(&code))].into()
            }
            _ => vec![text("ok")].into(),
        }
    });
    fixture.run(&["exec", "-q", "show it"]);
    let listed = fixture.run(&["runs", "list", "--json"]);
    let runs: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
    let run = runs[0]["id"].as_str().unwrap();
    fixture.run(&["exec", "-q", "--last", &format!("recall {run}")]);
    let asked = fixture.server.asked();
    let result = asked.last().unwrap().body["messages"].to_string();
    assert!(result.contains("part\\\\nsecond part"), "{result}");
}
