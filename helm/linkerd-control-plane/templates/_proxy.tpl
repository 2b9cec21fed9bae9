{{/*
The proxies of the control plane's own pods, which the webhook skips: the same as mesh-k8s/src/inject adds to any pod. A test compares the two.

Parameters of all defines:
  root          the chart's root
  component     identity, destination or proxy-injector
  inboundPorts  the ports of the pod's containers, in lexical order
  requireTLS    ports that only accept TLS of the mesh; optional
  opaquePorts   ports without protocol detection, instead of proxy.opaquePorts; optional
  resources     requests and limits that override proxy.resources
  native        whether it is a native sidecar
  await         whether it delays the other containers
*/}}

{{/* The annotations of a pod with a proxy, including annotations for redirection; the init container has these as arguments. */}}
{{- define "mesh.proxy.annotations" -}}
{{- $values := .root.Values -}}
{{ include "mesh.createdBy" .root }}
linkerd.io/proxy-version: {{ $values.proxy.image.version | default $values.linkerdVersion | quote }}
{{- with $values.identityTrustAnchorsPEM }}
linkerd.io/trust-root-sha256: {{ sha256sum . }}
{{- end }}
config.linkerd.io/default-inbound-policy: all-unauthenticated
{{- if ne (include "mesh.redirection" .root) "init" }}
{{- if and $values.disableIPv6 (not $values.refuseIPv6) }}
linkerd.io/redirected-ip-families: ipv4
{{- end }}
config.linkerd.io/skip-outbound-ports: {{ $values.proxyInit.kubeAPIServerPorts | quote }}
{{- if ne (toString $values.proxyInit.ignoreInboundPorts) "4567,4568" }}
config.linkerd.io/skip-inbound-ports: {{ $values.proxyInit.ignoreInboundPorts | quote }}
{{- end }}
{{- with $values.proxyInit.skipSubnets }}
config.linkerd.io/skip-subnets: {{ . | quote }}
{{- end }}
{{- range $name, $port := dict "inbound" 4143 "outbound" 4140 "admin" 4191 "control" 4190 }}
{{- $set := index $values.proxy.ports $name }}
{{- if ne (int $set) $port }}
config.linkerd.io/{{ $name }}-port: {{ $set | quote }}
{{- end }}
{{- end }}
{{- if ne (int $values.proxy.uid) 2102 }}
config.linkerd.io/proxy-uid: {{ $values.proxy.uid | quote }}
{{- end }}
{{- if gt (int $values.proxy.gid) 0 }}
config.linkerd.io/proxy-gid: {{ $values.proxy.gid | quote }}
{{- end }}
{{- end }}
{{- with .opaquePorts }}
config.linkerd.io/opaque-ports: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "mesh.proxy.labels" -}}
linkerd.io/workload-ns: {{ .root.Release.Namespace }}
linkerd.io/proxy-deployment: linkerd-{{ .component }}
{{- end }}

{{/* The requests and limits of this pod, merged with proxy.resources. */}}
{{- define "mesh.proxy.resources" -}}
{{- $merged := deepCopy .root.Values.proxy.resources }}
{{- range $kind, $bounds := .resources }}
{{- range $name, $bound := $bounds }}
{{- if $bound }}{{ $_ := set (index $merged $kind) $name $bound }}{{ end }}
{{- end }}
{{- end }}
{{- include "mesh.resources" $merged }}
{{- end }}

{{- define "mesh.proxy.container" -}}
{{- $values := .root.Values -}}
{{- $proxy := $values.proxy -}}
name: linkerd-proxy
image: {{ include "mesh.proxyImage" .root }}
imagePullPolicy: {{ include "mesh.proxyPullPolicy" .root }}
env:
  {{- include "mesh.proxy.env" . | nindent 2 }}
ports:
  - name: linkerd-proxy
    containerPort: {{ $proxy.ports.inbound }}
  - name: linkerd-admin
    containerPort: {{ $proxy.ports.admin }}
livenessProbe:
  httpGet:
    path: /live
    port: {{ $proxy.ports.admin }}
  initialDelaySeconds: {{ $proxy.livenessProbe.initialDelaySeconds }}
  timeoutSeconds: {{ $proxy.livenessProbe.timeoutSeconds }}
readinessProbe:
  httpGet:
    path: /ready
    port: {{ $proxy.ports.admin }}
  initialDelaySeconds: {{ $proxy.readinessProbe.initialDelaySeconds }}
  timeoutSeconds: {{ $proxy.readinessProbe.timeoutSeconds }}
{{- if .native }}
restartPolicy: Always
{{- if .await }}
startupProbe:
  httpGet:
    path: /ready
    port: {{ $proxy.ports.admin }}
  initialDelaySeconds: {{ $proxy.startupProbe.initialDelaySeconds }}
  periodSeconds: {{ $proxy.startupProbe.periodSeconds }}
  failureThreshold: {{ $proxy.startupProbe.failureThreshold }}
{{- end }}
{{- else if or .await $proxy.waitBeforeExitSeconds }}
lifecycle:
  {{- if .await }}
  postStart:
    exec:
      command:
        - /usr/lib/linkerd/linkerd-await
        - --timeout=2m
        - --port={{ $proxy.ports.admin }}
  {{- end }}
  {{- if $proxy.waitBeforeExitSeconds }}
  preStop:
    exec:
      command:
        - /bin/sleep
        - {{ $proxy.waitBeforeExitSeconds | quote }}
  {{- end }}
{{- end }}
{{- with include "mesh.proxy.resources" . | trim }}
resources:
  {{- . | nindent 2 }}
{{- end }}
securityContext:
{{- with $proxy.securityContext }}
  {{- toYaml . | nindent 2 }}
{{- else }}
  allowPrivilegeEscalation: false
  capabilities:
    drop:
      - ALL
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  runAsUser: {{ $proxy.uid }}
  {{- if ge (int $proxy.gid) 0 }}
  runAsGroup: {{ $proxy.gid }}
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- end }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  - name: linkerd-identity-end-entity
    mountPath: /var/run/linkerd/identity/end-entity
  {{- if $proxy.tracing.enabled }}
  - name: linkerd-podinfo
    mountPath: /var/run/linkerd/podinfo
  {{- end }}
  {{- if $values.identity.serviceAccountTokenProjection }}
  - name: linkerd-identity-token
    mountPath: /var/run/secrets/tokens
  {{- else }}
  {{- include "mesh.apiAccess.mount" . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "mesh.proxy.volumes" -}}
- name: linkerd-identity-end-entity
  emptyDir:
    medium: Memory
{{- if .root.Values.proxy.tracing.enabled }}
- name: linkerd-podinfo
  downwardAPI:
    items:
      - path: labels
        fieldRef:
          fieldPath: metadata.labels
{{- end }}
{{- if .root.Values.identity.serviceAccountTokenProjection }}
- name: linkerd-identity-token
  projected:
    sources:
      - serviceAccountToken:
          audience: identity.l5d.io
          expirationSeconds: 86400
          path: linkerd-identity-token
{{- end }}
{{- if eq (include "mesh.redirection" .root) "init" }}
- name: {{ .root.Values.proxyInit.xtMountPath.name }}
  emptyDir: {}
{{- end }}
{{- end }}
