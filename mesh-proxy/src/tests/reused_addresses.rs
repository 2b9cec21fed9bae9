//! Addresses that are given to another Service or pod while connections to them are open.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use mesh_core::endpoint::Endpoint;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::TcpVerdict;
use mesh_core::profile::Profile;
use mesh_http2::ErrorCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::advance;

use super::answers::{Answers, detect, first, http_route, service, tcp};
use super::app::{App, Client, Speaks, rest, send};
use super::world::{CLIENT, Proxy, run, settle, while_time_passes};
use crate::discovery::OutboundTarget;
use crate::http::{Body, HttpHandler as _, Request, Reset};
use crate::outbound::http::Http;
use crate::watch;

/// The address of a Service, which has no listener.
const SERVICE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7)), 80);

/// A pod that uses [`SERVICE`], which is the address of the Service `old` at first. The application
/// of each Service responds with its name.
struct Scene {
    answers: Answers,
    proxy: Proxy,
}

fn authority(name: &str) -> String {
    format!("{name}.shop.svc.cluster.local:80")
}

fn of_service(name: &str) -> Profile {
    Profile {
        fqn: Some(format!("{name}.shop.svc.cluster.local").into()),
        ..Profile::default()
    }
}

fn of_pod(name: &str, addr: SocketAddr) -> Profile {
    let mut endpoint = Endpoint::plain(addr);
    endpoint.labels = [("namespace", "shop"), ("pod", name)].into();
    Profile {
        endpoint: Some(endpoint),
        ..Profile::default()
    }
}

fn of_nothing(addr: SocketAddr) -> Profile {
    Profile {
        endpoint: Some(Endpoint::plain(addr)),
        ..Profile::default()
    }
}

impl Scene {
    async fn new() -> Self {
        let (world, answers) = Answers::start().await;
        for name in ["old", "new"] {
            let app = App::start().await.named(name);
            answers.endpoints(&authority(name), &[app]);
        }
        let proxy = world.proxy(CLIENT);
        let scene = Self { answers, proxy };
        scene.give("old");
        scene
    }

    /// Gives the address to a Service. The stream of the policy before goes on.
    fn give(&self, name: &str) {
        let route = http_route("all", &[], Vec::new(), first(service(&authority(name))));
        self.answers.no_policy(SERVICE);
        if name == "old" {
            self.answers.policy(SERVICE, detect(vec![route], None));
        }
        self.answers.profile(SERVICE, of_service(name));
    }

    /// Tells the proxy the profile of an address that it watches.
    async fn tell(&self, addr: SocketAddr, profile: Profile) {
        self.answers.profile(addr, profile.clone());
        told(&self.proxy, addr, &profile).await;
    }

    async fn connect(&self, to: SocketAddr, speaks: Speaks) -> Client {
        Client::new(self.proxy.outbound(to).await, speaks).await
    }

    async fn get(&self) -> (u16, String) {
        let mut client = self.connect(SERVICE, Speaks::Http1).await;
        while_time_passes(client.get()).await
    }
}

/// Waits until the proxy has this profile of an address.
async fn told(proxy: &Proxy, addr: SocketAddr, profile: &Profile) {
    let mut updates = proxy.context.discovery.outbound(addr).await.unwrap();
    let is_told = |target: &Arc<OutboundTarget>| target.profile.as_ref() == Some(profile);
    updates.wait_for(is_told).await.unwrap();
    settle().await;
}

/// Waits until the proxy has closed the connection, or lets it accept no more requests.
async fn closed(client: Client) {
    match client {
        Client::Http1(mut tcp, _) => assert!(matches!(tcp.read(&mut [0]).await, Ok(0))),
        Client::Http2(client) => {
            // GOAWAY has arrived when there can be no further stream. Few of the yields receive the
            // kernel's events, so a fixed number of them does not suffice.
            while_time_passes(async {
                while client.clone().ready().await.is_ok() {
                    settle().await;
                }
            })
            .await;
        }
    }
}

fn answered(name: &str) -> (u16, String) {
    (200, name.to_owned())
}

#[test]
fn connection_ends_and_new_one_reaches_the_service_that_took_the_address() {
    Speaks::each(async |speaks| {
        let scene = Scene::new().await;
        let mut client = scene.connect(SERVICE, speaks).await;
        assert_eq!(client.get().await, answered("old"), "{speaks:?}");
        scene.give("new");
        told(&scene.proxy, SERVICE, &of_service("new")).await;
        closed(client).await;
        assert_eq!(scene.get().await, answered("new"), "{speaks:?}");
    });
}

#[test]
fn no_request_reaches_a_deleted_service() {
    Speaks::each(async |speaks| {
        let scene = Scene::new().await;
        let mut client = scene.connect(SERVICE, speaks).await;
        assert_eq!(client.get().await, answered("old"), "{speaks:?}");
        scene.answers.no_policy(SERVICE);
        scene.tell(SERVICE, of_nothing(SERVICE)).await;
        closed(client).await;
        assert_ne!(scene.get().await, answered("old"), "{speaks:?}");
    });
}

/// The policy that it had for the Service before is not used until it responds.
#[test]
fn new_service_is_reached_while_the_policy_service_is_silent() {
    run(async || {
        let scene = Scene::new().await;
        assert_eq!(scene.get().await, answered("old"));
        let _open = scene.proxy.outbound(SERVICE).await;
        scene.answers.silent(SERVICE);
        scene.tell(SERVICE, of_service("new")).await;
        assert_eq!(scene.get().await, answered("new"));
    });
}

#[test]
fn service_that_takes_an_unused_address_later_is_reached() {
    run(async || {
        let scene = Scene::new().await;
        assert_eq!(scene.get().await, answered("old"));
        // A connection keeps the address watched.
        let _open = scene.proxy.outbound(SERVICE).await;
        scene.answers.no_policy(SERVICE);
        scene.tell(SERVICE, of_nothing(SERVICE)).await;
        scene.give("new");
        told(&scene.proxy, SERVICE, &of_service("new")).await;
        assert_eq!(scene.get().await, answered("new"));
    });
}

/// Such as an EgressNetwork that contains the addresses of Services.
#[test]
fn service_that_takes_the_address_of_a_policy_without_object_is_reached() {
    run(async || {
        let scene = Scene::new().await;
        scene.answers.profile(SERVICE, of_nothing(SERVICE));
        assert_eq!(scene.get().await, answered("old"));
        let _open = scene.proxy.outbound(SERVICE).await;
        scene.answers.silent(SERVICE);
        scene.tell(SERVICE, of_service("new")).await;
        assert_eq!(scene.get().await, answered("new"));
    });
}

/// The last value of the address is kept for outages only.
#[test]
fn address_that_was_unused_reaches_its_new_service() {
    run(async || {
        let scene = Scene::new().await;
        assert_eq!(scene.get().await, answered("old"));
        scene.give("new");
        advance(Duration::from_secs(60)).await;
        settle().await;
        assert_eq!(scene.get().await, answered("new"));
    });
}

#[test]
fn connection_to_a_pod_ends_when_another_pod_has_its_address() {
    Speaks::each(async |speaks| {
        let scene = Scene::new().await;
        let addr = App::start().await.named("pod");
        scene.answers.profile(addr, of_pod("a", addr));
        let mut client = scene.connect(addr, speaks).await;
        assert_eq!(client.get().await, answered("pod"), "{speaks:?}");
        scene.tell(addr, of_pod("b", addr)).await;
        closed(client).await;
        let mut client = scene.connect(addr, speaks).await;
        assert_eq!(client.get().await, answered("pod"), "{speaks:?}");
    });
}

#[test]
fn connection_continues_when_other_settings_of_its_service_change() {
    Speaks::each(async |speaks| {
        let scene = Scene::new().await;
        let mut client = scene.connect(SERVICE, speaks).await;
        assert_eq!(client.get().await, answered("old"), "{speaks:?}");
        let changed = Profile {
            parent: Some(Meta::new_default("changed")),
            ..of_service("old")
        };
        scene.tell(SERVICE, changed).await;
        assert_eq!(client.get().await, answered("old"), "{speaks:?}");
    });
}

/// The address is known before the control plane has seen the pod.
#[test]
fn connection_continues_when_its_pod_becomes_known() {
    Speaks::each(async |speaks| {
        let scene = Scene::new().await;
        let addr = App::start().await.named("pod");
        scene.answers.profile(addr, of_nothing(addr));
        let mut client = scene.connect(addr, speaks).await;
        assert_eq!(client.get().await, answered("pod"), "{speaks:?}");
        scene.tell(addr, of_pod("a", addr)).await;
        assert_eq!(client.get().await, answered("pod"), "{speaks:?}");
    });
}

#[test]
fn request_in_flight_completes_before_its_connection_ends() {
    run(async || {
        let scene = Scene::new().await;
        let app = App::start().await;
        scene.answers.profile(app.addr, of_pod("a", app.addr));
        let mut client = scene.proxy.outbound(app.addr).await;
        send(&mut client, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
        let (mut server, _) = app.receive().await;
        scene.tell(app.addr, of_pod("b", app.addr)).await;
        send(
            &mut server,
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        )
        .await;
        let mut response = String::new();
        client.read_to_string(&mut response).await.unwrap();
        assert!(response.contains("connection: close\r\n"), "{response}");
        assert!(response.ends_with("ok"), "{response}");
    });
}

async fn echo(client: &mut TcpStream, server: &mut TcpStream, byte: u8) {
    client.write_all(&[byte]).await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), byte);
}

#[test]
fn opaque_connection_continues_when_its_address_is_taken() {
    run(async || {
        let scene = Scene::new().await;
        let app = App::start().await;
        scene.answers.endpoints(&authority("tcp"), &[app.addr]);
        let backends = first(service(&authority("tcp")));
        scene
            .answers
            .policy(SERVICE, tcp(backends, TcpVerdict::Forward));
        scene.answers.profile(SERVICE, of_service("tcp"));
        let mut client = scene.proxy.outbound(SERVICE).await;
        let mut server = while_time_passes(app.accept()).await;
        echo(&mut client, &mut server, 1).await;
        scene.give("new");
        told(&scene.proxy, SERVICE, &of_service("new")).await;
        echo(&mut client, &mut server, 2).await;
    });
}

/// The client sends its bytes to the Service that it connected to, not to the new owner.
#[test]
fn connection_whose_address_is_taken_before_its_first_byte_ends() {
    run(async || {
        let scene = Scene::new().await;
        let mut client = scene.proxy.outbound(SERVICE).await;
        while_time_passes(told(&scene.proxy, SERVICE, &of_service("old"))).await;
        scene.give("new");
        told(&scene.proxy, SERVICE, &of_service("new")).await;
        send(&mut client, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
        assert_eq!(rest(&mut client).await, "");
        assert_eq!(scene.get().await, answered("new"));
    });
}

/// A client may send requests until it has received GOAWAY.
#[test]
fn request_that_arrives_after_its_address_was_taken_is_refused() {
    run(async || {
        let scene = Scene::new().await;
        let mut client = scene.proxy.outbound(SERVICE).await;
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        client.write_all(preface).await.unwrap();
        client.write_all(&get_frame(1)).await.unwrap();
        assert_eq!(answer_to(1, &mut client).await, Answer::Headers);
        scene.give("new");
        told(&scene.proxy, SERVICE, &of_service("new")).await;
        client.write_all(&get_frame(3)).await.unwrap();
        let refused = Answer::Reset(h2::Reason::REFUSED_STREAM.into());
        assert_eq!(answer_to(3, &mut client).await, refused);
    });
}

/// Before another task has noticed it.
#[test]
fn request_is_refused_as_soon_as_its_address_is_taken() {
    run(async || {
        let scene = Scene::new().await;
        let discovery = &scene.proxy.context.discovery;
        let target = async || discovery.outbound(SERVICE).await.unwrap().borrow().clone();
        let old = target().await;
        scene.give("new");
        told(&scene.proxy, SERVICE, &of_service("new")).await;
        let new = target().await;
        let (updates, following) = watch::channel(old);
        let http = Http::new(scene.proxy.context.clone());
        let connection = http.connection(SERVICE, SERVICE, following);
        updates.send_replace(new);
        let mut request = Request::new(Body::empty());
        let refused = connection.handle(&mut request).now_or_never();
        assert!(matches!(
            refused,
            Some(Err(Reset(ErrorCode::REFUSED_STREAM)))
        ));
    });
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Headers,
    Reset(u32),
}

/// A HEADERS frame with END_STREAM and END_HEADERS: `GET http://web/`.
fn get_frame(stream: u8) -> Vec<u8> {
    let block = b"\x82\x86\x84\x41\x03web";
    let header = [0, 0, block.len() as u8, 1, 5, 0, 0, 0, stream];
    [&header[..], block].concat()
}

/// Reads frames until one answers the request of this stream.
async fn answer_to(stream: u32, client: &mut TcpStream) -> Answer {
    loop {
        let mut header = [0; 9];
        while_time_passes(client.read_exact(&mut header))
            .await
            .unwrap();
        let [a, b, c, kind, _, of @ ..] = header;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        client.read_exact(&mut payload).await.unwrap();
        match kind {
            _ if u32::from_be_bytes(of) != stream => {}
            1 => return Answer::Headers,
            3 => return Answer::Reset(u32::from_be_bytes(payload.try_into().unwrap())),
            _ => {}
        }
    }
}

/// Proxies of ingress controllers keep connections to pods.
#[test]
fn ingress_connection_ends_when_another_pod_has_its_address() {
    Speaks::each(async |speaks| {
        let (world, answers) = Answers::start().await;
        let proxy = world.proxy_with(CLIENT, &[("INGRESS_MODE", Some("true"))]);
        let addr = App::start().await.named("pod");
        answers.profile(addr, of_pod("a", addr));
        let mut client = Client::new(proxy.outbound(addr).await, speaks).await;
        assert_eq!(client.get().await, answered("pod"), "{speaks:?}");
        answers.profile(addr, of_pod("b", addr));
        told(&proxy, addr, &of_pod("b", addr)).await;
        match &mut client {
            Client::Http1(tcp, _) => {
                send(tcp, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
                let ended = tcp.read(&mut [0]).await;
                assert!(matches!(ended, Ok(0) | Err(_)), "{speaks:?}: {ended:?}");
            }
            Client::Http2(client) => {
                let request = http::Request::get("http://web/").body(()).unwrap();
                let (response, _) = client.send_request(request, true).unwrap();
                let error = response.await.unwrap_err();
                assert_eq!(error.reason(), Some(h2::Reason::REFUSED_STREAM), "{error}");
                closed(Client::Http2(client.clone())).await;
            }
        }
    });
}
