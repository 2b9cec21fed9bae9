//! Kubernetes objects the mesh reads and writes, and the pod patch.
