//! The row of starts: time, CPU and memory until all objects of a cluster are read.

use anyhow::Context as _;

use super::programs::{Controller, Kind, KubeApi};
use super::report::{Figure, Row, Unit};
use super::{MAX_MEMORY_OF_ISTIO, Plan};
use crate::benchmark::machine::NoiseMonitor;
use crate::benchmark::statistics::median;
use crate::kube_api::Population;
use crate::testbed::Testbed;

/// A controller that is ready.
#[derive(Clone, Copy)]
pub(super) struct Start {
    pub(super) ready: f64,
    pub(super) cpu: f64,
    pub(super) resident: f64,
    /// The part of `resident` that the program has written. How many pages of its file are resident
    /// depends on the state of the page cache.
    pub(super) anonymous: f64,
    pub(super) peak: f64,
}

/// Measures destination and policy, which read the same objects, and Istio, in turn.
pub(super) fn row(testbed: &Testbed, plan: &Plan) -> anyhow::Result<Row> {
    let api = KubeApi::start(testbed, plan.population)?;
    let monitor = NoiseMonitor::start(&testbed.cgroup)?;
    let [mut destination, mut policy, mut istio] = [const { Vec::new() }; 3];
    for _ in 0..plan.starts {
        testbed.check_interrupt()?;
        destination.push(Start::measure(testbed, Kind::Destination, &api)?);
        policy.push(Start::measure(testbed, Kind::Policy, &api)?);
        if plan.with_istio {
            istio.push(Start::measure(testbed, Kind::Istio, &api)?);
        }
    }
    let noise = monitor.finish()?;
    let (destination, policy) = (median_of_each(&destination), median_of_each(&policy));
    let (destination, policy) = destination.zip(policy).context("nothing was started")?;
    let istio = median_of_each(&istio);
    let both = |name, unit, value: fn(&Start) -> f64| {
        let ours = value(&destination) + value(&policy);
        Figure::new(name, unit, ours, istio.as_ref().map(value))
    };
    let ready = destination.ready.max(policy.ready);
    let Population { services, pods } = plan.population;
    Ok(Row {
        title: format!(
            "start of destination and policy with {services} Services and {} pods",
            services * pods
        ),
        figures: vec![
            Figure::new(
                "until both are ready",
                Unit::Seconds,
                ready,
                istio.map(|it| it.ready),
            ),
            both("CPU", Unit::Seconds, |it| it.cpu),
            both("resident memory", Unit::Bytes, |it| it.resident)
                .at_most_istio(MAX_MEMORY_OF_ISTIO),
            both("anonymous memory", Unit::Bytes, |it| it.anonymous),
            both("peak memory", Unit::Bytes, |it| it.peak),
            Figure::new(
                "memory of destination",
                Unit::Bytes,
                destination.resident,
                None,
            ),
            Figure::new("memory of policy", Unit::Bytes, policy.resident, None),
        ],
        noise,
    })
}

impl Start {
    /// Starts a controller, measures it and stops it.
    fn measure(testbed: &Testbed, kind: Kind, api: &KubeApi) -> anyhow::Result<Self> {
        let controller = Controller::start(testbed, kind, api)?;
        Self::of(&controller)
    }

    /// Measures a controller that has just become ready.
    pub(super) fn of(controller: &Controller) -> anyhow::Result<Self> {
        let memory = controller.memory()?;
        Ok(Self {
            ready: controller.started,
            cpu: controller.cpu()?,
            resident: memory.resident as f64,
            anonymous: memory.anonymous as f64,
            peak: controller.peak()?,
        })
    }
}

/// Returns the median of each number, or `None` if there are no starts.
fn median_of_each(starts: &[Start]) -> Option<Start> {
    let of = |value: fn(&Start) -> f64| median(&starts.iter().map(value).collect::<Vec<_>>());
    Some(Start {
        ready: of(|it| it.ready)?,
        cpu: of(|it| it.cpu)?,
        resident: of(|it| it.resident)?,
        anonymous: of(|it| it.anonymous)?,
        peak: of(|it| it.peak)?,
    })
}
