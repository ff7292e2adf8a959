//! Redaction of secrets, from two tables: `secrets.tsv` and `ordinary.txt`. Also secret environment
//! variables, and the time that redaction takes.
#![allow(clippy::unwrap_used, missing_docs)]

use std::time::{Duration, Instant};

use selvedge_text::{Redactor, is_secret_variable};
use serde_json::json;

fn unescaped(text: &str) -> String {
    let text = text.replace('¦', "").replace('␛', "\x1b");
    let text = text.replace(r"\\", "\0").replace(r"\n", "\n");
    text.replace('\0', "\\")
}

#[test]
fn secrets_are_redacted() {
    let redactor = Redactor::new([]);
    let rows = include_str!("secrets.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'));
    let mut wrong = Vec::new();
    for row in rows.clone() {
        let [label, text, expected] = row.split('\t').collect::<Vec<_>>()[..] else {
            panic!("three columns: {row}");
        };
        let redacted = redactor.redact_text(&unescaped(text)).into_owned();
        if redacted != unescaped(expected) {
            wrong.push(format!("{label}: {redacted}"));
        }
        let again = redactor.redact_text(&redacted);
        assert_eq!(again, redacted, "{label}: redacting twice changes the text");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(rows.count() >= 100);
}

#[test]
fn ordinary_text_is_not_changed() {
    let redactor = Redactor::new([]);
    let lines = include_str!("ordinary.txt").lines();
    let wrong: Vec<String> = lines
        .clone()
        .map(unescaped)
        .filter(|line| redactor.redact_text(line) != line.as_str())
        .map(|line| redactor.redact_text(&line).into_owned())
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(lines.count() >= 100);
}

#[test]
fn values_of_configured_names_are_redacted() {
    let redactor = Redactor::new(["my_field".to_owned(), String::new()]);
    for (text, expected) in [
        (
            "const x = { my_field: 'hush' }",
            "const x = { my_field: '[redacted]' }",
        ),
        ("my_field=two words", "my_field=[redacted] words"),
        (
            r#"{"body": "{\"my_field\": \"hush\"}"}"#,
            r#"{"body": "{\"my_field\": \"[redacted]\"}"}"#,
        ),
        (
            "my_field: |2\n  hush\nx: 1",
            "my_field: |2\n  [redacted]\nx: 1",
        ),
        ("not_my_field: hush", "not_my_field: hush"),
    ] {
        assert_eq!(redactor.redact_text(text), expected);
    }
}

#[test]
fn json_fields_are_redacted_by_name_unless_their_value_is_a_placeholder() {
    let redactor = Redactor::new(["my_field".to_owned()]);
    let hidden = "[redacted]";
    for (value, expected) in [
        (
            json!({"pwd": "hunter22", "dbPwd": "x", "pass": "y", "smtp_pass": "z", "user": "me"}),
            json!({
                "pwd": hidden, "dbPwd": hidden, "pass": hidden, "smtp_pass": hidden, "user": "me"
            }),
        ),
        (
            json!({"api_key": "short", "my_field": 1, "nested": [{"token": "t", "text": "plain"}]}),
            json!({
                "api_key": hidden,
                "my_field": hidden,
                "nested": [{"token": hidden, "text": "plain"}]
            }),
        ),
        (
            json!({"args": "[{\"my_field\":\"hush\"}]", "credentials": ["a", {"b": 1}]}),
            json!({"args": "[{\"my_field\":\"[redacted]\"}]", "credentials": [hidden, {"b": 1}]}),
        ),
        (
            json!({"secrets": {"db": "hunter22", "mail": [{"login": "x1"}]}}),
            json!({"secrets": {"db": hidden, "mail": [{"login": hidden}]}}),
        ),
        (
            json!([
                "sshpass",
                "-p",
                "hunter22",
                "tool",
                "--api-key",
                "k",
                "--max-tokens",
                "5"
            ]),
            json!([
                "sshpass",
                "-p",
                hidden,
                "tool",
                "--api-key",
                hidden,
                "--max-tokens",
                "5"
            ]),
        ),
        (
            json!([
                "/usr/bin/curl",
                "-u",
                "alice:Xk29qPz7",
                "https://example.com"
            ]),
            json!([
                "/usr/bin/curl",
                "-u",
                "alice:[redacted]",
                "https://example.com"
            ]),
        ),
        (
            json!(["mysql", "-u", "alice", "-palicePw93Kq7", "db"]),
            json!(["mysql", "-u", "alice", "-p[redacted]", "db"]),
        ),
        (
            json!({"password": 48213377, "accessKey": 9_120_334_455_u64}),
            json!({"password": hidden, "accessKey": hidden}),
        ),
        (
            json!({"ghp_16C7e42F292c6912E7710c838347Ae178B4a": {"ok": true}}),
            json!({hidden: {"ok": true}}),
        ),
    ] {
        assert_eq!(redactor.redact_value(&value), expected);
    }
    for plain in [
        json!(["mysql", "-p", "db"]),
        json!(["cp", "-preserve", "a"]),
        json!(["curl", "-u", "alice"]),
        json!({"pwd": "/home/me", "pass": 12}),
        json!({"tokens_used": 1200, "inputTokens": 3, "max_tokens": 10}),
        json!({"tokenizer": "o200k", "author": "me", "token": null, "secret": true}),
        json!({"password": ""}),
        json!({"properties": {"token": {"type": "string", "description": "The access token."}}}),
        json!({"token": "string", "password": "${DB_PASSWORD}", "api_key": "<your key>"}),
        json!("{ \"a\":  1 }"),
    ] {
        assert_eq!(redactor.redact_value(&plain), plain);
    }
}

#[test]
fn variables_are_secret_by_name_or_value() {
    for (name, value) in [
        ("GH_PAT", "x"),
        ("GITHUB_TOKEN", "x"),
        ("my_secret", "x"),
        ("OPENAI_API_KEY", "x"),
        ("DB_PASS", "x"),
        ("DB_PASSWORD", "x"),
        ("MYSQL_PWD", "x"),
        ("SENTRY_DSN", "x"),
        ("SSH_AUTH_SOCK", "/tmp/agent"),
        ("DATABASE_URL", "postgres://u:p@h/db"),
        ("DATABASE_URL", "postgres://user:password@localhost/db"),
        ("REMOTE", "https://me@host/r"),
        ("STORAGE", "DefaultEndpointsProtocol=https;AccountKey=abc"),
        ("JAVA_OPTS", "-Xmx1g -Ddb.password=hunter22x"),
        ("NOTE", "-----BEGIN CERTIFICATE-----"),
    ] {
        assert!(is_secret_variable(name, value), "{name}={value}");
    }
    for (name, value) in [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("HOME", "/home/me"),
        ("LANG", "en_US.UTF-8"),
        ("PWD", "/home/me/project"),
        ("TERM", "xterm-256color"),
        ("EDITOR", "vim"),
        ("CARGO_HOME", "/home/me/.cargo"),
        ("PLAIN_URL", "https://host/path@x:y"),
        ("LS_COLORS", "rs=0:di=01;34:ln=01;36:mh=00:pi=40;33"),
        ("XDG_SESSION_ID", "c2"),
        ("GIT_COMMIT", "0123456789abcdef0123456789abcdef01234567"),
        ("INVOCATION_ID", "4bf92f3577b34da6a3ce929d0e0e4736"),
    ] {
        assert!(!is_secret_variable(name, value), "{name}={value}");
    }
    // A secret in text is also one in a variable.
    let rows = include_str!("secrets.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'));
    for text in rows.filter_map(|row| row.split('\t').nth(1)) {
        assert!(is_secret_variable("INNOCENT", &unescaped(text)), "{text}");
    }
}

/// One line of a megabyte is redacted in seconds. Quadratic time would be minutes.
#[test]
fn time_is_linear_in_the_length_of_a_line() {
    let redactor = Redactor::new(["my_field".to_owned()]);
    for part in [
        "token=",
        "token: \"a ",
        "password: | ",
        "cookie:",
        "://a:",
        "xoxb-",
        "eyJaaaaaaaa.",
        "-----BEGIN PRIVATE KEY-----",
        "my_field: |\n ",
        "secret: \"é",
    ] {
        let text = part.repeat((1 << 20) / part.len());
        let start = Instant::now();
        let redacted = redactor.redact_text(&text);
        let elapsed = start.elapsed();
        assert!(elapsed < Duration::from_secs(20), "{part:?}: {elapsed:?}");
        assert!(redacted.len() <= 4 * text.len());
    }
}

/// No slice falls into the middle of a character, in any combination of markers and non-ASCII text.
#[test]
fn redaction_does_not_panic_on_any_text() {
    let redactor = Redactor::new(["né".to_owned()]);
    let parts = [
        "token",
        "password",
        "=",
        ": ",
        ":",
        "\"",
        "'",
        "\\",
        "é",
        "—",
        "🦀",
        "\n",
        " ",
        "|",
        ">",
        "<",
        "</",
        "a1B2c3D4e5F6",
        "://",
        "@",
        "--",
        "bearer ",
        "cookie: a=",
        "curl -u ",
        "mysql ",
        "-p",
        ";",
        "né",
        "sk-",
        ":AA",
        "b\"",
        "= ",
        "[",
        "\u{1b}[0m",
        "login ",
    ];
    let mut state = 7_u64;
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..9 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            text.push_str(parts[(state >> 33) as usize % parts.len()]);
        }
        let _ = redactor.redact_text(&text);
    }
}
