//! What happens, for whoever watches over it: spans of turns, requests, scripts and calls, and counters. `--log` writes
//! them as lines of JSON to a file; the feature `otlp` sends them to a collector.

use std::fs::File;
use std::path::Path;
use std::sync::Mutex;

use anyhow::Result;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::problem::Problem;

#[cfg(feature = "otlp")]
type Collector = crate::otlp::Collector;
/// This build has none.
#[cfg(not(feature = "otlp"))]
struct Collector;

/// Whatever has to be sent is sent when this is dropped.
#[must_use]
pub(crate) struct Watched {
    _collector: Option<Collector>,
}

/// Tells what happens from now on: to this file, behind what stands there, and to a collector where there is one.
pub(crate) fn begin(file: Option<&Path>) -> Result<Watched> {
    let file = file.map(open).transpose()?;
    let lines = file.map(|file| {
        tracing_subscriber::fmt::layer()
            .json()
            .with_span_events(FmtSpan::CLOSE)
            .with_writer(Mutex::new(file))
    });
    // Only what is ours: other crates tell more than anybody wants to know, and not all of it discreetly.
    let ours = Targets::new().with_target("selvedge", LevelFilter::DEBUG);
    #[cfg(feature = "otlp")]
    {
        let collector = Collector::from_environment()?;
        if lines.is_some() || collector.is_some() {
            let (spans, counters) = (
                collector.as_ref().map(Collector::spans),
                collector.as_ref().map(Collector::counters),
            );
            tracing_subscriber::registry()
                .with(ours)
                .with(lines)
                .with(spans)
                .with(counters)
                .init();
        }
        Ok(Watched {
            _collector: collector,
        })
    }
    #[cfg(not(feature = "otlp"))]
    {
        if lines.is_some() {
            tracing_subscriber::registry().with(ours).with(lines).init();
        }
        Ok(Watched { _collector: None })
    }
}

fn open(file: &Path) -> Result<File> {
    let mut options = File::options();
    options.create(true).append(true);
    // Which tools ran on what is nobody else's.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let opened = options.open(file);
    Ok(opened.map_err(|error| {
        Problem::new(format!("cannot write {}: {error}", file.display()))
            .hint("--log takes a file to write to")
    })?)
}
