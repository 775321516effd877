{{- /* Prints the objects of one manifest, with this release's names, labels and values.
       Takes: root (the chart's context), path (of the manifest), model (an entry of .Values.models, or none). */ -}}
{{- define "quire.manifest" }}
{{- range $document := splitList "\n---\n" (.root.Files.Get .path) }}
---
{{- $object := fromYaml $document }}
{{- $_ := include "quire.rename" (dict "root" $.root "model" $.model "object" $object) }}
{{- if has $object.kind (list "Deployment" "StatefulSet" "Job") }}
{{- $_ := include "quire.workload" (dict "root" $.root "model" $.model "object" $object) }}
{{- end }}
{{ toYaml $object }}
{{- end }}
{{- end }}

{{- /* Labels of every object of the release, and of a model's objects. Without quotes, a model 7 or a release `true`
       would make a label that is not a text. */ -}}
{{- define "quire.labels" }}
app.kubernetes.io/name: quire
app.kubernetes.io/instance: {{ quote .root.Release.Name }}
{{- if and .model .model.name }}
model: {{ quote .model.name }}
{{- end }}
{{- end }}

{{- /* What the names of the release's objects, or of a model's, begin with. */ -}}
{{- define "quire.prefix" }}
{{- .root.Release.Name }}-{{ if and .model .model.name }}{{ .model.name }}-{{ end }}
{{- end }}

{{- /* Refuses names with which Kubernetes would refuse objects, or could not make a model's pods. */ -}}
{{- define "quire.names" }}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" .Release.Name) }}
{{- fail (printf "the release's name %s must begin with a letter and have no dots, because Services have it in theirs" .Release.Name) }}
{{- end }}
{{- $names := list }}
{{- range $model := .Values.models }}
{{- $name := $model.name | default "" }}
{{- if and (not $name) (gt (len $.Values.models) 1) }}
{{- fail "several models need a name each" }}
{{- end }}
{{- if has $name $names }}
{{- fail (printf "several models have the name %s" $name) }}
{{- end }}
{{- $names = append $names $name }}
{{- /* Pods of a StatefulSet have its name, a hyphen and a hash of 10 characters in a label of at most 63. The other names
       are shorter than their limits if this one is. */ -}}
{{- $worker := print (include "quire.prefix" (dict "root" $ "model" $model)) "worker" }}
{{- if gt (len $worker) 52 }}
{{- fail (printf "the workers' name %s has %d characters, and Kubernetes allows 52: shorten the release's name or the model's" $worker (len $worker)) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* A value as a variable has it. Helm reads all numbers of a file as float64, and prints the large ones with an
       exponent, which no part accepts for a whole number. */ -}}
{{- define "quire.text" }}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ printf "%.0f" . }}{{ else }}{{ toString . }}{{ end }}
{{- end }}

{{- /* Changes names, labels and selectors of .object, and the names of other objects in it. */ -}}
{{- define "quire.rename" }}
{{- $object := .object }}
{{- $prefix := include "quire.prefix" . }}
{{- $all := printf "%s-" .root.Release.Name }}
{{- $own := fromYaml (include "quire.labels" .) }}
{{- if ne (get ($object.metadata.labels | default dict) "app.kubernetes.io/component") "redis" }}
{{- $_ := set $own "app.kubernetes.io/part-of" "quire" }}
{{- end }}
{{- $metadata := $object.metadata }}
{{- $_ := set $metadata "name" (ternary .root.Release.Name (print $prefix $metadata.name) (eq $metadata.name "quire")) }}
{{- $chart := printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- $managed := dict "helm.sh/chart" $chart "app.kubernetes.io/managed-by" .root.Release.Service }}
{{- $_ := set $metadata "labels" (merge (dict) ($metadata.labels | default dict) $own $managed) }}
{{- $spec := $object.spec }}
{{- if eq $object.kind "Service" }}
{{- $_ := set $spec "selector" (merge $spec.selector $own) }}
{{- if eq $metadata.name (print $all "gateway") }}
{{- if ne .root.Values.gateway.serviceType "ClusterIP" }}
{{- $_ := set $spec "type" .root.Values.gateway.serviceType }}
{{- end }}
{{- if .root.Values.gateway.serviceAnnotations }}
{{- $_ := set $metadata "annotations" .root.Values.gateway.serviceAnnotations }}
{{- end }}
{{- end }}
{{- else if eq $object.kind "NetworkPolicy" }}
{{- $group := dict "app.kubernetes.io/instance" .root.Release.Name }}
{{- if and .model .model.name }}
{{- $_ := set $group "model" .model.name }}
{{- end }}
{{- $_ := set $spec.podSelector "matchLabels" (merge $spec.podSelector.matchLabels $group) }}
{{- range $rule := $spec.ingress }}
{{- range $peer := $rule.from }}
{{- if $peer.podSelector }}
{{- $_ := set $peer.podSelector "matchLabels" (merge $peer.podSelector.matchLabels $group) }}
{{- else if $peer.namespaceSelector }}
{{- $_ := set $peer.namespaceSelector.matchLabels "kubernetes.io/metadata.name" $.root.Values.monitoringNamespace }}
{{- end }}
{{- end }}
{{- end }}
{{- else if has $object.kind (list "Deployment" "StatefulSet" "PodDisruptionBudget") }}
{{- $_ := set $spec.selector "matchLabels" (merge $spec.selector.matchLabels $own) }}
{{- else if has $object.kind (list "HorizontalPodAutoscaler" "ScaledObject") }}
{{- $_ := set $spec.scaleTargetRef "name" (print $prefix $spec.scaleTargetRef.name) }}
{{- if eq $object.kind "ScaledObject" }}
{{- range $trigger := $spec.triggers }}
{{- $_ := set $trigger.metadata "serverAddress" $.root.Values.prometheus }}
{{- $_ := set $trigger.metadata "query" (include "quire.own" (dict "query" $trigger.metadata.query "root" $.root)) }}
{{- end }}
{{- end }}
{{- if .model.name }}
{{- $_ := include "quire.queue" (dict "object" $object "options" (.model.options | default dict)) }}
{{- end }}
{{- $_ := include "quire.scaler" (dict "object" $object "scaler" (.model.scaler | default dict) "options" (.model.options | default dict)) }}
{{- else if eq $object.kind "HTTPRoute" }}
{{- $_ := set $spec "parentRefs" .root.Values.parentRefs }}
{{- range $rule := $spec.rules }}
{{- range $backend := $rule.backendRefs }}
{{- $_ := set $backend "name" (print $all $backend.name) }}
{{- end }}
{{- end }}
{{- else if has $object.kind (list "InferencePool" "ServiceMonitor") }}
{{- if eq $object.kind "InferencePool" }}
{{- $picker := .root.Values.endpointPicker }}
{{- $port := dict "number" (int $picker.port) }}
{{- $_ := set $spec "endpointPickerRef" (merge (dict "name" $picker.name "port" $port) $spec.endpointPickerRef) }}
{{- end }}
{{- $_ := set $spec.selector "matchLabels" (merge $spec.selector.matchLabels (dict "app.kubernetes.io/instance" .root.Release.Name)) }}
{{- end }}
{{- if has $object.kind (list "ServiceMonitor" "PrometheusRule") }}
{{- $_ := set $metadata "labels" (merge $metadata.labels .root.Values.monitoringLabels) }}
{{- end }}
{{- if eq $object.kind "PrometheusRule" }}
{{- range $group := $spec.groups }}
{{- $_ := include "quire.alerts" (dict "group" $group "root" $.root) }}
{{- end }}
{{- end }}
{{- if has $object.kind (list "Deployment" "StatefulSet" "Job") }}
{{- $pod := $spec.template }}
{{- $_ := set $pod.metadata "labels" (merge $pod.metadata.labels $own) }}
{{- range $constraint := $pod.spec.topologySpreadConstraints }}
{{- $_ := set $constraint.labelSelector "matchLabels" (merge $constraint.labelSelector.matchLabels $own) }}
{{- end }}
{{- if $pod.spec.affinity }}
{{- range $term := $pod.spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution }}
{{- $selector := $term.podAffinityTerm.labelSelector }}
{{- $_ := set $selector "matchLabels" (merge $selector.matchLabels $own) }}
{{- end }}
{{- end }}
{{- if $pod.spec.serviceAccountName }}
{{- $_ := set $pod.spec "serviceAccountName" .root.Release.Name }}
{{- end }}
{{- if .model }}
{{- $_ := include "quire.storage" (dict "object" $object "prefix" $prefix "storage" (.model.storage | default dict)) }}
{{- end }}
{{- if $spec.serviceName }}
{{- $_ := set $spec "serviceName" (print $prefix $spec.serviceName) }}
{{- end }}
{{- end }}
{{- if eq $object.kind "PersistentVolumeClaim" }}
{{- $_ := include "quire.claim" (dict "spec" $spec "storage" (.model.storage | default dict)) }}
{{- end }}
{{- end }}

{{- /* Sets the size, the modes and the class of a claim. Takes: spec (of the claim), storage (of the model). */ -}}
{{- define "quire.claim" }}
{{- if .storage.size }}
{{- $_ := set .spec.resources.requests "storage" .storage.size }}
{{- end }}
{{- if .storage.accessModes }}
{{- $_ := set .spec "accessModes" .storage.accessModes }}
{{- end }}
{{- if .storage.storageClassName }}
{{- $_ := set .spec "storageClassName" .storage.storageClassName }}
{{- end }}
{{- end }}

{{- /* Gives a workload of a model the volume of the model's files. Takes: object, prefix (of the model's names), storage
       (of the model). */ -}}
{{- define "quire.storage" }}
{{- $spec := .object.spec }}
{{- $kind := .storage.kind | default "shared" }}
{{- if and .storage.existingClaim (ne $kind "shared") }}
{{- fail (printf "storage.existingClaim is shared by all workers, and storage.kind is %s" $kind) }}
{{- end }}
{{- $volumes := list }}
{{- range $volume := $spec.template.spec.volumes }}
{{- if not $volume.persistentVolumeClaim }}
{{- $volumes = append $volumes $volume }}
{{- else if eq $kind "shared" }}
{{- $name := $.storage.existingClaim | default (print $.prefix $volume.persistentVolumeClaim.claimName) }}
{{- $volumes = append $volumes (dict "name" $volume.name "persistentVolumeClaim" (dict "claimName" $name)) }}
{{- else if eq $.object.kind "Job" }}
{{- fail "download needs a volume that the job and the workers share: storage.kind shared" }}
{{- else if eq $kind "ephemeral" }}
{{- $empty := dict }}
{{- if $.storage.size }}
{{- $_ := set $empty "sizeLimit" $.storage.size }}
{{- end }}
{{- $volumes = append $volumes (dict "name" $volume.name "emptyDir" $empty) }}
{{- else }}
{{- $claim := dict "accessModes" (list "ReadWriteOnce") "resources" (dict "requests" (dict "storage" "50Gi")) }}
{{- $_ := include "quire.claim" (dict "spec" $claim "storage" $.storage) }}
{{- $_ := set $spec "volumeClaimTemplates" (list (dict "metadata" (dict "name" $volume.name) "spec" $claim)) }}
{{- end }}
{{- end }}
{{- $_ := set $spec.template.spec "volumes" $volumes }}
{{- end }}

{{- /* Limits a query to the release's namespace. Takes: query (whose selectors begin with the job), root. */ -}}
{{- define "quire.own" }}
{{- replace "{job" (printf "{namespace=%q,job" .root.Release.Namespace) .query }}
{{- end }}

{{- /* Changes alerts as the values say, drops those that they switch off, and limits them to the release's namespace.
       Takes: group (of rules), root. */ -}}
{{- define "quire.alerts" }}
{{- $rules := list }}
{{- $values := .root.Values }}
{{- range $rule := .group.rules }}
{{- $own := get ($values.alerts | default dict) $rule.alert | default dict }}
{{- $_ := set $rule "expr" (include "quire.own" (dict "query" $rule.expr "root" $.root)) }}
{{- if $values.runbooks }}
{{- $_ := set $rule.annotations "runbook_url" (print (trimSuffix "/" $values.runbooks) "/" $rule.annotations.runbook_url) }}
{{- end }}
{{- if hasKey $own "limit" }}
{{- $limit := required (printf "the alert %s has no limit that can be changed" $rule.alert) $rule.annotations.limit }}
{{- $text := include "quire.text" $own.limit }}
{{- $_ := set $rule "expr" (regexReplaceAll (printf "([<>]) %s( |$)" (regexQuoteMeta $limit)) $rule.expr (printf "${1} %s${2}" $text)) }}
{{- $summary := regexReplaceAll (printf "(^|[^0-9.])%s([^0-9]|$)" (regexQuoteMeta $limit)) $rule.annotations.summary (printf "${1}%s${2}" $text) }}
{{- $_ := set $rule "annotations" (merge (dict "limit" $text "summary" $summary) $rule.annotations) }}
{{- end }}
{{- if $own.for }}
{{- $_ := set $rule "for" $own.for }}
{{- end }}
{{- if $own.severity }}
{{- $_ := set $rule.labels "severity" $own.severity }}
{{- end }}
{{- if or (not (hasKey $own "enabled")) $own.enabled }}
{{- $rules = append $rules $rule }}
{{- end }}
{{- end }}
{{- $_ := set .group "rules" $rules }}
{{- end }}

{{- /* Lets a scaler count the queue of one model only. Takes: object, options (of the workers). */ -}}
{{- define "quire.queue" }}
{{- $missing := "scaling of a model with a name needs options.served-model-name" }}
{{- if eq .object.kind "ScaledObject" }}
{{- $name := first (splitList "," (required $missing (get .options "served-model-name"))) }}
{{- range $trigger := .object.spec.triggers }}
{{- $_ := set $trigger.metadata "query" (replace "}" (printf ",model_name=%q}" $name) $trigger.metadata.query) }}
{{- end }}
{{- else }}
{{- range $metric := .object.spec.metrics }}
{{- if $metric.external }}
{{- $name := first (splitList "," (required $missing (get $.options "served-model-name"))) }}
{{- $_ := set $metric.external.metric "selector" (dict "matchLabels" (dict "model_name" $name)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Sets the bounds and the thresholds of a scaler. Takes: object, scaler (minimum, maximum and threshold, or fewer),
       options (of the workers). */ -}}
{{- define "quire.scaler" }}
{{- $spec := .object.spec }}
{{- $keda := eq .object.kind "ScaledObject" }}
{{- $bounds := ternary (list "minReplicaCount" "maxReplicaCount") (list "minReplicas" "maxReplicas") $keda }}
{{- range $index, $key := list "minimum" "maximum" }}
{{- if hasKey $.scaler $key }}
{{- $_ := set $spec (index $bounds $index) (int (get $.scaler $key)) }}
{{- end }}
{{- end }}
{{- if gt (int (get $spec (first $bounds))) (int (get $spec (last $bounds))) }}
{{- fail "scaler.minimum is more than scaler.maximum" }}
{{- end }}
{{- if .scaler.threshold }}
{{- $threshold := include "quire.text" .scaler.threshold }}
{{- if $keda }}
{{- $_ := set (first $spec.triggers).metadata "threshold" $threshold }}
{{- else }}
{{- $metric := first $spec.metrics }}
{{- $_ := set (get $metric (lower $metric.type)).target "averageValue" $threshold }}
{{- end }}
{{- end }}
{{- /* Four in five of the sequences that a worker runs at once. */ -}}
{{- $of_presets := dict "throughput" 512 "latency" 32 "long-context" 16 }}
{{- $at_once := get .options "max-num-seqs" | default (get $of_presets (get .options "preset" | toString)) }}
{{- if $at_once }}
{{- $most := include "quire.text" (ceil (mulf 0.8 $at_once)) }}
{{- if $keda }}
{{- $_ := set (last $spec.triggers).metadata "threshold" $most }}
{{- else if gt (len $spec.metrics) 1 }}
{{- $_ := set (last $spec.metrics).external.target "averageValue" $most }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Sets images, numbers, options and resources of the workload .object. */ -}}
{{- define "quire.workload" }}
{{- $values := .root.Values }}
{{- $pod := .object.spec.template.spec }}
{{- $container := first $pod.containers }}
{{- $part := get .object.metadata.labels "app.kubernetes.io/component" }}
{{- $prefix := include "quire.prefix" . }}
{{- $all := printf "%s-" .root.Release.Name }}
{{- if ne $part "redis" }}
{{- $image := printf "%s:%s" (first (splitList ":" $container.image)) $values.image.tag }}
{{- $_ := set $container "image" (ternary (printf "%s/%s" $values.image.registry $image) $image (ne $values.image.registry "")) }}
{{- end }}
{{- if ne $values.image.pullPolicy "IfNotPresent" }}
{{- $_ := set $container "imagePullPolicy" $values.image.pullPolicy }}
{{- end }}
{{- if $values.image.pullSecrets }}
{{- $secrets := list }}
{{- range $name := $values.image.pullSecrets }}
{{- $secrets = append $secrets (dict "name" $name) }}
{{- end }}
{{- $_ := set $pod "imagePullSecrets" $secrets }}
{{- end }}
{{- $options := dict }}
{{- /* What the values say about the pods. */ -}}
{{- $own := dict }}
{{- if has $part (list "gateway" "router") }}
{{- $own = get $values $part }}
{{- $_ := set .object.spec "replicas" (int $own.replicas) }}
{{- $options = $own.options }}
{{- else if eq $part "scheduler" }}
{{- $own = .model.schedulerPods | default dict }}
{{- $_ := set .object.spec "replicas" (int (default 2 .model.schedulers)) }}
{{- $options = .model.schedulerOptions | default dict }}
{{- /* As quire serve does. */ -}}
{{- if get (.model.options | default dict) "preset" }}
{{- $options = merge (dict) $options (pick .model.options "preset" "max-num-batched-tokens") }}
{{- end }}
{{- else if eq $part "worker" }}
{{- $own = .model }}
{{- if .model.scaling }}
{{- $_ := unset .object.spec "replicas" }}
{{- else }}
{{- $_ := set .object.spec "replicas" (int (ternary .model.workers 1 (hasKey .model "workers"))) }}
{{- end }}
{{- $options = .model.options }}
{{- else if eq $part "download" }}
{{- /* Where the job runs first, the cloud may make the volume: it must be a place where workers run, too. */ -}}
{{- $own = pick .model "nodeSelector" "tolerations" "affinity" "priorityClassName" "annotations" }}
{{- $_ := required "download needs options.model" .model.options.model }}
{{- $options = pick .model.options "model" "revision" "download-dir" }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "priorityClassName" "runtimeClassName" }}
{{- if get $own $key }}
{{- $_ := set $pod $key (get $own $key) }}
{{- end }}
{{- end }}
{{- if $own.affinity }}
{{- $_ := set $pod "affinity" (merge (deepCopy $own.affinity) ($pod.affinity | default dict)) }}
{{- end }}
{{- if $own.annotations }}
{{- $_ := set .object.spec.template.metadata "annotations" $own.annotations }}
{{- end }}
{{- range $kind, $amounts := $own.resources }}
{{- range $name, $amount := $amounts }}
{{- $_ := set (get $container.resources $kind) $name $amount }}
{{- end }}
{{- end }}
{{- $environment := dict }}
{{- range $name, $value := $values.environment }}
{{- $_ := set $environment $name (include "quire.text" $value) }}
{{- end }}
{{- /* Where the part finds the others. */ -}}
{{- if eq $part "gateway" }}
{{- $_ := set $environment "QUIRE_ROUTER" (printf "%srouter:50051" $all) }}
{{- else if eq $part "router" }}
{{- $_ := set $environment "QUIRE_SCHEDULER" (printf "%sscheduler:50052" $all) }}
{{- else if eq $part "scheduler" }}
{{- $_ := set $environment "QUIRE_WORKER" (printf "%sworker:50071" $prefix) }}
{{- $served := get (.model.options | default dict) "served-model-name" }}
{{- if and .model.name $served }}
{{- $version := get .model.options "model-version" }}
{{- $name := first (splitList "," $served) }}
{{- $_ := set $environment "QUIRE_WORKER_MODEL" (ternary (print $name "@" (include "quire.text" $version)) $name (not (empty $version))) }}
{{- else if and .model.name (or $values.redis (hasKey $values.environment "QUIRE_REDIS")) }}
{{- fail "with redis, each model that has a name needs options.served-model-name" }}
{{- end }}
{{- end }}
{{- if and $values.redis (hasKey $values.environment "QUIRE_REDIS") }}
{{- fail "redis installs one; to use that of environment.QUIRE_REDIS, leave redis false" }}
{{- end }}
{{- if and $values.redis (has $part (list "gateway" "router" "scheduler" "worker")) }}
{{- $_ := set $environment "QUIRE_REDIS" (printf "redis://%sredis:6379" $all) }}
{{- end }}
{{- range $option, $value := $options }}
{{- $_ := set $environment (print "QUIRE_" ($option | upper | replace "-" "_")) (include "quire.text" $value) }}
{{- end }}
{{- $entries := list }}
{{- range $entry := $container.env }}
{{- if not (or (hasKey $environment $entry.name) (eq $entry.name "HF_TOKEN")) }}
{{- $entries = append $entries $entry }}
{{- end }}
{{- end }}
{{- range $name, $value := $environment }}
{{- $entries = append $entries (dict "name" $name "value" $value) }}
{{- end }}
{{- if and (has $part (list "worker" "download")) $values.hubToken }}
{{- $reference := dict "name" $values.hubToken "key" "token" "optional" true }}
{{- $entries = append $entries (dict "name" "HF_TOKEN" "valueFrom" (dict "secretKeyRef" $reference)) }}
{{- end }}
{{- if and (eq $part "router") $values.apiKey }}
{{- $reference := dict "name" $values.apiKey "key" "key" }}
{{- $entries = append $entries (dict "name" "QUIRE_API_KEY" "valueFrom" (dict "secretKeyRef" $reference)) }}
{{- end }}
{{- if ne $part "redis" }}
{{- $_ := set $container "env" $entries }}
{{- if $values.environmentFrom }}
{{- $_ := set $container "envFrom" $values.environmentFrom }}
{{- end }}
{{- $_ := set $pod "volumes" (concat $pod.volumes ($values.volumes | default list)) }}
{{- $_ := set $container "volumeMounts" (concat $container.volumeMounts ($values.volumeMounts | default list)) }}
{{- end }}
{{- /* A longer drain needs a longer grace period: some seconds more, or 20 s and some for the worker's calls and steps. */ -}}
{{- $drain := ternary 30.0 15.0 (eq $part "worker") }}
{{- range $entry := $entries }}
{{- if has $entry.name (list "QUIRE_DRAIN_DELAY" "QUIRE_DRAIN_TIMEOUT") }}
{{- $drain = addf $drain $entry.value }}
{{- end }}
{{- end }}
{{- if hasKey $pod "terminationGracePeriodSeconds" }}
{{- $_ := set $pod "terminationGracePeriodSeconds" (max $pod.terminationGracePeriodSeconds (ceil $drain)) }}
{{- end }}
{{- /* Kubernetes refuses to change the pods of a job: with a change, an upgrade replaces the job. */ -}}
{{- if eq .object.kind "Job" }}
{{- $hash := .object.spec.template | toYaml | sha256sum | trunc 8 }}
{{- $_ := set .object.metadata "name" (printf "%s-%s" .object.metadata.name $hash) }}
{{- end }}
{{- end }}
