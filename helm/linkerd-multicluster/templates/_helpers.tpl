{{/* Names, labels and the parts that the components of the extension share. */}}

{{/* Sets the default of every missing value. Every template calls this first. Renders nothing. Parameter: the root. */}}
{{- define "multicluster.values" -}}
{{- include "mesh.setDefaults" (dict "values" .Values "defaults" (include "multicluster.defaults" . | fromJson)) }}
{{- end }}

{{/* Sets the default of every missing value of a service mirror. Renders nothing. Parameters: root; controller, an item of controllers. */}}
{{- define "multicluster.controllerValues" -}}
{{- $defaults := dict }}
{{- range $path := list "replicas" "image.name" "image.version" "image.pullPolicy" "gateway.enabled" "gateway.probe.port" "logLevel" "logFormat" "enableHeadlessServices" "UID" "GID" "resources" "nodeSelector" "tolerations" "enablePodAntiAffinity" "nodeAffinity" }}
{{- $value := $.root.Values.controllerDefaults }}
{{- range splitList "." $path }}{{ $value = index $value . }}{{ end }}
{{- $_ := set $defaults $path $value }}
{{- end }}
{{- include "mesh.setDefaults" (dict "values" .controller "defaults" $defaults) }}
{{- end }}

{{/* A line with the reason for each given key without effect. Parameter: the root. */}}
{{- define "multicluster.ignored" -}}
{{- $keys := include "multicluster.ignoredKeys" . | fromJson }}
{{- include "mesh.listIgnored" (dict "values" .Values "keys" $keys) }}
{{- range $item := .Values.controllers }}
{{- range $path, $reason := $keys }}
{{- $name := trimPrefix "controllerDefaults." $path }}
{{- if and (ne $name $path) (not (kindIs "invalid" (index $item $name))) }}
  {{ $name }} of the controller {{ $item.link.ref.name }}: {{ $reason }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The labels of an object. Parameters: root; component; cluster, the name of a Link, or empty; app, the name of a gateway, or empty. */}}
{{- define "multicluster.labels" -}}
app.kubernetes.io/name: {{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Values.linkerdVersion | quote }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/part-of: linkerd
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
component: {{ .component }}
linkerd.io/extension: multicluster
{{- with .cluster }}
mirror.linkerd.io/cluster-name: {{ . | quote }}
{{- end }}
{{- with .app }}
app: {{ . }}
{{- end }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The labels of pods. Parameters as multicluster.labels. */}}
{{- define "multicluster.podLabels" -}}
{{ include "multicluster.labels" . }}
{{- with .root.Values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The annotation of the creator. Parameter: the root. */}}
{{- define "multicluster.createdBy" -}}
linkerd.io/created-by: linkerd/helm {{ .Values.linkerdVersion }}
{{- end }}

{{/* The image of a service mirror and its pull policy. Parameters: root; image, like localServiceMirror.image. */}}
{{- define "multicluster.image" -}}
image: {{ .image.name }}:{{ .image.version | default .root.Values.linkerdVersion }}
imagePullPolicy: {{ .image.pullPolicy | default .root.Values.imagePullPolicy }}
{{- end }}

{{/* A Server of the extension's pods. Parameters: root; name; component of the pods, or empty for all; port; protocol, or empty. */}}
{{- define "multicluster.server" -}}
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "multicluster.labels" (dict "root" .root "component" (.component | default "multicluster")) | nindent 4 }}
  annotations:
    {{- include "multicluster.createdBy" .root | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      linkerd.io/extension: multicluster
      {{- with .component }}
      component: {{ . }}
      {{- end }}
  port: {{ .port }}
  proxyProtocol: {{ .protocol }}
{{- end }}
