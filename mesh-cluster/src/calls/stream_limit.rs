//! The limit of the open streams of all services, and its division among clients. It bounds the
//! values in the index, which are only kept while a stream watches them.
//!
//! Any client may use the streams that others do not use. When all streams are in use, a client
//! with fewer streams than the largest client takes one of the largest client's, so that the shares
//! become equal. The pods of an identity divide its share in the same way. No client waits for
//! another, and none keeps it out, unless the streams that were taken and do not end have reached
//! the limit, too: the memory of the process suffices for both.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use mesh_runtime::memory::CgroupMemory;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tonic::Status;

/// A proxy has two streams for each destination and one for each port of its pod, so this suffices
/// for 1,000 busy pods at each replica of a controller.
const DEFAULT_MAX_STREAMS: usize = 100_000;

/// The open streams and their limit.
#[derive(Debug)]
pub(super) struct StreamLimit {
    limit: usize,
    // Locked while a stream is added or removed.
    open: Mutex<OpenStreams>,
}

/// The right to have a stream open, until it is dropped or another client takes it.
#[derive(Debug)]
pub(super) struct StreamPermit {
    streams: Arc<StreamLimit>,
    client: Arc<str>,
    pod: Arc<str>,
    number: u64,
    taken: Arc<Notify>,
}

#[derive(Debug, Default)]
struct OpenStreams {
    all: usize,
    /// Streams that were taken and have not ended, of all clients. At most the limit.
    ending: usize,
    /// The number of the next stream.
    next: u64,
    clients: HashMap<Arc<str>, ClientStreams>,
    by_size: BySize,
}

/// The streams of a client identity.
#[derive(Debug, Default)]
struct ClientStreams {
    all: usize,
    /// Streams that others have taken and that have not ended, for example because the client does
    /// not read. A client has at most the limit of these and open ones.
    ending: usize,
    pods: HashMap<Arc<str>, PodStreams>,
    by_size: BySize,
}

/// The streams of a pod by number, the oldest first.
type PodStreams = BTreeMap<u64, Arc<Notify>>;

/// The names of clients or pods with streams, in the order of their number of streams. A client may
/// name a pod for each stream, and each call at the limit looks for the largest under the lock.
#[derive(Debug, Default)]
struct BySize(BTreeSet<(usize, Arc<str>)>);

/// Half of the memory limit is for streams. For each open one there may be one that was taken and
/// does not end, and each takes 4 KiB (docs/bench).
const MEMORY_SHARE: u64 = 2;
const STREAM_BYTES: u64 = 8 * 1024;

/// Fewest streams with a memory limit, for a hundred proxies.
const MIN_STREAMS: usize = 1000;

/// Most bytes of the name that a pod claims, as of names in Kubernetes.
const MAX_POD_NAME: usize = 253;

/// Returns the limit without a flag, from the memory limit of the process.
pub(super) fn default_limit() -> usize {
    limit_of(CgroupMemory::current().map(|memory| memory.limit()))
}

fn limit_of(memory: Option<u64>) -> usize {
    memory.map_or(DEFAULT_MAX_STREAMS, |bytes| {
        let streams = usize::try_from(bytes / MEMORY_SHARE / STREAM_BYTES).unwrap_or(usize::MAX);
        streams.clamp(MIN_STREAMS, DEFAULT_MAX_STREAMS)
    })
}

impl StreamLimit {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            open: Mutex::default(),
        })
    }

    /// Adds a stream of a client, empty for clients without identity, which count as one. The
    /// client chooses `pod`, so it only divides the share of its own identity.
    pub(super) fn acquire(
        self: &Arc<Self>,
        client: &str,
        pod: &str,
    ) -> Result<StreamPermit, Status> {
        let pod = if pod.len() <= MAX_POD_NAME { pod } else { "" };
        let mut open = self.open.lock();
        let own = open.clients.get(client);
        if own.is_some_and(|own| own.all + own.ending >= self.limit && own.ending > 0) {
            return Err(self.exhausted(client, &open));
        }
        if open.all >= self.limit {
            if open.ending >= self.limit {
                return Err(Status::resource_exhausted(format!(
                    "all {0} streams are open (--max-streams), and {0} that were taken from clients have not ended, because the clients do not read them",
                    self.limit
                )));
            }
            if !open.make_room(client, pod) {
                return Err(self.exhausted(client, &open));
            }
        }
        let number = open.next;
        open.next += 1;
        open.all += 1;
        let client: Arc<str> = match open.clients.get_key_value(client) {
            Some((known, _)) => known.clone(),
            None => client.into(),
        };
        let OpenStreams {
            clients, by_size, ..
        } = &mut *open;
        let of_client = clients.entry(client.clone()).or_default();
        by_size.resize(&client, of_client.all, of_client.all + 1);
        of_client.all += 1;
        let pod: Arc<str> = match of_client.pods.get_key_value(pod) {
            Some((known, _)) => known.clone(),
            None => pod.into(),
        };
        let taken = Arc::new(Notify::new());
        let of_pod = of_client.pods.entry(pod.clone()).or_default();
        of_pod.insert(number, taken.clone());
        let size = of_pod.len();
        of_client.by_size.resize(&pod, size - 1, size);
        Ok(StreamPermit {
            streams: self.clone(),
            client,
            pod,
            number,
            taken,
        })
    }

    fn exhausted(&self, client: &str, open: &OpenStreams) -> Status {
        let own = open.clients.get(client).map_or(0, |streams| streams.all);
        let whose = match client {
            "" => "clients without an identity have",
            client => &format!("{client} has"),
        };
        Status::resource_exhausted(format!(
            "all {} streams are open (--max-streams), and {whose} a full share of them with {own}",
            self.limit
        ))
    }
}

impl OpenStreams {
    /// Takes a stream from the largest client, or from the largest pod of the same client, if it
    /// has more than the requester will have. Returns whether it did.
    fn make_room(&mut self, client: &str, pod: &str) -> bool {
        let own = self.clients.get(client);
        let own_all = own.map_or(0, |streams| streams.all);
        let Some((largest_all, largest)) = self.by_size.largest() else {
            return false;
        };
        let largest_pod = |streams: &ClientStreams| streams.by_size.largest().cloned();
        let (client, pod): (Arc<str>, Arc<str>) = if own_all + 1 < *largest_all {
            let Some((_, pod)) = self.clients.get(largest).and_then(largest_pod) else {
                return false;
            };
            (largest.clone(), pod)
        } else {
            let own_pod = own.and_then(|streams| streams.pods.get(pod));
            let own_pod = own_pod.map_or(0, BTreeMap::len);
            match own.and_then(largest_pod) {
                Some((size, largest)) if own_pod + 1 < size => (client.into(), largest),
                _ => return false,
            }
        };
        let of_pod = self.clients.get(&client);
        let of_pod = of_pod.and_then(|streams| streams.pods.get(&pod));
        let Some((number, taken)) = of_pod.and_then(BTreeMap::last_key_value) else {
            return false;
        };
        let number = *number;
        taken.notify_one();
        if self.remove(&client, &pod, number)
            && let Some(of_client) = self.clients.get_mut(&client)
        {
            of_client.ending += 1;
            self.ending += 1;
        }
        true
    }

    /// Records the end of a stream.
    fn end(&mut self, client: &Arc<str>, pod: &Arc<str>, number: u64) {
        let is_removed = self.remove(client, pod, number);
        let Some(of_client) = self.clients.get_mut(client) else {
            return;
        };
        if !is_removed {
            of_client.ending -= 1;
            self.ending -= 1;
        }
        if of_client.all + of_client.ending == 0 {
            self.clients.remove(client);
        }
    }

    /// Removes a stream; returns `false` if another client has taken it.
    fn remove(&mut self, client: &Arc<str>, pod: &Arc<str>, number: u64) -> bool {
        let Some(of_client) = self.clients.get_mut(client) else {
            return false;
        };
        let is_removed = of_client.remove(pod, number);
        if is_removed {
            let left = of_client.all;
            self.by_size.resize(client, left + 1, left);
            self.all -= 1;
        }
        is_removed
    }
}

impl ClientStreams {
    fn remove(&mut self, pod: &Arc<str>, number: u64) -> bool {
        let Some(of_pod) = self.pods.get_mut(pod) else {
            return false;
        };
        let is_removed = of_pod.remove(&number).is_some();
        if is_removed {
            let left = of_pod.len();
            self.by_size.resize(pod, left + 1, left);
            self.all -= 1;
        }
        if of_pod.is_empty() {
            self.pods.remove(pod);
        }
        is_removed
    }
}

impl BySize {
    fn resize(&mut self, name: &Arc<str>, before: usize, now: usize) {
        self.0.remove(&(before, name.clone()));
        if now > 0 {
            self.0.insert((now, name.clone()));
        }
    }

    fn largest(&self) -> Option<&(usize, Arc<str>)> {
        self.0.last()
    }
}

impl StreamPermit {
    /// Waits until another client takes the stream.
    pub(super) async fn taken(&self) {
        self.taken.notified().await;
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut open = self.streams.open.lock();
        open.end(&self.client, &self.pod, self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tonic::Code;

    use super::*;

    fn open(limit: &Arc<StreamLimit>, client: &str, pod: &str, count: usize) -> Vec<StreamPermit> {
        let one = |_| limit.acquire(client, pod).unwrap();
        (0..count).map(one).collect()
    }

    fn kept(permits: &[StreamPermit]) -> usize {
        let is_taken = |permit: &&StreamPermit| permit.taken().now_or_never().is_none();
        permits.iter().filter(is_taken).count()
    }

    #[test]
    fn client_takes_streams_of_the_largest_until_shares_are_equal() {
        let limit = StreamLimit::new(12);
        let greedy = open(&limit, "greedy", "a", 12);
        let second = open(&limit, "second", "a", 6);
        let refused = limit.acquire("second", "a").unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(
            refused
                .message()
                .contains("second has a full share of them with 6"),
            "{refused}"
        );
        // Two that hold all do not keep out a third, with identity or without.
        let third = open(&limit, "", "", 4);
        assert_eq!(third.len(), 4);
        let refused = limit.acquire("", "").unwrap_err();
        assert!(
            refused
                .message()
                .contains("clients without an identity have"),
            "{refused}"
        );
        let kept = [kept(&greedy), kept(&second), kept(&third)];
        assert_eq!(kept, [4, 4, 4]);
        assert_eq!(limit.open.lock().all, 12);
        drop((greedy, second, third));
        assert_eq!(limit.open.lock().all, 0);
        assert!(limit.open.lock().clients.is_empty());
    }

    #[test]
    fn pods_of_an_identity_share_its_streams() {
        let limit = StreamLimit::new(8);
        let other = open(&limit, "other", "a", 4);
        let first = open(&limit, "web", "web-1", 4);
        let second = open(&limit, "web", "web-2", 2);
        assert!(limit.acquire("web", "web-2").is_err());
        let kept = [kept(&other), kept(&first), kept(&second)];
        assert_eq!(kept, [4, 2, 2], "others lose nothing");
    }

    /// The order by number of streams is kept with each change.
    #[test]
    fn order_by_size_is_the_one_of_the_streams() {
        let limit = StreamLimit::new(30);
        let mut permits = Vec::new();
        for round in 0..200_usize {
            let (client, pod) = (round % 7, round % 11);
            if let Ok(permit) = limit.acquire(&format!("c{client}"), &format!("p{pod}")) {
                permits.push(permit);
            }
            if round % 3 == 0 {
                permits.swap_remove(round % permits.len());
            }
            let open = limit.open.lock();
            let mut sizes = Vec::new();
            for (name, client) in &open.clients {
                let pods: BTreeSet<_> = (client.pods.iter())
                    .map(|(name, streams)| (streams.len(), name.clone()))
                    .collect();
                assert_eq!(client.by_size.0, pods);
                assert_eq!(client.all, pods.iter().map(|(size, _)| size).sum::<usize>());
                sizes.extend((client.all > 0).then(|| (client.all, name.clone())));
            }
            assert_eq!(open.by_size.0, sizes.iter().cloned().collect());
            assert_eq!(open.all, sizes.iter().map(|(size, _)| size).sum::<usize>());
        }
    }

    #[test]
    fn one_client_may_use_all_streams() {
        let limit = StreamLimit::new(5);
        let all = open(&limit, "greedy", "a", 5);
        assert!(limit.acquire("greedy", "a").is_err());
        assert_eq!(kept(&all), 5);
        drop(all);
        open(&limit, "greedy", &"a".repeat(10_000), 1);
        assert!(limit.open.lock().clients.is_empty());
    }

    /// It could otherwise have any number of streams, with the help of a second identity.
    #[test]
    fn streams_that_do_not_end_count_for_their_client() {
        let limit = StreamLimit::new(4);
        let mut unread = open(&limit, "greedy", "a", 4);
        for _ in 0..2 {
            let other = open(&limit, "other", "a", 2);
            drop(other);
            if let Ok(permit) = limit.acquire("greedy", "a") {
                unread.push(permit);
            }
            if let Ok(permit) = limit.acquire("greedy", "a") {
                unread.push(permit);
            }
        }
        assert_eq!(unread.len(), 4, "two are open and two do not end");
        drop(unread);
        assert_eq!(open(&limit, "greedy", "a", 4).len(), 4);
    }

    /// Each identity could otherwise have the limit of them.
    #[test]
    fn streams_that_do_not_end_are_bounded_for_all_clients() {
        const LIMIT: usize = 12;
        let limit = StreamLimit::new(LIMIT);
        let mut unread = Vec::new();
        for round in 0..40 {
            let client = format!("client-{round}");
            while let Ok(permit) = limit.acquire(&client, "a") {
                unread.push(permit);
            }
        }
        assert_eq!(unread.len(), 2 * LIMIT, "the memory is for these");
        let open_now = || {
            let open = limit.open.lock();
            (open.all, open.ending)
        };
        assert_eq!(open_now(), (LIMIT, LIMIT));
        let refused = limit.acquire("late", "a").unwrap_err();
        assert!(refused.message().contains("do not read"), "{refused}");
        // One that ends makes room for another.
        let ended = unread
            .iter()
            .position(|it| it.taken().now_or_never().is_some());
        drop(unread.swap_remove(ended.unwrap()));
        assert!(limit.acquire("late", "a").is_ok());
        drop(unread);
        assert_eq!(open_now(), (0, 0));
        assert!(limit.open.lock().clients.is_empty());
    }

    #[test]
    fn limit_follows_from_memory() {
        const MIB: u64 = 1 << 20;
        for (memory, expect) in [
            (None, 100_000),
            (Some(250 * MIB), 16_000),
            (Some(4096 * MIB), 100_000),
            (Some(MIB), 1000),
        ] {
            assert_eq!(limit_of(memory), expect, "{memory:?}");
        }
    }
}
