//! Compares requests with and without a collector of the spans. One request in a hundred is traced.
//!
//! The clients send the same trace contexts in both cases, so that the difference is the proxies'
//! cost of tracing. A collector in each traced pod receives the spans over gRPC and counts them.

use anyhow::{Context, bail};

use super::Run;
use super::load::{Outcome, SAMPLED};
use super::metric::Metric;
use super::row::{Row, Sample};
use super::system::System;
use super::with_and_without::{Feature, Variant, compare, restart};
use super::workload::Load;
use crate::testbed::pod::{Container, CpuRole, Pod, Pods};
use crate::testbed::process::Process;
use crate::testbed::proxies::ProxySettings;
use crate::testbed::{ProxyPair, Testbed};

const COLLECTOR: Container<'_> = Container::root("collector", CpuRole::Load);
const LISTEN: &str = "127.0.0.1:4317";
/// The final dot prevents the use of the machine's search list.
const ADDRESS: (&str, &str) = ("LINKERD2_PROXY_TRACE_COLLECTOR_SVC_ADDR", "localhost.:4317");
const LOAD: Load = Load::Traced { connections: 64 };
/// A proxy exports a batch at least every five seconds: a shorter round may contain none.
const SECONDS: u32 = 3;
/// Each proxy reports a span of each side of a request.
const SPANS_PER_REQUEST: f64 = 4.0;

type Collectors = ProxyPair<Process>;

struct Tracing<'r> {
    run: Run<'r>,
    /// The collectors of the pods with tracing, and the spans that they had received before the
    /// load.
    collectors: Option<(Collectors, u64)>,
}

pub(super) fn row(run: Run<'_>) -> anyhow::Result<Row> {
    let mut plan = run.plan.clone();
    plan.seconds = plan.seconds.max(SECONDS);
    let run = Run { plan: &plan, ..run };
    let collectors = None;
    compare(run, Tracing { run, collectors })
}

impl Feature for Tracing<'_> {
    fn load(&self, _: Variant) -> Load {
        LOAD
    }

    fn start(&mut self, system: &mut System, variant: Variant) -> anyhow::Result<()> {
        if variant == Variant::Without {
            return restart(self.run, system, &ProxySettings::default(), LOAD);
        }
        // The collectors of the round before ran in the other pods.
        self.collectors = None;
        let mut collectors = start(self.run.testbed, &system.pods)?;
        let settings = ProxySettings {
            environment: vec![ADDRESS],
            ..ProxySettings::default()
        };
        restart(self.run, system, &settings, LOAD)?;
        let before = received(&mut collectors)?;
        self.collectors = Some((collectors, before));
        Ok(())
    }

    fn finish(
        &mut self,
        _: &mut System,
        variant: Variant,
        measured: &Outcome,
        sample: &mut Sample,
    ) -> anyhow::Result<()> {
        if variant == Variant::Without {
            return Ok(());
        }
        let (collectors, before) = self.collectors.as_mut().context("collectors run")?;
        let spans = received(collectors)? - *before;
        sample.insert(Metric::Spans, per_request(spans, measured.operations)?);
        Ok(())
    }
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

/// Returns the spans of a request. Fails if spans were missing: spans that were not exported cost
/// nothing. Batches begin and end outside of the measurement, hence the half.
fn per_request(spans: u64, requests: f64) -> anyhow::Result<f64> {
    let spans = spans as f64 / requests;
    let expected = SPANS_PER_REQUEST / f64::from(SAMPLED);
    if spans < expected / 2.0 {
        bail!("the collectors received {spans:.4} spans per request instead of about {expected}");
    }
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_spans_fail_a_measurement() {
        assert_eq!(per_request(40, 1000.0).expect("all"), 0.04);
        assert!(per_request(10, 1000.0).is_err());
    }
}
