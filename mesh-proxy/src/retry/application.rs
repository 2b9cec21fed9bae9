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
            let is_reused = connection.is_reused();
            let error = match connection.send(request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let dispatch = Dispatch::Application { is_reused };
            let replay = replay.after_attempt(request);
            if decide((&error).into(), replay, dispatch, &mut history) == Action::Return {
                return Err(error);
            }
        }
    }
}
