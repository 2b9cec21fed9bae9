//! The admin listener. Connections are treated like those to any inbound port; see [`Inbound::serve_admin`].

use std::rc::Rc;
use std::time::Duration;

use mesh_runtime::admin::Admin;
use tokio::net::TcpListener;

use crate::inbound::Inbound;

/// How long to wait before accepting again after an error that will last, such as having no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves for the life of the process. Needs a `LocalSet`.
pub async fn serve(listener: TcpListener, admin: Admin, inbound: Rc<Inbound>) {
    loop {
        match listener.accept().await {
            Ok((tcp, _peer)) => {
                tokio::task::spawn_local(inbound.clone().serve_admin(tcp, admin.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "Admin server failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
