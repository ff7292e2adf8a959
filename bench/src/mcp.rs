//! Measures `selvedge mcp serve`: the round trip of a script, the memory of an idle server, and the
//! tokens of five tasks.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::measure::{Samples, elapsed_ms};
use crate::peers::bench_folder;
use crate::table::BenchTable;

pub(crate) fn measure(table: &mut BenchTable) -> Result<()> {
    measure_round_trip(table)?;
    compare_tokens(table)
}

/// An MCP server process, connected over standard input and output.
pub(crate) struct McpServerProcess {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    last_id: u64,
}

impl McpServerProcess {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let ask = child.stdin.take().context("no pipe")?;
        let answers = BufReader::new(child.stdout.take().context("no pipe")?);
        let mut server = Self {
            child,
            stdin: ask,
            stdout: answers,
            last_id: 0,
        };
        let params = json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"},
        });
        server.request("initialize", params)?;
        writeln!(
            server.stdin,
            "{}",
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"})
        )?;
        Ok(server)
    }

    fn request(&mut self, method: &str, params: Value) -> Result<Value> {
        self.last_id += 1;
        writeln!(
            self.stdin,
            "{}",
            json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params})
        )?;
        loop {
            let mut line = String::new();
            ensure!(
                self.stdout.read_line(&mut line)? > 0,
                "the MCP server closed its output"
            );
            let message: Value = serde_json::from_str(&line)?;
            if message["id"] == self.last_id {
                ensure!(message.get("error").is_none(), "{message}");
                return Ok(message["result"].clone());
            }
        }
    }

    pub(crate) fn run_script(&mut self, code: &str) -> Result<Value> {
        self.request(
            "tools/call",
            json!({"name": "script", "arguments": {"code": code}}),
        )
    }

    fn resident_mb(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))
            .unwrap_or_default();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap_or_default();
        line.split_whitespace()
            .nth(1)
            .and_then(|kb| kb.parse::<f64>().ok())
            .map_or(f64::NAN, |kb| kb / 1024.0)
    }
}

impl Drop for McpServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the command of `selvedge mcp serve` in a folder.
pub(crate) fn serve_command(home: &Path, work: &Path) -> Result<Command> {
    let mut command = Command::new(crate::selvedge_binary()?);
    command
        .args(["mcp", "serve"])
        .env("SELVEDGE_HOME", home)
        .current_dir(work);
    Ok(command)
}

fn measure_round_trip(table: &mut BenchTable) -> Result<()> {
    let dirs = BenchDirs::new("round-trip")?;
    let mut ours = McpServerProcess::start(&mut serve_command(&dirs.home, &dirs.work)?)?;
    let idle = ours.resident_mb();
    let mut ephemeral =
        McpServerProcess::start(serve_command(&dirs.home, &dirs.work)?.arg("--ephemeral"))?;
    let mut peer = McpServerProcess::start(
        Command::new("node")
            .arg("mcp-server.mjs")
            .current_dir(bench_folder()),
    )?;
    let peer_idle = peer.resident_mb();
    let (mut our_times, mut ephemeral_times, mut peer_times) =
        (Samples::default(), Samples::default(), Samples::default());
    for round in 0..600 {
        for (server, samples) in [
            (&mut ours, &mut our_times),
            (&mut ephemeral, &mut ephemeral_times),
            (&mut peer, &mut peer_times),
        ] {
            let start = Instant::now();
            let result = server.run_script("return 1+1")?;
            let time = elapsed_ms(start);
            ensure!(result["content"][0]["text"] == "2", "{result}");
            if round >= 100 {
                samples.extend([time]);
            }
        }
    }
    let ratio = peer_times.p50() / our_times.p50();
    table.add_row(
        "`return 1+1` through `mcp serve` over stdio, journal on",
        format!(
            "{:.2} ms (p99 {:.2}); {:.2} ms with --ephemeral",
            our_times.p50(),
            our_times.p99(),
            ephemeral_times.p50()
        ),
        &format!(
            "Node SDK with quickjs-emscripten {:.2} ms (p99 {:.2}): ratio 1/{ratio:.1}",
            peer_times.p50(),
            peer_times.p99()
        ),
        "≤ 1/2",
        ratio >= 2.0,
    );
    table.add_row(
        "idle memory of `mcp serve`",
        format!("{idle:.1} MB resident"),
        &format!("Node server {peer_idle:.0} MB"),
        "≤ 25 MB",
        idle <= 25.0,
    );
    Ok(())
}

/// The folders of a server, created empty.
struct BenchDirs {
    /// The folder that `SELVEDGE_HOME` names.
    home: PathBuf,
    /// The working directory.
    work: PathBuf,
}

impl BenchDirs {
    fn new(name: &str) -> Result<Self> {
        let root = std::env::temp_dir().join(format!("selvedge-bench-mcp-{name}"));
        let _ = std::fs::remove_dir_all(&root);
        let dirs = Self {
            home: root.join("home"),
            work: root.join("work"),
        };
        std::fs::create_dir_all(&dirs.home)?;
        std::fs::create_dir_all(&dirs.work)?;
        Ok(dirs)
    }
}

/// A task for a model, done with structured calls and with a script.
struct TokenTask {
    name: &'static str,
    /// JavaScript that makes the structured calls one by one, with `call(server, tool, args)`,
    /// which returns the text of the result.
    calls: &'static str,
    /// The script that a model would write instead.
    script: &'static str,
}

const TASKS: [TokenTask; 5] = [
    TokenTask {
        name: "which files have open TODOs",
        calls: "const list = await call('filesystem', 'list_directory', { path: repo }); \
            for (const line of list.split('\\n').filter(l => l.startsWith('[FILE]'))) \
            await call('filesystem', 'read_text_file', { path: repo + '/' + line.slice(7) });",
        script: "const list = await filesystem.listDirectory({ path: repo });\n\
            const names = list.content.split('\\n').filter(l => l.startsWith('[FILE]'))\
            .map(l => l.slice(7));\n\
            const texts = await Promise.all(names.map(n => \
            filesystem.readTextFile({ path: repo + '/' + n })));\n\
            return names.filter((_, i) => texts[i].content.includes('TODO'));",
    },
    TokenTask {
        name: "what the last five commits changed",
        calls: "const log = await call('git', 'git_log', { repo_path: repo, max_count: 5 }); \
            for (const hash of log.match(/[0-9a-f]{40}/g)) \
            await call('git', 'git_show', { repo_path: repo, revision: hash });",
        script: "const log = await git.gitLog({ repo_path: repo, max_count: 5 });\n\
            const shows = await Promise.all(log.match(/[0-9a-f]{40}/g).map(h => \
            git.gitShow({ repo_path: repo, revision: h })));\n\
            return shows.map(s => [...s.matchAll(/\\+\\+\\+ b?\\/?(\\S+)/g)].map(m => m[1]));",
    },
    TokenTask {
        name: "remember who works on what",
        calls: "const log = await call('git', 'git_log', { repo_path: repo, max_count: 20 }); \
            const names = [...new Set([...log.matchAll(/Author: .*?([A-Z][a-z]+)/g)]\
            .map(m => m[1]))]; await call('memory', 'create_entities', { entities: \
            names.map(n => ({ name: n, entityType: 'person', observations: ['commits here'] \
            })) }); await call('memory', 'read_graph', {});",
        script: "const log = await git.gitLog({ repo_path: repo, max_count: 20 });\n\
            const names = [...new Set([...log.matchAll(/Author: .*?([A-Z][a-z]+)/g)]\
            .map(m => m[1]))];\n\
            await memory.createEntities({ entities: names.map(n => ({ name: n, \
            entityType: 'person', observations: ['commits here'] })) });\n\
            return (await memory.readGraph()).entities.length;",
    },
    TokenTask {
        name: "the largest file",
        calls: "await call('filesystem', 'list_directory_with_sizes', \
            { path: repo, sortBy: 'size' });",
        script: "const list = await filesystem.listDirectoryWithSizes(\
            { path: repo, sortBy: 'size' });\n\
            return list.content.split('\\n')[0];",
    },
    TokenTask {
        name: "add up numbers from three notes",
        calls: "const found = []; for (const n of [1, 2, 3]) \
            found.push(Number((await call('filesystem', 'read_text_file', \
            { path: repo + '/note' + n + '.txt' })).match(/\\d+/)[0])); \
            await call('everything', 'get-sum', { a: found[0], b: found[1] }); \
            await call('everything', 'get-sum', { a: found[0] + found[1], b: found[2] });",
        script: "const notes = await Promise.all([1, 2, 3].map(n => \
            filesystem.readTextFile({ path: `${repo}/note${n}.txt` })));\n\
            return notes.reduce((sum, n) => sum + Number(n.content.match(/\\d+/)[0]), 0);",
    },
];

/// Counts the tokens of each task, done with structured calls and with a script.
fn compare_tokens(table: &mut BenchTable) -> Result<()> {
    let peers = bench_folder()
        .join("../target/mcp-peers")
        .canonicalize()
        .context("run scripts/setup-mcp-peers")?;
    let dirs = BenchDirs::new("tokens")?;
    let repo = dirs.work.canonicalize()?;
    create_repo(&repo)?;
    std::fs::write(
        dirs.home.join("config.toml"),
        server_config(&peers, &repo, &dirs.home),
    )?;
    let mut server =
        McpServerProcess::start(serve_command(&dirs.home, &repo)?.args(["--max-calls", "64"]))?;
    let count = |text: &str| {
        tiktoken_rs::o200k_base_singleton()
            .encode_ordinary(text)
            .len()
    };
    // A search starts all servers, so that their tools are listed below.
    let specs = server.run_script("await tools.search('x'); return ALL_TOOLS.length")?;
    ensure!(specs["isError"] != true, "{specs}");
    let listed = Command::new(crate::selvedge_binary()?)
        .args(["tools", "--json"])
        .env("SELVEDGE_HOME", &dirs.home)
        .current_dir(&repo)
        .output()?;
    let listed: Vec<Value> = serde_json::from_slice(&listed.stdout)?;
    let definition = |tool: &Value, schema: &str| {
        json!({
            "name": tool["name"],
            "description": tool["description"],
            "parameters": tool[schema],
        })
        .to_string()
    };
    let server_tools = listed.iter().filter(|tool| {
        tool["name"]
            .as_str()
            .is_some_and(|name| name.starts_with("mcp."))
    });
    let schemas: usize = server_tools
        .map(|tool| count(&definition(tool, "inputSchema")))
        .sum();
    let tools = server.request("tools/list", json!({}))?;
    let description: usize = tools["tools"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|tool| count(&definition(tool, "inputSchema")))
        .sum();
    let (mut one_by_one, mut scripts) = (0, 0);
    for task in &TASKS {
        let head = format!("const repo = {};\n", json!(repo));
        let recorder = format!(
            "{head}const recorded = []; const call = async (server, tool, args) => {{ \
             const r = await tools.mcp[server][tool].raw(args); \
             const text = r.content.map(c => c.text ?? '').join('\\n'); \
             recorded.push(JSON.stringify({{ name: tool, arguments: args }}), text); \
             return text; }};\n{}\nreturn recorded;",
            task.calls
        );
        let result = server.run_script(&recorder)?;
        let item = &result["structuredContent"];
        let recorded: Vec<String> =
            serde_json::from_str(item["output_json"].as_str().unwrap_or("null"))
                .with_context(|| format!("{}: {item}", task.name))?;
        let structured = schemas + recorded.iter().map(|text| count(text)).sum::<usize>();
        let result = server.run_script(&format!("{head}{}", task.script))?;
        ensure!(result["isError"] != true, "{}: {result}", task.name);
        let text = result["content"]
            .as_array()
            .and_then(|all| all.last())
            .and_then(|block| block["text"].as_str());
        let scripted = description + count(task.script) + count(text.unwrap_or_default());
        eprintln!(
            "  {}: {} calls, {structured} tokens; one script, {scripted}",
            task.name,
            recorded.len() / 2
        );
        one_by_one += structured;
        scripts += scripted;
    }
    let saved = 1.0 - scripts as f64 / one_by_one as f64;
    table.add_row(
        "tokens of five tasks with four servers: definitions, calls and results, each once",
        format!("{scripts} (tool description {description} per task)"),
        &format!(
            "structured calls {one_by_one} (schemas {schemas} per task): scripts take {:.0} % less",
            saved * 100.0
        ),
        "",
        true,
    );
    Ok(())
}

/// Creates a small project with a git history.
fn create_repo(repo: &Path) -> Result<()> {
    let git = |args: &[&str]| -> Result<()> {
        let output = Command::new("git")
            .arg("-C")
            .arg(repo)
            .args(args)
            .output()?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    };
    git(&["init", "-q", "-b", "main"])?;
    for number in 0..8 {
        let body: String = (0..60)
            .map(|line| format!("def step_{number}_{line}(value):\n    return value + {line}\n\n"))
            .collect();
        let todo = if number % 3 == 0 {
            "# TODO: handle the empty case\n"
        } else {
            ""
        };
        std::fs::write(
            repo.join(format!("part{number}.py")),
            format!("{todo}{body}"),
        )?;
        let name = ["Ada", "Grace", "Linus"][number % 3];
        git(&["add", "."])?;
        git(&[
            "-c",
            &format!("user.name={name}"),
            "-c",
            "user.email=x@example.com",
            "commit",
            "-q",
            "-m",
            &format!("Part {number}"),
        ])?;
    }
    for number in 1..=3 {
        std::fs::write(
            repo.join(format!("note{number}.txt")),
            format!("{} apples\n", number * 7),
        )?;
    }
    Ok(())
}

/// Returns a `config.toml` with the four MCP servers.
fn server_config(peers: &Path, repo: &Path, home: &Path) -> String {
    let node = |name: &str, more_args: &str| {
        let script = peers
            .join("node_modules/@modelcontextprotocol")
            .join(format!("server-{name}"))
            .join("dist/index.js");
        format!(
            "[mcp_servers.{name}]\ncommand = \"node\"\nargs = [{}{more_args}]\n\
             default_tools_approval_mode = \"approve\"\n",
            json!(script)
        )
    };
    format!(
        "{}{}{}env = {{ MEMORY_FILE_PATH = {} }}\n\
         [mcp_servers.git]\ncommand = {}\nargs = [\"--repository\", {}]\n",
        node("everything", ""),
        node("filesystem", &format!(", {}", json!(repo))),
        node("memory", ""),
        json!(home.join("memory.jsonl")),
        json!(peers.join("venv/bin/mcp-server-git")),
        json!(repo),
    )
}
