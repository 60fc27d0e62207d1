# Sourced. Runs the parts of a longer job, keeps how long each took, and prints a table at the end.
# Relies on bash alone. A part that fails ends the job; the table is printed all the same.

parts_names=()
parts_took=()
parts_started=$SECONDS

# part NAME COMMAND...: runs the command under a heading.
part() {
  local name=$1 from=$SECONDS status=0
  shift
  printf '\n== %s\n' "$name"
  "$@" || status=$?
  parts_names+=("$name")
  if [ $status = 0 ]; then
    parts_took+=("$((SECONDS - from)) s")
  else
    parts_took+=("$((SECONDS - from)) s, failed with status $status")
    exit "$status"
  fi
}

# parts_table: what has run so far, with the sum.
parts_table() {
  [ ${#parts_names[@]} -gt 0 ] || return 0
  printf '\n%-34s %s\n' "part" "took"
  local i
  for i in "${!parts_names[@]}"; do
    printf '%-34s %s\n' "${parts_names[$i]}" "${parts_took[$i]}"
  done
  printf '%-34s %s\n' "all of it" "$((SECONDS - parts_started)) s"
}
