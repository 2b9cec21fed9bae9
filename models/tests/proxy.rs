//! Models of what the data threads of the proxy share: its files, with loom's atomics and locks.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "the models use a part of each file"
)]

use mesh_models::sync;

#[path = "../../mesh-proxy/src/balance"]
mod balance {
    pub(crate) mod breaker;
}

#[path = "../../mesh-proxy/src/discovery"]
mod discovery {
    pub(crate) mod ports;
}

#[path = "../../mesh-proxy/src/limits"]
mod limits {
    pub(crate) mod rate_limit;
    pub(crate) mod replay_memory;
}

#[path = "../../mesh-proxy/src/retry"]
mod retry {
    pub(crate) mod budget;
}

mod random {
    /// Its order decides between ports that are equally old.
    pub(crate) type Map<K, V> = std::collections::HashMap<K, V>;
}

mod watch {
    pub(crate) use tokio::sync::watch::{Receiver, Sender};
}

mod telemetry {
    /// The part of the module that breakers use. The other one counts.
    pub(crate) mod breaker {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Cause {
            ConsecutiveFailures,
            SuccessRate,
            FailedProbe,
        }
    }
}
