//! Faults of proxies, of the applications behind them, and of the network between them.

use crate::fault::{Fault, cluster, local, long_cluster};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        number: 21,
        name: "a proxy is killed (SIGKILL)",
        planted: "one of three server pods ends at once under h2load, and discovery never says so",
        promise: "only requests in flight in that pod fail; idempotent ones are sent again: 0 lost",
        tests: &[
            local("mesh-proxy/tests/it/load.rs::a_pod_dies_under_load_and_no_request_fails"),
            local("mesh-proxy/tests/it/balance.rs::a_dead_endpoint_fails_no_request"),
        ],
        limit: "A request is not sent again if the server had not responded on its connection before (docs/adr/0211).",
    },
    Fault {
        number: 22,
        name: "SIGTERM with open connections and long streams",
        planted: "SIGTERM to proxies with idle connections, requests in flight, streams and tunnels; pods replaced under clients that keep their connections",
        promise: "0 lost: GOAWAY and connection: close, then exit when idle or after the grace period",
        tests: &[
            local(
                "mesh-proxy/tests/it/shutdown.rs::idle_http_connections_are_closed_and_the_proxy_ends",
            ),
            local(
                "mesh-proxy/tests/it/shutdown.rs::open_connections_are_waited_for_and_admin_answers_meanwhile",
            ),
            local(
                "mesh-proxy/src/tests/shutdown.rs::shutdown_sends_goaway_and_completes_open_streams",
            ),
            local("mesh-proxy/src/tests/shutdown.rs::shutdown_waits_for_tunnels"),
            local(
                "mesh-proxy/src/tests/policy/terminating.rs::http2_connections_accept_no_more_streams_when_pod_is_deleted",
            ),
            local("tests/it/mesh/rolling.rs::stopping_pods_send_no_error_to_unmeshed_clients"),
            long_cluster(
                "tests/e2e/stops.rs::rolling_restarts_fail_no_more_requests_than_without_a_mesh",
            ),
        ],
        limit: "",
    },
    Fault {
        number: 23,
        name: "all servers are replaced, one after the other",
        planted: "three pods of nginx replaced under h2load by HTTP/1 and HTTP/2 and wrk with a connection for each request; on a cluster again and again for ten minutes under 1,000 requests/s and downloads of ten seconds, native and plain sidecars in turns",
        promise: "0 lost",
        tests: &[
            local("tests/it/mesh/rolling.rs::rolling_replacement_fails_no_request"),
            long_cluster("tests/e2e/restarts.rs::restarts_under_load_fail_no_request"),
            long_cluster(
                "tests/e2e/restarts.rs::ten_rolling_restarts_lose_none_of_600_000_requests",
            ),
        ],
        limit: "",
    },
    Fault {
        number: 24,
        name: "proxies and control plane of two releases",
        planted: "proxies of another release under this control plane and the other way round, while a pod is added and the control plane killed under h2load and wrk; extensions of messages that one of them does not know; agents upgraded and rolled back under h2load",
        promise: "0 lost; the meaning of policies does not change",
        tests: &[
            local(
                "mesh-agent/src/repairs.rs::kinds_serialise_by_name_and_unknown_names_are_accepted",
            ),
            local(
                "mesh-core/src/redirection.rs::event_is_read_without_optional_fields_and_with_unknown_hook",
            ),
            local(
                "mesh-proxy/src/tests/filters.rs::unknown_filter_fails_only_the_requests_of_its_rule",
            ),
            local(
                "tests/it/mesh/releases.rs::proxies_of_the_previous_release_work_under_this_control_plane",
            ),
            local(
                "tests/it/mesh/releases.rs::proxies_work_under_the_control_plane_of_the_previous_release",
            ),
            long_cluster("tests/e2e/restarts.rs::restarts_under_load_fail_no_request"),
        ],
        limit: "The tests with another release run when `MESH_TEST_PREVIOUS` names a directory with its programs (CONTRIBUTING.md).",
    },
    Fault {
        number: 25,
        name: "an application starts slowly, crashes, stalls, resets amid a body or half-closes",
        planted: "scripted applications that do each of them; nginx and nghttpd killed under h2load",
        promise: "the right status, the right half-close, no descriptor left",
        tests: &[
            local(
                "mesh-proxy/tests/it/load.rs::an_application_dies_under_load_and_no_request_fails",
            ),
            local(
                "mesh-proxy/tests/it/load.rs::an_http2_application_dies_under_load_and_no_request_fails",
            ),
            local(
                "mesh-proxy/tests/it/routes.rs::an_application_that_is_gone_gives_502_without_the_peers_headers",
            ),
            local(
                "mesh-proxy/tests/it/routes.rs::an_overrun_request_gives_504_and_keeps_the_connection",
            ),
            local(
                "mesh-proxy/src/tests/restarts.rs::connection_is_closed_without_response_when_application_exits_during_request",
            ),
            local(
                "mesh-proxy/src/tests/restarts.rs::first_request_gets_502_when_application_does_not_listen",
            ),
            local(
                "mesh-proxy/src/http/tests/http1.rs::incomplete_response_body_aborts_client_connection",
            ),
            local(
                "mesh-proxy/src/transport/copy/tests.rs::half_closed_connection_carries_the_other_direction",
            ),
            local("mesh-proxy/src/transport/copy/tests.rs::reset_is_an_error_of_its_connection"),
            local(
                "mesh-proxy/src/tls/tests/stream.rs::half_closed_tunnel_carries_the_other_direction",
            ),
        ],
        limit: "As row 21: a request is not sent again if it was the first on its connection.",
    },
    Fault {
        number: 26,
        name: "every connection is reset again and again",
        planted: "all connections of one of three pods reset by ss, twelve times under wrk, the pod and the time chosen by the seed",
        promise: "no crash, no leak, all well once it stops",
        tests: &[
            local(
                "mesh-proxy/tests/it/faults/network.rs::reset_storm_leaves_nothing_and_ends_with_it",
            ),
            local("mesh-proxy/src/transport/copy/tests.rs::reset_is_an_error_of_its_connection"),
            local("mesh-proxy/src/http/tests/http1.rs::client_disconnect_cancels_request"),
        ],
        limit: "Requests that are in flight while a connection is reset are not judged.",
    },
    Fault {
        number: 27,
        name: "lost packets, a slow line, a partition",
        planted: "5 % and 20 % of the packets in both directions dropped under h2load; a server that gets no packet for a while; an endpoint that acknowledges no PING",
        promise: "no failure that the proxy causes; keep-alive ends dead peers",
        tests: &[
            local(
                "mesh-proxy/tests/it/faults/network.rs::lost_packets_and_a_partition_fail_no_request",
            ),
            local(
                "mesh-proxy/src/http/tests/http2/connections.rs::endpoint_that_acknowledges_no_pings_fails_requests",
            ),
            local(
                "mesh-proxy/src/http/tests/hostile.rs::idle_connection_is_closed_if_client_ignores_goaway_ping",
            ),
        ],
        limit: "A line of 1 Mbit/s is not planted, and the partition lasts shorter than the keep-alive of 13 s.",
    },
    Fault {
        number: 28,
        name: "of six endpoints one is a black hole, one slow, one answers 503",
        planted: "six pods under h2load, of which three chosen by the seed drop every packet, take two seconds, and answer 503; each kind by itself; on a cluster failing replicas under load",
        promise: "99.9 % succeed with breaker and balancing",
        tests: &[
            local(
                "mesh-proxy/tests/it/faults/network.rs::three_bad_endpoints_of_six_fail_less_than_a_thousandth",
            ),
            local("mesh-proxy/tests/it/balance.rs::a_dead_endpoint_fails_no_request"),
            local(
                "mesh-proxy/src/tests/breaker.rs::endpoint_leaves_rotation_after_seven_failures_and_returns_after_probe",
            ),
            local("mesh-proxy/src/tests/breaker.rs::time_limits_of_policy_count_as_failures"),
            local("mesh-proxy/src/balance/tests.rs::slow_and_busy_endpoints_are_avoided"),
            cluster("tests/e2e/routes.rs::routes_and_policies_do_what_they_say"),
        ],
        limit: "",
    },
    Fault {
        number: 29,
        name: "a thousand clients read a gigabyte slowly",
        planted: "readers that stop, of each protocol",
        promise: "memory for each connection is bounded; others are served",
        tests: &[
            local(
                "mesh-proxy/src/http/tests/http2.rs::unread_response_occupies_at_most_two_windows",
            ),
            local(
                "mesh-proxy/src/http/tests/http2/connections.rs::unread_responses_do_not_block_other_requests",
            ),
            local("mesh-proxy/src/http/tests/http1.rs::unread_response_does_not_block_request"),
            local("mesh-proxy/src/transport/copy/tests.rs::reader_that_stops_blocks_the_writer"),
            local("mesh-http2/src/connection/tests/pair.rs::unread_stream_blocks_its_sender"),
        ],
        limit: "By HTTP/2 a reader may occupy two windows, which are 72 KiB each by default. 4,000 slow readers at once are a case of `cargo xtask test --suites slowhttptest`.",
    },
    Fault {
        number: 30,
        name: "slow headers, slow bodies, a byte a second, thousands of silent connections",
        planted: "silent clients and those that send byte by byte, with the clock paused where minutes pass",
        promise: "detection ends after 10 s, headers after 30 s with 408; honest clients are served",
        tests: &[
            local("mesh-proxy/tests/it/accept.rs::silent_and_slow_clients_do_not_block_others"),
            local("mesh-proxy/src/tests/identity.rs::silent_client_does_not_block_others"),
            local("mesh-proxy/src/http/tests/http1.rs::incomplete_headers_time_out_with_408"),
            local(
                "mesh-proxy/src/http/tests/http1/interim.rs::stalled_request_body_times_out_with_408",
            ),
            local("fuzz/tests/silent.rs::silent_connection_uses_at_most_four_kilobytes"),
        ],
        limit: "4,000 of them at once are cases of `cargo xtask test --suites slowhttptest`.",
    },
    Fault {
        number: 31,
        name: "headers that are many, huge, or hold NUL, CR, folds or other bytes",
        planted: "raw requests with each of them; every split of a request",
        promise: "431 or 400, and closed where framing is in doubt; no policy is passed by",
        tests: &[
            local(
                "mesh-proxy/src/http/tests/http1.rs::requests_with_invalid_header_section_are_rejected_and_connection_closes",
            ),
            local(
                "mesh-proxy/src/http/tests/http1.rs::requests_with_invalid_body_framing_are_rejected_and_connection_closes",
            ),
            local("mesh-proxy/src/http/tests/http1.rs::request_is_parsed_the_same_however_split"),
            local(
                "mesh-proxy/src/http/http1/parse/tests.rs::header_sections_beyond_limits_are_rejected",
            ),
            local(
                "mesh-proxy/src/http/tests/hostile.rs::requests_with_too_many_fields_get_431_and_connection_stays",
            ),
            local("mesh-http2/src/connection/tests/frames.rs::field_section_size_is_limited"),
            local(
                "mesh-core/src/policy/inbound/authorize/tests.rs::agrees_with_a_second_evaluator",
            ),
        ],
        limit: "",
    },
    Fault {
        number: 32,
        name: "floods of HTTP/2: resets, CONTINUATION, empty frames, settings, windows of zero, HPACK bombs",
        planted: "each attack against the server of the proxy, beside an honest client",
        promise: "the attacker is cut off at its limit; the honest client is served",
        tests: &[
            local(
                "mesh-proxy/src/http/tests/hostile.rs::attacks_are_contained_and_honest_client_is_served",
            ),
            local("mesh-proxy/src/http/tests/hostile.rs::busy_client_exceeds_no_limit"),
            local(
                "mesh-http2/src/connection/tests/hostile.rs::field_sections_that_repeat_table_entries_are_rejected_and_close_the_connection",
            ),
            local(
                "mesh-http2/src/connection/tests/hostile.rs::frames_on_reset_streams_close_the_connection",
            ),
            local("mesh-http2/src/flood/tests.rs::idle_frames_close_the_connection"),
        ],
        limit: "Memory and CPU of eight attackers at once are judged by `cargo xtask test --suites hostile`.",
    },
    Fault {
        number: 33,
        name: "TLS in fragments, with garbage, padding, or huge certificates",
        planted: "handshakes cut at every byte, padded, repeated and flipped",
        promise: "no panic; time and memory are bounded",
        tests: &[
            local("mesh-proxy/src/tests/tls_routes.rs::client_hello_in_small_segments_is_routed"),
            local("mesh-proxy/src/tests/tls_routes.rs::endless_client_hello_is_closed"),
            local(
                "mesh-proxy/src/tls/handshake/tests.rs::padded_handshake_records_beyond_the_limit_close_the_connection",
            ),
            local(
                "mesh-proxy/src/tls/handshake/tests.rs::messages_longer_in_total_than_the_handshake_limit_close_the_connection",
            ),
            local(
                "mesh-proxy/src/transport/tls/tests.rs::random_handshake_messages_are_rejected_or_incomplete",
            ),
            local(
                "mesh-proxy/src/transport/tls/tests/rejected.rs::record_with_any_flipped_bit_is_rejected",
            ),
            local("fuzz/tests/replay.rs::corpus_inputs_cause_no_findings"),
        ],
        limit: "",
    },
    Fault {
        number: 34,
        name: "memory runs out under many connections",
        planted: "a limit below what any proxy needs, so that every connection is one too many",
        promise: "refused by its own limit before the kernel kills it; probes are answered",
        tests: &[
            local("mesh-proxy/tests/it/accept.rs::connections_are_refused_while_memory_is_short"),
            local("mesh-proxy/src/tests/admin.rs::only_probes_are_served_while_memory_is_short"),
            local("mesh-runtime/src/memory.rs::cgroup_with_a_limit_is_found"),
        ],
        limit: "A limit of 32 MiB with 10,000 connections is not planted.",
    },
    Fault {
        number: 35,
        name: "descriptors run out",
        planted: "300 connections to a proxy that may open 30 files more; the limits that a proxy derives from its limit of open files",
        promise: "accepting survives EMFILE and goes on; logged",
        tests: &[
            local(
                "mesh-proxy/tests/it/faults/resources.rs::accepting_survives_exhausted_descriptors_and_continues",
            ),
            local("mesh-proxy/src/limits/connections.rs::one_direction_cannot_use_all_descriptors"),
            local(
                "mesh-proxy/tests/it/start.rs::the_limit_of_open_files_is_raised_as_far_as_it_may_be",
            ),
            local("mesh-proxy/tests/it/accept.rs::tunnels_count_among_the_connections"),
        ],
        limit: "",
    },
    Fault {
        number: 36,
        name: "the proxy has a tenth of a CPU",
        planted: "both proxies stopped for nine tenths of the time under h2load, with 200 new connections at once",
        promise: "no timeout of its own making",
        tests: &[local(
            "mesh-proxy/tests/it/faults/resources.rs::proxies_with_a_tenth_of_a_cpu_fail_no_request",
        )],
        limit: "",
    },
    Fault {
        number: 37,
        name: "DNS fails, waits, lies or is cut",
        planted: "names of the control plane whose records are addresses; replicas that cannot be reached",
        promise: "the last good answer is kept; bounded",
        tests: &[
            local("mesh-proxy/src/control/dns.rs::pod_name_in_srv_record_contains_address"),
            local(
                "mesh-proxy/src/control/client/replicas.rs::failure_is_shared_with_earlier_requests",
            ),
            local(
                "mesh-proxy/src/control/client/replicas.rs::replicas_rotate_and_unreachable_ones_come_last",
            ),
        ],
        limit: "A server that fails or lies is not planted. Only the names of the control plane are resolved by a proxy; connections to it stay open while DNS fails.",
    },
    Fault {
        number: 38,
        name: "system calls fail with EINTR, ENOBUFS, ECONNABORTED, EPROTO, or write less",
        planted: "strace makes every third accept4 or connect of both proxies fail under h2load; writes of any length through the record layer and the copy loops",
        promise: "no loop, no loss",
        tests: &[
            local("mesh-proxy/tests/it/faults/resources.rs::failing_system_calls_lose_no_request"),
            local("mesh-proxy/src/tls/tests/stream.rs::random_writes_arrive_in_both_directions"),
            local(
                "mesh-proxy/src/transport/tls/tests.rs::more_received_bytes_than_the_buffer_are_opened_in_parts",
            ),
        ],
        limit: "Errors of reads and writes are not injected, as an error of an established connection ends it.",
    },
];
