{{/* The labels of a definition. Parameter: the root. */}}
{{- define "crds.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: linkerd
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
linkerd.io/control-plane-ns: {{ .Release.Namespace }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The metadata of a definition. Parameters: root, name. */}}
{{- define "crds.metadata" -}}
name: {{ .name }}
labels:
  {{- include "crds.labels" .root | nindent 2 }}
annotations:
  linkerd.io/created-by: linkerd/helm {{ .root.Chart.AppVersion }}
  {{- /* Also if the value is null. */}}
  {{- if ne (toString .root.Values.keep) "false" }}
  helm.sh/resource-policy: keep
  {{- end }}
{{- end }}

{{/* A label selector of Kubernetes. Parameter: the description. */}}
{{- define "crds.labelSelector" -}}
type: object
description: {{ . }}
x-kubernetes-map-type: atomic
properties:
  matchLabels:
    type: object
    description: Labels and their required values
    additionalProperties:
      type: string
  matchExpressions:
    type: array
    description: Conditions on labels, which must all be satisfied
    items:
      type: object
      required: [key, operator]
      properties:
        key:
          type: string
        operator:
          type: string
          enum: [In, NotIn, Exists, DoesNotExist]
        values:
          type: array
          items:
            type: string
{{- end }}

{{/* A list of CIDR blocks with exceptions. */}}
{{- define "crds.networks" -}}
type: array
maxItems: 256
items:
  type: object
  required: [cidr]
  properties:
    cidr:
      type: string
      description: A CIDR block such as 10.0.0.0/8, or an address
      maxLength: 64
      x-kubernetes-validations:
        - rule: isCIDR(self) || isIP(self)
          message: neither an address nor a block such as 10.0.0.0/8 or fd00::/8
    except:
      type: array
      description: Excluded blocks within it
      maxItems: 64
      items:
        type: string
        maxLength: 64
        x-kubernetes-validations:
          - rule: isCIDR(self) || isIP(self)
            message: neither an address nor a block such as 10.0.0.0/8 or fd00::/8
{{- end }}

{{/* The conditions of a status. */}}
{{- define "crds.conditions" -}}
type: array
items:
  type: object
  required: [lastTransitionTime, message, reason, status, type]
  properties:
    lastTransitionTime:
      type: string
      format: date-time
    message:
      type: string
    observedGeneration:
      type: integer
      format: int64
      minimum: 0
    reason:
      type: string
    status:
      type: string
      enum: ["True", "False", Unknown]
    type:
      type: string
{{- end }}

{{/* A reference to an object by group, kind and name. Parameter: namespace (true or false), whether it has a namespace. */}}
{{- define "crds.ref" -}}
type: object
required: [kind, name]
properties:
  group:
    type: string
    description: API group; empty or "core" for the core group
    maxLength: 253
  kind:
    type: string
    minLength: 1
    maxLength: 63
  name:
    type: string
    minLength: 1
    maxLength: 253
  {{- if .namespace }}
  namespace:
    type: string
    description: Namespace; by default that of the referring object
    minLength: 1
    maxLength: 63
  {{- end }}
{{- end }}
