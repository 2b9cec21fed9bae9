{{/* Names, labels and the parts that all workloads share. */}}

{{/* Sets the default of every missing value. Every template calls this first. Renders nothing. Parameter: the root. */}}
{{- define "mesh.values" -}}
{{- include "mesh.setDefaults" (dict "values" .Values "defaults" (include "mesh.defaults" . | fromJson)) }}
{{- end }}

{{/* The trust domain. Parameter: the root. */}}
{{- define "mesh.trustDomain" -}}
{{ .Values.identityTrustDomain | default .Values.clusterDomain }}
{{- end }}

{{/* A line with the reason for each given key without effect. Parameter: the root. */}}
{{- define "mesh.ignored" -}}
{{- include "mesh.listIgnored" (dict "values" .Values "keys" (include "mesh.ignoredKeys" . | fromJson)) }}
{{- end }}

{{/* The labels of an object. Parameters: root, component. */}}
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

{{/* The pod selector of a workload, which must not change, so it does not depend on the release. Parameters: root, component. */}}
{{- define "mesh.selector" -}}
linkerd.io/control-plane-component: {{ .component }}
linkerd.io/control-plane-ns: {{ .root.Release.Namespace }}
{{- end }}

{{/* The annotation of the creator. Parameter: the root. */}}
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

{{/* The security context of a controller's container, for the restricted profile. Parameter: the root. */}}
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

{{/* The listen address for all addresses of the pod. Parameters: root, port. */}}
{{- define "mesh.listen" -}}
{{ if .root.Values.disableIPv6 }}0.0.0.0{{ else }}[::]{{ end }}:{{ .port }}
{{- end }}

{{/* The scheduling constraints of a controller. Parameters: root, component. */}}
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
{{- /* The agents, which remove this taint from their nodes, are installed after this Job, so it must tolerate the taint. */ -}}
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

{{/* The replicas, revision history and update strategy of a controller. Parameter: the root. */}}
{{- define "mesh.rollout" -}}
{{- if not .Values.controller.autoscaling.enabled }}
replicas: {{ .Values.controllerReplicas }}
{{- end }}
revisionHistoryLimit: {{ .Values.revisionHistoryLimit }}
strategy:
  type: RollingUpdate
  rollingUpdate:
    {{- toYaml .Values.deploymentStrategy.rollingUpdate | nindent 4 }}
{{- end }}

{{/* The component that redirects pods: agent, cni or init. Parameter: the root. */}}
{{- define "mesh.redirection" -}}
{{- if .Values.meshAgent.enabled }}agent{{ else if .Values.cniEnabled }}cni{{ else }}init{{ end }}
{{- end }}

{{/* The namespace of the agents. Parameter: the root. */}}
{{- define "mesh.agentNamespace" -}}
{{ .Values.meshAgent.namespace | default .Release.Namespace }}
{{- end }}

{{/* The Pod Security level of the control plane's namespace. Parameter: the root. */}}
{{- define "mesh.podSecurityLevel" -}}
{{- $redirection := include "mesh.redirection" . }}
{{- $shared := and (eq $redirection "agent") (eq (include "mesh.agentNamespace" .) .Release.Namespace) }}
{{- if or $shared (eq $redirection "init") }}privileged{{ else }}restricted{{ end }}
{{- end }}

{{/* Whether the mesh creates its certificates; empty if not. Parameter: the root. */}}
{{- define "mesh.bootstraps" -}}
{{- if not (or .Values.identity.externalCA .Values.identityTrustAnchorsPEM) }}yes{{ end }}
{{- end }}

{{/* Whether reports of the installation are sent; empty if not. Parameter: the root. */}}
{{- define "mesh.sendsHeartbeat" -}}
{{- if and .Values.heartbeatUrl (not .Values.disableHeartBeat) }}yes{{ end }}
{{- end }}

{{/* A regular expression of a field of a cron expression. Parameter: the regular expression of one value. */}}
{{- define "mesh.cronField" -}}
{{- $item := printf "([*?]|%s(-%s)?)(/[1-9][0-9]*)?" . . -}}
{{ $item }}(,{{ $item }})*
{{- end }}

{{/* A regular expression of the cron expressions that Kubernetes accepts. */}}
{{- define "mesh.cronPattern" -}}
{{- $minute := include "mesh.cronField" "0*[1-5]?[0-9]" }}
{{- $hour := include "mesh.cronField" "0*(1?[0-9]|2[0-3])" }}
{{- $day := include "mesh.cronField" "0*([1-9]|[12][0-9]|3[01])" }}
{{- $month := include "mesh.cronField" "(0*([1-9]|1[0-2])|(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec))" }}
{{- $weekday := include "mesh.cronField" "(0*[0-6]|(?i:sun|mon|tue|wed|thu|fri|sat))" -}}
^({{ list $minute $hour $day $month $weekday | join " +" }}|@(yearly|annually|monthly|weekly|daily|midnight|hourly)|@every ([0-9]+(h|m|s))+)$
{{- end }}
