//! The login of a browser, and headers of trusted proxies.

use serde_json::{Value, json};

use crate::fixture::ServeFixture;
use crate::isolation::runs_scripts;
use crate::support::api::{ApiServer, create_token};

/// Returns the path of a new login URL.
pub fn login_path(fixture: &ServeFixture, server: &ApiServer) -> String {
    let base = format!("http://{}", server.address);
    let args = ["serve", "login", "--url", &base];
    let output = fixture.workspace.command(&args).output().unwrap();
    let url = String::from_utf8(output.stdout).unwrap();
    url.trim().strip_prefix(&base).unwrap().to_owned()
}

pub fn cookie_of(head: &str) -> String {
    let line = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("set-cookie")
            .then(|| value.trim().to_owned())
    });
    line.unwrap_or_else(|| panic!("no cookie: {head}"))
}

#[test]
fn a_login_url_works_once_and_its_cookie_only_for_pages_of_the_server() {
    let fixture = ServeFixture::new(runs_scripts);
    let (server, client) = fixture.start();
    let start = format!("GET {}", login_path(&fixture, &server));
    let none = ("Authorization", "");
    let logged_in = client.request(&start, &[none], "");
    assert_eq!(logged_in.status, 303, "{logged_in:?}");
    let cookie = cookie_of(&logged_in.head);
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Secure"), "{cookie}");
    let again = client.request(&start, &[none], "");
    assert_eq!(again.status, 401, "{again:?}");
    let wrong = client.request("GET /login?code=slv_wrong", &[none], "");
    assert_eq!(wrong.status, 401, "{wrong:?}");
    let pair = cookie.split(';').next().unwrap().to_owned();
    let own = format!("http://{}", server.address);
    let request = |start: &str, origin: &str| {
        let headers = [none, ("Cookie", pair.as_str()), ("Origin", origin)];
        client.request(start, &headers, "{}").status
    };
    assert_eq!(request("GET /api/v1/sessions", ""), 200);
    assert_eq!(request("GET /api/v1/approvals", ""), 200);
    assert_eq!(request("POST /api/v1/sessions", &own), 201);
    // Pages on other ports of the same host get the cookie sent, too.
    for origin in ["", "http://localhost:3000", "http://127.0.0.1:1", "null"] {
        assert_eq!(request("POST /api/v1/sessions", origin), 403, "{origin}");
    }
    // The cookie is a token that can be listed and revoked.
    let args = ["serve", "token", "list", "--json"];
    let listed = fixture.workspace.command(&args).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let mut names = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|token| &token["name"]);
    let page = names.find_map(|name| name.as_str().filter(|name| name.starts_with("page_")));
    let args = ["serve", "token", "revoke", page.unwrap()];
    assert!(fixture.workspace.command(&args).status().unwrap().success());
    assert_eq!(request("GET /api/v1/sessions", ""), 401);
}

#[test]
fn headers_of_trusted_proxies_are_believed() {
    let more = "serve.public_url = \"https://agents.example\"\n\
        serve.trusted_proxies = [\"127.0.0.0/8\"]";
    for (more, believed) in [(more, true), ("", false)] {
        let fixture = ServeFixture::with_config(more, runs_scripts);
        let (server, client, log) = fixture.start_with_log();
        let forwarded = [
            ("X-Forwarded-For", "198.51.100.1, 203.0.113.9"),
            ("X-Forwarded-Proto", "https"),
            ("X-Forwarded-Host", "agents.example"),
        ];
        let served = client.request("GET /api/v1/workspaces", &forwarded, "");
        assert_eq!(served.status, 200, "{served:?}");
        let evil = [("X-Forwarded-Host", "evil.example")];
        let refused = client.request("GET /healthz", &evil, "");
        assert_eq!(
            refused.status,
            if believed { 403 } else { 200 },
            "{refused:?}"
        );
        let start = format!("GET {}", login_path(&fixture, &server));
        let logged_in = client.request(&start, &forwarded, "");
        let cookie = cookie_of(&logged_in.head);
        assert_eq!(cookie.contains("; Secure"), believed, "{cookie}");
        drop(server);
        let log = std::fs::read_to_string(log).unwrap();
        let lines = log
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut requests = lines.filter(|line| line["target"] == "selvedge_server::access");
        let first = requests.next().unwrap();
        let client = if believed { "203.0.113.9" } else { "127.0.0.1" };
        assert_eq!(first["fields"]["client"], json!(client), "{first}");
        assert!(!log.contains("code="), "{log}");
    }
}

#[test]
fn a_wrong_proxy_address_stops_the_start() {
    let fixture = ServeFixture::with_config("serve.trusted_proxies = [\"proxy\"]", runs_scripts);
    create_token(&fixture.workspace, &["one"]);
    let output = fixture
        .workspace
        .command(&["serve", "--addr", "127.0.0.1:0"])
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(
        err.contains("error: serve.trusted_proxies: `proxy` is not an IP address"),
        "{err}"
    );
    assert!(err.contains("hint: set it to addresses such as"), "{err}");
}
