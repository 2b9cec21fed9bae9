{{/* Names and labels. */}}

{{/* Sets the default of every missing value. Every template calls this first. Renders nothing. Parameter: the root. */}}
{{- define "link.values" -}}
{{- include "mesh.setDefaults" (dict "values" .Values "defaults" (include "link.defaults" . | fromJson)) }}
{{- end }}

{{/* A line with the reason for each given key without effect. Parameter: the root. */}}
{{- define "link.ignored" -}}
{{- include "mesh.listIgnored" (dict "values" .Values "keys" (include "link.ignoredKeys" . | fromJson)) }}
{{- end }}

{{/* The name of the service mirror's workload and ServiceAccount. Parameter: the root. */}}
{{- define "link.name" -}}
linkerd-service-mirror-{{ .Values.targetClusterName }}
{{- end }}

{{/* The labels of an object. Parameters: root; component, service-mirror, or linkerd-service-mirror for pods. */}}
{{- define "link.labels" -}}
app.kubernetes.io/name: service-mirror
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Values.controllerImageVersion | quote }}
app.kubernetes.io/component: service-mirror
app.kubernetes.io/part-of: linkerd
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
component: {{ .component }}
linkerd.io/extension: multicluster
mirror.linkerd.io/cluster-name: {{ .root.Values.targetClusterName | quote }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The annotation of the creator. Parameter: the root. */}}
{{- define "link.createdBy" -}}
linkerd.io/created-by: linkerd/helm {{ .Chart.AppVersion }}
{{- end }}
