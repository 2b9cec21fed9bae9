//! Tests of the index that concern several views, and helpers of the tests of one.

pub(in crate::index) mod compact;
mod consistency;
pub(crate) mod fixture;
mod outbound_rules;
