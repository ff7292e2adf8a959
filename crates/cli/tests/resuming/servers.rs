//! What servers did, over MCP and HTTP, whatever became of their answers.

use std::process::Stdio;

use serde_json::Value;
use support::Place;

use crate::{CHANGE, done, last, run, stopped_on_its_way, support, told};

#[test]
fn a_servers_tool_is_the_same_however_it_is_called() {
    let place = Place::new();
    let effects = place.work().join("effects");
    let server = Place::odd("odd", "good").replace("\"good\"]", &format!("\"good\", {effects:?}]"));
    place.config(&server);
    run(&place, &["-e", "await tools.mcp.odd.die({x: 1})"]);
    assert_eq!(done(&place), 1);
    let id = last(&place);
    for same in [
        "tools.mcp.odd.die({x: 1})",
        "odd.die({x: 1})",
        "tools.mcp.odd.die.raw({x: 1})",
        "tools.mcpCallTool({server: 'odd', tool: 'die', arguments: {x: 1}})",
    ] {
        let (status, said) = told(&run(
            &place,
            &["--resume", &id, "-e", &format!("await {same}")],
        ));
        assert!(
            status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1,
            "{same}: {said}"
        );
    }
    // A server answers to more than one name.
    place.config(&server.replace("mcp_servers.odd", "mcp_servers.my-odd"));
    run(
        &place,
        &[
            "-e",
            "await tools.mcpCallTool({server: 'my-odd', tool: 'die', arguments: {}})",
        ],
    );
    let other = "await tools.mcpCallTool({server: 'myOdd', tool: 'die', arguments: {}})";
    let (status, said) = told(&run(&place, &["--resume", &last(&place), "-e", other]));
    assert!(
        status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 2,
        "{said}"
    );
    place.config(&server);
    // What is done is done, whoever wants to hear of it in another form.
    run(&place, &["-e", "await tools.mcp.odd.count({}); throw 1"]);
    let id = last(&place);
    let (status, said) = told(&run(
        &place,
        &["--resume", &id, "-e", "await tools.mcp.odd.count.raw({})"],
    ));
    assert!(status == 1 && said.contains("ask without `.raw`"), "{said}");
    let named = "try { await tools.mcp.odd.count.raw({}) } catch {}
        return await tools.mcpCallTool({server: 'odd', tool: 'count', arguments: {}})";
    let (status, said) = told(&run(&place, &["--resume", &id, "-e", named]));
    assert_eq!(status, 0, "{said}");
    assert_eq!(std::fs::read_to_string(&effects).unwrap(), "died\ndied\nx");
}

#[test]
fn a_server_that_says_it_only_reads_lets_one_look() {
    let place = Place::new();
    place.config(&Place::odd("odd", "annotated"));
    run(
        &place,
        &["--timeout", "1s", "-e", &format!("{CHANGE} await change()")],
    );
    std::fs::write(place.work().join("quick"), "").unwrap();
    let id = last(&place);
    let after = |look: &str| {
        format!("{CHANGE} try {{ await change() }} catch {{ await {look}; await change() }}")
    };
    let (status, said) = told(&run(
        &place,
        &["--resume", &id, "-e", &after("odd.plain({})")],
    ));
    assert!(
        status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1,
        "{said}"
    );
    let (status, said) = told(&run(
        &place,
        &["--resume", &id, "-e", &after("odd.look({})")],
    ));
    assert_eq!((status, done(&place)), (0, 2), "{said}");
}

/// A server whose one tool pays, and whose other says how often it did.
fn bank(place: &Place) {
    let effects = place.work().join("effects");
    place.config(
        &Place::odd("bank", "bank").replace("\"bank\"]", &format!("\"bank\", {effects:?}]")),
    );
}

#[test]
fn what_a_server_says_after_an_unknown_change_is_what_is_so_now() {
    let place = Place::new();
    bank(&place);
    run(
        &place,
        &[
            "-e",
            "if ((await bank.balance({})).paid === 0) await bank.pay({})",
        ],
    );
    assert_eq!(done(&place), 1);
    let careful = "try { await bank.pay({}) } catch (e) {
        const [now] = await Promise.all([bank.balance({}), tools.listDir({})]);
        if (now.paid === 0) await bank.pay({});
    }";
    let (status, said) = told(&run(&place, &["--resume", &last(&place), "-e", careful]));
    assert_eq!((status, done(&place)), (0, 1), "{said}");
}

#[test]
fn a_look_by_another_name_or_behind_what_was_done_is_of_now() {
    let place = Place::new();
    bank(&place);
    run(
        &place,
        &[
            "-e",
            "if ((await bank.balance({})).paid === 0) await bank.pay({})",
        ],
    );
    let careful = "try { await bank.pay({}) } catch (e) {
        const ask = {server: 'bank', tool: 'balance', arguments: {}};
        const [now] = await Promise.all([tools.mcpCallTool(ask), tools.listDir({})]);
        if (now.paid === 0) await bank.pay({});
    }";
    let (status, said) = told(&run(&place, &["--resume", &last(&place), "-e", careful]));
    assert_eq!((status, done(&place)), (0, 1), "{said}");
    std::fs::remove_file(place.work().join("effects")).unwrap();
    run(
        &place,
        &["-e", "await bank.balance({}); await bank.give({}); throw 1"],
    );
    let behind =
        "await bank.give({}); if ((await bank.balance({})).paid === 0) await bank.give({})";
    let (status, said) = told(&run(&place, &["--resume", &last(&place), "-e", behind]));
    assert_eq!((status, done(&place)), (0, 1), "{said}");
    // By a terminal, too.
    let (place, id) = stopped_on_its_way();
    let look = "const { output } = await tools.execCommand({cmd: 'cat effects'}); if (!output.includes('one')) await change();";
    let script = format!("{CHANGE} try {{ await change() }} catch {{ {look} await change() }}");
    let (status, said) = told(&run(&place, &["--resume", &id, "-e", &script]));
    assert_eq!((status, done(&place)), (0, 2), "{said}");
}

#[test]
fn a_run_goes_on_as_long_as_a_server_it_started_is_at_work() {
    let place = Place::new();
    bank(&place);
    let script = "await bank.pay_slowly({})";
    let mut child = place
        .command(&["run", "-q", "-e", script])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let began = std::time::Instant::now();
    let is_paying = || {
        let id = place.command(&["runs", "list", "--json"]).output().unwrap();
        let listed: Value = serde_json::from_slice(&id.stdout).unwrap();
        listed[0]["id"].as_str().is_some_and(|id| {
            let shown = place.command(&["runs", "show", id]).output().unwrap();
            String::from_utf8_lossy(&shown.stdout).contains("bank.pay_slowly")
        })
    };
    while !is_paying() {
        assert!(began.elapsed() < support::PATIENCE, "it never pays");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let id = last(&place);
    let careful = format!(
        "try {{ {script} }} catch {{ if ((await bank.balance({{}})).paid === 0) {script} }}"
    );
    loop {
        let (status, said) = told(&run(&place, &["--resume", &id, "-e", &careful]));
        if status == 0 {
            break;
        }
        assert!(
            said.contains("still runs") && began.elapsed() < support::PATIENCE,
            "{said}"
        );
    }
    assert_eq!(done(&place), 1);
}

#[test]
fn a_request_that_was_sent_and_not_answered_is_of_unknown_outcome() {
    not_sent_again("");
}

#[test]
fn a_request_whose_answer_cannot_be_read_is_of_unknown_outcome() {
    not_sent_again("HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\nxx");
}

/// A request that is answered so is not sent again by whoever goes on.
fn not_sent_again(answer: &'static str) {
    let place = Place::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (heard, requests) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming().map_while(Result::ok) {
            let mut stream = stream;
            let mut text = [0; 4096];
            if std::io::Read::read(&mut stream, &mut text).is_ok_and(|bytes| bytes > 0)
                && heard.send(()).is_err()
            {
                return;
            }
            std::io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
            kept.push(stream);
        }
    });
    place.config(&format!(
        "[script_harness.expose]\nenable_http = true\n[web]\nallow_hosts = ['127.0.0.1:{port}']\nallow_private_hosts = ['127.0.0.1']\n"
    ));
    let post = |how: &str| {
        format!(
            "await tools.http({{url: 'http://127.0.0.1:{port}/pay', method: 'POST', body: 'pay 100', {how}}})"
        )
    };
    let run = |args: &[&str]| {
        told(
            &place
                .command(&["run", "-q", "--sandbox", "danger-full-access"])
                .args(args)
                .stdin(Stdio::null())
                .output()
                .unwrap(),
        )
    };
    let (_, said) = run(&["-e", &post("timeoutMs: 500")]);
    assert!(requests.recv_timeout(support::PATIENCE).is_ok(), "{said}");
    for how in [
        "timeoutMs: 5000",
        "timeoutMs: 500, approvalContext: 'again'",
        "headers: {}",
    ] {
        let (status, said) = run(&["--resume", &last(&place), "-e", &post(how)]);
        assert!(
            status == 1 && said.contains("OutcomeUnknownError"),
            "{how}: {said}"
        );
    }
    assert!(requests.try_recv().is_err(), "it was sent again");
}

#[test]
fn what_was_answered_in_a_way_nobody_can_read_is_of_unknown_outcome() {
    let place = Place::new();
    bank(&place);
    let script = "await bank.pay_loudly({})";
    let (status, said) = told(&run(&place, &["-e", script]));
    assert!(status == 1 && said.contains("more than 16 MB"), "{said}");
    let (_, said) = told(&run(&place, &["--resume", &last(&place), "-e", script]));
    assert!(
        said.contains("OutcomeUnknownError") && done(&place) == 1,
        "{said}"
    );
}
