//! What annotations and values change, by pod, namespace and installation, and what is said of those that cannot be.

use super::*;

#[test]
fn bad_annotations_are_named_and_change_nothing() {
    let bad = [
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
        ("config.linkerd.io/close-wait-timeout", "1h"),
        ("config.linkerd.io/proxy-await", "yes"),
        ("config.linkerd.io/default-inbound-policy", "open"),
        ("config.linkerd.io/shutdown-grace-period", "soon"),
        ("config.linkerd.io/proxy-enable-native-sidecar", "maybe"),
        (
            "config.linkerd.io/proxy-additional-env",
            r#"[{"name":"A","value":1}]"#,
        ),
    ];
    for (key, value) in bad {
        let (pod, warnings) = run(&values(), &enabled(), &annotated(&[(key, value)]));
        assert_eq!(warnings.len(), 1, "{key}: {warnings:?}");
        assert!(warnings[0].contains(key), "{key}: {warnings:?}");
        let (good, _) = run(&values(), &enabled(), &web());
        assert_eq!(pod.spec, good.spec, "{key}");
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
        ])
    };
    let pod = annotated(&[
        ("config.linkerd.io/access-log", long.as_str()),
        ("config.linkerd.io/proxy-loglevel", "debug"),
        ("config.linkerd.io/enable-debug-sidecar", "yes"),
    ]);
    let (_, warnings) = run(&agent(), &namespace, &pod);
    let shown = "x".repeat(60);
    assert_eq!(
        warnings,
        [
            "namespace shop: config.linkerd.io/proxy-await: \"maybe\" is ignored: expected one of enabled, disabled".to_owned(),
            format!("deployment shop/web: config.linkerd.io/access-log: {shown:?}… is ignored: expected one of apache, json"),
            "deployment shop/web: config.linkerd.io/enable-debug-sidecar: \"yes\" is ignored: expected true or false".to_owned(),
            "deployment shop/web: config.linkerd.io/proxy-loglevel is no annotation of this version and has no effect: is it spelt right?".to_owned(),
        ]
    );
}

#[test]
fn ports_that_collide_are_not_taken() {
    let pod = annotated(&[
        (annotation::ADMIN_PORT, "4143"),
        (annotation::CONTROL_PORT, "4199"),
    ]);
    let (after, warnings) = run(&agent(), &enabled(), &pod);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert_eq!(var(&after, "ADMIN_LISTEN_ADDR"), Some("[::]:4191"));
    assert_eq!(var(&after, "CONTROL_LISTEN_ADDR"), Some("[::]:4190"));
    assert_eq!(
        pod::annotation(&after, annotation::ADMIN_PORT),
        Some("4191")
    );
}

#[test]
fn namespaces_pass_their_annotations_on() {
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
    assert_eq!(
        spec.containers[1].image.as_deref(),
        Some("cr.l5d.io/linkerd/debug:test")
    );
    assert_eq!(names(spec.init_containers.as_ref()), ["linkerd-proxy"]);
    let annotations = pod.metadata.annotations.unwrap();
    assert_eq!(annotations["linkerd.io/inject"], "ingress");
    assert_eq!(annotations["config.linkerd.io/access-log"], "apache");
    assert!(!annotations.contains_key("config.linkerd.io/debug-image"));
    assert!(!annotations.contains_key("example.com/team"));
}

#[test]
fn additional_env_merges_by_name_over_three_layers() {
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
fn workers() {
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
fn resources_are_set_only_where_somebody_asks() {
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
