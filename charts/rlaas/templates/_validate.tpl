{{/* Fails for values that the API server, the kubelet or the program would refuse, or whose pods would not do what was meant. */}}
{{- define "rlaas.validate" -}}
{{- $settings := include "rlaas.settings" . | fromYaml }}
{{- $name := include "rlaas.name" . }}
{{- $grace := int .Values.terminationGracePeriodSeconds }}
{{- $drain := ($settings.server).drain | default dict }}
{{- $delay := include "rlaas.seconds" (dig "delay" "0s" $drain) | float64 }}
{{- $timeout := include "rlaas.seconds" (dig "timeout" "30s" $drain) | float64 }}
{{- if and (eq $settings.store.backend "memory") (or .Values.autoscaling.enabled (gt (int .Values.replicas) 1)) }}
{{- fail "\n\nMore than one replica needs Redis: in memory each pod counts for itself and allows the whole limit.\nSet redis.existingSecret to the name of a Secret with the URL of Redis, or replicas to 1 and autoscaling.enabled to false." }}
{{- end }}
{{- if .Values.envoyAiGateway.enabled }}
{{- if ne .Release.Namespace "envoy-gateway-system" }}
{{- fail (printf "\n\nenvoyAiGateway.enabled needs the namespace envoy-gateway-system, where Envoy AI Gateway looks for its quota server, not %s:\nhelm -n envoy-gateway-system upgrade --install …" .Release.Namespace) }}
{{- end }}
{{- if or .Values.tls.existingSecret .Values.console.enabled }}
{{- fail "\n\nenvoyAiGateway.enabled is neither with tls.existingSecret, as Envoy AI Gateway calls it without TLS, nor with console.enabled, whose port it has." }}
{{- end }}
{{- end }}
{{- with .Values.autoscaling }}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) }}
{{- fail (printf "\n\nautoscaling.minReplicas (%d) must not be above autoscaling.maxReplicas (%d)." (int .minReplicas) (int .maxReplicas)) }}
{{- end }}
{{- end }}
{{- if ge (addf $delay $timeout) (float64 $grace) }}
{{- fail (printf "\n\nterminationGracePeriodSeconds (%d) must be above the sum of settings.server.drain.delay and timeout (%v s): the pod would be killed while it drains." $grace (addf $delay $timeout)) }}
{{- end }}
{{- if and .Values.tls.clientCa (not .Values.tls.existingSecret) }}
{{- fail "\n\ntls.clientCa needs tls.existingSecret: client certificates are part of TLS." }}
{{- end }}
{{- if and .Values.serviceAccount.create (eq .Values.serviceAccount.name "default") }}
{{- fail "\n\nserviceAccount.name must not be default if serviceAccount.create is true: each namespace has that one." }}
{{- end }}
{{- range $label, $_ := include "rlaas.selector" . | fromYaml }}
{{- if hasKey $.Values.podLabels $label }}
{{- fail (printf "\n\npodLabels must not have %s: the Service selects pods by it." $label) }}
{{- end }}
{{- end }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
{{- fail (printf "\n\nThe name %s must be lower-case letters, digits and dashes, and begin with a letter, as that of a Service: set fullnameOverride." $name) }}
{{- end }}
{{- end }}

{{/* The seconds of a duration of the settings, such as 1m 30s. */}}
{{- define "rlaas.seconds" -}}
{{- $seconds := 0.0 }}
{{- range regexFindAll "[0-9]+ *[a-z]*" (toString .) -1 }}
{{- $unit := regexFind "[a-z]+$" . }}
{{- $factor := 0.0 }}
{{- if regexMatch "^(s.*)?$" $unit }}{{ $factor = 1.0 }}{{ end }}
{{- if regexMatch "^m(in.*)?$" $unit }}{{ $factor = 60.0 }}{{ end }}
{{- if regexMatch "^h.*$" $unit }}{{ $factor = 3600.0 }}{{ end }}
{{- if regexMatch "^m(s|illi.*)$" $unit }}{{ $factor = 0.001 }}{{ end }}
{{- $seconds = addf $seconds (mulf (regexFind "^[0-9]+" .) $factor) }}
{{- end }}
{{- $seconds }}
{{- end }}
