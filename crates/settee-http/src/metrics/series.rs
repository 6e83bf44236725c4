//! Encodes one series with a constant value.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

pub(super) fn counter<N>(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: N) -> fmt::Result
where
    ConstCounter<N>: EncodeMetric,
{
    let counter = ConstCounter::new(value);
    counter.encode(out.encode_descriptor(name, help, None, counter.metric_type())?)
}

pub(super) fn gauge<N>(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: N) -> fmt::Result
where
    ConstGauge<N>: EncodeMetric,
{
    let gauge = ConstGauge::new(value);
    gauge.encode(out.encode_descriptor(name, help, None, gauge.metric_type())?)
}

/// A gauge that is always 1, because the older format has no info metrics.
pub(super) fn info(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: (&'static str, &'static str),
) -> fmt::Result {
    let one = ConstGauge::new(1_u64);
    let mut metric = out.encode_descriptor(name, help, None, one.metric_type())?;
    let labels = [label];
    one.encode(metric.encode_family(&labels)?)
}
