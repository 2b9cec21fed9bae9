{{/* Labels of a definition. Takes the root. */}}
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

{{/* The head of a definition. Takes root and name. */}}
{{- define "crds.metadata" -}}
name: {{ .name }}
labels:
  {{- include "crds.labels" .root | nindent 2 }}
annotations:
  linkerd.io/created-by: linkerd/helm {{ .root.Chart.AppVersion }}
  {{- if .root.Values.keep }}
  helm.sh/resource-policy: keep
  {{- end }}
{{- end }}

{{/* A selector of labels, as Kubernetes has it. Takes what it selects. */}}
{{- define "crds.labelSelector" -}}
type: object
description: {{ . }}
x-kubernetes-map-type: atomic
properties:
  matchLabels:
    type: object
    description: Labels that must have these values
    additionalProperties:
      type: string
  matchExpressions:
    type: array
    description: Conditions on labels, all of which must hold
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

{{/* Blocks of addresses without those excepted from them. */}}
{{- define "crds.networks" -}}
type: array
minItems: 1
maxItems: 256
items:
  type: object
  required: [cidr]
  properties:
    cidr:
      type: string
      description: A block of addresses such as 10.0.0.0/8, or one address
      maxLength: 64
      x-kubernetes-validations:
        - rule: isCIDR(self) || isIP(self)
          message: neither an address nor a block such as 10.0.0.0/8 or fd00::/8
    except:
      type: array
      description: Blocks inside it that do not belong to it
      maxItems: 64
      items:
        type: string
        maxLength: 64
        x-kubernetes-validations:
          - rule: isCIDR(self) || isIP(self)
            message: neither an address nor a block such as 10.0.0.0/8 or fd00::/8
{{- end }}

{{/* Conditions of a status. */}}
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

{{/* The name of an object, by group, kind and name; with namespace where one is given. Takes namespace (true or false). */}}
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
    description: Namespace; that of the referring object when absent
    minLength: 1
    maxLength: 63
  {{- end }}
{{- end }}
