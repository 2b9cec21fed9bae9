//! Integration and end-to-end tests and their harness.
