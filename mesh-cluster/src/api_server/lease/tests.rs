//! Replicas that claim one Lease of an API server in memory, on a paused clock.

use mesh_runtime::drain::{Drain, Outcome};
use mesh_test_support::kube_api::{Fault, ScriptedApi};
use tokio::task::JoinHandle;

use super::*;

const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/linkerd/leases/policy-controller-write";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/linkerd/deployments/linkerd-destination";

/// A process that claims the Lease.
struct Replica {
    name: &'static str,
    leadership: Option<Leadership>,
    task: JoinHandle<()>,
    drain: Drain,
}

fn api() -> ScriptedApi {
    let api = ScriptedApi::default();
    api.put(
        DEPLOYMENT,
        json!({ "metadata": { "name": "linkerd-destination", "uid": "u-1" } }),
    );
    api
}

impl Replica {
    fn start(api: &ScriptedApi, name: &'static str) -> Self {
        let settings = LeaseSettings {
            namespace: "linkerd".to_owned(),
            name: "policy-controller-write".to_owned(),
            owner: Some(LeaseOwner {
                component: "destination",
                deployment: "linkerd-destination".to_owned(),
            }),
            claimant: name.to_owned(),
            field_manager: "policy-controller",
        };
        let client = Client::new(api.service(name), "default");
        let (task, leadership) = LeaseTask::new(&client, settings, &Registry::new());
        let (drain, watch) = drain::channel();
        Self {
            name,
            leadership: Some(leadership),
            task: tokio::spawn(task.run(watch)),
            drain,
        }
    }

    fn writes(&self) -> bool {
        let leadership = self.leadership.as_ref().unwrap();
        leadership.lasts(Duration::ZERO)
    }

    /// Ends the process without a chance to release the Lease.
    fn kill(&self) {
        self.task.abort();
    }
}

/// Lets time pass in small steps, and returns which replica wrote for how long. No two may write at
/// the same time.
async fn pass(replicas: &[&Replica], duration: Duration) -> Vec<(&'static str, Duration)> {
    const STEP: Duration = Duration::from_millis(50);
    let mut spans: Vec<(&'static str, Duration)> = Vec::new();
    let end = Instant::now() + duration;
    while Instant::now() < end {
        let writers: Vec<_> = replicas.iter().filter(|replica| replica.writes()).collect();
        assert!(writers.len() <= 1, "{} writers", writers.len());
        let name = writers.first().map_or("", |writer| writer.name);
        match spans.last_mut() {
            Some((last, span)) if *last == name => *span += STEP,
            _ => spans.push((name, STEP)),
        }
        sleep(STEP).await;
    }
    spans
}

fn names(spans: &[(&'static str, Duration)]) -> Vec<&'static str> {
    spans.iter().map(|(name, _)| *name).collect()
}

/// Returns the replicas that wrote, in order. A replica may begin to write in the same step as the
/// one before it stops.
fn writers(spans: &[(&'static str, Duration)]) -> Vec<&'static str> {
    let mut names = names(spans);
    names.retain(|name| !name.is_empty());
    names
}

/// Returns for how long no replica wrote after the first one did.
fn gap(spans: &[(&'static str, Duration)]) -> Duration {
    let first = spans.iter().position(|(name, _)| !name.is_empty()).unwrap();
    let rest = spans[first..].iter();
    rest.filter(|(name, _)| name.is_empty())
        .map(|(_, span)| *span)
        .sum()
}

const MINUTE: Duration = Duration::from_secs(60);

/// The target for the replacement of a failed holder.
const TAKEOVER: Duration = Duration::from_secs(15);

#[tokio::test(start_paused = true)]
async fn lease_is_created_with_owner_and_labels_of_linkerd() {
    let api = api();
    let replica = Replica::start(&api, "a");
    pass(&[&replica], Duration::from_secs(1)).await;
    let created = &api.writes(LEASE)[0];
    assert_eq!(created.query, "&fieldManager=policy-controller");
    assert_eq!(created.body["metadata"]["resourceVersion"], "0");
    let lease = api.get(LEASE).unwrap();
    assert_eq!(
        lease["metadata"]["labels"],
        json!({
            "linkerd.io/control-plane-component": "destination",
            "linkerd.io/control-plane-ns": "linkerd",
        })
    );
    let owner = &lease["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["uid"]),
        (&"Deployment".into(), &"u-1".into())
    );
    let spec = &lease["spec"];
    assert_eq!(spec["holderIdentity"], "a");
    assert_eq!(spec["leaseDurationSeconds"], 30);
    assert_eq!(spec["leaseTransitions"], 1);
    assert!(spec["acquireTime"].is_string() && spec["renewTime"].is_string());
    let read: Lease = serde_json::from_value(lease).unwrap();
    assert!(read.spec.unwrap().renew_time.is_some());
}

#[tokio::test(start_paused = true)]
async fn one_of_three_replicas_writes_without_interruption() {
    let api = api();
    let replicas = ["a", "b", "c"].map(|name| Replica::start(&api, name));
    let [a, b, c] = &replicas;
    let spans = pass(&[a, b, c], 10 * MINUTE).await;
    assert_eq!(writers(&spans).len(), 1, "{spans:?}");
    assert_eq!(gap(&spans), Duration::ZERO);
    assert_eq!(api.get(LEASE).unwrap()["spec"]["leaseTransitions"], 1);
}

#[tokio::test(start_paused = true)]
async fn killed_holder_is_replaced_within_15_seconds() {
    let api = api();
    let a = Replica::start(&api, "a");
    pass(&[&a], MINUTE).await;
    let b = Replica::start(&api, "b");
    pass(&[&a, &b], MINUTE).await;
    a.kill();
    let killed = Instant::now();
    let spans = pass(&[&a, &b], MINUTE).await;
    assert_eq!(writers(&spans), ["a", "b"], "{spans:?}");
    let before = &spans[..spans.len() - 1];
    let taken_over: Duration = before.iter().map(|(_, span)| *span).sum();
    assert!(taken_over <= TAKEOVER, "{taken_over:?} after {killed:?}");
}

#[tokio::test(start_paused = true)]
async fn holder_without_api_server_stops_before_another_writes() {
    for fault in [Fault::Lost, Fault::ResponseLost, Fault::Status(503)] {
        let api = api();
        let a = Replica::start(&api, "a");
        pass(&[&a], MINUTE).await;
        let b = Replica::start(&api, "b");
        api.set_fault("a", Some(fault));
        let spans = pass(&[&a, &b], MINUTE).await;
        assert_eq!(writers(&spans), ["a", "b"], "{fault:?}: {spans:?}");
        assert!(spans[0].1 <= HOLD_DURATION, "{fault:?}: {spans:?}");
        api.set_fault("a", None);
        let spans = pass(&[&a, &b], MINUTE).await;
        assert_eq!(names(&spans), ["b"], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn slow_responses_shorten_leadership_by_their_delay() {
    let api = api();
    api.set_fault("a", Some(Fault::Slow(Duration::from_millis(2500))));
    let a = Replica::start(&api, "a");
    let b = Replica::start(&api, "b");
    pass(&[&a, &b], 10 * MINUTE).await;
}

#[tokio::test(start_paused = true)]
async fn released_lease_is_taken_over_when_the_last_write_has_ended() {
    let api = api();
    let mut a = Replica::start(&api, "a");
    pass(&[&a], MINUTE).await;
    let b = Replica::start(&api, "b");
    pass(&[&a, &b], MINUTE).await;
    let writer = a.leadership.take().unwrap();
    let drained = tokio::spawn(a.drain.drain(MINUTE));
    sleep(Duration::from_secs(2)).await;
    assert!(!writer.lasts(Duration::ZERO));
    // The writer has not ended yet.
    assert!(!b.writes());
    drop(writer);
    assert_eq!(drained.await.unwrap(), Outcome::Complete);
    let spans = pass(&[&b], MINUTE).await;
    assert_eq!(writers(&spans), ["b"], "{spans:?}");
    let waited = MINUTE - spans[spans.len() - 1].1;
    assert!(
        waited <= POLL_INTERVAL + Duration::from_millis(50),
        "{spans:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn restarted_process_of_the_same_name_continues_at_once() {
    let api = api();
    let first = Replica::start(&api, "a");
    let b = Replica::start(&api, "b");
    pass(&[&first, &b], MINUTE).await;
    let (holder, other) = if first.writes() {
        (first, b)
    } else {
        (b, first)
    };
    holder.kill();
    drop(holder.leadership);
    let again = Replica::start(&api, holder.name);
    let spans = pass(&[&again, &other], MINUTE).await;
    assert_eq!(spans.last().unwrap().0, holder.name);
    assert!(gap(&spans) <= Duration::from_secs(1), "{spans:?}");
    assert_eq!(api.get(LEASE).unwrap()["spec"]["leaseTransitions"], 1);
}

#[tokio::test(start_paused = true)]
async fn times_of_other_clocks_have_no_effect() {
    for renewed in ["1990-01-01T00:00:00.000000Z", "2090-01-01T00:00:00.000000Z"] {
        let api = api();
        api.put(
            LEASE,
            json!({ "metadata": { "name": "policy-controller-write" }, "spec": {
                "holderIdentity": "linkerd", "leaseDurationSeconds": 30, "renewTime": renewed,
            }}),
        );
        let a = Replica::start(&api, "a");
        let spans = pass(&[&a], MINUTE).await;
        assert_eq!(names(&spans), ["", "a"]);
        assert!(spans[0].1 >= LEASE_DURATION, "{spans:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lease_that_another_client_takes_is_lost_at_once() {
    let api = api();
    let a = Replica::start(&api, "a");
    pass(&[&a], MINUTE).await;
    let mut lease = api.get(LEASE).unwrap();
    lease["spec"]["holderIdentity"] = "linkerd".into();
    api.put(LEASE, lease);
    let spans = pass(&[&a], Duration::from_secs(20)).await;
    assert_eq!(names(&spans), ["a", ""]);
    assert!(spans[0].1 <= RENEW_INTERVAL, "{spans:?}");
}

#[tokio::test(start_paused = true)]
async fn deleted_lease_is_created_again() {
    let api = api();
    let a = Replica::start(&api, "a");
    let b = Replica::start(&api, "b");
    pass(&[&a, &b], MINUTE).await;
    api.delete(LEASE);
    let spans = pass(&[&a, &b], MINUTE).await;
    assert!(!spans.last().unwrap().0.is_empty());
    assert!(api.get(LEASE).is_some());
}

#[tokio::test(start_paused = true)]
async fn missing_deployment_is_waited_for() {
    let api = ScriptedApi::default();
    let a = Replica::start(&api, "a");
    let spans = pass(&[&a], MINUTE).await;
    assert_eq!(names(&spans), [""]);
    assert!(api.get(LEASE).is_none() && !a.task.is_finished());
    api.put(
        DEPLOYMENT,
        json!({ "metadata": { "name": "linkerd-destination", "uid": "u" } }),
    );
    let spans = pass(&[&a], Duration::from_secs(5)).await;
    assert_eq!(spans.last().unwrap().0, "a");
}
