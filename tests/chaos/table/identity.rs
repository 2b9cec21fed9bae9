//! Faults of certificates, keys, tokens and clocks.

use crate::fault::{Fault, cluster, local, long_cluster};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        number: 13,
        name: "certificates live for a minute only",
        planted: "a new certificate every second for both proxies under h2load",
        promise: "0 lost; open connections stay open",
        tests: &[
            local(
                "mesh-proxy/tests/it/rotation.rs::roots_are_exchanged_under_load_and_no_request_fails",
            ),
            local(
                "mesh-proxy/src/identity/tests.rs::short_lived_certificate_is_renewed_with_a_new_key",
            ),
        ],
        limit: "`cargo xtask soak` does it for an hour (docs/bench).",
    },
    Fault {
        number: 14,
        name: "identity is away for most of a certificate's life",
        planted: "refused requests, on a schedule without a clock of its own",
        promise: "renewal begins at 70 % of the life, is repeated, and 0 are lost",
        tests: &[
            local(
                "mesh-proxy/src/identity/schedule.rs::renewal_is_due_after_70_percent_within_limits",
            ),
            local(
                "mesh-proxy/src/identity/schedule.rs::failures_are_retried_soon_and_then_at_the_minimum_interval",
            ),
        ],
        limit: "Linkerd renews at 70 % too; the campaign's two thirds are not met by intention.",
    },
    Fault {
        number: 15,
        name: "identity is away until certificates have expired",
        planted: "an identity service that refuses until the certificates of two proxies, which live for 4 s, have expired; expired certificates given to both sides of a handshake",
        promise: "new handshakes fail; recovery needs no restart",
        tests: &[
            local(
                "mesh-proxy/tests/it/faults/certificates.rs::expired_certificates_end_new_connections_until_identity_is_back",
            ),
            local("mesh-proxy/src/tls/tests.rs::issued_certificate_is_verified_before_use"),
        ],
        limit: "",
    },
    Fault {
        number: 16,
        name: "the issuer is exchanged, also by an invalid one",
        planted: "files of the running service that are written in place, first invalid, then valid",
        promise: "the valid one is used, the invalid one named while the old one stays",
        tests: &[
            local(
                "control-plane/tests/it/identity.rs::valid_issuer_is_reloaded_and_invalid_one_is_not",
            ),
            local("control-plane/tests/it/identity.rs::startup_fails_with_untrusted_issuer"),
            local("control-plane/src/identity/tests.rs::untrusted_issuers_are_rejected"),
            long_cluster("tests/e2e/faults.rs::check_reports_every_fault_and_its_hint_repairs_it"),
        ],
        limit: "Exchanged once in place, not twenty times in each manner.",
    },
    Fault {
        number: 17,
        name: "the trust anchor is exchanged (old, both, new)",
        planted: "bundles from the identity service to both proxies under h2load and a connection each for opaque TCP, then an earlier one; a proxy that starts with the old anchor",
        promise: "0 lost, no proxy restarted",
        tests: &[
            local(
                "mesh-proxy/tests/it/rotation.rs::roots_are_exchanged_under_load_and_no_request_fails",
            ),
            local(
                "mesh-proxy/tests/it/rotation.rs::pod_with_the_old_root_is_ready_through_the_cross_certificate",
            ),
            local("mesh-proxy/src/identity/bundle.rs::only_a_higher_number_replaces_the_anchors"),
            local("mesh-proxy/src/identity/tests.rs::changed_anchors_are_applied_while_running"),
            local("mesh-proxy/src/tls/tests.rs::sessions_are_resumed_within_one_generation_only"),
            cluster(
                "control-plane/tests/cluster/certificates.rs::trust_anchors_are_numbered_across_replicas",
            ),
        ],
        limit: "",
    },
    Fault {
        number: 18,
        name: "clocks differ by 20 s, 5 min, 26 h",
        planted: "certificates of an identity service whose clock differs by -26 h to 26 h, for real proxies",
        promise: "20 s: 0 lost; beyond that refused and named, and well once the clock is right",
        tests: &[
            local("control-plane/src/identity/tests.rs::certificate_only_contains_key_of_csr"),
            local(
                "mesh-proxy/tests/it/faults/certificates.rs::clock_skew_beyond_the_allowed_is_named_and_ends_when_the_clock_is_right",
            ),
        ],
        limit: "The kernel has one wall clock for all namespaces, so that no process here can have another one; certificates that are valid at other times stand for it.",
    },
    Fault {
        number: 19,
        name: "tokens are exchanged, expired, for another audience, or of a deleted account",
        planted: "each of them in a request to the running service, or a review of the token that says so",
        promise: "refused; never reviewed without our audience",
        tests: &[
            local("control-plane/src/identity/tests.rs::invalid_tokens_are_rejected"),
            local(
                "control-plane/src/identity/tokens/reviewed.rs::review_authenticates_account_with_audience",
            ),
            local(
                "control-plane/tests/it/identity.rs::certificates_are_issued_and_invalid_requests_rejected",
            ),
            local("mesh-proxy/src/identity/tests.rs::each_request_uses_the_current_token"),
        ],
        limit: "",
    },
    Fault {
        number: 20,
        name: "certificate requests with a wrong signature, foreign names, CA flags, other keys or a megabyte of extensions",
        planted: "a table of such requests, and one of a megabyte to the running service",
        promise: "refused",
        tests: &[
            local("control-plane/src/identity/tests.rs::invalid_csrs_are_rejected"),
            local("control-plane/src/identity/tests.rs::certificate_only_contains_key_of_csr"),
            local(
                "control-plane/tests/it/identity.rs::certificates_are_issued_and_invalid_requests_rejected",
            ),
        ],
        limit: "That p99 of others is unaffected is not judged.",
    },
];
