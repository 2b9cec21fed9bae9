{{/* The parts of the validating webhooks, which containers of the destination pods serve. */}}

{{/* Whether the certificate of a webhook is managed externally; empty if its controller generates it. Parameter: a value like policyValidator. */}}
{{- define "mesh.validator.certificateGiven" -}}
{{- if or .externalSecret .crtPEM }}yes{{ end }}
{{- end }}

{{/* The Service, Secret and registration of a webhook. Parameters: root, name, port (of the container), webhook (a value like policyValidator), rules. */}}
{{- define "mesh.validator.objects" -}}
{{- $labels := include "mesh.labels" (dict "root" .root "component" "destination") }}
---
apiVersion: v1
kind: Service
metadata:
  name: linkerd-{{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- $labels | nindent 4 }}
  annotations:
    {{- include "mesh.createdBy" .root | nindent 4 }}
    config.linkerd.io/opaque-ports: "443"
spec:
  type: ClusterIP
  selector:
    {{- include "mesh.selector" (dict "root" .root "component" "destination") | nindent 4 }}
  ports:
    - name: {{ .port }}
      port: 443
      targetPort: {{ .port }}
{{- if .webhook.crtPEM }}
---
apiVersion: v1
kind: Secret
metadata:
  name: linkerd-{{ .name }}-k8s-tls
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- $labels | nindent 4 }}
  annotations:
    {{- include "mesh.createdBy" .root | nindent 4 }}
type: kubernetes.io/tls
data:
  tls.crt: {{ trim .webhook.crtPEM | b64enc }}
  tls.key: {{ trim .webhook.keyPEM | b64enc }}
{{- end }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: linkerd-{{ .name }}-webhook-config
  labels:
    {{- $labels | nindent 4 }}
  annotations:
    {{- include "mesh.createdBy" .root | nindent 4 }}
    {{- with .webhook.injectCaFrom }}
    cert-manager.io/inject-ca-from: {{ . }}
    {{- end }}
    {{- with .webhook.injectCaFromSecret }}
    cert-manager.io/inject-ca-from-secret: {{ . }}
    {{- end }}
webhooks:
  - name: linkerd-{{ .name }}.linkerd.io
    admissionReviewVersions: ["v1"]
    sideEffects: None
    failurePolicy: {{ .root.Values.webhookFailurePolicy }}
    timeoutSeconds: {{ .webhook.timeoutSeconds }}
    namespaceSelector:
      {{- toYaml .webhook.namespaceSelector | nindent 6 }}
    # The objects of this chart are created before a controller can validate them.
    matchConditions:
      - name: not-of-the-control-plane
        expression: >-
          !(request.namespace == {{ .root.Release.Namespace | quote }} && has(object.metadata.labels) &&
          "linkerd.io/control-plane-ns" in object.metadata.labels)
    clientConfig:
      service:
        name: linkerd-{{ .name }}
        namespace: {{ .root.Release.Namespace }}
        path: /
      {{- /* Without a bundle in the values, cert-manager or the controller writes it, and upgrades keep it. */}}
      {{- with .webhook.caBundle }}
      caBundle: {{ trim . | b64enc }}
      {{- end }}
    rules:
      {{- .rules | nindent 6 }}
{{- end }}

{{/* The permissions for a certificate that a controller generates; empty if it is managed externally. Parameters: root, name, webhook. */}}
{{- define "mesh.validator.rights" -}}
{{- if not (include "mesh.validator.certificateGiven" .webhook) }}
{{- $labels := include "mesh.labels" (dict "root" .root "component" "destination") }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: linkerd-{{ .root.Release.Namespace }}-{{ .name }}
  labels:
    {{- $labels | nindent 4 }}
rules:
  # The caBundle of the webhook.
  - apiGroups: ["admissionregistration.k8s.io"]
    resources: ["validatingwebhookconfigurations"]
    resourceNames: ["linkerd-{{ .name }}-webhook-config"]
    verbs: ["list", "watch", "patch"]
  # Events about repairs of the certificate.
  - apiGroups: ["events.k8s.io"]
    resources: ["events"]
    verbs: ["create", "patch"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: linkerd-{{ .root.Release.Namespace }}-{{ .name }}
  labels:
    {{- $labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: linkerd-{{ .root.Release.Namespace }}-{{ .name }}
subjects:
  - kind: ServiceAccount
    name: linkerd-destination
    namespace: {{ .root.Release.Namespace }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: linkerd-{{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- $labels | nindent 4 }}
rules:
  # The certificate of the webhook. Creation cannot be restricted by name.
  - apiGroups: [""]
    resources: ["secrets"]
    verbs: ["create"]
  - apiGroups: [""]
    resources: ["secrets"]
    resourceNames: ["linkerd-{{ .name }}-k8s-tls"]
    verbs: ["list", "watch", "update"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: linkerd-{{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- $labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: linkerd-{{ .name }}
subjects:
  - kind: ServiceAccount
    name: linkerd-destination
    namespace: {{ .root.Release.Namespace }}
{{- end }}
{{- end }}
