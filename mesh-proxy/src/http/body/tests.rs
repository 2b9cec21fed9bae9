//! Bodies and their observers.
