//! The containers and volumes that the patch adds: the proxy, the init containers and the debug
//! container.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, DownwardAPIVolumeFile, DownwardAPIVolumeSource,
    EmptyDirVolumeSource, EnvVar, ExecAction, HTTPGetAction, Lifecycle, LifecycleHandler,
    ObjectFieldSelector, PodSpec, Probe, ProjectedVolumeSource, ResourceRequirements,
    SeccompProfile, SecurityContext, ServiceAccountTokenProjection, Volume, VolumeMount,
    VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::env::{
    IDENTITY_DIR, PODINFO_DIR, PODINFO_LABELS, SERVICE_ACCOUNT_DIR, TOKEN_DIR, TOKEN_FILE,
};
use crate::pod;
use crate::values::{Bounds, Image, ProbeTiming, Resources, UNPRIVILEGED_ID, Values, non_empty};

/// [`super::uninject`] finds the additions of an injection by these names.
pub(super) const NETWORK_VALIDATOR: &str = "linkerd-network-validator";
pub(super) const DEBUG_CONTAINER: &str = "linkerd-debug";
pub(super) const END_ENTITY_VOLUME: &str = "linkerd-identity-end-entity";
pub(super) const TOKEN_VOLUME: &str = "linkerd-identity-token";
/// The labels of the pod, for the proxy's spans.
pub(super) const PODINFO_VOLUME: &str = "linkerd-podinfo";
/// The ConfigMap with the trust anchors, and the volume that earlier versions mounted it by.
pub const TRUST_ROOTS_CONFIG_MAP: &str = "linkerd-identity-trust-roots";
/// The audience of the proxy's service account token.
pub const TOKEN_AUDIENCE: &str = "identity.l5d.io";
/// The capabilities required for firewall rules and packet capture.
const NETWORK_CAPABILITIES: [&str; 2] = ["NET_ADMIN", "NET_RAW"];
const TOKEN_EXPIRATION_SECONDS: i64 = 86_400;

pub(super) fn proxy(values: &Values, spec: &PodSpec, env: Vec<EnvVar>) -> Container {
    let proxy = &values.proxy;
    let admin = i32::from(proxy.ports.admin);
    let native = proxy.native_sidecar;
    let startup = proxy.startup_probe;
    let timed_probe = |path, timing: ProbeTiming| Probe {
        initial_delay_seconds: Some(timing.initial_delay_seconds),
        timeout_seconds: Some(timing.timeout_seconds),
        ..http_probe(path, admin)
    };
    let gid = (proxy.gid >= 0).then_some(proxy.gid);
    Container {
        env: Some(env),
        ports: Some(vec![
            port("linkerd-proxy", i32::from(proxy.ports.inbound)),
            port("linkerd-admin", admin),
        ]),
        liveness_probe: Some(timed_probe("/live", proxy.liveness_probe)),
        readiness_probe: Some(timed_probe("/ready", proxy.readiness_probe)),
        startup_probe: (native && proxy.r#await).then(|| Probe {
            initial_delay_seconds: Some(startup.initial_delay_seconds),
            period_seconds: Some(startup.period_seconds),
            failure_threshold: Some(startup.failure_threshold),
            ..http_probe("/ready", admin)
        }),
        restart_policy: native.then(|| "Always".into()),
        lifecycle: if native { None } else { lifecycle(values) },
        resources: resources(&proxy.resources),
        security_context: Some(
            proxy
                .security_context
                .clone()
                .unwrap_or_else(|| restricted(proxy.uid, gid)),
        ),
        volume_mounts: Some(proxy_mounts(values, spec)),
        ..container(pod::PROXY_CONTAINER, values, &proxy.image)
    }
}

/// `linkerd-init`: redirects the pod with firewall rules before its other containers start.
pub(super) fn init(values: &Values, spec: &PodSpec, control_plane: bool) -> Container {
    let init = &values.proxy_init;
    let privileged = init.privileged || init.close_wait_timeout_secs > 0;
    let account = |configured: i64| match (init.run_as_root, configured) {
        (true, _) => 0,
        (false, 0) => UNPRIVILEGED_ID,
        (false, other) => other,
    };
    let mut mounts = vec![VolumeMount {
        mount_path: init.xt_mount_path.mount_path.clone(),
        name: init.xt_mount_path.name.clone(),
        ..VolumeMount::default()
    }];
    mounts.extend(service_account_mount(spec));
    Container {
        command: Some(vec!["/usr/lib/linkerd/linkerd2-proxy-init".into()]),
        args: Some(init_args(values, control_plane)),
        resources: resources(&values.proxy.resources),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(privileged),
            privileged: Some(privileged),
            capabilities: Some(init_capabilities(spec)),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(!init.run_as_root),
            run_as_user: Some(account(init.run_as_user)),
            run_as_group: Some(account(init.run_as_group)),
            seccomp_profile: Some(runtime_default()),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts),
        ..container(pod::INIT_CONTAINER, values, &values.proxy.image)
    }
}

/// `linkerd-network-validator`: connects to an unused address, listens on the proxy's outbound
/// port, and fails unless it accepts its own connection.
pub(super) fn network_validator(values: &Values) -> Container {
    let validator = &values.network_validator;
    let (unused, any) = if values.disable_ipv6 {
        ("1.1.1.1:20001", "0.0.0.0")
    } else {
        ("[fd00::1]:20001", "[::]")
    };
    let connect = non_empty(&validator.connect_addr).unwrap_or(unused);
    let listen = match non_empty(&validator.listen_addr) {
        Some(addr) => addr.to_owned(),
        None => format!("{any}:{}", values.proxy.ports.outbound),
    };
    let args = [
        ("--log-format", validator.log_format.as_str()),
        ("--log-level", validator.log_level.as_str()),
        ("--connect-addr", connect),
        ("--listen-addr", listen.as_str()),
        ("--timeout", validator.timeout.as_str()),
    ];
    let args = args.iter().flat_map(|(name, value)| [*name, *value]);
    Container {
        command: Some(vec!["/usr/lib/linkerd/linkerd2-network-validator".into()]),
        args: Some(args.map(str::to_owned).collect()),
        resources: resources(&values.proxy.resources),
        security_context: Some(
            validator
                .security_context
                .clone()
                .unwrap_or_else(|| restricted(UNPRIVILEGED_ID, Some(UNPRIVILEGED_ID))),
        ),
        ..container(NETWORK_VALIDATOR, values, &values.proxy.image)
    }
}

pub(super) fn debug(values: &Values) -> Container {
    // Some clusters require probes; these always succeed.
    let always_successful = || Probe {
        exec: Some(ExecAction {
            command: Some(vec!["true".into()]),
        }),
        ..Probe::default()
    };
    Container {
        liveness_probe: Some(always_successful()),
        readiness_probe: Some(always_successful()),
        security_context: Some(debug_security()),
        ..container(DEBUG_CONTAINER, values, &values.debug_container.image)
    }
}

fn container(name: &str, values: &Values, image: &Image) -> Container {
    Container {
        name: name.into(),
        image: Some(values.image(image)),
        image_pull_policy: Some(values.pull_policy(image)),
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        ..Container::default()
    }
}

pub(super) fn xtables_volume(values: &Values) -> Volume {
    Volume {
        name: values.proxy_init.xt_mount_path.name.clone(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    }
}

/// The volumes of the proxy, in the order of Linkerd's patch.
pub(super) fn proxy_volumes(values: &Values) -> Vec<Volume> {
    let mut volumes = vec![end_entity_volume()];
    if values.proxy.tracing.enabled {
        volumes.push(podinfo_volume());
    }
    if values.identity.service_account_token_projection {
        volumes.push(token_volume());
    }
    volumes
}

/// In memory, so that the proxy's key is never written to a disk.
fn end_entity_volume() -> Volume {
    Volume {
        name: END_ENTITY_VOLUME.into(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: Some("Memory".into()),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn podinfo_volume() -> Volume {
    Volume {
        name: PODINFO_VOLUME.into(),
        downward_api: Some(DownwardAPIVolumeSource {
            items: Some(vec![DownwardAPIVolumeFile {
                path: PODINFO_LABELS.into(),
                field_ref: Some(ObjectFieldSelector {
                    field_path: "metadata.labels".into(),
                    ..ObjectFieldSelector::default()
                }),
                ..DownwardAPIVolumeFile::default()
            }]),
            ..DownwardAPIVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn token_volume() -> Volume {
    Volume {
        name: TOKEN_VOLUME.into(),
        projected: Some(ProjectedVolumeSource {
            sources: Some(vec![VolumeProjection {
                service_account_token: Some(ServiceAccountTokenProjection {
                    audience: Some(TOKEN_AUDIENCE.into()),
                    expiration_seconds: Some(TOKEN_EXPIRATION_SECONDS),
                    path: TOKEN_FILE.into(),
                }),
                ..VolumeProjection::default()
            }]),
            ..ProjectedVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn port(name: &str, number: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.into()),
        container_port: number,
        ..ContainerPort::default()
    }
}

fn http_probe(path: &str, port: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::Int(port),
            ..HTTPGetAction::default()
        }),
        ..Probe::default()
    }
}

/// A proxy that is an ordinary container delays the containers after it with `postStart`, and its
/// own SIGTERM with `preStop`.
fn lifecycle(values: &Values) -> Option<Lifecycle> {
    let proxy = &values.proxy;
    let exec = |command: Vec<String>| LifecycleHandler {
        exec: Some(ExecAction {
            command: Some(command),
        }),
        ..LifecycleHandler::default()
    };
    let post_start = proxy.r#await.then(|| {
        exec(vec![
            "/usr/lib/linkerd/linkerd-await".into(),
            "--timeout=2m".into(),
            format!("--port={}", proxy.ports.admin),
        ])
    });
    let pre_stop = (proxy.wait_before_exit_seconds > 0).then(|| {
        exec(vec![
            "/bin/sleep".into(),
            proxy.wait_before_exit_seconds.to_string(),
        ])
    });
    (post_start.is_some() || pre_stop.is_some()).then_some(Lifecycle {
        post_start,
        pre_stop,
    })
}

/// The proxy and the validator need no capabilities, whatever the application has.
fn restricted(user: i64, group: Option<i64>) -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            add: None,
            drop: Some(vec!["ALL".into()]),
        }),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        run_as_user: Some(user),
        run_as_group: group,
        seccomp_profile: Some(runtime_default()),
        ..SecurityContext::default()
    }
}

/// Packet capture requires both capabilities, and only a root process gets the capabilities added
/// to a container. A namespace that enforces the baseline profile or a stricter one rejects such
/// pods.
fn debug_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            add: Some(NETWORK_CAPABILITIES.map(str::to_owned).to_vec()),
            drop: None,
        }),
        // Overrides the security context of the pod.
        run_as_non_root: Some(false),
        run_as_user: Some(0),
        seccomp_profile: Some(runtime_default()),
        ..SecurityContext::default()
    }
}

/// Returns the capabilities of the first container. It adds the capabilities that the init
/// container needs, and drops none of them.
fn init_capabilities(spec: &PodSpec) -> Capabilities {
    let first = spec
        .containers
        .first()
        .and_then(|first| first.security_context.as_ref()?.capabilities.clone())
        .unwrap_or_default();
    let others = |list: Option<Vec<String>>| {
        let mut list = list.unwrap_or_default();
        list.retain(|name| !NETWORK_CAPABILITIES.contains(&name.as_str()));
        list
    };
    let mut add: Vec<String> = NETWORK_CAPABILITIES.map(str::to_owned).to_vec();
    add.extend(others(first.add));
    let drop = others(first.drop);
    Capabilities {
        add: Some(add),
        drop: (!drop.is_empty()).then_some(drop),
    }
}

fn runtime_default() -> SeccompProfile {
    SeccompProfile {
        type_: "RuntimeDefault".into(),
        ..SeccompProfile::default()
    }
}

fn init_args(values: &Values, control_plane: bool) -> Vec<String> {
    let init = &values.proxy_init;
    let proxy = &values.proxy;
    let mut args: Vec<String> = Vec::new();
    let mut flag = |name: &str, value: &str| args.extend([name.to_owned(), value.to_owned()]);
    if init.iptables_mode == "nft" {
        flag("--firewall-bin-path", "iptables-nft");
        flag("--firewall-save-bin-path", "iptables-nft-save");
    }
    if !values.redirects_ipv6() {
        args.push("--ipv6=false".into());
    }
    let mut flag = |name: &str, value: &str| args.extend([name.to_owned(), value.to_owned()]);
    flag("--incoming-proxy-port", &proxy.ports.inbound.to_string());
    flag("--outgoing-proxy-port", &proxy.ports.outbound.to_string());
    flag("--proxy-uid", &proxy.uid.to_string());
    if proxy.gid >= 0 {
        flag("--proxy-gid", &proxy.gid.to_string());
    }
    let own = format!("{},{}", proxy.ports.control, proxy.ports.admin);
    let inbound = match non_empty(&init.ignore_inbound_ports) {
        Some(more) => format!("{own},{more}"),
        None => own,
    };
    flag("--inbound-ports-to-ignore", &inbound);
    let outbound = if control_plane {
        &init.kube_api_server_ports
    } else {
        &init.ignore_outbound_ports
    };
    if let Some(ports) = non_empty(outbound) {
        flag("--outbound-ports-to-ignore", ports);
    }
    if init.close_wait_timeout_secs > 0 {
        let seconds = init.close_wait_timeout_secs.to_string();
        flag("--timeout-close-wait-secs", &seconds);
    }
    for (name, value) in [
        ("--log-format", &init.log_format),
        ("--log-level", &init.log_level),
        ("--subnets-to-ignore", &init.skip_subnets),
    ] {
        if !value.is_empty() {
            flag(name, value);
        }
    }
    args
}

fn proxy_mounts(values: &Values, spec: &PodSpec) -> Vec<VolumeMount> {
    let mount = |name: &str, path: &str| VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        ..VolumeMount::default()
    };
    let mut mounts = vec![mount(END_ENTITY_VOLUME, IDENTITY_DIR)];
    if values.proxy.tracing.enabled {
        mounts.push(mount(PODINFO_VOLUME, PODINFO_DIR));
    }
    if values.identity.service_account_token_projection {
        mounts.push(mount(TOKEN_VOLUME, TOKEN_DIR));
    }
    mounts.extend(service_account_mount(spec));
    mounts
}

/// The service account's mount, as the first container has it.
fn service_account_mount(spec: &PodSpec) -> Option<VolumeMount> {
    let mounts = spec.containers.first()?.volume_mounts.as_ref()?;
    mounts
        .iter()
        .find(|mount| mount.mount_path == SERVICE_ACCOUNT_DIR)
        .cloned()
}

fn resources(resources: &Resources) -> Option<ResourceRequirements> {
    let bounds = [
        ("cpu", &resources.cpu),
        ("memory", &resources.memory),
        ("ephemeral-storage", &resources.ephemeral_storage),
    ];
    let collect = |of: fn(&Bounds) -> &str| {
        let set: BTreeMap<String, Quantity> = bounds
            .iter()
            .filter_map(|(name, bounds)| {
                let value = non_empty(of(bounds))?;
                Some(((*name).to_owned(), Quantity(value.to_owned())))
            })
            .collect();
        (!set.is_empty()).then_some(set)
    };
    let requests = collect(|bounds| &bounds.request);
    let limits = collect(|bounds| &bounds.limit);
    (requests.is_some() || limits.is_some()).then(|| ResourceRequirements {
        requests,
        limits,
        ..ResourceRequirements::default()
    })
}
