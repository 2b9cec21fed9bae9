//! The admin listener. Connections are treated like those to any inbound port; see
//! [`Inbound::serve_admin`].

use std::rc::Rc;
use std::time::Duration;

use mesh_runtime::admin::Admin;
use mesh_runtime::open_connections::OpenConnections;

use crate::inbound::Inbound;
use crate::transport::listen::Acceptor;

/// The pause after an error that persists, such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The most open connections. Probes, scrapers and operators need a few.
pub(crate) const MAX_CONNECTIONS: usize = 64;

/// Serves for the life of the process. Needs a `LocalSet`.
pub(crate) async fn serve(listener: Acceptor, admin: Admin, inbound: Rc<Inbound>) {
    let mut open = OpenConnections::new(MAX_CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok(tcp) => {
                if open.spawn_local(inbound.clone().serve_admin(tcp, admin.clone())) {
                    inbound.count_admin_connection_closed();
                }
            }
            Err(error) => {
                tracing::warn!(%error, "Admin server failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
