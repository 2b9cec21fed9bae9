//! The way to the thread that owns the node: requests go in, answers come out, one at a time and in order.

use std::{io, thread};

use mesh_core::node::{Answer, Refusal, RefusalReason, Request};
use mesh_runtime::task::Vigil;
use tokio::sync::{mpsc, oneshot};

use super::warden::Warden;

/// A node starts a handful of pods at once; beyond this the socket's clients wait, which is what their deadlines are for.
const QUEUE: usize = 64;

#[derive(Debug)]
pub struct Caretaker {
    commands: mpsc::Sender<Command>,
}

#[derive(Debug)]
enum Command {
    Answer(Box<Request>, oneshot::Sender<Answer>),
    LookAfter(oneshot::Sender<()>),
}

impl Caretaker {
    /// Starts the thread. The receiver resolves when the pods that were there have been adopted.
    pub fn start(mut warden: Warden, vigil: Vigil) -> io::Result<(Self, oneshot::Receiver<()>)> {
        let (commands, mut queue) = mpsc::channel(QUEUE);
        let (adopted, adoption) = oneshot::channel();
        thread::Builder::new()
            .name("node".to_owned())
            .spawn(move || {
                let _vigil = vigil;
                warden.adopt();
                // Nobody waits any more when the agent is already stopping; so below.
                let _ = adopted.send(());
                while let Some(command) = queue.blocking_recv() {
                    match command {
                        Command::Answer(request, answer) => {
                            let _ = answer.send(warden.answer(&request));
                        }
                        Command::LookAfter(done) => {
                            warden.look_after();
                            let _ = done.send(());
                        }
                    }
                }
            })?;
        Ok((Self { commands }, adoption))
    }

    pub async fn ask(&self, request: Request) -> Answer {
        let (answer, answered) = oneshot::channel();
        let sent = self
            .commands
            .send(Command::Answer(Box::new(request), answer))
            .await;
        match (sent, answered.await) {
            (Ok(()), Ok(answer)) => answer,
            _ => Answer::Refused(Refusal {
                reason: RefusalReason::TryAgain,
                message: "the mesh agent is stopping; ask again".to_owned(),
            }),
        }
    }

    /// Sweeps once, and returns when it is done.
    pub async fn look_after(&self) {
        let (done, finished) = oneshot::channel();
        if self.commands.send(Command::LookAfter(done)).await.is_ok() {
            // An error says that the thread ended, which its vigil reports.
            let _ = finished.await;
        }
    }
}
