//! The admin listener. Connections are treated like those to any inbound port; see
//! [`Inbound::serve_admin`].

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use mesh_runtime::admin::Admin;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::inbound::Inbound;

/// How long to wait before accepting again after an error that will last, such as having no file
/// descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many connections are open at a time. Probes, scrapers and operators need a few.
pub(crate) const MAX_CONNECTIONS: usize = 64;

/// The connections that are served, oldest first.
#[derive(Debug, Default)]
struct Open(VecDeque<AbortHandle>);

/// Serves for the life of the process. Needs a `LocalSet`.
pub async fn serve(listener: TcpListener, admin: Admin, inbound: Rc<Inbound>) {
    let mut open = Open::default();
    loop {
        match listener.accept().await {
            Ok((tcp, _peer)) => {
                if open.make_room() {
                    inbound.count_admin_connection_closed();
                }
                let serving = inbound.clone().serve_admin(tcp, admin.clone());
                open.0
                    .push_back(tokio::task::spawn_local(serving).abort_handle());
            }
            Err(error) => {
                tracing::warn!(%error, "Admin server failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Open {
    /// Makes room for one more connection. The one that is open for longest gives way, not the new
    /// one: clients that hold connections must not keep out the kubelet, whose probes are short.
    /// Returns whether one had to.
    fn make_room(&mut self) -> bool {
        if self.0.len() < MAX_CONNECTIONS {
            return false;
        }
        self.0.retain(|task| !task.is_finished());
        if self.0.len() < MAX_CONNECTIONS {
            return false;
        }
        if let Some(oldest) = self.0.pop_front() {
            oldest.abort();
        }
        true
    }
}
