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
const ENDPOINT_VARIABLES: [&str; 3] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
];
/// The tracing target of metric events.
const METRICS_TARGET: &str = "selvedge::metrics";

/// The exporters for spans and metrics. Dropping it sends what remains.
pub(crate) struct OtlpExporter {
    tracer_provider: SdkTracerProvider,
    meter_provider: SdkMeterProvider,
}

impl OtlpExporter {
    /// Creates the exporters, or returns `None` if the environment names no collector.
    pub(crate) fn from_environment() -> Result<Option<Self>> {
        if ENDPOINT_VARIABLES
            .iter()
            .all(|name| std::env::var_os(name).is_none_or(|value| value.is_empty()))
        {
            return Ok(None);
        }
        let problem = |error: &dyn std::fmt::Display| {
            Problem::new(format!("cannot set up the OTLP exporter: {error}")).hint(format!(
                "set {} to the collector's URL",
                ENDPOINT_VARIABLES[0]
            ))
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
            tracer_provider: SdkTracerProvider::builder()
                .with_batch_exporter(spans)
                .with_resource(resource.clone())
                .build(),
            meter_provider: SdkMeterProvider::builder()
                .with_periodic_exporter(metrics)
                .with_resource(resource)
                .build(),
        }))
    }

    pub(crate) fn span_layer<S: Subscriber + for<'a> LookupSpan<'a>>(
        &self,
    ) -> OpenTelemetryLayer<S, SdkTracer> {
        tracing_opentelemetry::layer().with_tracer(self.tracer_provider.tracer("selvedge"))
    }

    pub(crate) fn metrics_layer(&self) -> MetricsLayer {
        MetricsLayer {
            meter: self.meter_provider.meter("selvedge"),
            instruments: Mutex::default(),
        }
    }
}

impl Drop for OtlpExporter {
    fn drop(&mut self) {
        // Errors are ignored: a missing collector must not make the command fail.
        let _ = self.tracer_provider.shutdown();
        let _ = self.meter_provider.shutdown();
    }
}

/// A tracing layer that records metric events in OpenTelemetry instruments.
pub(crate) struct MetricsLayer {
    meter: Meter,
    instruments: Mutex<HashMap<String, MetricInstrument>>,
}

#[derive(Clone)]
enum MetricInstrument {
    Counter(Counter<u64>),
    Histogram(Histogram<f64>),
}

impl<S: Subscriber> Layer<S> for MetricsLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() != METRICS_TARGET {
            return;
        }
        let mut fields = MetricFields::default();
        event.record(&mut fields);
        let mut instruments = self
            .instruments
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let instrument = instruments.entry(fields.metric.clone()).or_insert_with(|| {
            let name = format!("selvedge.{}", fields.metric);
            match fields.metric.ends_with("_ms") {
                true => MetricInstrument::Histogram(
                    self.meter.f64_histogram(name).with_unit("ms").build(),
                ),
                false => MetricInstrument::Counter(self.meter.u64_counter(name).build()),
            }
        });
        match instrument {
            MetricInstrument::Counter(counter) => counter.add(fields.value as u64, &fields.labels),
            MetricInstrument::Histogram(histogram) => {
                histogram.record(fields.value, &fields.labels)
            }
        }
    }
}

/// The fields of a metric event. All but `metric` and `value` are labels.
#[derive(Default)]
struct MetricFields {
    metric: String,
    value: f64,
    labels: Vec<KeyValue>,
}

impl Visit for MetricFields {
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
