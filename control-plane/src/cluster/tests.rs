//! Helpers of the tests of all that calls the API server.

pub(crate) mod scripted_api;
