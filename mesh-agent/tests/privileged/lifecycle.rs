//! Loading, adopting, replacing, un-enrolling and sweeping; and that nothing is left behind.

use std::{fs, path::Path};

use mesh_agent::{
    ebpf::{Error, Loaded, Programs},
    redirect::{PodRedirect, Tier},
    sys::netns,
};
use mesh_ebpf_common::counter::Counter;

use crate::{
    Case,
    actor::{Answer, Order},
    world::{World, object},
};

pub(super) const CASES: &[Case] = &[
    ("a second load adopts the pinned programs", adoption),
    (
        "replacing the programs under load fails no connection",
        replacement,
    ),
    ("24,000 connections leave no entry", many_connections),
    (
        "a full table of connections in flight tells the proxy nothing wrong",
        full_table,
    ),
    (
        "an address that is used again belongs to its new pod",
        address_again,
    ),
    ("un-enrolling leaves nothing", unenrolment),
    ("a pod whose namespace is gone is swept", gone_pod),
    ("a lost attachment is put back", lost_attachment),
    ("what must not be enrolled is refused", refusals),
    ("nothing is open before the agent has loaded", not_pinned),
    ("a bpffs is mounted only where there is none", mounts),
];

const WEB: &str = "192.0.2.10:80";

/// The pinned links, by name, and the program each runs.
fn links(pin_dir: &Path) -> Vec<(String, u32)> {
    let mut links = Vec::new();
    for directory in ["v1/links", "v1/steer"] {
        for entry in fs::read_dir(pin_dir.join(directory)).unwrap() {
            let path = entry.unwrap().path();
            let link = mesh_agent::sys::bpf::open_pin(&path).unwrap();
            let info = mesh_agent::sys::bpf::link_info(&link).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            links.push((name, info.program));
        }
    }
    links.sort();
    links
}

fn adoption() {
    let world = World::new();
    let (programs, loaded) = world.load(&object());
    assert_eq!(loaded, Loaded::Fresh);
    let pod = world.pod();
    programs.enrol(&pod.redirect).unwrap();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    let client = app.connect(WEB);
    let accepted = proxy.accept(outbound);
    let before = links(&world.pin_dir());
    assert_eq!(before.len(), 8 + 1);

    // As after a crash: nobody has anything open any more.
    drop(programs);
    let (programs, loaded) = world.load(&object());
    assert_eq!(loaded, Loaded::Adopted);
    assert_eq!(links(&world.pin_dir()), before);
    assert_eq!(programs.pods().unwrap().len(), 1);
    assert_eq!(proxy.original(accepted.id()), Some(WEB.parse().unwrap()));
    let order = Order::Send {
        id: client.id(),
        text: "still here".into(),
    };
    assert_eq!(app.order(order), Answer::Done);
    let order = Order::Receive { id: accepted.id() };
    assert_eq!(proxy.order(order), Answer::Text("still here".into()));

    // And the CNI plugin, without agent and object file.
    let plugin = Programs::open(&world.pin_dir()).unwrap();
    let second = world.pod();
    plugin.enrol(&second.redirect).unwrap();
    assert_eq!(plugin.pods().unwrap().len(), 2);
}

fn replacement() {
    const CONNECTIONS: u32 = 15_000;
    let world = World::new();
    let programs = world.programs();
    let pod = world.pod();
    programs.enrol(&pod.redirect).unwrap();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let listener = proxy.listen("127.0.0.1:4140");
    proxy.begin(&Order::Greet {
        listener,
        count: CONNECTIONS,
    });
    app.begin(&Order::Churn {
        target: WEB.parse().unwrap(),
        count: CONNECTIONS,
    });
    let mut programs_seen = vec![links(&world.pin_dir())];
    let mut under_load = 0;
    for round in 0.. {
        let object = if round % 2 == 0 {
            world.other_object()
        } else {
            object()
        };
        assert_eq!(world.load(&object).1, Loaded::Replaced);
        programs_seen.push(links(&world.pin_dir()));
        if pod.count(Counter::OutboundRedirected) >= u64::from(CONNECTIONS) {
            break;
        }
        under_load += 1;
    }
    assert!(under_load > 0, "the load outlasts a replacement");
    assert_eq!(app.answer(), Answer::Done);
    assert_eq!(proxy.answer(), Answer::Done);
    for pair in programs_seen.windows(2) {
        for (before, after) in pair[0].iter().zip(&pair[1]) {
            assert_eq!(before.0, after.0);
            assert_ne!(before.1, after.1, "{} runs a new program", before.0);
        }
    }
}

fn many_connections() {
    const CONNECTIONS: u32 = 24_000;
    let world = World::new();
    let programs = world.programs();
    let pod = world.pod();
    programs.enrol(&pod.redirect).unwrap();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let listener = proxy.listen("127.0.0.1:4140");
    proxy.begin(&Order::Greet {
        listener,
        count: CONNECTIONS,
    });
    let target = WEB.parse().unwrap();
    assert_eq!(
        app.order(Order::Churn {
            target,
            count: CONNECTIONS
        }),
        Answer::Done
    );
    assert_eq!(proxy.answer(), Answer::Done);
    assert_eq!(programs.in_flight().unwrap(), 0);
    assert_eq!(
        pod.count(Counter::OutboundRedirected),
        u64::from(CONNECTIONS)
    );
}

/// Trap 54: without room for its destination a connection is redirected and the proxy refuses it;
/// it must neither go around nor get another's destination.
fn full_table() {
    let world = World::new();
    let programs = world.programs();
    let pod = world.pod();
    programs.enrol(&pod.redirect).unwrap();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    world.fill_in_flight();
    app.connect(WEB).id();
    let accepted = proxy.accept(outbound);
    assert_eq!(proxy.original(accepted.id()), None);
    assert_eq!(pod.count(Counter::OutboundUntracked), 1);
    world.clear_in_flight();
    app.connect(WEB).id();
    let accepted = proxy.accept(outbound);
    assert_eq!(proxy.original(accepted.id()), Some(WEB.parse().unwrap()));
}

/// Trap 49. All pods of a world have the same addresses; here one comes after the other, and the
/// first one goes without a word.
fn address_again() {
    let world = World::new();
    let programs = world.programs();
    let first = world.pod();
    programs.enrol(&first.redirect).unwrap();
    let (mut proxy, mut app) = (first.proxy(), first.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    proxy.listen("0.0.0.0:4143");
    app.connect(WEB).id();
    proxy.accept(outbound).id();
    drop((proxy, app));
    drop(first);

    // Not in the mesh: nothing of the first pod's is left for it.
    let plain = world.pod();
    let mut app = plain.app();
    assert_eq!(
        app.connect(WEB),
        Answer::Failed("NetworkUnreachable".into())
    );
    let web = app.listen("0.0.0.0:8080");
    app.connect_from("198.18.0.2:0", "198.18.0.1:8080").id();
    app.accept(web).id();

    // In the mesh: its own proxy, and closed before that listens.
    let second = world.pod();
    programs.enrol(&second.redirect).unwrap();
    let mut app = second.app();
    assert_eq!(app.connect(WEB), Answer::Failed("ConnectionRefused".into()));
    let mut proxy = second.proxy();
    let outbound = proxy.listen("127.0.0.1:4140");
    app.connect(WEB).id();
    let accepted = proxy.accept(outbound);
    assert_eq!(proxy.original(accepted.id()), Some(WEB.parse().unwrap()));
    assert_eq!(second.count(Counter::OutboundRedirected), 2);
}

fn unenrolment() {
    let world = World::new();
    let programs = world.programs();
    let pod = world.pod();
    programs.enrol(&pod.redirect).unwrap();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    proxy.listen("0.0.0.0:4143");
    app.connect(WEB).id();
    let accepted = proxy.accept(outbound);

    assert!(programs.unenrol(pod.redirect.cookie).unwrap());
    assert!(
        !programs.unenrol(pod.redirect.cookie).unwrap(),
        "it is gone"
    );
    assert_eq!(programs.pods().unwrap(), []);
    assert_eq!(programs.counters().unwrap(), []);
    assert_eq!(programs.in_flight().unwrap(), 0);
    assert_eq!(
        links(&world.pin_dir()).len(),
        8,
        "only the node's own links"
    );
    assert_eq!(map_entries(&world.pin_dir()), 0);
    assert_eq!(programs.sweep(&[]).unwrap(), Default::default());
    assert_eq!(
        app.connect(WEB),
        Answer::Failed("NetworkUnreachable".into())
    );
    let web = app.listen("0.0.0.0:8080");
    app.connect_from("198.18.0.2:0", "198.18.0.1:8080").id();
    app.accept(web).id();
    drop(accepted);
}

/// Entries of all maps but the storage ones, which die with their sockets, and the guard's mode,
/// which is no pod's.
fn map_entries(pin_dir: &Path) -> usize {
    fs::read_dir(pin_dir.join("v1/maps"))
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if ["ORIGINAL_DST", "BINDERS", "GUARD"].contains(&name.as_str()) {
                return 0;
            }
            let output = std::process::Command::new("bpftool")
                .args(["-j", "map", "dump", "pinned"])
                .arg(&path)
                .output()
                .unwrap();
            let dump: serde_json::Value = serde_json::from_slice(&output.stdout)
                .unwrap_or_else(|error| panic!("{name}: {error}: {output:?}"));
            dump.as_array().map_or(0, Vec::len)
        })
        .sum()
}

fn gone_pod() {
    let world = World::new();
    let programs = world.programs();
    let (stays, goes, mut split) = (world.pod(), world.pod(), world.pod());
    split.redirect.tier = Tier::Split;
    let known: Vec<PodRedirect> = [&stays, &goes, &split]
        .into_iter()
        .map(|pod| pod.redirect.clone())
        .collect();
    for pod in &known {
        programs.enrol(pod).unwrap();
    }
    assert_eq!(programs.sweep(&known).unwrap(), Default::default());
    drop(goes);
    drop(split);
    // The kernel takes a namespace down in its own time.
    let mut removed = Vec::new();
    while removed.len() < 2 {
        removed.extend(programs.sweep(&known).unwrap().removed);
        std::thread::yield_now();
    }
    let left: Vec<u64> = programs
        .pods()
        .unwrap()
        .iter()
        .map(|pod| pod.cookie)
        .collect();
    assert_eq!(left, [stays.redirect.cookie]);
}

fn lost_attachment() {
    let world = World::new();
    world.programs();
    let links = world.pin_dir().join("v1/links");
    fs::remove_file(links.join("mesh_connect4")).unwrap();
    assert_eq!(world.load(&object()).1, Loaded::Replaced);
    assert!(links.join("mesh_connect4").exists());
    assert_eq!(world.load(&object()).1, Loaded::Adopted);
}

fn refusals() {
    let world = World::new();
    let programs = world.programs();
    let pod = world.pod();
    let host = PodRedirect {
        netns: "/proc/self/ns/net".into(),
        cookie: netns::current_cookie().unwrap(),
        ..pod.redirect.clone()
    };
    assert!(matches!(programs.enrol(&host), Err(Error::HostNetwork(_))));
    let other = PodRedirect {
        cookie: 1,
        ..pod.redirect.clone()
    };
    assert!(matches!(
        programs.enrol(&other),
        Err(Error::OtherNetns { .. })
    ));
    let nft = PodRedirect {
        tier: Tier::Nft,
        ..pod.redirect.clone()
    };
    assert!(matches!(programs.enrol(&nft), Err(Error::WrongTier(_))));
    let bare = PodRedirect {
        addresses: Vec::new(),
        ..pod.redirect.clone()
    };
    assert!(matches!(programs.enrol(&bare), Err(Error::NoAddress)));
    assert_eq!(
        map_entries(&world.pin_dir()),
        0,
        "a refused pod leaves nothing"
    );
}

fn not_pinned() {
    let world = World::new();
    let error = Programs::open(&world.pin_dir()).unwrap_err();
    assert!(matches!(error, Error::NotPinned(_)));
    assert!(
        error.to_string().contains("the agent has not loaded"),
        "{error}"
    );
}

fn mounts() {
    let world = World::new();
    world.programs();
    let below = world.pin_dir().with_file_name("node/mesh");
    mesh_agent::ebpf::load(&object(), &below, &world.cgroup).unwrap();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let parent = world.pin_dir();
    let parent = parent.parent().unwrap().to_string_lossy().into_owned();
    let ours = mounts.lines().filter(|line| line.contains(&parent)).count();
    assert_eq!(ours, 1, "{mounts}");
    mesh_agent::ebpf::unload(&below).unwrap();
}
