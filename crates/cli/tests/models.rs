//! `selvedge models` with a server on loopback: lists, tests, and errors.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "models/keyring.rs"]
mod keyring;
#[path = "models/keys.rs"]
mod keys;
#[path = "models/oauth.rs"]
mod oauth;
#[path = "models/prices.rs"]
mod prices;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A server of one API that records the requests.
struct ModelListServer {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl ModelListServer {
    fn start(answer: fn(&str, &str) -> (u16, String)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some((head, body)) = read(&stream) else {
                    continue;
                };
                let (status, text) = answer(&head, &body);
                seen.lock().unwrap().push(format!("{head}\n{body}"));
                let kind = if text.starts_with("data:") {
                    "text/event-stream"
                } else {
                    "application/json"
                };
                let length = text.len();
                let _ = write!(
                    &stream,
                    "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{text}"
                );
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn read(stream: &TcpStream) -> Option<(String, String)> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line.trim().is_empty() {
            break;
        }
        head.push_str(&line.to_lowercase());
    }
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .map_or(0, |n| n.trim().parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, String::from_utf8(body).unwrap()))
}

/// Answers as a Chat server that calls the tool if one is offered.
fn chat(head: &str, body: &str) -> (u16, String) {
    if head.starts_with("get ") {
        return (
            200,
            json!({"object": "list", "data": [{"id": "tiny"}, {"id": "gpt-4o"}]}).to_string(),
        );
    }
    let body: Value = serde_json::from_str(body).unwrap();
    let delta = match body["tools"].is_array() {
        true => {
            json!({"reasoning_content": "Hm.", "tool_calls": [{"index": 0, "id": "c", "function": {"name": "echo", "arguments": "{\"word\":\"ready\"}"}}]})
        }
        false => json!({"content": "ready"}),
    };
    let chunk = json!({"id": "1", "model": "tiny-2", "choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}});
    (200, format!("data: {chunk}\n\ndata: [DONE]\n\n"))
}

fn without_tools(head: &str, body: &str) -> (u16, String) {
    match body.contains("\"tools\"") {
        true => (
            400,
            json!({"error": {"message": "registry/tiny does not support tools"}}).to_string(),
        ),
        false => chat(head, body),
    }
}

fn unauthorized(_: &str, _: &str) -> (u16, String) {
    (
        401,
        json!({"error": {"message": "Incorrect API key provided: sk-own-secret"}}).to_string(),
    )
}

struct ModelsWorkspace(TempDir);

#[derive(Debug)]
struct ModelsOutput {
    status: i32,
    out: String,
    err: String,
}

impl ModelsOutput {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A URL where no server listens.
const UNREACHABLE_URL: &str = "http://127.0.0.1:9/v1";

impl ModelsWorkspace {
    /// Configures local providers without a server, whatever runs on this machine.
    fn new(config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let unreachable = |name: &str| match config.contains(&format!("[model_providers.{name}]")) {
            true => String::new(),
            false => format!("[model_providers.{name}]\nbase_url = \"{UNREACHABLE_URL}\"\n"),
        };
        let more: String = ["ollama", "lmstudio", "llamacpp", "vllm"]
            .map(unreachable)
            .concat();
        std::fs::write(dir.path().join("config.toml"), format!("{config}\n{more}")).unwrap();
        Self(dir)
    }

    fn run(&self, args: &[&str], environment: &[(&str, &str)]) -> ModelsOutput {
        let mut command = self.command(&[&["models"], args].concat());
        command.envs(environment.iter().copied());
        command_output(command.stdin(Stdio::null()).spawn().unwrap())
    }

    /// Returns a command without keys in its environment and without a keyring.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
        command
            .args(args)
            .env("SELVEDGE_HOME", self.0.path())
            .current_dir(self.0.path());
        for name in [
            "OPENAI_API_KEY",
            "ANTHROPIC_API_KEY",
            "OPENROUTER_API_KEY",
            "OLLAMA_HOST",
            "XDG_RUNTIME_DIR",
        ] {
            command.env_remove(name);
        }
        command.env("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nonexistent");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

fn command_output(child: Child) -> ModelsOutput {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    ModelsOutput {
        status: output.status.code().unwrap(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

fn own(server: &ModelListServer, more: &str) -> ModelsWorkspace {
    ModelsWorkspace::new(&format!(
        "model_provider = \"own\"\nmodel = \"tiny\"\n[model_providers.own]\nbase_url = \"{}\"\n{more}\n",
        server.url
    ))
}

#[test]
fn test_reports_the_abilities_of_a_model() {
    let server = ModelListServer::start(chat);
    let workspace = own(
        &server,
        "[models.tiny]\nprices = { input = 2.0, output = 4.0 }",
    );
    let seen = workspace.run(&["test"], &[]);
    assert_eq!(seen.status, 0, "{seen:?}");
    for text in [
        "own (chat)",
        "tiny, answered by tiny-2",
        "tools        called",
        "reasoning    yes",
        "1000 in, 500 out",
        "cost         0.004000",
    ] {
        assert!(seen.out.contains(text), "{text}: {}", seen.out);
    }
    let learned = workspace
        .run(&["test", "--json", "--model", "other"], &[])
        .json();
    assert_eq!(
        (learned["model"].as_str(), learned["tools"].as_str()),
        (Some("other"), Some("called"))
    );
    assert!(learned["first_token_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(learned["usage"]["input_tokens"], 1000);
}

#[test]
fn a_server_without_tools_is_tested_without_them() {
    let server = ModelListServer::start(without_tools);
    let learned = own(&server, "").run(&["test", "--json"], &[]).json();
    assert_eq!(
        (learned["tools"].as_str(), learned["text"].as_str()),
        (Some("not supported"), Some("ready"))
    );
}

/// Has no models, as Ollama before the first `ollama pull`.
fn no_models(_: &str, _: &str) -> (u16, String) {
    (200, json!({"object": "list", "data": []}).to_string())
}

fn not_pulled(_: &str, _: &str) -> (u16, String) {
    let message = "model 'tiny' not found, try pulling it first";
    (404, json!({"error": {"message": message}}).to_string())
}

fn empty_error(_: &str, _: &str) -> (u16, String) {
    (500, "{}".to_owned())
}

#[test]
fn hints_fit_a_server_without_models() {
    let server = ModelListServer::start(no_models);
    for (name, hint) in [
        ("ollama", "hint: run `ollama pull qwen3`"),
        (
            "own",
            "hint: load a model in the server, or pass --model MODEL\n",
        ),
    ] {
        let workspace = ModelsWorkspace::new(&format!(
            "model_provider = \"{name}\"\n[model_providers.{name}]\nbase_url = \"{}\"\n",
            server.url
        ));
        let seen = workspace.run(&["test"], &[]);
        let error =
            format!("error: no model is set for provider `{name}`, and the server has none");
        assert!(
            seen.err.starts_with(&error) && seen.err.contains(hint),
            "{}",
            seen.err
        );
    }
    // The key is wrong, so listing the models would fail, too.
    let server = ModelListServer::start(unauthorized);
    let workspace = ModelsWorkspace::new(&format!(
        "model_provider = \"own\"\n[model_providers.own]\nbase_url = \"{}\"\nenv_key = \"OWN_KEY\"\n",
        server.url
    ));
    let seen = workspace.run(&["test"], &[("OWN_KEY", "sk-own-secret")]);
    assert!(
        seen.err
            .contains("\nhint: run `export OWN_KEY=KEY` with a valid key\n"),
        "{}",
        seen.err
    );
    // Ollama, configured under another name.
    let server = ModelListServer::start(not_pulled);
    let seen = own(&server, "").run(&["test"], &[]);
    assert!(
        seen.err.contains("\nhint: run `ollama pull tiny`\n"),
        "{}",
        seen.err
    );
    let server = ModelListServer::start(empty_error);
    let seen = own(&server, "request_max_retries = 0").run(&["test"], &[]);
    assert!(
        seen.err
            .starts_with("error: provider `own` failed: HTTP status 500\n"),
        "{}",
        seen.err
    );
}

#[test]
fn a_missing_key_is_reported_before_any_request() {
    let server = ModelListServer::start(chat);
    let workspace = own(&server, "env_key = \"OWN_KEY\"");
    let seen = workspace.run(&["test"], &[]);
    assert_eq!(seen.status, 2);
    assert!(
        seen.err
            .starts_with("error: provider `own` needs an API key, and OWN_KEY is not set\n")
            && seen
                .err
                .contains("hint: run `export OWN_KEY=KEY`, or `selvedge models login own`"),
        "{}",
        seen.err
    );
    assert!(server.asked().is_empty());
    assert_eq!(workspace.run(&["test"], &[("OWN_KEY", "sk-own")]).status, 0);
    assert!(
        server.asked()[0].contains("authorization: bearer sk-own"),
        "{:?}",
        server.asked()
    );
}

#[test]
fn a_failure_shows_its_kind_and_hides_the_key() {
    let server = ModelListServer::start(unauthorized);
    let seen = own(&server, "env_key = \"OWN_KEY\"")
        .run(&["test", "--json"], &[("OWN_KEY", "sk-own-secret")]);
    assert_eq!(
        (seen.status, seen.json()["error"]["kind"].as_str()),
        (1, Some("auth"))
    );
    assert!(
        seen.err.starts_with("error: provider `own`: ")
            && seen
                .err
                .contains("\nhint: run `export OWN_KEY=KEY` with a valid key\n"),
        "{}",
        seen.err
    );
    assert!(!format!("{seen:?}").contains("sk-own-secret"), "{seen:?}");
    let seen = own(&server, "env_key = \"OWN_KEY\"").run(&["test"], &[("OWN_KEY", "sk-a\nsk-b")]);
    assert_eq!(
        seen.err,
        "error: provider `own`: the API key in OWN_KEY contains a line break or another character \
         that a key cannot have\nhint: run `export OWN_KEY=KEY` with a valid key\n"
    );
}

#[test]
fn a_server_on_this_machine_is_found() {
    let server = ModelListServer::start(chat);
    let workspace = ModelsWorkspace::new(&format!(
        "[model_providers.llamacpp]\nbase_url = \"{}\"\n",
        server.url
    ));
    // It is not used silently: any user of the machine may have started it.
    let seen = workspace.run(&["test"], &[]);
    assert_eq!(seen.status, 2, "{seen:?}");
    let message = format!(
        "error: a model server answers at {}, and its use is not confirmed\nhint: pass --provider \
         llamacpp, or set `model_provider = \"llamacpp\"` in config.toml\n",
        server.url
    );
    assert_eq!(seen.err, message);
    let prompts = |server: &ModelListServer| {
        let asked = server.asked().into_iter();
        asked.filter(|request| request.starts_with("post ")).count()
    };
    assert_eq!(prompts(&server), 0);
    // What the hint says works.
    for (args, config) in [
        (&["test", "--json", "--provider", "llamacpp"][..], ""),
        (&["test", "--json"], "model_provider = \"llamacpp\"\n"),
    ] {
        let workspace = ModelsWorkspace::new(&format!(
            "{config}[model_providers.llamacpp]\nbase_url = \"{}\"\n",
            server.url
        ));
        let learned = workspace.run(args, &[]).json();
        assert_eq!(
            (learned["provider"].as_str(), learned["model"].as_str()),
            (Some("llamacpp"), Some("tiny"))
        );
    }
    assert_eq!(prompts(&server), 2);
    // An accepted server is used while its process belongs to the same user.
    let user = rustix::process::getuid().as_raw();
    for (user, status) in [(user, 0), (user + 1, 2)] {
        let rule = format!(
            "allow_model_servers = [{{ base_url = \"{}\", user = {user} }}]",
            server.url
        );
        std::fs::write(workspace.0.path().join("rules.toml"), rule).unwrap();
        let seen = workspace.run(&["test"], &[]);
        assert_eq!(seen.status, status, "{seen:?}");
    }
    // A key has precedence over a local server.
    let workspace = ModelsWorkspace::new(&format!(
        "[model_providers.llamacpp]\nbase_url = \"{url}\"\n[model_providers.anthropic]\nbase_url = \"{url}\"\nwire_api = \"chat\"\n",
        url = server.url
    ));
    let learned = workspace
        .run(&["test", "--json"], &[("ANTHROPIC_API_KEY", "x")])
        .json();
    assert_eq!(learned["provider"], "anthropic");
    // Without both, the error has a hint.
    let seen = ModelsWorkspace::new("").run(&["test"], &[]);
    assert_eq!(seen.status, 2);
    assert!(
        seen.err.contains("error: no model is available")
            && seen.err.contains("hint: run `export OPENAI_API_KEY=KEY`"),
        "{}",
        seen.err
    );
}

#[test]
fn providers_and_their_models_are_listed() {
    let server = ModelListServer::start(chat);
    let workspace = own(&server, "[models.tiny]\ncontext_window = 5000");
    let listed = workspace.run(&["list", "--json"], &[]).json();
    let find = |name: &str| {
        listed
            .as_array()
            .unwrap()
            .iter()
            .find(|provider| provider["provider"] == name)
            .unwrap()
    };
    assert_eq!(
        find("openai")["key"],
        json!({"variable": "OPENAI_API_KEY", "state": "missing"})
    );
    assert_eq!(find("ollama")["error"], "not running");
    let models = &find("own")["models"];
    assert_eq!(
        (&models[0]["context_window"], &models[0]["known"]),
        (&json!(5000), &json!(true))
    );
    assert_eq!(models[1]["context_window"], 128_000);
    let seen = workspace.run(&["list", "--provider", "own"], &[]);
    assert!(
        seen.out.contains("2 models")
            && seen.out.contains("gpt-4o")
            && !seen.out.contains("openai"),
        "{}",
        seen.out
    );
}

#[test]
fn configuration_mistakes_are_reported_before_any_request() {
    let cases = [
        (
            "model_provider = \"unknown\"",
            "there is no provider `unknown`",
        ),
        (
            "[model_providers.x]\nenv_key = \"X\"",
            "[model_providers.x] has no base_url",
        ),
        (
            "[model_providers.x]\nbase_url = \"http://x\"\nwire_api = \"grpc\"",
            "wire_api must be \"responses\", \"chat\" or \"messages\", got \"grpc\"",
        ),
        (
            "model_provider = \"openrouter\"",
            "OPENROUTER_API_KEY is not set",
        ),
    ];
    for (config, words) in cases {
        let seen = ModelsWorkspace::new(config).run(&["test"], &[]);
        assert_eq!(seen.status, 2, "{config}");
        assert!(
            seen.err.contains(words) && seen.err.contains("hint: "),
            "{config}: {}",
            seen.err
        );
    }
    let seen = ModelsWorkspace::new("").run(
        &["test", "--provider", "openrouter"],
        &[("OPENROUTER_API_KEY", "x")],
    );
    assert!(
        seen.status == 2
            && seen
                .err
                .contains("no model is set for provider `openrouter`"),
        "{}",
        seen.err
    );
    let config = "model_provider = 'own'\nmodel = 'x'\n\
                  [model_providers.own]\nbase_url = 'ftp://x'\n";
    let seen = ModelsWorkspace::new(config).run(&["test"], &[]);
    assert!(
        seen.err.starts_with(
            "error: provider `own`: base_url must start with http:// or https://, got `ftp://x`\n\
             hint: correct base_url under [model_providers.own] in /"
        ),
        "{}",
        seen.err
    );
    let workspace =
        ModelsWorkspace::new("[model_providers.own]\nbase_url = 'http://127.0.0.1:9/v1'\n");
    let seen = workspace.run(&["test", "--provider", "own"], &[]);
    assert!(
        seen.status == 2
            && seen
                .err
                .starts_with("error: cannot connect to provider `own` at http://127.0.0.1:9/v1: ")
            && seen.err.contains(
                "\nhint: start the server, or change base_url under [model_providers.own] in /"
            ),
        "{}",
        seen.err
    );
}
