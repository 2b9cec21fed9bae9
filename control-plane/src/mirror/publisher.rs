//! The one state of the process, which several tasks change and the writer reads.

use std::sync::Arc;

use tokio::sync::watch;

use super::objects::Mirrors;

/// Changes the objects. Clones change the same ones.
#[derive(Clone)]
pub(crate) struct Publisher(watch::Sender<Arc<Mirrors>>);

impl Publisher {
    pub(crate) fn new(mirrors: Mirrors) -> (Self, watch::Receiver<Arc<Mirrors>>) {
        let (sender, receiver) = watch::channel(Arc::new(mirrors));
        (Self(sender), receiver)
    }

    pub(super) fn read<T>(&self, read: impl FnOnce(&Mirrors) -> T) -> T {
        read(&self.0.borrow())
    }

    /// Applies a change, which returns whether anything follows from it.
    pub(super) fn change(&self, change: impl FnOnce(&mut Mirrors) -> bool) {
        self.0
            .send_if_modified(|mirrors| change(Arc::make_mut(mirrors)));
    }
}
