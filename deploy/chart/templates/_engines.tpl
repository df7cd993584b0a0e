{{/*
What an engine's container is started with, by engine. Each takes .pool (with its defaults),
.name and .root, and gives command, args, env, ports, readiness and preStop of the container.
*/}}

{{- define "tandem.waitUntilIdle" -}}
preStop:
  # The gateway sends nothing new from the moment that the pod's deletion begins. Engines abort what
  # runs on SIGTERM: wait until nothing does, and no KV is held for a decode server any more.
  exec:
    command:
      - python3
      - -c
      - |
        import re, time, urllib.request
        busy = re.compile(r"^{{ .series }}\{.*\} (?!0(\.0+)?$)", re.M)
        time.sleep(2)
        end = time.monotonic() + {{ sub .pool.graceSeconds 32 }}
        while time.monotonic() < end and busy.search(urllib.request.urlopen("http://localhost:8000/metrics").read().decode()):
            time.sleep(0.5)
{{- end }}

{{/*
How many GPUs compute a layer together: those of a pod, shared by its ranks. SGLang's ranks of attention lie within
them (--dp-size divides --tp-size). Where args divide the GPUs in any way, that alone counts.
*/}}
{{- define "tandem.tensorParallel" -}}
{{- $gpus := max 1 (int .pool.gpus) }}
{{- if and .pool.gpus (mod $gpus (int .pool.ranks)) }}
{{- fail (printf "pools.%s: %d GPUs are no multiple of %d ranks" .name $gpus (int .pool.ranks)) }}
{{- end }}
{{- if regexMatch "(parallel|[tdp]p)[-_]size" (join " " .pool.args) }}1{{ else if eq .pool.engine "sglang" }}{{ $gpus }}{{ else }}{{ max 1 (div $gpus (int .pool.ranks)) }}{{ end }}
{{- end }}

{{/* The names of a pool's own variables, as JSON: the chart's of these names are left out. */}}
{{- define "tandem.envNames" -}}
{{- $names := dict }}
{{- range .env }}{{ $_ := set $names .name true }}{{ end }}
{{- toJson $names }}
{{- end }}

{{- define "tandem.vllm" -}}
{{- $p := .pool }}
{{- $together := int (include "tandem.tensorParallel" .) }}
{{- $grouped := gt (int $p.nodes) 1 }}
{{- $base := "5557" }}
{{- $replay := "5657" }}
{{- if $grouped }}
{{- /* vLLM adds the rank to both ports: take the first rank of the pod away. */}}
{{- $base = "'$((5557 - first))'" }}
{{- $replay = "'$((5657 - first))'" }}
{{- end }}
{{- $sends := ternary "kv_producer" "kv_consumer" (eq $p.role "prefill") }}
{{- $transfer := printf `{"kv_connector":"NixlConnector","kv_role":"%s","kv_load_failure_policy":"fail"}` $sends }}
{{- $events := printf `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%s","replay_endpoint":"tcp://*:%s","topic":"kv-events"}` $base $replay }}
{{- if $grouped }}
# Each pod serves its own ranks; all step together.
command:
  - bash
  - -c
  - |
    first=$((LWS_WORKER_INDEX * {{ $p.ranks }}))
    exec vllm serve {{ $p.model }} --port=8000 \
      --data-parallel-size={{ mul $p.nodes $p.ranks }} --data-parallel-size-local={{ $p.ranks }} \
      --data-parallel-start-rank=$first --data-parallel-hybrid-lb \
      --data-parallel-address="$LWS_LEADER_ADDRESS" --data-parallel-rpc-port=5555 --enable-expert-parallel \
      {{- if gt $together 1 }}
      --tensor-parallel-size={{ $together }} \
      {{- end }}
      {{- if ne $p.role "both" }}
      --kv-transfer-config='{{ $transfer }}' \
      {{- end }}
      --kv-events-config='{{ $events }}' \
      --enable-prompt-tokens-details --enable-scale-out{{ range $p.args }} {{ . | squote }}{{ end }}
{{- else }}
args:
  - --model={{ $p.model }}
  - --port=8000
  {{- if ne $p.role "both" }}
  # vLLM 0.33 warns of kv_both; a server has the role of its pool. "fail" lets the gateway
  # try elsewhere; "recompute" would stall decode in silence.
  - --kv-transfer-config={{ $transfer }}
  {{- end }}
  # Replay lets a gateway that missed events ask for them.
  - --kv-events-config={{ $events }}
  # The gateway learns from cached_tokens what a prefill really cost.
  - --enable-prompt-tokens-details
  # The gateway asks how a prompt is turned into tokens.
  - --enable-scale-out
  {{- if gt (int $p.ranks) 1 }}
  - --data-parallel-size={{ $p.ranks }}
  {{- end }}
  {{- if gt $together 1 }}
  - --tensor-parallel-size={{ $together }}
  {{- end }}
  {{- range $p.args }}
  - {{ . | quote }}
  {{- end }}
{{- end }}
env:
  {{- $set := fromJson (include "tandem.envNames" $p) }}
  {{- if not (hasKey $set "VLLM_NIXL_SIDE_CHANNEL_HOST") }}
  # Decode pulls the KV from this address. The default, localhost, makes decode pull from itself.
  - name: VLLM_NIXL_SIDE_CHANNEL_HOST
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  {{- end }}
  {{- if not (hasKey $set "VLLM_NIXL_SIDE_CHANNEL_PORT") }}
  - {name: VLLM_NIXL_SIDE_CHANNEL_PORT, value: "5600"}
  {{- end }}
  {{- if not (hasKey $set "USER") }}
  # The user has no entry in the image's passwd.
  - {name: USER, value: vllm}
  {{- end }}
  {{- if not (hasKey $set "HOME") }}
  - {name: HOME, value: /cache}
  {{- end }}
  {{- with $p.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - {name: http, containerPort: 8000}
  - {name: nixl, containerPort: 5600}
  - {name: kv-events, containerPort: 5557}
  - {name: kv-replay, containerPort: 5657}
startupProbe: # the model loads
  httpGet: {path: /health, port: http}
  periodSeconds: 5
  failureThreshold: 240
readinessProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 2
lifecycle:
  {{- include "tandem.waitUntilIdle" (dict "pool" $p "series" "vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc|gpu_cache_usage_perc)") | nindent 2 }}
{{- end }}

{{- define "tandem.sglang" -}}
{{- $p := .pool }}
{{- $together := int (include "tandem.tensorParallel" .) }}
command: [python3, -m, sglang.launch_server]
args:
  - --model-path={{ $p.model }}
  - --host=0.0.0.0
  - --port=8000
  {{- if ne $p.role "both" }}
  - --disaggregation-mode={{ $p.role }}
  - --disaggregation-transfer-backend=nixl
  {{- if eq $p.role "prefill" }}
  - --disaggregation-bootstrap-port=8998
  {{- end }}
  {{- end }}
  - --kv-events-config={"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":"kv-events"}
  - --enable-metrics
  # Usage says what caches had of a prompt.
  - --enable-cache-report
  {{- if gt $together 1 }}
  - --tp-size={{ $together }}
  {{- end }}
  {{- if gt (int $p.ranks) 1 }}
  - --dp-size={{ $p.ranks }}
  - --enable-dp-attention
  {{- end }}
  {{- range $p.args }}
  - {{ . | quote }}
  {{- end }}
env:
  {{- if not (hasKey (fromJson (include "tandem.envNames" $p)) "HOME") }}
  - {name: HOME, value: /cache}
  {{- end }}
  {{- with $p.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - {name: http, containerPort: 8000}
  - {name: bootstrap, containerPort: 8998}
  - {name: kv-events, containerPort: 5557}
  - {name: kv-replay, containerPort: 5657}
startupProbe: # the model loads; /health generates a token
  httpGet: {path: /health, port: http}
  periodSeconds: 5
  timeoutSeconds: 20
  failureThreshold: 240
readinessProbe:
  httpGet: {path: /v1/models, port: http}
  periodSeconds: 2
lifecycle:
  {{- include "tandem.waitUntilIdle" (dict "pool" $p "series" "sglang:(num_running_reqs|num_queue_reqs)") | nindent 2 }}
{{- end }}

{{- define "tandem.trtllm" -}}
{{- $p := .pool }}
{{- $together := int (include "tandem.tensorParallel" .) }}
{{- $keyed := include "tandem.trtllmKeyed" . }}
{{- if $keyed }}
command:
  - sh
  - -c
  # The key is in a Secret, and the server takes it from its file alone.
  - |
    umask 077
    { cat /etc/trtllm/config.yaml && printf 'internal_request_auth_key: "%s"\n' "$(cat /etc/trtllm-key/key)"; } > /dev/shm/config.yaml || exit
    exec trtllm-serve serve "$@"
  - trtllm-serve
{{- else }}
command: [trtllm-serve, serve]
{{- end }}
args:
  - {{ $p.model }}
  - --host=0.0.0.0
  - --port=8000
  - --backend=pytorch
  - --extra_llm_api_options={{ ternary "/dev/shm" "/etc/trtllm" (ne $keyed "") }}/config.yaml
  {{- if gt $together 1 }}
  - --tp_size={{ $together }}
  {{- end }}
  {{- range $p.args }}
  - {{ . | quote }}
  {{- end }}
env:
  {{- if not (hasKey (fromJson (include "tandem.envNames" $p)) "HOME") }}
  - {name: HOME, value: /cache}
  {{- end }}
  {{- with $p.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - {name: http, containerPort: 8000}
startupProbe: # the model loads
  httpGet: {path: /health, port: http}
  periodSeconds: 5
  failureThreshold: 240
readinessProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 2
lifecycle:
  preStop:
    # The gateway sees that the pod goes; the server finishes what it has on SIGTERM.
    exec: {command: [sleep, "5"]}
{{- end }}

{{/* Whether the TensorRT-LLM servers of a pool take signed hand-offs alone: .root, .pool */}}
{{- define "tandem.trtllmKeyed" -}}
{{- if and .root.Values.engines.trtllm.keySecret (eq .pool.engine "trtllm") (ne .pool.role "both") }}true{{ end }}
{{- end }}

{{/* The file that a TensorRT-LLM server of a pair reads. */}}
{{- define "tandem.trtllmConfig" -}}
print_iter_log: false
enable_iter_perf_stats: true
return_perf_metrics: true # without it there is no /prometheus/metrics, and the gateway sees no load
{{- if ne .role "both" }}
cache_transceiver_config: {backend: DEFAULT}
{{- end }}
{{- if eq .role "prefill" }}
disable_overlap_scheduler: true
{{- end }}
{{- end }}
