//! [`play`]: plays a script on sockets of the kernel, in pods of a local node.
//!
//! One process plays client and server, so that signals pass between them as in a simulated world.
//! A socket belongs to the network namespace and the cgroup that its process is in when it makes
//! the socket: the process enters the pod of each socket.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use mesh_local::manifest::ObjectKey;
use mesh_local::node_paths::NodePaths;
use mesh_local::{cgroup, client};
use nix::sched::{CloneFlags, setns};
use tokio::net::{TcpListener, TcpSocket};

use crate::observation::Observed;
use crate::peer::{Hosts, Peers, Socket};
use crate::script::{Script, Server};

/// The longest run.
const MAX_TIME: Duration = Duration::from_secs(60);

/// The limit on connections that wait to be accepted.
const BACKLOG: u32 = 128;

/// A pod of a local node, as the place of sockets.
#[derive(Debug)]
pub struct Pod {
    address: IpAddr,
    network: File,
    cgroup: PathBuf,
}

impl Pod {
    /// Finds a running pod. Its only container, without the proxy, must have the name of the pod.
    ///
    /// # Errors
    ///
    /// The node does not run, or has no such pod.
    pub fn find(node: &NodePaths, namespace: &str, name: &str) -> anyhow::Result<Self> {
        let pods = client::status(node)?.pods;
        let mut pods = pods.iter();
        let pod = pods.find(|pod| pod.namespace == namespace && pod.name == name);
        let address = pod.and_then(|pod| pod.ips.first());
        let address =
            *address.with_context(|| format!("no pod {namespace}/{name} has an address"))?;
        let network = node.netns(namespace, name);
        let network =
            File::open(&network).with_context(|| format!("open {}", network.display()))?;
        let key = ObjectKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        Ok(Self {
            address,
            network,
            cgroup: client::cgroup(node, key, Some(name.to_owned()))?,
        })
    }

    /// Moves the process into the cgroup, and this thread into the network namespace.
    fn enter(&self) -> io::Result<()> {
        cgroup::join(&self.cgroup).map_err(io::Error::other)?;
        setns(&self.network, CloneFlags::CLONE_NEWNET)?;
        Ok(())
    }
}

/// Plays a script between two pods, on a port of the server that nothing else uses. Needs a
/// `LocalSet` on a runtime with one thread, whose clock is not paused.
///
/// # Errors
///
/// The pods cannot be entered, or the port is in use.
pub async fn play(
    script: &Script,
    [client, server]: [Rc<Pod>; 2],
    port: u16,
) -> io::Result<Observed> {
    let address = SocketAddr::new(server.address, port);
    let hosts = InPods {
        client,
        server,
        address,
    };
    let listens = script.server != Server::Refuses;
    let listener = listens.then(|| hosts.listen()).transpose()?;
    let peers = Peers::start(script, hosts, Vec::from_iter(listener));
    peers.settle(MAX_TIME).await;
    Ok(peers.observe())
}

#[derive(Clone)]
struct InPods {
    client: Rc<Pod>,
    server: Rc<Pod>,
    /// Where the server listens.
    address: SocketAddr,
}

impl InPods {
    fn listen(&self) -> io::Result<TcpListener> {
        self.server.enter()?;
        let socket = self.socket()?;
        socket.bind(self.address)?;
        socket.listen(BACKLOG)
    }

    fn socket(&self) -> io::Result<TcpSocket> {
        match self.address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }
    }
}

impl Hosts for InPods {
    type Listener = TcpListener;

    async fn connect(&self) -> io::Result<Socket> {
        self.client.enter()?;
        Socket::kernel(self.socket()?.connect(self.address).await?)
    }

    async fn accept(listener: &TcpListener) -> io::Result<Socket> {
        Socket::kernel(listener.accept().await?.0)
    }
}
