//! The versions of this program, the control plane and its proxies.

use mesh_core::annotation;
use mesh_k8s::kinds::ResourceExt;

use super::fix;
use super::framework::{Category, Check, CheckResult, Finding, Outcome};
use crate::facts::names::COMPONENTS;
use crate::facts::{Environment, Facts, fact_ref, full_name, proxy_container};

pub(super) const CATEGORY: Category = Category {
    name: "control-plane-version",
    applies: |facts| facts.environment == Environment::Cluster && facts.is_installed_mode(),
    checks: &[
        Check::new(
            "l5d-version-control",
            "the control plane runs the configured version",
            "{upgrade}",
            control,
        )
        .explained_by(&[&["control-plane-containers"]]),
        Check::new(
            "l5d-version-cli",
            "meshctl has the control plane's version",
            "use the meshctl of the same release as the control plane",
            |facts| {
                let version = &facts.values()?.linkerd_version;
                Ok(if version == facts.cli_version {
                    Outcome::ok("")
                } else {
                    Outcome::warn(format!(
                        "meshctl is {}, the control plane {version}",
                        facts.cli_version
                    ))
                })
            },
        ),
        Check::new(
            "l5d-cp-proxy-version",
            "the control plane's proxies have its version",
            "kubectl -n {ns} rollout restart deployment",
            own_proxies,
        )
        .explained_by(&[&["l5d-version-control"]]),
    ],
};

fn control(facts: &Facts) -> CheckResult {
    let values = facts.values()?;
    let expected = match values.controller_image_version.as_str() {
        "" => values.linkerd_version.as_str(),
        version => version,
    };
    let mut wrong = Vec::new();
    for deployment in fact_ref(&facts.objects.deployments)? {
        let name = deployment.name_any();
        if !COMPONENTS
            .iter()
            .any(|component| name == format!("linkerd-{component}"))
        {
            continue;
        }
        let template = deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.template.spec.as_ref());
        for container in template.iter().flat_map(|spec| &spec.containers) {
            let image = container.image.as_deref().unwrap_or_default();
            let of_controller = image.starts_with(&format!("{}:", values.controller_image));
            if of_controller && tag(image) != expected {
                wrong.push(format!(
                    "container {} of Deployment {name} is {}, linkerd-config has {expected}",
                    container.name,
                    tag(image)
                ));
            }
        }
    }
    Ok(Outcome::warn_if(wrong, expected))
}

fn own_proxies(facts: &Facts) -> CheckResult {
    let expected = facts.values()?.proxy_version();
    let wrong = facts.control_pods()?.filter_map(|pod| {
        let image = proxy_container(pod)?.image.as_deref()?;
        (tag(image) != expected).then(|| {
            format!(
                "the proxy of {} is {}, linkerd-config has {expected}",
                full_name(pod),
                tag(image)
            )
        })
    });
    Ok(Outcome::warn_if(wrong, expected))
}

/// Compares the versions of the scope's proxies with the version that the injector adds.
pub(super) fn data_plane(facts: &Facts) -> CheckResult {
    let expected = facts.values()?.proxy_version();
    let wrong = facts.meshed_pods()?.filter_map(|pod| {
        let version = pod.annotations().get(annotation::PROXY_VERSION)?;
        (version != expected).then(|| {
            let finding = Finding::new(format!(
                "{} has {version}, new pods get {expected}",
                full_name(pod)
            ));
            finding.with_fix(fix::restart_command(pod))
        })
    });
    Ok(Outcome::warn_if(wrong, expected))
}

pub(crate) fn tag(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or_default();
    // A colon before the last slash belongs to a registry's port.
    match image.rsplit_once(':') {
        Some((_, tag)) if !tag.contains('/') => tag,
        _ => "latest",
    }
}

#[cfg(test)]
mod tests {
    use super::tag;

    #[test]
    fn tags() {
        assert_eq!(tag("mesh/proxy:0.1.0"), "0.1.0");
        assert_eq!(tag("localhost:5000/mesh/proxy"), "latest");
        assert_eq!(tag("mesh/proxy:0.1.0@sha256:00"), "0.1.0");
    }
}
