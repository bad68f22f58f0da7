{{/* The name of all objects. */}}
{{- define "rlaas.name" -}}
{{- $default := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) }}
{{- if .Values.envoyAiGateway.enabled }}{{ $default = "envoy-ai-gateway-ratelimit" }}{{ end }}
{{- .Values.fullnameOverride | default $default | trunc 53 | trimSuffix "-" }}
{{- end }}

{{/* The port of the Service for gRPC. */}}
{{- define "rlaas.port" -}}
{{ ternary 8081 50051 .Values.envoyAiGateway.enabled }}
{{- end }}

{{/* The labels by which pods are selected. */}}
{{- define "rlaas.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rlaas.labels" -}}
{{ include "rlaas.selector" . }}
{{- if .Values.envoyAiGateway.enabled }}
app: envoy-ai-gateway-ratelimit
{{- end }}
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
{{- if .Values.envoyAiGateway.enabled }}
envoy:
  # The controller of Envoy AI Gateway. It has no rules before the first QuotaPolicy.
  xds:
    address: http://ai-gateway-controller.envoy-ai-gateway-system.svc.cluster.local:18002
    node: envoy-ai-gateway-ratelimit
    wait: false
  # Its filter waits 5 s, and a charge that is late is lost.
  deadline: 500ms
  # Charges come after the answer: they count above the limit, too.
  count-refused: true
{{- end }}
store:
  backend: {{ ternary "redis" "memory" (ne .Values.redis.existingSecret "") }}
{{- end }}

{{/* All settings, as YAML. */}}
{{- define "rlaas.settings" -}}
{{- merge (deepCopy .Values.settings) (include "rlaas.derived" . | fromYaml) | toYaml }}
{{- end }}

{{/* The rules, as YAML. */}}
{{- define "rlaas.rules" -}}
{{- pick .Values "rules" "rate-limiter" | toYaml }}
{{- end }}

{{/* The files of settings, in their order. */}}
{{- define "rlaas.files" -}}
- /etc/rlaas/config/rlaas.yaml
- /etc/rlaas/rules/rules.yaml
{{- if .Values.auth.existingSecret }}
- /etc/rlaas/auth/auth.yaml
{{- end }}
{{- end }}

{{/* The image of a container, and when it is pulled. */}}
{{- define "rlaas.image" -}}
{{- with .Values.image -}}
image: {{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ with .digest }}@{{ . }}{{ end }}
{{- with .pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "rlaas.serviceAccountName" -}}
{{- $name := ternary (include "rlaas.name" .) "" .Values.serviceAccount.create }}
{{- with .Values.serviceAccount.name | default $name -}}
serviceAccountName: {{ . }}
{{- end }}
{{- end }}

{{/* What pods of the server and of the check before an upgrade have in common. */}}
{{- define "rlaas.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "rlaas.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "rlaas.env" -}}
# A restarted container goes on with the counts in memory, or with the projects of Redis
# while that is away.
- { name: RLAAS_STATE_DIR, value: /var/lib/rlaas/state }
{{- if .Values.redis.existingSecret }}
{{- $redis := (include "rlaas.settings" . | fromYaml).store.redis | default dict }}
- name: RLAAS_STORE__REDIS__{{ ternary "URL" "URLS" (eq ($redis.mode | default "standalone") "standalone") }}
  valueFrom:
    secretKeyRef: { name: {{ .Values.redis.existingSecret }}, key: {{ .Values.redis.key }} }
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "rlaas.mounts" -}}
# Whole folders: a file mounted with subPath is never updated.
- { name: config, mountPath: /etc/rlaas/config, readOnly: true }
- { name: rules, mountPath: /etc/rlaas/rules, readOnly: true }
- { name: state, mountPath: /var/lib/rlaas }
{{- if .Values.tls.existingSecret }}
- { name: tls, mountPath: /etc/rlaas/tls, readOnly: true }
{{- end }}
{{- if .Values.auth.existingSecret }}
- { name: auth, mountPath: /etc/rlaas/auth, readOnly: true }
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The volumes, with the ConfigMaps .config and .rules. */}}
{{- define "rlaas.volumes" -}}
- name: config
  configMap: { name: {{ .config }} }
- name: rules
  configMap: { name: {{ .rules }} }
- name: state
  emptyDir: { sizeLimit: 512Mi }
{{- with .Values.tls.existingSecret }}
- name: tls
  secret: { secretName: {{ . }} }
{{- end }}
{{- with .Values.auth.existingSecret }}
- name: auth
  secret: { secretName: {{ . }} }
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
