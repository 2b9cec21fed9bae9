//! Proxies in a simulated world: on [`mesh_simnet`], on a paused clock, on one thread, from one
//! seed. For mesh-simulator, with the feature `simulation`. Decision: ADR 0210.
//!
//! A [`Mesh`] has a control plane, and starts the proxies of pods. They are the product's code from
//! `accept` on: data threads, discovery and the client of the control plane. Only the outside of
//! the process differs: sockets, DNS, random numbers, and the identity service, whose certificates
//! [`Mesh`] issues itself.
//!
//! Nothing in a world may depend on a real clock, a thread, or a random number that does not come
//! from the seed. [`run`] has no I/O driver, so that a socket of the kernel panics.

mod answers;
mod control_plane;
mod features;
mod mesh;
mod placement;
mod position;
mod proxy;

pub use self::answers::Answers;
pub use self::features::{Feature, MAX_REPLAY, MAX_RETRIES, MIRROR};
pub use self::mesh::{Fault, Mesh, Pod, SetUpError};
pub use self::placement::{
    CHANGE_TIME, CLIENT_ID, CONTROL_PLANE, Change, MOVED_SERVER, Placement, Settings, place,
};
pub use self::position::Position;
pub use self::proxy::Proxy;

/// Runs a world. All random numbers of the proxies come from `seed`. Tasks are spawned by
/// [`tokio::task::spawn_local`].
///
/// # Panics
///
/// The world panics, or is called within a runtime.
pub fn run<T>(seed: u64, world: impl AsyncFnOnce() -> T) -> T {
    mesh_planted::rearm();
    mesh_simnet::world::run(seed, world)
}

#[cfg(test)]
mod tests;
