{{/* The environment of the proxy, in the order of mesh-k8s/src/inject/env.rs. Parameters: see _proxy.tpl. */}}
{{- define "mesh.proxy.env" -}}
{{- $values := .root.Values -}}
{{- $proxy := $values.proxy -}}
{{- $ns := .root.Release.Namespace -}}
{{- $svc := printf "%s.svc.%s." $ns $values.clusterDomain -}}
{{- $any := ternary "0.0.0.0" "[::]" $values.disableIPv6 -}}
- name: _pod_name
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: _pod_ns
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: _pod_uid
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
- name: _pod_ip
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: _pod_nodeName
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: _pod_containerName
  value: linkerd-proxy
{{- $workers := $proxy.runtime.workers }}
{{- $minimum := $workers.minimum }}
{{- if not (kindIs "invalid" $proxy.cores) }}{{ $minimum = $proxy.cores }}{{ end }}
{{- if gt (int $minimum) 0 }}
- name: LINKERD2_PROXY_CORES
  value: {{ $minimum | quote }}
- name: LINKERD2_PROXY_CORES_MIN
  value: {{ $minimum | quote }}
{{- end }}
{{- if not (kindIs "invalid" $workers.maximum) }}
- name: LINKERD2_PROXY_CORES_MAX
  value: {{ $workers.maximum | quote }}
{{- end }}
{{- if not (kindIs "invalid" $workers.maximumCPURatio) }}
- name: LINKERD2_PROXY_CORES_MAX_RATIO
  value: {{ $workers.maximumCPURatio | quote }}
{{- end }}
{{- with $proxy.requireIdentityOnInboundPorts }}
- name: LINKERD2_PROXY_INBOUND_PORTS_REQUIRE_IDENTITY
  value: {{ . | quote }}
{{- end }}
{{- with .requireTLS | default $proxy.requireTLSOnInboundPorts }}
- name: LINKERD2_PROXY_INBOUND_PORTS_REQUIRE_TLS
  value: {{ . | quote }}
{{- end }}
- name: LINKERD2_PROXY_SHUTDOWN_ENDPOINT_ENABLED
  value: {{ $proxy.enableShutdownEndpoint | quote }}
- name: LINKERD2_PROXY_LOG
  value: {{ printf "%s%s" $proxy.logLevel (ternary "" ",[{headers}]=off,[{request}]=off" (eq (toString $proxy.logHTTPHeaders) "insecure")) | quote }}
- name: LINKERD2_PROXY_LOG_FORMAT
  value: {{ $proxy.logFormat | quote }}
- name: LINKERD2_PROXY_DESTINATION_SVC_ADDR
  value: {{ ternary "localhost.:8086" (printf "linkerd-dst-headless.%s:8086" $svc) (eq .component "destination") }}
- name: LINKERD2_PROXY_DESTINATION_PROFILE_NETWORKS
  value: {{ $values.clusterNetworks | quote }}
- name: LINKERD2_PROXY_POLICY_SVC_ADDR
  value: {{ ternary "localhost.:8090" (printf "linkerd-policy.%s:8090" $svc) (eq .component "destination") }}
- name: LINKERD2_PROXY_POLICY_WORKLOAD
  value: |
    {"ns":"$(_pod_ns)", "pod":"$(_pod_name)"}
- name: LINKERD2_PROXY_INBOUND_DEFAULT_POLICY
  value: all-unauthenticated
- name: LINKERD2_PROXY_POLICY_CLUSTER_NETWORKS
  value: {{ $values.clusterNetworks | quote }}
- name: LINKERD2_PROXY_CONTROL_STREAM_INITIAL_TIMEOUT
  value: {{ $proxy.control.streams.initialTimeout | quote }}
- name: LINKERD2_PROXY_CONTROL_STREAM_IDLE_TIMEOUT
  value: {{ $proxy.control.streams.idleTimeout | quote }}
- name: LINKERD2_PROXY_CONTROL_STREAM_LIFETIME
  value: {{ $proxy.control.streams.lifetime | quote }}
- name: LINKERD2_PROXY_INBOUND_CONNECT_TIMEOUT
  value: {{ $proxy.inboundConnectTimeout | quote }}
- name: LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT
  value: {{ $proxy.outboundConnectTimeout | quote }}
- name: LINKERD2_PROXY_OUTBOUND_DISCOVERY_IDLE_TIMEOUT
  value: {{ $proxy.outboundDiscoveryCacheUnusedTimeout | quote }}
- name: LINKERD2_PROXY_INBOUND_DISCOVERY_IDLE_TIMEOUT
  value: {{ $proxy.inboundDiscoveryCacheUnusedTimeout | quote }}
{{- if $proxy.disableOutboundProtocolDetectTimeout }}
- name: LINKERD2_PROXY_OUTBOUND_DETECT_TIMEOUT
  value: 365d
{{- end }}
{{- if $proxy.disableInboundProtocolDetectTimeout }}
- name: LINKERD2_PROXY_INBOUND_DETECT_TIMEOUT
  value: 365d
{{- end }}
- name: LINKERD2_PROXY_CONTROL_LISTEN_ADDR
  value: {{ printf "%s:%d" $any (int $proxy.ports.control) | quote }}
- name: LINKERD2_PROXY_ADMIN_LISTEN_ADDR
  value: {{ printf "%s:%d" $any (int $proxy.ports.admin) | quote }}
- name: LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR
  value: 127.0.0.1:{{ $proxy.ports.outbound }}
- name: LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS
  value: 127.0.0.1:{{ $proxy.ports.outbound }}{{ if not $values.disableIPv6 }},[::1]:{{ $proxy.ports.outbound }}{{ end }}
- name: LINKERD2_PROXY_INBOUND_LISTEN_ADDR
  value: {{ printf "%s:%d" $any (int $proxy.ports.inbound) | quote }}
- name: LINKERD2_PROXY_INBOUND_IPS
  valueFrom:
    fieldRef:
      fieldPath: status.podIPs
- name: LINKERD2_PROXY_INBOUND_PORTS
  value: {{ .inboundPorts | quote }}
{{- if $proxy.isGateway }}
- name: LINKERD2_PROXY_INBOUND_GATEWAY_SUFFIXES
  value: svc.{{ $values.clusterDomain }}.
{{- end }}
{{- if $proxy.isIngress }}
- name: LINKERD2_PROXY_INGRESS_MODE
  value: "true"
{{- end }}
- name: LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES
  value: {{ ternary "." (printf "svc.%s." $values.clusterDomain) $proxy.enableExternalProfiles }}
- name: LINKERD2_PROXY_INBOUND_ACCEPT_KEEPALIVE
  value: 10000ms
- name: LINKERD2_PROXY_OUTBOUND_CONNECT_KEEPALIVE
  value: 10000ms
- name: LINKERD2_PROXY_INBOUND_ACCEPT_USER_TIMEOUT
  value: 30s
- name: LINKERD2_PROXY_OUTBOUND_CONNECT_USER_TIMEOUT
  value: 30s
- name: LINKERD2_PROXY_OUTBOUND_METRICS_HOSTNAME_LABELS
  value: {{ $proxy.metrics.hostnameLabels | quote }}
{{- if $proxy.tracing.enabled }}
{{- $collector := $proxy.tracing.collector }}
- name: LINKERD2_PROXY_TRACE_ATTRIBUTES_PATH
  value: /var/run/linkerd/podinfo/labels
- name: LINKERD2_PROXY_TRACE_PROTOCOL
  value: opentelemetry
- name: LINKERD2_PROXY_TRACE_SERVICE_NAME
  value: {{ $proxy.tracing.traceServiceName | quote }}
- name: LINKERD2_PROXY_TRACE_COLLECTOR_SVC_ADDR
  value: {{ $collector.endpoint | quote }}
- name: LINKERD2_PROXY_TRACE_COLLECTOR_SVC_NAME
  value: {{ printf "%s.%s.serviceaccount.identity.%s.%s" $collector.meshIdentity.serviceAccountName $collector.meshIdentity.namespace $ns (include "mesh.trustDomain" .root) }}
{{- $lines := list }}
{{- range $name, $value := $proxy.tracing.labels }}
{{- $lines = append $lines (printf "%s=%s" $name $value) }}
{{- end }}
{{- with $lines }}
- name: LINKERD2_PROXY_TRACE_EXTRA_ATTRIBUTES
  value: {{ join "\n" . | quote }}
{{- end }}
{{- end }}
{{- range $direction := list "inbound" "outbound" }}
{{- range $scope, $protocols := index $proxy $direction }}
{{- range $protocol, $params := $protocols }}
{{- range $param, $value := $params }}
- name: LINKERD2_PROXY_{{ upper $direction }}_{{ range $i, $part := list $scope $protocol $param }}{{ if $i }}_{{ end }}{{ regexReplaceAll "([A-Z])" $part "_${1}" | upper }}{{ end }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- with .opaquePorts | default $proxy.opaquePorts }}
- name: LINKERD2_PROXY_INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION
  value: {{ . | quote }}
{{- end }}
- name: LINKERD2_PROXY_DESTINATION_CONTEXT
  value: |
    {"ns":"$(_pod_ns)", "nodeName":"$(_pod_nodeName)", "pod":"$(_pod_name)"}
{{ include "mesh.proxy.env.identity" . }}
{{- with $proxy.accessLog }}
- name: LINKERD2_PROXY_ACCESS_LOG
  value: {{ . | quote }}
{{- end }}
{{- with $proxy.shutdownGracePeriod }}
- name: LINKERD2_PROXY_SHUTDOWN_GRACE_PERIOD
  value: {{ . | quote }}
{{- end }}
{{- if eq (include "mesh.redirection" .root) "agent" }}
- name: MESH_PROXY_REDIRECT_CHECK
  value: 192.0.2.1:20001
{{- end }}
{{- range list $proxy.additionalEnv $proxy.experimentalEnv }}
{{- with . }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "mesh.proxy.env.identity" -}}
{{- $values := .root.Values -}}
{{- $ns := .root.Release.Namespace -}}
{{- $identity := printf "serviceaccount.identity.%s.%s" $ns (include "mesh.trustDomain" .root) -}}
- name: _pod_sa
  valueFrom:
    fieldRef:
      fieldPath: spec.serviceAccountName
- name: _l5d_ns
  value: {{ $ns }}
- name: _l5d_trustdomain
  value: {{ include "mesh.trustDomain" .root }}
- name: LINKERD2_PROXY_IDENTITY_DIR
  value: /var/run/linkerd/identity/end-entity
- name: LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS
  {{- /* A reference, because the anchors may be created after rendering. */}}
  valueFrom:
    configMapKeyRef:
      name: linkerd-identity-trust-roots
      key: ca-bundle.crt
- name: LINKERD2_PROXY_IDENTITY_TOKEN_FILE
  value: {{ ternary "/var/run/secrets/tokens/linkerd-identity-token" "/var/run/secrets/kubernetes.io/serviceaccount/token" $values.identity.serviceAccountTokenProjection }}
- name: LINKERD2_PROXY_IDENTITY_SVC_ADDR
  value: {{ ternary "localhost.:8080" (printf "linkerd-identity-headless.%s.svc.%s.:8080" $ns $values.clusterDomain) (eq .component "identity") }}
- name: LINKERD2_PROXY_IDENTITY_LOCAL_NAME
  value: $(_pod_sa).$(_pod_ns).{{ $identity }}
- name: LINKERD2_PROXY_IDENTITY_SVC_NAME
  value: linkerd-identity.{{ $ns }}.{{ $identity }}
- name: LINKERD2_PROXY_DESTINATION_SVC_NAME
  value: linkerd-destination.{{ $ns }}.{{ $identity }}
- name: LINKERD2_PROXY_POLICY_SVC_NAME
  value: linkerd-destination.{{ $ns }}.{{ $identity }}
{{- end }}
