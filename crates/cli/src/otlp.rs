//! Spans and counters for a collector, by OTLP over HTTP, where the environment names one
//! (`OTEL_EXPORTER_OTLP_ENDPOINT` and the other variables OpenTelemetry has for it).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter, MeterProvider};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{MetricExporter, Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::problem::Problem;

/// Variables that name a collector.
const NAMED_BY: [&str; 3] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
];
/// What counters are told under; see `selvedge_agent`.
const METRICS: &str = "selvedge::metrics";

/// Somebody who collects. What is left is sent when this is dropped.
pub(crate) struct Collector {
    spans: SdkTracerProvider,
    metrics: SdkMeterProvider,
}

impl Collector {
    /// The one the environment names.
    pub(crate) fn from_environment() -> Result<Option<Self>> {
        if NAMED_BY
            .iter()
            .all(|name| std::env::var_os(name).is_none_or(|value| value.is_empty()))
        {
            return Ok(None);
        }
        let wrong = |error: &dyn std::fmt::Display| {
            Problem::new(format!("spans cannot be sent: {error}"))
                .hint(format!("{} names a collector", NAMED_BY[0]))
        };
        // There is one already where somebody else was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let spans = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpJson)
            .build();
        let metrics = MetricExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpJson)
            .build();
        let spans = spans.map_err(|error| wrong(&error))?;
        let metrics = metrics.map_err(|error| wrong(&error))?;
        let us = Resource::builder().with_service_name("selvedge").build();
        Ok(Some(Self {
            spans: SdkTracerProvider::builder()
                .with_batch_exporter(spans)
                .with_resource(us.clone())
                .build(),
            metrics: SdkMeterProvider::builder()
                .with_periodic_exporter(metrics)
                .with_resource(us)
                .build(),
        }))
    }

    pub(crate) fn spans<S: Subscriber + for<'a> LookupSpan<'a>>(
        &self,
    ) -> OpenTelemetryLayer<S, SdkTracer> {
        tracing_opentelemetry::layer().with_tracer(self.spans.tracer("selvedge"))
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            meter: self.metrics.meter("selvedge"),
            known: Mutex::default(),
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // A collector that is not there is no failure of what was done.
        let _ = self.spans.shutdown();
        let _ = self.metrics.shutdown();
    }
}

/// Turns the events that count into instruments.
pub(crate) struct Counters {
    meter: Meter,
    known: Mutex<HashMap<String, Instrument>>,
}

#[derive(Clone)]
enum Instrument {
    Counter(Counter<u64>),
    Times(Histogram<f64>),
}

impl<S: Subscriber> Layer<S> for Counters {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() != METRICS {
            return;
        }
        let mut told = Told::default();
        event.record(&mut told);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let instrument = known.entry(told.metric.clone()).or_insert_with(|| {
            let name = format!("selvedge.{}", told.metric);
            match told.metric.ends_with("_ms") {
                true => Instrument::Times(self.meter.f64_histogram(name).with_unit("ms").build()),
                false => Instrument::Counter(self.meter.u64_counter(name).build()),
            }
        });
        match instrument {
            Instrument::Counter(counter) => counter.add(told.value as u64, &told.labels),
            Instrument::Times(times) => times.record(told.value, &told.labels),
        }
    }
}

#[derive(Default)]
struct Told {
    metric: String,
    value: f64,
    labels: Vec<KeyValue>,
}

impl Visit for Told {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "metric" => self.metric = value.to_owned(),
            name => self.labels.push(KeyValue::new(name, value.to_owned())),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.record_f64(field, value as f64);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        match field.name() {
            "value" => self.value = value,
            name => self.labels.push(KeyValue::new(name, value)),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
