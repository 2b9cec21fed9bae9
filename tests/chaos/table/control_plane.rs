//! Faults of the control plane and of the API server behind it.

use crate::fault::{Fault, cluster, local, long_cluster};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        number: 1,
        name: "the whole control plane is gone for 30 minutes",
        planted: "SIGKILL, or SIGSTOP, of every controller under h2load and wrk; streams refused on a clock that tests move",
        promise: "0 lost to known destinations, for fast and slow clients; unknown ones are answered within 3 s",
        tests: &[
            local("tests/it/mesh/rolling.rs::control_plane_crash_fails_no_request"),
            local("tests/it/mesh/faults.rs::traffic_survives_stopped_controllers"),
            local(
                "mesh-proxy/src/discovery/tests.rs::endpoints_stay_in_force_during_control_plane_outage",
            ),
            local(
                "mesh-proxy/src/discovery/tests/ports.rs::policy_outlives_idle_time_during_control_plane_outage",
            ),
            local(
                "mesh-proxy/src/tests/discovery.rs::unused_destination_is_reachable_while_control_plane_is_away",
            ),
            local(
                "mesh-proxy/src/tests/discovery.rs::unused_destination_is_reachable_at_once_when_control_plane_refuses",
            ),
            local(
                "mesh-proxy/src/tests/discovery.rs::request_fails_when_control_plane_never_responds",
            ),
            cluster("tests/e2e/routes.rs::routes_and_policies_do_what_they_say"),
        ],
        limit: "The last values of unused destinations are kept for ten minutes and up to 1,024 destinations and 4,096 endpoints (docs/operations/limits.md): a client that sends less than a request in ten minutes on new connections gets 504. The status for an unknown destination is 504, not 503. Under load the outage lasts seconds; the half hour passes on a paused clock.",
    },
    Fault {
        number: 2,
        name: "the control plane is a black hole after connecting",
        planted: "every packet between a proxy and its control plane dropped under h2load; a stream whose first message never comes",
        promise: "noticed by keep-alive, reconnected with jitter, 0 lost",
        tests: &[
            local(
                "mesh-proxy/tests/it/faults/network.rs::black_hole_to_control_plane_is_noticed_and_loses_no_request",
            ),
            local("mesh-proxy/src/control/tests.rs::stream_without_first_message_times_out"),
            local("mesh-proxy/src/control/backoff.rs::waits_double_up_to_maximum"),
        ],
        limit: "The keep-alive of the control client (a PING every 10 s, acknowledged within 5 s) notices a black hole after 15 s at most, not 10 s.",
    },
    Fault {
        number: 3,
        name: "the control plane is back, and 500 proxies return at once",
        planted: "one proxy whose service restarts; its back-off and jitter by themselves",
        promise: "no stampede, all current within 30 s, memory at most twice as before",
        tests: &[
            local("mesh-proxy/src/control/tests.rs::calls_succeed_after_service_restart"),
            local("mesh-proxy/src/control/backoff.rs::waits_double_up_to_maximum"),
            local("mesh-cluster/src/calls.rs::streams_are_shared_by_clients_and_their_pods"),
        ],
        limit: "Not planted with 500 proxies, which do not fit on a test machine; the promise about rate and memory is therefore not judged.",
    },
    Fault {
        number: 4,
        name: "one subscriber stops reading",
        planted: "a client that does not read its stream while 200 endpoints change five times",
        promise: "the others are served as before; the slow one skips to the current state",
        tests: &[
            local(
                "control-plane/tests/it/destination.rs::slow_reader_does_not_block_others_and_skips_states",
            ),
            local("viz/src/web/stream.rs::slow_viewer_gets_the_last_responses_only"),
        ],
        limit: "",
    },
    Fault {
        number: 5,
        name: "the API server is gone, slow or answers 429",
        planted: "a relay that is cut, a scripted API server that delays or refuses, and on a cluster two minutes without its API server under h2load",
        promise: "known objects stay in effect; no exit, no storm of leaders",
        tests: &[
            local(
                "mesh-cluster/src/api_server/lease/tests.rs::holder_without_api_server_stops_before_another_writes",
            ),
            local(
                "mesh-cluster/src/api_server/lease/tests.rs::slow_responses_shorten_leadership_by_their_delay",
            ),
            local(
                "control-plane/src/status/tests/writing.rs::overloaded_api_server_is_asked_less_often_and_then_written_to",
            ),
            cluster(
                "control-plane/tests/cluster/absent.rs::known_objects_stay_in_effect_without_api_server",
            ),
            long_cluster("tests/e2e/outages.rs::traffic_survives_api_server_outage"),
        ],
        limit: "Two minutes on the cluster, not ten.",
    },
    Fault {
        number: 6,
        name: "a watch ends, repeats itself, skips or fails",
        planted: "sequences of lists and events given to the table behind the watches",
        promise: "the state equals a fresh list; no object is lost or comes back",
        tests: &[
            local(
                "mesh-cluster/src/source/kube/table/tests.rs::repeated_list_reports_only_differences",
            ),
            local("mesh-cluster/src/source/kube/table/tests.rs::incomplete_list_has_no_effect"),
            local(
                "mesh-cluster/src/source/kube/batching/tests.rs::repeated_list_without_changes_sends_no_batch",
            ),
            local(
                "mesh-cluster/src/source/kube/batching/tests.rs::changes_are_merged_while_channel_is_full",
            ),
            cluster("control-plane/tests/cluster/endpoints.rs::endpoints_follow_the_api_server"),
        ],
        limit: "410 Gone, bookmarks and ERROR events end in kube's watcher, which lists anew; they are not planted on the wire, only what it makes of them.",
    },
    Fault {
        number: 7,
        name: "an API server restarts with an older state",
        planted: "a scripted API server whose resource version decreases while the watches get no events, on a clock that the test moves",
        promise: "never back without a word: list anew and log",
        tests: &[local(
            "mesh-cluster/src/source/kube/restored.rs::older_state_is_listed_anew_within_the_interval",
        )],
        limit: "It is noticed within 30 s, or 15 s after an outage of the API server. A state that has caught up with the old version by then is not noticed. The node agent, which watches the pods of its node for `in-place` redirection, does not notice it.",
    },
    Fault {
        number: 8,
        name: "the leader is killed, cannot reach its Lease, or has a wrong clock",
        planted: "replicas against a scripted API server on a clock that the test moves; a task that panics",
        promise: "another leader within 15 s, never two writers; a process whose task has died ends",
        tests: &[
            local(
                "mesh-cluster/src/api_server/lease/tests.rs::killed_holder_is_replaced_within_15_seconds",
            ),
            local(
                "mesh-cluster/src/api_server/lease/tests.rs::one_of_three_replicas_writes_without_interruption",
            ),
            local(
                "mesh-cluster/src/api_server/lease/tests.rs::times_of_other_clocks_have_no_effect",
            ),
            local(
                "control-plane/src/status/tests/writing.rs::no_patch_is_sent_that_could_outlast_the_lease",
            ),
            local("mesh-runtime/src/task.rs::panicking_task_is_reported_as_panicked"),
            cluster("tests/e2e/statuses.rs::routes_have_conditions_that_survive_their_writer"),
        ],
        limit: "",
    },
    Fault {
        number: 9,
        name: "1,000 endpoints change every second",
        planted: "changes that arrive faster than they are read, in the controllers and in a proxy",
        promise: "from write to use p99 at most 1 s; no request to an endpoint that left 2 s ago",
        tests: &[
            local(
                "mesh-cluster/src/source/kube/batching/tests.rs::concurrent_changes_are_one_batch_of_current_versions",
            ),
            local(
                "mesh-proxy/src/discovery/endpoints.rs::unchanged_endpoints_are_not_published_again",
            ),
            local("mesh-proxy/src/balance/tests.rs::update_keeps_unchanged_endpoints"),
            local(
                "mesh-proxy/src/tests/discovery.rs::requests_wait_for_replacement_of_removed_endpoint",
            ),
        ],
        limit: "Latencies are measured, not tested: row endpoint changes of docs/bench has what 1,000 changes a second cost a proxy. The 10,000 pods are not planted.",
    },
    Fault {
        number: 10,
        name: "hostile objects: huge, contradictory, or pointing at the node",
        planted: "a corpus of objects through the validator, the conversions and the proxy's dial",
        promise: "refused or ignored with a condition; no panic; never sent to loopback",
        tests: &[
            local("mesh-k8s/src/validate/tests.rs::objects_of_corpus_get_their_verdicts"),
            local("mesh-k8s/src/validate/tests.rs::object_with_too_many_items_is_denied"),
            local(
                "mesh-cluster/src/source/kube/table/tests.rs::invalid_object_is_reported_once_and_keeps_last_valid_version",
            ),
            local(
                "mesh-objects/src/convert/egress_network.rs::networks_and_exceptions_are_bounded",
            ),
            local("mesh-proxy/src/outbound/dial.rs::loopback_endpoints_are_refused"),
            cluster("tests/e2e/validation.rs::api_server_gives_verdicts_of_validators"),
        ],
        limit: "Endpoints in 169.254.0.0/16 and with the node's own address are dialled, as by Linkerd's proxy: those who may write EndpointSlices may name them, and the API server itself refuses link-local addresses there.",
    },
    Fault {
        number: 11,
        name: "one pod floods destination and identity",
        planted: "streams and certificate requests beyond the limits, from one client among others",
        promise: "refused by limits for each client; others are served",
        tests: &[
            local("mesh-cluster/src/calls.rs::streams_are_shared_by_clients_and_their_pods"),
            local("control-plane/tests/it/destination.rs::streams_over_limit_are_shared"),
            local(
                "control-plane/src/identity/limits.rs::accounts_have_separate_limits_and_full_buckets_are_removed",
            ),
            local("control-plane/src/identity/tests.rs::requests_over_limit_are_rejected"),
        ],
        limit: "The latencies of the others under 2,000 lookups a second are not judged.",
    },
    Fault {
        number: 12,
        name: "the kernel kills a controller for its memory",
        planted: "SIGKILL, which is what the kernel sends",
        promise: "started again, 0 lost",
        tests: &[local(
            "tests/it/mesh/rolling.rs::control_plane_crash_fails_no_request",
        )],
        limit: "",
    },
];
