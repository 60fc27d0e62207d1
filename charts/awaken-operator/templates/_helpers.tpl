{{- /* The front of every name: the release's name. */ -}}
{{- define "awaken.name" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* Labels of every object. Takes a list: the root, and the component (empty for what belongs to none). */ -}}
{{- define "awaken.labels" -}}
{{- $root := index . 0 -}}
{{ include "awaken.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* Labels that select the pods of one component; they never change. */ -}}
{{- define "awaken.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: awaken-operator
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- with index . 1 }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "awaken.image" -}}
{{- with .Values.image -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ with .digest }}@{{ . }}{{ end }}
{{- end -}}
{{- end -}}

{{- /* A service account as the API server names it. Takes a list: the root, and the component. */ -}}
{{- define "awaken.account" -}}
{{- $root := index . 0 -}}
system:serviceaccount:{{ $root.Release.Namespace }}:{{ include "awaken.name" $root }}-{{ index . 1 }}
{{- end -}}

{{- define "awaken.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "awaken.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* What each program learns of itself, and how it logs. */ -}}
{{- define "awaken.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: AWAKEN_INSTANCE
  value: {{ .Release.Name }}
- name: AWAKEN_LOG
  value: {{ .Values.logging.level | quote }}
- name: AWAKEN_LOG_FORMAT
  value: {{ .Values.logging.format }}
{{- end -}}

{{- define "awaken.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: ops}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: ops}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: ops}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end -}}

{{- /* Name of the account that management tools act under, in the release's namespace. */ -}}
{{- define "awaken.mcpAccount" -}}
{{- .Values.gateway.mcp.management.serviceAccount.name | default (printf "%s-mcp" (include "awaken.name" .)) -}}
{{- end -}}

{{- /* Refuses more replicas of the gateway than its journal carries. */ -}}
{{- define "awaken.replicaCheck" -}}
{{- if gt (int .Values.gateway.replicas) 1 -}}
{{- if not .Values.journal.postgres.urlSecretRef.name -}}
{{- fail "gateway.replicas: more than one needs journal.postgres.urlSecretRef.name, since a SQLite journal has one writer" -}}
{{- end -}}
{{- if .Values.gateway.mcp.exportNamespaces -}}
{{- fail "gateway.replicas: with gateway.mcp.exportNamespaces it must be 1, since /v1/mcp calls the tools of Agents only in the gateway that serves their Session" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Refuses values of gateway.mcp that contradict each other. */ -}}
{{- define "awaken.mcpCheck" -}}
{{- $mcp := .Values.gateway.mcp -}}
{{- $account := $mcp.management.serviceAccount -}}
{{- if not $mcp.bearerSecretRef.name -}}
{{- if $mcp.exports -}}
{{- fail "gateway.mcp.exports needs gateway.mcp.bearerSecretRef.name: without a bearer there is no route to show them on" -}}
{{- end -}}
{{- if $mcp.exportNamespaces -}}
{{- fail "gateway.mcp.exportNamespaces needs gateway.mcp.bearerSecretRef.name: without a bearer there is no route to show their exports on" -}}
{{- end -}}
{{- end -}}
{{- if eq $mcp.bearerSecretRef.key $mcp.bearerSecretRef.previousKey -}}
{{- fail "gateway.mcp.bearerSecretRef: key and previousKey must differ" -}}
{{- end -}}
{{- if $mcp.exports -}}
{{- if not $mcp.management.namespaces -}}
{{- fail "gateway.mcp.exports needs gateway.mcp.management.namespaces: name the namespaces that management tools see and act in" -}}
{{- end -}}
{{- if has .Release.Namespace $mcp.management.namespaces -}}
{{- fail (printf "gateway.mcp.management.namespaces: %s holds the keys of the installation, which an attachment there could read; name others" .Release.Namespace) -}}
{{- end -}}
{{- if and (not $account.create) (not $account.name) -}}
{{- fail "gateway.mcp.management.serviceAccount.name must name your account when serviceAccount.create is false" -}}
{{- end -}}
{{- if has (include "awaken.mcpAccount" .) (list (printf "%s-operator" (include "awaken.name" .)) (printf "%s-gateway" (include "awaken.name" .)) "default") -}}
{{- fail (printf "gateway.mcp.management.serviceAccount.name: %s is an account that is more than the management tools'" (include "awaken.mcpAccount" .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Flags of the gateway for /v1/mcp. */ -}}
{{- define "awaken.mcpFlags" -}}
{{- include "awaken.mcpCheck" . -}}
{{- $mcp := .Values.gateway.mcp -}}
{{- with $mcp.bearerSecretRef }}
{{- if .name }}
- --mcp-bearer-secret={{ .name }}
- --mcp-bearer-key={{ .key }}
- --mcp-bearer-previous-key={{ .previousKey }}
{{- end }}
{{- end }}
{{- range $mcp.exportNamespaces }}
- --mcp-export-namespace={{ . }}
{{- end }}
{{- if $mcp.exports }}
{{- range $mcp.exports }}
- --mcp-export={{ . }}
{{- end }}
{{- range $mcp.management.namespaces }}
- --mcp-management-namespace={{ . }}
{{- end }}
- --mcp-management-account=system:serviceaccount:{{ .Release.Namespace }}:{{ include "awaken.mcpAccount" . }}
{{- end }}
{{- end -}}

{{- /*
What each management tool needs of the kinds, in its namespaces. A server-side apply needs create and patch; who waits
for an object lists and watches.
*/ -}}
{{- define "awaken.mcpRights" -}}
agents_list: {agents: [list]}
agent_get: {agents: [get], mcpattachments: [list]}
attachments_list: {mcpattachments: [list]}
attachment_get: {mcpattachments: [get], sessions: [list]}
attachment_apply: {mcpattachments: [get, list, watch, create, patch], sessions: [list]}
attachment_delete: {mcpattachments: [get, delete], sessions: [list, watch]}
attachment_retry: {mcpattachments: [list, watch, patch], sessions: [list]}
sessions_list: {sessions: [list]}
session_get: {sessions: [get]}
session_create: {agents: [get], sessions: [list, watch, create]}
session_close: {sessions: [get, list, watch, delete]}
trace_list: {sessions: [get], sessions/trace: [get]}
{{- end -}}

{{- /* The verbs on one resource that the exported tools need, as a list in JSON. Takes a list: the root, the resource. */ -}}
{{- define "awaken.mcpVerbs" -}}
{{- $root := index . 0 -}}
{{- $resource := index . 1 -}}
{{- $rights := include "awaken.mcpRights" $root | fromYaml -}}
{{- $verbs := list -}}
{{- range $root.Values.gateway.mcp.exports -}}
{{- $verbs = concat $verbs (index $rights . | dig $resource list) -}}
{{- end -}}
{{- $sorted := list -}}
{{- range list "get" "list" "watch" "create" "patch" "delete" -}}
{{- if has . $verbs }}{{ $sorted = append $sorted . }}{{ end -}}
{{- end -}}
{{- $sorted | toJson -}}
{{- end -}}
