//! [`Link`]: one connection of a peer. A task reads all that arrives, another writes all that is to
//! be sent, and the steps wait for both.

mod state;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::sleep;

use self::state::State;
use super::{Signals, Socket};
use crate::observation::{BegunStep, Ending, Observation};
use crate::script::{Protocol, Reading, Side, Step, Wait};

/// One connection of a peer.
pub(crate) struct Link {
    pub(crate) side: Side,
    /// Among the connections of its peer, from 1.
    number: usize,
    pub(crate) protocol: Protocol,
    pub(crate) signals: Signals,
    state: RefCell<State>,
    is_pausing: Cell<bool>,
}

impl Link {
    pub(crate) fn new(side: Side, number: usize, protocol: Protocol, signals: Signals) -> Self {
        Self {
            side,
            number,
            protocol,
            signals,
            state: RefCell::new(State::new(side, protocol)),
            is_pausing: Cell::new(false),
        }
    }

    pub(crate) fn open(&self, socket: Socket) {
        self.change(|state| state.socket = Some(socket));
    }

    pub(crate) fn refuse(&self, error: &io::Error) {
        self.change(|state| state.refused = Some(error.kind().to_string()));
    }

    pub(crate) fn begin_step(&self, index: usize, step: &Step) {
        self.is_pausing.set(matches!(step, Step::Pause(_)));
        let text = step.to_string();
        self.signals.record(BegunStep {
            at: self.signals.elapsed(),
            peer: self.side,
            connection: self.number,
            step: index + 1,
            text: text.clone(),
        });
        self.change(|state| state.step = Some((index + 1, text)));
    }

    pub(crate) fn finish_steps(&self) {
        self.is_pausing.set(false);
        self.change(|state| state.step = None);
    }

    /// Whether the present step is a pause, which is not a lack of progress.
    pub(crate) fn is_pausing(&self) -> bool {
        self.is_pausing.get()
    }

    /// The number of bytes that have arrived.
    pub(crate) fn received(&self) -> usize {
        self.state.borrow().received()
    }

    pub(crate) fn ending(&self) -> Ending {
        self.state.borrow().ending
    }

    pub(crate) fn set_reading(&self, reading: Reading) {
        self.change(|state| state.reading = reading);
    }

    pub(crate) fn set_manual(&self) {
        self.change(|state| state.is_manual = true);
    }

    /// Ignores what arrives on a stream from now on.
    pub(crate) fn leave(&self, stream: u32) {
        self.change(|state| state.leave(stream));
    }

    /// Queues bytes behind the ones that wait.
    pub(crate) fn send(&self, bytes: Vec<u8>) {
        self.change(|state| state.output.extend(bytes));
    }

    /// Keeps the peer's own frames back while a step sends pieces.
    pub(crate) fn hold(&self, is_held: bool) {
        self.change(|state| state.hold(is_held));
    }

    pub(crate) fn send_held(&self, piece: &[u8]) {
        self.change(|state| state.output.extend(piece));
    }

    /// What a peer sends determines how it reads what it receives.
    pub(crate) fn note_sent(&self, bytes: &[u8]) {
        self.change(|state| state.note_sent(bytes, &self.signals));
    }

    /// Waits until the socket has taken everything, or takes no more.
    pub(crate) async fn flushed(&self) {
        self.until(|state| state.is_flushed().then_some(())).await;
    }

    pub(crate) fn is_acknowledged(&self) -> bool {
        let state = self.state.borrow();
        let socket = state.socket.as_ref();
        socket.is_none_or(Socket::is_acknowledged)
    }

    /// Sends FIN.
    pub(crate) fn finish(&self) {
        self.change(|state| {
            if let Some(socket) = &mut state.socket {
                socket.finish();
            }
        });
    }

    /// Closes the socket, with RST or as the kernel decides.
    pub(crate) fn close(&self, with_reset: bool) {
        let socket = self.change(State::close);
        if let Some(socket) = &socket
            && with_reset
        {
            socket.reset_on_close();
        }
    }

    /// Returns whether what it waits for has happened: false if it can happen no more.
    pub(crate) async fn wait(&self, wait: &Wait) -> bool {
        self.until(|state| {
            let has_happened = state.has_happened(wait);
            let can_happen = state.ending == Ending::Open;
            (has_happened || !can_happen).then_some(has_happened)
        })
        .await
    }

    /// Waits for a message of HTTP/1 after `count` others. Returns false if there are no more.
    pub(crate) async fn message_begins(&self, count: usize) -> bool {
        self.until(|state| state.has_begun(count)).await
    }

    /// Calls `find` until it returns a value, whenever something has changed.
    pub(crate) async fn until<T>(&self, mut find: impl FnMut(&mut State) -> Option<T>) -> T {
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            match find(&mut state) {
                Some(found) => Poll::Ready(found),
                None => {
                    state.waiting.push(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Changes the state and wakes all that wait for it.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.borrow_mut();
        let result = change(&mut state);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(std::task::Waker::wake);
        self.signals.note_progress();
        result
    }

    /// Everything that has been seen. Closes the connection.
    pub(crate) fn into_observation(self: &Rc<Self>) -> Observation {
        let observation = self.state.borrow_mut().observe();
        let _socket = self.change(State::close);
        observation
    }
}

/// Reads until the connection ends.
pub(super) async fn read_all(link: Rc<Link>) {
    let mut buffer = vec![0; 16_384];
    loop {
        let reading = link
            .until(|state| {
                (state.reading != Reading::Stop || state.socket.is_none()).then_some(state.reading)
            })
            .await;
        let limit = match reading {
            Reading::Slow { bytes, .. } => bytes.min(buffer.len()),
            _ => buffer.len(),
        };
        let read = poll_fn(|cx| poll_read(&link, &mut buffer[..limit], reading, cx)).await;
        let Some(read) = read else {
            if link.state.borrow().socket.is_none() {
                return;
            }
            continue;
        };
        let has_ended =
            link.change(|state| state.receive(read.map(|n| &buffer[..n]), &link.signals));
        if has_ended {
            return;
        }
        if let Reading::Slow { every, .. } = reading {
            sleep(Duration::from_millis(every)).await;
        }
    }
}

/// `None` if the connection was closed here, or the peer reads at another speed now.
fn poll_read(
    link: &Link,
    buffer: &mut [u8],
    reading: Reading,
    cx: &mut Context<'_>,
) -> Poll<Option<io::Result<usize>>> {
    let mut state = link.state.borrow_mut();
    if state.reading != reading {
        return Poll::Ready(None);
    }
    let Some(socket) = &state.socket else {
        return Poll::Ready(None);
    };
    let read = socket.poll_read(buffer, cx);
    if read.is_pending() {
        state.waiting.push(cx.waker().clone());
    }
    read.map(Some)
}

/// Writes until the connection is closed here.
pub(super) async fn write_all(link: Rc<Link>) {
    loop {
        let is_open = link
            .until(|state| {
                if state.socket.is_none() {
                    return Some(false);
                }
                (!state.output.is_empty()).then_some(true)
            })
            .await;
        if !is_open {
            return;
        }
        let written = poll_fn(|cx| poll_write(&link, cx)).await;
        link.change(|state| state.sent(written));
    }
}

fn poll_write(link: &Link, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
    let mut state = link.state.borrow_mut();
    let State { socket, output, .. } = &mut *state;
    let Some(socket) = socket else {
        return Poll::Ready(Ok(0));
    };
    let written = socket.poll_write(output.make_contiguous(), cx);
    if written.is_pending() {
        state.waiting.push(cx.waker().clone());
    }
    written
}
