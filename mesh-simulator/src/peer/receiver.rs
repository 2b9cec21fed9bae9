//! [`Receiver`]: a host that reads requests, and responds to none.

use std::cell::RefCell;
use std::rc::Rc;

use tokio::task::spawn_local;
use tokio_util::task::AbortOnDropHandle;

use super::{Hosts, Link, Signals};
use crate::observation::Observation;
use crate::script::{Protocol, Side};

/// The connections of a host that only reads.
pub(crate) struct Receiver {
    links: Rc<RefCell<Vec<Rc<Link>>>>,
    _accepting: AbortOnDropHandle<()>,
}

impl Receiver {
    pub(crate) fn start<H: Hosts>(protocol: Protocol, listener: H::Listener) -> Self {
        let links: Rc<RefCell<Vec<Rc<Link>>>> = Rc::default();
        let accepted = Rc::clone(&links);
        let accepting = spawn_local(async move {
            while let Ok(socket) = H::accept(&listener).await {
                let number = accepted.borrow().len() + 1;
                let link = Link::new(Side::Server, number, protocol, Signals::new());
                let link = Rc::new(link);
                link.open(socket);
                super::play(&link, &[], 0).await;
                accepted.borrow_mut().push(link);
            }
        });
        Self {
            links,
            _accepting: AbortOnDropHandle::new(accepting),
        }
    }

    /// Everything that has been received. Closes the connections.
    pub(crate) fn observe(self) -> Vec<Observation> {
        let links = self.links.borrow();
        links.iter().map(Link::into_observation).collect()
    }
}
