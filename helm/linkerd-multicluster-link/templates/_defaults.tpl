{{/* Generated from mesh-k8s/src/values/multicluster.rs; edit that file. Templates need the defaults of values that are `null`. */}}

{{- define "link.defaults" -}}
{
  "commonLabels": {},
  "controllerImage": "mesh/controller",
  "controllerImageVersion": "0.1.0",
  "enableHeadlessServices": false,
  "enableNamespaceCreation": false,
  "enablePodAntiAffinity": false,
  "gateway.enabled": true,
  "gateway.probe.port": 4191,
  "imagePullSecrets": [],
  "logFormat": "plain",
  "logLevel": "info",
  "nodeAffinity": null,
  "nodeSelector": {},
  "podAnnotations": {},
  "podLabels": {},
  "replicas": 1,
  "resources.cpu.limit": "",
  "resources.cpu.request": "",
  "resources.ephemeral-storage.limit": "",
  "resources.ephemeral-storage.request": "",
  "resources.limits": {},
  "resources.memory.limit": "",
  "resources.memory.request": "",
  "resources.requests": {},
  "revisionHistoryLimit": 10,
  "serviceMirrorGID": 2103,
  "serviceMirrorUID": 2103,
  "targetClusterName": "",
  "tolerations": []
}
{{- end }}

{{- define "link.ignoredKeys" -}}
{
  "enablePSP": "Kubernetes no longer has PodSecurityPolicies",
  "enablePprof": "the service mirrors serve no profiles",
  "serviceMirrorRetryLimit": "failed writes are repeated without a limit"
}
{{- end }}
