{{- define "larder.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "larder.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "larder.labels" -}}
{{ include "larder.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "larder.account" -}}
{{ .Values.serviceAccountName | default (eq .Values.base "agent" | ternary .Chart.Name (include "larder.fullname" .)) }}
{{- end }}

{{- define "larder.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "larder.account" . }}
{{- end }}

{{- /* The configuration: the chart's fields, then those of the user. */ -}}
{{- define "larder.config" -}}
{{- $config := dict "apiVersion" "larder.dev/v1alpha1" "kind" "AgentConfiguration" "listen" "0.0.0.0:10290" }}
{{- if eq .Values.base "beside" }}
{{- $hooks := .Values.beside.hooks }}
{{- $_ := set $config "mode" "Beside" }}
{{- /* The lock is in a directory of the host, so that only one larder per node refreshes pods. */}}
{{- $_ := set $config "beside" (dict "kubeletRootDir" .Values.beside.kubeletRootDir "lockDir" "/run/larder") }}
{{- /* With hooks on the host as well: what they have done outlives the container. */}}
{{- $_ := set $config "rootDir" ($hooks | ternary "/run/larder/root" "/run/larder-agent/root") }}
{{- $_ := set $config "onChangeFromPods" ($hooks | ternary (list "signal" "http" "restart") (list "http")) }}
{{- else }}
{{- $_ := set $config "nodeName" .Values.nodeName }}
{{- /* Below the shared volume: the agent insists on a directory that only its user can write to. */}}
{{- $_ := set $config "rootDir" "/run/larder/node" }}
{{- end }}
{{- toYaml (mustMergeOverwrite $config (deepCopy .Values.config)) }}
{{- end }}

{{- /* What the container has in both workloads. */ -}}
{{- define "larder.container" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
ports:
- name: metrics
  containerPort: 10290
# Over the agent's socket: no port has to be open for probes.
livenessProbe:
  exec:
    command: [larder, status, --config, /etc/larder/agent.yaml, --check, healthz]
  timeoutSeconds: 5
  periodSeconds: 10
  failureThreshold: 6
readinessProbe:
  exec:
    command: [larder, status, --config, /etc/larder/agent.yaml, --check, readyz]
  timeoutSeconds: 5
  periodSeconds: 5
{{- with .Values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The metadata of both workloads' pods. A new configuration is a new pod. The chart's own labels and annotations win. */ -}}
{{- define "larder.podMetadata" -}}
{{- $annotations := dict "kubectl.kubernetes.io/default-container" "larder" "checksum/config" (include "larder.config" . | sha256sum) -}}
labels:
  {{- toYaml (merge (include "larder.selector" . | fromYaml) .Values.podLabels) | nindent 2 }}
annotations:
  {{- toYaml (merge $annotations .Values.podAnnotations) | nindent 2 }}
{{- end }}

{{- /* An object of the cluster and its binding to the account: (list . SUFFIX). */ -}}
{{- define "larder.clusterRoleBinding" -}}
{{- $name := printf "%s%s" (include "larder.fullname" (index . 0)) (index . 1) }}
{{- with index . 0 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "larder.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
subjects:
{{ include "larder.subject" . }}
{{- end }}
{{- end }}

{{- define "larder.subject" -}}
- kind: ServiceAccount
  namespace: {{ .Release.Namespace }}
  name: {{ include "larder.account" . }}
{{- end }}

{{- define "larder.policyBinding" -}}
{{- $name := printf "%s%s" (include "larder.fullname" (index . 0)) (index . 1) }}
{{- with index . 0 -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "larder.labels" . | nindent 4 }}
spec:
  policyName: {{ $name }}
  validationActions: [Deny]
{{- end }}
{{- end }}
