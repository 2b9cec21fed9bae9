{{/* The parts of the policies of the control plane's ports. */}}

{{/* The name of the Server and the authorization of a port. Parameter: the name of the port. */}}
{{- define "mesh.policyName" -}}
linkerd-{{ ternary "proxy-admin" . (eq . "linkerd-admin") }}
{{- end }}

{{/* The metadata of a policy of a port. Parameters: root; component, or empty for all of them; port, its name. */}}
{{- define "mesh.policyMetadata" -}}
name: {{ include "mesh.policyName" .port }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "mesh.labels" (dict "root" .root "component" (.component | default "controller")) | nindent 2 }}
annotations:
  {{- include "mesh.createdBy" .root | nindent 2 }}
{{- end }}

{{/* The Server of a port. Parameters: root; component, or empty for all of them; port, its name; protocol. */}}
{{- define "mesh.server" -}}
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata:
  {{- include "mesh.policyMetadata" . | nindent 2 }}
spec:
  podSelector:
    {{- if .component }}
    matchLabels:
      {{- include "mesh.selector" . | nindent 6 }}
    {{- else }}
    matchExpressions:
      - { key: linkerd.io/control-plane-component, operator: In, values: [destination, identity, proxy-injector] }
    {{- end }}
  port: {{ .port }}
  proxyProtocol: {{ .protocol }}
{{- end }}

{{/* The authorization of every client for the Server of a port. Parameters: root; component, or empty for all of them; port, its name. */}}
{{- define "mesh.everyAddress" -}}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata:
  {{- include "mesh.policyMetadata" . | nindent 2 }}
spec:
  targetRef:
    group: policy.linkerd.io
    kind: Server
    name: {{ include "mesh.policyName" .port }}
  requiredAuthenticationRefs:
    - group: policy.linkerd.io
      kind: NetworkAuthentication
      name: linkerd-every-address
{{- end }}

{{/* The authorization of clients with TLS of the mesh, with or without a certificate, for the Server of a port. Parameters: root; component; port, its name. */}}
{{- define "mesh.everyProxy" -}}
---
apiVersion: policy.linkerd.io/v1beta1
kind: ServerAuthorization
metadata:
  {{- include "mesh.policyMetadata" . | nindent 2 }}
spec:
  server:
    name: {{ include "mesh.policyName" .port }}
  client:
    networks:
      - cidr: 0.0.0.0/0
      - cidr: ::/0
    meshTLS:
      unauthenticatedTLS: true
{{- end }}
