//! What an agent does with its node when its DaemonSet is deleted: an upgrade that gives the agents
//! another namespace, and an uninstallation.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, thread};

use mesh_agent::redirect::Tier;
use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::agent::{Agent, Node};
use crate::runtime::{Network, Pod};

/// An API server with DaemonSets and no other object. Its threads end with their connections.
struct ApiServer {
    state: Arc<Mutex<State>>,
    kubeconfig: PathBuf,
}

struct State {
    daemon_sets: Vec<Value>,
    is_denied: bool,
    /// The connections of the watches of DaemonSets.
    watches: Vec<TcpStream>,
    /// The connections of other watches. Nothing is written to them.
    others: Vec<TcpStream>,
}

fn daemon_set(namespace: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "mesh-agent", "namespace": namespace, "resourceVersion": "2"},
    })
}

impl ApiServer {
    /// Serves in the network of the node.
    fn start(node: &Node, namespace: &str) -> Self {
        let listener = node
            .host
            .enter(|| TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State {
            daemon_sets: vec![daemon_set(namespace)],
            is_denied: false,
            watches: Vec::new(),
            others: Vec::new(),
        }));
        let kubeconfig = node.path("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
        });
        fs::write(&kubeconfig, config.to_string()).unwrap();
        let served = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, served) = (stream.unwrap(), Arc::clone(&served));
                thread::spawn(move || serve(&stream, &served));
            }
        });
        Self { state, kubeconfig }
    }

    /// Reports a change to the watches.
    fn report(&self, kind: &str, daemon_set: &Value) {
        let event = format!("{}\n", json!({"type": kind, "object": daemon_set}));
        let mut state = self.state.lock();
        for watch in &mut state.watches {
            write!(watch, "{:x}\r\n{event}\r\n", event.len()).unwrap();
        }
    }

    fn start_agent(&self, node: &Node, namespace: &str) -> Agent {
        let before = self.state.lock().watches.len();
        let kubeconfig = self.kubeconfig.to_str().unwrap();
        let agent = node.start_with(&[
            "--tier",
            Tier::Nft.as_str(),
            "--node-name",
            "node",
            "--kubeconfig",
            kubeconfig,
            "--namespace",
            namespace,
            "--daemonset",
            "mesh-agent",
        ]);
        eventually("the agent watches the DaemonSets", || {
            self.state.lock().watches.len() > before
        });
        agent.unwrap()
    }
}

fn serve(stream: &TcpStream, state: &Mutex<State>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    while let Some(Ok(request)) = lines.next() {
        // The agent's requests have no body, except for events. There are none here.
        let is_header = |line: &Result<String, _>| line.as_ref().is_ok_and(|line| !line.is_empty());
        lines.by_ref().take_while(is_header).for_each(drop);
        let of_daemon_sets = request.contains("/daemonsets");
        let mut state = state.lock();
        let mut writer = stream;
        if of_daemon_sets && state.is_denied {
            write!(
                writer,
                "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"
            )
            .unwrap();
        } else if request.contains("watch=") {
            write!(
                writer,
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            .unwrap();
            let kept = stream.try_clone().unwrap();
            if of_daemon_sets {
                state.watches.push(kept);
            } else {
                state.others.push(kept);
            }
            return;
        } else {
            let items: &[Value] = if of_daemon_sets {
                &state.daemon_sets
            } else {
                &[]
            };
            let list = json!({
                "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items,
            });
            let list = list.to_string();
            write!(
                writer,
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{list}",
                list.len()
            )
            .unwrap();
        }
    }
}

/// Returns the number of pods that are recorded as redirected.
fn enrolled(node: &Node) -> usize {
    fs::read_dir(node.state_dir().join("pods")).map_or(0, Iterator::count)
}

/// In the order of `helm upgrade`: the new DaemonSet is created; account and roles are deleted;
/// then the old DaemonSet is, and its pods end.
#[test]
fn agent_with_a_successor_in_another_namespace_keeps_the_node() {
    require_root!();
    for has_successor in [true, false] {
        let node = Node::new();
        let api_server = ApiServer::start(&node, "linkerd");
        let agent = api_server.start_agent(&node, "linkerd");
        let network = Network::new(&node, "1.0.0");
        let pod = Pod::meshed(&[]);
        network.add_enrolled(&pod);
        assert_eq!(enrolled(&node), 1);
        if has_successor {
            api_server.report("ADDED", &daemon_set("linkerd-agent"));
        }
        api_server.state.lock().is_denied = true;
        api_server.report("DELETED", &daemon_set("linkerd"));
        assert!(agent.terminate());
        assert_eq!(enrolled(&node), usize::from(has_successor));
        if has_successor {
            let new = ApiServer::start(&node, "linkerd-agent");
            let successor = new.start_agent(&node, "linkerd-agent");
            let pods = successor.pods();
            assert_eq!(pods.len(), 1);
            assert!(successor.terminate());
            assert_eq!(enrolled(&node), 1, "its DaemonSet exists");
        }
    }
}
