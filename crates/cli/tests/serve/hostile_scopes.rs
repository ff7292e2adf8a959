//! Attempts of a token without the scope `channels` to read and post in channels, which are the
//! same for all workspaces: through its requests, its scripts, and agents that these start.

use serde_json::{Value, json};

use crate::fixture::ServeFixture;
use crate::isolation::{run_script, runs_scripts};
use crate::support::api::{ApiClient, create_token};

/// Scripts that read or post in the channel `general`.
const ATTEMPTS: [&str; 12] = [
    "return await channels.read('general')",
    "return await tools.channels.read({ channel: 'general' })",
    "return await tools['channels']['read']({ channel: 'general' })",
    "const { read } = channels; return await read('general')",
    "return await globalThis['chan' + 'nels'].read('general')",
    "return await Promise.race([channels.read('general')])",
    "return await channels.list()",
    "return await channels.post('general', 'from an attacker')",
    "return await tools.channels.post({ channel: 'general', message: 'from an attacker' })",
    "return await channels.post('ｇeneral', 'from an attacker')",
    "return await channels.follow('general')",
    "return await tools.channels.follow({ channel: 'general' })",
];

/// Returns scripts that let another agent run a script.
fn through_others(code: &str, person: &str) -> [String; 3] {
    let prompt = format!("'RU' + 'N:' + {}", json!(code));
    [
        format!(
            "const s = await sessions.create({{ title: 'kid' }}); \
             return (await s.send({prompt}, {{ wait: true }})).answer"
        ),
        format!("return (await sessions.send('{person}', {prompt}, {{ wait: true }})).answer"),
        format!("return (await tools.agents.launch.sync({{ prompt: {prompt} }})).message"),
    ]
}

/// Returns requests of an OpenAI client that let an agent run a script.
fn completions(code: &str) -> [(&'static str, Value); 2] {
    let text = format!("RUN:{code}");
    let messages = json!([{"role": "user", "content": text}]);
    [
        (
            "/v1/chat/completions",
            json!({"model": "default", "messages": messages}),
        ),
        ("/v1/responses", json!({"model": "default", "input": text})),
    ]
}

/// Returns the texts in the channel, and the sessions that follow it.
fn channel_state(client: &ApiClient) -> (Vec<Value>, Value) {
    let read = client.get("/api/v1/channels/general/messages").body;
    let messages = read["messages"].as_array().unwrap().iter();
    let texts = messages.map(|message| message["text"].clone()).collect();
    let channels = client.get("/api/v1/channels").body;
    (texts, channels["channels"][0]["followers"].clone())
}

#[test]
fn agents_of_a_token_without_the_scope_reach_no_channel() {
    let fixture = ServeFixture::new(runs_scripts);
    let (server, client) = fixture.start();
    let post = json!({"text": "zebra of another workspace"});
    let posted = client.post("/api/v1/channels/general/messages", post);
    assert_eq!(posted.status, 201, "{posted:?}");
    let narrow = create_token(&fixture.workspace, &["narrow", "--scope", "sessions"]);
    let plain = create_token(&fixture.workspace, &["plain"]);
    // A session that another token created, and in which it used channels.
    let foreign = client.session(json!({}));
    let read = run_script(&client, &foreign, ATTEMPTS[0]);
    assert!(read.contains("zebra"), "{read}");
    let before = channel_state(&client);
    for token in [&narrow, &plain] {
        let attacker = server.client(token);
        let refused = attacker.get("/api/v1/channels/general/messages");
        assert_eq!(refused.status, 403, "{refused:?}");
        let person = client.session(json!({"title": "of another token"}));
        for code in ATTEMPTS {
            let own = attacker.session(json!({}));
            let answer = run_script(&attacker, &own, code);
            assert!(!answer.contains("zebra"), "{code}: {answer}");
            assert_eq!(channel_state(&client), before, "{code}: {answer}");
        }
        for code in [ATTEMPTS[0], ATTEMPTS[7]] {
            for (path, body) in completions(code) {
                let answer = attacker.post(path, body);
                assert!(!answer.text.contains("zebra"), "{path}: {answer:?}");
                assert_eq!(channel_state(&client), before, "{path}: {answer:?}");
            }
            for code in through_others(code, &person) {
                let own = attacker.session(json!({}));
                let answer = run_script(&attacker, &own, &code);
                assert!(!answer.contains("zebra"), "{code}: {answer}");
                assert_eq!(channel_state(&client), before, "{code}: {answer}");
            }
        }
    }
    // With the scope, the same ways lead to the channel.
    let person = client.session(json!({"title": "of this token"}));
    for code in through_others(ATTEMPTS[0], &person) {
        let answer = run_script(&client, &client.session(json!({})), &code);
        assert!(answer.contains("zebra"), "{code}: {answer}");
    }
    for (path, body) in completions(ATTEMPTS[0]) {
        let answer = client.post(path, body);
        assert!(answer.text.contains("zebra"), "{path}: {answer:?}");
    }
}

#[test]
fn a_message_of_a_person_has_channels_and_a_later_one_of_a_narrow_token_does_not() {
    let fixture = ServeFixture::new(runs_scripts);
    let (server, client) = fixture.start();
    let session = client.session(json!({"title": "shared"}));
    let shell = |message: &str| {
        let args = ["sessions", "send", &session, message, "--wait"];
        let sent = fixture.workspace.command(&args).output().unwrap();
        String::from_utf8_lossy(&sent.stdout).into_owned()
    };
    let post = "RUN:await channels.post('general', 'zebra'); return 'posted'";
    let answer = shell(post);
    assert!(answer.contains("posted"), "{answer}");
    let narrow = create_token(&fixture.workspace, &["narrow", "--scope", "sessions"]);
    let narrow = server.client(&narrow);
    for _ in 0..2 {
        let code = "return JSON.stringify(await channels.list())";
        let answer = run_script(&narrow, &session, code);
        assert!(!answer.contains("general"), "{answer}");
    }
    let answer = shell("RUN:return JSON.stringify(await channels.list())");
    assert!(answer.contains("general"), "{answer}");
}
