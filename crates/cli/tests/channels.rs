//! Channels through the binary: from the shell, from scripts, and from several processes at once.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use support::{Client, TestWorkspace};

/// Runs a command, and returns its status, standard output and standard error.
fn run(workspace: &TestWorkspace, args: &[&str]) -> (i32, String, String) {
    let output = workspace
        .command(args)
        .env("USER", "anna")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn json_of(workspace: &TestWorkspace, args: &[&str]) -> Value {
    let (status, out, err) = run(workspace, args);
    assert_eq!(status, 0, "{out}{err}");
    serde_json::from_str(&out).unwrap()
}

fn messages(workspace: &TestWorkspace) -> Vec<Value> {
    let all = [
        "channels", "read", "eng", "--after", "0", "--limit", "500", "--json",
    ];
    json_of(workspace, &all).as_array().unwrap().clone()
}

#[test]
fn people_and_scripts_post_and_read() {
    let workspace = TestWorkspace::new();
    let (status, out, err) = run(&workspace, &["channels", "post", "eng", "from the shell"]);
    assert_eq!((status, out.as_str(), err.as_str()), (0, "eng#1\n", ""));
    let script = "const posted = await tools.channels.post('eng', 'from a script');
        await tools.channels.post({ channel: 'eng', text: 'with fields' });
        const read = await tools.channels.read('eng', { after: 1, limit: 5 });
        const all = await tools.channels.list();
        return { posted, read: read.map(m => m.text), all: all.map(c => [c.name, c.messages]) };";
    let value = json_of(&workspace, &["run", "-q", "-e", script]);
    assert_eq!(
        value,
        json!({
            "posted": { "number": 2, "queued": [] },
            "read": ["from a script", "with fields"],
            "all": [["eng", 3]],
        })
    );
    let (_, out, _) = run(&workspace, &["channels", "read", "eng", "--limit", "2"]);
    assert!(out.contains("anna: from a script\n"), "{out}");
    assert!(!out.contains("from the shell"), "{out}");
    let first = &messages(&workspace)[0];
    assert_eq!(first["author"], json!({"kind": "person", "id": "anna"}));
    assert_eq!(first["hops"], 0);
    let (_, out, _) = run(&workspace, &["channels", "list"]);
    assert!(
        out.starts_with("eng  ") && out.contains(" s ago  3 messages"),
        "{out}"
    );
}

#[test]
fn mistakes_are_explained() {
    let workspace = TestWorkspace::new();
    let cases: [(&[&str], &str); 3] = [
        (
            &["channels", "read", "none"],
            "error: there is no channel `none`\n\
             hint: run `selvedge channels list` to list the channels\n",
        ),
        (
            &["channels", "post", "No Spaces", "x"],
            "error: `No Spaces` is not a valid name of a channel\n\
             hint: use up to 64 lower-case letters, digits, `-`, `_` and `.`, such as \
             `engineering`\n",
        ),
        (
            &["channels", "follow", "eng", "ses_none"],
            "error: there is no session `ses_none`\n\
             hint: run `selvedge sessions list` to list the sessions\n",
        ),
    ];
    for (args, expected) in cases {
        let (status, out, err) = run(&workspace, args);
        assert_eq!((status, out.as_str(), err.as_str()), (2, "", expected));
    }
    let ephemeral = [
        "run",
        "-q",
        "--ephemeral",
        "-e",
        "await tools.channels.list()",
    ];
    let (status, _, err) = run(&workspace, &ephemeral);
    assert_eq!(status, 1, "{err}");
    assert!(err.contains("hint: remove --ephemeral"), "{err}");
    let follow = ["run", "-q", "-e", "await tools.channels.follow('eng')"];
    let (_, _, err) = run(&workspace, &follow);
    assert!(err.contains("only a session can follow a channel"), "{err}");
    let unknown = [
        "run",
        "-q",
        "-e",
        "return (await tools.channels.read('eng')).messages",
    ];
    let (status, _, err) = run(&workspace, &unknown);
    assert_eq!(status, 2, "{err}");
    assert!(err.contains("messages"), "{err}");
}

#[test]
fn processes_that_post_at_once_get_numbers_without_gaps() {
    let workspace = TestWorkspace::new();
    let script = "for (let n = 0; n < 40; n++)
        await tools.channels.post('eng', `${context.args[0]} ${n}`)";
    let start = |writer: &str| -> Child {
        let args = ["run", "-q", "-e", script, "--", writer];
        workspace
            .command(&args)
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    };
    for mut writer in ["a", "b"].map(start) {
        assert!(writer.wait().unwrap().success());
    }
    let all = messages(&workspace);
    let numbers: Vec<u64> = all.iter().map(|m| m["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=80).collect::<Vec<u64>>());
    for writer in ["a ", "b "] {
        let texts = all.iter().map(|message| message["text"].as_str().unwrap());
        let of_writer: Vec<&str> = texts.filter_map(|text| text.strip_prefix(writer)).collect();
        let expected: Vec<String> = (0..40).map(|n: u32| n.to_string()).collect();
        assert_eq!(of_writer, expected);
    }
}

#[test]
fn a_kill_after_a_post_loses_nothing() {
    let workspace = TestWorkspace::new();
    for round in 1..=10 {
        let script = "for (let n = 0; ; n++) {
            const { number } = await tools.channels.post('eng', 'x');
            notify(number);
        }";
        let mut child = workspace
            .command(&["run", "-e", script, "--max-file-calls", "100000"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut acknowledged = 0;
        for line in lines.map_while(Result::ok) {
            let number = line.split_whitespace().find_map(|word| word.parse().ok());
            acknowledged = acknowledged.max(number.unwrap_or(0));
            if acknowledged >= round * 5 {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let newest = json_of(&workspace, &["channels", "list", "--json"]);
        let newest = newest[0]["messages"].as_u64().unwrap();
        assert!(
            acknowledged > 0 && newest >= acknowledged,
            "{newest} {acknowledged}"
        );
    }
    let numbers = messages(&workspace);
    let numbers: Vec<u64> = numbers
        .iter()
        .map(|m| m["number"].as_u64().unwrap())
        .collect();
    assert!(numbers.iter().copied().eq(1..=numbers.len() as u64));
}

#[test]
fn a_reader_that_follows_prints_messages_as_they_come() {
    let workspace = TestWorkspace::new();
    run(&workspace, &["channels", "post", "eng", "one"]);
    let args = [
        "channels", "read", "eng", "--after", "0", "--follow", "--json",
    ];
    let mut reader = workspace
        .command(&args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(reader.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["text"], "one");
    run(&workspace, &["channels", "post", "eng", "two\nlines"]);
    assert_eq!(next()["text"], "two\nlines");
    reader.kill().unwrap();
    reader.wait().unwrap();
}

#[test]
fn a_client_of_the_mcp_server_posts_as_its_run() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &[], json!({}));
    let item = client.script("return (await tools.channels.post('eng', 'hi')).number");
    assert_eq!(support::value(&item), json!(1));
    client.close();
    let message = &messages(&workspace)[0];
    assert_eq!(message["author"], json!({"kind": "run", "id": item["id"]}));
    assert_eq!(
        (&message["hops"], &message["cause"]),
        (&json!(1), &item["id"])
    );
}
