//! OAuth 2.0 logins of providers, with an authorization server on loopback that also answers as the
//! model.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{ModelsOutput, ModelsWorkspace, chat, command_output, read};

/// Longer than any step takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// What the server knows, and how it behaves.
#[derive(Debug, Default)]
struct AuthState {
    /// The number of the last tokens: `access-N`, like those before it, and `refresh-N` are valid.
    issued: u32,
    /// How often a device has to wait.
    pending_polls: u32,
    is_denied: bool,
    is_revoked: bool,
    /// Holds back the answers to refreshes, which are valid at once.
    held_refreshes: Option<Receiver<()>>,
    lifetime_seconds: Option<u64>,
    /// The challenge with which the browser came.
    code_challenge: String,
    /// The grants that were requested, in order.
    grants: Vec<String>,
}

struct AuthServer {
    address: String,
    state: Arc<Mutex<AuthState>>,
}

impl AuthServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(AuthState::default()));
        let (shared, own) = (state.clone(), address.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some((head, body)) = read(&stream) else {
                    continue;
                };
                let (status, text) = shared.lock().unwrap().answer(&own, &head, &body);
                let held = match body.contains("grant_type=refresh_token") {
                    true => shared.lock().unwrap().held_refreshes.take(),
                    false => None,
                };
                // Ends when the test drops the other side.
                let _ = held.map(|held| held.recv());
                let kind = match text.starts_with("data:") {
                    true => "text/event-stream",
                    false => "application/json",
                };
                let _ = write!(
                    &stream,
                    "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\
                     connection: close\r\n\r\n{text}",
                    text.len()
                );
            }
        });
        Self { address, state }
    }

    fn change(&self, change: impl FnOnce(&mut AuthState)) {
        change(&mut self.state.lock().unwrap());
    }

    fn grants(&self) -> Vec<String> {
        self.state.lock().unwrap().grants.clone()
    }

    /// Configures a provider with both flows.
    fn workspace(&self) -> ModelsWorkspace {
        let url = &self.address;
        ModelsWorkspace::new(&format!(
            "model_provider = \"corp\"\nmodel = \"tiny\"\n\
             [model_providers.corp]\nbase_url = \"{url}/v1\"\n\
             [model_providers.corp.oauth]\nclient_id = \"selvedge-test\"\n\
             token_url = \"{url}/token\"\ndevice_authorization_url = \"{url}/device\"\n\
             authorization_url = \"{url}/authorize\"\nscopes = [\"models\", \"offline\"]\n"
        ))
    }

    /// Returns a workspace that is logged in.
    fn logged_in(&self) -> ModelsWorkspace {
        let workspace = self.workspace();
        let mut command = workspace.command(&["models", "login", "corp", "--device"]);
        let seen = command_output(command.stdin(Stdio::null()).spawn().unwrap());
        assert_eq!(seen.status, 0, "{seen:?}");
        workspace
    }
}

impl AuthState {
    fn answer(&mut self, address: &str, head: &str, body: &str) -> (u16, String) {
        let path = head.split(' ').nth(1).unwrap_or_default();
        if !["/device", "/token"].contains(&path) {
            let bearer = head.split("authorization: bearer access-").nth(1);
            let number = bearer.and_then(|rest| rest.split('\r').next()?.parse::<u32>().ok());
            let is_valid = number.is_some_and(|number| (1..=self.issued).contains(&number));
            return match is_valid && !self.is_revoked {
                true => chat(head, body),
                false => (
                    401,
                    json!({"error": {"message": "the token is invalid"}}).to_string(),
                ),
            };
        }
        let form = parameters(body);
        let field = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
        assert_eq!(field("client_id"), "selvedge-test", "{body}");
        if path == "/device" {
            assert_eq!(field("scope"), "models offline");
            let answer = json!({
                "device_code": "the-device", "user_code": "WDJB-MJHT", "expires_in": 600,
                "interval": 1, "verification_uri": format!("{address}/activate"),
            });
            return (200, answer.to_string());
        }
        self.grants.push(field("grant_type").to_owned());
        let refused = |error: &str| (400, json!({ "error": error }).to_string());
        match field("grant_type") {
            "urn:ietf:params:oauth:grant-type:device_code" => {
                assert_eq!(field("device_code"), "the-device");
                if self.is_denied {
                    return refused("access_denied");
                }
                if self.pending_polls > 0 {
                    self.pending_polls -= 1;
                    return refused("authorization_pending");
                }
            }
            "authorization_code" => {
                let challenge = Sha256::digest(field("code_verifier"));
                let challenge = URL_SAFE_NO_PAD.encode(challenge);
                if field("code") != "the-code" || challenge != self.code_challenge {
                    return refused("invalid_grant");
                }
            }
            // A refresh token is valid once.
            "refresh_token"
                if field("refresh_token") == format!("refresh-{}", self.issued)
                    && !self.is_revoked => {}
            _ => return refused("invalid_grant"),
        }
        self.issued += 1;
        let issued = self.issued;
        let answer = json!({
            "access_token": format!("access-{issued}"), "token_type": "bearer",
            "refresh_token": format!("refresh-{issued}"), "expires_in": self.lifetime_seconds,
        });
        (200, answer.to_string())
    }
}

/// Decodes the parameters of a form or a query.
fn parameters(text: &str) -> HashMap<String, String> {
    let decode = |text: &str| {
        let mut parts = text.split('%');
        let mut bytes = parts
            .next()
            .unwrap_or_default()
            .replace('+', " ")
            .into_bytes();
        for part in parts {
            bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
            bytes.extend(part[2..].replace('+', " ").bytes());
        }
        String::from_utf8(bytes).unwrap()
    };
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| (decode(name), decode(value)))
        .collect()
}

/// Starts `models login corp`, and returns the URL that it prints.
fn start_login(workspace: &ModelsWorkspace) -> (Child, BufReader<ChildStdout>, String) {
    let mut command = workspace.command(&["models", "login", "corp"]);
    let mut child = command.stdin(Stdio::null()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut url = String::new();
    output.read_line(&mut url).unwrap();
    (child, output, url.trim().to_owned())
}

/// Returns from the login as a browser does.
fn visit(redirect: &str, query: &str) -> String {
    let rest = redirect.strip_prefix("http://").unwrap();
    let (authority, path) = rest.split_once('/').unwrap();
    let mut stream = TcpStream::connect(authority).unwrap();
    write!(stream, "GET /{path}?{query} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

fn test_model(workspace: &ModelsWorkspace) -> ModelsOutput {
    workspace.run(&["test"], &[])
}

#[test]
fn a_login_with_a_device_code_authorizes_requests() {
    let server = AuthServer::start();
    server.change(|state| state.pending_polls = 1);
    let workspace = server.workspace();
    let seen = test_model(&workspace);
    assert_eq!(
        (seen.status, seen.err.as_str()),
        (
            2,
            "error: you are not logged in to provider `corp`\n\
             hint: run `selvedge models login corp`\n"
        )
    );
    let listed = workspace.run(&["list", "--provider", "corp"], &[]);
    assert!(listed.out.contains("not logged in\n"), "{listed:?}");

    let mut command = workspace.command(&["models", "login", "corp", "--device"]);
    let seen = command_output(command.stdin(Stdio::null()).spawn().unwrap());
    let file = workspace.0.path().join("credentials.json");
    let shown = file.display();
    assert_eq!(
        (seen.status, seen.out.as_str(), seen.err.as_str()),
        (
            0,
            format!("{}/activate\n", server.address).as_str(),
            format!(
                "note: no system keyring is running; the login will be stored in {shown}\n\
                 open this URL to log in to corp, and enter the code WDJB-MJHT:\n\
                 logged in to corp; the login is stored in {shown}\n"
            )
            .as_str()
        )
    );
    let device = "urn:ietf:params:oauth:grant-type:device_code";
    assert_eq!(server.grants(), [device, device]);
    assert_eq!(test_model(&workspace).status, 0);
    let listed = workspace.run(&["list", "--provider", "corp"], &[]);
    let place = format!("2 models, key from the login in {shown}\n");
    assert!(listed.out.contains(&place), "{listed:?}");

    let seen = workspace.run(&["logout", "corp"], &[]);
    assert_eq!(
        seen.err,
        format!("deleted the login to corp from {shown}\n")
    );
    assert_eq!(test_model(&workspace).status, 2);
}

#[test]
fn a_login_in_the_browser_uses_pkce() {
    let server = AuthServer::start();
    let workspace = server.workspace();
    let (child, mut output, url) = start_login(&workspace);
    let (page, query) = url.split_once('?').unwrap();
    assert_eq!(page, format!("{}/authorize", server.address));
    let asked = parameters(query);
    assert_eq!(
        [
            "response_type",
            "client_id",
            "scope",
            "code_challenge_method"
        ]
        .map(|name| &*asked[name]),
        ["code", "selvedge-test", "models offline", "S256"]
    );
    server.change(|state| state.code_challenge = asked["code_challenge"].clone());
    // Other requests to the port do not end the login.
    let redirect = &asked["redirect_uri"];
    let other = redirect.replace("/callback", "/favicon.ico");
    assert!(visit(&other, "x=1").starts_with("HTTP/1.1 404"));
    for query in ["code=guessed&state=guessed", "error=access_denied"] {
        let page = visit(redirect, query);
        assert!(page.starts_with("HTTP/1.1 404"), "{page}");
    }
    let state = &asked["state"];
    let page = visit(redirect, &format!("code=the-code&state={state}"));
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    assert!(!page.contains("logged in"), "it is not known yet: {page}");
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    let seen = command_output(child);
    assert_eq!((seen.status, rest.as_str()), (0, ""), "{seen:?}");
    assert_eq!(server.grants(), ["authorization_code"]);
    assert_eq!(test_model(&workspace).status, 0);
}

#[test]
fn a_login_that_fails_says_why_and_stores_nothing() {
    let server = AuthServer::start();
    let workspace = server.workspace();
    let fails = |query: &dyn Fn(&str) -> String, message: &str| {
        let (child, _output, url) = start_login(&workspace);
        let asked = parameters(url.split_once('?').unwrap().1);
        visit(&asked["redirect_uri"], &query(&asked["state"]));
        let seen = command_output(child);
        let error = format!("error: cannot log in to provider `corp`: {message}\n");
        assert!(
            seen.status == 2 && seen.err.contains(&error) && seen.err.contains("\nhint: run `"),
            "{seen:?}"
        );
    };
    fails(
        &|state| format!("error=access_denied&error_description=No+entry&state={state}"),
        "the authorization server refused the login: access_denied: No entry",
    );
    // The challenge of another login: the server compares it with the verifier.
    server.change(|state| state.code_challenge = "other".to_owned());
    fails(
        &|state| format!("code=the-code&state={state}"),
        "the authorization server refused the login: invalid_grant",
    );
    server.change(|state| state.is_denied = true);
    let mut command = workspace.command(&["models", "login", "corp", "--device"]);
    let seen = command_output(command.stdin(Stdio::null()).spawn().unwrap());
    let error = "error: cannot log in to provider `corp`: the authorization server refused the \
                 login: access was denied\n";
    assert!(seen.status == 2 && seen.err.contains(error), "{seen:?}");
    assert!(!workspace.0.path().join("credentials.json").exists());
    // A provider without OAuth has no such login.
    let seen = workspace.run(&["login", "openai", "--device"], &[]);
    assert!(
        seen.err
            .starts_with("error: provider `openai` has no OAuth login\n"),
        "{seen:?}"
    );
}

#[test]
fn tokens_are_refreshed_when_they_expire_and_when_they_are_rejected() {
    let server = AuthServer::start();
    // Every token expires before the next request.
    server.change(|state| state.lifetime_seconds = Some(5));
    let workspace = server.logged_in();
    for _ in 0..2 {
        let seen = test_model(&workspace);
        assert_eq!(seen.status, 0, "{seen:?}");
    }
    assert_eq!(server.grants()[1..], ["refresh_token", "refresh_token"]);
    // Processes that refresh at the same time take turns, because a refresh token is valid once.
    let mut command = workspace.command(&["models", "test"]);
    let command = command.stdin(Stdio::null());
    let running: Vec<Child> = (0..4).map(|_| command.spawn().unwrap()).collect();
    for child in running {
        let seen = command_output(child);
        assert_eq!(seen.status, 0, "{seen:?}");
    }
    // A token that should be valid is rejected.
    let server = AuthServer::start();
    let workspace = server.logged_in();
    let stored = workspace.0.path().join("credentials.json");
    let text = std::fs::read_to_string(&stored).unwrap();
    std::fs::write(&stored, text.replace("access-1", "access-0")).unwrap();
    assert_eq!(test_model(&workspace).status, 0);
    assert_eq!(server.grants()[1..], ["refresh_token"]);
    // The login has ended.
    server.change(|state| state.is_revoked = true);
    let seen = test_model(&workspace);
    assert_eq!(seen.status, 1, "{seen:?}");
    assert!(
        seen.err.contains(
            "cannot refresh the login of provider `corp`: the authorization server refused the \
             login: invalid_grant"
        ) && seen
            .err
            .ends_with("\nhint: run `selvedge models login corp`\n"),
        "{}",
        seen.err
    );
    assert!(!format!("{seen:?}").contains("refresh-"), "{seen:?}");
}

/// Waits until a condition holds.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The server has replaced the refresh token when the command does not wait for it any more.
#[test]
fn a_refresh_that_a_command_does_not_wait_for_is_stored() {
    let server = AuthServer::start();
    server.change(|state| state.lifetime_seconds = Some(5));
    let workspace = server.logged_in();
    let (release, held) = mpsc::channel();
    server.change(|state| state.held_refreshes = Some(held));
    let mut command = workspace.command(&["models", "list", "--provider", "corp"]);
    let mut child = command.stdin(Stdio::null()).spawn().unwrap();
    // The command prints that the server did not answer in time.
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    drop(release);
    let seen = command_output(child);
    assert!(
        seen.err
            .contains("note: waiting for the authorization server"),
        "{line}{seen:?}"
    );
    assert_eq!(test_model(&workspace).status, 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_logout_during_a_refresh_is_not_undone_by_it() {
    let server = AuthServer::start();
    server.change(|state| state.lifetime_seconds = Some(5));
    let workspace = server.logged_in();
    let (release, held) = mpsc::channel();
    server.change(|state| state.held_refreshes = Some(held));
    let start = |args: &[&str]| {
        let mut command = workspace.command(args);
        command.stdin(Stdio::null()).spawn().unwrap()
    };
    let refreshing = start(&["models", "test"]);
    wait_until("no refresh", || {
        server.grants().last().map(String::as_str) == Some("refresh_token")
    });
    let mut logout = start(&["models", "logout", "corp"]);
    // It ends, or waits for the lock.
    let files = format!("/proc/{}/fd", logout.id());
    let waits = || {
        let files = std::fs::read_dir(&files).into_iter().flatten().flatten();
        let mut targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        targets.any(|target| target.ends_with("logins.lock"))
    };
    let logout = std::cell::RefCell::new(&mut logout);
    wait_until("no lock", || {
        waits() || logout.borrow_mut().try_wait().unwrap().is_some()
    });
    drop(release);
    command_output(refreshing);
    logout.into_inner().wait().unwrap();
    let seen = test_model(&workspace);
    assert!(
        seen.err
            .starts_with("error: you are not logged in to provider `corp`\n"),
        "{seen:?}"
    );
}
