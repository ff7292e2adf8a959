//! Sets up tracing: spans of turns, requests, scripts and calls, and metrics. `--log` appends them
//! to a file as lines of JSON, in which hidden characters are escaped; with the feature `otlp` they
//! are sent to a collector.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::output::JsonLinesWriter;
use crate::problem::Problem;

#[cfg(feature = "otlp")]
type TraceExporter = crate::otlp::OtlpExporter;
/// A placeholder that is never created, for builds without the feature `otlp`.
#[cfg(not(feature = "otlp"))]
struct TraceExporter;

/// A guard that sends the remaining spans and metrics when dropped.
#[must_use]
pub(crate) struct TracingGuard {
    _exporter: Option<TraceExporter>,
}

/// Starts tracing to the end of this file, and to a collector if the environment names one.
pub(crate) fn start_tracing(file: Option<&Path>) -> Result<TracingGuard> {
    let file = file.map(LogFile::open).transpose()?;
    let lines = file.map(|file| {
        tracing_subscriber::fmt::layer()
            .json()
            .with_span_events(FmtSpan::CLOSE)
            .with_writer(Mutex::new(JsonLinesWriter::escaping(file)))
    });
    // Only Selvedge's own targets: other crates log too much, and may log secrets.
    let own_targets = Targets::new().with_target("selvedge", LevelFilter::DEBUG);
    #[cfg(feature = "otlp")]
    {
        let collector = TraceExporter::from_environment()?;
        if lines.is_some() || collector.is_some() {
            let (spans, counters) = (
                collector.as_ref().map(TraceExporter::span_layer),
                collector.as_ref().map(TraceExporter::metrics_layer),
            );
            tracing_subscriber::registry()
                .with(own_targets)
                .with(lines)
                .with(spans)
                .with(counters)
                .init();
        }
        Ok(TracingGuard {
            _exporter: collector,
        })
    }
    #[cfg(not(feature = "otlp"))]
    {
        if lines.is_some() {
            tracing_subscriber::registry()
                .with(own_targets)
                .with(lines)
                .init();
        }
        Ok(TracingGuard { _exporter: None })
    }
}

/// Whether the log is to be opened again before the next line.
static REOPEN_LOG: AtomicBool = AtomicBool::new(false);

/// Opens the log again before the next line is written, because another program may have renamed
/// the file.
#[cfg_attr(not(unix), allow(dead_code))]
pub(crate) fn reopen_log() {
    REOPEN_LOG.store(true, Ordering::Relaxed);
}

/// The file of the log.
struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    fn open(path: &Path) -> Result<Self> {
        let opened = open_log_file(path);
        let file = opened.map_err(|error| {
            Problem::new(format!("cannot write {}: {error}", path.display()))
                .hint("pass --log a file in a folder that exists and is writable")
        })?;
        // Later, the current folder may be another one.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self { path, file })
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // If the file cannot be opened, the log continues in the one that is open.
        if REOPEN_LOG.swap(false, Ordering::Relaxed)
            && let Ok(file) = open_log_file(&self.path)
        {
            self.file = file;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn open_log_file(file: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).append(true);
    // The log names tools and their arguments, so only the user may read it.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file)
}
