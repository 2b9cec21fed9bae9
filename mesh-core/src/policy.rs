//! What a workload may receive and where its traffic goes.

pub mod inbound;
pub mod outbound;
