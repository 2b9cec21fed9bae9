//! The admin listener. Connections are treated like those to any inbound port; see
//! [`Inbound::serve_admin`].

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use mesh_runtime::admin::Admin;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::inbound::Inbound;

/// The pause after an error that persists, such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The most open connections. Probes, scrapers and operators need a few.
pub(crate) const MAX_CONNECTIONS: usize = 64;

/// Open connections, oldest first.
#[derive(Debug, Default)]
struct OpenConnections(VecDeque<AbortHandle>);

/// Serves for the life of the process. Needs a `LocalSet`.
pub(crate) async fn serve(listener: TcpListener, admin: Admin, inbound: Rc<Inbound>) {
    let mut open = OpenConnections::default();
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

impl OpenConnections {
    /// Closes the oldest connection if the limit is reached, so that clients with long connections
    /// do not block the kubelet, whose probes are short. Returns whether one was closed.
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
