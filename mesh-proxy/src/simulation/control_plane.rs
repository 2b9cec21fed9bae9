//! The services of the control plane, on hosts of a simulated network.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use mesh_simnet::{Network, Role};
use mesh_test_support::control_plane::{Script, serve_connection};
use tokio::task::{JoinSet, spawn_local};
use tokio_util::task::AbortOnDropHandle;

use crate::tls::{Credentials, Purpose, server};
use crate::transport::Io;
use crate::transport::socket::Socket;

/// The ports of the destination and policy services.
pub(super) const PORTS: [u16; 2] = [8086, 8090];

/// Serves until it is dropped, which closes the connections.
pub(super) struct ControlPlane {
    _serving: [AbortOnDropHandle<()>; 2],
}

impl ControlPlane {
    /// Listens on the ports of both services.
    pub(super) fn start(
        network: &Network,
        host: IpAddr,
        credentials: &Arc<Credentials>,
        script: &impl Script,
    ) -> io::Result<Self> {
        let process = network.process(host, Role::Application);
        let serve = |port| -> io::Result<AbortOnDropHandle<()>> {
            let listener = process.listen(port)?;
            let (credentials, script) = (credentials.clone(), script.clone());
            Ok(AbortOnDropHandle::new(spawn_local(async move {
                // Dropping the set closes all connections together with the listener.
                let mut connections = JoinSet::new();
                loop {
                    let socket = Socket::from(listener.accept().await.stream);
                    let (credentials, script) = (credentials.clone(), script.clone());
                    connections.spawn_local(async move {
                        let io = Io::plain(socket);
                        let purpose = Purpose::Control;
                        let terminated = server::terminate(io, &credentials, false, purpose).await;
                        // A proxy that refuses the certificate logs it.
                        if let Ok((io, _client)) = terminated {
                            serve_connection(io, script).await;
                        }
                    });
                }
            })))
        };
        let [destination, policy] = PORTS;
        Ok(Self {
            _serving: [serve(destination)?, serve(policy)?],
        })
    }
}
