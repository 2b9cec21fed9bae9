//! Variables of the SPIFFE Workload API.

use super::*;

/// Changes that take the identity from the Workload API, and `more`.
fn with_workload_api(more: &[(&'static str, Option<&'static str>)]) -> Result<Config, Errors> {
    let changes = [
        (
            "IDENTITY_SPIRE_WORKLOAD_API_ADDRESS",
            Some("unix:///run/spire/agent.sock"),
        ),
        ("IDENTITY_SERVER_ID", Some("spiffe://example.org/vm")),
        ("IDENTITY_SERVER_NAME", Some("vm.example.org")),
        ("IDENTITY_LOCAL_NAME", None),
        ("IDENTITY_SVC_ADDR", None),
        ("IDENTITY_SVC_NAME", None),
        ("IDENTITY_TOKEN_FILE", None),
    ];
    read(&[&changes, more].concat())
}

#[test]
fn socket_of_the_workload_api_replaces_the_identity_service() {
    let api = |more: &[(&'static str, Option<&'static str>)]| {
        let config = with_workload_api(more).unwrap();
        assert_eq!(config.identity.id.as_str(), "spiffe://example.org/vm");
        assert_eq!(&*config.identity.server_name, "vm.example.org");
        match config.identity.source {
            IdentitySource::WorkloadApi(api) => api,
            IdentitySource::Service(service) => panic!("{service:?}"),
        }
    };
    let alone = api(&[]);
    assert_eq!(alone.socket.to_str(), Some("///run/spire/agent.sock"));
    assert_eq!(alone.anchors, None);
    let linkerds = resilience::Backoff {
        min: Duration::from_millis(100),
        max: Duration::from_secs(1),
        jitter: 0.1,
    };
    assert_eq!(alone.backoff, linkerds);

    let earlier_name = ("IDENTITY_SPIRE_SOCKET", Some("/run/old.sock"));
    let both = api(&[earlier_name]);
    assert_eq!(both.socket, alone.socket, "the new name takes precedence");
    let old = api(&[("IDENTITY_SPIRE_WORKLOAD_API_ADDRESS", None), earlier_name]);
    assert_eq!(old.socket.to_str(), Some("/run/old.sock"));

    let slow = api(&[
        ("LINKERD2_PROXY_IDENTITY_SPIRE_EXP_BACKOFF_MIN", Some("1s")),
        ("LINKERD2_PROXY_IDENTITY_SPIRE_EXP_BACKOFF_MAX", Some("1m")),
    ]);
    assert_eq!(slow.backoff.max, Duration::from_secs(60));

    let follows = api(&[("IDENTITY_SVC_ADDR", Some("localhost.:8080"))]);
    assert_eq!(follows.anchors.unwrap().port, 8080);
}

#[test]
fn errors_of_the_workload_api_name_variable_and_fix() {
    const SOCKET: &str = "IDENTITY_SPIRE_WORKLOAD_API_ADDRESS";
    let long = "/".repeat(108);
    let long: &'static str = long.leak();
    with_workload_api(&[(SOCKET, Some(&long[1..]))]).unwrap();
    for (name, value, text) in [
        (SOCKET, Some(""), "expected the path of a socket"),
        (SOCKET, Some("unix:"), "expected the path of a socket"),
        (
            SOCKET,
            Some("tcp://127.0.0.1:1"),
            "no other transport is supported",
        ),
        (
            SOCKET,
            Some("http://localhost"),
            "no other transport is supported",
        ),
        (
            SOCKET,
            Some(long),
            "is a path of 108 bytes; a socket may have 107",
        ),
        (
            "IDENTITY_LOCAL_NAME",
            Some("vm.example.org"),
            "set IDENTITY_SERVER_ID to a SPIFFE",
        ),
        (
            "IDENTITY_SERVER_ID",
            Some("vm.example.org"),
            "is not a SPIFFE identity",
        ),
        (
            "IDENTITY_SERVER_ID",
            Some("spiffe://Example.org/vm"),
            "is not a SPIFFE identity",
        ),
        (
            "IDENTITY_SERVER_ID",
            Some("spiffe://example.org"),
            "is not a SPIFFE identity",
        ),
        ("IDENTITY_SERVER_ID", None, "is required but not set"),
        ("IDENTITY_SERVER_NAME", None, "is required but not set"),
        (
            "IDENTITY_SERVER_NAME",
            Some("spiffe://a/b"),
            "is not a DNS name",
        ),
        ("IDENTITY_SVC_ADDR", Some("8080"), "is not a host and port"),
        (
            "LINKERD2_PROXY_IDENTITY_SPIRE_EXP_BACKOFF_MIN",
            Some("1s"),
            "requires LINKERD2_PROXY_IDENTITY_SPIRE_EXP_BACKOFF_MAX",
        ),
    ] {
        let errors = with_workload_api(&[(name, value)]).unwrap_err().to_string();
        let expected = format!("invalid configuration\n  LINKERD2_PROXY_{name}: ");
        assert!(
            errors.starts_with(&expected) && errors.contains(text),
            "{errors}"
        );
        assert_eq!(errors.lines().count(), 2, "{errors}");
    }
}
