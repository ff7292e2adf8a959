//! Lists with pages, across workspaces.

use serde_json::{Value, json};

use crate::answer_encoding::{block, text};
use crate::fixture::ServeFixture;
use crate::support::api::{ALL_SCOPES, ApiClient, create_token};
use crate::support::store;

fn ids(list: &Value) -> Vec<String> {
    let list = list.as_array().unwrap().iter();
    list.map(|entry| entry["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Two folders, and clients with tokens for both of them and for the second one.
fn two_workspaces(fixture: &ServeFixture, address: &str) -> (Vec<String>, ApiClient, ApiClient) {
    let folders: Vec<String> = ["a", "b"]
        .map(|name| {
            let folder = fixture.workspace.dir.path().join(name);
            std::fs::create_dir_all(&folder).unwrap();
            folder.canonicalize().unwrap().display().to_string()
        })
        .to_vec();
    let client = |name: &str, folders: &[String]| {
        let mut args = vec![name];
        args.extend(ALL_SCOPES);
        for folder in folders {
            args.extend(["--workspace", folder]);
        }
        ApiClient {
            address: address.to_owned(),
            secret: create_token(&fixture.workspace, &args),
        }
    };
    let (both, second) = (client("both", &folders), client("second", &folders[1..]));
    (folders, both, second)
}

#[test]
fn sessions_are_listed_in_pages_by_their_last_use() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let (server, _) = fixture.start();
    let (folders, both, second) = two_workspaces(&fixture, &server.address);
    let created: Vec<String> = (0..7)
        .map(|number| both.session(json!({"workspace": folders[number % 2]})))
        .collect();
    let newest_first: Vec<String> = created.iter().rev().cloned().collect();
    let (mut listed, mut after) = (Vec::new(), String::new());
    loop {
        let page = both.get(&format!("/api/v1/sessions?limit=3{after}"));
        assert_eq!(page.status, 200, "{page:?}");
        listed.extend(ids(&page.body["sessions"]));
        match page.body["next"].as_i64() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(listed, newest_first);
    let of_second = ids(&second.get("/api/v1/sessions").body["sessions"]);
    let in_second = newest_first.iter().filter(|id| {
        let number = created.iter().position(|other| other == *id).unwrap();
        number % 2 == 1
    });
    assert_eq!(of_second, in_second.cloned().collect::<Vec<_>>());
}

#[test]
fn items_and_runs_are_listed_in_pages() {
    let fixture = ServeFixture::new(|asked| match asked.number {
        0..3 => vec![text(&block("return 1"))].into(),
        _ => vec![text("done")].into(),
    });
    let (_server, client) = fixture.start();
    let session = client.session(json!({"prompt": "go"}));
    client.answer(&session, 1);
    let path = format!("/api/v1/sessions/{session}/items");
    let all = client.get(&path).body;
    let items = all["items"].as_array().unwrap();
    assert_eq!(all["total"], items.len());
    assert!(items.len() > 4, "{all}");
    let page = client.get(&format!("{path}?after=1&limit=2")).body;
    assert_eq!(page["items"].as_array().unwrap()[..], items[1..3]);
    assert_eq!(page["items"][0]["number"], 2);
    let runs = ids(&client.get("/api/v1/runs").body["runs"]);
    assert!(runs.len() >= 3, "{runs:?}");
    let after = format!("/api/v1/runs?limit=1&after={}", runs[0]);
    assert_eq!(ids(&client.get(&after).body["runs"]), runs[1..2]);
}

/// Turns and runs of a busy workspace do not hide those of another one.
#[test]
fn memory_and_runs_are_searched_in_the_workspaces_of_the_token() {
    let fixture = ServeFixture::new(|asked| {
        let messages = asked.body["messages"].as_array().unwrap();
        let last = messages.last().unwrap()["content"].to_string();
        match last.contains("zebra") {
            true => vec![text(&block("return 'striped'"))].into(),
            false => vec![text("done")].into(),
        }
    });
    let (server, _) = fixture.start();
    let (folders, both, second) = two_workspaces(&fixture, &server.address);
    let ask = |workspace: &str| {
        let session = both.session(json!({"workspace": workspace, "prompt": "zebra zebra zebra"}));
        assert_eq!(both.answer(&session, 1)["state"], "answered");
        session
    };
    let wanted = ask(&folders[1]);
    for _ in 0..6 {
        ask(&folders[0]);
    }
    let found = second.get("/api/v1/memory/search?query=zebra&limit=3").body;
    let turns = found["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 1, "{found}");
    assert_eq!(turns[0]["session"], json!(wanted));
    assert!(!turns[0]["text"].as_str().unwrap().is_empty(), "{found}");
    let runs = second.get("/api/v1/runs?limit=2").body;
    let directories = runs["runs"].as_array().unwrap().iter();
    let directories: Vec<&Value> = directories.map(|run| &run["directory"]).collect();
    assert!(!directories.is_empty(), "{runs}");
    for directory in directories {
        assert_eq!(directory, &json!(folders[1]));
    }
}

#[test]
fn requests_at_the_same_time_do_not_exceed_the_limit_of_the_queue() {
    let limit = "serve.max_queued_turns = 1";
    let fixture = ServeFixture::with_config(limit, |_| vec![text("hello")].into());
    let (_server, client) = fixture.start();
    let session = client.session(json!({}));
    // No message is answered while another process uses the session.
    let other = selvedge_journal::Journal::open(store::store(&fixture.workspace.home())).unwrap();
    other.claim_session(&session).unwrap();
    let path = format!("/api/v1/sessions/{session}/messages");
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let send = || client.post(&path, json!({"text": "go"})).status;
        let requests: Vec<_> = (0..12).map(|_| scope.spawn(send)).collect();
        let statuses = requests.into_iter().map(|request| request.join().unwrap());
        statuses.collect()
    });
    let accepted = statuses.iter().filter(|status| **status == 202).count();
    assert_eq!(accepted, 1, "{statuses:?}");
}

#[test]
fn sessions_follow_channels_over_the_api() {
    let fixture = ServeFixture::new(|_| vec![text("seen")].into());
    let (server, client) = fixture.start();
    let session = client.session(json!({"title": "Fix login"}));
    let path = format!("/api/v1/channels/eng/followers/{session}");
    let only_channels = create_token(&fixture.workspace, &["few", "--scope", "channels"]);
    let refused = server
        .client(&only_channels)
        .request(&format!("PUT {path}"), &[], "");
    assert_eq!(refused.status, 403, "{refused:?}");
    let post = |text: &str| {
        let body = json!({"text": text});
        client.post("/api/v1/channels/eng/messages", body).body
    };
    let followed = client.request(&format!("PUT {path}"), &[], "");
    assert_eq!(followed.status, 204, "{followed:?}");
    assert_eq!(post("@fix-login look")["queued"], json!([session]));
    assert_eq!(client.answer(&session, 1)["answer"], "seen");
    let removed = client.request(&format!("DELETE {path}"), &[], "");
    assert_eq!(removed.status, 204, "{removed:?}");
    assert_eq!(post("@fix-login again")["queued"], json!([]));
    let unknown = client.request("PUT /api/v1/channels/eng/followers/ses_none", &[], "");
    assert_eq!(unknown.status, 404, "{unknown:?}");
}
