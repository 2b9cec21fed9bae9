//! Plays the steps of connections, as their clients and servers, and records what arrives.

mod frames;
mod link;
mod peers;
mod receiver;
mod signals;
mod socket;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::sleep;

use self::link::Link;
pub(crate) use self::peers::{ACCEPTED, Hosts, Peers};
pub(crate) use self::receiver::Receiver;
pub(crate) use self::signals::Signals;
pub(crate) use self::socket::Socket;
use crate::observation::Ending;
use crate::script::{Http2Step, Protocol, Server, Side, Step, Wait};
use crate::websocket;

/// Between the pieces of one `send`, so that each arrives before the next is sent.
const BETWEEN_PIECES: Duration = Duration::from_millis(1);

/// Opens a connection and plays the steps on it.
async fn run_client(link: Rc<Link>, hosts: impl Hosts, steps: Vec<Step>) {
    let before = steps
        .iter()
        .take_while(|step| is_before_connect(step))
        .count();
    let (first, rest) = steps.split_at(before);
    play_each(&link, first, 0).await;
    match hosts.connect().await {
        Ok(socket) => link.open(socket),
        Err(error) => return link.refuse(&error),
    }
    play(&link, rest, before).await;
}

/// A connection is opened by the first step that needs one.
fn is_before_connect(step: &Step) -> bool {
    matches!(
        step,
        Step::Pause(_) | Step::Signal(_) | Step::Wait(Wait::Signal(_))
    )
}

/// Plays the server of a script on a connection, the n-th from 0.
async fn run_server(link: Rc<Link>, server: Rc<Server>, n: usize, requests: Rc<Cell<usize>>) {
    match &*server {
        Server::Refuses | Server::Accepts(_) => play(&link, server.steps(n), 0).await,
        Server::Responds(_) => respond(&link, &server, &requests).await,
    }
}

/// Plays the steps for each request that arrives on a connection. `requests` counts the requests of
/// all connections. Without a next request, the server closes the connection.
async fn respond(link: &Rc<Link>, server: &Server, requests: &Cell<usize>) {
    carry(link);
    for count in 0.. {
        if !link.message_begins(count).await {
            return link.close(false);
        }
        let n = requests.replace(requests.get() + 1);
        if !play_each(link, server.steps(n), 0).await {
            return;
        }
    }
}

/// Starts the tasks that read and write a connection.
fn carry(link: &Rc<Link>) {
    spawn_local(link::read_all(Rc::clone(link)));
    spawn_local(link::write_all(Rc::clone(link)));
}

/// Plays steps on an open connection. `first` is the number of the steps before them.
async fn play(link: &Rc<Link>, steps: &[Step], first: usize) {
    carry(link);
    if link.protocol == Protocol::Http2 && steps.first() != Some(&Step::Http2(Http2Step::Manual)) {
        let has_settings = matches!(steps.first(), Some(Step::Http2(Http2Step::Settings(_))));
        link.send(frames::preface(link.side, !has_settings));
    }
    play_each(link, steps, first).await;
}

/// Returns whether all steps have succeeded.
async fn play_each(link: &Link, steps: &[Step], first: usize) -> bool {
    for (index, step) in steps.iter().enumerate() {
        link.begin_step(first + index, step);
        let is_done = play_step(link, step).await;
        if !is_done {
            // An application closes a connection whose peer does not do as it should.
            link.close(false);
            return false;
        }
    }
    link.finish_steps();
    true
}

/// Returns whether the step has succeeded.
async fn play_step(link: &Link, step: &Step) -> bool {
    match step {
        Step::Send { bytes, piece } => {
            let bytes = bytes.to_vec();
            link.note_sent(&bytes);
            send(link, &bytes, *piece).await;
            true
        }
        Step::Pause(milliseconds) => {
            sleep(Duration::from_millis(*milliseconds)).await;
            true
        }
        Step::Signal(name) => {
            link.signals.set(name);
            true
        }
        Step::Wait(Wait::Signal(name)) => {
            link.signals.wait(name).await;
            true
        }
        Step::Wait(wait) => link.wait(wait).await,
        Step::Read(reading) => {
            link.set_reading(*reading);
            true
        }
        Step::Finish => {
            link.flushed().await;
            link.finish();
            true
        }
        Step::Reset | Step::Close => {
            link.flushed().await;
            link.close(*step == Step::Reset);
            true
        }
        Step::Http2(step) => frames::play(link, step).await,
        Step::Grpc(step) => frames::play_grpc(link, step).await,
        Step::WebSocket(step) => {
            send(
                link,
                &websocket::encode(step, link.side == Side::Client),
                None,
            )
            .await;
            true
        }
    }
}

/// Sends bytes, each piece after the one before it has arrived. Returns when the socket has them,
/// or accepts no more.
async fn send(link: &Link, bytes: &[u8], piece: Option<usize>) {
    let Some(piece) = piece else {
        link.send(bytes.to_vec());
        return link.flushed().await;
    };
    link.hold(true);
    for piece in bytes.chunks(piece) {
        link.send_held(piece);
        link.flushed().await;
        link.acknowledged(BETWEEN_PIECES).await;
    }
    link.hold(false);
}

impl Link {
    /// Waits until the bytes that were sent have arrived, for a connection that lasts.
    async fn acknowledged(&self, interval: Duration) {
        loop {
            sleep(interval).await;
            if self.is_acknowledged() || self.ending() != Ending::Open {
                return;
            }
        }
    }
}
