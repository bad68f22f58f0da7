//! Metrics, pushed by OTLP over gRPC. Off unless `telemetry.otlp.metrics` is set.
//!
//! The same series as at `/metrics`, with the same names; counters are cumulative sums since the start
//! of the process. Decisions do nothing for it: a background thread reads the counters.
//!
//! **Source:** `OpenTelemetry` Protocol 1.x, metrics; `OpenTelemetry` specification, "Prometheus and
//! `OpenMetrics` Compatibility".

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::common::v1::{AnyValue as Any, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{
    self, LabelPair, MetricFamily, MetricType,
};
use rlaas_core::clock::{Clock, Timestamp};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::metadata::MetadataMap;
use tonic::transport::{self, Channel};
use tonic::{Request, Status};
use tracing::{info, warn};

use super::metrics::Metrics;
use super::otlp::{CollectorSettings, EXPORT_TIMEOUT, resource};

/// Maximum time of the last push.
const LAST_PUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Pushes metrics to a collector.
#[derive(Debug)]
pub struct MetricsPush {
    metrics: Arc<Metrics>,
    client: MetricsServiceClient<Channel>,
    headers: MetadataMap,
    endpoint: String,
    interval: Duration,
    resource: Resource,
    clock: Clock,
    started_at: Timestamp,
    is_failing: bool,
}

impl MetricsPush {
    /// Prepares pushes of `metrics` as those of `instance`, one at each `interval`.
    ///
    /// # Errors
    ///
    /// If the TLS of the connection can't be set up.
    pub fn new(
        collector: &CollectorSettings,
        interval: Duration,
        instance: &str,
        metrics: Arc<Metrics>,
    ) -> Result<Self, transport::Error> {
        let attributes = ResourceAttributesWithSchema::from(&resource(instance)).attributes.0;
        let clock = Clock::default();
        Ok(Self {
            metrics,
            client: MetricsServiceClient::new(collector.channel()?),
            headers: collector.headers.metadata(),
            endpoint: collector.endpoint.to_string(),
            interval,
            resource: Resource { attributes, ..Resource::default() },
            started_at: clock.now(),
            clock,
            is_failing: false,
        })
    }

    /// Pushes again and again. Never returns.
    pub async fn run(&mut self) {
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is at once, when there is nothing to tell.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            self.push(EXPORT_TIMEOUT).await;
        }
    }

    /// Pushes what was counted since the last push. Takes a second at most.
    pub async fn finish(mut self) {
        self.push(LAST_PUSH_TIMEOUT).await;
    }

    /// Logs the first failure, and the first success after it.
    async fn push(&mut self, within: Duration) {
        let metrics = Arc::clone(&self.metrics);
        let times = PointTimes { start: nanos(self.started_at), now: nanos(self.clock.now()) };
        // It takes long with many rules.
        let collected = spawn_blocking(move || converted(metrics.collect(), times)).await;
        // It is cancelled when the process ends.
        let Ok(metrics) = collected else { return };
        let mut request = Request::new(self.request(metrics));
        *request.metadata_mut() = self.headers.clone();
        let exported = timeout(within, self.client.export(request)).await;
        let exported = exported.unwrap_or_else(|_| Err(Status::deadline_exceeded("timed out")));
        let refused = exported.map(|response| response.into_inner().partial_success);
        let error = match refused {
            Ok(Some(partial)) if partial.rejected_data_points > 0 => Some(format!(
                "{} data points were rejected: {}",
                partial.rejected_data_points, partial.error_message
            )),
            Ok(_) => None,
            Err(status) => Some(status.to_string()),
        };
        let endpoint = &self.endpoint;
        match (&error, self.is_failing) {
            (Some(error), false) => warn!(endpoint, ?error, "OTLP export of metrics failed"),
            (None, true) => info!(endpoint, "OTLP export of metrics succeeded again"),
            _ => {}
        }
        self.is_failing = error.is_some();
    }

    fn request(&self, metrics: Vec<Metric>) -> ExportMetricsServiceRequest {
        let scope = InstrumentationScope { name: "rlaas".to_owned(), ..Default::default() };
        let scope_metrics = ScopeMetrics { scope: Some(scope), metrics, schema_url: String::new() };
        let resource_metrics = ResourceMetrics {
            resource: Some(self.resource.clone()),
            scope_metrics: vec![scope_metrics],
            schema_url: String::new(),
        };
        ExportMetricsServiceRequest { resource_metrics: vec![resource_metrics] }
    }
}

/// Time from which counters count, and time of a point, in nanoseconds since the epoch.
#[derive(Clone, Copy, Debug)]
struct PointTimes {
    start: u64,
    now: u64,
}

fn nanos(time: Timestamp) -> u64 {
    time.as_micros().saturating_mul(1_000)
}

/// Converts metrics to those of OTLP.
fn converted(families: Vec<MetricFamily>, times: PointTimes) -> Vec<Metric> {
    let metric = |family: MetricFamily| {
        let data = data(&family, times)?;
        let MetricFamily { name, help, unit, .. } = family;
        Some(Metric { name, description: help, unit, metadata: Vec::new(), data: Some(data) })
    };
    families.into_iter().filter_map(metric).collect()
}

/// Returns the data of a family; `None` if it has no series, or is of a kind that the service has not.
fn data(family: &MetricFamily, times: PointTimes) -> Option<Data> {
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    let series = || family.metric.iter();
    match family.r#type() {
        MetricType::Counter => {
            let points =
                series().filter_map(|metric| Some((metric, metric.counter.as_ref()?.value)));
            let data_points = numbers(points, times.start, times.now)?;
            Some(Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic: true }))
        }
        MetricType::Gauge => {
            let points = series().filter_map(|metric| Some((metric, metric.gauge.as_ref()?.value)));
            Some(Data::Gauge(Gauge { data_points: numbers(points, 0, times.now)? }))
        }
        MetricType::Untyped => {
            let points =
                series().filter_map(|metric| Some((metric, metric.untyped.as_ref()?.value)));
            Some(Data::Gauge(Gauge { data_points: numbers(points, 0, times.now)? }))
        }
        MetricType::Histogram => {
            let points = series().filter_map(|metric| Some((metric, metric.histogram.as_ref()?)));
            let points = points.map(|(metric, value)| histogram(&metric.label, value, times));
            let data_points: Vec<_> = points.collect();
            let histogram = Histogram { data_points, aggregation_temporality };
            (!histogram.data_points.is_empty()).then_some(Data::Histogram(histogram))
        }
        MetricType::Summary | MetricType::GaugeHistogram => None,
    }
}

/// Returns points with these values; `None` if there are none.
fn numbers<'a>(
    values: impl Iterator<Item = (&'a prometheus_data_model::Metric, f64)>,
    start: u64,
    now: u64,
) -> Option<Vec<NumberDataPoint>> {
    let points = values.map(|(metric, value)| NumberDataPoint {
        attributes: attributes(&metric.label),
        start_time_unix_nano: start,
        time_unix_nano: now,
        value: Some(Value::AsDouble(value)),
        ..NumberDataPoint::default()
    });
    Some(points.collect()).filter(|points: &Vec<_>| !points.is_empty())
}

/// Converts a histogram, whose buckets count what is in lower ones too, to one whose buckets do not.
fn histogram(
    labels: &[LabelPair],
    value: &prometheus_data_model::Histogram,
    times: PointTimes,
) -> HistogramDataPoint {
    let bounds = value.bucket.iter().map(|bucket| bucket.upper_bound);
    let explicit_bounds: Vec<f64> = bounds.filter(|bound| *bound < f64::MAX).collect();
    let counts = value.bucket.iter().map(|bucket| bucket.cumulative_count);
    let mut below = 0;
    let mut bucket_counts = Vec::with_capacity(explicit_bounds.len() + 1);
    // The last bucket has no bound.
    for count in counts.take(explicit_bounds.len()).chain([value.sample_count]) {
        bucket_counts.push(count.saturating_sub(below));
        below = count;
    }
    HistogramDataPoint {
        attributes: attributes(labels),
        start_time_unix_nano: times.start,
        time_unix_nano: times.now,
        count: bucket_counts.iter().sum(),
        sum: Some(value.sample_sum),
        bucket_counts,
        explicit_bounds,
        ..HistogramDataPoint::default()
    }
}

fn attributes(labels: &[LabelPair]) -> Vec<KeyValue> {
    let attribute = |label: &LabelPair| KeyValue {
        key: label.name.clone(),
        value: Some(Any { value: Some(AnyValue::StringValue(label.value.clone())) }),
        ..KeyValue::default()
    };
    labels.iter().map(attribute).collect()
}
