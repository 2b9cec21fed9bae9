//! The object that an address belongs to, and the connections of the application to the address.
//!
//! An address may be given to another Service or pod while connections to it are open. Their bytes
//! were meant for the object that had it, so that they end: idle HTTP/1 connections are closed,
//! HTTP/2 connections get GOAWAY, and a request that arrives nevertheless is refused unsent.
//! Requests in flight and tunnels continue. Used by [`super::HttpTarget`].

use std::cell::RefCell;

use mesh_runtime::drain::{Part, Watch};

use crate::discovery::{OutboundTarget, TargetObject};

/// The owner of an address, and the connections since it has been that.
pub(super) struct AddressOwner {
    drain: Watch,
    current: RefCell<CurrentOwner>,
}

struct CurrentOwner {
    object: Option<TargetObject>,
    /// The number of owners before.
    generation: u64,
    clients: Part,
}

/// The owner of the address of a connection when the connection was accepted.
#[derive(Clone)]
pub(super) struct AcceptedFor {
    generation: u64,
    drain: Watch,
}

impl AddressOwner {
    /// `drain` is the proxy's.
    pub(super) fn new(drain: &Watch, target: &OutboundTarget) -> Self {
        Self {
            drain: drain.clone(),
            current: RefCell::new(CurrentOwner {
                object: target.object.clone(),
                generation: 0,
                clients: drain.part(),
            }),
        }
    }

    /// Applies a change of discovery. Drains the connections that were accepted for an object that
    /// the address does not belong to any more.
    ///
    /// Connections to an address without a known object continue when it becomes known: pods are
    /// connected to before the control plane knows them.
    pub(super) fn update(&self, target: &OutboundTarget) {
        let mut current = self.current.borrow_mut();
        if target.replaces(current.object.as_ref()) {
            current.generation += 1;
            let before = std::mem::replace(&mut current.clients, self.drain.part());
            before.drain();
            tracing::debug!(dst = %target.destination, "The address belongs to another object; its connections are drained");
        }
        if current.object != target.object {
            current.object.clone_from(&target.object);
        }
    }

    pub(super) fn object(&self) -> Option<TargetObject> {
        self.current.borrow().object.clone()
    }

    /// Returns the generation and the drain for a new connection.
    pub(super) fn accept(&self) -> AcceptedFor {
        let current = self.current.borrow();
        AcceptedFor {
            generation: current.generation,
            drain: current.clients.watch(),
        }
    }

    /// Whether the address still belongs to the same object.
    pub(super) fn is_current(&self, accepted: &AcceptedFor) -> bool {
        self.current.borrow().generation == accepted.generation
    }
}

impl AcceptedFor {
    pub(super) fn drain(&self) -> Watch {
        self.drain.clone()
    }
}
