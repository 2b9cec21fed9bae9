//! Requests to the application behind the inbound proxy, which has one address.

use super::{Action, Dispatch, Failure, History, Replay, decide};
use crate::http::client::{Client, Dial, SendError};
use crate::http::{Request, Response};

impl<D: Dial + 'static> Client<D> {
    /// Sends `request` to the application. [`decide`] limits the number of connections.
    pub async fn send(&self, request: &mut Request) -> Result<Response, SendError> {
        let replay = Replay::of(request);
        let mut history = History::default();
        loop {
            let connection = self.connect(request).await.map_err(SendError::Dial)?;
            let error = match connection.send(request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let replay = replay.after_attempt(request);
            let mut failure = Failure::from(&error);
            if replay == Replay::Safe
                && error.is_reset_of_new_connection()
                && self.dial().has_stopped().await
            {
                failure = Failure::Lost {
                    may_be_unreceived: true,
                };
            }
            let action = decide(failure, replay, Dispatch::Application, &mut history);
            if action == Action::Return {
                return Err(error);
            }
        }
    }
}
