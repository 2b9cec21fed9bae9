//! Validation of objects before they are stored: what admission webhooks and `meshctl` refuse.
//!
//! The functions take JSON as it was received, so that they also find what deserialization would
//! drop. They return every problem with its field, its value and the fix.

pub use self::service_profile::service_profile;
pub use crate::invalid::{Invalid, summary};

mod service_profile;
