//! Exports spans and metrics by OTLP over HTTP to the collector that the environment names, with
//! OpenTelemetry's variables such as `OTEL_EXPORTER_OTLP_ENDPOINT`.

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

/// The environment variables that name a collector.
const NAMED_BY: [&str; 3] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
];
/// The tracing target of metric events, which `selvedge_agent` emits.
const METRICS: &str = "selvedge::metrics";

/// The exporters for spans and metrics. Dropping it sends what remains.
pub(crate) struct Collector {
    spans: SdkTracerProvider,
    metrics: SdkMeterProvider,
}

impl Collector {
    /// Creates the exporters, or returns `None` if the environment names no collector.
    pub(crate) fn from_environment() -> Result<Option<Self>> {
        if NAMED_BY
            .iter()
            .all(|name| std::env::var_os(name).is_none_or(|value| value.is_empty()))
        {
            return Ok(None);
        }
        let problem = |error: &dyn std::fmt::Display| {
            Problem::new(format!("cannot set up the OTLP exporter: {error}"))
                .hint(format!("set {} to the collector's URL", NAMED_BY[0]))
        };
        // Fails if a provider is already installed, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let spans = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpJson)
            .build();
        let metrics = MetricExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpJson)
            .build();
        let spans = spans.map_err(|error| problem(&error))?;
        let metrics = metrics.map_err(|error| problem(&error))?;
        let resource = Resource::builder().with_service_name("selvedge").build();
        Ok(Some(Self {
            spans: SdkTracerProvider::builder()
                .with_batch_exporter(spans)
                .with_resource(resource.clone())
                .build(),
            metrics: SdkMeterProvider::builder()
                .with_periodic_exporter(metrics)
                .with_resource(resource)
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
        // Errors are ignored: a missing collector must not make the command fail.
        let _ = self.spans.shutdown();
        let _ = self.metrics.shutdown();
    }
}

/// A tracing layer that records metric events in OpenTelemetry instruments.
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
        let mut fields = Told::default();
        event.record(&mut fields);
        let mut instruments = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let instrument = instruments.entry(fields.metric.clone()).or_insert_with(|| {
            let name = format!("selvedge.{}", fields.metric);
            match fields.metric.ends_with("_ms") {
                true => Instrument::Times(self.meter.f64_histogram(name).with_unit("ms").build()),
                false => Instrument::Counter(self.meter.u64_counter(name).build()),
            }
        });
        match instrument {
            Instrument::Counter(counter) => counter.add(fields.value as u64, &fields.labels),
            Instrument::Times(histogram) => histogram.record(fields.value, &fields.labels),
        }
    }
}

/// The fields of a metric event. All but `metric` and `value` are labels.
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
