//! The way to the thread that owns the node: requests go in, answers come out, one at a time and in
//! order.

use std::{io, thread};

use mesh_core::node::{Answer, Attachment, Enrolled, Refusal, RefusalReason, Request};
use mesh_runtime::task::Vigil;
use tokio::sync::{mpsc, oneshot};

use super::warden::Warden;
use crate::node::NodeError;

/// A node starts a handful of pods at once; beyond this the socket's clients wait, which is what
/// their deadlines are for.
const QUEUE: usize = 64;

#[derive(Debug)]
pub struct Caretaker {
    commands: mpsc::Sender<Command>,
}

#[derive(Debug)]
enum Command {
    Answer(Box<Request>, oneshot::Sender<Answer>),
    EnrolInPlace(Box<Attachment>, oneshot::Sender<Result<Enrolled, Refusal>>),
    LookAfter(oneshot::Sender<()>),
    ReleaseAll(oneshot::Sender<Result<Vec<String>, NodeError>>),
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
                        Command::EnrolInPlace(attachment, answer) => {
                            let _ = answer.send(warden.enrol_in_place(&attachment));
                        }
                        Command::LookAfter(done) => {
                            warden.look_after();
                            let _ = done.send(());
                        }
                        // Whoever asks for something after this is told that the agent is stopping.
                        Command::ReleaseAll(done) => {
                            let _ = done.send(warden.release_all());
                            return;
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
            _ => Answer::Refused(stopping()),
        }
    }

    /// Enrols a pod that runs, and that the plugin did not ask for.
    pub async fn enrol_in_place(&self, attachment: Attachment) -> Result<Enrolled, Refusal> {
        let (answer, answered) = oneshot::channel();
        let command = Command::EnrolInPlace(Box::new(attachment), answer);
        let sent = self.commands.send(command).await;
        match (sent, answered.await) {
            (Ok(()), Ok(result)) => result,
            _ => Err(stopping()),
        }
    }

    /// Takes the redirection from every pod, and ends. Returns what could not be undone.
    pub async fn release_all(&self) -> Result<Vec<String>, NodeError> {
        let (done, finished) = oneshot::channel();
        let sent = self.commands.send(Command::ReleaseAll(done)).await;
        match (sent, finished.await) {
            (Ok(()), Ok(result)) => result,
            // The thread has ended before, which its vigil reported.
            _ => Ok(vec!["the thread that redirects pods has ended".to_owned()]),
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

fn stopping() -> Refusal {
    Refusal {
        reason: RefusalReason::TryAgain,
        message: "the mesh agent is stopping; ask again".to_owned(),
    }
}
