{{/* The name of all objects. */}}
{{- define "rlaas.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{/* The labels by which pods are selected. */}}
{{- define "rlaas.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rlaas.labels" -}}
{{ include "rlaas.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The settings that follow from other values. */}}
{{- define "rlaas.derived" -}}
server:
  listen: 0.0.0.0:50051
  http: 0.0.0.0:8080
  # /metrics alone: the NetworkPolicy lets in the namespace of Prometheus.
  metrics: 0.0.0.0:9090
  {{- if .Values.console.enabled }}
  console: 0.0.0.0:8081
  {{- end }}
  {{- if .Values.tls.existingSecret }}
  tls:
    cert: /etc/rlaas/tls/tls.crt
    key: /etc/rlaas/tls/tls.key
    {{- if .Values.tls.clientCa }}
    client-ca: /etc/rlaas/tls/ca.crt
    {{- end }}
  {{- end }}
store:
  backend: {{ ternary "redis" "memory" (ne .Values.redis.existingSecret "") }}
{{- end }}

{{/* All settings, as YAML. */}}
{{- define "rlaas.settings" -}}
{{- merge (deepCopy .Values.settings) (include "rlaas.derived" . | fromYaml) | toYaml }}
{{- end }}
