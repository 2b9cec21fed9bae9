{{/* Names, labels and the parts that every workload has. Each define says what it takes. */}}

{{/*
Puts the default in the place of every value that is missing: Helm takes a key that is `null` out, together with its default. Every template calls this first.
Takes the root, renders nothing.
*/}}
{{- define "mesh.values" -}}
{{- $values := .Values }}
{{- range $path, $default := include "mesh.defaults" . | fromJson }}
{{- $place := $values }}
{{- $names := splitList "." $path }}
{{- range initial $names }}
{{- if not (kindIs "map" (index $place .)) }}{{ $_ := set $place . dict }}{{ end }}
{{- $place = index $place . }}
{{- end }}
{{- if kindIs "invalid" (index $place (last $names)) }}{{ $_ := set $place (last $names) $default }}{{ end }}
{{- end }}
{{- end }}

{{/* The domain that identities end in. Takes the root. */}}
{{- define "mesh.trustDomain" -}}
{{ .Values.identityTrustDomain | default .Values.clusterDomain }}
{{- end }}

{{/* The keys that were given and have no effect, a line each with the reason. Takes the root. */}}
{{- define "mesh.ignored" -}}
{{- $values := .Values }}
{{- range $path, $reason := include "mesh.ignoredKeys" . | fromJson }}
{{- $place := $values }}
{{- range splitList "." $path }}
{{- $place = ternary $place dict (kindIs "map" $place) }}
{{- $place = index $place . }}
{{- end }}
{{- if not (kindIs "invalid" $place) }}
  {{ $path }}: {{ $reason }}
{{- end }}
{{- end }}
{{- end }}

{{/* Labels of one object. Takes root and component. */}}
{{- define "mesh.labels" -}}
app.kubernetes.io/name: {{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Values.linkerdVersion | quote }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/part-of: linkerd
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
linkerd.io/control-plane-component: {{ .component }}
linkerd.io/control-plane-ns: {{ .root.Release.Namespace }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What a workload selects its pods by: never changes, whatever the release is called. Takes root and component. */}}
{{- define "mesh.selector" -}}
linkerd.io/control-plane-component: {{ .component }}
linkerd.io/control-plane-ns: {{ .root.Release.Namespace }}
{{- end }}

{{/* Who made an object. Takes the root. */}}
{{- define "mesh.createdBy" -}}
linkerd.io/created-by: linkerd/helm {{ .Values.linkerdVersion }}
{{- end }}

{{- define "mesh.controllerImage" -}}
{{ .Values.controllerImage }}:{{ .Values.controllerImageVersion | default .Values.linkerdVersion }}
{{- end }}

{{- define "mesh.proxyImage" -}}
{{ .Values.proxy.image.name }}:{{ .Values.proxy.image.version | default .Values.linkerdVersion }}
{{- end }}

{{- define "mesh.proxyPullPolicy" -}}
{{ .Values.proxy.image.pullPolicy | default .Values.imagePullPolicy }}
{{- end }}

{{/* Requests and limits as Kubernetes writes them; nothing when none is set. Takes a value like proxy.resources. */}}
{{- define "mesh.resources" -}}
{{- $requests := dict }}
{{- $limits := dict }}
{{- range $kind, $bounds := . }}
{{- with $bounds.request }}{{ $_ := set $requests $kind (toString .) }}{{ end }}
{{- with $bounds.limit }}{{ $_ := set $limits $kind (toString .) }}{{ end }}
{{- end }}
{{- with $limits }}
limits:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $requests }}
requests:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The security context of a controller's container: the restricted profile. Takes the root. */}}
{{- define "mesh.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities:
  drop:
    - ALL
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: {{ .Values.controllerUID }}
{{- if ge (int .Values.controllerGID) 0 }}
runAsGroup: {{ .Values.controllerGID }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Liveness and readiness of a controller's container. Takes port, and live and ready like identity.livenessProbe. */}}
{{- define "mesh.probes" -}}
livenessProbe:
  httpGet:
    path: /live
    port: {{ .port }}
  initialDelaySeconds: 10
  timeoutSeconds: {{ .live.timeoutSeconds }}
readinessProbe:
  failureThreshold: 7
  httpGet:
    path: /ready
    port: {{ .port }}
  timeoutSeconds: {{ .ready.timeoutSeconds }}
{{- end }}

{{/* The way to the API server, for the one container of a pod that needs it: pods of the control plane mount no token otherwise. */}}
{{- define "mesh.apiAccess.volume" -}}
- name: kube-api-access
  projected:
    defaultMode: 420
    sources:
      - serviceAccountToken:
          expirationSeconds: 3607
          path: token
      - configMap:
          name: kube-root-ca.crt
          items:
            - key: ca.crt
              path: ca.crt
      - downwardAPI:
          items:
            - path: namespace
              fieldRef:
                apiVersion: v1
                fieldPath: metadata.namespace
{{- end }}

{{- define "mesh.apiAccess.mount" -}}
- name: kube-api-access
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end }}

{{/* All addresses of the pod, with a port. Takes root and port. */}}
{{- define "mesh.listen" -}}
{{ if .root.Values.disableIPv6 }}0.0.0.0{{ else }}[::]{{ end }}:{{ .port }}
{{- end }}

{{/* Where the pods of a controller go. Takes root and component. */}}
{{- define "mesh.scheduling" -}}
{{- $values := .root.Values }}
{{- if or $values.nodeAffinity $values.enablePodAntiAffinity }}
affinity:
  {{- with $values.nodeAffinity }}
  nodeAffinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $values.enablePodAntiAffinity }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          labelSelector:
            matchLabels:
              {{- include "mesh.selector" . | nindent 14 }}
          topologyKey: topology.kubernetes.io/zone
    requiredDuringSchedulingIgnoredDuringExecution:
      - labelSelector:
          matchLabels:
            {{- include "mesh.selector" . | nindent 12 }}
        topologyKey: kubernetes.io/hostname
  {{- end }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- $tolerations := $values.tolerations | default list }}
{{- /* The agents, which take that taint from their nodes, are installed after this Job: on a cluster whose nodes all have it, it would wait for ever. */ -}}
{{- if and (eq .component "bootstrap") $values.meshAgent.enabled $values.meshAgent.startupTaint }}
{{- $tolerations = append $tolerations (dict "key" $values.meshAgent.startupTaint "operator" "Exists") }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Replicas, history and update of a controller. Takes the root. */}}
{{- define "mesh.rollout" -}}
replicas: {{ .Values.controllerReplicas }}
revisionHistoryLimit: {{ .Values.revisionHistoryLimit }}
strategy:
  type: RollingUpdate
  rollingUpdate:
    {{- toYaml .Values.deploymentStrategy.rollingUpdate | nindent 4 }}
{{- end }}

{{/* What redirects pods: agent, cni or init. Takes the root. */}}
{{- define "mesh.redirection" -}}
{{- if .Values.meshAgent.enabled }}agent{{ else if .Values.cniEnabled }}cni{{ else }}init{{ end }}
{{- end }}

{{/* Does the mesh make its certificates itself? Takes the root; empty means no. */}}
{{- define "mesh.bootstraps" -}}
{{- if not (or .Values.identity.externalCA .Values.identityTrustAnchorsPEM) }}yes{{ end }}
{{- end }}
