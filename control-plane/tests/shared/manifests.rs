//! The manifests of the tests.

/// Returns a running, meshed pod in the namespace `shop`.
pub(crate) fn pod(name: &str, ip: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: shop
  labels: {{app: web, linkerd.io/control-plane-ns: linkerd}}
spec:
  serviceAccountName: web
  containers:
  - name: web
    ports: [{{name: http, containerPort: 8080}}]
  - name: linkerd-proxy
    env:
    - {{name: LINKERD2_PROXY_INBOUND_LISTEN_ADDR, value: '0.0.0.0:4143'}}
    - {{name: LINKERD2_PROXY_CONTROL_LISTEN_ADDR, value: '0.0.0.0:4190'}}
    - {{name: LINKERD2_PROXY_ADMIN_LISTEN_ADDR, value: '0.0.0.0:4191'}}
status: {{phase: Running, podIP: {ip}}}
"
    )
}

/// Returns the Service `web` and its pods.
pub(crate) fn service(pods: &[(&str, &str)]) -> String {
    let all: String = pods.iter().map(|(name, ip)| pod(name, ip)).collect();
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec: {{clusterIP: 10.96.0.1, ports: [{{name: http, port: 80}}]}}
{}{all}",
        slice(pods)
    )
}

/// Returns the EndpointSlice of `web` with these pods.
pub(crate) fn slice(pods: &[(&str, &str)]) -> String {
    let endpoint = |(name, ip): &(&str, &str)| {
        format!("{{addresses: ['{ip}'], targetRef: {{kind: Pod, name: {name}, namespace: shop}}}}")
    };
    let endpoints: Vec<String> = pods.iter().map(endpoint).collect();
    format!(
        "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints: [{}]
",
        endpoints.join(", ")
    )
}

pub(crate) const SERVER: &str = "---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web-http, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, port: http, proxyProtocol: HTTP/1}
";

/// Authorizes all clients of the Server.
pub(crate) const ALLOW: &str = "---
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: allow, namespace: shop}
spec:
  targetRef: {group: policy.linkerd.io, kind: Server, name: web-http}
  requiredAuthenticationRefs: []
";
