//! Overrides by annotations of pod and namespace, and the messages about invalid ones.

use super::*;

/// Invalid values, one for each type of value.
const BAD: [(&str, &str); 21] = [
    ("config.linkerd.io/inbound-port", "99999"),
    ("config.linkerd.io/admin-port", "-1"),
    ("config.linkerd.io/proxy-uid", "0"),
    ("config.linkerd.io/proxy-cpu-request", "many"),
    ("config.linkerd.io/proxy-cpu-ratio-limit", "1.0"),
    ("config.linkerd.io/proxy-log-format", "xml"),
    ("config.linkerd.io/proxy-log-http-headers", "all"),
    ("config.linkerd.io/access-log", "nginx"),
    ("config.linkerd.io/image-pull-policy", "Sometimes"),
    ("config.linkerd.io/skip-subnets", "10.0.0.0/99"),
    ("config.linkerd.io/skip-inbound-ports", "80-70"),
    ("config.linkerd.io/skip-outbound-ports", "25,x"),
    ("config.linkerd.io/close-wait-timeout", "soon"),
    ("config.linkerd.io/proxy-await", "yes"),
    (
        "config.linkerd.io/default-inbound-policy",
        "all-authenticate",
    ),
    (
        "config.linkerd.io/proxy-require-identity-inbound-ports",
        "8080,admin",
    ),
    ("config.linkerd.io/opaque-ports", "25,70000"),
    ("config.linkerd.io/shutdown-grace-period", "soon"),
    ("config.linkerd.io/proxy-enable-native-sidecar", "maybe"),
    ("config.linkerd.io/enable-debug-sidecar", "yes"),
    (
        "config.linkerd.io/proxy-additional-env",
        r#"[{"name":"A","value":1}]"#,
    ),
];

/// Returns why a pod is rejected.
fn rejections(namespace: &ObjectMeta, pod: &Pod) -> Vec<String> {
    match patch(&agent(), namespace, pod, &deployment()) {
        Err(InjectError::Annotations(rejections)) => rejections,
        other => panic!("{other:?}"),
    }
}

#[test]
fn pod_with_invalid_annotation_is_rejected() {
    for (key, value) in BAD {
        let rejections = rejections(&enabled(), &annotated(&[(key, value)]));
        assert_eq!(rejections.len(), 1, "{key}: {rejections:?}");
        let prefix = format!("deployment shop/web: {key}: invalid value ");
        assert!(rejections[0].starts_with(&prefix), "{rejections:?}");
    }
}

#[test]
fn lists_longer_than_limit_are_rejected() {
    let ports = |count: usize| {
        (1..=count)
            .map(|n| (n * 2).to_string())
            .collect::<Vec<_>>()
            .join(",")
    };
    let blocks = |count: usize| {
        (0..count)
            .map(|n| format!("10.{n}.0.0/16"))
            .collect::<Vec<_>>()
            .join(",")
    };
    for key in [
        annotation::SKIP_INBOUND_PORTS,
        annotation::SKIP_OUTBOUND_PORTS,
        annotation::REQUIRE_IDENTITY_PORTS,
        annotation::OPAQUE_PORTS,
    ] {
        let most = mesh_core::ports::MAX_RANGES;
        let problems = rejections(&enabled(), &annotated(&[(key, &ports(most + 1))]));
        assert!(
            problems[0].contains("too many separate ports and ranges of ports: 129"),
            "{problems:?}"
        );
        assert_eq!(
            run(&agent(), &enabled(), &annotated(&[(key, &ports(most))])).1,
            [""; 0]
        );
    }
    let (key, most) = (annotation::SKIP_SUBNETS, annotation::MAX_SKIP_SUBNETS);
    let problems = rejections(&enabled(), &annotated(&[(key, &blocks(most + 1))]));
    assert!(
        problems[0].contains("the list has 129 blocks"),
        "{problems:?}"
    );
    assert_eq!(
        run(&agent(), &enabled(), &annotated(&[(key, &blocks(most))])).1,
        [""; 0]
    );
}

#[test]
fn invalid_namespace_annotation_rejects_pods_only_if_it_restricts_clients() {
    let namespace = |annotations: &[(&str, &str)]| {
        let mut all = vec![("linkerd.io/inject", "enabled")];
        all.extend(annotations);
        ObjectMeta {
            name: Some("shop".into()),
            ..meta(&all)
        }
    };
    let expected = [
        "namespace shop: config.linkerd.io/proxy-require-identity-inbound-ports: invalid value \"80,x\": invalid port or range of ports \"x\": expected 1-65535, as in \"25,587,3306-3310\"",
        "namespace shop: config.linkerd.io/default-inbound-policy: invalid value \"denied\": unknown default policy \"denied\": expected all-unauthenticated, all-authenticated, cluster-unauthenticated, cluster-authenticated, deny or audit",
    ];
    let security = [
        (annotation::DEFAULT_INBOUND_POLICY, "denied"),
        (annotation::REQUIRE_IDENTITY_PORTS, "80,x"),
    ];
    assert_eq!(rejections(&namespace(&security), &web()), expected);
    for (key, value) in BAD {
        if security.iter().any(|(about, _)| *about == key) {
            continue;
        }
        let own_only = [
            "config.linkerd.io/proxy-cpu-ratio-limit",
            "config.linkerd.io/close-wait-timeout",
        ];
        let (pod, warnings) = run(&agent(), &namespace(&[(key, value)]), &web());
        assert_eq!(
            warnings.len(),
            usize::from(!own_only.contains(&key)),
            "{key}: {warnings:?}"
        );
        let (good, _) = run(&agent(), &enabled(), &web());
        // The valid items of opaque ports stay in effect.
        if key != annotation::OPAQUE_PORTS {
            assert_eq!(pod.spec, good.spec, "{key}");
        }
    }
    // The annotations of a pod take precedence, so that a single pod can be admitted.
    let own = annotated(&[
        (annotation::DEFAULT_INBOUND_POLICY, "deny"),
        (annotation::REQUIRE_IDENTITY_PORTS, "80"),
    ]);
    assert_eq!(run(&agent(), &namespace(&security), &own).1, [""; 0]);
}

#[test]
fn annotations_without_effect_cause_warnings() {
    let close_wait = ("config.linkerd.io/close-wait-timeout", "1h");
    let unknown_name = ("config.linkerd.io/opaque-ports", "25,db,other");
    let pod = annotated(&[close_wait, unknown_name]);
    let (_, warnings) = run(&agent(), &enabled(), &pod);
    assert_eq!(
        warnings,
        [
            "deployment shop/web: config.linkerd.io/close-wait-timeout: ignored value \"1h\": the init container sets it, and this mesh adds none",
            "deployment shop/web: config.linkerd.io/opaque-ports: \"other\" has no effect: no container has a TCP port of this name",
        ]
    );
}

#[test]
fn annotations_of_skipped_pods_are_not_checked() {
    for (key, value) in BAD {
        let outcome = patch(
            &agent(),
            &meta(&[]),
            &annotated(&[(key, value)]),
            &deployment(),
        );
        assert!(matches!(outcome.unwrap().decision, Decision::Skip(_)));
    }
}

#[test]
fn warnings_name_object_annotation_and_value() {
    let long = "x".repeat(100);
    let namespace = ObjectMeta {
        name: Some("shop".into()),
        ..meta(&[
            ("linkerd.io/inject", "enabled"),
            ("config.linkerd.io/proxy-await", "maybe"),
            ("config.linkerd.io/access-log", long.as_str()),
            ("config.linkerd.io/enable-debug-sidecar", "yes"),
        ])
    };
    let pod = annotated(&[("config.linkerd.io/proxy-loglevel", "debug")]);
    let (_, warnings) = run(&agent(), &namespace, &pod);
    let shown = "x".repeat(60);
    assert_eq!(
        warnings,
        [
            "namespace shop: config.linkerd.io/proxy-await: ignored value \"maybe\": expected one of enabled, disabled".to_owned(),
            format!("namespace shop: config.linkerd.io/access-log: ignored value {shown:?}…: expected one of apache, json"),
            "namespace shop: config.linkerd.io/enable-debug-sidecar: ignored value \"yes\": expected true or false".to_owned(),
            "deployment shop/web: config.linkerd.io/proxy-loglevel has no effect: unknown annotation in this version; check the spelling".to_owned(),
        ]
    );
}

#[test]
fn invalid_opaque_ports_of_service_cause_warning() {
    let service = |list: &str| Service {
        metadata: ObjectMeta {
            name: Some("db".into()),
            ..meta(&[(annotation::OPAQUE_PORTS, list)])
        },
        ..Service::default()
    };
    let warnings = service_warnings(&meta(&[]), &service("25,70000"), "shop");
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].starts_with(
            "service shop/db: config.linkerd.io/opaque-ports: ignored value \"25,70000\": invalid port or range of ports \"70000\""
        ),
        "{warnings:?}"
    );
    assert_eq!(
        service_warnings(&meta(&[]), &service("25,db"), "shop"),
        [""; 0]
    );
    assert_eq!(
        service_warnings(&meta(&[]), &Service::default(), "shop"),
        [""; 0]
    );
}

#[test]
fn colliding_ports_are_rejected() {
    let colliding = [
        (annotation::ADMIN_PORT, "4143"),
        (annotation::CONTROL_PORT, "4199"),
    ];
    let rejections = rejections(&enabled(), &annotated(&colliding));
    assert_eq!(rejections.len(), 2, "{rejections:?}");
    let mut all = vec![("linkerd.io/inject", "enabled")];
    all.extend(colliding);
    let (after, warnings) = run(&agent(), &meta(&all), &web());
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert_eq!(var(&after, "ADMIN_LISTEN_ADDR"), Some("[::]:4191"));
    assert_eq!(var(&after, "CONTROL_LISTEN_ADDR"), Some("[::]:4190"));
    assert_eq!(
        pod::annotation(&after, annotation::ADMIN_PORT),
        Some("4191")
    );
}

#[test]
fn pods_inherit_annotations_of_namespace() {
    let namespace = meta(&[
        ("linkerd.io/inject", "ingress"),
        ("config.linkerd.io/proxy-log-level", "trace"),
        ("config.linkerd.io/access-log", "json"),
        ("config.linkerd.io/enable-debug-sidecar", "true"),
        ("config.linkerd.io/debug-image", "not/inherited"),
        ("config.linkerd.io/proxy-cpu-limit", "nonsense"),
        (
            "config.beta.linkerd.io/proxy-enable-native-sidecar",
            "false",
        ),
        ("example.com/team", "shop"),
    ]);
    let own = annotated(&[("config.linkerd.io/access-log", "apache")]);
    let (pod, warnings) = run(&agent(), &namespace, &own);
    assert_eq!(
        var(&pod, "LOG"),
        Some("trace,[{headers}]=off,[{request}]=off")
    );
    assert_eq!(var(&pod, "ACCESS_LOG"), Some("apache"));
    assert_eq!(var(&pod, "INGRESS_MODE"), Some("true"));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(names(Some(&spec.containers)), ["web", "linkerd-debug"]);
    assert_eq!(spec.containers[1].image.as_deref(), Some("mesh/debug:test"));
    assert_eq!(names(spec.init_containers.as_ref()), ["linkerd-proxy"]);
    let annotations = pod.metadata.annotations.unwrap();
    assert_eq!(annotations["linkerd.io/inject"], "ingress");
    assert_eq!(annotations["config.linkerd.io/access-log"], "apache");
    assert!(!annotations.contains_key("config.linkerd.io/debug-image"));
    assert!(!annotations.contains_key("example.com/team"));
}

#[test]
fn additional_env_is_merged_by_name_from_three_layers() {
    let mut values = agent();
    values.proxy.additional_env = serde_json::from_str(
        r#"[{"name":"A","value":"chart"},{"name":"B","value":"chart"},{"name":"C","value":"chart"}]"#,
    )
    .unwrap();
    let key = "config.linkerd.io/proxy-additional-env";
    let namespace = meta(&[
        ("linkerd.io/inject", "enabled"),
        (
            key,
            r#"[{"name":"B","value":"ns"},{"name":"C","value":"ns"}]"#,
        ),
    ]);
    let pod = annotated(&[(
        key,
        r#"[{"name":"C","value":"\"pod\""},{"name":"LINKERD2_PROXY_LOG","value":"x"}]"#,
    )]);
    let (pod, _) = run(&values, &namespace, &pod);
    let env = pod::plain_env(proxy(&pod));
    assert_eq!((env["A"], env["B"], env["C"]), ("chart", "ns", "\"pod\""));
    let logs = proxy(&pod).env.iter().flatten();
    assert_eq!(
        logs.filter(|var| var.name == "LINKERD2_PROXY_LOG").count(),
        2
    );
}

#[test]
fn cpu_annotations_set_worker_variables() {
    let check = |annotations: &[(&str, &str)], expect: [Option<&str>; 4]| {
        let (pod, _) = run(&agent(), &enabled(), &annotated(annotations));
        let vars = ["CORES", "CORES_MIN", "CORES_MAX", "CORES_MAX_RATIO"];
        assert_eq!(vars.map(|name| var(&pod, name)), expect, "{annotations:?}");
    };
    let one = Some("1");
    check(&[], [one, one, None, None]);
    check(&[("config.linkerd.io/proxy-cpu-request", "0")], [None; 4]);
    check(
        &[("config.linkerd.io/proxy-cpu-request", "1100m")],
        [Some("2"), Some("2"), None, None],
    );
    check(
        &[("config.linkerd.io/proxy-cpu-limit", "250m")],
        [one, one, one, None],
    );
    check(
        &[("config.linkerd.io/proxy-cpu-ratio-limit", "0.10")],
        [one, one, None, Some("0.1")],
    );
}

#[test]
fn resources_are_set_only_if_configured() {
    let check = |annotations: &[(&str, &str)], expect: serde_json::Value| {
        let (pod, _) = run(&agent(), &enabled(), &annotated(annotations));
        let resources = serde_json::to_value(&proxy(&pod).resources).unwrap();
        assert_eq!(resources, expect, "{annotations:?}");
    };
    check(&[], serde_json::Value::Null);
    check(
        &[
            ("config.linkerd.io/proxy-cpu-request", "100m"),
            ("config.linkerd.io/proxy-memory-request", "20Mi"),
            ("config.linkerd.io/proxy-memory-limit", "250Mi"),
            ("config.linkerd.io/proxy-ephemeral-storage-limit", "1Gi"),
        ],
        serde_json::json!({
            "requests": {"cpu": "100m", "memory": "20Mi"},
            "limits": {"memory": "250Mi", "ephemeral-storage": "1Gi"},
        }),
    );
}

#[test]
fn every_annotation_is_documented() {
    let documented = include_str!("../../../../docs/reference/annotations.md");
    for key in configuration_keys() {
        assert!(documented.contains(&format!("`{key}`")), "{key}");
    }
}
