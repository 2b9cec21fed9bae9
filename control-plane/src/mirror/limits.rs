//! Bounds of what the users of a target cluster can make this process keep and write.

/// The number of Services of the target cluster.
pub(super) const MAX_SERVICES: usize = 10_000;

/// The number of EndpointSlices of the target cluster. The limits of Kubernetes are 150,000 pods
/// and 10,000 Services.
pub(super) const MAX_SLICES: usize = 50_000;

/// The bytes of texts of all Services and EndpointSlices.
pub(super) const MAX_BYTES: usize = 32 << 20;

/// The bytes of a Service's labels, annotations and ports. Kubernetes allows 256 KiB of
/// annotations.
pub(super) const MAX_SERVICE_BYTES: usize = 64 << 10;

/// The number of hosts of a headless Service that have mirrors. Kubernetes writes at most 1,000
/// addresses into an Endpoints object.
pub(super) const MAX_HOSTS: usize = 1_000;

/// The number of entries of a list in the status of a Link. An entry has 400 bytes, and etcd stores
/// objects of up to 1.5 MB.
pub(super) const MAX_REPORTED: usize = 1_000;
