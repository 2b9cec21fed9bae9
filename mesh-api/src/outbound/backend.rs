//! Backends of routes: a balancer, one endpoint, or none.

use std::num::NonZeroU32;
use std::time::Duration;

use mesh_core::policy::outbound::{Backend, BackendTarget};
use mesh_core::resilience::{FailurePenalty, PeakEwma, Queue};

use crate::field::{FieldContext, optional, required};
use crate::meta::{self, meta};
use crate::proto::outbound as wire;
use crate::proto::outbound::backend::endpoint_discovery::{DestinationGet, Kind as Discovery};
use crate::proto::outbound::backend::{BalanceP2c, EndpointDiscovery, Kind, balance_p2c};
use crate::{InvalidField, destination, value};

/// The value that Linkerd's policy controller sends; proxies ignore it.
const PENALTY_DECAY: Duration = Duration::from_secs(10);

pub(super) fn backend(wire: wire::Backend) -> Result<Backend, InvalidField> {
    Ok(Backend {
        meta: required("metadata", wire.metadata, meta)?,
        target: match wire.kind {
            Some(Kind::Forward(addr)) => {
                BackendTarget::Forward(Box::new(destination::endpoint(addr).inside("forward")?))
            }
            Some(Kind::Balancer(balancer)) => {
                let queue = optional("queue", wire.queue, queue)?.unwrap_or_default();
                balance(balancer, queue).inside("balancer")?
            }
            None => BackendTarget::None,
        },
    })
}

pub(super) fn to_proto(backend: &Backend) -> wire::Backend {
    let kind = match &backend.target {
        BackendTarget::Forward(endpoint) => {
            Some(Kind::Forward(destination::endpoint_to_proto(endpoint)))
        }
        BackendTarget::Balance {
            authority, load, ..
        } => Some(Kind::Balancer(BalanceP2c {
            discovery: Some(EndpointDiscovery {
                kind: Some(Discovery::Dst(DestinationGet {
                    path: authority.to_string(),
                })),
            }),
            load: Some(load_to_proto(*load)),
        })),
        BackendTarget::None => None,
    };
    // Linkerd's proxy requires the message in every backend.
    let queue = match &backend.target {
        BackendTarget::Balance { queue, .. } => *queue,
        BackendTarget::Forward(_) | BackendTarget::None => Queue::LINKERD,
    };
    wire::Backend {
        metadata: Some(meta::to_proto(&backend.meta)),
        queue: Some(wire::Queue {
            capacity: queue.capacity.map_or(0, NonZeroU32::get),
            failfast_timeout: queue.failfast_timeout.map(value::duration_to_proto),
        }),
        kind,
    }
}

/// Zero is what an absent field has, so neither leaves its setting to the proxy.
fn queue(wire: wire::Queue) -> Result<Queue, InvalidField> {
    let timeout = optional("failfast_timeout", wire.failfast_timeout, value::duration)?;
    Ok(Queue {
        capacity: NonZeroU32::new(wire.capacity),
        failfast_timeout: timeout.filter(|timeout| !timeout.is_zero()),
    })
}

fn balance(wire: BalanceP2c, queue: Queue) -> Result<BackendTarget, InvalidField> {
    let authority = required("discovery", wire.discovery, |discovery| {
        match discovery.kind {
            Some(Discovery::Dst(get)) if !get.path.is_empty() => Ok(get.path.into()),
            Some(Discovery::Dst(_)) => Err(InvalidField::missing("dst.path")),
            None => Err(InvalidField::unknown_kind("kind")),
        }
    })?;
    let load = match wire.load {
        Some(balance_p2c::Load::PeakEwma(ewma)) => {
            peak_ewma(ewma.default_rtt, ewma.decay, None).inside("peak_ewma")?
        }
        Some(balance_p2c::Load::PenaltyPeakEwma(ewma)) => {
            let read = || {
                let penalty = FailurePenalty {
                    penalty: required("penalty", ewma.penalty, value::duration)?,
                    max_retry_after: required(
                        "max_retry_after",
                        ewma.max_retry_after,
                        value::duration,
                    )?,
                };
                peak_ewma(ewma.default_rtt, ewma.decay, Some(penalty))
            };
            read().inside("penalty_peak_ewma")?
        }
        None => PeakEwma::default(),
    };
    Ok(BackendTarget::Balance {
        authority,
        load,
        queue,
    })
}

fn peak_ewma(
    default_rtt: Option<prost_types::Duration>,
    decay: Option<prost_types::Duration>,
    penalty: Option<FailurePenalty>,
) -> Result<PeakEwma, InvalidField> {
    let default = PeakEwma::default();
    Ok(PeakEwma {
        default_rtt: match default_rtt {
            Some(rtt) => value::duration(rtt).inside("default_rtt")?,
            None => default.default_rtt,
        },
        decay: match decay {
            Some(decay) => value::duration(decay).inside("decay")?,
            None => default.decay,
        },
        penalty,
    })
}

fn load_to_proto(load: PeakEwma) -> balance_p2c::Load {
    let default_rtt = Some(value::duration_to_proto(load.default_rtt));
    let decay = Some(value::duration_to_proto(load.decay));
    match load.penalty {
        None => balance_p2c::Load::PeakEwma(balance_p2c::PeakEwma { default_rtt, decay }),
        Some(penalty) => balance_p2c::Load::PenaltyPeakEwma(balance_p2c::PenaltyPeakEwma {
            default_rtt,
            decay,
            penalty: Some(value::duration_to_proto(penalty.penalty)),
            max_retry_after: Some(value::duration_to_proto(penalty.max_retry_after)),
            penalty_decay: Some(value::duration_to_proto(PENALTY_DECAY)),
        }),
    }
}
