//! The programs of units: adopted, replaced under load and removed.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, thread};

use mesh_agent::ebpf::{Loaded, unload_for_units};
use mesh_agent::sys::bpf;
use mesh_test_support::eventually::eventually;

use super::{ANY, OUTSIDE, Proxy, SERVICE, WEB, assert_direct, client};
use crate::actor::{ActorCommand, ActorResponse, unreachable};
use crate::env::{other_object, unit_object};
use crate::host::{TestHost, pins};

/// Returns the pinned links, by name, with the program that each runs.
fn links(host: &TestHost) -> Vec<(String, u32)> {
    let links = pins(&host.pin_dir().join("machine-v1/links"));
    let link = |path: &PathBuf| {
        let link = bpf::open_pin(path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, bpf::link_info(&link).unwrap().program)
    };
    links.iter().map(link).collect()
}

pub(super) fn adoption() {
    let (host, programs) = TestHost::with_units(&["web"]);
    let mut proxy = Proxy::start(&host, "web", 0);
    let (mut web, mut client) = (host.unit("web"), client(&host));
    web.listen(ANY);
    let before = links(&host);
    assert_eq!(before.len(), 16);
    assert_eq!(programs.attached().unwrap().len(), 16);
    drop(programs);
    let (programs, loaded) = host.load(&unit_object());
    assert_eq!(loaded, Loaded::Adopted);
    assert_eq!(links(&host), before);
    let report = host.apply(&programs);
    assert_eq!(report, Default::default(), "there is nothing to do");
    proxy.assert_redirects(&mut web, WEB);
    proxy.assert_steered(&mut client, OUTSIDE, SERVICE);

    // One that is detached is attached again.
    for lost in [
        "mesh_unit_connect4",
        "mesh_cgroup_mkdir",
        "mesh_proxy_bind6",
    ] {
        let path = host.pin_dir().join("machine-v1/links").join(lost);
        fs::remove_file(&path).unwrap();
        assert_eq!(programs.attached().unwrap().len(), 15);
        assert_eq!(host.load(&unit_object()).1, Loaded::Replaced, "{lost}");
        assert!(path.exists());
        assert_eq!(host.load(&unit_object()).1, Loaded::Adopted, "{lost}");
    }
    // With the proxies' slice.
    drop(proxy);
    host.stop("mesh.slice");
    let _proxy = host.proxy("web");
    // The kernel detaches programs a moment after the end of a cgroup.
    eventually("the end of the proxies' programs", || {
        programs.attached().unwrap().len() == 10
    });
    assert_eq!(host.load(&unit_object()).1, Loaded::Replaced);
    assert_eq!(programs.attached().unwrap().len(), 16);
}

pub(super) fn replacement() {
    /// A source port can be used again for another destination.
    const EACH: u32 = 26_000;
    const TARGETS: [&str; 1] = [WEB];
    let (host, programs) = TestHost::with_units(&["web"]);
    let (mut proxy, mut web) = (host.proxy("web"), host.unit("web"));
    let listener = proxy.listen("127.0.0.1:61000");
    proxy.start_command(&ActorCommand::Serve {
        listener,
        count: EACH,
    });
    for target in TARGETS {
        web.start_command(&ActorCommand::Churn {
            target: target.parse().unwrap(),
            count: EACH,
        });
    }
    let is_over = AtomicBool::new(false);
    let under_load = thread::scope(|scope| {
        let load = scope.spawn(|| {
            let responses = TARGETS.map(|_| web.response());
            is_over.store(true, Ordering::Relaxed);
            responses
        });
        let mut under_load = 0;
        let mut before = links(&host);
        for round in 0.. {
            let object = if round % 2 == 0 {
                other_object(&host.machine, &unit_object())
            } else {
                unit_object()
            };
            assert_eq!(host.load(&object).1, Loaded::Replaced);
            let after = links(&host);
            for (before, after) in before.iter().zip(&after) {
                assert_eq!(before.0, after.0);
                assert_ne!(before.1, after.1, "{} runs a new program", before.0);
            }
            before = after;
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            under_load += 1;
        }
        assert_eq!(load.join().unwrap(), TARGETS.map(|_| ActorResponse::Done));
        under_load
    });
    assert!(under_load > 0, "the load outlasts a replacement");
    assert_eq!(proxy.response(), ActorResponse::Done);
    assert_eq!(programs.in_flight().unwrap(), 0);
}

pub(super) fn withdrawn() {
    let (mut host, programs) = TestHost::with_units(&["web", "data"]);
    let mut proxy = Proxy::start(&host, "web", 0);
    let mut data_proxy = Proxy::start(&host, "data", 1);
    let (mut web, mut data, mut client) = (host.unit("web"), host.unit("data"), client(&host));
    let listener = web.listen(ANY);
    data.listen("0.0.0.0:5432");
    proxy.assert_redirects(&mut web, WEB);
    proxy.assert_steered(&mut client, OUTSIDE, SERVICE);

    let cookie = host.units.remove(0).redirect.cookie;
    assert_eq!(host.apply(&programs).removed, [cookie]);
    assert_eq!(web.connect(WEB), unreachable());
    assert_direct(&mut client, OUTSIDE, SERVICE, &mut web, listener);
    data_proxy.assert_redirects(&mut data, WEB);
    data_proxy.assert_steered(&mut client, OUTSIDE, "198.18.0.1:5432");
    assert_eq!(programs.units().unwrap().len(), 1);
    assert_eq!(programs.counters().unwrap().len(), 1);
    // Only the other's entries are left, and its restart is followed.
    let with_both = host.map_entries();
    let unit = host.add("web").clone();
    host.apply(&programs);
    host.units.pop();
    host.apply(&programs);
    assert_eq!(host.map_entries(), with_both, "{unit:?}");
    web.close(listener);
    assert_eq!(host.map_entries(), with_both);

    host.units.clear();
    host.apply(&programs);
    let addresses_and_root = 3 + 1;
    // LEVELS is an array of one.
    assert_eq!(host.map_entries(), addresses_and_root + 1);
    unload_for_units(&host.pin_dir()).unwrap();
    assert_eq!(pins(&host.pin_dir()), Vec::<PathBuf>::new());
    assert_eq!(data.connect(WEB), unreachable());
}
