//! Units, their proxies and their listeners that start, end and change owners.

use mesh_ebpf_common::unit::UNIT_COOKIES;

use super::{
    ANY, OUTSIDE, Proxy, REMOTE, REMOTE_SERVICE, SERVICE, WEB, assert_direct, assert_talks, client,
    detach_steering,
};
use crate::actor::{ActorCommand, ActorResponse, refused, unreachable};
use crate::env::{APP_UID, PROXY_UID, unit_object};
use crate::host::TestHost;

pub(super) fn restart() {
    let (host, programs) = TestHost::with_units(&["web"]);
    let mut proxy = Proxy::start(&host, "web", 0);
    let mut client = client(&host);
    // No agent runs from here on.
    drop(programs);
    for _ in 0..3 {
        let mut web = host.unit("web");
        proxy.assert_redirects(&mut web, WEB);
        web.listen(ANY);
        proxy.assert_steered(&mut client, OUTSIDE, SERVICE);
        drop(web);
        assert_eq!(client.connect_from(OUTSIDE, SERVICE), refused());
        host.stop("system.slice/web.service");
    }
}

pub(super) fn ended_slices() {
    let mut host = TestHost::new();
    let unit = "system.slice/system-web.slice/web@1.service";
    let path = host.path_of(unit);
    host.add("web").redirect.cgroups = vec![path];
    let programs = host.load(&unit_object()).0;
    host.apply(&programs);
    let mut proxy = Proxy::start(&host, "web", 0);
    for _ in 0..2 {
        let mut web = host.actor(unit, APP_UID);
        proxy.assert_redirects(&mut web, WEB);
        drop(web);
        host.stop("system.slice/system-web.slice");
    }
    // Another instance in the slice, and the slice's own processes.
    let other = "system.slice/system-web.slice/web@2.service";
    assert_eq!(host.actor(other, APP_UID).connect(WEB), unreachable());
    let slice = "system.slice/system-web.slice";
    assert_eq!(host.actor(slice, APP_UID).connect(WEB), unreachable());
}

pub(super) fn restarted_proxy() {
    let (host, programs) = TestHost::with_units(&["web"]);
    drop(programs);
    let (mut web, mut client) = (host.unit("web"), client(&host));
    web.listen(ANY);
    for _ in 0..3 {
        let mut proxy = Proxy::start(&host, "web", 0);
        proxy.assert_redirects(&mut web, WEB);
        proxy.assert_steered(&mut client, OUTSIDE, SERVICE);
        drop(proxy);
        assert_eq!(web.connect(WEB), refused());
        assert_eq!(client.connect_from(OUTSIDE, SERVICE), refused());
        host.stop("mesh.slice/mesh-proxy@web.service");
    }
}

pub(super) fn observed_first() {
    let mut host = TestHost::new();
    host.add("web").is_redirected = false;
    let programs = host.load(&unit_object()).0;
    assert!(host.apply(&programs).redirected.is_empty());
    let (mut web, mut client) = (host.unit("web"), client(&host));
    let listener = web.listen(ANY);
    assert_direct(&mut client, OUTSIDE, SERVICE, &mut web, listener);
    assert_eq!(web.connect(WEB), unreachable());
    let mut proxy = Proxy::start(&host, "web", 0);
    let units = programs.units().unwrap();
    assert!(units[0].has_proxy && !units[0].is_redirected);
    assert_eq!(units[0].listening, [ANY.parse().unwrap()]);
    assert_direct(&mut client, OUTSIDE, SERVICE, &mut web, listener);

    host.end_handshakes();
    host.units[0].is_redirected = true;
    assert_eq!(host.apply(&programs).redirected.len(), 1);
    proxy.assert_steered(&mut client, OUTSIDE, SERVICE);
    proxy.assert_redirects(&mut web, WEB);

    // A handshake may have begun before, however long ago the unit was enrolled.
    let outside = host.connect_outside();
    let mut client = host.actor_in(&outside, "client", APP_UID);
    detach_steering(&host);
    assert_talks(&mut client, REMOTE, REMOTE_SERVICE, &mut web, listener);
}

pub(super) fn older_listener() {
    let mut host = TestHost::new();
    let (mut web, mut other, mut client) = (host.unit("web"), host.unit("other"), client(&host));
    let listener = web.listen(ANY);
    web.listen("127.0.0.1:8081");
    let open = client.connect_from(OUTSIDE, SERVICE);
    let accepted = web.accept(listener);
    host.add("web");
    let programs = host.load(&unit_object()).0;
    assert_eq!(host.apply(&programs).adopted, 1);
    assert_eq!(host.apply(&programs).adopted, 0);
    let mut proxy = Proxy::start(&host, "web", 0);
    proxy.assert_steered(&mut client, OUTSIDE, SERVICE);
    // A connection from before continues.
    let command = ActorCommand::Send {
        id: open.id(),
        text: "still here".into(),
    };
    assert_eq!(client.run(command), ActorResponse::Done);
    let command = ActorCommand::Receive { id: accepted.id() };
    assert_eq!(web.run(command), ActorResponse::Text("still here".into()));

    // Closed: another service gets the port with the next look of the agent.
    web.close(accepted.id());
    web.close(listener);
    let taken = other.listen(ANY);
    let report = host.apply(&programs);
    assert_eq!(report.shared, []);
    assert_direct(&mut client, OUTSIDE, SERVICE, &mut other, taken);
    other.close(taken);
}

pub(super) fn older_listener_of_ended_unit() {
    let mut host = TestHost::new();
    let (mut web, mut client) = (host.unit("web"), client(&host));
    web.listen(ANY);
    host.add("web");
    let programs = host.load(&unit_object()).0;
    assert_eq!(host.apply(&programs).adopted, 1);
    drop(web);
    host.stop("system.slice/web.service");
    // Another service has the port, before the agent looks again.
    let mut other = host.unit("other");
    let listener = other.listen(ANY);
    assert_direct(&mut client, OUTSIDE, SERVICE, &mut other, listener);
}

pub(super) fn closed_port() {
    let (host, _programs) = TestHost::with_units(&["web", "second"]);
    let mut proxy = Proxy::start(&host, "web", 0);
    let mut second_proxy = Proxy::start(&host, "second", 1);
    let (mut web, mut other, mut client) = (host.unit("web"), host.unit("other"), client(&host));
    let mut second = host.unit("second");
    for _ in 0..2 {
        let listener = web.listen(ANY);
        proxy.assert_steered(&mut client, OUTSIDE, SERVICE);
        web.close(listener);
        let listener = other.listen(ANY);
        assert_direct(&mut client, OUTSIDE, SERVICE, &mut other, listener);
        other.close(listener);
        let listener = second.listen(ANY);
        second_proxy.assert_steered(&mut client, OUTSIDE, SERVICE);
        second.close(listener);
    }
}

/// The end of a socket that an earlier enrolment counted is not the end of a newer one.
pub(super) fn enrolled_again() {
    let (mut host, programs) = TestHost::with_units(&["web"]);
    let (mut web, mut client) = (host.unit("web"), client(&host));
    let old = web.listen_shared(ANY);
    let mut units = std::mem::take(&mut host.units);
    assert_eq!(host.apply(&programs).removed.len(), 1);
    assert_direct(&mut client, OUTSIDE, SERVICE, &mut web, old);

    units[0].redirect.cookie = UNIT_COOKIES | 10;
    host.units = units;
    assert_eq!(host.apply(&programs).adopted, 1);
    let mut proxy = Proxy::start(&host, "web", 0);
    proxy.assert_steered(&mut client, OUTSIDE, SERVICE);
    let new = web.listen_shared(ANY);
    web.close(old);
    assert_eq!(host.apply(&programs).adopted, 0);
    proxy.assert_steered(&mut client, OUTSIDE, SERVICE);
    web.close(new);
    assert_eq!(client.connect_from(OUTSIDE, SERVICE), refused());
}

pub(super) fn older_proxy() {
    let mut host = TestHost::new();
    let mut proxy = Proxy::start(&host, "web", 0);
    // On the ports of the proxy, and not the proxy's.
    let mut other = host.actor("mesh.slice/other.service", PROXY_UID);
    other.listen("198.18.0.1:61000");
    host.add("web");
    let programs = host.load(&unit_object()).0;
    assert_eq!(host.apply(&programs).listeners, 3);
    assert!(programs.units().unwrap()[0].has_proxy);
    let (mut web, mut client) = (host.unit("web"), client(&host));
    web.listen(ANY);
    proxy.assert_redirects(&mut web, WEB);
    proxy.assert_steered(&mut client, OUTSIDE, SERVICE);
}
