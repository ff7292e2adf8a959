//! `--log`: what happens, as lines of JSON in a file: spans of turns, requests, scripts and calls, and counters.

use std::fs::File;
use std::path::Path;
use std::sync::Mutex;

use anyhow::Result;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::problem::Problem;

/// Writes to this file from now on, behind what stands there.
pub(crate) fn begin(file: &Path) -> Result<()> {
    let opened = File::options().create(true).append(true).open(file);
    let opened = opened.map_err(|error| {
        Problem::new(format!("cannot write {}: {error}", file.display())).hint("--log takes a file to write to")
    })?;
    // Only what is ours: other crates tell more than anybody wants to know, and not all of it discreetly.
    let ours = Targets::new().with_target("selvedge", LevelFilter::DEBUG);
    let lines =
        tracing_subscriber::fmt::layer().json().with_span_events(FmtSpan::CLOSE).with_writer(Mutex::new(opened));
    tracing_subscriber::registry().with(ours).with(lines).init();
    Ok(())
}
