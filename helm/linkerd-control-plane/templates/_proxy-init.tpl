{{/* The init container before the proxy; empty if the agent redirects pods. Parameters: see _proxy.tpl. */}}
{{- define "mesh.proxy.initContainer" -}}
{{- $redirection := include "mesh.redirection" .root }}
{{- if eq $redirection "init" }}
- {{- include "mesh.proxyInit" . | nindent 2 }}
{{- else if eq $redirection "cni" }}
- {{- include "mesh.networkValidator" . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "mesh.proxyInit" -}}
{{- $values := .root.Values -}}
{{- $init := $values.proxyInit -}}
{{- $privileged := or $init.privileged (gt (int $init.closeWaitTimeoutSecs) 0) -}}
name: linkerd-init
image: {{ include "mesh.proxyImage" .root }}
imagePullPolicy: {{ include "mesh.proxyPullPolicy" .root }}
command:
  - /usr/lib/linkerd/linkerd2-proxy-init
args:
  {{- if eq $init.iptablesMode "nft" }}
  - --firewall-bin-path
  - iptables-nft
  - --firewall-save-bin-path
  - iptables-nft-save
  {{- end }}
  {{- if and $values.disableIPv6 (not $values.refuseIPv6) }}
  - --ipv6=false
  {{- end }}
  - --incoming-proxy-port
  - {{ $values.proxy.ports.inbound | quote }}
  - --outgoing-proxy-port
  - {{ $values.proxy.ports.outbound | quote }}
  - --proxy-uid
  - {{ $values.proxy.uid | quote }}
  {{- if ge (int $values.proxy.gid) 0 }}
  - --proxy-gid
  - {{ $values.proxy.gid | quote }}
  {{- end }}
  - --inbound-ports-to-ignore
  - {{ list $values.proxy.ports.control $values.proxy.ports.admin $init.ignoreInboundPorts | compact | join "," | quote }}
  {{- with $init.kubeAPIServerPorts }}
  - --outbound-ports-to-ignore
  - {{ . | quote }}
  {{- end }}
  {{- if gt (int $init.closeWaitTimeoutSecs) 0 }}
  - --timeout-close-wait-secs
  - {{ $init.closeWaitTimeoutSecs | quote }}
  {{- end }}
  {{- with $init.logFormat }}
  - --log-format
  - {{ . | quote }}
  {{- end }}
  {{- with $init.logLevel }}
  - --log-level
  - {{ . | quote }}
  {{- end }}
  {{- with $init.skipSubnets }}
  - --subnets-to-ignore
  - {{ . | quote }}
  {{- end }}
{{- with include "mesh.resources" $values.proxy.resources | trim }}
resources:
  {{- . | nindent 2 }}
{{- end }}
securityContext:
  allowPrivilegeEscalation: {{ $privileged }}
  privileged: {{ $privileged }}
  capabilities:
    add:
      - NET_ADMIN
      - NET_RAW
    drop:
      - ALL
  readOnlyRootFilesystem: true
  runAsNonRoot: {{ not $init.runAsRoot }}
  runAsUser: {{ ternary 0 (int (default 65534 $init.runAsUser)) $init.runAsRoot }}
  runAsGroup: {{ ternary 0 (int (default 65534 $init.runAsGroup)) $init.runAsRoot }}
  seccompProfile:
    type: RuntimeDefault
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  - name: {{ $init.xtMountPath.name }}
    mountPath: {{ $init.xtMountPath.mountPath }}
{{- end }}

{{- define "mesh.networkValidator" -}}
{{- $values := .root.Values -}}
{{- $validator := $values.networkValidator -}}
name: linkerd-network-validator
image: {{ include "mesh.proxyImage" .root }}
imagePullPolicy: {{ include "mesh.proxyPullPolicy" .root }}
command:
  - /usr/lib/linkerd/linkerd2-network-validator
args:
  - --log-format
  - {{ $validator.logFormat }}
  - --log-level
  - {{ $validator.logLevel }}
  - --connect-addr
  - {{ $validator.connectAddr | default (ternary "1.1.1.1:20001" "[fd00::1]:20001" $values.disableIPv6) | quote }}
  - --listen-addr
  - {{ $validator.listenAddr | default (printf "%s:%d" (ternary "0.0.0.0" "[::]" $values.disableIPv6) (int $values.proxy.ports.outbound)) | quote }}
  - --timeout
  - {{ $validator.timeout }}
{{- with include "mesh.resources" $values.proxy.resources | trim }}
resources:
  {{- . | nindent 2 }}
{{- end }}
securityContext:
{{- with $validator.securityContext }}
  {{- toYaml . | nindent 2 }}
{{- else }}
  allowPrivilegeEscalation: false
  capabilities:
    drop:
      - ALL
  readOnlyRootFilesystem: true
  runAsGroup: 65534
  runAsNonRoot: true
  runAsUser: 65534
  seccompProfile:
    type: RuntimeDefault
{{- end }}
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}
