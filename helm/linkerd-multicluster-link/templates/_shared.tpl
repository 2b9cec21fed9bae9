{{/* The parts that charts share. The file is the same in each of them, because a chart must be complete. */}}

{{/*
Sets the default of every missing value: Helm removes a key that is `null` together with its default. Renders nothing.
Parameters: values; defaults, by dotted path.
*/}}
{{- define "mesh.setDefaults" -}}
{{- $values := .values }}
{{- range $path, $default := .defaults }}
{{- $place := $values }}
{{- $names := splitList "." $path }}
{{- range initial $names }}
{{- if not (kindIs "map" (index $place .)) }}{{ $_ := set $place . dict }}{{ end }}
{{- $place = index $place . }}
{{- end }}
{{- if kindIs "invalid" (index $place (last $names)) }}{{ $_ := set $place (last $names) $default }}{{ end }}
{{- end }}
{{- end }}

{{/* A line with the reason for each given key without effect. Parameters: values; keys, their reasons by dotted path. */}}
{{- define "mesh.listIgnored" -}}
{{- $values := .values }}
{{- range $path, $reason := .keys }}
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

{{/* Resource requests and limits; empty if none is set. Parameter: a value like proxy.resources. */}}
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

{{/* The liveness and readiness probes of a controller's container. Parameters: port; live and ready, like identity.livenessProbe. */}}
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

{{/* The token for the API server, which is only mounted to containers that need it. */}}
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
