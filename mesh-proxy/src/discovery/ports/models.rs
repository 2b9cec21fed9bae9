//! Models of the usage of a port: in every order of the threads' steps a port with an enforcer is
//! watched.

use mesh_core::meta::Meta;
use mesh_core::policy::inbound::ServerProtocol;
use mesh_models::{check, join};
use tokio::runtime::{Builder, Runtime};

use super::*;

/// Tasks are spawned on it, and never run.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Builder::new_current_thread().build().unwrap())
}

fn policy() -> ServerPolicy {
    ServerPolicy {
        meta: Meta::new_default("policy"),
        protocol: ServerProtocol::Opaque,
        authorizations: Arc::new([]),
        is_terminating: false,
    }
}

fn find(table: &PortTable) -> PortPolicy {
    let policies: [&dyn Fn() -> ServerPolicy; 2] = [&policy, &policy];
    let start = |_sender, _usage| async {};
    let found = table.find_or_start(80, false, runtime().handle(), policies, start);
    found.unwrap()
}

#[test]
fn port_with_an_enforcer_stays_watched() {
    check(|| {
        let table = PortTable::new(Duration::from_secs(1), runtime().handle());
        let found = find(&table);
        let other = table.clone();
        let (acquired, ()) = join(
            move || {
                if found.try_acquire() {
                    return found;
                }
                // It was evicted, and is looked up again.
                let again = find(&other);
                assert!(again.try_acquire());
                again
            },
            || {
                // The second one evicts an unused port.
                table.sweep();
                table.sweep();
            },
        );
        let is_watched = |table: &PortTable| {
            let entries = table.table.lock();
            let watched = entries.watched.get(&80);
            watched.is_some_and(|it| Arc::ptr_eq(&it.usage, &acquired.usage))
        };
        assert!(is_watched(&table));
        acquired.release();
        table.sweep();
        table.sweep();
        assert!(!is_watched(&table));
    });
}
