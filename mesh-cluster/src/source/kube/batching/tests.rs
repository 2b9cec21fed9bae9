//! Batches for given messages, with paused time.

use std::sync::Arc;

use mesh_objects::model::{Name, Node, OwnedObject};

use super::*;

fn node(name: &str, zone: &str) -> Object {
    Object::Node(Arc::new(Node {
        name: Name::new("", name),
        zone: Some(zone.into()),
        region: None,
        pod_gateways: Vec::new(),
    }))
}

fn job(name: &str) -> Object {
    Object::Job(Arc::new(OwnedObject {
        name: Name::new("shop", name),
        owner: None,
    }))
}

fn message(kind: Kind, changes: Vec<Change>, complete: bool) -> WatchMessage {
    WatchMessage {
        kind,
        changes,
        complete,
    }
}

struct Fixture {
    messages: mpsc::Sender<WatchMessage>,
    batches: mpsc::Receiver<Received>,
}

impl Fixture {
    fn new() -> Self {
        let (messages, received) = mpsc::channel(8);
        let (sender, batches) = mpsc::channel(1);
        let kinds = BTreeSet::from([Kind::Node, Kind::Job]);
        tokio::spawn(run(kinds, received, sender));
        Self { messages, batches }
    }

    async fn send(&self, kind: Kind, changes: Vec<Change>, complete: bool) {
        let sent = self.messages.send(message(kind, changes, complete)).await;
        assert!(sent.is_ok());
    }

    async fn next(&mut self) -> Batch {
        self.batches.recv().await.unwrap().batch
    }

    /// Returns a fixture with both kinds listed and no objects.
    async fn started() -> Self {
        let mut fixture = Self::new();
        fixture.send(Kind::Node, vec![], true).await;
        fixture.send(Kind::Job, vec![], true).await;
        assert_eq!(fixture.next().await, [Change::Replace(vec![])]);
        fixture
    }
}

#[tokio::test(start_paused = true)]
async fn first_batch_contains_lists_of_all_kinds() {
    let mut fixture = Fixture::new();
    let nodes = vec![Change::Apply(node("a", "1")), Change::Apply(node("b", "1"))];
    fixture.send(Kind::Node, nodes, true).await;
    let deleted = vec![Change::Delete(node("b", "1").key())];
    fixture.send(Kind::Node, deleted, false).await;
    let early = tokio::time::timeout(Duration::from_secs(60), fixture.batches.recv()).await;
    assert!(early.is_err(), "{early:?}");
    let jobs = vec![Change::Apply(job("j"))];
    fixture.send(Kind::Job, jobs, true).await;
    let all = vec![node("a", "1"), job("j")];
    assert_eq!(fixture.next().await, [Change::Replace(all)]);
}

#[tokio::test(start_paused = true)]
async fn concurrent_changes_are_one_batch_of_current_versions() {
    let mut fixture = Fixture::started().await;
    let changes = [
        Change::Apply(node("a", "1")),
        Change::Apply(node("a", "2")),
        Change::Apply(node("b", "1")),
        Change::Delete(node("b", "1").key()),
    ];
    for change in changes {
        fixture.send(Kind::Node, vec![change], false).await;
    }
    fixture
        .send(Kind::Job, vec![Change::Apply(job("j"))], false)
        .await;
    assert_eq!(
        fixture.next().await,
        [
            Change::Apply(node("a", "2")),
            Change::Delete(node("b", "1").key()),
            Change::Apply(job("j")),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn repeated_list_without_changes_sends_no_batch() {
    let mut fixture = Fixture::started().await;
    fixture.send(Kind::Node, vec![], true).await;
    let none = tokio::time::timeout(Duration::from_secs(60), fixture.batches.recv()).await;
    assert!(none.is_err(), "{none:?}");
}

#[tokio::test(start_paused = true)]
async fn changes_are_merged_while_channel_is_full() {
    let mut fixture = Fixture::started().await;
    fixture
        .send(Kind::Node, vec![Change::Apply(node("a", "1"))], false)
        .await;
    tokio::time::sleep(SETTLE * 2).await;
    // The channel with a capacity of one batch is full.
    for zone in 0..100 {
        let change = Change::Apply(node("b", &zone.to_string()));
        fixture.send(Kind::Node, vec![change], false).await;
    }
    tokio::time::sleep(SETTLE * 2).await;
    assert_eq!(fixture.next().await, [Change::Apply(node("a", "1"))]);
    assert_eq!(fixture.next().await, [Change::Apply(node("b", "99"))]);
}
