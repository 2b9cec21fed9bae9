//! The wire: Linkerd's proxy API and its conversions to mesh-core.
