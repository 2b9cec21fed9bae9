//! Faults of the node agent, the CNI plugin and the kernel programs.

use crate::fault::{Fault, cluster, local, long_cluster};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        number: 39,
        name: "the agent is killed, stopped, upgraded, downgraded",
        planted: "SIGKILL and other programs four times under clients that connect continuously; SIGKILL in a whole mesh under h2load with 6,000 connections",
        promise: "0 lost, no connection unredirected",
        tests: &[
            local("tests/it/mesh/faults.rs::requests_succeed_when_agent_is_killed"),
            local(
                "tests/it/redirect/upgrade.rs::kernel_program_upgrade_under_load_loses_no_connection",
            ),
            local("tests/it/redirect/lifecycle.rs::restarted_agent_adopts_its_pods"),
            local(
                "mesh-agent/tests/privileged/lifecycle.rs::replacing the programs under load fails no connection",
            ),
            long_cluster("tests/e2e/restarts.rs::restarts_under_load_fail_no_request"),
        ],
        limit: "",
    },
    Fault {
        number: 40,
        name: "pods start while the agent is away",
        planted: "a killed or stopped agent, with and without its pinned state",
        promise: "enrolled without it, or not started: never unredirected",
        tests: &[
            local("tests/it/redirect/lifecycle.rs::pods_are_enrolled_while_agent_is_dead"),
            local("mesh-agent/tests/node/plugin.rs::meshed_pod_is_refused_on_node_without_agent"),
            local("mesh-agent/tests/node/plugin.rs::cni_add_works_without_agent_ebpf"),
            local("mesh-agent/tests/node/plugin.rs::cni_add_works_without_agent_nft"),
            local("mesh-agent/tests/node/daemon.rs::pods_start_while_agent_hangs"),
            cluster("tests/e2e/outages.rs::meshed_pods_never_run_unredirected_without_agent"),
        ],
        limit: "",
    },
    Fault {
        number: 41,
        name: "a node boots: pods before the agent, lost state, pins of dead pods",
        planted: "pods that run before they are enrolled, records of another boot, namespaces that are gone",
        promise: "put right at the next reconciliation; no application runs unredirected",
        tests: &[
            local(
                "mesh-agent/tests/node/sandbox.rs::running_pod_is_found_by_uid_and_enrolled_in_place",
            ),
            local("mesh-agent/src/registry.rs::reboot_removes_all_records"),
            local("mesh-agent/src/registry.rs::plugin_ignores_registry_of_earlier_boot"),
            local(
                "mesh-agent/tests/privileged/lifecycle.rs::a pod whose namespace no longer exists is swept",
            ),
            local("mesh-agent/tests/node/plugin.rs::pod_that_ended_without_del_is_removed"),
            local("mesh-proxy/tests/it/redirection.rs::a_pod_that_is_not_redirected_is_not_ready"),
            cluster("tests/e2e/repairs.rs::pod_started_without_plugin_is_enrolled_in_place"),
        ],
        limit: "No machine is booted; what a boot leaves is made.",
    },
    Fault {
        number: 42,
        name: "a map of the kernel programs is full",
        planted: "the table of connections in flight filled; one pod beyond its quota; 30,000 connections at once",
        promise: "the pod at fault loses its next connections only, and they are counted",
        tests: &[
            local(
                "mesh-agent/tests/privileged/quota.rs::a pod that exhausts its quota of connections in flight loses only its own next ones",
            ),
            local(
                "mesh-agent/tests/privileged/quota.rs::the longest lists of ports leave entries for those of other pods",
            ),
            local(
                "mesh-agent/tests/privileged/lifecycle.rs::a full table of connections in flight causes no wrong original destination",
            ),
            local(
                "tests/it/redirect/many_connections.rs::thirty_thousand_concurrent_connections_are_redirected",
            ),
        ],
        limit: "There is no path in user space to fall back to: without an entry the proxy does not know the destination and refuses the connection. Quotas for each pod take its place (docs/operations/limits.md). The cost of a look-up by size is not measured.",
    },
    Fault {
        number: 43,
        name: "bpf(2) fails",
        planted: "no programs, no cgroup2, a kill amid the self-test",
        promise: "another tier, named with the reason, or not ready; never half attached",
        tests: &[
            local(
                "mesh-agent/tests/node/daemon.rs::nft_tier_is_chosen_without_programs_or_cgroup2",
            ),
            local("mesh-agent/tests/node/daemon.rs::unavailable_forced_tier_is_an_error"),
            local(
                "mesh-agent/src/tier.rs::first_working_tier_is_chosen_with_failures_of_better_ones",
            ),
            local(
                "tests/it/redirect/lifecycle.rs::agent_killed_during_self_test_leaves_no_remains",
            ),
        ],
        limit: "",
    },
    Fault {
        number: 44,
        name: "programs are detached, or maps and rules edited by hand",
        planted: "pins and links removed, entries and tables deleted",
        promise: "noticed at the next reconciliation (10 s), repaired, with an event",
        tests: &[
            local(
                "mesh-agent/tests/node/daemon.rs::damaged_kernel_programs_are_repaired_and_the_repair_is_reported",
            ),
            local("mesh-agent/tests/node/daemon.rs::removed_redirection_is_repaired"),
            local("mesh-agent/tests/node/packet_filter.rs::foreign_changes_are_detected"),
            local("mesh-agent/tests/privileged/lifecycle.rs::a lost attachment is restored"),
        ],
        limit: "",
    },
    Fault {
        number: 45,
        name: "the CNI configuration is rewritten, the plugin half written, the disk full or read-only",
        planted: "files altered, removed and made unusable while the agent runs",
        promise: "replaced by renaming; the old configuration stays valid",
        tests: &[
            local("mesh-agent/tests/node/chain.rs::plugin_is_kept_in_the_chain_until_uninstalled"),
            local(
                "mesh-agent/tests/node/chain.rs::damaged_plugin_is_repaired_and_the_repair_is_reported",
            ),
            local("mesh-agent/src/install/tests.rs::unusable_files_are_skipped_and_named"),
            local("mesh-agent/src/install/keeper.rs::many_writes_within_a_minute_are_contention"),
            cluster("tests/e2e/repairs.rs::rewritten_cni_configuration_is_chained_again"),
            cluster("tests/e2e/repairs.rs::plugin_execute_permission_is_repaired_with_event"),
        ],
        limit: "A full disk is not planted.",
    },
    Fault {
        number: 46,
        name: "pods come and go, and an address is used again at once",
        planted: "a pod with the address of a dead one, meshed or not; pods that are removed",
        promise: "nothing of the dead pod serves the new one; no namespace, link or pin is left",
        tests: &[
            local(
                "mesh-agent/tests/privileged/lifecycle.rs::a reused address belongs to its new pod",
            ),
            local("mesh-agent/tests/privileged/lifecycle.rs::removing a pod leaves no state"),
            local("tests/it/redirect/lifecycle.rs::deleted_pod_leaves_no_pins_or_map_entries"),
            local(
                "control-plane/src/index/destination/tests.rs::recreated_pod_replaces_old_address",
            ),
            local(
                "mesh-proxy/src/tls/tests.rs::session_is_not_resumed_with_another_expected_identity",
            ),
        ],
        limit: "50 pods a second are beyond a test machine, which makes about ten.",
    },
    Fault {
        number: 47,
        name: "a running pod becomes meshed",
        planted: "a pod with open connections, enrolled in place",
        promise: "open connections live; new ones are redirected",
        tests: &[
            local("tests/it/redirect/lifecycle.rs::running_pod_can_be_enrolled"),
            local("tests/it/redirect/guard.rs::guard_keeps_connections_from_before_enrolment"),
        ],
        limit: "A pod leaves the mesh by being created anew, as with Linkerd: its proxy is one of its containers.",
    },
];
