//! Attempts with the login URL and the cookie of the page, as tables: a page of another site, a
//! preview of the link, and cookies in other spellings.

use serde_json::{Value, json};

use crate::fixture::ServeFixture;
use crate::isolation::runs_scripts;
use crate::login::{cookie_of, login_path};
use crate::support::api::{ApiClient, ApiResponse};

/// Requests without the token of the client.
const NO_TOKEN: (&str, &str) = ("Authorization", "");

fn has_cookie(response: &ApiResponse) -> bool {
    response.head.to_lowercase().contains("set-cookie:")
}

/// Logs in, and returns the name and value of the cookie.
fn log_in(client: &ApiClient, path: &str) -> String {
    let logged_in = client.request(&format!("GET {path}"), &[NO_TOKEN], "");
    assert_eq!(logged_in.status, 303, "{logged_in:?}");
    let cookie = cookie_of(&logged_in.head);
    cookie.split(';').next().unwrap().to_owned()
}

#[test]
fn only_the_exact_login_url_logs_in_and_one_request_wins() {
    let fixture = ServeFixture::new(runs_scripts);
    let (server, client) = fixture.start();
    let path = login_path(&fixture, &server);
    let code = path.split_once("code=").unwrap().1.to_owned();
    // None of them uses up the code.
    for start in [
        format!("HEAD {path}"),
        format!("POST {path}"),
        format!("OPTIONS {path}"),
        format!("GET /login?code={}", code.to_uppercase()),
        format!("GET /login?code={code}0"),
        format!("GET /login?code={}", &code[..code.len() - 1]),
        format!("GET /login/?code={code}"),
        format!("GET /Login?code={code}"),
        format!("GET //login?code={code}"),
        format!("GET /login?code=x&code={code}"),
        format!("GET /login?Code={code}"),
        format!("GET /login#code={code}"),
    ] {
        let refused = client.request(&start, &[NO_TOKEN], "");
        assert!(
            refused.status >= 400 && !has_cookie(&refused),
            "{start}: {refused:?}"
        );
    }
    let bearer = format!("Bearer {code}");
    let headers = [("Authorization", bearer.as_str())];
    let refused = client.request("GET /api/v1/workspaces", &headers, "");
    assert_eq!(refused.status, 401, "the code is no token: {refused:?}");
    let attempts: Vec<_> = (0..12)
        .map(|_| {
            let (client, start) = (client.clone(), format!("GET {path}"));
            std::thread::spawn(move || client.request(&start, &[NO_TOKEN], ""))
        })
        .collect();
    let responses = attempts.into_iter().map(|attempt| attempt.join().unwrap());
    let won: Vec<_> = responses.filter(has_cookie).collect();
    assert_eq!(won.len(), 1, "{won:?}");
}

#[test]
fn a_cookie_changes_something_for_pages_of_this_server_only() {
    let fixture = ServeFixture::new(runs_scripts);
    let (server, client) = fixture.start();
    let pair = log_in(&client, &login_path(&fixture, &server));
    let (address, cookie) = (server.address.as_str(), ("Cookie", pair.as_str()));
    let own = format!("http://{address}");
    let port = address.rsplit_once(':').unwrap().1;
    let post = |headers: &[(&str, &str)]| {
        let all = [&[NO_TOKEN, cookie], headers].concat();
        client.request("POST /api/v1/sessions", &all, "{}").status
    };
    assert_eq!(post(&[("Origin", &own)]), 201);
    assert_eq!(
        post(&[("Origin", &own), ("Sec-Fetch-Site", "same-origin")]),
        201
    );
    for origin in [
        String::new(),
        "null".to_owned(),
        "http://127.0.0.1:3000".to_owned(),
        "http://127.0.0.1".to_owned(),
        format!("https://{address}"),
        format!("HTTP://{address}"),
        format!("http://{address}/"),
        format!("http://localhost:{port}"),
        format!("http://127.0.0.1.:{port}"),
        format!("http://x@{address}"),
        format!("http://{address}.evil.example"),
    ] {
        let status = post(&[("Origin", &origin)]);
        assert!([400, 403].contains(&status), "{origin:?}: {status}");
    }
    for more in [
        ("Sec-Fetch-Site", "cross-site"),
        ("Origin", "http://evil.example"),
    ] {
        let status = post(&[("Origin", &own), more]);
        assert!([400, 403].contains(&status), "{more:?}: {status}");
    }
    // A header of a proxy that is not trusted does not change the scheme.
    let https = format!("https://{address}");
    let forwarded = [("Origin", https.as_str()), ("X-Forwarded-Proto", "https")];
    assert_eq!(post(&forwarded), 403);
    // With an Authorization header, the cookie does not count.
    for authorization in ["Basic x", "Bearer slv_wrong"] {
        let headers = [cookie, ("Origin", &own), ("Authorization", authorization)];
        let refused = client.request("POST /api/v1/sessions", &headers, "{}");
        assert_eq!(refused.status, 401, "{authorization}: {refused:?}");
    }
    // Pages of other ports read nothing: no response allows another origin.
    let other = [NO_TOKEN, cookie, ("Origin", "http://127.0.0.1:3000")];
    for start in ["GET /api/v1/sessions", "OPTIONS /api/v1/sessions"] {
        let refused = client.request(start, &other, "");
        assert!([401, 403].contains(&refused.status), "{start}: {refused:?}");
        let head = refused.head.to_lowercase();
        assert!(!head.contains("access-control-"), "{start}: {head}");
    }
}

#[test]
fn other_spellings_of_the_cookie_are_no_token() {
    let fixture = ServeFixture::new(runs_scripts);
    let (server, client) = fixture.start();
    let pair = log_in(&client, &login_path(&fixture, &server));
    let secret = pair.split_once('=').unwrap().1;
    let own = format!("http://{}", server.address);
    let read = |cookie: &str| {
        let headers = [NO_TOKEN, ("Cookie", cookie)];
        client
            .request("GET /api/v1/workspaces", &headers, "")
            .status
    };
    assert_eq!(read(&pair), 200);
    for cookie in [
        format!("selvedge_token = {secret}"),
        format!("Selvedge_Token={secret}"),
        format!("__Host-selvedge_token={secret}"),
        format!("selvedge_token=\"{secret}\""),
        format!("xselvedge_token={secret}"),
        format!("token={secret}"),
        // Another server of the host may set a second one: the first one counts.
        format!("selvedge_token=bad; selvedge_token={secret}"),
        format!("selvedge_token={}", &secret[..secret.len() - 1]),
    ] {
        assert_eq!(read(&cookie), 401, "{cookie}");
    }
    // A server on another port of the host receives the cookie. It is no bearer token there, and a
    // bearer token is no cookie.
    let bearer = format!("Bearer {secret}");
    let client_cookie = format!("selvedge_token={}", client.secret);
    let client_bearer = format!("Bearer {}", client.secret);
    for headers in [
        vec![("Authorization", bearer.as_str())],
        vec![("Authorization", bearer.as_str()), ("Cookie", &pair)],
        vec![("Authorization", bearer.as_str()), ("Origin", &own)],
        vec![NO_TOKEN, ("Cookie", &client_cookie)],
        vec![NO_TOKEN, ("Cookie", &client_cookie), ("Origin", &own)],
    ] {
        for start in ["GET /api/v1/workspaces", "GET /v1/models", "GET /metrics"] {
            let refused = client.request(start, &headers, "");
            assert_eq!(refused.status, 401, "{start} {headers:?}: {refused:?}");
        }
    }
    let headers = [("Authorization", client_bearer.as_str()), ("Cookie", &pair)];
    let read_by_client = client.request("GET /api/v1/workspaces", &headers, "");
    assert_eq!(read_by_client.status, 200, "{read_by_client:?}");
    // Pages on other ports of the host cannot read with it either.
    for (site, status) in [
        ("same-origin", 200),
        ("none", 200),
        ("same-site", 403),
        ("cross-site", 403),
        ("Same-Origin", 403),
        ("", 200),
    ] {
        let headers = [NO_TOKEN, ("Cookie", &pair), ("Sec-Fetch-Site", site)];
        let read = client.request("GET /api/v1/workspaces", &headers, "");
        assert_eq!(read.status, status, "{site:?}: {read:?}");
    }
    // The cookie reaches the workspaces of valid tokens, and those of a revoked one no more.
    let (folder, _) = fixture.other_workspace("brief");
    let revoke = ["serve", "token", "revoke", "brief"];
    assert!(
        fixture
            .workspace
            .command(&revoke)
            .status()
            .unwrap()
            .success()
    );
    let pair = log_in(&client, &login_path(&fixture, &server));
    let headers = [NO_TOKEN, ("Cookie", pair.as_str())];
    let reached = client.request("GET /api/v1/workspaces", &headers, "").body;
    let folders = reached["workspaces"].as_array().unwrap();
    assert!(!folders.contains(&json!(folder)), "{reached}");
    assert_ne!(reached["workspaces"], Value::Null);
}
