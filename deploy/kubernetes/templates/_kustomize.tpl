{{- /*
What of Kustomize the directories here use: resources, components, generated ConfigMaps, namespace, labels, images, and
patches that are JSON patches (add, replace, remove; of lists, an item is added at the end or replaced) or delete an
object. Anything else fails, and tests/deploy/helm_test.py compares every overlay with what kubectl makes of it.
*/ -}}

{{- /* The objects of a directory, as JSON. at: the directory; root: the chart; items: objects that are there already. */ -}}
{{- define "weir.objects" -}}
  {{- $file := .root.Files.Get (printf "%s/kustomization.yaml" .at) -}}
  {{- if not $file }}{{ fail (printf "no overlay %q: see the directories in overlays/" (base .at)) }}{{ end -}}
  {{- $kustomization := fromYaml $file -}}
  {{- $items := .items | default list -}}
  {{- range $key := keys $kustomization -}}
    {{- if not (has $key (list "apiVersion" "kind" "resources" "components" "configMapGenerator" "namespace" "labels" "images" "patches")) -}}
      {{- fail (printf "%s: the chart knows no %q" $.at $key) -}}
    {{- end -}}
  {{- end -}}
  {{- range $name := $kustomization.resources -}}
    {{- $path := clean (printf "%s/%s" $.at $name) -}}
    {{- if hasSuffix ".yaml" $name -}}
      {{- range $document := regexSplit "(?m)^---$" ($.root.Files.Get $path) -1 -}}
        {{- with fromYaml $document }}{{ $items = append $items . }}{{ end -}}
      {{- end -}}
    {{- else -}}
      {{- $items = concat $items (include "weir.objects" (dict "root" $.root "at" $path) | fromJson).items -}}
    {{- end -}}
  {{- end -}}
  {{- range $name := $kustomization.components -}}
    {{- $path := clean (printf "%s/%s" $.at $name) -}}
    {{- $items = (include "weir.objects" (dict "root" $.root "at" $path "items" $items) | fromJson).items -}}
  {{- end -}}
  {{- range $map := $kustomization.configMapGenerator -}}
    {{- $data := dict -}}
    {{- range $map.files -}}
      {{- $pair := splitList "=" . -}}
      {{- $_ := set $data (first $pair) ($.root.Files.Get (printf "%s/%s" $.at (last $pair))) -}}
    {{- end -}}
    {{- $items = append $items (dict "apiVersion" "v1" "kind" "ConfigMap" "metadata" (dict "name" $map.name) "data" $data) -}}
  {{- end -}}
  {{- $kept := list -}}
  {{- range $item := $items -}}
    {{- with $kustomization.namespace }}{{ $_ := set $item.metadata "namespace" . }}{{ end -}}
    {{- range $kustomization.labels -}}
      {{- $_ := set $item.metadata "labels" (merge (dict) .pairs ($item.metadata.labels | default dict)) -}}
    {{- end -}}
    {{- range $image := $kustomization.images -}}
      {{- range $container := include "weir.containers" $item | fromJsonArray -}}
        {{- if hasPrefix (printf "%s:" $image.name) $container.image -}}
          {{- include "weir.set-image" (dict "object" $item "name" $container.name "image" (printf "%s:%s" $image.newName $image.newTag)) -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
    {{- $deleted := false -}}
    {{- range $patch := $kustomization.patches -}}
      {{- if and (eq $patch.target.kind $item.kind) (eq $patch.target.name $item.metadata.name) -}}
        {{- if contains "$patch: delete" $patch.patch -}}
          {{- $deleted = true -}}
        {{- else -}}
          {{- include "weir.patch" (dict "object" $item "operations" (fromYamlArray $patch.patch)) -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
    {{- if not $deleted }}{{ $kept = append $kept $item }}{{ end -}}
  {{- end -}}
  {{- toJson (dict "items" $kept) -}}
{{- end -}}

{{- /* All containers of the pods that an object makes, as JSON. */ -}}
{{- define "weir.containers" -}}
  {{- $pod := dig "spec" "template" "spec" (dict) . -}}
  {{- toJson (concat ($pod.initContainers | default list) ($pod.containers | default list)) -}}
{{- end -}}

{{- /* Changes the image of one container of an object. */ -}}
{{- define "weir.set-image" -}}
  {{- $pod := .object.spec.template.spec -}}
  {{- range concat ($pod.initContainers | default list) $pod.containers -}}
    {{- if eq .name $.name }}{{ $_ := set . "image" $.image }}{{ end -}}
  {{- end -}}
{{- end -}}

{{- /* Changes an object by the operations of a JSON patch. */ -}}
{{- define "weir.patch" -}}
  {{- range $operation := .operations -}}
    {{- $path := splitList "/" (trimPrefix "/" $operation.path) -}}
    {{- $last := last $path | replace "~1" "/" -}}
    {{- $into := $.object -}}
    {{- $holder := dict -}}
    {{- $key := "" -}}
    {{- range $part := initial $path -}}
      {{- if kindIs "slice" $into -}}
        {{- $into = index $into (int $part) -}}
      {{- else -}}
        {{- $holder = $into -}}
        {{- $key = $part | replace "~1" "/" -}}
        {{- $into = required (printf "no %s to patch" $operation.path) (index $into $key) -}}
      {{- end -}}
    {{- end -}}
    {{- if eq $last "-" -}}
      {{- $_ := set $holder $key (append $into $operation.value) -}}
    {{- else if kindIs "slice" $into -}}
      {{- if ne $operation.op "replace" }}{{ fail (printf "the chart cannot %s %s" $operation.op $operation.path) }}{{ end -}}
      {{- $items := list -}}
      {{- range $index, $item := $into -}}
        {{- $items = append $items (ternary $operation.value $item (eq $index (int $last))) -}}
      {{- end -}}
      {{- $_ := set $holder $key $items -}}
    {{- else if eq $operation.op "remove" -}}
      {{- $_ := unset $into $last -}}
    {{- else if has $operation.op (list "add" "replace") -}}
      {{- $_ := set $into $last $operation.value -}}
    {{- else -}}
      {{- fail (printf "the chart knows no operation %q" $operation.op) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
