//! Counters of the server, as text for Prometheus. Written by hand: the format is a line per
//! number, and a client library would bring registries and threads that are not needed.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number of things that exist now.
#[derive(Debug, Default, Clone)]
pub(crate) struct Gauge(Arc<AtomicU64>);

/// One of the things that a [`Gauge`] counts.
#[derive(Debug)]
pub(crate) struct GaugeGuard(Arc<AtomicU64>);

impl Gauge {
    /// Counts one more, until the guard is dropped.
    pub(crate) fn enter(&self) -> GaugeGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        GaugeGuard(self.0.clone())
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The numbers of a server.
#[derive(Debug, Default)]
pub(crate) struct ServerMetrics {
    /// Responses by the first digit of their status.
    responses: [Counter; 6],
    pub(crate) request_microseconds: Counter,
    pub(crate) open_streams: Gauge,
    pub(crate) running_turns: Gauge,
    pub(crate) pending_approvals: Gauge,
    pub(crate) turns_ended: Counter,
    pub(crate) events_stored: Counter,
}

impl ServerMetrics {
    pub(crate) fn count_response(&self, status: u16) {
        self.responses[usize::from(status / 100).min(5)].add(1);
    }

    /// Returns all numbers in the text format of Prometheus.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        let mut write = |name: &str, kind: &str, help: &str, values: &[(String, u64)]| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in values {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let plain = |value: u64| [(String::new(), value)];
        let by_class = self.responses.iter().enumerate().skip(1);
        let by_class: Vec<(String, u64)> = by_class
            .map(|(class, count)| (format!("{{status=\"{class}xx\"}}"), count.get()))
            .collect();
        write(
            "selvedge_http_responses_total",
            "counter",
            "Responses by status.",
            &by_class,
        );
        write(
            "selvedge_http_request_microseconds_total",
            "counter",
            "Time until the head of the response, of all requests.",
            &plain(self.request_microseconds.get()),
        );
        let gauges = [
            (
                "selvedge_open_streams",
                "Open event streams.",
                &self.open_streams,
            ),
            (
                "selvedge_running_turns",
                "Turns that run.",
                &self.running_turns,
            ),
            (
                "selvedge_pending_approvals",
                "Approval requests that wait for a decision.",
                &self.pending_approvals,
            ),
        ];
        for (name, help, gauge) in gauges {
            write(name, "gauge", help, &plain(gauge.get()));
        }
        let counters = [
            (
                "selvedge_turns_total",
                "Turns that ended.",
                &self.turns_ended,
            ),
            (
                "selvedge_session_events_total",
                "Events of sessions that were stored.",
                &self.events_stored,
            ),
        ];
        for (name, help, counter) in counters {
            write(name, "counter", help, &plain(counter.get()));
        }
        text
    }
}
