//! Attacks by web pages that take long to parse: the process must end soon after the fetch.

use std::time::Duration;

use anyhow::Result;

use crate::attempt::{Attempt, Verdict};
use crate::loopback::LoopbackServer;

/// How long a script that fetches a page may take.
const MAX_PROCESS_TIME: Duration = Duration::from_secs(45);

/// Returns one attempt per page.
pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    let numbered =
        |count: usize, item: fn(usize) -> String| (0..count).map(item).collect::<String>();
    let pages = [
        (
            "attributes",
            format!("<p{}>", numbered(900_000, |n| format!(" a{n:x}"))),
        ),
        (
            "attributes without an end",
            format!("<p{}", numbered(900_000, |n| format!(" a{n:x}"))),
        ),
        (
            "attributes with values",
            format!("<p{}>", numbered(300_000, |n| format!(" a{n:x}='>'"))),
        ),
        (
            "attributes of an end tag",
            format!("</p{}>", numbered(900_000, |n| format!("/a{n:x}"))),
        ),
        (
            "quoted attributes",
            format!("<p{}>", numbered(400_000, |n| format!("a{n:x}=\"\""))),
        ),
        ("deep nesting", "<div>".repeat(800_000)),
        ("formatting", "<b><i><u><p>".repeat(300_000)),
        ("tables", "<table><tr><td>".repeat(250_000)),
        ("links", "<a href=x>".repeat(400_000)),
        ("a comment", format!("<!--{}", "word ".repeat(800_000))),
        ("entities", "&ampa".repeat(1_000_000)),
        ("list items", "<ul><li>".repeat(500_000)),
    ];
    let attempts = pages.into_iter().map(|(name, page)| {
        Attempt::new(name, move |lab| {
            let server = LoopbackServer::page(page.clone())?;
            let config = "[sandbox_workspace_write]\nnetwork_access = true\n\
                          [web]\nallow_private_hosts = [\"127.0.0.1\"]\n";
            std::fs::write(lab.home().join("config.toml"), config)?;
            let source = format!(
                "return await tools.fetchUrl({{ urls: '{}/' }})",
                server.url()
            );
            let (item, seen) = lab.script(&source, &["--approval", "never", "--timeout", "60s"])?;
            let error = item["error"]["message"].as_str().unwrap_or_default();
            let timed_out = error.contains("no complete response within");
            let fetched = item["status"] == "completed" || timed_out;
            Ok(Verdict::held_if(
                fetched && seen.ended_cleanly() && seen.elapsed < MAX_PROCESS_TIME,
                format!("{:?}: {:.500}", seen.elapsed, seen.output()),
            ))
        })
    });
    Ok(attempts.collect())
}
