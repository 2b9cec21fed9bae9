{{/* Names, labels and the parts that all workloads of the extension share. */}}

{{/* Sets the default of every missing value. Every template calls this first. Renders nothing. Parameter: the root. */}}
{{- define "viz.values" -}}
{{- include "mesh.setDefaults" (dict "values" .Values "defaults" (include "viz.defaults" . | fromJson)) }}
{{- end }}

{{/* A line with the reason for each given key without effect. Parameter: the root. */}}
{{- define "viz.ignored" -}}
{{- include "mesh.listIgnored" (dict "values" .Values "keys" (include "viz.ignoredKeys" . | fromJson)) }}
{{- end }}

{{- define "viz.trustDomain" -}}
{{ .Values.identityTrustDomain | default .Values.clusterDomain }}
{{- end }}

{{/* The labels of an object. Parameters: root, component. */}}
{{- define "viz.labels" -}}
app.kubernetes.io/name: {{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Values.linkerdVersion | quote }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/part-of: linkerd
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
component: {{ .component }}
linkerd.io/extension: viz
namespace: {{ .root.Release.Namespace }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The pod selector of a workload, which must not change, so it does not depend on the release. Parameters: root, component. */}}
{{- define "viz.selector" -}}
component: {{ .component }}
linkerd.io/extension: viz
namespace: {{ .root.Release.Namespace }}
{{- end }}

{{/* The annotation of the creator. Parameter: the root. */}}
{{- define "viz.createdBy" -}}
linkerd.io/created-by: linkerd/helm {{ .Values.linkerdVersion }}
{{- end }}

{{/* The image and its pull policy. Parameters: root; image, like metricsAPI.image. */}}
{{- define "viz.image" -}}
image: {{ .image.registry | default .root.Values.defaultRegistry }}/{{ .image.name }}:{{ .image.tag | default .root.Values.linkerdVersion }}
imagePullPolicy: {{ .image.pullPolicy | default .root.Values.defaultImagePullPolicy }}
{{- end }}

{{/* The flags of the log. Parameters: root; values, like metricsAPI. */}}
{{- define "viz.log" -}}
- --log-level={{ .values.logLevel | default .root.Values.defaultLogLevel }}
- --log-format={{ .values.logFormat | default .root.Values.defaultLogFormat }}
{{- end }}

{{/* The flags of the connection to Prometheus, if there is one. Parameter: the root. */}}
{{- define "viz.prometheusFlags" -}}
{{- $own := printf "http://prometheus.%s.svc.%s:9090" .Release.Namespace .Values.clusterDomain -}}
{{- if or .Values.prometheusUrl .Values.prometheus.enabled }}
- --prometheus-url={{ .Values.prometheusUrl | default $own }}
{{- end }}
{{- if .Values.prometheusCredsSecret }}
- --prometheus-user-file=/var/run/prometheus-credentials/user
- --prometheus-password-file=/var/run/prometheus-credentials/password
{{- end }}
{{- end }}

{{/* The mount of the credentials of Prometheus, if there are any. Parameter: the root. */}}
{{- define "viz.prometheusMount" -}}
{{- if .Values.prometheusCredsSecret }}
- name: prometheus-credentials
  mountPath: /var/run/prometheus-credentials
  readOnly: true
{{- end }}
{{- end }}

{{/* The volume of the credentials of Prometheus, if there are any. Parameter: the root. */}}
{{- define "viz.prometheusVolume" -}}
{{- with .Values.prometheusCredsSecret }}
- name: prometheus-credentials
  secret:
    secretName: {{ . }}
{{- end }}
{{- end }}

{{/* The security context of a container, for the restricted profile. Parameters: root; values, like metricsAPI, or a map without IDs. */}}
{{- define "viz.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities:
  drop:
    - ALL
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: {{ .values.UID | default .root.Values.defaultUID }}
{{- $group := ternary .root.Values.defaultGID .values.GID (kindIs "invalid" .values.GID) }}
{{- if ge (int $group) 0 }}
runAsGroup: {{ $group }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* The ServiceAccount of a component. Parameters: root, component. */}}
{{- define "viz.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "viz.labels" . | nindent 4 }}
automountServiceAccountToken: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The PodDisruptionBudget of a component, if it has one. Parameters: root; component; values, like metricsAPI. */}}
{{- define "viz.disruptionBudget" -}}
{{- if and .root.Values.enablePodDisruptionBudget (gt (int .values.replicas) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "viz.labels" . | nindent 4 }}
  annotations:
    {{- include "viz.createdBy" .root | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "viz.selector" . | nindent 6 }}
{{- end }}
{{- end }}

{{/* Replicas, history and update strategy of a component. Parameters: root; values, like metricsAPI. */}}
{{- define "viz.rollout" -}}
replicas: {{ .values.replicas }}
revisionHistoryLimit: {{ .root.Values.revisionHistoryLimit }}
{{- if .root.Values.enablePodAntiAffinity }}
# There may be no node for an additional pod.
strategy:
  type: RollingUpdate
  rollingUpdate:
    maxUnavailable: 1
{{- end }}
{{- end }}

{{/* The metadata of a meshed pod. Parameters: root; component; values, like metricsAPI; annotations, a map. */}}
{{- define "viz.podMetadata" -}}
labels:
  {{- include "viz.labels" . | nindent 2 }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  {{- include "viz.createdBy" .root | nindent 2 }}
  linkerd.io/inject: enabled
  config.linkerd.io/proxy-await: enabled
  {{- range $kind, $prefix := dict "cpu" "proxy-cpu" "memory" "proxy-memory" "ephemeral-storage" "proxy-ephemeral-storage" }}
  {{- $bounds := index $.values.proxy.resources $kind }}
  {{- with $bounds.request }}
  config.linkerd.io/{{ $prefix }}-request: {{ toString . | quote }}
  {{- end }}
  {{- with $bounds.limit }}
  config.linkerd.io/{{ $prefix }}-limit: {{ toString . | quote }}
  {{- end }}
  {{- end }}
  {{- with mergeOverwrite (deepCopy .root.Values.podAnnotations) .annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Where pods run. Parameters: root; component; values, like metricsAPI. */}}
{{- define "viz.scheduling" -}}
{{- if .root.Values.enablePodAntiAffinity }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          labelSelector:
            matchLabels:
              {{- include "viz.selector" . | nindent 14 }}
          topologyKey: topology.kubernetes.io/zone
    requiredDuringSchedulingIgnoredDuringExecution:
      - labelSelector:
          matchLabels:
            {{- include "viz.selector" . | nindent 12 }}
        topologyKey: kubernetes.io/hostname
{{- end }}
{{- include "viz.jobScheduling" . }}
{{- end }}

{{/* The nodes that may run the pods of a component. Parameters: root; values, like metricsAPI. */}}
{{- define "viz.jobScheduling" -}}
{{- with .values.nodeSelector | default .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations | default .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Whether a certificate is managed outside the component; empty if not. Parameter: a value like tap. */}}
{{- define "viz.certificateGiven" -}}
{{- if or .externalSecret .crtPEM }}yes{{ end }}
{{- end }}

{{/* The annotations that make cert-manager write a caBundle. Parameter: a value like tap. */}}
{{- define "viz.injectCa" -}}
{{- with .injectCaFrom }}
cert-manager.io/inject-ca-from: {{ . }}
{{- end }}
{{- with .injectCaFromSecret }}
cert-manager.io/inject-ca-from-secret: {{ . }}
{{- end }}
{{- end }}

{{/* The Secret of a certificate in the values, if there is one. Parameters: root; component; values, like tap. */}}
{{- define "viz.certificateSecret" -}}
{{- if .values.crtPEM }}
---
apiVersion: v1
kind: Secret
metadata:
  name: {{ .component }}-k8s-tls
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "viz.labels" . | nindent 4 }}
  annotations:
    {{- include "viz.createdBy" .root | nindent 4 }}
type: kubernetes.io/tls
data:
  tls.crt: {{ trim .values.crtPEM | b64enc }}
  tls.key: {{ trim .values.keyPEM | b64enc }}
{{- end }}
{{- end }}

{{/* The permissions of a component that manages its certificate. Parameters: root; component; values, like tap. */}}
{{- define "viz.certificateRole" -}}
{{- if not (include "viz.certificateGiven" .values) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "viz.labels" . | nindent 4 }}
rules:
  # The certificate. Creation cannot be restricted by name.
  - apiGroups: [""]
    resources: ["secrets"]
    verbs: ["create"]
  - apiGroups: [""]
    resources: ["secrets"]
    resourceNames: ["{{ .component }}-k8s-tls"]
    verbs: ["list", "watch", "update"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "viz.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .component }}
subjects:
  - kind: ServiceAccount
    name: {{ .component }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}
{{- end }}

{{/* A ClusterRoleBinding for the ServiceAccount of a component. Parameters: root; component; name; role. */}}
{{- define "viz.clusterRoleBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "viz.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .role }}
subjects:
  - kind: ServiceAccount
    name: {{ .component }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}

{{/* A Server of the components' pods and the AuthorizationPolicy of the same name.
Parameters: root; component, or empty for all; name; port; protocol; authentication, its kind and name. */}}
{{- define "viz.serverPolicy" -}}
{{ include "viz.server" . }}
---
{{ include "viz.authorization" (merge (dict "server" .name) .) }}
{{- end }}

{{/* A Server of the components' pods. Parameters: root; component, or empty for all; name; port; protocol. */}}
{{- define "viz.server" -}}
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "viz.labels" (dict "root" .root "component" (.component | default "viz")) | nindent 4 }}
  annotations:
    {{- include "viz.createdBy" .root | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      linkerd.io/extension: viz
      {{- with .component }}
      component: {{ . }}
      {{- end }}
  port: {{ .port }}
  proxyProtocol: {{ .protocol }}
{{- end }}

{{/* An AuthorizationPolicy for a Server.
Parameters: root; component, or empty for all; name; server; authentication, its kind and name. */}}
{{- define "viz.authorization" -}}
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "viz.labels" (dict "root" .root "component" (.component | default "viz")) | nindent 4 }}
  annotations:
    {{- include "viz.createdBy" .root | nindent 4 }}
spec:
  targetRef:
    group: policy.linkerd.io
    kind: Server
    name: {{ .server }}
  requiredAuthenticationRefs:
    - group: policy.linkerd.io
      kind: {{ .authentication.kind }}
      name: {{ .authentication.name }}
{{- end }}
