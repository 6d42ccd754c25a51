//! Metrics with their samples, and the text of a page.
//!
//! Most metrics are read when a page is requested, so nothing is counted twice. A page is gathered as values and written at
//! once. `prometheus-client` only writes the text; it has no registry between pages.
//!
//! **Invariant:** label values are in the source, or come from the operator, such as a member id or the name of a
//! certificate, or from the state: ids of access keys, keys of definitions. None comes from a request, and the number of
//! samples is bounded.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text},
    metrics::MetricType,
    registry::Registry,
};

use concord_consensus::histogram::{BOUNDS_SECONDS, TimeCounts};

/// The media type of a page.
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The names and values of a sample's labels.
pub type Labels = Vec<(&'static str, String)>;

/// A metric with its samples.
#[derive(Debug, Clone)]
pub struct MetricFamily {
    name: &'static str,
    help: &'static str,
    samples: Samples,
}

#[derive(Debug, Clone)]
enum Samples {
    Gauges(Vec<(Labels, f64)>),
    Counters(Vec<(Labels, f64)>),
    Histograms(Vec<(Labels, TimeCounts)>),
}

/// A value of a metric.
pub trait Number {
    /// As a floating-point number: exact up to 2⁵³.
    fn number(self) -> f64;
}

macro_rules! numbers {
    ($($kind:ty),*) => {$(
        impl Number for $kind {
            #[expect(clippy::allow_attributes, reason = "the cast of some kinds only may lose digits")]
            #[allow(clippy::cast_precision_loss, reason = "a metric is a floating-point number")]
            fn number(self) -> f64 {
                self as f64
            }
        }
    )*};
}
numbers!(u64, usize);

impl Number for u32 {
    fn number(self) -> f64 {
        f64::from(self)
    }
}

impl Number for f64 {
    fn number(self) -> f64 {
        self
    }
}

impl Number for bool {
    fn number(self) -> f64 {
        f64::from(u8::from(self))
    }
}

impl Number for std::time::Duration {
    fn number(self) -> f64 {
        self.as_secs_f64()
    }
}

impl MetricFamily {
    /// A value that goes up and down.
    #[must_use]
    pub fn gauge(name: &'static str, help: &'static str, value: impl Number) -> Self {
        Self::gauges(name, help, [(Labels::new(), value)])
    }

    /// Several gauges, or none.
    #[must_use]
    pub fn gauges<N: Number>(
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Labels, N)>,
    ) -> Self {
        let samples = samples.into_iter().map(|(labels, value)| (labels, value.number())).collect();
        Self { name, help, samples: Samples::Gauges(samples) }
    }

    /// A value that only grows while the process runs. `_total` is added to its name.
    #[must_use]
    pub fn counter(name: &'static str, help: &'static str, value: impl Number) -> Self {
        Self::counters(name, help, [(Labels::new(), value)])
    }

    /// Several counters.
    #[must_use]
    pub fn counters<N: Number>(
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Labels, N)>,
    ) -> Self {
        let samples = samples.into_iter().map(|(labels, value)| (labels, value.number())).collect();
        Self { name, help, samples: Samples::Counters(samples) }
    }

    /// Times, in seconds.
    #[must_use]
    pub fn histograms(name: &'static str, help: &'static str, samples: Vec<(Labels, TimeCounts)>) -> Self {
        Self { name, help, samples: Samples::Histograms(samples) }
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        match &self.samples {
            Samples::Gauges(samples) => {
                let mut metric = encoder.encode_descriptor(self.name, self.help, None, MetricType::Gauge)?;
                samples.iter().try_for_each(|(labels, value)| {
                    labelled(&mut metric, labels, |one| one.encode_gauge(value))
                })
            }
            Samples::Counters(samples) => {
                let mut metric =
                    encoder.encode_descriptor(self.name, self.help, None, MetricType::Counter)?;
                samples.iter().try_for_each(|(labels, value)| {
                    labelled(&mut metric, labels, |one| one.encode_counter::<NoLabelSet, _, u64>(value, None))
                })
            }
            Samples::Histograms(samples) => {
                let mut metric =
                    encoder.encode_descriptor(self.name, self.help, None, MetricType::Histogram)?;
                samples.iter().try_for_each(|(labels, counts)| {
                    let bounds = BOUNDS_SECONDS.into_iter().chain([f64::INFINITY]);
                    let buckets: Vec<(f64, u64)> = bounds.zip(counts.buckets).collect();
                    labelled(&mut metric, labels, |one| {
                        one.encode_histogram::<NoLabelSet>(
                            counts.sum.as_secs_f64(),
                            counts.count(),
                            &buckets,
                            None,
                        )
                    })
                })
            }
        }
    }
}

/// Writes a sample with its labels. Without labels it has no braces.
fn labelled(
    metric: &mut MetricEncoder<'_>,
    labels: &Labels,
    encode: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
) -> fmt::Result {
    if labels.is_empty() { encode(metric) } else { encode(&mut metric.encode_family(labels)?) }
}

/// All metrics of a page.
#[derive(Debug)]
struct MetricsPage(Vec<MetricFamily>);

impl Collector for MetricsPage {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|family| family.encode(&mut encoder))
    }
}

/// The text of a page.
#[must_use]
pub fn render(families: Vec<MetricFamily>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(MetricsPage(families)));
    let mut page = String::new();
    text::encode(&mut page, &registry).expect("a string takes whatever is written to it");
    page
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use concord_consensus::histogram::Histogram;

    #[test]
    fn a_page_has_each_metric_with_its_samples() {
        let times = Histogram::new(2);
        times.observe(Duration::from_micros(200));
        times.observe(Duration::from_secs(100));
        let label = |value: &str| vec![("part", value.to_owned())];
        let page = render(vec![
            MetricFamily::gauge("a_bytes", "Bytes of a.", 5_u64),
            MetricFamily::gauges("b", "Parts of b.", [(label("x\"y"), 0.5), (label("z"), 2.0)]),
            MetricFamily::gauges("none", "Nothing now.", Vec::<(Labels, u64)>::new()),
            MetricFamily::counter("c", "How often.", 7_u64),
            MetricFamily::histograms("d_seconds", "Times.", vec![(label("x"), times.read())]),
        ]);
        let lines: Vec<&str> = page.lines().collect();
        for expected in [
            "# HELP a_bytes Bytes of a.",
            "# TYPE a_bytes gauge",
            "a_bytes 5.0",
            "b{part=\"x\\\"y\"} 0.5",
            "# TYPE none gauge",
            "# TYPE c counter",
            "c_total 7.0",
            "d_seconds_count{part=\"x\"} 2",
            "d_seconds_bucket{le=\"0.0001\",part=\"x\"} 0",
            "d_seconds_bucket{le=\"0.00025\",part=\"x\"} 1",
            "d_seconds_bucket{le=\"10.0\",part=\"x\"} 1",
            "d_seconds_bucket{le=\"+Inf\",part=\"x\"} 2",
        ] {
            assert!(lines.contains(&expected), "{expected} is not in\n{page}");
        }
        assert!(page.ends_with("# EOF\n"), "{page}");
    }
}
