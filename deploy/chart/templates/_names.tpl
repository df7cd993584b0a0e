{{- define "tandem.name" -}}
{{ .Values.nameOverride | default .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Labels that select: .root, .component */}}
{{- define "tandem.selector" -}}
app.kubernetes.io/name: {{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{/* Labels of pods: no version, since a new one would replace all pods, the engines' too. */}}
{{- define "tandem.podLabels" -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "tandem.labels" -}}
{{ include "tandem.podLabels" . }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "tandem.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "tandem.redisSecret" -}}
{{ .Values.redis.existingSecret | default (printf "%s-redis" (include "tandem.name" .)) }}
{{- end }}

{{- define "tandem.adminSecret" -}}
{{ .Values.admin.token.existingSecret | default (printf "%s-admin" (include "tandem.name" .)) }}
{{- end }}

{{/* The Service of the picker's port: that of clients, unless clients reach it from outside of the cluster. */}}
{{- define "tandem.pickerService" -}}
{{ include "tandem.name" . }}{{ if ne .Values.service.type "ClusterIP" }}-picker{{ end }}
{{- end }}

{{- define "tandem.usesRedis" -}}
{{- if or .Values.redis.deploy .Values.redis.addresses }}yes{{ end }}
{{- end }}

{{/* What the gateway's user of Redis may do. */}}
{{- define "tandem.redisRights" -}}
resetchannels ~{{ .Values.redis.prefix }}* &{{ .Values.redis.prefix }}* -@all +ping +hello +select +client|setname +publish +subscribe +get +set +del +exists +expire +pexpire +pttl +getrange +lpush +rpush +lrange +ltrim +sadd +srem +srandmember +zadd +zrange +zrem +hset +hget +hmget +hgetall +hdel +time +xadd +xread +eval +evalsha +multi +exec +command +cluster|slots +asking
{{- end }}

{{/* A ClusterRole and its binding have no namespace: their names say whose they are. */}}
{{- define "tandem.clusterName" -}}
{{ include "tandem.name" . }}-{{ .Release.Namespace }}
{{- end }}

{{- define "tandem.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* What a Secret of ours holds under a key already, or a new password: .root, .secret, .key */}}
{{- define "tandem.kept" -}}
{{- $secret := lookup "v1" "Secret" .root.Release.Namespace .secret }}
{{- $kept := "" }}
{{- if $secret }}{{ $kept = index $secret.data .key | default "" | b64dec }}{{ end }}
{{- $kept | default (randAlphaNum 40) }}
{{- end }}
