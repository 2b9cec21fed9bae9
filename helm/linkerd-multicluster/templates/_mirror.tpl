{{/* Service mirrors. The file is the same in both charts of the extension, because a chart must be complete. */}}

{{/* The ServiceAccount of a service mirror. Parameters: root; name; labels, YAML. */}}
{{- define "mirror.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- .labels | nindent 4 }}
automountServiceAccountToken: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What every service mirror may do in all namespaces of its cluster. */}}
{{- define "mirror.clusterRules" -}}
# Mirrors and federated Services. A Service is read before it is changed.
- apiGroups: [""]
  resources: ["services"]
  verbs: ["get", "list", "watch", "create", "update", "delete"]
- apiGroups: [""]
  resources: ["namespaces"]
  verbs: ["list", "watch"]
{{- end }}

{{/* What the service mirror of a Link may do in all namespaces besides. Parameter: the root. */}}
{{- define "mirror.linkClusterRules" -}}
# The endpoints of mirrors are the addresses of gateways.
- apiGroups: [""]
  resources: ["endpoints"]
  verbs: ["list", "watch", "create", "update", "delete"]
{{- if .Values.enableNamespaceCreation }}
- apiGroups: [""]
  resources: ["namespaces"]
  verbs: ["create"]
{{- end }}
{{- end }}

{{/* What the service mirror of a Link may do in its own namespace. Parameter: the name of the Link. */}}
{{- define "mirror.linkRules" -}}
- apiGroups: [""]
  resources: ["secrets"]
  resourceNames: ["cluster-credentials-{{ . }}"]
  verbs: ["list", "watch"]
- apiGroups: ["multicluster.linkerd.io"]
  resources: ["links"]
  verbs: ["list", "watch"]
- apiGroups: ["multicluster.linkerd.io"]
  resources: ["links/status"]
  verbs: ["patch"]
{{ include "mirror.leaseRules" (printf "service-mirror-write-%s" .) }}
{{- end }}

{{/* The rights to the Lease of the replica that writes. Creation cannot be restricted by name. Parameter: the name. */}}
{{- define "mirror.leaseRules" -}}
- apiGroups: ["coordination.k8s.io"]
  resources: ["leases"]
  verbs: ["create"]
- apiGroups: ["coordination.k8s.io"]
  resources: ["leases"]
  resourceNames: [{{ . | quote }}]
  verbs: ["get", "patch"]
{{- end }}

{{/* A binding of a role to a ServiceAccount. Parameters: root; kind; name; labels, YAML; role; account. */}}
{{- define "mirror.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  name: {{ .name }}
  {{- if eq .kind "Role" }}
  namespace: {{ .root.Release.Namespace }}
  {{- end }}
  labels:
    {{- .labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .role }}
subjects:
  - kind: ServiceAccount
    name: {{ .account }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}

{{/* The Service whose endpoints are the gateway of a Link, for its probes. Parameters: root; name; labels and annotations, YAML; port. */}}
{{- define "mirror.probeService" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- .labels | nindent 4 }}
    mirror.linkerd.io/mirrored-gateway: "true"
  annotations:
    {{- .annotations | nindent 4 }}
spec:
  ports:
    - name: mc-probe
      port: {{ .port }}
      protocol: TCP
{{- end }}

{{/*
The Deployment of a service mirror. Parameters: root; name; container; port, the name of the admin server's port;
labels, podLabels and annotations, YAML; selector; args, YAML; image, YAML; settings, with replicas, UID, GID,
resources, nodeSelector, nodeAffinity, tolerations and enablePodAntiAffinity.
*/}}
{{- define "mirror.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- .labels | nindent 4 }}
  annotations:
    {{- .annotations | nindent 4 }}
spec:
  replicas: {{ .settings.replicas }}
  revisionHistoryLimit: {{ .root.Values.revisionHistoryLimit }}
  {{- with include "mirror.strategy" .settings }}
  {{- . | nindent 2 }}
  {{- end }}
  selector:
    matchLabels:
      {{- toYaml .selector | nindent 6 }}
  template:
    metadata:
      labels:
        {{- .podLabels | nindent 8 }}
      annotations:
        {{- .annotations | nindent 8 }}
        linkerd.io/inject: enabled
        cluster-autoscaler.kubernetes.io/safe-to-evict: "true"
        config.alpha.linkerd.io/proxy-wait-before-exit-seconds: "0"
        {{- with .root.Values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      automountServiceAccountToken: false
      serviceAccountName: {{ .name }}
      {{- with include "mirror.scheduling" . | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      containers:
        - name: {{ .container }}
          {{- .image | nindent 10 }}
          args:
            - service-mirror
            - --metrics-addr=:9999
            - --namespace={{ .root.Release.Namespace }}
            {{- .args | nindent 12 }}
          ports:
            - name: {{ .port }}
              containerPort: 9999
          {{- include "mesh.probes" (dict "port" 9999 "live" (dict "timeoutSeconds" 1) "ready" (dict "timeoutSeconds" 1)) | nindent 10 }}
          {{- with include "mirror.resources" .settings.resources | trim }}
          resources:
            {{- . | nindent 12 }}
          {{- end }}
          securityContext:
            {{- include "mirror.containerSecurity" .settings | nindent 12 }}
          terminationMessagePolicy: FallbackToLogsOnError
          volumeMounts:
            {{- include "mesh.apiAccess.mount" . | nindent 12 }}
      securityContext:
        seccompProfile:
          type: RuntimeDefault
      volumes:
        {{- include "mesh.apiAccess.volume" . | nindent 8 }}
{{- end }}

{{/* The PodDisruptionBudget of a workload. Parameters: root; name; labels and annotations, YAML; selector. */}}
{{- define "mirror.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- .labels | nindent 4 }}
  annotations:
    {{- .annotations | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- toYaml .selector | nindent 6 }}
{{- end }}

{{/* The update strategy of a workload, if it is not Kubernetes' default. Parameter: settings. */}}
{{- define "mirror.strategy" -}}
{{- if .enablePodAntiAffinity -}}
# There may be no node for an additional pod.
strategy:
  rollingUpdate:
    maxUnavailable: 1
{{- end }}
{{- end }}

{{/* Where the pods of a workload run. Parameters: selector; settings. */}}
{{- define "mirror.scheduling" -}}
{{- if or .settings.nodeAffinity .settings.enablePodAntiAffinity }}
affinity:
  {{- with .settings.nodeAffinity }}
  nodeAffinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .settings.enablePodAntiAffinity }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          labelSelector:
            matchLabels:
              {{- toYaml .selector | nindent 14 }}
          topologyKey: topology.kubernetes.io/zone
    requiredDuringSchedulingIgnoredDuringExecution:
      - labelSelector:
          matchLabels:
            {{- toYaml .selector | nindent 12 }}
        topologyKey: kubernetes.io/hostname
  {{- end }}
{{- end }}
{{- with .settings.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Resource requests and limits, given in either form; empty if none is set. Parameter: a value like controllerDefaults.resources. */}}
{{- define "mirror.resources" -}}
{{- $byResource := dict }}
{{- range $kind := list "cpu" "memory" "ephemeral-storage" }}
{{- $_ := set $byResource $kind (index $ $kind | default dict) }}
{{- end }}
{{- $all := include "mesh.resources" $byResource | fromYaml }}
{{- range $bound := list "limits" "requests" }}
{{- with index $ $bound }}
{{- $_ := set $all $bound (merge (index $all $bound | default dict) .) }}
{{- end }}
{{- end }}
{{- with $all }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* The security context of a container, for the restricted profile. Parameter: settings with UID and GID. */}}
{{- define "mirror.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities:
  drop:
    - ALL
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: {{ int64 .UID }}
runAsGroup: {{ int64 .GID }}
seccompProfile:
  type: RuntimeDefault
{{- end }}
