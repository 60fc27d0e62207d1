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
