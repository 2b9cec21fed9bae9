//! Compares requests of which one in a hundred is traced with and without a collector of the spans.
//!
//! The clients send the same trace contexts in both cases, so that the difference is what tracing
//! costs the proxies. A collector in each pod receives the spans over gRPC and counts them.

use anyhow::{Context, bail};

use super::Run;
use super::load::{self, SAMPLED};
use super::metric::Metric;
use super::row::{Row, Sample};
use super::with_and_without::{Variant, compare, restart};
use super::workload::{Load, Service};
use crate::testbed::pod::{Container, CpuRole, Pod, Pods};
use crate::testbed::process::Process;
use crate::testbed::proxies::ProxySettings;
use crate::testbed::{ProxyPair, Testbed};

const COLLECTOR: Container<'_> = Container::root("collector", CpuRole::Load);
const LISTEN: &str = "127.0.0.1:4317";
/// The final dot prevents the use of the machine's search list.
const ADDRESS: (&str, &str) = ("LINKERD2_PROXY_TRACE_COLLECTOR_SVC_ADDR", "localhost.:4317");
const LOAD: Load = Load::Traced { connections: 64 };
/// A proxy exports a batch at least every five seconds: a shorter measurement may contain none.
const SECONDS: u32 = 6;
/// Each proxy reports a span of each side of a request.
const SPANS_PER_REQUEST: f64 = 4.0;

type Collectors = ProxyPair<Process>;

pub(super) fn row(run: Run<'_>) -> anyhow::Result<Row> {
    let seconds = run.plan.seconds.max(SECONDS);
    let mut collectors = None;
    compare(run, |system, variant| {
        if collectors.is_none() {
            collectors = Some(start(run.testbed, &system.pods)?);
        }
        let collectors = collectors.as_mut().context("the collectors run")?;
        let settings = ProxySettings {
            environment: match variant {
                Variant::With => vec![ADDRESS],
                Variant::Without => Vec::new(),
            },
            ..ProxySettings::default()
        };
        restart(run, system, &settings, LOAD)?;
        let before = received(collectors)?;
        let (mut sample, failed) =
            load::measure(run.testbed, system, Service::Http1, LOAD, seconds)?;
        let spans = received(collectors)? - before;
        record(&mut sample, variant, spans as f64 / f64::from(seconds))?;
        Ok((sample, failed))
    })
}

fn start(testbed: &Testbed, pods: &Pods) -> anyhow::Result<Collectors> {
    let start = |pod: &Pod| -> anyhow::Result<Process> {
        let mut command = pod.command(COLLECTOR, &testbed.programs.bench)?;
        command.args(["collector", "--listen", LISTEN]);
        let process = Process::start(&format!("{}-collector", pod.name), &mut command)?;
        process.next_event()?;
        Ok(process)
    };
    Ok(ProxyPair::new(start(&pods.client)?, start(&pods.server)?))
}

/// Returns the number of spans that both collectors have received.
fn received(collectors: &mut Collectors) -> anyhow::Result<u64> {
    let mut all = 0;
    for collector in [&mut collectors.outbound, &mut collectors.inbound] {
        collector.write_line("count")?;
        let event = collector.next_event()?;
        let spans = event["spans"].as_u64();
        all += spans.with_context(|| format!("the collector printed {event}"))?;
    }
    Ok(all)
}

/// Adds the spans of a request to a sample. Fails if spans were missing: what was not exported was
/// not paid for. Batches begin and end outside of the measurement, hence the half.
fn record(sample: &mut Sample, variant: Variant, spans_per_second: f64) -> anyhow::Result<()> {
    let rate = sample.get(&Metric::Rate).copied();
    let spans = spans_per_second / rate.context("the load has a rate")?;
    let expected = SPANS_PER_REQUEST / f64::from(SAMPLED);
    let is_complete = match variant {
        Variant::With => spans >= expected / 2.0,
        Variant::Without => spans == 0.0,
    };
    if !is_complete {
        bail!("the collectors received {spans:.4} spans per request instead of about {expected}");
    }
    if variant == Variant::With {
        sample.insert(Metric::Spans, spans);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_spans_fail_a_measurement() {
        let recorded = |variant, spans| {
            let mut sample = Sample::from([(Metric::Rate, 1000.0)]);
            record(&mut sample, variant, spans).map(|()| sample.get(&Metric::Spans).copied())
        };
        assert_eq!(recorded(Variant::With, 40.0).expect("all"), Some(0.04));
        assert_eq!(recorded(Variant::Without, 0.0).expect("none"), None);
        assert!(recorded(Variant::With, 10.0).is_err());
        assert!(recorded(Variant::Without, 1.0).is_err());
    }
}
