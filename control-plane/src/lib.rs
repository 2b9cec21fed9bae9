//! The mesh controllers: identity, destination, policy.
