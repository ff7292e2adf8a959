//! Attacks on `selvedge mcp serve --http` by other users of the machine, by pages in a browser, and
//! by clients that have the token but not the rights of the server's owner.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::attempt::{Attempt, Verdict};
use crate::lab::{Lab, SECRET};
use crate::mcp_client::{HttpServer, STANDARD_HEADERS, initialize};

/// How long a client may wait while the server is attacked.
const MAX_DELAY: Duration = Duration::from_secs(10);
/// How much memory a server may need for unused sessions, in megabytes.
const MAX_SESSION_MB: u64 = 40;

pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    let mut all = rejected_requests()?;
    all.extend(floods());
    all.extend(large_requests());
    all.extend(starts());
    all.extend(runs_of_others());
    all.extend(own_approvals());
    all.extend(hidden_ends());
    all.extend(secrets());
    Ok(all)
}

/// Requests that must not be accepted, from `data/mcp_http.tsv`.
fn rejected_requests() -> Result<Vec<Attempt>> {
    let rows = include_str!("../data/mcp_http.tsv").lines();
    rows.filter(|row| !row.starts_with('#'))
        .map(|row| {
            let mut columns = row.split('\t').map(str::to_owned);
            let mut column = || columns.next().with_context(|| row.to_owned());
            let (name, start, headers) = (column()?, column()?, column()?);
            Ok(Attempt::new(name, move |lab| {
                let server = HttpServer::start(lab, &[])?;
                let port = server.address.rsplit(':').next().unwrap_or_default();
                let fill = |text: &str| {
                    text.replace("$TOKEN", &server.token)
                        .replace("$SHORT", &server.token[..server.token.len() - 1])
                        .replace("$UPPER", &server.token.to_uppercase())
                        .replace("$HOST", &server.address)
                        .replace("$PORT", port)
                };
                let headers = fill(&headers).replace('|', "\r\n");
                let head = format!(
                    "{} HTTP/1.1\r\n{headers}\r\n{STANDARD_HEADERS}",
                    fill(&start)
                );
                let response = server.exchange(&head, &initialize().to_string())?;
                Ok(Verdict::held_if(
                    response.status >= 400 && response.session_id().is_none() && server.works()?,
                    response.text,
                ))
            }))
        })
        .collect()
}

/// Connections that send too little. Another client must be served meanwhile.
fn floods() -> Vec<Attempt> {
    [
        ("300 silent connections", ""),
        ("300 connections with half a request line", "POST /m"),
        (
            "300 connections with half a header",
            "POST /mcp HTTP/1.1\r\nHost: local",
        ),
        (
            "300 connections without a token and without their body",
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{",
        ),
        (
            "300 connections with a wrong token and half a body",
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\
             Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
        ),
    ]
    .map(|(name, bytes)| {
        Attempt::new(name, move |lab| {
            let server = HttpServer::start_with_few_files(lab)?;
            let mut open: Vec<TcpStream> = Vec::new();
            for _ in 0..300 {
                let mut stream = server.connect()?;
                // The server may have closed the connection already.
                let _ = stream.write_all(bytes.as_bytes());
                open.push(stream);
            }
            let began = Instant::now();
            let works = server.works()?;
            let took = began.elapsed();
            Ok(Verdict::held_if(
                works && took < MAX_DELAY,
                format!("{took:?}"),
            ))
        })
    })
    .into_iter()
    .chain([Attempt::new("1000 unused sessions", |lab| {
        let server = HttpServer::start(lab, &[])?;
        anyhow::ensure!(server.works()?, "the server does not work");
        let before = server.memory_mb()?;
        for _ in 0..1000 {
            server.post(None, &initialize())?;
        }
        let grown = server.memory_mb()?.saturating_sub(before);
        Ok(Verdict::held_if(
            grown < MAX_SESSION_MB && server.works()?,
            format!("{grown} MB"),
        ))
    })])
    .collect()
}

/// Heads that are too large.
fn large_requests() -> Vec<Attempt> {
    [
        (
            "header of 1 MB",
            "/mcp".to_owned(),
            format!("X: {}\r\n", "x".repeat(1 << 20)),
        ),
        (
            "10,000 headers",
            "/mcp".to_owned(),
            "X-Y: z\r\n".repeat(10_000),
        ),
        (
            "request line of 1 MB",
            format!("/mcp?{}", "x".repeat(1 << 20)),
            String::new(),
        ),
        (
            "token of 1 MB",
            "/mcp".to_owned(),
            format!("Authorization: Bearer {}\r\n", "x".repeat(1 << 20)),
        ),
    ]
    .map(|(name, target, headers)| {
        Attempt::new(name, move |lab| {
            let server = HttpServer::start(lab, &[])?;
            let head = format!(
                "POST {target} HTTP/1.1\r\nHost: {}\r\n{headers}",
                server.address
            );
            let response = server.exchange(&head, "{}")?;
            Ok(Verdict::held_if(
                response.status >= 400 && server.works()?,
                response.text,
            ))
        })
    })
    .into_iter()
    .collect()
}

/// Servers that must not start.
fn starts() -> Vec<Attempt> {
    let refused = |name: String, args: &'static [&'static str], prepare: fn(&Lab) -> Result<()>| {
        Attempt::new(name, move |lab| {
            prepare(lab)?;
            let all = [&["mcp", "serve", "--http"], args].concat();
            let seen = lab.run(&all)?;
            Ok(Verdict::held_if(
                seen.ended_cleanly() && seen.exit_code == Some(2),
                seen.output(),
            ))
        })
    };
    const WITH_FILE: &[&str] = &["127.0.0.1:0", "--token-file", "token"];
    vec![
        refused(
            "no token on all addresses".into(),
            &["0.0.0.0:0", "--no-token"],
            |_| Ok(()),
        ),
        refused(
            "no token on all IPv6 addresses".into(),
            &["[::]:0", "--no-token"],
            |_| Ok(()),
        ),
        refused(
            "token from a variable that is not set".into(),
            &["127.0.0.1:0", "--token-env", "NOT_SET"],
            |_| Ok(()),
        ),
        refused("token that all users can read".into(), WITH_FILE, |lab| {
            with_mode(lab, 0o644)
        }),
        refused("token that a group can read".into(), WITH_FILE, |lab| {
            with_mode(lab, 0o640)
        }),
        refused("token that others can write".into(), WITH_FILE, |lab| {
            with_mode(lab, 0o602)
        }),
        refused(
            "link to a token that all users can read".into(),
            WITH_FILE,
            |lab| {
                let target = lab.outside().join("secret");
                Ok(std::os::unix::fs::symlink(
                    target,
                    lab.work().join("token"),
                )?)
            },
        ),
        refused("empty token".into(), WITH_FILE, |lab| {
            private_token(lab, "\n")
        }),
        refused("token of one character".into(), WITH_FILE, |lab| {
            private_token(lab, "x")
        }),
        refused("token of 15 characters".into(), WITH_FILE, |lab| {
            private_token(lab, "0123456789abcde")
        }),
        refused("pipe instead of a token".into(), WITH_FILE, |lab| {
            let status = std::process::Command::new("mkfifo")
                .arg(lab.work().join("token"))
                .status()?;
            anyhow::ensure!(status.success(), "mkfifo failed");
            Ok(())
        }),
        refused(
            "endless token".into(),
            &["127.0.0.1:0", "--token-file", "/dev/zero"],
            |_| Ok(()),
        ),
    ]
}

fn with_mode(lab: &Lab, mode: u32) -> Result<()> {
    token_with_mode(lab, "0123456789abcdef", mode)
}

fn private_token(lab: &Lab, token: &str) -> Result<()> {
    token_with_mode(lab, token, 0o600)
}

fn token_with_mode(lab: &Lab, token: &str, mode: u32) -> Result<()> {
    lab.write("token", token)?;
    let path = lab.work().join("token");
    Ok(std::fs::set_permissions(
        path,
        PermissionsExt::from_mode(mode),
    )?)
}

/// A second client tries to use a run of the first.
fn runs_of_others() -> Vec<Attempt> {
    const WAIT: &str = "yield_control(); text('private words'); \
        await new Promise(r => setTimeout(r, 30000))";
    const FAIL: &str = "console.log('private words'); \
        await tools.writeFile({ path: 'a', content: 'b' }); throw new Error('private words')";
    let attempt =
        |name: &str, victim: &'static str, tool: &'static str, args: fn(&str) -> Value| {
            Attempt::new(name, move |lab: &Lab| {
                let server = HttpServer::start(lab, &[])?;
                let (a, b) = (server.session()?, server.session()?);
                let victim =
                    server.call(&a, "script", json!({"code": victim, "timeoutMs": 30000}))?;
                let id = victim["id"].as_str().context("id")?;
                let answer = |id: &str| {
                    let item = server.call(&b, tool, args(id))?;
                    let (error, value) = (&item["error"]["message"], &item["output_json"]);
                    Ok::<_, anyhow::Error>(format!("{error}{value}").replace(id, "ID"))
                };
                let (real, missing) = (answer(id)?, answer("scr_0000000000000000")?);
                Ok(Verdict::held_if(
                    real == missing && !real.contains("private"),
                    format!("{real}\n{missing}"),
                ))
            })
        };
    vec![
        attempt(
            "wait for another client's run",
            WAIT,
            "script_wait",
            |id| json!({"id": id, "timeoutMs": 1}),
        ),
        attempt(
            "terminate another client's run",
            WAIT,
            "script_wait",
            |id| json!({"id": id, "terminate": true}),
        ),
        attempt(
            "wait for another client's ended run",
            FAIL,
            "script_wait",
            |id| json!({"id": id}),
        ),
        attempt(
            "resume another client's run",
            FAIL,
            "script",
            |id| json!({"code": "return await tools.writeFile({ path: 'a', content: 'b' })", "resume": id}),
        ),
        attempt(
            "resume another client's running script",
            WAIT,
            "script",
            |id| json!({"code": "return 1", "resume": id}),
        ),
        attempt(
            "resume another client's run by a pragma",
            FAIL,
            "script",
            |id| json!({"code": format!("// @exec: {{\"resume\": \"{id}\"}}\nreturn 1")}),
        ),
        attempt(
            "recall another client's run",
            FAIL,
            "script",
            |id| json!({"code": format!("return tools.recall('{id}').catch(e => e.message)")}),
        ),
        attempt(
            "recall a call of another client's run",
            FAIL,
            "script",
            |id| json!({"code": format!("return tools.recall('{id}/tool_1').catch(e => e.message)")}),
        ),
        Attempt::new("wait for another client's task", |lab| {
            let config = "[script_harness.expose]\nenable_spawn = true\n";
            std::fs::write(lab.home().join("config.toml"), config)?;
            let server = HttpServer::start(lab, &[])?;
            let (a, b) = (server.session()?, server.session()?);
            let start = "const task = tools.spawn.exec('exec', { command: ['echo', 'private'] }); \
                await task.done; return task.id";
            let started = server.call(&a, "script", json!({"code": start}))?;
            let id = started["output_json"].as_str().context("id")?;
            let code = format!("return (await tools.spawn.wait({{ id: {id} }})).stdout");
            let seen = server.call(&b, "script", json!({"code": code}))?;
            Ok(Verdict::held_if(
                seen["status"] == "error" && !seen.to_string().contains("private"),
                seen.to_string(),
            ))
        }),
        Attempt::new("recall a run of the user", |lab| {
            let (item, _) = lab.script("return 'private words'", &[])?;
            let id = item["id"].as_str().context("id")?.to_owned();
            let server = HttpServer::start(lab, &[])?;
            let code = format!("return tools.recall('{id}').catch(e => e.message)");
            let seen = server.call(&server.session()?, "script", json!({"code": code}))?;
            Ok(Verdict::held_if(
                !seen.to_string().contains("private"),
                seen.to_string(),
            ))
        }),
        Attempt::new("read a document of the user", |lab| {
            let save = "return (await tools.saveToFc({ content: 'private words' })).fileKey";
            let (item, seen) = lab.script(save, &[])?;
            let key = item["output_json"]
                .as_str()
                .with_context(|| seen.output())?;
            read_document(&HttpServer::start(lab, &[])?, key)
        }),
        Attempt::new("read a document of another token", |lab| {
            let first = HttpServer::start(lab, &[])?;
            let save = "return (await tools.saveToFc({ content: 'private words' })).fileKey";
            let saved = first.call(&first.session()?, "script", json!({"code": save}))?;
            let key = saved["output_json"].as_str().context("no key")?.to_owned();
            drop(first);
            read_document(&HttpServer::start(lab, &[])?, &key)
        }),
        Attempt::new("session without its token", |lab| {
            let server = HttpServer::start(lab, &[])?;
            let session = server.session()?;
            let head = format!(
                "POST /mcp HTTP/1.1\r\nHost: {}\r\nMcp-Session-Id: {session}\r\n{STANDARD_HEADERS}",
                server.address
            );
            let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
            let response = server.exchange(&head, &list.to_string())?;
            Ok(Verdict::held_if(response.status == 401, response.text))
        }),
        Attempt::new("session that does not exist", |lab| {
            let server = HttpServer::start(lab, &[])?;
            let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
            let unknown = "00000000-0000-0000-0000-000000000000";
            let response = server.post(Some(unknown), &list)?;
            Ok(Verdict::held_if(response.status == 404, response.text))
        }),
    ]
}

/// Reads a document by its key, in every way. `key` is a JSON string.
fn read_document(server: &HttpServer, key: &str) -> Result<Verdict> {
    let session = server.session()?;
    let own = "const { fileKey } = await tools.saveToFc({ content: 'own words' }); \
        return (await tools.fetchFromFc({ fileKey })).content";
    let own = server.call(&session, "script", json!({"code": own}))?;
    anyhow::ensure!(own.to_string().contains("own words"), "{own}");
    let code = format!(
        "const key = {key}, seen = [];\n\
         for (const read of [() => tools.fetchFromFc({{ fileKey: key }}), \
         () => tools.prompts.get({{ keys: [key] }}), \
         () => tools.writeFile({{ path: 'copy', fileKey: key }}).then(() => \
         tools.readFile({{ path: 'copy' }}))]) seen.push(await read().catch(e => e.message));\n\
         return seen"
    );
    let seen = server.call(&session, "script", json!({"code": code}))?;
    anyhow::ensure!(seen["status"] == "completed", "{seen}");
    Ok(Verdict::held_if(
        !seen.to_string().contains("private"),
        seen.to_string(),
    ))
}

/// Calls that need more rights than the server was started with. The client would approve them.
fn own_approvals() -> Vec<Attempt> {
    [
        (
            "unconfined command",
            "on-request",
            "tools.exec({ command: ['touch', '$MARK'], withEscalatedPermissions: true, \
             justification: 'x' })",
        ),
        (
            "unconfined terminal",
            "on-request",
            "tools.execCommand({ cmd: 'touch $MARK', withEscalatedPermissions: true, \
             justification: 'x' })",
        ),
        (
            "unconfined command after a failure",
            "on-failure",
            "tools.exec({ command: ['touch', '$MARK'] })",
        ),
        (
            "unconfined task",
            "on-request",
            "tools.spawn.exec('exec', { command: ['touch', '$MARK'], withEscalatedPermissions: true, \
             justification: 'x' }).done",
        ),
        (
            "changing command under untrusted",
            "untrusted",
            "tools.exec({ command: ['touch', 'mark'] })",
        ),
        (
            "file under untrusted",
            "untrusted",
            "tools.writeFile({ path: 'mark', content: 'x' })",
        ),
    ]
    .map(|(name, policy, call)| {
        Attempt::new(format!("{name}, approved by the client"), move |lab| {
            // Confined commands cannot write there.
            let mark = lab.home().join("mark");
            let call = call.replace("$MARK", &mark.display().to_string());
            let config = "[script_harness.expose]\nenable_spawn = true\n";
            std::fs::write(lab.home().join("config.toml"), config)?;
            let server = HttpServer::start(lab, &["--approval", policy])?;
            let session = server.session()?;
            let code = format!("try {{ await {call} }} catch (e) {{ return e.message }}");
            let params = json!({"name": "script", "arguments": {"code": code}});
            let request =
                json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params});
            let response = server.post(Some(&session), &request)?;
            let was_asked = response.text.contains("elicitation/create");
            let ran = mark.exists() || lab.work().join("mark").exists();
            Ok(Verdict::held_if(!was_asked && !ran, response.text))
        })
    })
    .into()
}

/// Calls with a harmless beginning. The form that asks for approval must show their ends.
fn hidden_ends() -> Vec<Attempt> {
    [
        (
            "end of a long command",
            "tools.exec({ command: ['bash', '-c', `touch ${dots}; ${end}`] })",
        ),
        (
            "end of the last of 8 commands",
            "Promise.all([1, 2, 3, 4, 5, 6, 7, 8].map(n => tools.exec({ command: \
             ['bash', '-c', n < 8 ? `make step${n}` : `touch ${dots}; ${end}`] })))",
        ),
        (
            "end of a command after many lines",
            "tools.exec({ command: ['bash', '-c', 'make\\n'.repeat(2000) + end] })",
        ),
        (
            "end of text for a terminal",
            "tools.writeStdin({ sessionId: 1, chars: `touch ${dots}; ${end}\\n` })",
        ),
        (
            "end of a long file",
            "tools.writeFile({ path: 'a.sh', content: `# ${dots}\\n${end}\\n` })",
        ),
        (
            "end after a long explanation",
            "tools.exec({ command: ['touch', end], approvalContext: dots })",
        ),
    ]
    .map(|(name, call)| {
        Attempt::new(format!("{name}, hidden from the client"), move |lab| {
            let config = "[script_harness.limits]\napproval_timeout_ms = 1000\n";
            std::fs::write(lab.home().join("config.toml"), config)?;
            let server = HttpServer::start(lab, &["--client-approves", "--approval", "untrusted"])?;
            let session = server.session()?;
            // Joined here, so that the quoted part of the script does not contain it.
            let code = format!(
                "const dots = '.'.repeat(5000), end = ['rm', 'doomed'].join('-');\n\n\n\n\
                 try {{ await {call} }} catch (e) {{ return 'denied' }}"
            );
            let params = json!({"name": "script", "arguments": {"code": code}});
            let request =
                json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params});
            let response = server.post(Some(&session), &request)?;
            let question = response
                .text
                .lines()
                .find(|line| line.contains("elicitation/create"))
                .with_context(|| format!("no question: {}", response.text))?;
            Ok(Verdict::held_if(
                question.contains("rm-doomed"),
                question.to_owned(),
            ))
        })
    })
    .into()
}

/// The token must not reach scripts, commands or files.
fn secrets() -> Vec<Attempt> {
    [
        (
            "environment of commands",
            "(await tools.exec({ command: ['env'] })).stdout",
        ),
        (
            "environments of other processes",
            "(await tools.exec({ command: ['sh', '-c', 'cat /proc/[0-9]*/environ'] })).stdout",
        ),
        ("help", "JSON.stringify(await tools.search('token'))"),
        (
            "file of the parent's environment",
            "(await tools.readFile({ path: '/proc/self/environ' })).text",
        ),
    ]
    .map(|(name, code)| {
        Attempt::new(format!("token in the {name}"), move |lab| {
            let server = HttpServer::start(lab, &[])?;
            let code = format!("try {{ return {code} }} catch (e) {{ return e.message }}");
            let item = server.call(&server.session()?, "script", json!({"code": code}))?;
            let shown = item.to_string();
            let in_files = files_contain(&lab.home(), server.token.as_bytes())?;
            Ok(Verdict::held_if(
                !shown.contains(&server.token) && !shown.contains(SECRET) && !in_files,
                format!("in files: {in_files}; {shown}"),
            ))
        })
    })
    .into()
}

fn files_contain(folder: &std::path::Path, text: &[u8]) -> Result<bool> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let found = match entry.file_type()?.is_dir() {
            true => files_contain(&entry.path(), text)?,
            false => {
                let bytes = std::fs::read(entry.path())?;
                bytes.windows(text.len()).any(|window| window == text)
            }
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}
