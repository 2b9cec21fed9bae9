{{/* The fields of Links. */}}

{{/* The spec of a Link. Parameter: the number of its version, from 0. */}}
{{- define "multicluster.linkSpec" -}}
type: object
description: A cluster whose Services this one uses
properties:
  targetClusterName:
    type: string
    description: Name of the target cluster, a suffix of its mirrors
  targetClusterDomain:
    type: string
    description: DNS domain of the target cluster
  targetClusterLinkerdNamespace:
    type: string
    description: Namespace of the target cluster's control plane
  clusterCredentialsSecret:
    type: string
    description: Secret with a kubeconfig for the target cluster
  gatewayAddress:
    type: string
    description: Addresses of the target cluster's gateway, separated by commas
  gatewayPort:
    type: string
    description: Port of the gateway
  gatewayIdentity:
    type: string
    description: Identity of the gateway
  probeSpec:
    type: object
    description: How the gateway is probed
    properties:
      path:
        type: string
        description: Path of the requests
      port:
        type: string
        description: Port of the requests
      period:
        type: string
        {{- if ge . 1 }}
        format: duration
        {{- end }}
        description: Time between two requests
      timeout:
        type: string
        format: duration
        default: 30s
        description: Time for a response
      failureThreshold:
        type: string
        default: "3"
        description: Failures in a row after which the gateway counts as dead
  selector:
    {{- include "multicluster.selector" "Services that are mirrored behind the gateway; an empty selector selects none" | nindent 4 }}
  remoteDiscoverySelector:
    {{- include "multicluster.selector" "Services whose endpoints clients connect to; an empty selector selects none" | nindent 4 }}
  {{- if ge . 1 }}
  federatedServiceSelector:
    {{- include "multicluster.selector" "Members of federated Services; an empty selector selects none" | nindent 4 }}
  {{- end }}
  {{- if ge . 2 }}
  excludedAnnotations:
    type: array
    description: Annotations that mirrors do not get; an item may end with /*
    items:
      type: string
  excludedLabels:
    type: array
    description: Labels that mirrors do not get; an item may end with /*
    items:
      type: string
  {{- end }}
{{- end }}

{{/* A label selector. Parameter: the description. */}}
{{- define "multicluster.selector" -}}
type: object
description: {{ . }}
properties:
  matchLabels:
    type: object
    description: Labels and their required values
    x-kubernetes-preserve-unknown-fields: true
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

{{/* The status of a Link. */}}
{{- define "multicluster.linkStatus" -}}
type: object
description: The outcome for each Service that the Link selects
properties:
  mirrorServices:
    {{- include "multicluster.mirroredServices" "Services with mirrors of their own" | nindent 4 }}
  federatedServices:
    {{- include "multicluster.mirroredServices" "Members of federated Services" | nindent 4 }}
{{- end }}

{{/* The outcome for Services. Parameter: the description. */}}
{{- define "multicluster.mirroredServices" -}}
type: array
description: {{ . }}
items:
  type: object
  required: [controllerName, remoteRef]
  properties:
    controllerName:
      type: string
      description: The controller that has written the status, as in linkerd.io/service-mirror
      minLength: 1
      maxLength: 253
      pattern: ^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/[A-Za-z0-9\/\-._~%!$&'()*+,;=:]+$
    remoteRef:
      {{- include "multicluster.serviceRef" "The Service of the target cluster" | nindent 6 }}
    conditions:
      type: array
      description: Whether the Service is mirrored
      items:
        type: object
        required: [lastTransitionTime, message, reason, status, type]
        properties:
          lastTransitionTime:
            type: string
            format: date-time
          localRef:
            {{- include "multicluster.serviceRef" "The Service of this cluster" | nindent 12 }}
          message:
            type: string
          reason:
            type: string
            minLength: 1
            maxLength: 1024
            pattern: ^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$
          status:
            type: string
            enum: ["True", "False", Unknown]
          type:
            type: string
            maxLength: 316
            pattern: ^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$
{{- end }}

{{/* A reference to a Service. Parameter: the description. */}}
{{- define "multicluster.serviceRef" -}}
type: object
description: {{ . }}
required: [name, namespace]
properties:
  group:
    type: string
    default: core
    maxLength: 253
    pattern: ^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$
  kind:
    type: string
    default: Service
    minLength: 1
    maxLength: 63
    pattern: ^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$
  name:
    type: string
    minLength: 1
    maxLength: 253
  namespace:
    type: string
    minLength: 1
    maxLength: 63
    pattern: ^[a-z0-9]([-a-z0-9]*[a-z0-9])?$
{{- end }}
