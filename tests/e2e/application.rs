//! An application of several services in a new mesh, installed by Helm or `meshctl install`, on
//! each tier; uninstalling leaves no remains.

use mesh_test_support::cluster::Cluster;
use mesh_test_support::cluster::installation::Installation;

use crate::shop::Shop;
use crate::snapshot::ClusterSnapshot;

#[test]
fn helm_installation_works_on_every_tier_and_uninstalls_cleanly() {
    let Some(cluster) = Cluster::acquire("an application in a mesh installed by Helm") else {
        return;
    };
    let before = ClusterSnapshot::capture(&cluster);
    let mesh = Installation::by_helm(&cluster, &[]);
    {
        let shop = open_meshed_shop(&cluster);
        let mut tier = "full";
        for next in ["nft", "iptables", "full"] {
            let setting = format!("meshAgent.tier={next}");
            mesh.upgrade(&[&setting]);
            // A pod keeps its tier until it is deleted.
            shop.assert_redirected(tier);
            shop.assert_works();
            shop.restart();
            shop.assert_works();
            shop.assert_authenticated();
            shop.assert_redirected(next);
            tier = next;
        }
    }
    mesh.remove();
    before.assert_restored();
}

#[test]
fn meshctl_installation_works_and_uninstalls_cleanly() {
    let Some(cluster) = Cluster::acquire("an application in a mesh installed by meshctl") else {
        return;
    };
    let before = ClusterSnapshot::capture(&cluster);
    let mesh = Installation::by_meshctl(&cluster);
    drop(open_meshed_shop(&cluster));
    mesh.remove();
    before.assert_restored();
}

/// Without agents, an init container redirects each pod.
#[test]
fn init_containers_redirect_pods_without_agent() {
    let Some(cluster) = Cluster::acquire("an application redirected by init containers") else {
        return;
    };
    let _mesh = Installation::by_helm(&cluster, &["meshAgent.enabled=false"]);
    let shop = Shop::open(&cluster);
    shop.assert_works();
    shop.assert_authenticated();
    for pod in shop.pods() {
        assert_eq!(
            pod["spec"]["initContainers"][0]["name"], "linkerd-init",
            "of {}",
            pod["metadata"]["name"]
        );
    }
}

/// Deploys the application and asserts that the agent redirects it.
fn open_meshed_shop(cluster: &Cluster) -> Shop<'_> {
    let shop = Shop::open(cluster);
    shop.assert_works();
    shop.assert_unprivileged();
    shop.assert_authenticated();
    shop.assert_redirected("full");
    let (green, output) = cluster.try_meshctl("check --proxy --wait 30s");
    assert!(green, "meshctl check --proxy:\n{output}");
    shop
}
