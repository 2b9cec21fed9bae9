//! The node agent and its CNI plugin.
