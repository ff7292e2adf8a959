//! Scripts that call widely used MCP servers.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::path::Path;
use std::process::Command;

use selvedge_mcp::McpTransport;
use serde_json::json;
use support::{peers, program, servers, value};

fn git(dir: &Path, args: &[&str]) {
    let done = Command::new("git")
        .arg("-C")
        .arg(dir)
        .args(args)
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

#[tokio::test]
async fn one_script_calls_four_servers() {
    let Some(peers) = peers() else { return };
    let dir = tempfile::tempdir().unwrap();
    let repo = dir.path().canonicalize().unwrap();
    git(&repo, &["init", "-q", "-b", "main"]);
    std::fs::write(repo.join("notes.txt"), "buy 19 apples\nbuy 23 pears\n").unwrap();
    git(&repo, &["add", "."]);
    git(
        &repo,
        &[
            "-c",
            "user.name=Ada",
            "-c",
            "user.email=ada@example.com",
            "commit",
            "-q",
            "-m",
            "Shopping list",
        ],
    );
    std::fs::write(repo.join("new.txt"), "untracked").unwrap();

    let node = |name: &str, args: &[&str]| {
        let script = peers
            .join("node_modules/@modelcontextprotocol")
            .join(name)
            .join("dist/index.js");
        let mut all = vec![script.to_str().unwrap().to_owned()];
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        program(
            &name["server-".len()..],
            "node",
            &all.iter().map(String::as_str).collect::<Vec<_>>(),
        )
    };
    let repo_path = repo.to_str().unwrap();
    let mut memory = node("server-memory", &[]);
    if let McpTransport::Stdio { env, .. } = &mut memory.transport {
        env.insert(
            "MEMORY_FILE_PATH".to_owned(),
            repo.join(".git/memory.jsonl").display().to_string(),
        );
    }
    let servers = servers(vec![
        node("server-everything", &[]),
        node("server-filesystem", &[repo_path]),
        memory,
        program(
            "git",
            peers.join("venv/bin/mcp-server-git"),
            &["--repository", repo_path],
        ),
    ]);
    let script = format!(
        r#"
        const repo = {repo_path:?};
        const [status, file] = await Promise.all([
          tools.mcp.git.gitStatus({{ repo_path: repo }}),
          filesystem.readTextFile({{ path: repo + "/notes.txt" }}),
        ]);
        const text = typeof file === "string" ? file : file.content;
        const numbers = [...text.matchAll(/\d+/g)].map(m => Number(m[0]));
        const sum = await tools.mcp.everything["get-sum"]({{ a: numbers[0], b: numbers[1] }});
        const entity = {{ name: "list", entityType: "shopping", observations: [sum] }};
        await memory.createEntities({{ entities: [entity] }});
        const graph = await memory.readGraph();
        const raw = await everything.getSum.raw({{ a: 1, b: 2 }});
        return {{
          untracked: status.includes("new.txt"),
          sum,
          remembered: graph.entities.map(e => e.observations[0]),
          raw: raw.content[0].text,
        }};
    "#
    );
    let got = value(&servers, &script).await;
    servers.stop().await;
    let sum = "The sum of 19 and 23 is 42.";
    let raw = "The sum of 1 and 2 is 3.";
    assert_eq!(
        got,
        json!({"untracked": true, "sum": sum, "remembered": [sum], "raw": raw})
    );
}

#[tokio::test]
async fn the_everything_server_offers_resources_prompts_structured_content_and_images() {
    let Some(peers) = peers() else { return };
    let script = peers.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    let servers = servers(vec![program(
        "everything",
        "node",
        &[script.to_str().unwrap()],
    )]);
    let got = value(
        &servers,
        r#"
        const resources = await tools.listMcpResources({ server: "everything" });
        const templates = await tools.listMcpResourceTemplates({});
        const uri = resources.items[0].uri;
        const read = await tools.readMcpResource({ server: "everything", uri });
        const prompts = await tools.listMcpPrompts({ server: "everything" });
        const simple = await tools.getMcpPrompt({ server: "everything", name: "simple-prompt" });
        const weather = await everything.getStructuredContent({ location: "Chicago" });
        const blocks = await everything.getTinyImage();
        const picture = blocks.find(b => b.type === "image");
        image(picture);
        let wrong;
        const odd = JSON.parse(`{ "a": "one" }`);
        try { await everything.getSum(odd); } catch (e) { wrong = [e.name, e.toolName]; }
        return {
          resources: resources.items.length > 3 && resources.success,
          templates: templates.items.length > 0
            && templates.items.every(t => t.uriTemplate && t.server === "everything"),
          read: read.content.length > 0,
          prompts: prompts.items.map(p => p.name).includes("simple-prompt"),
          simple: simple.messages[0].role,
          weather: Object.keys(weather).sort(),
          mime: picture.mimeType,
          wrong,
        };
    "#,
    )
    .await;
    servers.stop().await;
    assert_eq!(
        got,
        json!({
            "resources": true, "templates": true, "read": true, "prompts": true, "simple": "user",
            "weather": ["conditions", "humidity", "temperature"], "mime": "image/png",
            "wrong": ["ToolValidationError", "mcp.everything.get-sum"],
        })
    );
}

#[tokio::test]
async fn tools_of_an_http_server_are_called_like_others() {
    let Some(peers) = peers() else { return };
    let script = peers.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    // The listener is dropped, so the port is most likely still free for the server.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut server = Command::new("node")
        .arg(script)
        .arg("streamableHttp")
        .env("PORT", port.to_string())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let began = std::time::Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(
            began.elapsed() < std::time::Duration::from_secs(60),
            "the server did not start"
        );
        tokio::task::yield_now().await;
    }
    let reach = McpTransport::Http {
        url: format!("http://127.0.0.1:{port}/mcp"),
        bearer_token_env_var: None,
        headers: [("X-Test".to_owned(), "1".to_owned())].into(),
    };
    let servers = servers(vec![selvedge_mcp::ServerSettings::new("far", reach)]);
    let got = value(
        &servers,
        "return await Promise.all([
          far.getSum({ a: 2, b: 3 }),
          far.echo({ message: 'hi' }),
          tools.listMcpPrompts({}).then(l => l.items.length > 0),
        ])",
    )
    .await;
    servers.stop().await;
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(got, json!(["The sum of 2 and 3 is 5.", "Echo: hi", true]));
}
