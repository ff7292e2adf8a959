//! The web tools against a real server: content, refused addresses, approvals and cancellation.
#![cfg(feature = "web")]
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "support/server.rs"]
mod server;
#[path = "support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::io::Write;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::{ApprovalPolicy, CallDecision, CallStatus, ErrorCode, PreviewContent};
use selvedge_toolbox::{NameResolver, SearchService, WebAccess, WebService, WebSettings};
use serde_json::{Value, json};
use server::{AfterBody, WebReply, WebServer};
use support::{BOTH, Person, TestToolbox, Way};

/// A resolver with fixed answers. Each lookup uses the next answer of a name, and then the last
/// one.
struct FixedResolver {
    names: HashMap<&'static str, Vec<Vec<IpAddr>>>,
    /// Number of lookups so far.
    lookups: AtomicUsize,
}

impl FixedResolver {
    fn new(list: &[(&'static str, &[&str])]) -> Arc<Self> {
        let address = |address: &&str| vec![address.parse().unwrap()];
        let names = list
            .iter()
            .map(|(name, each)| (*name, each.iter().map(address).collect()))
            .collect();
        Arc::new(Self {
            names,
            lookups: AtomicUsize::new(0),
        })
    }

    /// Resolves these names to 127.0.0.1.
    fn local(names: &[&'static str]) -> Arc<Self> {
        Self::new(
            &names
                .iter()
                .map(|name| (*name, &["127.0.0.1"][..]))
                .collect::<Vec<_>>(),
        )
    }
}

impl NameResolver for FixedResolver {
    fn resolve(&self, name: String) -> BoxFuture<'static, std::io::Result<Vec<IpAddr>>> {
        let lookup = self.lookups.fetch_add(1, Ordering::SeqCst);
        let addresses = self
            .names
            .get(name.as_str())
            .map(|each| each[lookup.min(each.len() - 1)].clone());
        async move { addresses.ok_or_else(|| std::io::Error::other("no such name")) }.boxed()
    }
}

/// Settings with the network on, where `docs.test` and `more.test` may be on this machine.
fn settings() -> WebSettings {
    WebSettings {
        network_enabled: true,
        allow_private_hosts: ["docs.test", "more.test"].map(str::to_owned).into(),
        resolver: Some(FixedResolver::local(&[
            "docs.test",
            "more.test",
            "evil.test",
        ])),
        ..WebSettings::default()
    }
}

/// Returns a fixture whose calls share one web access and one cabinet.
fn fixture(settings: WebSettings) -> TestToolbox {
    let mut fixture = TestToolbox::new();
    let web = WebAccess::new(settings);
    let cabinet = fixture.toolbox().cabinet;
    fixture.outfit = Box::new(move |toolbox| {
        toolbox.web = web.clone();
        toolbox.cabinet = cabinet.clone();
    });
    fixture
}

/// Fetches a page from a script.
fn fetch(fixture: &TestToolbox, url: &str) -> Result<Value, (ErrorCode, String)> {
    let ran = fixture.call(Way::Script, "fetchUrl", &json!({"urls": url}));
    match ran.error {
        Some(error) => Err(error),
        None => Ok(ran.value.unwrap()["fetches"][0].clone()),
    }
}

/// Fetches a page, which must fail; returns the error message.
fn refused(fixture: &TestToolbox, url: &str) -> String {
    let (code, message) = fetch(fixture, url).expect_err(url);
    let expected = match message.contains("no complete response within") {
        true => ErrorCode::ToolTimeoutError,
        false => ErrorCode::ToolExecutionError,
    };
    assert_eq!(code, expected, "{message}");
    message
}

const PAGE: &str = include_str!("web/page.html");

#[test]
fn a_page_becomes_markdown_without_navigation() {
    let server = WebServer::start(|_| WebReply::html(PAGE));
    for way in BOTH {
        let fixture = fixture(settings());
        let tool = if way == Way::Script {
            "fetchUrl"
        } else {
            "fetch_url"
        };
        let ran = fixture.call(
            way,
            tool,
            &json!({"urls": server.url("docs.test", "/guide/streams.html#reading")}),
        );
        let value = ran.value.unwrap();
        let page = &value["fetches"][0];
        assert_eq!(page["title"], "Working with streams — Example Docs");
        assert_eq!(page["url"], server.url("docs.test", "/guide/streams.html"));
        assert_eq!(
            (&page["cached"], &page["truncated"], &page["mediaType"]),
            (&json!(false), &json!(false), &json!("text/markdown"))
        );
        let text = page["content"].as_str().unwrap();
        for kept in [
            "## Reading",
            "```rust\nlet mut total = 0;\nwhile let Some(chunk) = stream.read().await? {\n\
             \x20   total += chunk.len(); // a < b\n}\n```",
            "| kind | who waits | memory |\n| ---- | --------- | ------ |\n\
             | pull | writer | 8 KB |",
            &format!(
                "[the guide to errors]({})",
                server.url("docs.test", "/errors.html")
            ),
            "**never**",
            "1. Open the stream.\n2. Write pieces:\n    - small ones",
            "> A stream that is not closed is not finished.",
            "Straße, naïve, 日本",
        ] {
            assert!(text.contains(kept), "{kept}\n--- is not in ---\n{text}");
        }
        for gone in [
            "Log in",
            "Subscribe",
            "cookies",
            "Privacy",
            "var x",
            "color: red",
            "onclick",
        ] {
            assert!(!text.contains(gone), "{gone}\n--- is in ---\n{text}");
        }
        assert_eq!(page["tokens"], json!(text.chars().count().div_ceil(4)));
    }
}

#[test]
fn text_is_decoded_and_decompressed() {
    let server = WebServer::start(|request| match request.path.as_str() {
        "/latin" => WebReply::new(200, "text/plain; charset=ISO-8859-1", *b"caf\xe9"),
        "/meta" => WebReply::new(
            200,
            "text/html",
            *b"<meta charset=windows-1251><title>t</title><p>\xcf\xf0\xe8\xe2\xe5\xf2",
        ),
        "/gzip" => {
            WebReply::new(200, "text/plain", gzip(b"packed")).header("content-encoding", "gzip")
        }
        "/damaged" => {
            WebReply::new(200, "text/plain", "no gzip").header("content-encoding", "gzip")
        }
        "/odd" => WebReply::new(200, "text/plain", "x").header("content-encoding", "br"),
        "/nothing" => WebReply::new(200, "text/plain", "").header("content-encoding", "gzip"),
        _ => WebReply::new(404, "text/html", "<h1>not here</h1>"),
    });
    let fixture = fixture(settings());
    let content =
        |path| fetch(&fixture, &server.url("docs.test", path)).unwrap()["content"].clone();
    assert_eq!(
        (content("/latin"), content("/meta")),
        (json!("café"), json!("Привет"))
    );
    assert_eq!(
        (content("/gzip"), content("/nothing")),
        (json!("packed"), json!(""))
    );
    let why = |path| refused(&fixture, &server.url("docs.test", path));
    assert!(why("/damaged").ends_with("answered with invalid gzip data"));
    assert!(why("/odd").ends_with("answered with an unsupported content encoding: br"));
    assert_eq!(
        why("/gone"),
        format!(
            "{} answered 404 Not Found",
            server.url("docs.test", "/gone")
        )
    );
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn large_responses_are_truncated_without_reading_the_rest() {
    let server = WebServer::start(|request| {
        let line = "a line of text that is repeated very often\n".repeat(24_000);
        match request.path.as_str() {
            "/text" => WebReply::new(200, "text/plain", line).end(AfterBody::Repeated(50)),
            "/bytes" => WebReply::new(200, "application/zip", line).end(AfterBody::Repeated(50)),
            // Small when sent, large after decompression.
            "/packed" => WebReply::new(200, "text/plain", gzip(line.repeat(3).as_bytes()))
                .header("content-encoding", "gzip"),
            _ => WebReply::html(&"<div><b><p>".repeat(50_000)).end(AfterBody::Repeated(100)),
        }
    });
    let fixture = fixture(WebSettings {
        max_body_bytes: 1 << 20,
        ..settings()
    });
    let page = fetch(&fixture, &server.url("docs.test", "/text")).unwrap();
    assert_eq!(
        (page["content"].as_str().unwrap().len(), &page["truncated"]),
        (50 << 10, &json!(true))
    );
    assert!(
        server.wait_until_closed() < 20 << 20,
        "the whole response was read"
    );
    let message = refused(&fixture, &server.url("docs.test", "/bytes"));
    assert!(message.ends_with("/bytes is larger than 1 MB"), "{message}");
    let packed = fetch(&fixture, &server.url("docs.test", "/packed")).unwrap();
    assert!(
        packed["tokens"].as_u64().unwrap() < 300_000,
        "{}",
        packed["tokens"]
    );
    assert!(fetch(&fixture, &server.url("docs.test", "/html")).is_ok());
    let key = page["fileKey"].as_str().unwrap();
    let whole = fixture
        .call(
            Way::Script,
            "fetchFromFC",
            &json!({"fileKey": key, "offset": (1 << 20) - 5}),
        )
        .value
        .unwrap();
    assert!(
        whole["content"]
            .as_str()
            .unwrap()
            .ends_with("[truncated: more than 1 MB]"),
        "{whole}"
    );
}

#[test]
fn slow_servers_time_out() {
    let server = WebServer::start(|request| match request.path.as_str() {
        "/silent" => WebReply {
            headers: Vec::new(),
            ..WebReply::html("")
        }
        .end(AfterBody::Silent),
        _ => WebReply::new(200, "text/plain", "the beginning").end(AfterBody::Silent),
    });
    for path in ["/silent", "/half"] {
        let mut timeout = Duration::from_millis(300);
        // On a busy machine the time may be over before the server has the request.
        while !server.paths().contains(&path.to_owned()) {
            let fixture = fixture(WebSettings {
                timeout,
                ..settings()
            });
            let message = refused(&fixture, &server.url("docs.test", path));
            let seconds = timeout.as_secs_f64();
            assert!(
                message.ends_with(&format!("{path}: no complete response within {seconds} s")),
                "{message}"
            );
            timeout *= 2;
        }
        server.wait_until_closed();
    }
}

#[test]
fn a_page_with_very_many_attributes_is_read_up_to_them() {
    let server = WebServer::start(|_| {
        let attributes: String = (0..900_000).map(|n| format!(" a{n:x}")).collect();
        WebReply::html(&format!("<p>the beginning</p><p{attributes}>the end</p>"))
    });
    let page = fetch(&fixture(settings()), &server.url("docs.test", "/")).unwrap();
    let content = page["content"].as_str().unwrap();
    assert!(content.starts_with("the beginning"), "{content:.200}");
    assert!(!content.contains("the end"), "{content:.200}");
}

#[test]
fn redirects_to_private_addresses_are_not_followed() {
    let server = WebServer::start(|request| match request.path.as_str() {
        "/literal" => WebReply::redirect("http://127.0.0.2:9/secret"),
        "/odd" => WebReply::redirect("http://0x7f000001/secret"),
        "/metadata" => WebReply::redirect("http://169.254.169.254/latest/meta-data/"),
        "/name" => WebReply::redirect(&format!(
            "http://evil.test:{}/secret",
            request.header("host").unwrap().split(':').nth(1).unwrap()
        )),
        "/file" => WebReply::redirect("file:///etc/passwd"),
        "/around" => WebReply::redirect("/around"),
        "/moved" => WebReply::redirect("./here?x=1#y"),
        "/here?x=1" => WebReply::new(200, "text/plain", "moved here"),
        _ => WebReply::new(200, "text/plain", "secret"),
    });
    let fixture = fixture(settings());
    let why = |path: &str| refused(&fixture, &server.url("docs.test", path));
    assert!(
        why("/literal")
            .ends_with("redirects to http://127.0.0.2:9/secret, a private address: not followed")
    );
    assert!(why("/odd").contains("http://127.0.0.1/secret, a private address"));
    assert!(why("/metadata").ends_with("meta-data/, a private address: not followed"));
    assert!(
        why("/name").ends_with("`evil.test` resolves to 127.0.0.1, a private address"),
        "{}",
        why("/name")
    );
    assert!(why("/file").contains("neither http nor https"));
    assert!(why("/around").ends_with("caused more than 10 redirects"));
    assert_eq!(
        fetch(&fixture, &server.url("docs.test", "/moved")).unwrap()["content"],
        "moved here"
    );
    assert!(
        !server.paths().iter().any(|path| path == "/secret"),
        "{:?}",
        server.paths()
    );
}

#[test]
fn a_name_is_resolved_once_and_the_checked_address_is_used() {
    let server = WebServer::start(|_| WebReply::new(200, "text/plain", "secret"));
    // Public at the first lookup, private at the next.
    let names = FixedResolver::new(&[("rebind.test", &["192.31.196.1", "127.0.0.1"])]);
    let fixture = fixture(WebSettings {
        resolver: Some(names.clone()),
        timeout: Duration::from_millis(300),
        ..settings()
    });
    refused(&fixture, &server.url("rebind.test", "/"));
    assert_eq!(names.lookups.load(Ordering::SeqCst), 1);
    assert!(server.requests().is_empty());
    // A name that is private at the first lookup, and a name that cannot be resolved.
    let fixture = self::fixture(settings());
    assert!(
        refused(&fixture, &server.url("evil.test", "/"))
            .contains("`evil.test` resolves to 127.0.0.1, a private address")
    );
    assert!(
        refused(&fixture, "http://unknown.test/").contains("cannot resolve host `unknown.test`")
    );
    assert!(server.requests().is_empty());
}

#[test]
fn with_the_network_off_approval_shows_the_url() {
    let server = WebServer::start(|_| WebReply::new(200, "text/plain", "hello"));
    let url = server.url("docs.test", "/page?q=1");
    let off = || WebSettings {
        network_enabled: false,
        ..settings()
    };
    for way in BOTH {
        let tool = if way == Way::Script {
            "fetchUrl"
        } else {
            "fetch_url"
        };
        let mut fixture = fixture(off());
        fixture.person = Person::who_says(CallDecision::Deny(None));
        let ran = fixture.call(way, tool, &json!({"urls": url}));
        assert_eq!(
            ran.error.unwrap(),
            (
                ErrorCode::ApprovalDeniedError,
                "fetch_url was denied".to_owned()
            )
        );
        let call = &ran.asked[0].calls[0];
        assert_eq!(call.reason, format!("fetches {url} (the network is off)"));
        assert_eq!(call.preview.view, Some(PreviewContent::Urls(url.clone())));
        assert_eq!(
            call.preview.rule,
            Some(format!("requests to docs.test:{}", server.port))
        );
        assert!(server.requests().is_empty());
        fixture.policy = ApprovalPolicy::Never;
        let ran = fixture.call(way, tool, &json!({"urls": url}));
        assert!(ran.asked.is_empty() && ran.error.unwrap().0 == ErrorCode::ApprovalDeniedError);
    }
    let mut fixture = fixture(off());
    fixture.person = Person::who_says(CallDecision::Once);
    assert_eq!(fetch(&fixture, &url).unwrap()["content"], "hello");
}

#[test]
fn approval_for_the_script_covers_one_host() {
    let server =
        WebServer::start(|request| WebReply::new(200, "text/plain", request.path.as_str()));
    let mut fixture = fixture(WebSettings {
        network_enabled: false,
        ..settings()
    });
    fixture.person = Person::who_says(CallDecision::SimilarCalls);
    let calls = [
        ("docs.test", "/a"),
        ("docs.test", "/b"),
        ("more.test", "/c"),
        ("docs.test", "/d"),
    ];
    let calls = calls.map(|(host, path)| ("fetch_url", json!({"urls": server.url(host, path)})));
    for way in BOTH {
        let ledger = fixture.in_turn(way, &calls);
        assert!(
            ledger.iter().all(|line| line.status == CallStatus::Done),
            "{ledger:?}"
        );
        let hosts: Vec<String> = fixture
            .person
            .asked
            .lock()
            .unwrap()
            .drain(..)
            .map(|request| request.calls[0].reason.clone())
            .collect();
        assert_eq!(hosts.len(), 2, "{hosts:?}");
        assert!(hosts[0].contains("docs.test") && hosts[1].contains("more.test"));
    }
}

#[test]
fn approval_for_always_stores_a_rule_for_the_host() {
    let server = WebServer::start(|_| WebReply::new(200, "text/plain", "hello"));
    let saved = Arc::new(Mutex::new(Vec::new()));
    let saving = saved.clone();
    let save_host: selvedge_toolbox::SaveHost =
        Box::new(move |host, _| saving.lock().unwrap().push(host.to_owned()));
    let mut fixture = fixture(WebSettings {
        network_enabled: false,
        save_host: Some(save_host),
        ..settings()
    });
    fixture.person = Person::who_says(CallDecision::Always);
    fetch(&fixture, &server.url("docs.test", "/1")).unwrap();
    assert_eq!(
        *saved.lock().unwrap(),
        [format!("docs.test:{}", server.port)]
    );
    fixture.person = Person::who_says(CallDecision::Deny(None));
    fetch(&fixture, &server.url("docs.test", "/2")).unwrap();
    assert_eq!(fixture.questions(), 0);
    assert!(fetch(&fixture, &server.url("more.test", "/3")).is_err());
    // The next process loads the stored rule.
    let allow_hosts = saved.lock().unwrap().clone();
    let fixture = self::fixture(WebSettings {
        network_enabled: false,
        allow_hosts,
        ..settings()
    });
    fetch(&fixture, &server.url("docs.test", "/4")).unwrap();
}

#[test]
fn private_addresses_need_approval_and_blocked_ones_are_refused() {
    let server = WebServer::start(|_| WebReply::new(200, "text/plain", "the app"));
    let local = server.url("127.0.0.1", "/");
    let mut fixture = fixture(settings());
    fixture.person = Person::who_says(CallDecision::Deny(None));
    let ran = fixture.call(Way::Script, "fetchUrl", &json!({"urls": local}));
    assert_eq!(
        ran.asked[0].calls[0].reason,
        format!("fetches {local} (a private address)")
    );
    assert_eq!(ran.error.unwrap().0, ErrorCode::ApprovalDeniedError);
    for blocked in [
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]/",
        "http://0.0.0.0/",
    ] {
        let ran = fixture.call(Way::Script, "fetchUrl", &json!({"urls": blocked}));
        assert!(ran.asked.is_empty(), "{blocked}");
        assert_eq!(
            ran.error.unwrap().1,
            format!("refused to fetch {blocked}: not a public address")
        );
    }
    assert!(server.requests().is_empty());
    // With approval the page is fetched, and pages of private hosts are not cached.
    fixture.person = Person::who_says(CallDecision::Once);
    for _ in 0..2 {
        let page = fetch(&fixture, &local).unwrap();
        assert_eq!(
            (&page["content"], &page["cached"]),
            (&json!("the app"), &json!(false))
        );
    }
}

#[test]
fn redirects_to_another_host_need_approval() {
    let server = WebServer::start(|request| {
        match (
            request.path.as_str(),
            request.header("host").unwrap().split(':').next(),
        ) {
            ("/away", _) => WebReply::redirect(&format!(
                "http://more.test:{}/there",
                request.header("host").unwrap().split(':').nth(1).unwrap()
            )),
            _ => WebReply::new(200, "text/plain", "there"),
        }
    });
    let off = |allow: &[String]| WebSettings {
        network_enabled: false,
        allow_hosts: allow.to_vec(),
        ..settings()
    };
    let (docs, more) = (
        format!("docs.test:{}", server.port),
        format!("more.test:{}", server.port),
    );
    let fixture = fixture(off(std::slice::from_ref(&docs)));
    let message = refused(&fixture, &server.url("docs.test", "/away"));
    assert!(
        message.ends_with(&format!(
            "redirects to http://{more}/there on another host: not followed without approval"
        )),
        "{message}"
    );
    let fixture = self::fixture(off(&[docs, more]));
    assert_eq!(
        fetch(&fixture, &server.url("docs.test", "/away")).unwrap()["content"],
        "there"
    );
}

#[test]
fn a_page_is_cached_for_a_day() {
    let server = WebServer::start(|_| WebReply::new(200, "text/plain", "hello"));
    let fixture = fixture(settings());
    let url = server.url("docs.test", "/page");
    let first = fetch(&fixture, &url).unwrap();
    let second = fetch(&fixture, &format!("{url}#elsewhere")).unwrap();
    assert_eq!(
        (&first["cached"], &second["cached"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(
        (&first["fileKey"], &first["content"]),
        (&second["fileKey"], &second["content"])
    );
    assert_eq!(server.requests().len(), 1);
    let again = fixture
        .call(Way::Script, "fetchUrl", &json!({"url": url, "fresh": true}))
        .value
        .unwrap();
    assert_eq!(
        (&again["fetches"][0]["cached"], server.requests().len()),
        (&json!(false), 2)
    );
    // Concurrent calls share one request.
    let url = server.url("docs.test", "/other");
    let ran = fixture.script(&format!(
        "return (await Promise.all([1, 2, 3].map(() => tools.fetchUrl({url:?}))))\
         .map(r => r.fetches[0].content)"
    ));
    assert_eq!(
        ran.value(),
        Some(json!(["hello", "hello", "hello"])),
        "{:?}",
        ran.error
    );
    assert_eq!(server.requests().len(), 3);
}

#[test]
fn several_pages_are_returned_in_order_with_failures_listed() {
    let server = WebServer::start(|request| match request.path.as_str() {
        "/2" => WebReply::new(500, "text/plain", "oh"),
        path => WebReply::new(200, "text/plain", path),
    });
    let fixture = fixture(settings());
    let urls: Vec<String> = ["/1", "/2", "/3", "/1"]
        .iter()
        .map(|path| server.url("docs.test", path))
        .collect();
    let value = fixture
        .call(
            Way::Script,
            "fetchUrl",
            &json!({"urls": urls, "maxLength": 1}),
        )
        .value
        .unwrap();
    let contents: Vec<&Value> = value["fetches"]
        .as_array()
        .unwrap()
        .iter()
        .map(|page| &page["url"])
        .collect();
    assert_eq!(contents, [&json!(urls[0]), &json!(urls[2])]);
    assert_eq!(value["fetches"][0]["content"], "/");
    assert_eq!(value["failed"][0]["url"], json!(urls[1]));
    assert!(
        value["failed"][0]["error"]
            .as_str()
            .unwrap()
            .ends_with("answered 500 Internal Server Error")
    );
    let message = fixture
        .call(Way::Script, "fetchUrl", &json!({"urls": []}))
        .error
        .unwrap()
        .1;
    assert_eq!(message, "`urls` must have 1 to 20 entries, not 0");
}

#[test]
fn a_cancelled_call_closes_its_connection() {
    let server = Arc::new(WebServer::start(|_| {
        WebReply::new(200, "text/plain", "beginning").end(AfterBody::Silent)
    }));
    for way in BOTH {
        let fixture = fixture(settings());
        let (cancel, observed) = (fixture.cancel.clone(), server.clone());
        let canceller = std::thread::spawn(move || {
            observed.wait_for_request();
            cancel.cancel();
            observed.wait_until_closed();
        });
        let tool = if way == Way::Script {
            "fetchUrl"
        } else {
            "fetch_url"
        };
        let ran = fixture.call(way, tool, &json!({"urls": server.url("docs.test", "/")}));
        canceller.join().unwrap();
        assert!(ran.value.is_none(), "{ran:?}");
        assert_eq!(ran.ledger[0].status, CallStatus::Aborted);
    }
}

/// A server that answers like Perplexity and SearXNG, in their documented formats.
fn search_server() -> WebServer {
    WebServer::start(|request| {
        let port = request
            .header("host")
            .unwrap()
            .split(':')
            .nth(1)
            .unwrap()
            .to_owned();
        let result = |n: usize, text: &str| {
            let url = format!("http://docs.test:{port}/page/{n}");
            json!({"title": format!("Result {n}"), "url": url, text: format!("About {n}.\nMore.")})
        };
        let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
        match request.path.split('?').next().unwrap() {
            "/search" if request.method == "POST" => {
                let wanted = body["max_results"].as_u64().unwrap() as usize;
                let mut results: Vec<Value> = (1..=wanted).map(|n| result(n, "snippet")).collect();
                results[0]["date"] = json!("2026-05-01");
                results[0]["last_updated"] = json!("2026-06-01");
                WebReply::new(
                    200,
                    "application/json",
                    json!({"id": "s-1", "results": results, "server_time": null}).to_string(),
                )
            }
            "/sx/search" => {
                let mut results: Vec<Value> = (1..=20).map(|n| result(n, "content")).collect();
                for (n, result) in results.iter_mut().enumerate() {
                    result["score"] = json!(20.0 - n as f64);
                    result["engines"] = json!(["duckduckgo"]);
                }
                results.insert(0, json!({"title": "no address", "url": "", "content": ""}));
                let query = request.path.split(['=', '&']).nth(1).unwrap();
                let answer = json!({
                    "query": query, "number_of_results": 0, "results": results, "answers": [],
                    "corrections": [], "infoboxes": [], "suggestions": [],
                    "unresponsive_engines": []
                });
                WebReply::new(200, "application/json", answer.to_string())
            }
            "/closed/search" => WebReply::new(403, "text/html", "Forbidden"),
            "/denied/search" => WebReply::new(
                401,
                "application/json",
                json!({"error": {
                    "message": "Invalid API key", "type": "invalid_api_key", "code": 401
                }})
                .to_string(),
            ),
            path => WebReply::new(200, "text/plain", path),
        }
    })
}

fn service(server: &WebServer, path: &str) -> WebService {
    WebService {
        base_url: server.url("127.0.0.1", path),
        api_key: "pplx-secret".into(),
    }
}

#[test]
fn perplexity_searches_and_the_first_results_are_prefetched() {
    let server = search_server();
    let search = Some(SearchService::Perplexity(service(&server, "")));
    let allow_hosts = vec![format!("127.0.0.1:{}", server.port)];
    let fixture = fixture(WebSettings {
        search,
        allow_hosts,
        ..settings()
    });
    let ran = fixture.script(
        "const { results } = await tools.webSearch({ query: 'streams', maxResults: 4 });
         const pages = await tools.fetchUrl({ urls: results.slice(0, 3).map(r => r.url) });
         return { results, contents: pages.fetches.map(p => p.content) }",
    );
    let value = ran.value().unwrap();
    assert_eq!(
        value["results"].as_array().unwrap().len(),
        4,
        "{:?}",
        ran.error
    );
    let url = server.url("docs.test", "/page/1");
    let first = json!({"url": url, "title": "Result 1", "snippet": "About 1.\nMore."});
    assert_eq!(value["results"][0], first);
    assert_eq!(value["contents"], json!(["/page/1", "/page/2", "/page/3"]));
    // Each page was requested once, by the prefetch or by the call.
    assert_eq!(server.paths(), ["/page/1", "/page/2", "/page/3", "/search"]);
    let request = server
        .requests()
        .into_iter()
        .find(|request| request.path == "/search")
        .unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&request.body).unwrap(),
        json!({"query": "streams", "max_results": 4})
    );
    assert_eq!(
        request.header("authorization").unwrap(),
        "Bearer pplx-secret"
    );
}

#[test]
fn searxng_searches_several_queries_at_once() {
    let server = search_server();
    let search = Some(SearchService::Searxng {
        base_url: server.url("localhost", "/sx/"),
    });
    let names = Some(FixedResolver::local(&["localhost", "docs.test"]) as Arc<dyn NameResolver>);
    let allow_hosts = vec![format!("localhost:{}", server.port)];
    let fixture = fixture(WebSettings {
        search,
        resolver: names,
        allow_hosts,
        ..settings()
    });
    let args = json!({"query": ["a b", "c&d"], "maxResults": 2, "prefetch": 0});
    for way in BOTH {
        let tool = if way == Way::Script {
            "webSearch"
        } else {
            "web_search"
        };
        let value = fixture.call(way, tool, &args).value.unwrap();
        let results = value["results"].as_array().unwrap();
        assert_eq!(results.len(), 2, "the same pages, once each");
        assert_eq!(
            (results[0]["relevanceScore"].as_f64(), &results[0]["query"]),
            (Some(20.0), &json!("a b"))
        );
    }
    let mut paths = server.paths();
    paths.dedup();
    assert_eq!(
        paths,
        [
            "/sx/search?q=a+b&format=json",
            "/sx/search?q=c%26d&format=json"
        ]
    );
}

#[test]
fn searching_needs_approval_and_errors_name_the_cause() {
    let server = search_server();
    let with = |search, network| {
        fixture(WebSettings {
            search,
            network_enabled: network,
            ..settings()
        })
    };
    let mut fixture = with(Some(SearchService::Perplexity(service(&server, ""))), false);
    fixture.person = Person::who_says(CallDecision::Deny(None));
    let ran = fixture.call(
        Way::Structured,
        "web_search",
        &json!({"query": "my secret plan"}),
    );
    let Some(PreviewContent::Urls(view)) = &ran.asked[0].calls[0].preview.view else {
        panic!("{ran:?}")
    };
    assert_eq!(
        *view,
        format!(
            "{}\n  search for: my secret plan",
            server.url("127.0.0.1", "/search")
        )
    );
    assert!(server.requests().is_empty());
    let message_of = |search| {
        let mut fixture = with(search, true);
        fixture.person = Person::who_says(CallDecision::Once);
        fixture
            .call(Way::Script, "webSearch", &json!("x"))
            .error
            .unwrap()
            .1
    };
    assert_eq!(message_of(None), "no search service is configured");
    let closed = SearchService::Searxng {
        base_url: server.url("127.0.0.1", "/closed"),
    };
    assert!(message_of(Some(closed)).ends_with("answered 403 Forbidden"));
    let denied = message_of(Some(SearchService::Perplexity(service(&server, "/denied"))));
    assert!(
        denied.ends_with("answered 401 Unauthorized: Invalid API key")
            && !denied.contains("pplx-secret"),
        "{denied}"
    );
}

#[test]
fn prefetch_skips_hosts_that_need_approval_and_ends_with_its_scope() {
    let server = WebServer::start(|request| {
        let port = request
            .header("host")
            .unwrap()
            .split(':')
            .nth(1)
            .unwrap()
            .to_owned();
        let result = |host: &str| {
            let url = format!("http://{host}:{port}/page");
            json!({"title": "t", "url": url, "content": "c"})
        };
        match request.path.as_str() {
            "/page" => WebReply::new(200, "text/plain", "slow").end(AfterBody::Silent),
            _ => WebReply::new(
                200,
                "application/json",
                json!({"results": [result("more.test"), result("docs.test")]}).to_string(),
            ),
        }
    });
    let search = Some(SearchService::Searxng {
        base_url: server.url("127.0.0.1", ""),
    });
    let allow_hosts = ["127.0.0.1", "docs.test"]
        .map(|host| format!("{host}:{}", server.port))
        .into();
    let fixture = fixture(WebSettings {
        search,
        network_enabled: false,
        allow_hosts,
        ..settings()
    });
    let server = Arc::new(server);
    let observed = server.clone();
    let (cancel, finished) = (fixture.cancel.clone(), std::sync::mpsc::channel::<()>());
    let (done, wait) = finished;
    let observer = std::thread::spawn(move || {
        observed.wait_for_request();
        observed.wait_for_request();
        // The prefetch is running, only for the allowed host.
        let hosts: Vec<_> = observed
            .requests()
            .iter()
            .filter(|request| request.path == "/page")
            .map(|request| request.header("host").unwrap())
            .collect();
        cancel.cancel();
        // The search ends, and then the prefetch.
        observed.wait_until_closed();
        observed.wait_until_closed();
        drop(done);
        hosts
    });
    let ran = fixture
        .script("await tools.webSearch('x'); await new Promise(done => setTimeout(done, 20000))");
    assert!(ran.error.is_some());
    wait.recv().unwrap_err();
    assert_eq!(
        observer.join().unwrap(),
        [format!("docs.test:{}", server.port)]
    );
}

#[test]
fn firecrawl_fetches_public_pages_if_configured() {
    let server = WebServer::start(|request| {
        let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
        let url = body["url"].as_str().unwrap_or_default().to_owned();
        let data = |markdown: &str, status: u16| {
            let metadata = json!({
                "title": "From Firecrawl", "sourceURL": url, "statusCode": status, "language": "en"
            });
            json!({"success": true, "data": {"markdown": markdown, "metadata": metadata}})
        };
        let (status, answer) = match url.rsplit('/').next().unwrap_or_default() {
            "good" => (200, data("# Good\n\nText.", 200)),
            "missing" => (200, data("# Not Found", 404)),
            "paid" => (402, json!({"success": false, "error": "Payment required"})),
            _ => (
                200,
                json!({"success": false, "error": "the site blocked the scraper"}),
            ),
        };
        WebReply::new(status, "application/json", answer.to_string())
    });
    let firecrawl = Some(WebService {
        base_url: server.url("127.0.0.1", ""),
        api_key: "fc-secret".into(),
    });
    let names = FixedResolver::new(&[
        ("docs.test", &["192.31.196.1"]),
        ("evil.test", &["127.0.0.1"]),
    ]);
    let fixture = fixture(WebSettings {
        firecrawl,
        resolver: Some(names),
        allow_private_hosts: Vec::new(),
        ..settings()
    });
    let page = fetch(&fixture, "https://docs.test/good").unwrap();
    assert_eq!(
        (&page["title"], &page["content"]),
        (&json!("From Firecrawl"), &json!("# Good\n\nText."))
    );
    let request = &server.requests()[0];
    assert_eq!(
        (request.method.as_str(), request.path.as_str()),
        ("POST", "/v2/scrape")
    );
    assert_eq!(request.header("authorization").unwrap(), "Bearer fc-secret");
    let body =
        json!({"url": "https://docs.test/good", "formats": ["markdown"], "onlyMainContent": true});
    assert_eq!(serde_json::from_str::<Value>(&request.body).unwrap(), body);
    assert_eq!(
        refused(&fixture, "https://docs.test/missing"),
        "Firecrawl could not fetch https://docs.test/missing: the page answered 404"
    );
    assert!(
        refused(&fixture, "https://docs.test/blocked").ends_with("the site blocked the scraper")
    );
    assert!(
        refused(&fixture, "https://docs.test/paid")
            .contains("402 Payment Required: Payment required")
    );
    assert!(fetch(&fixture, "https://docs.test/good").unwrap()["cached"] == json!(true));
    // Firecrawl gets no URL of a private host.
    let before = server.requests().len();
    assert!(
        refused(&fixture, "https://evil.test/good")
            .contains("resolves to 127.0.0.1, a private address")
    );
    assert_eq!(server.requests().len(), before);
    let mut fixture = self::fixture(WebSettings {
        firecrawl: Some(WebService {
            base_url: "https://api.invalid".into(),
            api_key: "x".into(),
        }),
        ..settings()
    });
    fixture.person = Person::who_says(CallDecision::Once);
    assert!(fetch(&fixture, &server.url("127.0.0.1", "/")).is_ok());
    assert!(
        fetch(&fixture, &server.url("docs.test", "/")).is_ok(),
        "a listed private host is fetched directly"
    );
}

#[test]
fn http_is_offered_only_if_the_configuration_enables_it() {
    let server = WebServer::start(|request| match request.path.as_str() {
        "/away" => WebReply::redirect("http://127.0.0.9/"),
        "/png" => WebReply::new(200, "image/png", *b"\x89P\0"),
        _ => WebReply::new(
            201,
            "application/json",
            json!({"you": request.header("x-me"), "sent": request.body, "by": request.method})
                .to_string(),
        )
        .header("x-them", "yes"),
    });
    let off = fixture(settings());
    let url = server.url("docs.test", "/things");
    let args = json!({"url": url, "method": "post", "headers": {"X-Me": "me"}, "body": "{}"});
    assert_eq!(
        off.call(Way::Script, "http", &args).error.unwrap().0,
        ErrorCode::ToolNotFoundError
    );

    let with = |settings: WebSettings| {
        let mut fixture = fixture(settings);
        let outfit = std::mem::replace(&mut fixture.outfit, Box::new(|_| {}));
        fixture.outfit = Box::new(move |toolbox| {
            outfit(toolbox);
            toolbox.offer_http = true;
        });
        fixture
    };
    let fixture = with(settings());
    let answer = fixture.call(Way::Script, "http", &args).value.unwrap();
    assert_eq!(
        (
            &answer["status"],
            &answer["ok"],
            &answer["headers"]["x-them"]
        ),
        (&json!(201), &json!(true), &json!("yes"))
    );
    assert_eq!(
        answer["body"],
        json!({"you": "me", "sent": "{}", "by": "POST"}).to_string()
    );
    let get = |path| {
        fixture
            .call(Way::Script, "http", &json!(server.url("docs.test", path)))
            .value
            .unwrap()
    };
    assert_eq!(
        (
            &get("/away")["status"],
            &get("/away")["headers"]["location"]
        ),
        (&json!(302), &json!("http://127.0.0.9/"))
    );
    assert_eq!(
        (&get("/png")["base64"], &get("/png")["body"]),
        (&json!("iVAA"), &json!(""))
    );
    let message_of = |args: Value| fixture.call(Way::Script, "http", &args).error.unwrap().1;
    assert_eq!(
        message_of(json!({"url": server.url("docs.test", "/"), "headers": {"Host": "x"}})),
        "header `Host` cannot be set by a call"
    );
    assert!(message_of(json!({"url": server.url("evil.test", "/")})).contains("a private address"));

    // Sending to a host that is allowed for reading needs approval, which cannot be stored as a
    // rule.
    let allow_hosts = vec![format!("docs.test:{}", server.port)];
    let mut fixture = with(WebSettings {
        network_enabled: false,
        allow_hosts,
        ..settings()
    });
    fixture.person = Person::who_says(CallDecision::Deny(None));
    assert!(
        fixture
            .call(Way::Script, "http", &json!(server.url("docs.test", "/")))
            .value
            .is_some()
    );
    let ran = fixture.call(Way::Script, "http", &args);
    assert_eq!(ran.error.unwrap().0, ErrorCode::ApprovalDeniedError);
    let preview = &ran.asked[0].calls[0].preview;
    assert_eq!(
        (preview.rule.as_ref(), &preview.view),
        (
            None,
            &Some(PreviewContent::Urls(format!(
                "POST {}\nX-Me: me\n\n{{}}",
                server.url("docs.test", "/things")
            )))
        )
    );

    // All that would be sent is shown, however long.
    let body = "b".repeat(20_000) + "\nthe end";
    let args = json!({
        "url": server.url("docs.test", "/things"), "method": "POST",
        "headers": {"X-A": "1", "X-Secret": "s3cret\nX-B: 2"}, "body": body,
    });
    let ran = fixture.call(Way::Script, "http", &args);
    assert_eq!(
        ran.asked[0].calls[0].preview.view,
        Some(PreviewContent::Urls(format!(
            "POST {}\nX-A: 1\nX-Secret: s3cret⏎X-B: 2\n\n{body}",
            server.url("docs.test", "/things")
        )))
    );
}
