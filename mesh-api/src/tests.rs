//! Helpers of the tests of all conversions.

pub(crate) mod arbitrary;
