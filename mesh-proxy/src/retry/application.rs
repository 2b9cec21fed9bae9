//! Requests to the application behind the inbound proxy, which has one address.

use super::{Action, Dispatch, History, Replay, decide};
use crate::http::client::{Client, Dial, SendError};
use crate::http::{Request, Response};

impl<D: Dial + 'static> Client<D> {
    /// Sends `request` to the application. [`decide`] limits the number of connections.
    pub async fn send(&self, request: &mut Request) -> Result<Response, SendError> {
        let replay = Replay::of(request);
        let mut history = History::default();
        loop {
            let connection = self.connect(request).await.map_err(SendError::Dial)?;
            let mut error = match connection.send(request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let replay = replay.after_attempt(request);
            if replay == Replay::Safe
                && error.is_reset_of_new_connection()
                && self.dial().has_stopped().await
                && let SendError::Lost {
                    may_be_unreceived, ..
                } = &mut error
            {
                *may_be_unreceived = true;
            }
            let action = decide((&error).into(), replay, Dispatch::Application, &mut history);
            if action == Action::Return {
                return Err(error);
            }
        }
    }
}
