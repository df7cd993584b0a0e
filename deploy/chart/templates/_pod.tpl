{{/* The pod of a pool: .root, .name, .pool */}}
{{- define "tandem.pod" -}}
{{- $p := .pool }}
{{- if and (gt (int $p.nodes) 1) (ne $p.engine "vllm") }}
{{- fail (printf "pools.%s: nodes above 1 are written for vllm; %s has one pod a server" .name $p.engine) }}
{{- end }}
{{- $connector := $p.connector | default (ternary "nixl" "" (and (eq $p.engine "vllm") (ne $p.role "both"))) }}
metadata:
  labels:
    {{- include "tandem.podLabels" (dict "root" .root "component" .name) | nindent 4 }}
    tandem/pool: {{ .name }}
    tandem/engine: {{ $p.engine }}
    tandem/role: {{ $p.role }}
    {{- with $connector }}
    tandem/connector: {{ . }}
    {{- end }}
    {{- if gt (int $p.ranks) 1 }}
    tandem/dp-size: {{ $p.ranks | quote }}
    {{- end }}
    {{- if gt (int $p.nodes) 1 }}
    tandem/lockstep: "true"
    {{- end }}
    {{- if ne $p.engine "trtllm" }}
    tandem/events: "5557" # ports of --kv-events-config
    tandem/replay: "5657"
    {{- end }}
    {{- if and (eq $p.engine "sglang") (eq $p.role "prefill") }}
    tandem/kv: "8998"
    {{- end }}
    {{- with $p.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- $annotations := $p.annotations }}
  {{- if eq $p.engine "trtllm" }}
  # The engine reads its file when it starts.
  {{- $annotations = merge (dict "checksum/config" (include "tandem.trtllmConfig" $p | sha256sum)) $annotations }}
  {{- end }}
  {{- with $annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  {{- with $p.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  # The preStop hook waits for what is in flight, up to half a minute less.
  terminationGracePeriodSeconds: {{ $p.graceSeconds }}
  securityContext:
    {{- if $p.runAsUser }}
    runAsNonRoot: true
    runAsUser: {{ $p.runAsUser }}
    fsGroup: {{ $p.runAsUser }}
    {{- end }}
    seccompProfile: {type: RuntimeDefault}
  {{- with $p.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $p.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $p.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ $p.engine }}
      image: {{ $p.image | default (dig $p.engine "image" "" .root.Values.engines) }}
      {{- include (printf "tandem.%s" $p.engine) . | trim | nindent 6 }}
      {{- $resources := deepCopy $p.resources }}
      {{- if $p.gpus }}
      {{- $_ := set $resources "limits" (merge (dict "nvidia.com/gpu" (toString $p.gpus)) ($resources.limits | default dict)) }}
      {{- end }}
      resources: {{- toYaml $resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        capabilities:
          drop: [ALL]
          {{- with $p.capabilities }}
          add: {{- toYaml . | nindent 12 }}
          {{- end }}
      volumeMounts:
        - {name: shm, mountPath: /dev/shm}
        - {name: cache, mountPath: /cache}
        {{- if eq $p.engine "trtllm" }}
        - {name: config, mountPath: /etc/trtllm, readOnly: true}
        {{- end }}
        {{- if include "tandem.trtllmKeyed" . }}
        - {name: key, mountPath: /etc/trtllm-key, readOnly: true}
        {{- end }}
  volumes:
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ $p.sharedMemory }}}
    - name: cache # the model's weights
      {{- if $p.weightsClaim }}
      persistentVolumeClaim: {claimName: {{ $p.weightsClaim }}}
      {{- else }}
      emptyDir: {}
      {{- end }}
    {{- if eq $p.engine "trtllm" }}
    - name: config
      configMap: {name: {{ .name }}}
    {{- end }}
    {{- if include "tandem.trtllmKeyed" . }}
    - name: key
      secret: {secretName: {{ .root.Values.engines.trtllm.keySecret }}}
    {{- end }}
{{- end }}
