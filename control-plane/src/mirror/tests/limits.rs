//! More objects than are mirrored.

use super::super::limits::{MAX_BYTES, MAX_SERVICES, MAX_SLICES};
use super::super::objects::RemoteObjects;
use super::super::records::{RemoteService, RemoteSlice};
use super::world::{WEB, name, read};

fn service(annotation: usize) -> RemoteService {
    let annotations = format!("annotations: {{a: {}}}", "b".repeat(annotation));
    RemoteService::new(read(&WEB.replace("uid: u-7", &annotations)))
}

fn slice() -> RemoteSlice {
    let slice =
        "metadata: {labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nendpoints: []";
    RemoteSlice::new(read(slice), false).unwrap()
}

#[test]
fn services_beyond_the_limit_have_no_effect_and_known_ones_change() {
    let mut objects = RemoteObjects::default();
    let small = service(1);
    for at in 0..MAX_SERVICES {
        let name = name(&format!("web-{at}"));
        assert!(objects.set_service(&name, Some(small.clone())));
    }
    assert!(!objects.is_full);
    objects.set_service(&name("web-x"), Some(small.clone()));
    assert!(objects.is_full);
    assert_eq!(objects.services.len(), MAX_SERVICES);
    assert!(!objects.services.contains_key(&name("web-x")));
    assert!(objects.set_service(&name("web-0"), Some(service(2))));
    let annotations = objects.services[&name("web-0")].annotations.to_map();
    assert_eq!(annotations["a"], "bb");
    // There is room again.
    objects.set_service(&name("web-1"), None);
    objects.set_service(&name("web-x"), Some(small));
    assert!(objects.services.contains_key(&name("web-x")));
}

#[test]
fn texts_of_all_services_are_bounded() {
    let mut objects = RemoteObjects::default();
    let large = service(60 << 10);
    assert!(!large.is_cut);
    for at in 0..1000 {
        objects.set_service(&name(&format!("web-{at}")), Some(large.clone()));
    }
    let kept = objects.services.len();
    assert_eq!(kept, MAX_BYTES / (large.size() + "shop/web-000".len()));
    // The length of removed ones counts no longer.
    for at in 0..1000 {
        objects.set_service(&name(&format!("web-{at}")), None);
    }
    for at in 0..1000 {
        objects.set_service(&name(&format!("web-{at}")), Some(large.clone()));
    }
    assert_eq!(objects.services.len(), kept);
    assert!(service(65 << 10).is_cut);
}

#[test]
fn slices_beyond_the_limit_have_no_effect() {
    let mut objects = RemoteObjects::default();
    let slice = slice();
    for at in 0..=MAX_SLICES {
        objects.set_slice(&name(&format!("web-{at}")), Some(slice.clone()));
    }
    assert_eq!(objects.slices.len(), MAX_SLICES);
    assert!(objects.is_full);
    assert!(objects.set_slice(&name("web-0"), None));
    assert!(!objects.set_slice(&name("web-0"), None));
}
