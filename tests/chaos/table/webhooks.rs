//! Faults of webhooks, of disks, and around the command line.

use crate::fault::{Fault, cluster, local, long_cluster};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        number: 48,
        name: "the injector is away or slow",
        planted: "a review that takes longer than the API server waits; on a cluster, no injector and no endpoints of it",
        promise: "as its failure policy says; system namespaces are never blocked; uninjected pods are found",
        tests: &[
            local(
                "mesh-cluster/src/webhook/tests.rs::slow_review_gets_response_before_timeout_of_api_server",
            ),
            local(
                "control-plane/src/injector.rs::unreviewed_object_is_admitted_or_denied_by_failure_policy",
            ),
            local("cli/src/check/tests/consequences.rs::injector_scaled_to_zero_is_one_root_cause"),
            long_cluster("tests/e2e/faults.rs::check_reports_every_fault_and_its_hint_repairs_it"),
        ],
        limit: "",
    },
    Fault {
        number: 49,
        name: "garbage and oversized reviews; the certificate or its CA is exchanged",
        planted: "raw requests to the running server, and files exchanged under it",
        promise: "4xx with a reason, no panic; the new certificate without a restart",
        tests: &[
            local("mesh-cluster/src/webhook/tests.rs::invalid_reviews_get_http_error_with_reason"),
            local("mesh-cluster/src/webhook/review/tests.rs::errors_name_reason_of_invalid_review"),
            local(
                "mesh-cluster/src/webhook/tests.rs::replaced_certificate_is_used_for_new_connections",
            ),
            local("mesh-cluster/src/webhook/mounted.rs::certificate_is_reloaded_when_files_match"),
            cluster(
                "control-plane/tests/cluster/injector.rs::certificate_and_ca_bundle_are_repaired",
            ),
        ],
        limit: "",
    },
    Fault {
        number: 50,
        name: "500 pods a second are reviewed",
        planted: "large reviews in flight up to the limit of the server",
        promise: "p99 at most 50 ms",
        tests: &[local(
            "mesh-cluster/src/webhook/tests.rs::large_reviews_in_flight_are_bounded_and_small_ones_still_pass",
        )],
        limit: "A latency is measured on a quiet machine, not tested; only the bound on memory is judged.",
    },
    Fault {
        number: 51,
        name: "no space, or an error, while files are written",
        planted: "damaged records and files, as a torn write leaves them",
        promise: "no torn file is believed; correct once there is space",
        tests: &[
            local("mesh-agent/src/registry.rs::damaged_record_is_reported_and_others_are_read"),
            local(
                "mesh-agent/src/install/tests.rs::program_is_installed_when_missing_altered_or_not_executable",
            ),
            local(
                "mesh-agent/src/install/tests.rs::changes_of_other_programs_are_repaired_or_reported",
            ),
        ],
        limit: "A full disk itself is not planted.",
    },
    Fault {
        number: 52,
        name: "meshctl against half-installed, absent, forbidden or unreachable clusters; Ctrl-C",
        planted: "an API server without the mesh, and with parts of it one after the other; a killed local node",
        promise: "exit status and message are right; nothing is half applied",
        tests: &[
            local("cli/tests/offline.rs::exit_codes_distinguish_failures"),
            local("cli/src/check/tests.rs::every_fault_is_reported_into_root_cause"),
            local("cli/tests/local.rs::up_and_down_clean_up_after_a_killed_node"),
            cluster("cli/tests/cluster.rs::check_without_control_plane"),
            cluster("cli/tests/cluster.rs::check_as_user_without_permissions"),
            cluster("cli/tests/cluster.rs::checks_pass_as_control_plane_objects_are_created"),
        ],
        limit: "A control plane of an older release is not planted: 0.1.0, the only one, has the version of this tree.",
    },
];
