//! The addresses of a service's name, by the system's configuration. A static program must not call
//! the resolver of the C library.

use std::io;
use std::net::{IpAddr, SocketAddr};

use hickory_resolver::TokioResolver;

/// A Service without a virtual address has one for each replica.
const MAX_ADDRESSES: usize = 8;

/// Resolves HOST:PORT. The caller limits the time.
pub(super) async fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let (host, port) = address.rsplit_once(':').ok_or_else(invalid)?;
    let port: u16 = port.parse().map_err(|_error| invalid())?;
    let resolver = TokioResolver::builder_tokio().and_then(|builder| builder.build());
    let resolver = Box::new(resolver.map_err(io::Error::other)?);
    let found = Box::pin(resolver.lookup_ip(host)).await;
    let found = found.map_err(io::Error::other)?;
    let addresses = found.iter().take(MAX_ADDRESSES);
    Ok(addresses.map(|ip: IpAddr| (ip, port).into()).collect())
}
