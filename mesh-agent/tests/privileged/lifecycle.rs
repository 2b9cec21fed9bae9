//! Loading, adopting, replacing, removing and sweeping; and that no state remains.

use std::fs;
use std::path::Path;

use mesh_agent::ebpf::{Error, Loaded, Programs};
use mesh_agent::redirect::{PodRedirect, Tier};
use mesh_agent::sys::netns;
use mesh_ebpf_common::counter::Counter;

use crate::Case;
use crate::actor::{ActorCommand, ActorResponse, refused, unreachable};
use crate::env::{TestEnv, enrolled, object};

pub(super) const CASES: &[Case] = &[
    ("a second load adopts the pinned programs", adoption),
    (
        "replacing the programs under load fails no connection",
        replacement,
    ),
    ("24,000 connections leave no entry", many_connections),
    (
        "a full table of connections in flight causes no wrong original destination",
        full_table,
    ),
    ("a reused address belongs to its new pod", reused_address),
    ("removing a pod leaves no state", unenrolment),
    (
        "a pod whose namespace no longer exists is swept",
        deleted_namespace,
    ),
    ("a lost attachment is restored", lost_attachment),
    ("invalid pods are refused", refusals),
    (
        "opening fails before an agent has loaded the programs",
        not_pinned,
    ),
    ("a bpffs is mounted only where none is", mounts),
];

const WEB: &str = "192.0.2.10:80";

/// Returns the pinned links, by name, with the program that each runs.
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
    let env = TestEnv::new();
    let (programs, loaded) = env.load(&object());
    assert_eq!(loaded, Loaded::Fresh);
    let pod = env.pod();
    programs.enrol(&pod.redirect).unwrap();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    let client = app.connect(WEB);
    let accepted = proxy.accept(outbound);
    let before = links(&env.pin_dir());
    assert_eq!(before.len(), 9 + 1);

    // As after a crash: no process has any of them open.
    drop(programs);
    let (programs, loaded) = env.load(&object());
    assert_eq!(loaded, Loaded::Adopted);
    assert_eq!(links(&env.pin_dir()), before);
    assert_eq!(programs.pods().unwrap().len(), 1);
    assert_eq!(proxy.original(accepted.id()), Some(WEB.parse().unwrap()));
    let command = ActorCommand::Send {
        id: client.id(),
        text: "still here".into(),
    };
    assert_eq!(app.run(command), ActorResponse::Done);
    let command = ActorCommand::Receive { id: accepted.id() };
    assert_eq!(proxy.run(command), ActorResponse::Text("still here".into()));

    // The CNI plugin adopts them too, without agent and object file.
    let plugin = Programs::open(&env.pin_dir()).unwrap();
    let second = env.pod();
    plugin.enrol(&second.redirect).unwrap();
    assert_eq!(plugin.pods().unwrap().len(), 2);
}

fn replacement() {
    // Most of the ephemeral ports: enough to outlast a replacement, and none is used twice.
    const CONNECTIONS: u32 = 26_000;
    let (pod, _programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let listener = proxy.listen("127.0.0.1:4140");
    proxy.start_command(&ActorCommand::Serve {
        listener,
        count: CONNECTIONS,
    });
    app.start_command(&ActorCommand::Churn {
        target: WEB.parse().unwrap(),
        count: CONNECTIONS,
    });
    let mut programs_seen = vec![links(&pod.env.pin_dir())];
    let mut under_load = 0;
    for round in 0.. {
        let object = if round % 2 == 0 {
            pod.env.other_object()
        } else {
            object()
        };
        assert_eq!(pod.env.load(&object).1, Loaded::Replaced);
        programs_seen.push(links(&pod.env.pin_dir()));
        if pod.count(Counter::OutboundRedirected) >= u64::from(CONNECTIONS) {
            break;
        }
        under_load += 1;
    }
    assert!(under_load > 0, "the load outlasts a replacement");
    assert_eq!(app.response(), ActorResponse::Done);
    assert_eq!(proxy.response(), ActorResponse::Done);
    for pair in programs_seen.windows(2) {
        for (before, after) in pair[0].iter().zip(&pair[1]) {
            assert_eq!(before.0, after.0);
            assert_ne!(before.1, after.1, "{} runs a new program", before.0);
        }
    }
}

fn many_connections() {
    const CONNECTIONS: u32 = 24_000;
    let (pod, programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let listener = proxy.listen("127.0.0.1:4140");
    proxy.start_command(&ActorCommand::Serve {
        listener,
        count: CONNECTIONS,
    });
    let target = WEB.parse().unwrap();
    assert_eq!(
        app.run(ActorCommand::Churn {
            target,
            count: CONNECTIONS
        }),
        ActorResponse::Done
    );
    assert_eq!(proxy.response(), ActorResponse::Done);
    assert_eq!(programs.in_flight().unwrap(), 0);
    assert_eq!(
        pod.count(Counter::OutboundRedirected),
        u64::from(CONNECTIONS)
    );
}

/// A connection without an entry for its destination is redirected and the proxy refuses it; it
/// must neither bypass the proxy nor get the destination of another.
fn full_table() {
    let (pod, _programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    pod.env.fill_in_flight();
    assert_eq!(app.original_at(WEB, &mut proxy, outbound), None);
    assert_eq!(pod.count(Counter::OutboundUntracked), 1);
    pod.env.clear_in_flight();
    app.assert_redirected(WEB, &mut proxy, outbound);
}

/// All pods of an environment have the same addresses; here one follows the other, and the first
/// one is not removed explicitly.
fn reused_address() {
    let env = TestEnv::new();
    let programs = env.programs();
    let first = env.pod();
    programs.enrol(&first.redirect).unwrap();
    let (mut proxy, mut app) = (first.proxy(), first.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    proxy.listen("0.0.0.0:4143");
    app.connect(WEB).id();
    proxy.accept(outbound).id();
    drop((proxy, app));
    drop(first);

    // Not meshed: no state of the first pod affects it.
    let plain = env.pod();
    let mut app = plain.app();
    assert_eq!(app.connect(WEB), unreachable());
    let web = app.listen("0.0.0.0:8080");
    app.connect_from("198.18.0.2:0", "198.18.0.1:8080").id();
    app.accept(web).id();

    // Meshed: redirected to its own proxy, and refused before that listens.
    let second = env.pod();
    programs.enrol(&second.redirect).unwrap();
    let mut app = second.app();
    assert_eq!(app.connect(WEB), refused());
    let mut proxy = second.proxy();
    let outbound = proxy.listen("127.0.0.1:4140");
    app.assert_redirected(WEB, &mut proxy, outbound);
    assert_eq!(second.count(Counter::OutboundRedirected), 2);
}

fn unenrolment() {
    let (pod, programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    proxy.listen("0.0.0.0:4143");
    let opened = app.listen("0.0.0.0:8081");
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
        links(&pod.env.pin_dir()).len(),
        9,
        "only the node's own links"
    );
    assert_eq!(map_entries(&pod.env.pin_dir().join("v1/maps")), 0);
    assert_eq!(programs.sweep(&[]).unwrap(), Default::default());
    assert_eq!(app.connect(WEB), unreachable());
    let web = app.listen("0.0.0.0:8080");
    app.connect_from("198.18.0.2:0", "198.18.0.1:8080").id();
    app.accept(web).id();
    app.close(opened);
    assert_eq!(map_entries(&pod.env.pin_dir().join("v1/maps")), 0);
    drop(accepted);
}

/// Counts the entries of all maps except the socket storage maps, whose entries end with their
/// sockets, the guard's mode, which does not belong to a pod, and the log, whose entries end when
/// they are read.
pub(super) fn map_entries(maps: &Path) -> usize {
    fs::read_dir(maps)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let others = [
                "ORIGINAL_DST",
                "BINDERS",
                "OPENED",
                "UNIT_SOCKETS",
                "GUARD",
                "AYA_LOGS",
            ];
            if others.contains(&name.as_str()) {
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

fn deleted_namespace() {
    let env = TestEnv::new();
    let programs = env.programs();
    let (stays, goes, mut split) = (env.pod(), env.pod(), env.pod());
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
    // The kernel deletes a namespace asynchronously.
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
    let env = TestEnv::new();
    env.programs();
    let links = env.pin_dir().join("v1/links");
    fs::remove_file(links.join("mesh_connect4")).unwrap();
    assert_eq!(env.load(&object()).1, Loaded::Replaced);
    assert!(links.join("mesh_connect4").exists());
    assert_eq!(env.load(&object()).1, Loaded::Adopted);
}

fn refusals() {
    let env = TestEnv::new();
    let programs = env.programs();
    let pod = env.pod();
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
        Err(Error::NetnsMismatch { .. })
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
        map_entries(&env.pin_dir().join("v1/maps")),
        0,
        "a refused pod leaves no state"
    );
}

fn not_pinned() {
    let env = TestEnv::new();
    let error = Programs::open(&env.pin_dir()).unwrap_err();
    assert!(matches!(error, Error::NotPinned(_)));
    assert!(error.to_string().contains("no agent has loaded"), "{error}");
}

fn mounts() {
    let env = TestEnv::new();
    env.programs();
    let below = env.pin_dir().with_file_name("node/mesh");
    mesh_agent::ebpf::load(&object(), &below, env.machine.cgroup()).unwrap();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let parent = env.pin_dir();
    let parent = parent.parent().unwrap().to_string_lossy().into_owned();
    let mounted = mounts.lines().filter(|line| line.contains(&parent)).count();
    assert_eq!(mounted, 1, "{mounts}");
    mesh_agent::ebpf::unload(&below).unwrap();
}
