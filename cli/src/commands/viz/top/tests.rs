//! Helpers of the tests of the view and its drawing.

pub(super) mod fixture;
