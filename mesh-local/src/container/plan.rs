//! Computes the specification of a container from its manifest: command, environment, mounts and
//! user.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, SecurityContext};
use mesh_k8s::pod;

use super::data_sources::DataSources;
use super::env::{self, EnvError};
use super::shim::{Bind, CreateSpec, Program};
use super::volume::PreparedVolume;
use crate::host;
use crate::image::Image;
use crate::service::dns::CLUSTER_DOMAIN;

/// The inputs of a container's specification.
pub struct PlanInputs<'a> {
    pub sources: &'a DataSources<'a>,
    /// The pod with uid, node name and addresses.
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub image: Option<&'a Image>,
    pub volumes: &'a BTreeMap<String, PreparedVolume>,
    /// The network namespace of the pod; `None` in the host network.
    pub netns: Option<&'a Path>,
    pub cgroup: &'a Path,
    /// The directory of the pod in the node's state.
    pub pod_directory: &'a Path,
    /// The node's DNS server.
    pub nameserver: IpAddr,
}

/// Returns the specification for the shim, which creates the container.
pub fn create_spec(inputs: &PlanInputs<'_>) -> Result<CreateSpec, EnvError> {
    let container = inputs.container;
    let name = &container.name;
    let hostname = hostname(inputs.pod);
    let mut files = vec![
        ("/etc/hosts".into(), hosts(inputs.pod, &hostname)),
        ("/etc/hostname".into(), format!("{hostname}\n")),
    ];
    let resolv_conf = resolv_conf(inputs.pod, inputs.nameserver);
    files.extend(resolv_conf.map(|text| ("/etc/resolv.conf".into(), text)));
    Ok(CreateSpec {
        cgroup: inputs.cgroup.join(name),
        netns: inputs.netns.map(Path::to_owned),
        scratch: inputs.pod_directory.join("root").join(name),
        binds: binds(inputs),
        files,
        program: program(inputs)?,
        failure: inputs.pod_directory.join(format!("{name}.failure")),
        hostname,
    })
}

/// Returns the host name of the pod's containers.
fn hostname(pod: &Pod) -> String {
    if pod::is_host_network(pod) {
        return host::name();
    }
    let spec = pod.spec.as_ref();
    let hostname = spec.and_then(|spec| spec.hostname.clone());
    let name = hostname
        .or_else(|| pod.metadata.name.clone())
        .unwrap_or_default();
    // Kubernetes truncates host names to 63 characters; the limit of the kernel is 64.
    name.chars().take(63).collect()
}

fn program(inputs: &PlanInputs<'_>) -> Result<Program, EnvError> {
    let container = inputs.container;
    let env = env::of_container(inputs.sources, inputs.pod, container)?;
    let expand = |text: &String| env::expand(text, |name| env::lookup(&env, name));
    let mut command: Vec<String> = container.command.iter().flatten().map(expand).collect();
    if command.is_empty() {
        let program = inputs.image.map(|image| &image.container_path);
        command.extend(program.map(|path| path.display().to_string()));
    }
    command.extend(container.args.iter().flatten().map(expand));
    let spec = inputs.pod.spec.as_ref();
    let of_pod = spec.and_then(|spec| spec.security_context.as_ref());
    let own = container.security_context.as_ref();
    let id = |id: Option<i64>| id.and_then(|id| u32::try_from(id).ok()).unwrap_or(0);
    let uid = own.and_then(|context| context.run_as_user);
    let gid = own.and_then(|context| context.run_as_group);
    let groups = of_pod.iter().flat_map(|context| {
        let more = context.supplemental_groups.iter().flatten().copied();
        context.fs_group.into_iter().chain(more)
    });
    Ok(Program {
        command,
        env,
        working_directory: container.working_dir.as_deref().unwrap_or("/").into(),
        uid: id(uid.or(of_pod.and_then(|context| context.run_as_user))),
        gid: id(gid.or(of_pod.and_then(|context| context.run_as_group))),
        groups: groups
            .filter_map(|group| u32::try_from(group).ok())
            .collect(),
        no_new_privileges: own.is_some_and(forbids_escalation),
    })
}

fn forbids_escalation(context: &SecurityContext) -> bool {
    context.allow_privilege_escalation == Some(false)
}

fn binds(inputs: &PlanInputs<'_>) -> Vec<Bind> {
    let image = inputs.image.map(|image| Bind {
        source: image.program.clone(),
        target: image.container_path.clone(),
        read_only: true,
    });
    let mounts = inputs.container.volume_mounts.iter().flatten();
    let mounts = mounts.filter_map(|mount| {
        let volume = inputs.volumes.get(&mount.name)?;
        let sub = mount.sub_path.as_deref().unwrap_or_default();
        Some(Bind {
            source: volume.path.join(sub),
            target: Path::new("/").join(&mount.mount_path),
            read_only: mount.read_only == Some(true),
        })
    });
    image.into_iter().chain(mounts).collect()
}

fn hosts(pod: &Pod, hostname: &str) -> String {
    let mut text =
        String::from("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    for ip in pod::ips(pod) {
        text.push_str(&format!("{ip}\t{hostname}\n"));
    }
    let specs = pod.spec.iter();
    for alias in specs.flat_map(|spec| spec.host_aliases.iter().flatten()) {
        let names = alias.hostnames.as_deref().unwrap_or_default();
        text.push_str(&format!("{}\t{}\n", alias.ip, names.join(" ")));
    }
    text
}

/// Returns the configuration for the DNS server of the node, or `None` if the pod uses the
/// machine's.
fn resolv_conf(pod: &Pod, nameserver: IpAddr) -> Option<String> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let cluster = match spec.dns_policy.as_deref() {
        Some("Default") => false,
        Some("ClusterFirstWithHostNet") => true,
        _ => !pod::is_host_network(pod),
    };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    cluster.then(|| {
        format!(
            "nameserver {nameserver}\nsearch {namespace}.svc.{CLUSTER_DOMAIN} svc.{CLUSTER_DOMAIN} {CLUSTER_DOMAIN}\noptions ndots:5\n"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifests;

    fn plan(pod: &str) -> CreateSpec {
        let pod: Pod = serde_norway::from_str(pod).unwrap();
        let manifests = Manifests::default();
        let volume = PreparedVolume {
            path: "/state/data".into(),
            tokens: Vec::new(),
        };
        let volumes = [("data".to_owned(), volume)];
        let image = Image {
            program: "/bin/mesh-proxy".into(),
            container_path: "/usr/local/bin/mesh-proxy".into(),
        };
        let container = &pod.spec.as_ref().unwrap().containers[0];
        create_spec(&PlanInputs {
            sources: &DataSources::new(&manifests, "shop"),
            pod: &pod,
            container,
            image: container.image.is_some().then_some(&image),
            volumes: &volumes.into(),
            netns: Some(Path::new("/netns/x")),
            cgroup: Path::new("/cgroup/pod1"),
            pod_directory: Path::new("/state"),
            nameserver: "10.240.128.1".parse().unwrap(),
        })
        .unwrap()
    }

    #[test]
    fn spec_has_command_user_and_mounts() {
        let start = plan(
            "metadata: {name: web, namespace: shop}\nspec:\n  securityContext: {runAsUser: 7, fsGroup: 9}\n  containers:\n  - name: c\n    \
             command: [run, $(A)]\n    args: [$(B)]\n    workingDir: /srv\n    env: [{name: A, value: x}]\n    \
             securityContext: {runAsUser: 8, allowPrivilegeEscalation: false}\n    volumeMounts: [{name: data, mountPath: /data, subPath: a, readOnly: true}]\n\
             status: {podIP: 10.240.0.5}\n",
        );
        let program = &start.program;
        assert_eq!(program.command, ["run", "x", "$(B)"]);
        assert_eq!((program.uid, program.gid), (8, 0));
        assert_eq!(program.groups, [9]);
        assert!(program.no_new_privileges);
        assert_eq!(program.working_directory, Path::new("/srv"));
        assert_eq!(start.cgroup, Path::new("/cgroup/pod1/c"));
        let expect = Bind {
            source: "/state/data/a".into(),
            target: "/data".into(),
            read_only: true,
        };
        assert_eq!(start.binds, [expect]);
        let files: BTreeMap<_, _> = start.files.into_iter().collect();
        assert!(files[Path::new("/etc/hosts")].contains("10.240.0.5\tweb"));
        assert!(files[Path::new("/etc/resolv.conf")].contains("search shop.svc.cluster.local"));
    }

    #[test]
    fn image_provides_the_program() {
        let start = plan(
            "metadata: {name: p}\nspec: {hostNetwork: true, containers: [{name: c, image: mesh/proxy, args: [a]}]}",
        );
        assert_eq!(start.program.command, ["/usr/local/bin/mesh-proxy", "a"]);
        assert_eq!(start.hostname, host::name());
        assert_eq!(start.binds[0].source, Path::new("/bin/mesh-proxy"));
        let mut paths = start.files.iter().map(|(path, _)| path);
        assert!(paths.all(|path| path != Path::new("/etc/resolv.conf")));
    }
}
